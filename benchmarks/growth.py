"""How the store grows: the first table of docs/store.md.

    python benchmarks/growth.py                                   # 1333 and 4000 images: a few minutes
    python benchmarks/growth.py --images 1333 4000 13333 50000    # 50000 images take some minutes to write

Synthetic scores of 12 methods (4 of them controls) under 11 metrics go through the real store, 16 images a task; four
of the metrics have two curves of 65 points. All but the last 252 tasks are packed, as a run packs them. Then each step
of the library is measured in a process of its own, the imports included: what a resumed run does before its first task
(``resume``), ``fringe status`` and ``fringe report``. ``CPU`` is the processor time of that process, which does not
depend on what else the machine does, and ``peak`` its largest resident memory.

    python benchmarks/growth.py --overhead 200                    # what each executor adds to a task

The second table: milliseconds from one task to the next with one worker, of tasks that compute nothing and of a small
model (IG and two metrics on two digits), from the first report to the last: the start of processes does not count.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fringe.experiments._jobs import Job

METHODS = ("fringe", "ig", "sg", "gig", "ig2", "agi", "eg", "mig", "zero", "random", "uniform", "edge")
CONTROLS = ("zero", "random", "uniform", "edge")
CURVED = ("mas_insertion", "mas_deletion", "insertion", "deletion")
METRICS = (*CURVED, "infidelity", "max_sensitivity", "sparseness", "complexity", "residual", "entropy", "steps")
SHARD, POINTS = 16, 65
STEPS = ("resume", "status", "report")


def manifest(images: int) -> Any:
    from fringe.experiments import Manifest, digest

    model = {
        "architecture": "net",
        "weights": "0" * 32,
        "structure": "1" * 32,
        "preprocessing": {"resize": 256, "crop": 224, "mean": [0.5] * 3, "std": [0.25] * 3, "exif": "transpose"},
    }
    methods = {
        name: {"control": name} if name in CONTROLS else {"method": name, **{f"setting{i}": i / 7 for i in range(20)}}
        for name in METHODS
    }
    metrics: dict[str, Any] = {}
    for name in METRICS:
        settings = {"metric": name, "reference": "box", "normalise": True, **{f"setting{i}": i for i in range(8)}}
        metrics[name] = {
            **{"title": name, "direction": "higher", "unit": "", "space": "inputs", "source": "synthetic"},
            **{"summary": "mean", "settings": settings, "key": digest(settings), "limit": images},
        }
    plan = {
        **{"name": "benchmark", "data": ["photos"], "models": {"net": "embedded:none"}, "preprocessing": {"net": None}},
        **{"methods": {"net": methods}, "metrics": {}, "limits": {}, "n": images, "seed": 0, "target": "predicted"},
        **{"score": "logit", "exif": "transpose", "references": None},
    }
    return Manifest(
        plan=plan,
        images=tuple(
            {"digest": digest(i), "id": f"ILSVRC2012_val_{i:08d}", "source": f"val/{i}.jpg", "label": i % 1000}
            for i in range(images)
        ),
        missing=(),
        settings={"net": {name: {"model": model, "method": method} for name, method in methods.items()}},
        metrics=metrics,
        models={"net": {"spec": "embedded:none", **model}},
        versions={"fringe": "0.1.0", "torch": "2.13"},
    )


def write(root: Path, images: int) -> None:
    """Write all scores: most of them packed, as a run packs them after a while, the last as files of tasks."""
    import numpy as np

    from fringe.experiments import Store, pending_tasks
    from fringe.experiments._formats import from_table

    os.fsync = lambda descriptor: None
    asked, rng = manifest(images), np.random.default_rng(0)
    known = {image["digest"]: image for image in asked.images}
    store = Store(root)
    store.write_record("plans", asked.name, asked.record())
    every = pending_tasks(asked, (), SHARD)
    for start in range(0, len(every), 252):
        tasks = {task.key: (rows(task, known, rng), metadata(task, asked)) for task in every[start : start + 252]}
        if start + 252 < len(every):
            store.packs.write(tasks)
            continue
        for key, (table, record) in tasks.items():
            store.commit(key, from_table(table), record)


def metadata(task: Any, asked: Any) -> dict[str, Any]:
    return {**task.record(asked), "failed": [], "versions": asked.versions}


def rows(task: Any, known: dict[str, Any], rng: Any) -> Any:
    """The table of a task, metric by metric."""
    import numpy as np
    import pyarrow as pa

    from fringe.experiments._formats import schema

    size, metrics = len(task.images), len(task.metrics)
    count = size * metrics
    labels = pa.array([known[image]["label"] for image in task.images], pa.int32())
    of_image = pa.array(np.tile(np.arange(size), metrics))
    of_metric = pa.array(np.repeat(np.arange(metrics), size))
    numbers = rng.random((4, size))
    curved = np.repeat([name in CURVED for name in task.metrics], size)
    lines = pa.ListArray.from_arrays(
        pa.array(np.arange(0, 2 * curved.sum() * POINTS + 1, POINTS), pa.int32()),
        pa.array(rng.random(2 * curved.sum() * POINTS, dtype=np.float32)),
    )
    no_extras, two = np.zeros(count + 1, np.int32), np.arange(0, 2 * count + 1, 2)
    diagnostics = np.column_stack([np.tile(numbers[1], metrics), np.tile(numbers[2], metrics)]).ravel()
    columns = {
        **{"metric_key": pa.array(task.metric_keys).take(of_metric), "image": pa.array(task.images).take(of_image)},
        "metric": pa.array(task.metrics).take(of_metric),
        "image_id": pa.array([known[image]["id"] for image in task.images]).take(of_image),
        **{"label": labels.take(of_image), "target": labels.take(of_image)},
        "confidence": pa.array(np.tile(numbers[0], metrics)),
        "score": pa.array(rng.random(count)),
        "flags": pa.ListArray.from_arrays(pa.array(no_extras), pa.array([], pa.string())),
        "diagnostics": pa.MapArray.from_arrays(
            pa.array(two, pa.int32()),
            pa.array(["completeness_residual", "endpoint_score"] * count),
            pa.array(diagnostics),
        ),
        "extras": pa.MapArray.from_arrays(pa.array(no_extras), pa.array([], pa.string()), pa.array([], pa.float64())),
        "curves": pa.MapArray.from_arrays(
            pa.array(np.append(0, 2 * np.cumsum(curved)), pa.int32()),
            pa.array(["raw", "normalised"] * curved.sum()),
            lines,
        ),
        "seconds": pa.array(np.tile(numbers[3], metrics)),
    }
    same = {
        **{"setting": task.setting, "model": task.model, "method": task.method, "status": "ok", "error": None},
        **{"verdict": "ok", "forward": 100.0, "jvp": 0.0, "vjp": 50.0, "batch": SHARD},
    }
    arrays = [
        columns[f.name].cast(f.type) if f.name in columns else pa.repeat(pa.scalar(same[f.name], f.type), count)
        for f in schema()
    ]
    return pa.table(arrays, schema=schema())


def resume(root: Path) -> str:
    from fringe.experiments import Resolved, Store, manifests
    from fringe.experiments._run import _pending  # pyright: ignore[reportPrivateUsage]

    store = Store(root)
    store.remove_stale_files()
    store.quarantine_damaged()
    plan: Any = SimpleNamespace(shard=SHARD)
    tasks, *_ = _pending(store, Resolved(plan, manifests(store)["benchmark"], {}, ()), retry=False)
    return f"{len(tasks)} tasks missing"


def status(root: Path) -> str:
    from fringe.experiments import read_status

    cells = read_status(root)["plans"]["benchmark"]["cells"]
    return f"{sum(cell['scored'] for cell in cells)} scored"


def report(root: Path) -> str:
    from fringe.report import write_report

    files = write_report(root, root.parent / f"report-{root.name}", grid=False)
    return f"{sum(path.stat().st_size for path in files.paths) / 2**20:.0f} MiB written"


def overhead(root: Path, tasks: int) -> None:
    """Print what each executor takes for a task more than this process."""
    from fringe.experiments import ExperimentSpec, RunLog, Store, build_plan, make_executor, pending_tasks, resolve
    from fringe.experiments._executors import run_tasks
    from fringe.experiments._jobs import TaskReport

    known: dict[str, Any] = {"model": "embedded:digits", "data": "embedded:digits", "n": min(tasks, 250), "shard": 2}
    spec = ExperimentSpec(methods="ig", metrics="insertion,sparseness", controls=False, **known)
    real = resolve(build_plan(spec))
    print("| work | executor | ms a task | more than serial | |\n|---|---|---:|---:|---|")
    for work in ("nothing", "a small model"):
        serial = 0.0
        for executor in ("serial", "processes", "ray"):
            store, times = Store(root / f"{work[:4].strip()}-{executor}"), list[float]()
            job = (NullJob if work == "nothing" else Job)(real, store)
            missing = pending_tasks(real.manifest, (), 1 if work == "nothing" else 2)

            def ended(_: TaskReport, times: list[float] = times) -> None:
                times.append(time.perf_counter())

            run_tasks(job, missing, RunLog(), ended, make_executor(executor, None if executor == "serial" else 1))
            each = 1000 * (times[-1] - times[0]) / (len(times) - 1)
            serial = serial or each
            print(f"| {work} | {executor} | {each:.1f} | {each - serial:+.1f} | {len(times)} tasks |", flush=True)


class NullJob(Job):
    """Tasks that compute nothing."""

    def worker(self) -> Any:
        return NullRunner()


class NullRunner:
    """Computes nothing: a row for each score."""

    def perform(self, task: Any, stored: Any = None) -> Any:
        from fringe.experiments import ScoreRecord
        from fringe.experiments._runner import TaskResult

        named = [(m, key, i) for m, key in zip(task.metrics, task.metric_keys, strict=True) for i in task.images]
        numbers: dict[str, Any] = {"label": 0, "target": 0, "confidence": 0.5, "score": 0.5, "status": "ok"}
        names = {"setting": task.setting, "model": task.model, "method": task.method}
        rows = [ScoreRecord(metric_key=k, image=i, metric=m, image_id=i, **names, **numbers) for m, k, i in named]
        return TaskResult(rows, {})


def measured(step: str, root: Path, images: int) -> dict[str, Any]:
    """Seconds and peak memory of a step in a new process; what went wrong, if it did."""
    began = time.perf_counter()
    command = [sys.executable, __file__, "--step", step, "--root", str(root), "--images", str(images)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        figures = {"seconds": time.perf_counter() - began, "cpu": float("nan"), "peak": float("nan")}
        return {**figures, "note": lines[-1] if lines else "killed"}
    return {"seconds": time.perf_counter() - began, **json.loads(done.stdout.splitlines()[-1])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[1333, 4000])
    parser.add_argument("--root", type=Path, default=Path("out/growth"))
    parser.add_argument("--step", choices=("write", *STEPS), help="do this one step in --root, and say what it took")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS, help="what is measured")
    parser.add_argument("--overhead", type=int, metavar="TASKS", help="measure the executors, by so many tasks")
    options = parser.parse_args()
    if options.overhead is not None:
        with tempfile.TemporaryDirectory() as folder:
            overhead(Path(folder), options.overhead)
        return
    if options.step is not None:
        if options.step == "write":
            note = write(options.root, options.images[0])
        else:
            note = {"resume": resume, "status": status, "report": report}[options.step](options.root)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        cpu, peak = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e9
        print(json.dumps({"cpu": cpu, "peak": peak, "note": note or ""}))
        return
    print("| images | scores | step | seconds | CPU s | peak GB | |\n|---:|---:|---|---:|---:|---:|---|")
    for images in options.images:
        root, scores = options.root / str(images), images * len(METHODS) * len(METRICS)
        for step in (*(() if root.exists() else ("write",)), *options.steps):
            row = measured(step, root, images)
            figures = f"{row['seconds']:.1f} | {row['cpu']:.1f} | {row['peak']:.2f}"
            print(f"| {images} | {scores} | {step} | {figures} | {row['note']} |", flush=True)


if __name__ == "__main__":
    main()
