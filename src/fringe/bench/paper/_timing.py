"""Run times: one image at a time as the paper measured them, and in batches as one would; stored model by model."""

import contextlib
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from fringe._files.disk import RECORD_BYTES, UnfitFile, read_regular, write_atomic
from fringe._files.records import digest
from fringe.bench.experiments import Plan, PlanModel, Resolved, TaskRunner, resolve
from fringe.classifier import PassCounts
from fringe.errors import warn_caller
from fringe.evaluation import Candidate, estimate, make_maps
from fringe.metrics import EvaluationContext

Mode = Literal["sequential", "batched", "single"]
BatchSize = int | Literal["auto"]
Spent = tuple[float, PassCounts, float]


@dataclass(frozen=True)
class Timing:
    """The run time of a method on a model: the mean ``seconds`` and passes of a map over ``n`` images, with half the 95
    % bootstrap interval of the seconds; NaN for batches.

    What is asked of a model once for all methods, its logits and the check of its derivatives, belongs to no map.
    "sequential" is one image and one point of the path at a time, "single" one image and many points: its seconds are
    the median. ``memory`` is the largest memory of a map on a GPU in bytes, NaN elsewhere.
    """

    model: str
    method: str
    mode: Mode
    seconds: float
    half: float
    n: int
    forward: float
    jvp: float
    vjp: float
    device: str
    memory: float = math.nan


class Stop(Exception):
    """Raised from a progress callback to end a map early."""


def measure_runtimes(
    resolved: Resolved,
    *,
    device: str = "cpu",
    batch_size: BatchSize = "auto",
    modes: Sequence[Mode] = ("sequential", "batched"),
) -> list[Timing]:
    """Time each method of a plan on its images; those that cannot be explained are left out. Raises FringeError if none
    can be explained, or a method cannot be used.

    First one image at a time (the paper's protocol, appendix on computational complexity), the methods in turn on each
    image so that a machine that slows down slows all of them; then in batches of passes of at most ``batch_size``
    images. ``modes`` names others, or fewer.
    """
    timings, name = list[Timing](), device_name(device)
    for model in resolved.plan.models:
        images = [image["digest"] for image in resolved.manifest.images_of(model.label)]
        for mode in modes:
            runner = TaskRunner(resolved, device=device, batch_size=1 if mode == "sequential" else batch_size)
            subjects = list(runner.explainable(model.label, images))  # this also runs the network a first time
            groups: dict[object, list[str]] = {}
            for image, subject in subjects:
                key = subject.problem.inputs.shape[1:] if mode == "batched" else image
                groups.setdefault(key, []).append(image)
            spent = _measure(runner, model, list(groups.values()), warm_up_each=mode == "batched")
            timings += [_timing(model.label, label, mode, s, len(subjects), name) for label, s in spent.items()]
    return timings


def slowdowns(timings: Sequence[Timing], method: str) -> dict[tuple[str, Mode], float]:
    """Return the seconds of a method divided by those of ``ig``, by model and mode."""
    seconds = {(t.model, t.mode): t.seconds for t in timings if t.method == "ig"}
    return {
        (t.model, t.mode): t.seconds / seconds[t.model, t.mode]
        for t in timings
        if t.method == method and (t.model, t.mode) in seconds
    }


def describe_timings(timings: Sequence[Timing]) -> list[str]:
    """Describe run times in one line each; then state how many times as long as ig fringe takes."""
    lines: list[str] = []
    for t in timings:
        passes = f"{t.forward:.0f} forward + {t.jvp:.0f} jvp + {t.vjp:.0f} vjp"
        half = f" ± {t.half:.3f}" if math.isfinite(t.half) else ""
        lines.append(f"{t.model} {t.method} {t.mode}: {t.seconds:.3f}{half} s per image of {t.n}, {passes}; {t.device}")
    ratios = slowdowns(timings, "fringe").items()
    return [*lines, *(f"{model} {mode}: fringe takes {r:.1f} times as long as ig" for (model, mode), r in ratios)]


def timing_records(timings: Sequence[Timing]) -> list[dict[str, Any]]:
    """Return run times as JSON data; NaN becomes None."""
    return [{k: None if v != v else v for k, v in asdict(timing).items()} for timing in timings]


def read_timings(records: Sequence[Mapping[str, Any]]) -> list[Timing]:
    """Return the run times that :func:`timing_records` made JSON data."""
    plain: list[dict[str, Any]] = [{k: math.nan if v is None else v for k, v in record.items()} for record in records]
    return [Timing(**record) for record in plain]


