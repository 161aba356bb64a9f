"""How long maps take: one image at a time as the paper measured it, and in batches as one would."""

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch

from fringe.classifier import PassCounts
from fringe.errors import FringeError
from fringe.experiments import Arm, Candidate, Resolved, TaskRunner, digest, estimate, make_maps
from fringe.metrics import EvaluationContext

Mode = Literal["sequential", "batched"]
BatchSize = int | Literal["auto"]


@dataclass(frozen=True)
class Timing:
    """``seconds`` of an image's map and half the 95 % bootstrap interval of that over ``n`` images (NaN for batches,
    which are measured whole), with the passes that it took. As in a benchmark, what is asked of a model once for all
    methods, its logits and the check of its derivatives, belongs to no map."""

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


@dataclass(frozen=True)
class _Spent:
    seconds: float
    passes: PassCounts


class _Warm(Exception):
    """A method has taken its first step: what is allocated and chosen once is."""


def measure(
    resolved: Resolved,
    *,
    device: str = "cpu",
    batch_size: BatchSize = "auto",
    watch: Callable[[str], None] = lambda what: None,
) -> list[Timing]:
    """Time each method of the plan on its images. ``sequential``: one image, one point of the path at a time (the
    paper's protocol, its appendix on computational complexity), the methods in turn on each image so that a machine
    that slows down slows all of them; ``batched``: as many at a time as fit, ``batch_size`` at most. Images that cannot
    be explained are left out. Raises FringeError where none is left, and where a method cannot be used."""
    found, where = list[Timing](), place_of(device)
    for arm in resolved.plan.arms:
        watch(f"{arm.label}, sequential")
        worker = TaskRunner(resolved, device=device, batch_size=1)
        sizes = _sizes(worker, arm, [image["digest"] for image in resolved.manifest.images])
        found += _sequential(worker, arm, list(sizes), where)
        watch(f"{arm.label}, batched")
        found += _batched(TaskRunner(resolved, device=device, batch_size=batch_size), arm, sizes, where)
    return found


def slowdowns(timings: Sequence[Timing], method: str, against: str) -> dict[tuple[str, Mode], float]:
    """Seconds of ``method`` over those of ``against``, by model and mode."""
    seconds = {(t.model, t.mode): t.seconds for t in timings if t.method == against}
    mine = [t for t in timings if t.method == method and (t.model, t.mode) in seconds]
    return {(t.model, t.mode): t.seconds / seconds[t.model, t.mode] for t in mine}


def record(timings: Sequence[Timing]) -> list[dict[str, Any]]:
    """As plain data; a number that is not finite is None."""
    return [{k: None if v != v else v for k, v in asdict(timing).items()} for timing in timings]


def from_record(rows: Sequence[Mapping[str, Any]]) -> list[Timing]:
    """What :func:`record` made plain."""
    plain: list[dict[str, Any]] = [{k: math.nan if v is None else v for k, v in row.items()} for row in rows]
    return [Timing(**row) for row in plain]


def identity(resolved: Resolved, model: str, device: str, batch_size: BatchSize) -> str:
    """A digest of all that run times of a model are measured of, and of where."""
    manifest = resolved.manifest
    images = [image["digest"] for image in manifest.images]
    versions = {name: manifest.versions[name] for name in ("fringe", "torch", "python")}
    return digest([manifest.settings[model], images, versions, place_of(device), str(batch_size)])


def place_of(device: str) -> str:
    """What maps are made on, in words."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads"


def _sizes(worker: TaskRunner, arm: Arm, images: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The shape of each image that can be explained, by digest. Opening them runs the network a first time, too."""
    found: dict[str, tuple[int, ...]] = {}
    problem: FringeError | None = None
    for image in images:
        try:
            found[image] = tuple(worker.subject(arm.label, (image,)).problem.inputs.shape[1:])
        except FringeError as error:
            problem = error
    if problem is not None and not found:
        raise problem
    return found


def _sequential(worker: TaskRunner, arm: Arm, images: Sequence[str], where: str) -> list[Timing]:
    spent: dict[str, list[_Spent]] = {label: [] for label in arm.methods}
    for place, image in enumerate(images):
        subject = worker.subject(arm.label, (image,))
        for label, method in arm.methods.items():
            if place == 0:
                _warm(Candidate(label, method), subject)
            spent[label].append(_time(Candidate(label, method), subject))
    return [_one_by_one(arm.label, label, found, where) for label, found in spent.items()]


def _batched(worker: TaskRunner, arm: Arm, sizes: Mapping[str, tuple[int, ...]], where: str) -> list[Timing]:
    groups: dict[tuple[int, ...], list[str]] = {}
    for image, size in sizes.items():
        groups.setdefault(size, []).append(image)
    spent: dict[str, list[_Spent]] = {label: [] for label in arm.methods}
    for images in groups.values():
        subject = worker.subject(arm.label, images)
        for label, method in arm.methods.items():
            _warm(Candidate(label, method), subject)
            spent[label].append(_time(Candidate(label, method), subject))
    return [_together(arm.label, label, found, len(sizes), where) for label, found in spent.items()]


def _warm(entrant: Candidate, subject: EvaluationContext) -> None:
    """Begin a map and drop it: the first of a kind allocates and chooses, which is nobody's time."""

    def stop(done: int, planned: int) -> None:
        if done:
            raise _Warm

    classifier = subject.problem.model
    with contextlib.suppress(_Warm), classifier.session(subject.problem.inputs.device):
        make_maps(entrant, replace(subject.problem, progress=stop))


def _time(entrant: Candidate, subject: EvaluationContext) -> _Spent:
    classifier, device = subject.problem.model, subject.problem.inputs.device
    with classifier.session(device):
        before = replace(classifier.passes)
        wait_for(device)
        began = time.perf_counter()
        make_maps(entrant, subject.problem)
        wait_for(device)
        return _Spent(time.perf_counter() - began, classifier.passes.since(before))


def wait_for(device: torch.device) -> None:
    """Return when all that was begun on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _one_by_one(model: str, method: str, found: Sequence[_Spent], where: str) -> Timing:
    at = estimate([one.seconds for one in found])
    half, n = (at.high - at.low) / 2, len(found)
    return Timing(model, method, "sequential", at.mean, half, n, *_passes(found, n), where)


def _together(model: str, method: str, found: Sequence[_Spent], n: int, where: str) -> Timing:
    seconds = sum(one.seconds for one in found) / n
    return Timing(model, method, "batched", seconds, math.nan, n, *_passes(found, n), where)


def _passes(found: Sequence[_Spent], n: int) -> tuple[float, float, float]:
    """Forward, JVP and VJP passes of an image."""
    forward, jvp, vjp = (sum(getattr(one.passes, kind) for one in found) / n for kind in ("forward", "jvp", "vjp"))
    return forward, jvp, vjp
