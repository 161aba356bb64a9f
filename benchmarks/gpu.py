"""What explanations cost on a GPU: seconds an image by network, method and batch, peers, and where a step's time goes.

    python benchmarks/gpu.py --out out/gpu.json                              # at most 9 minutes on a GPU
    python benchmarks/gpu.py --out out/new.json --against docs/gpu.json      # and the ratios to an earlier run
    python benchmarks/gpu.py --out out/gpu.json --resume                     # go on with the rows that are missing
    python benchmarks/gpu.py --only alone,tails,limit,gradients --budget 300 # these rows alone
    python benchmarks/gpu.py --device cpu --quick                            # a tiny network: does the program work

Trained networks and photographs are those of the folder FRINGE_SHARED, where there is one. torchvision's networks have
random, seeded weights, the running statistics of their inputs, and a last layer scaled so that the mean top
probability is 0.9; their inputs are smooth random images. A run that takes longer than its share of the
budget is cut between steps and carried on to its planned number of steps at the rate measured ("~"). Rows are measured
by importance; what no longer fits is named at the end. Nothing is lost: the JSON is written after every row.
"""

import argparse
import importlib
import itertools
import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fringe._network.cuda_graphs import MOST
from fringe.errors import is_device_error
from fringe.models import ModelError
from gpu_bench import (
    DEFAULT,
    FAST,
    GRAPHS,
    IG,
    METHODS,
    NETWORKS,
    PAPER,
    PAPER_SECONDS,
    PAPER_TF32,
    TOP_PROBABILITY,
    TRAINED,
    Absent,
    Bench,
    Budget,
    OutOfTime,
    Record,
    key,
)  # fmt: skip
from gpu_rows import (
    PRECISIONS,
    alone,
    captum,
    cost,
    curves,
    device,
    expected,
    gradients,
    guided,
    kernels,
    limit,
    precision,
    step,
    tails,
    waits,
)
from shared_models import SHARED

RESERVE = 25.0
"""Seconds of the budget for what comes before the first row and after the last: imports, writing."""

FORMS = {
    "singly": "one VJP after the other",
    "together": "one batched product",
    "doubled": "of images that are there twice",
    "streams": "on two streams",
}
"""What a row of gradients compares."""


@dataclass(frozen=True)
class Row:
    """One measurement: rows of lower ``rank`` come first; ``expect`` says how many seconds it needs."""

    key: str
    rank: float
    measure: Callable[[], Record]
    expect: Callable[[], float]


def plan(bench: Bench) -> list[Row]:
    """All rows, by importance."""
    rows: list[Row] = []
    for network in bench.networks:
        for name, (later, _) in METHODS.items():
            for i, batch in enumerate(bench.batches):
                graphs = name == GRAPHS and batch > MOST
                if graphs or (name in (PAPER, PAPER_TF32) and network in TRAINED):
                    continue  # no larger batch is recorded; the paper's settings are for its networks
                what = (bench, network, name, batch)
                rank = NETWORKS.get(network, 0) + later + 2 * (i > (0 if NETWORKS.get(network, 0) >= 1 else 1))
                if network in TRAINED:
                    rank = min(rank, 0.9) if name in (IG, DEFAULT, GRAPHS) else rank + 0.5
                rows.append(Row(key(*what[1:]), rank, partial(cost, *what), partial(expected, *what)))
    few, first = (lambda: 2 * bench.share), bench.networks[0]
    for name, rank in ((DEFAULT, 0.5), (PAPER, 1), (IG, 3)):
        need = partial(expected, bench, first, name, bench.large)
        parts = (step, kernels, waits)
        rows += [Row(key(part.__name__, first, name), rank, partial(part, bench, first, name), need) for part in parts]
    for network in [name for name in bench.networks if name in (first, "resnet50", *TRAINED)]:
        for batch in (max(bench.batches), bench.large):
            rows.append(Row(key("limit", network, f"{batch} images"), 0.6, partial(limit, bench, network, batch), few))
    for network in [name for name in bench.networks if name in (first, *TRAINED)]:
        for name in (DEFAULT, GRAPHS):
            rows.append(Row(key("tails", network, name), 0.6, partial(tails, bench, network, name), few))
        for name in (IG, DEFAULT, GRAPHS, FAST):
            rows.append(Row(key("alone", network, name), 0.5, partial(alone, bench, network, name), few))
        for name in PRECISIONS:  # a random network has no map to be near to: rounding alone turns its paths
            measure = partial(precision, bench, network, name)
            rows.append(Row(key("precision", network, name), 1 if network in TRAINED else 4, measure, few))
        rows.append(Row(key("captum", network), 1, partial(captum, bench, network), few))
    compared = [name for name in bench.networks if name in TRAINED] or [first]
    for name, dtype in itertools.product((IG, DEFAULT), (torch.float64, torch.float32)):
        what = (bench, compared[-1], name, dtype)  # the smallest: a CPU computes it, too
        rows.append(Row(key("device", compared[-1], name, str(dtype)[6:]), 0.95, partial(device, *what), few))
    rows += [Row(key(part.__name__, first), 0.9, partial(part, bench, first), few) for part in (guided, curves)]
    for network in [name for name in bench.networks if name in (first, *TRAINED)]:
        for batch in sorted(bench.batches)[:3]:
            measure = partial(gradients, bench, network, batch)
            rows.append(Row(key("gradients", network, batch, "images"), 0.95, measure, few))
    return sorted(rows, key=lambda row: row.rank)


