"""How the store grows: the first table of docs/store.md.

    python benchmarks/store.py                                   # 1333 and 4000 images: a few minutes
    python benchmarks/store.py --images 1333 4000 13333 50000     # 50000 images take some minutes to write

Synthetic scores of 12 methods (4 of them controls) under 11 metrics go through the real store, ``--shard`` images a
task; four of the metrics have a curve of 65 points, and of one task in a hundred the scores of an image failed. Then
each step of the library is measured in a process of its own, the imports included: what a resumed run does before its
first task (``resume``), ``fringe status`` and ``fringe report``. ``CPU`` is the processor time of that process, which
does not depend on what else the machine does, and ``peak`` its largest resident memory.

    python benchmarks/store.py --overhead 200                    # what each executor adds to a task

The second table: milliseconds from one task to the next with one worker, of tasks that compute nothing and of a small
model (IG and two metrics on two digits), from the first report to the last: the start of processes does not count.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fringe.bench.experiments import TaskRunner

METHODS = ("fringe", "ig", "sg", "gig", "ig2", "agi", "eg", "mig", "zero", "random", "uniform", "edge")
CONTROLS = ("zero", "random", "uniform", "edge")
CURVED = ("mas_insertion", "mas_deletion", "insertion", "deletion")
METRICS = (*CURVED, "infidelity", "max_sensitivity", "sparseness", "complexity", "residual", "entropy", "steps")
SHARD, POINTS = 16, 65
#: Share of tasks of which an image failed.
FAILED_SHARE = 0.01
STEPS = ("resume", "status", "report")


def manifest(images: int) -> Any:
    from fringe._files.records import digest
    from fringe.bench.experiments import Manifest

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


def write(root: Path, images: int, shard: int) -> str:
    """Write all scores; each commit waits for the disk."""
    import numpy as np

    from fringe.bench.experiments import Store, pending_tasks

    asked, rng, times = manifest(images), np.random.default_rng(0), list[float]()
    with Store(root) as store:
        store.write_record("plan", asked.name, asked.record())
        for task in pending_tasks(asked, (), shard):
            about, results = task.about(asked, asked.versions, []), results_of(task, rng)
            began = time.perf_counter()
            store.commit(about, results, task=task.key)
            times.append(1000 * (time.perf_counter() - began))
    size = sum(path.stat().st_size for path in root.glob("*.db"))
    spent = ", ".join(f"{np.quantile(times, q):.1f}" for q in (0.5, 0.99, 1))
    each = size / images / len(METHODS) / len(METRICS)
    return f"a commit of {shard} images took {spent} ms (median, 99 %, most); {each:.0f} bytes a score"


def results_of(task: Any, rng: Any) -> list[Any]:
    """The results of a task: a curve of four metrics, two diagnostics, and random scores."""
    import numpy as np

    from fringe.bench.experiments._records import FAILED, OK, Result

    size, results = len(task.images), list[Any]()
    has_failed = rng.random() < FAILED_SHARE
    for number, image in enumerate(task.images):
        confidence, seconds, *diagnostics = rng.random(4).tolist()
        made = {"target": number, "batch": size, "verdict": "ok", "forward": 100, "vjp": 50}
        made |= {"confidence": confidence, "seconds": seconds}
        names = ("completeness_residual", "endpoint_score")
        details = {f"diagnostic//{name}": np.array([value]) for name, value in zip(names, diagnostics, strict=True)}
        for metric, key in zip(task.metrics, task.metric_keys, strict=True):
            curves = ("normalised",) if metric in CURVED else ()
            details |= {f"curve/{key}/{name}": rng.random(POINTS, dtype=np.float32) for name in curves}
        scores, status = rng.random(len(METRICS)), np.full(len(METRICS), OK, np.uint8)
        words: list[Any] = [((), None)] * len(METRICS)
        if has_failed and number == 0:
            scores[:], status[:], words = np.nan, FAILED, [((), "the method failed")] * len(METRICS)
        results.append(Result(image, scores, status, words, made, details))
    return results


def resume(root: Path) -> str:
    from fringe.bench.experiments import Store, manifests
    from fringe.bench.experiments._run import _pending  # pyright: ignore[reportPrivateUsage]

    store = Store(root)
    store.clean()
    tasks = _pending(store, manifests(store)["benchmark"], SHARD, retry=False)
    return f"{len(tasks)} tasks missing"


def status(root: Path) -> str:
    from fringe.bench.experiments import read_status

    cells = read_status(root)["plans"]["benchmark"]["cells"]
    return f"{sum(cell['scored'] for cell in cells)} scored"


def report(root: Path) -> str:
    from fringe.bench.report import write_report

    files = write_report(root, root.parent / f"report-{root.name}", grid=False)
    return f"{sum(path.stat().st_size for path in files.paths) / 2**20:.0f} MiB written"


def overhead(root: Path, tasks: int) -> None:
    """Print what each executor takes for a task more than this process."""
    from fringe.bench.experiments import (
        ExperimentSpec,
        RunLog,
        Store,
        build_plan,
        make_executor,
        pending_tasks,
        resolve,
    )
    from fringe.bench.experiments._executors import TaskReport, run_tasks

    known: dict[str, Any] = {"model": "embedded:digits", "data": "embedded:digits", "n": min(tasks, 250), "shard": 2}
    spec = ExperimentSpec(methods="ig", metrics="insertion,sparseness", controls=False, **known)
    real = resolve(build_plan(spec))
    print("| work | executor | ms a task | more than serial | |\n|---|---|---:|---:|---|")
    for work in ("nothing", "a small model"):
        serial = 0.0
        for executor in ("serial", "processes", "ray"):
            store, times = Store(root / f"{work[:4].strip()}-{executor}"), list[float]()
            runner: Any = NullRunner(real) if work == "nothing" else TaskRunner(real)
            missing = pending_tasks(real.manifest, (), 1 if work == "nothing" else 2)

            def ended(_: TaskReport, times: list[float] = times) -> None:
                times.append(time.perf_counter())

            how = make_executor(executor, None if executor == "serial" else 1)
            run_tasks(runner, store, missing, RunLog(ended=ended), how)
            each = 1000 * (times[-1] - times[0]) / (len(times) - 1)
            serial = serial or each
            print(f"| {work} | {executor} | {each:.1f} | {each - serial:+.1f} | {len(times)} tasks |", flush=True)


class NullRunner(TaskRunner):
    """Computes nothing: a row for each score."""

    def perform(self, task: Any, stored: Any = None) -> Any:
        import torch

        from fringe.bench.experiments._records import results_of
        from fringe.bench.experiments._runner import TaskResult
        from fringe.metrics import Scores

        column = Scores(torch.full((len(task.images),), 0.5, dtype=torch.float64))
        made = {image: {"status": "ok", "target": 0, "confidence": 0.5} for image in task.images}
        names = {"model": task.model, "method": task.method, "setting_key": task.setting, "setting": {}}
        about = {**names, "labels": list(task.metrics), "metrics": list(task.metric_keys), "metric_settings": {}}
        scored = [(task.images, [column] * len(task.metrics))]
        return TaskResult({**about, "versions": {}, "map_versions": []}, results_of(task.metric_keys, made, scored))


def measured(step: str, root: Path, images: int, shard: int) -> dict[str, Any]:
    """Seconds and peak memory of a step in a new process; what went wrong, if it did."""
    began = time.perf_counter()
    command = [sys.executable, __file__, "--step", step, "--root", str(root), "--images", str(images)]
    command += ["--shard", str(shard)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        figures = {"seconds": time.perf_counter() - began, "cpu": float("nan"), "peak": float("nan")}
        return {**figures, "note": lines[-1] if lines else "killed"}
    return {"seconds": time.perf_counter() - began, **json.loads(done.stdout.splitlines()[-1])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[1333, 4000])
    parser.add_argument("--shard", type=int, default=16, help="images of a task")
    parser.add_argument("--root", type=Path, default=Path("out/store"))
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
            note = write(options.root, options.images[0], options.shard)
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
            row = measured(step, root, images, options.shard)
            figures = f"{row['seconds']:.1f} | {row['cpu']:.1f} | {row['peak']:.2f}"
            print(f"| {images} | {scores} | {step} | {figures} | {row['note']} |", flush=True)


if __name__ == "__main__":
    main()