def write_timings(path: Path, document: object) -> None:
    """Write run times, as JSON data, to a file at once or not at all: those of a model take hours. Make its folder if
    it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(document, indent=1).encode())


def cache_key(resolved: Resolved, model: str, device: str, batch_size: BatchSize) -> str:
    """Return a digest of all that the run times of a model depend on: settings, images, versions and machine."""
    manifest = resolved.manifest
    images = [image["digest"] for image in manifest.images_of(model)]
    versions = {name: manifest.versions[name] for name in ("fringe", "torch", "python")}
    return digest([manifest.settings[model], images, versions, device_name(device), str(batch_size)])


def device_name(device: str) -> str:
    """Return the name of a device, or the number of threads of the CPU."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads"


def stored_timings(
    plan: Plan,
    path: Path,
    *,
    device: str,
    batch_size: BatchSize,
    measuring: bool,
    modes: Sequence[Mode] = ("sequential", "batched"),
) -> list[Timing]:
    """Read the run times of each model of a plan from a JSON file. With ``measuring``, those that are not stored for
    the same settings, images and machine are measured, and stored model by model."""
    resolved, stored, timings = resolve(plan), _read(path), list[Timing]()
    for model in plan.models:
        key = cache_key(resolved, model.label, device, batch_size)
        if key not in stored and measuring:
            alone = replace(resolved, plan=replace(plan, models=(model,)))
            stored[key] = timing_records(measure_runtimes(alone, device=device, batch_size=batch_size, modes=modes))
            write_timings(path, stored)
        timings += read_timings(stored.get(key, []))
    return timings


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that was begun on it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _measure(
    runner: TaskRunner, model: PlanModel, groups: Sequence[Sequence[str]], *, warm_up_each: bool = False
) -> dict[str, list[Spent]]:
    """Seconds and passes of each method on each group of images."""
    spent: dict[str, list[Spent]] = {label: [] for label in model.methods}
    for i, images in enumerate(groups):
        (context,) = runner.subjects(model.label, images)
        for label, method in model.methods.items():
            if i == 0 or warm_up_each:
                _warm_up(Candidate(label, method), context)
            spent[label].append(_time(Candidate(label, method), context))
    return spent


def _warm_up(candidate: Candidate, context: EvaluationContext) -> None:
    """Take the first step of a map: the first call allocates and autotunes, and is not timed."""

    def stop(done: int, planned: int) -> None:
        if done:
            raise Stop

    with contextlib.suppress(Stop), context.problem.model.session(context.problem.inputs.device):
        make_maps(candidate, replace(context.problem, progress=stop))


def _time(candidate: Candidate, context: EvaluationContext) -> Spent:
    classifier, device = context.problem.model, context.problem.inputs.device
    with classifier.session(device):
        before, on_gpu = replace(classifier.passes), device.type == "cuda"
        synchronize(device)
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(device)
        began = time.perf_counter()
        make_maps(candidate, context.problem)
        synchronize(device)
        seconds = time.perf_counter() - began
        memory = float(torch.cuda.max_memory_allocated(device)) if on_gpu else math.nan
        return seconds, classifier.passes.since(before), memory


def _timing(model: str, method: str, mode: Mode, spent: Sequence[Spent], n: int, device: str) -> Timing:
    seconds, half = sum(one for one, _, _ in spent) / n, math.nan
    if mode != "batched":
        result = estimate([one for one, _, _ in spent], summary="median" if mode == "single" else "mean")
        seconds, half = result.value, (result.high - result.low) / 2
    forward, jvp, vjp = (sum(getattr(counts, kind) for _, counts, _ in spent) / n for kind in ("forward", "jvp", "vjp"))
    memory = max(memory for _, _, memory in spent)
    return Timing(model, method, mode, seconds, half, n, forward, jvp, vjp, device, memory)


def _read(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The stored run times; a damaged file is set aside. A disk that does not answer is not an absent file."""
    try:
        stored = json.loads(read_regular(path, RECORD_BYTES))
        for records in stored.values():
            read_timings(records)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (UnfitFile, ValueError, TypeError, AttributeError, RecursionError):
        aside = path.with_name(f"{path.name}.{time.time_ns()}.aside")
        message = f"'{path}' is damaged: set aside as '{aside}'; run times are measured again"
        warn_caller(message)
        os.replace(path, aside)
        return {}
    return stored
