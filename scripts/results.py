"""Make the tables of docs/results: run the experiments of ``experiments/``, and write them as CSV.

    python scripts/results.py --shared ../shared --out out/results                  # all of them, from one commit
    python scripts/results.py --shared ../shared --only settings                    # one of them
    python scripts/results.py --shared ../shared --tables                           # tables of what is stored
    python scripts/results.py --list                                                # what is made, and its minutes

A run that was interrupted is resumed. The site shows ``tables/NAME.csv`` where a page has the line ``<!-- table: NAME
-->``, with what ``tables/made.json`` says of it: the commit and the versions, and the conclusions that follow by rule
from the scores. Settings are chosen on the first half of the images (every second file, from the first on), and all
else is judged on the second half.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fringe
from fringe.bench.experiments import ExperimentSpec, Results, Store, manifests, read_results, run_experiment
from fringe.bench.report import build_table, chance_of
from fringe.evaluation import Difference, estimate, paired

sys.path.insert(0, str(Path(__file__).parent))

from result_tables import COMMANDS, DERIVED, MINUTES, SCRIPTS, TABLES
from result_tables import Table as Table

ROOT = Path(__file__).parents[1]
TABLES_FOLDER = ROOT / "docs" / "results" / "tables"
#: What made each table, and what follows from it.
MADE = TABLES_FOLDER / "made.json"
#: Metrics that the last columns show.
DIAGNOSTICS = ("completeness_residual", "endpoint_kl")
#: Metrics of tables of scenes; the differences of the first four are shown.
LOCALISATION = (
    *("mass_inside", "mass_inside:smooth", "region_completeness", "object_balance", "rank_accuracy", "expected_hit"),
)
SIGNS = {"higher": 1, "lower": -1, "none": 0}
ARROWS = {"higher": " ↑", "lower": " ↓", "none": ""}


def images_of(spec: ExperimentSpec) -> str:
    """Return the folder of images for the networks of an experiment, whose labels are of any form."""
    return "cifar10" if "cifar" in str(spec.model) else "imagenet"


def folders(name: str) -> list[str]:
    """The runs of a table: one for each half of the images that it has."""
    halves = TABLES[name].halves if name in TABLES else ()
    return [f"{name}-{half}" for half in halves] if len(halves) > 1 else [name]


def run(name: str, shared: Path, out: Path, device: str) -> None:
    """Run one experiment, command or script, or what is missing of it."""
    os.environ["FRINGE_SHARED"] = str(shared)  # the model's file is named zoo.py
    if name in SCRIPTS:
        subprocess.run([sys.executable, str(ROOT / "experiments" / f"{name}.py"), str(TABLES_FOLDER)], check=True)
        for made in SCRIPTS[name]:
            stamp(made)
        return
    if name in COMMANDS:
        command = COMMANDS[name]
        images = sorted(map(str, (shared / "images").glob(command.images)))
        words = [*command.words, *images, "--out", str(out / name), "--device", device]
        subprocess.run([sys.executable, "-m", "fringe", *words], check=True)
        return
    spec = ExperimentSpec.from_file(ROOT / "experiments" / f"{name}.toml")
    images = images_of(spec)
    for folder, half in zip(folders(name), TABLES[name].halves or (None,), strict=True):
        data = shared / "images" / images
        if half is not None:
            data = out / "images" / f"{images}-{half}"
            data.mkdir(parents=True, exist_ok=True)
            for path in sorted((shared / "images" / images).iterdir())[half::2]:
                if not (data / path.name).exists():
                    (data / path.name).symlink_to(path.resolve())
        given = spec.model_copy(update={"data": (str(data.resolve()),), "trust_code": True})
        run_experiment(given, out / folder, device=device)


def of_maps(results: Results, model: str, method: str) -> dict[str, float]:
    """Return what does not depend on a metric: verdicts, passes and diagnostics of the maps of a method."""
    cell = results.cells[model, method, results.metrics[0]]
    maps, verdicts = cell.maps[cell.column("map_index") >= 0], results.map_frame(model, method)["verdict"]

    def column(name: str) -> np.ndarray:
        values = results.details(model, method, {cell.metric: f"diagnostic/{name}"})[cell.metric].values()
        return np.array([value[0] for value in values], dtype=float)

    residual, end = column("completeness_residual"), column("endpoint_kl")
    return {
        "passes": float(np.mean(maps["forward"] + maps["jvp"] + maps["vjp"])),
        **{verdict: float((verdicts == verdict).fill_null(False).mean() or 0.0) for verdict in ("ok", "stalled")},
        "residual": float("nan") if np.isnan(residual).all() else float(np.nanmedian(residual)),
        "end": float("nan") if np.isnan(end).all() else float(np.nanmean(end)),
    }


#: A row of a table: its cells by the titles of their columns; "table" says which table of the file.
Row = dict[str, str]


def table(
    results: Results, model: str, base: str, names: dict[str, str], suffix: str = "", controls: Sequence[str] = ()
) -> list[Row]:
    """Return a table: scores of the base, and paired differences to it of all others.

    ``suffix`` selects the metrics with other replaced pixels, such as ``":zero"``.
    """
    metrics = [m for m in results.metrics if m.endswith(suffix) and (suffix or ":" not in m) and m not in DIAGNOSTICS]
    about = results.manifest.metrics
    count = int(np.isfinite(results.scores(model, base, metrics[0])).sum())
    zeros = ", pixels replaced by zeros" if suffix else ""
    rows: list[Row] = []
    for method in results.methods(model):
        numbers = of_maps(results, model, method)
        row = {"table": f"{model}{zeros}, n = {count}", "setting": names.get(method, method)}
        row["passes"] = f"{numbers['passes']:.0f}"
        for metric in metrics:
            title = metric.removesuffix(suffix).replace("_", " ") + ARROWS[about[metric]["direction"]]
            row[title] = _cell(results, model, method, metric, base, controls)
        if not suffix:
            row |= {"end KL": _number(numbers["end"], 2), "residual": _number(numbers["residual"], 3)}
            row["ok"] = "–" if np.isnan(numbers["residual"]) else f"{numbers['ok']:.0%}"
        rows.append(row)
    return rows


def _cell(results: Results, model: str, method: str, metric: str, base: str, controls: Sequence[str] = ()) -> str:
    scores, reference = results.scores(model, method, metric), results.scores(model, base, metric)
    median = results.manifest.metrics[metric]["summary"] == "median"
    if not np.isfinite(scores).any():
        return "–"
    if method == base:
        return f"{(np.nanmedian if median else np.nanmean)(scores):.3f}"
    if not np.isfinite(scores - reference).any():
        return f"({(np.nanmedian if median else np.nanmean)(scores):.3f})"
    others = [] if method in controls else [results.scores(model, control, metric) for control in controls]
    sign = SIGNS[results.manifest.metrics[metric]["direction"]]
    return "".join(_difference(paired(scores, reference))) + _dagger(scores, reference, others, sign)


Compare = Callable[[np.ndarray, np.ndarray], Difference]


def _dagger(
    scores: np.ndarray, base: np.ndarray, controls: Sequence[np.ndarray], sign: int, compare: Compare = paired
) -> str:
    """A dagger for a gain over the base that is not shown over each control."""

    def better(other: np.ndarray) -> bool:
        found = compare(scores, other)
        return min(sign * found.low, sign * found.high) > 0

    return "†" if controls and better(base) and not all(map(better, controls)) else ""


def _difference(difference: Difference) -> tuple[str, str]:
    """A difference with its interval, and a star if that leaves out zero."""
    digits = 3 if abs(difference.value) < 100 else 0
    text = f"{difference.value:+.{digits}f} [{difference.low:+.{digits}f}, {difference.high:+.{digits}f}]"
    return text.replace("-", "−"), "*" if difference.low * difference.high > 0 else ""


def truth_tables(results: Results, base: str, names: dict[str, str], *, controls: Sequence[str] = ()) -> list[Row]:
    """Return a table for each scene and given network, pooled over the networks whose gates hold."""
    groups = _groups(results).items()
    return [row for name, models in groups for row in _truth_table(results, *name, models, base, names, controls)]


def _groups(results: Results) -> dict[tuple[str, str], list[str]]:
    """The networks whose gates hold, by scene and given network."""
    groups: dict[tuple[str, str], list[str]] = {}
    for label, scene in results.manifest.scenes.items():
        for model, network in scene["networks"].items():
            if all(gate["holds"] for gate in network["gates"]):
                groups.setdefault((label, network["given"] or ""), []).append(model)
    return groups


def _truth_table(
    results: Results,
    label: str,
    given: str,
    models: list[str],
    base: str,
    names: dict[str, str],
    controls: Sequence[str] = (),
) -> list[Row]:
    clusters = [cluster for model in models for cluster in results.clusters(model) or ()]
    networks = [model for model in models for _ in results.clusters(model) or ()]

    def column(method: str, metric: str) -> np.ndarray:
        return np.concatenate([results.scores(model, method, metric) for model in models])

    compare = partial(paired, clusters=clusters, networks=networks)
    methods, about = results.methods(models[0]), results.manifest.metrics
    shown = [m for m in LOCALISATION if m in results.metrics and np.isfinite(column(base, m)).any()]

    count, scene = f"{len(models)} networks, " if len(models) > 1 else "", results.manifest.scenes[label]
    on = f" on {given}" if given else ""
    heading = f"{scene['title']} ({label}){on}, {count}n = {len(clusters)}"
    chances = {_title(about, metric): _number(chance_of(results, models, metric), 3) for metric in shown}
    rows: list[Row] = [{"table": heading, "method": "chance", **chances}]  # of a map that says nothing
    for method in methods:
        known = [of_maps(results, model, method) for model in models]
        passes, ok, stalled = (np.mean([one[name] for one in known]) for name in ("passes", "ok", "stalled"))
        row = {"table": heading, "method": names.get(method, method), "passes": f"{passes:.0f}"}
        for metric in shown:
            scores, reference = column(method, metric), column(base, metric)
            title = _title(about, metric)
            text = star = ""
            if method != base and np.isfinite(scores - reference).any():
                text, star = _difference(compare(scores, reference))
                others = [] if method in controls else [column(control, metric) for control in controls]
                star += _dagger(scores, reference, others, SIGNS[about[metric]["direction"]], compare)
            row[title] = f"{np.nanmean(scores):.3f}" if method == base or text else "–"
            if metric in LOCALISATION[:4]:
                row[f"{title}, difference"] = text + star
            else:
                row[title] += star
        checked = any(np.isfinite(one["residual"]) for one in known)
        row |= {"ok": f"{ok:.0%}", "stalled": f"{stalled:.0%}"} if checked else {"ok": "–", "stalled": "–"}
        if any(np.isfinite(column(method, metric)).any() for metric in shown):
            rows.append(row)
    return rows


def _title(about: Mapping[str, Mapping[str, Any]], metric: str) -> str:
    _, colon, preset = metric.partition(":")
    return about[metric]["title"].lower() + (f", {preset}" if colon else "") + ARROWS[about[metric]["direction"]]


def _number(value: float, digits: int) -> str:
    return "–" if np.isnan(value) else f"{value:.{digits}f}"


def verdict_rows(runs: Sequence[Results], method: str = "fringe") -> list[Row]:
    """How many maps of a method in scenes show the right pixels, by verdict: the rank accuracy is at least half of the
    way from chance to 1, or the mass inside a tenth of that way above chance and above that of every blind map."""
    found: dict[str, list[tuple[bool, str, str]]] = {}
    for results in runs:
        for (label, _), models in _groups(results).items():
            for model in models:
                known = {name: results.scores(model, method, name) for name in ("mass_inside", "rank_accuracy")}
                least = {name: chance_of(results, [model], name) for name in known}
                blind = [results.scores(model, one, "mass_inside") for one in ("random", "uniform", "edge")]
                mass, rank = known["mass_inside"], known["rank_accuracy"]
                right = rank >= (1 + least["rank_accuracy"]) / 2
                above = mass > np.nanmax(np.stack(blind), 0)
                right |= above & (mass >= least["mass_inside"] + 0.1 * (1 - least["mass_inside"]))
                groups = zip(
                    results.map_frame(model, method)["verdict"], right, results.clusters(model) or (), strict=True
                )
                for verdict, one, cluster in groups:
                    found.setdefault(verdict, []).append((bool(one), f"{label} {cluster}", model))
    scenes = sum(len(_groups(results)) for results in runs)
    rows = list[Row]()
    for verdict in sorted(found, key=lambda name: -len(found[name])):
        maps, clusters, models = zip(*found[verdict], strict=True)
        share = estimate(np.array(maps, float), clusters=clusters, networks=models)
        many = f"{share.mean:.0%} [{share.low:.0%}, {share.high:.0%}]" if len(maps) >= 30 else f"{sum(maps)}"
        title = f"FRInGe() in {scenes} scenes, n = {sum(map(len, found.values()))}"
        rows.append({"table": title, "verdict": f"`{verdict}`", "maps": f"{len(maps)}", "right maps, of these": many})
    return rows


# -- tables of commands -----------------------------------------------------------------------------------------------


def validity_rows(folder: Path) -> list[Row]:
    """How each metric of a comparison did."""
    document = json.loads((folder / "validity.json").read_text(encoding="utf-8"))

    def number(value: float | None) -> str:
        return "–" if value is None else f"{value:.2f}".replace("-", "−")

    def row(one: dict[str, Any]) -> Row:
        mean, low, high = (number(one["validity"][name]) for name in ("mean", "low", "high"))
        numbers = {
            "validity": f"{mean} [{low}, {high}]" if mean != "–" else mean,
            **{name: number(one[name]) for name in ("power", "gap")},
            **{title: one[name] or "–" for title, name in (("best method", "best"), ("best control", "control"))},
            "verdict": one["verdict"],
        }
        return {"table": f"{document['model']}, n = {document['images']}", "metric": f"`{one['metric']}`", **numbers}

    return [row(one) for one in document["metrics"]]


# -- all tables -------------------------------------------------------------------------------------------------------


def write_tables(out: Path, only: list[str], *, computed: bool = True) -> None:
    """Replace the tables whose runs are stored and complete; ``computed`` says that they were so by this commit."""
    for name in only:
        if name in SCRIPTS or not all((out / folder).is_dir() for folder in folders(name)):
            continue
        if rows := _tables_of(name, out):
            write(name, rows)
            conclusions = _conclusions(complete(out, folders(name))) if name in TABLES else ()
            stamp(name, conclusions, computed=computed)
        print(f"{name}: {'written' if rows else 'left as it is, because its run is not complete'}")
    for name, runs in DERIVED.items():
        if set(runs) & set(only) and len(known := complete(out, runs)) == len(runs):
            write(name, verdict_rows(known))
            stamp(name, like=runs[0])


def stamp(name: str, conclusions: Sequence[str] = (), *, computed: bool = True, like: str | None = None) -> None:
    """Note what follows from the scores of a table, and the commit and the versions that ``computed`` it, or those of
    the table whose run it reads (``like``)."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    changed = git("status", "--porcelain", "--", "src", "experiments", "scripts")  # a test refuses such a table
    commit = git("rev-parse", "--short=12", "HEAD") + (", with changes" if changed else "")
    versions = {"fringe": fringe.__version__, "torch": torch.__version__.partition("+")[0], "commit": commit}
    known = json.loads(MADE.read_text(encoding="utf-8")) if MADE.is_file() else {}
    kept = {key: value for key, value in known.get(like or name, {}).items() if key in versions}
    made = versions if computed and like is None else {**versions, **kept}
    known[name] = {**made, **({"conclusions": list(conclusions)} if conclusions else {})}
    MADE.write_text(json.dumps(dict(sorted(known.items())), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _conclusions(runs: Sequence[Results]) -> list[str]:
    """What the scores of the last run, which judges, show by rule; scenes have several tables, and none."""
    results = runs[-1]
    return [] if results.manifest.scenes else build_table(results, results.models[0]).conclusions


def complete(out: Path, names: Sequence[str]) -> list[Results]:
    """Return the results of runs; none unless all of them are stored and complete."""
    stores = [Store(out / name, create=False) for name in names if (out / name).is_dir()]
    results = [read_results(store) for store in stores if manifests(store)]
    return [] if len(results) < len(names) or any(one.missing() for one in results) else results


def _tables_of(name: str, out: Path) -> list[Row]:
    if name in COMMANDS:
        return validity_rows(out / name) if (out / name / "validity.json").is_file() else []
    base, names, controls = TABLES[name].base, TABLES[name].names, TABLES[name].controls
    rows: list[Row] = []
    for results, half in zip(complete(out, folders(name)), TABLES[name].halves or (None,), strict=False):
        if results.manifest.scenes:
            return truth_tables(results, base, names, controls=controls)
        which = {0: ", to choose on", 1: ", to judge on"}[half or 0] if len(TABLES[name].halves) > 1 else ""
        for suffix in ("", *sorted({":" + m.partition(":")[2] for m in results.metrics if ":" in m})):
            found = table(results, results.models[0], base, names, suffix, controls)
            rows += [{**row, "table": row["table"] + which} for row in found]
    return rows


def write(name: str, rows: list[Row]) -> None:
    """Write the tables of a run as one CSV file."""
    columns: list[str] = []
    for row in rows:
        for before, title in pairwise(["", *row]):
            if title not in columns:
                columns.insert(columns.index(before) + 1 if before else 0, title)
    with (TABLES_FOLDER / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    """Run the experiments and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=Path("../shared"), help="folder with models/ and images/")
    parser.add_argument("--out", type=Path, default=Path("out/results"), help="folder of the runs")
    parser.add_argument("--only", action="append", choices=list(MINUTES), help="one table; may be repeated")
    parser.add_argument("--tables", action="store_true", help="write the tables of stored runs, and compute nothing")
    parser.add_argument("--list", action="store_true", help="print the tables with the minutes that they take")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    only = arguments.only or list(MINUTES)
    if arguments.list:
        print(
            *(f"{name:24}{MINUTES[name]:5} minutes" for name in only),
            f"{'all':24}{sum(MINUTES.values()):5} minutes",
            sep="\n",
        )
        return
    for name in only:
        if not arguments.tables:
            print(f"{name}: about {MINUTES[name]} minutes on one processor ...", flush=True)
            run(name, arguments.shared, arguments.out, arguments.device)
        write_tables(arguments.out, [name], computed=not arguments.tables)


if __name__ == "__main__":
    main()