def run(bench: Bench, rows: Sequence[Row]) -> None:
    """Measure what fits; what fails costs its own row only, unless the device itself does. Rows that an earlier run
    measured stay."""
    for row in rows:
        if bench.records.get(row.key, {}).get("status") == "ok":
            continue
        need, left, begin = row.expect(), bench.budget.left(), bench.clock()
        try:
            if need > left:
                raise OutOfTime
            record = {"status": "ok", **row.measure()}
        except OutOfTime:
            record = {"status": "dropped", "note": f"needs about {need:.0f} s, {max(left, 0):.0f} s were left"}
        except torch.OutOfMemoryError:
            record = {"status": "memory", "memory_ended": True, "note": "one image was too much"}
        except Absent as error:
            record = {"status": "absent", "note": str(error)}
        except Exception as error:
            traceback.print_exc()
            record = {"status": "error", "note": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}
            if is_device_error(error):  # so would every later row of this process
                bench.records[row.key] = record
                bench.save()
                print("the device failed: go on with --resume", file=sys.stderr, flush=True)
                return
        bench.records[row.key] = {**record, "took": bench.clock() - begin}
        bench.save()
        line = ", ".join(f"{k} {show(v)}" for k, v in record.items() if isinstance(v, (str, int, float)))
        print(f"{row.key}: {line}", file=sys.stderr, flush=True)


def kind(name: str) -> str:
    """What ``--only`` calls the row of this key."""
    first, *_, last = name.split("/")
    middle = name.partition("/")[2].rpartition("/")[0]
    return first if not last.isdigit() else "graphs" if middle in (IG, DEFAULT, GRAPHS) else "methods"


def show(value: Any) -> str:
    return "–" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def said(verdicts: Mapping[str, int]) -> str | None:
    return ", ".join(f"{verdict} {n}" for verdict, n in verdicts.items()) or None


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    lines = [list(head), ["---"] * len(head), *([show(cell) for cell in row] for row in rows)]
    return [*("| " + " | ".join(line) + " |" for line in lines), ""] if rows else []


