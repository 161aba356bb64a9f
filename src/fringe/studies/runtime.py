"""How long maps take: one image at a time as the paper measured it, and in batches as one would."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fringe._errors import FringeError
from fringe.attribution import Attributor, attribute
from fringe.baselines import InputSpace
from fringe.benchmark.draw import open_references, prepare
from fringe.benchmark.intervals import estimate
from fringe.benchmark.manifest import Resolved, load
from fringe.classifier import Classifier

Mode = Literal["sequential", "batched"]


@dataclass(frozen=True)
class Timing:
    """``seconds`` of an image's map and half the 95 % bootstrap interval of that over ``n`` images (NaN for batches,
    which are measured whole), with the passes that it took."""

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


def measure(
    resolved: Resolved, *, device: str = "cpu", watch: Callable[[str], None] = lambda what: None
) -> list[Timing]:
    """Time each method of the plan on its images. ``sequential``: one image, one point of the path at a time (the
    paper's protocol, its appendix on computational complexity), the methods in turn on each image so that a machine
    that slows down slows all of them; ``batched``: as many at a time as fit."""
    found: list[Timing] = []
    for arm in resolved.plan.arms:
        loaded = load(arm, device)
        recipe, exif = loaded.preprocessing, resolved.plan.exif
        pictures = [resolved.pictures[image["digest"]] for image in resolved.manifest.images]
        inputs = [prepare(picture.ref, recipe, exif).to(device) for picture in pictures]
        low, high = recipe.bounds()
        references = open_references(resolved.references, recipe, exif)
        spaces = {
            x.shape: InputSpace(low.to(device), high.to(device), _on(references.get(tuple(x.shape)), device))
            for x in inputs
        }
        clock = _Clock(arm.label, loaded.module, spaces, [p.digest for p in pictures], resolved, device)
        clock.warm(inputs[0])
        for mode in ("sequential", "batched"):
            watch(f"{arm.label}, {mode}")
            found += (
                clock.sequential(inputs, arm.methods) if mode == "sequential" else clock.batched(inputs, arm.methods)
            )
    return found


def slowdowns(timings: Sequence[Timing], method: str, against: str) -> dict[tuple[str, Mode], float]:
    """Seconds of ``method`` over those of ``against``, by model and mode."""
    seconds = {(t.model, t.mode): t.seconds for t in timings if t.method == against}
    mine = [t for t in timings if t.method == method and (t.model, t.mode) in seconds]
    return {(t.model, t.mode): t.seconds / seconds[t.model, t.mode] for t in mine}


def record(timings: Sequence[Timing]) -> list[dict[str, Any]]:
    """As plain data; a number that is not finite is None."""
    return [{k: None if v != v else v for k, v in asdict(timing).items()} for timing in timings]


class _Clock:
    """Times methods on one model."""

    def __init__(self, model: str, module: Any, spaces: Any, ids: list[str], resolved: Resolved, device: str):
        self.model, self.module, self.spaces, self.ids = model, module, spaces, ids
        self.plan, self.device = resolved.plan, device

    def warm(self, x: Tensor) -> None:
        """The first call of a network allocates and chooses; it is nobody's time."""
        for _ in range(2):
            with torch.no_grad():
                self.module(x[None])

    def sequential(self, inputs: Sequence[Tensor], methods: Mapping[str, Attributor]) -> list[Timing]:
        rows: dict[str, list[tuple[float, Any]]] = {name: [] for name in methods}
        classifiers = {name: Classifier(self.module, score=self.plan.score, batch_size=1) for name in methods}
        for x, identity in zip(inputs, self.ids, strict=True):
            for name, method in methods.items():
                rows[name].append(self._time(classifiers[name], method, x[None], [identity]))
        return [self._timing(name, "sequential", found) for name, found in rows.items()]

    def batched(self, inputs: Sequence[Tensor], methods: Mapping[str, Attributor]) -> list[Timing]:
        shapes: dict[Any, list[int]] = {}
        for place, x in enumerate(inputs):
            shapes.setdefault(x.shape, []).append(place)
        timings: list[Timing] = []
        for name, method in methods.items():
            classifier = Classifier(self.module, score=self.plan.score)
            seconds, passes = 0.0, [0.0, 0.0, 0.0]
            for places in shapes.values():
                stacked = torch.stack([inputs[i] for i in places])
                took, counts = self._time(classifier, method, stacked, [self.ids[i] for i in places])
                seconds += took
                passes = [a + b for a, b in zip(passes, (counts.forward, counts.jvp, counts.vjp), strict=True)]
            n = len(inputs)
            forward, jvp, vjp = (count / n for count in passes)
            at = seconds / n
            timings.append(Timing(self.model, name, "batched", at, math.nan, n, forward, jvp, vjp, self._place()))
        return timings

    def _time(self, classifier: Classifier, method: Attributor, x: Tensor, ids: list[str]) -> tuple[float, Any]:
        self._wait()
        began = time.perf_counter()
        target: Any = self.plan.target
        if target == "label":
            raise FringeError("target: the runtime study explains the predicted class; leave --target out")
        found = attribute(classifier, x, method=method, target=target, space=self.spaces[x.shape[1:]], ids=ids)
        self._wait()
        return time.perf_counter() - began, found.passes

    def _timing(self, name: str, mode: Mode, found: list[tuple[float, Any]]) -> Timing:
        at = estimate([seconds for seconds, _ in found])
        n = len(found)
        forward, jvp, vjp = (sum(getattr(p, kind) for _, p in found) / n for kind in ("forward", "jvp", "vjp"))
        half = (at.high - at.low) / 2
        return Timing(self.model, name, mode, at.mean, half, n, forward, jvp, vjp, self._place())

    def _wait(self) -> None:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()

    def _place(self) -> str:
        if self.device.startswith("cuda"):
            return torch.cuda.get_device_name()
        return f"CPU, {torch.get_num_threads()} threads"


def _on(references: Tensor | None, device: str) -> Tensor | None:
    return None if references is None else references.to(device)
