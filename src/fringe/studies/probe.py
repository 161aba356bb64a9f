"""What a plan will cost, told from one image and a little time."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fringe.attribution import Request
from fringe.benchmark.controls import CONTROLS
from fringe.benchmark.entrants import Entrant, make_maps
from fringe.benchmark.manifest import Resolved
from fringe.benchmark.work import Worker
from fringe.metrics import Subject, evaluate


@dataclass(frozen=True)
class Cost:
    """Of one image under a method: ``seconds`` of its map and of its ``scores``, and the passes of the map.
    ``share`` of the map was computed; the rest is extrapolated from its progress."""

    seconds: float
    scores: float
    forward: float
    jvp: float
    vjp: float
    share: float


class _Enough(Exception):
    """The time for a probe is over."""


def probe(resolved: Resolved, model: str, *, seconds: float = 5.0, device: str = "cpu") -> Mapping[str, Cost]:
    """A cost a method of ``model``, from the plan's first image; a map is stopped after ``seconds`` and its cost
    extrapolated from the steps that it had done. Metrics that ask for further maps are counted as those maps."""
    plan, manifest = resolved.plan, resolved.manifest
    arm = next(arm for arm in plan.arms if arm.label == model)
    image = manifest.images[0]["digest"]
    worker = Worker(resolved, device=device)
    subject = worker.subject(model, (image,))
    classifier = subject.classifier
    with classifier.session(subject.query.inputs.device):
        values = CONTROLS["edge"](subject.query, subject.noise)
        plain = {label: metric for label, metric in plan.metrics.items() if not metric.needs_explain}
        began = time.perf_counter()
        evaluate(subject, values, plain)
        scored = time.perf_counter() - began
        again = sum(
            getattr(metric, "samples", 10) * plan.limit(label) / plan.n
            for label, metric in plan.metrics.items()
            if metric.needs_explain
        )
        found: dict[str, Cost] = {}
        for entrant in plan.entrants(arm):
            cost = _one(entrant, subject, seconds)
            found[entrant.label] = replace(cost, scores=scored + again * cost.seconds)
    return found


def _one(entrant: Entrant, subject: Subject, seconds: float) -> Cost:
    classifier, before = subject.classifier, replace(subject.classifier.passes)
    began, share = time.perf_counter(), 1.0

    def watch(done: int, planned: int) -> None:
        nonlocal share
        if time.perf_counter() - began > seconds and done < planned:
            share = max(done, 1) / planned
            raise _Enough

    with contextlib.suppress(_Enough):
        make_maps(entrant, classifier, subject.query, Request(subject.noise, progress=watch))
    took, spent = time.perf_counter() - began, classifier.passes.since(before)
    return Cost(took / share, 0.0, spent.forward / share, spent.jvp / share, spent.vjp / share, share)


def total(costs: Mapping[str, Cost], images: int, methods: Sequence[str] | None = None) -> float:
    """Seconds that ``images`` take under the methods."""
    return images * sum(c.seconds + c.scores for name, c in costs.items() if methods is None or name in methods)