def report(meta: Record, records: dict[str, Record], old: Record | None = None) -> str:
    """The page: Markdown tables of ``records``, and ratios to those of an earlier run."""
    versions = ", ".join(f"{name} {meta[name]}" for name in ("driver", "torch", "cudnn", "python", "commit"))
    tops = ", ".join(f"{name} {n['top_probability']:.2f}" for name, n in meta["networks"].items())
    lines = [f"**{meta['card']}**; {versions}.", "", f"`{meta['command']}`", ""]
    lines += [
        f"{' and '.join(TRAINED)}: trained, with photographs. Others: random weights, seed 0; running statistics of "
        f"the inputs; last layer scaled to a mean top probability of {TOP_PROBABILITY}; smooth random images. Top "
        f"probabilities: {tops}. ~: measured on the first steps and carried on.",
        "",
        "Seconds an image (in brackets: times our IG at the same batch)",
        "",
    ]
    costs = {tuple(k.rsplit("/", 2)): r for k, r in records.items() if k.rpartition("/")[2].isdigit()}
    batches = sorted({int(b) for _, _, b in costs})
    rows: list[list[Any]] = []
    for network, name in dict.fromkeys((network, name) for network, name, _ in costs):
        column = {b: costs.get((network, name, str(b)), {}) for b in batches}
        cells, most = list[str](), [r for r in column.values() if "seconds" in r]
        for b, r in column.items():
            plain = costs.get((network, IG, str(b)), {}).get("seconds")
            times = f" ({show(r['seconds'] / plain)})" if plain and name != IG and "seconds" in r else ""
            cells.append(f"{'~' * r['cut']}{show(r['seconds'])}{times}" if "seconds" in r else r.get("status", "–"))
        last = most[-1] if most else {}
        passes = " + ".join(f"{last[kind]:.0f}" for kind in ("forward", "jvp", "vjp")) if last else "–"
        memory = f"{last['memory'] / 2**30:.2f}" if "memory" in last else "–"
        paper = PAPER_SECONDS.get(network) if name == PAPER else None
        verdicts = said(next((r["verdicts"] for r in most[::-1] if "verdicts" in r), {}))
        rows.append([network, name, *cells, last.get("steps"), passes, memory, last.get("residual"), verdicts, paper])
    head = ["network", "method", *(f"batch {b}" for b in batches), "planned steps", "forward + JVP + VJP"]
    head += ["peak GiB beside weights, largest batch", "completeness residual", "verdicts", "the paper's, H100"]
    lines += [*table(head, rows), "One image, batches of automatic size: seconds", ""]
    singles = {tuple(k.split("/", 2)[1:]): r["alone"] for k, r in records.items() if "alone" in r}
    methods = (IG, FAST, DEFAULT, GRAPHS)
    rows = [[n, *(singles.get((n, name)) for name in methods)] for n in dict.fromkeys(n for n, _ in singles)]
    for row in rows:  # the best of ours over IG
        row.append(min((t for t in row[3:5] if t), default=0.0) / row[1] if row[1] else None)
    lines += table(["network", *methods, "best / IG"], rows)
    lines += ["A batch over its limit, the passes alone: seconds an image", ""]
    names = ("limit", "seconds", "graphs", "over_seconds", "over_graphs", "same_graphs")
    rows = [[k.partition("/")[2], *map(r.get, names)] for k, r in records.items() if "over_graphs" in r]
    head = ["row", "limit", DEFAULT, "with CUDA graphs", "over it", "with CUDA graphs", "same maps"]
    lines += [*table(head, rows), "Where the time of a batch goes, by the paths that are left: share (steps)", ""]
    rows = []
    for k, r in records.items():
        if "calls" in r:
            parts = [f"{r['shares'].get(n, 0.0):.0%} ({r['calls'].get(n, 0)})" for n in ("few", "some", "many")]
            rows.append([k.partition("/")[2], r["whole"], *parts])
    lines += table(["row", "seconds", "fewer than 8", "8 to 31", "more"], rows)
    lines += ["Peers, seconds an image", ""]
    peers = [(k, r) for k, r in records.items() if "peer" in r]
    rows = [[k, r["peer"], r["ours"], r["seconds"], r["seconds"] / r["ours"], r.get("cosine")] for k, r in peers]
    lines += table(["row", "peer", "ours", "the peer's", "ratio", "least cosine of maps"], rows)
    for k, r in peers:
        if "seconds_tf32" in r:
            fast = f"; our `{DEFAULT}` takes {show(r['fringe'])} times as long with as many" if "fringe" in r else ""
            lines += [
                f"- {k}: {r['gradients']} gradients, best batch {r['seconds_batch']}{fast}; with TF32 convolutions, "
                f"PyTorch's default, {show(r['seconds_tf32'])} s at batch {r['seconds_tf32_batch']}."
            ]
    lines += ["", "A step at the large batch", ""]
    rows, notes = [], list[str]()
    for k, r in records.items():
        kind, _, what = k.partition("/")
        if kind == "step" and "inside" in r:
            seen, host = records.get(key("kernels", what), {}), records.get(key("waits", what), {})
            share = [r["shares"].get(name, 0.0) for name in ("forward", "jvp", "vjp")]
            busy = seen["busy_seconds"] / r["step_seconds"] if seen.get("busy_seconds") else None
            rows.append([what, r["step_seconds"], r["inside"], *share, busy, seen.get("kernels"), host.get("waits")])
            notes += [f"- {what} waits at {line}: {show(n)} times a step" for line, n in host.get("lines", {}).items()]
            notes += [f"- {what}: {n:.0%} of the GPU's time in `{name}`" for name, n in seen.get("dearest", {}).items()]
    shares = ("inside the network", "forward", "JVP", "VJP", "GPU busy")
    head = ["row", "seconds", *shares, "kernels", "host waits"]
    lines += [*table(head, rows), *notes, "", "A forward pass and two VJPs, milliseconds an image", ""]
    rows = []
    for k, r in records.items():
        for name in [name for name in FORMS if name in r]:
            known = [1e3 * r[label] if label in r else None for label in (name, f"{name}_graph")]
            rows.append([k, FORMS[name], *known])
    lines += table(["row", "form", "plain", "as a CUDA graph"], rows)
    lines += [f"Precision and layout (`{DEFAULT}`, large batch)", ""]
    rows = []
    for k, r in records.items():
        if k.startswith("precision/") and "cosine" in r:
            rows.append([k.partition("/")[2], *map(r.get, ("seconds", "cosine", "cosine_least", "residual"))])
            rows[-1].append(said(r["verdicts"]))
    head = ["row", "seconds an image", "cosine with float32, median", "least", "completeness residual", "verdicts"]
    lines += table(head, rows)
    names = ("median", "largest", "cosine_least")
    same = [[k.partition("/")[2], *map(r.get, names)] for k, r in records.items() if "median" in r]
    head = ["row", "median", "largest", "least cosine"]
    lines += ["", "Relative distance from the maps of a CPU, 16 images", "", *table(head, same)]
    if old is not None:
        was = old["meta"]
        lines += [
            f"Against {was['card']}, torch {was['torch']}, commit {was['commit']}: our seconds an image, or a step",
            "",
        ]
        rows = []
        for k, r in records.items():
            name = next((name for name in ("ours", "seconds", "step_seconds", "together") if name in r), "seconds")
            before, after = old["records"].get(k, {}).get(name), r.get(name)
            rows += [[k, before, after, before / after]] if before and after else []
        lines += table(["row", "before", "after", "before / after"], rows)
    missing = [f"- {k}: {r['status']}, {r['note']}" for k, r in records.items() if r["status"] not in ("ok", "dropped")]
    if late := [k for k, r in records.items() if r["status"] == "dropped"]:
        missing.append(f"- no time was left for {len(late)} rows: {', '.join(late)}")
    return "\n".join([*lines, *(["Not measured, or in part", "", *missing, ""] if missing else [])])


