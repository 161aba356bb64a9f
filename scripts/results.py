"""Run the experiments of ``experiments/`` and write their tables into docs/results/tables, as CSV.

    python scripts/results.py --shared ../shared --out out/results                  # all of them: hours
    python scripts/results.py --shared ../shared --only settings_cifar_resnet20     # one of them
    python scripts/results.py --shared ../shared --tables                           # tables of what is stored

A run that was interrupted is resumed. The site shows ``tables/NAME.csv`` where a page has the line
``<!-- table: NAME -->``; a table whose run is not in ``--out`` stays as it is. Settings are chosen on the first half of
the images (every second file, from the first on) and judged on the second half.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import compress, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fringe.bench.experiments import ExperimentSpec, Results, Store, manifests, read_results, run_experiment
from fringe.evaluation import CONTROLS, Difference, paired, summary

sys.path.insert(0, str(Path(__file__).parent))

from result_tables import COMMANDS, DEFAULTS, METHODS, TABLES
from result_tables import KEPT as KEPT

ROOT = Path(__file__).parents[1]
TABLES_FOLDER = ROOT / "docs" / "results" / "tables"
#: Scripts of experiments/ that draw their inputs and write their tables themselves.
SCRIPTS = ("occlusion",)
IMAGES = ROOT / "docs" / "images"
#: Metrics that the last columns show.
DIAGNOSTICS = ("completeness_residual", "endpoint_kl")
#: Metrics of tables of scenes; the differences of the first four are shown.
LOCALISATION = (
    *("mass_inside", "mass_inside:smooth", "region_completeness", "object_balance", "rank_accuracy", "expected_hit"),
)
#: Metrics that are valid on ResNet-20: docs/results/validity.md.
VALID = ("road", "signed_insertion")
SIGNS = {"higher": 1, "lower": -1, "none": 0}
ARROWS = {"higher": " ↑", "lower": " ↓", "none": ""}


def images_of(spec: ExperimentSpec) -> str:
    """Return the folder of images for the networks of an experiment, whose labels are of any form."""
    return "cifar10" if "cifar" in str(spec.model) else "imagenet"


def run(name: str, shared: Path, out: Path, device: str) -> None:
    """Run one experiment or command, or what is missing of it."""
    os.environ["FRINGE_SHARED"] = str(shared)  # the model's file is named zoo.py
    if name in COMMANDS:
        command = COMMANDS[name]
        images = sorted(map(str, (shared / "images").glob(command.images))) or [command.images]
        words = [*command.words, *images, "--out", str(out / name), "--device", device]
        script = [str(ROOT / "experiments" / "paper" / "reproduce.py"), *words[1:]]
        subprocess.run([sys.executable, *(script if words[0] == "reproduce" else ["-m", "fringe", *words])], check=True)
        return
    spec = ExperimentSpec.from_file(ROOT / "experiments" / f"{TABLES[name].experiment or name}.toml")
    images, half = images_of(spec), TABLES[name].half
    folder = shared / "images" / images
    if half is not None:
        folder = out / "images" / f"{images}-{half}"
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted((shared / "images" / images).iterdir())[half::2]:
            if not (folder / path.name).exists():
                (folder / path.name).symlink_to(path.resolve())
    spec = spec.model_copy(update={"data": (str(folder.resolve()),), "trust_code": True})
    run_experiment(spec, out / name, device=device)


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


def control_table(runs: list[Results], names: dict[str, str]) -> list[Row]:
    """Return how many scores of each method are better than those of every control, and of every blind one."""
    rows: dict[str, Row] = {}
    for results in runs:
        (model,) = results.models
        metrics = [metric for metric in results.metrics if metric not in DIAGNOSTICS]
        for blind, what in ((False, "all controls"), (True, "blind maps")):
            better = Counter(_better_than_controls(results, model, metrics, blind))
            for method in results.methods(model, controls=False):
                row = {"table": f"of {len(metrics)} scores", "setting": names.get(method, method)}
                rows.setdefault(method, row)[f"{model}: {what}"] = str(better[method])
    return list(rows.values())


def _better_than_controls(results: Results, model: str, metrics: list[str], blind: bool) -> list[str]:
    """The method of each score that is better than those of every control, or of every ``blind`` one."""
    labels = results.methods(model)
    controls = [label for label in labels if results.is_control(label) and (label in CONTROLS or not blind)]
    labels = [label for label in labels if label in controls or not results.is_control(label)]
    known = results.manifest.metrics
    words = {metric: (known[metric]["direction"], known[metric]["summary"]) for metric in metrics}
    scores = {(label, metric): results.scores(model, label, metric) for label in labels for metric in metrics}
    found = summary(scores, controls, words, int(results.manifest.plan["seed"]))
    return [label for (label, _), one in found.items() if one.test is not None and one.test.better]


def truth_tables(
    results: Results, base: str, names: dict[str, str], *, halves: bool = False, controls: Sequence[str] = ()
) -> list[Row]:
    """Return a table for each scene and given network, pooled over the networks whose gates hold.

    ``halves`` gives two of each instead: one of the first, third, fifth … cluster, to choose on, and one of the others,
    to judge on.
    """
    parts = (0, 1) if halves else (None,)
    groups = _groups(results).items()
    tables = [
        _truth_table(results, *name, models, base, names, half, controls) for name, models in groups for half in parts
    ]
    return [row for rows in tables for row in rows]


def _groups(results: Results) -> dict[tuple[str, str], list[str]]:
    """The networks whose gates hold, by scene and given network."""
    groups: dict[tuple[str, str], list[str]] = {}
    for label, scene in results.manifest.scenes.items():
        for model, network in scene["networks"].items():
            if all(gate["holds"] for gate in network["gates"]):
                groups.setdefault((label, network["given"] or ""), []).append(model)
    return groups


def _part(results: Results, models: list[str], half: int | None) -> tuple[np.ndarray, list[str]]:
    """Which examples of these networks are in a half of their clusters, and the clusters of all."""
    clusters = [cluster for model in models for cluster in results.clusters(model) or ()]
    order = {cluster: number for number, cluster in enumerate(dict.fromkeys(clusters))}
    return np.array([half is None or order[cluster] % 2 == half for cluster in clusters]), clusters


#: The runs of the table of controls and of the figure.
DEFAULT_RUNS = "default_cifar_resnet20", "default_mobilenet_v1_025"
#: Candidates for γ_prior.
PRIOR_RUNS = "truth_prior", "truth_imagenet", "prior_choose_cifar_resnet20", "prior_judge_cifar_resnet20"
PRIORS = {"prior_3e3": "3e-3", "prior_1e3": "1e-3", "fringe": "3e-4", "prior_1e4": "1e-4", "no_prior": "0"}


def prior_table(results: list[Results]) -> list[Row]:
    """Return the table that γ_prior is chosen by: relative changes to 3e-3 on either half of everything."""
    scenes, runs = results[:2], results[2:]
    rows: list[Row] = []
    for half, run in enumerate(runs):
        for method, title in PRIORS.items():
            changes = [
                _change(*(_scores(results, models, m, half) for m in ("prior_3e3", method)))
                for results in scenes
                for models in _groups(results).values()
            ]
            (model,) = run.models
            valid = [_change(*(run.scores(model, m, metric) for m in ("prior_3e3", method))) for metric in VALID]
            numbers = {"scenes": np.mean(changes), **dict(zip(VALID, valid, strict=True))}
            numbers["sum"] = np.mean(changes) + np.mean(valid)
            row = {"table": ("the half to choose on", "the half to judge on")[half], "γ_prior": title}
            rows.append(row | {name.replace("_", " "): f"{v:+.3f}".replace("-", "−") for name, v in numbers.items()})
    return rows


def _scores(results: Results, models: list[str], method: str, half: int) -> np.ndarray:
    part, _ = _part(results, models, half)
    return np.concatenate([results.scores(model, method, "mass_inside") for model in models])[part]


def _change(before: np.ndarray, now: np.ndarray) -> float:
    both = np.isfinite(before) & np.isfinite(now)
    return float(now[both].mean() / before[both].mean() - 1)


def _truth_table(
    results: Results,
    label: str,
    given: str,
    models: list[str],
    base: str,
    names: dict[str, str],
    half: int | None,
    controls: Sequence[str] = (),
) -> list[Row]:
    part, clusters = _part(results, models, half)
    networks = [model for model in models for _ in results.clusters(model) or ()]
    clusters, networks = list(compress(clusters, part)), list(compress(networks, part))

    def column(method: str, metric: str) -> np.ndarray:
        return np.concatenate([results.scores(model, method, metric) for model in models])[part]

    compare = partial(paired, clusters=clusters, networks=networks)
    methods, about = results.methods(models[0]), results.manifest.metrics
    shown = [m for m in LOCALISATION if m in results.metrics and np.isfinite(column(base, m)).any()]
    count, scene = f"{len(models)} networks, " if len(models) > 1 else "", results.manifest.scenes[label]
    which = "" if half is None else (", to choose on", ", to judge on")[half]
    on = f" on {given}" if given else ""
    heading = f"{scene['title']} ({label}){on}{which}, {count}n = {len(clusters)}"
    rows: list[Row] = []
    for method in methods:
        known = [of_maps(results, model, method) for model in models]
        passes, ok, stalled = (np.mean([one[name] for one in known]) for name in ("passes", "ok", "stalled"))
        row = {"table": heading, "method": names.get(method, method), "passes": f"{passes:.0f}"}
        for metric in shown:
            scores, reference, title = column(method, metric), column(base, metric), _title(about, metric)
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
        rows.append(row)
    return rows


def _title(about: Mapping[str, Mapping[str, Any]], metric: str) -> str:
    _, colon, preset = metric.partition(":")
    return about[metric]["title"].lower() + (f", {preset}" if colon else "") + ARROWS[about[metric]["direction"]]


def _number(value: float, digits: int) -> str:
    return "–" if np.isnan(value) else f"{value:.{digits}f}"


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


def write_tables(out: Path, only: list[str]) -> None:
    """Replace the tables whose runs are stored and complete."""
    for name in only:
        if (out / name).is_dir():
            rows = _tables_of(name, out)
            if rows:
                write(name, rows)
            print(f"{name}: {'written' if rows else 'left as it is, because its run is not complete'}")


def complete(out: Path, names: Sequence[str]) -> list[Results]:
    """Return the results of runs; none unless all of them are stored and complete."""
    stores = [Store(out / name, create=False) for name in names if (out / name).is_dir()]
    results = [read_results(store) for store in stores if manifests(store)]
    return [] if len(results) < len(names) or any(one.missing() for one in results) else results


def _tables_of(name: str, out: Path) -> list[Row]:
    command = COMMANDS.get(name)
    if command is not None and command.shows == "validity":
        return validity_rows(out / name)
    of_network = command is not None and command.words[0] == "reproduce"  # which has a folder for each
    if not (runs := complete(out, [f"{name}/cifar_resnet20" if of_network else name])):
        return []
    (results,) = runs
    if command is not None:
        return table(results, results.models[0], command.base, {**METHODS, "fringe": command.fringe})
    base, names, controls = TABLES[name].base, TABLES[name].names, TABLES[name].controls
    if results.manifest.scenes:
        return truth_tables(results, base, names, halves=name == "truth_settings", controls=controls)
    (model,) = results.models
    suffixes = ["", *sorted({":" + m.partition(":")[2] for m in results.metrics if ":" in m})]
    return [row for suffix in suffixes for row in table(results, model, base, names, suffix, controls)]


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


#: What the figure shows: the name of a point, and its distance above the point.
POINTS = {
    "feedback": ("FRInGe()", -11),
    "preview": ("preview", 5),
    "diffusion": ("diffusion", -11),
    "no_prior": ("γ_prior = 0", 5),
    "cg": ("full metric", 5),
    "paper": ("paper", -11),
    "blur_ig": ("Blur IG", -11),
    "ig": ("IG", 5),
    "smoothgrad": ("SmoothGrad", -11),
    "guided_ig": ("Guided IG", 5),
}


def figure(runs: list[Results]) -> Figure:
    """Draw passes per image against two scores, one row of panels for each network."""
    drawing = Figure(figsize=(9, 3.2 * len(runs)), layout="constrained")
    axes = drawing.subplots(len(runs), 2, squeeze=False)
    for row, results in zip(axes, runs, strict=True):
        (model,) = results.models
        for axis, metric in zip(row, ("mas_insertion", "deletion"), strict=True):
            methods = [method for method in POINTS if method in results.methods(model)]
            scores = {method: float(np.nanmean(results.scores(model, method, metric))) for method in methods}
            for method in methods:
                (name, above), passes = POINTS[method], of_maps(results, model, method)["passes"]
                colour = "tab:red" if method == "feedback" else "tab:blue" if method in DEFAULTS else "tab:gray"
                axis.plot(passes, scores[method], "o" if method in DEFAULTS else "s", color=colour, ms=6)
                left = method in ("ig", "smoothgrad", "no_prior")  # where others have their names on the right
                style = {"xytext": (-5 if left else 5, above), "textcoords": "offset points", "fontsize": 8}
                style |= {"color": colour, "horizontalalignment": "right" if left else "left"}
                axis.annotate(name, (passes, scores[method]), **style)
            axis.set_xscale("log")
            axis.set_xlim(10, 4000)
            axis.set_xticks(ticks := [10, 20, 50, 100, 200, 500, 1000, 2000], [str(passes) for passes in ticks])
            axis.minorticks_off()
            words = "MAS insertion, higher is better" if metric == "mas_insertion" else "deletion, lower is better"
            axis.set_title(f"{model}: {words}", fontsize=10, loc="left")
            axis.spines[["top", "right"]].set_visible(False)
            axis.margins(y=0.15)
    drawing.supxlabel("forward and backward passes through the network for one image", fontsize=10)
    return drawing


def main() -> None:
    """Run the experiments, write the tables and the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=Path("../shared"), help="folder with models/ and images/")
    parser.add_argument("--out", type=Path, default=Path("out/results"), help="folder of the runs")
    parser.add_argument(
        "--only", action="append", choices=[*TABLES, *COMMANDS, *SCRIPTS], help="one experiment; may be repeated"
    )
    parser.add_argument("--tables", action="store_true", help="write the tables of stored runs, and compute nothing")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    only = arguments.only or [*TABLES, *COMMANDS, *SCRIPTS]
    for name in [] if arguments.tables else only:
        print(f"{name} ...", flush=True)
        if name in SCRIPTS:
            os.environ["FRINGE_SHARED"] = str(arguments.shared.resolve())
            subprocess.run([sys.executable, str(ROOT / "experiments" / f"{name}.py"), str(TABLES_FOLDER)], check=True)
        else:
            run(name, arguments.shared, arguments.out, arguments.device)
    write_tables(arguments.out, only)
    if set(only) & set(PRIOR_RUNS) and (runs := complete(arguments.out, PRIOR_RUNS)):
        write("prior", prior_table(runs))
    if set(only) & set(DEFAULT_RUNS) and (runs := complete(arguments.out, DEFAULT_RUNS)):
        write("controls", control_table(runs, DEFAULTS))
        figure(runs).savefig(IMAGES / "price.png", dpi=130)


if __name__ == "__main__":
    main()