def main(arguments: Sequence[str] | None = None, clock: Callable[[], float] = time.perf_counter) -> Bench:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="a tiny network at 32 pixels: a test of this program")
    parser.add_argument("--networks", nargs="+", choices=[*NETWORKS, "small"], default=None)
    parser.add_argument("--budget", type=float, default=540.0, help="seconds from start to end")
    parser.add_argument("--out", type=Path, help="JSON file for later runs; the page goes beside it as .md")
    parser.add_argument("--only", help="kinds of rows, with commas: alone, tails, limit, gradients, graphs")
    parser.add_argument("--resume", action="store_true", help="keep the rows that are measured in --out")
    parser.add_argument("--against", type=Path, help="JSON file of an earlier run")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch sees no CUDA device here; --device cpu --quick tries the program")
    if options.device == "cpu":
        torch.set_num_threads(1)
    old = json.loads(options.against.read_text()) if options.against else None
    trained = TRAINED if SHARED.is_dir() else ()
    known = [name for name in NETWORKS if name in trained or name not in TRAINED]
    networks = ["small"] if options.quick else options.networks or known
    note = ""
    if networks != ["small"] and not {*networks} <= {*TRAINED}:
        try:
            importlib.import_module("fringe.models._torchvision").import_torchvision()
        except ModelError as error:
            note, networks = f"{error}; a small built-in network takes the place of {', '.join(networks)}.\n", ["small"]
            print(note, file=sys.stderr)
    if options.resume and options.out is None:
        parser.error("--resume: name the file of the earlier run with --out")
    budget = Budget(options.budget - (0.0 if options.quick else RESERVE), clock)
    bench = Bench(options.device, options.quick, budget, networks, options.out)
    if options.resume and options.out.exists():
        bench.resume(json.loads(options.out.read_text()))
    try:
        run(bench, [row for row in plan(bench) if options.only is None or kind(row.key) in options.only.split(",")])
    finally:
        page = note + report(bench.meta, bench.records, old)
        if options.out is not None and bench.records:
            options.out.with_suffix(".md").write_text(page)
        print(page)
    return bench


if __name__ == "__main__":
    main()
