"""What a plan will cost, told from one image and a little time."""

import contextlib
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from fringe.errors import FringeError
from fringe.experiments import CONTROLS, Candidate, Resolved, TaskRunner, make_maps
from fringe.metrics import EvaluationContext, evaluate
from fringe.paper.runtime import wait_for


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


def probe(
    resolved: Resolved, model: str, methods: Collection[str] | None = None, *, seconds: float = 5.0, device: str = "cpu"
) -> Mapping[str, Cost]:
    """A cost a method of ``model``, or of those of its ``methods`` and controls that are named, from the plan's first
    image that can be explained; a map is stopped after ``seconds`` and its cost extrapolated from the steps that it had
    done. Metrics that ask for further maps are counted as those maps. Raises FringeError where no image can be
    explained, and where a method cannot be used."""
    plan = resolved.plan
    arm = next(arm for arm in plan.arms if arm.label == model)
    subject = _subject(resolved, model, device)
    classifier = subject.problem.model
    with classifier.session(subject.problem.inputs.device):
        values = CONTROLS["edge"](subject.problem)
        plain = {label: metric for label, metric in plan.metrics.items() if not metric.requires_explainer}
        began = time.perf_counter()
        evaluate(subject, values, plain)
        wait_for(subject.problem.inputs.device)
        scored = time.perf_counter() - began
        again = sum(
            getattr(metric, "samples", 10) * plan.limit(label) / plan.n
            for label, metric in plan.metrics.items()
            if metric.requires_explainer
        )
        found: dict[str, Cost] = {}
        for entrant in plan.candidates(arm):
            if methods is None or entrant.label in methods:
                cost = _one(entrant, subject, seconds)
                found[entrant.label] = replace(cost, scores=scored + again * cost.seconds)
    return found


def _subject(resolved: Resolved, model: str, device: str) -> EvaluationContext:
    """The first image that can be explained, after the network has run once."""
    worker, images = TaskRunner(resolved, device=device), [image["digest"] for image in resolved.manifest.images]
    if not images:
        raise FringeError("images: none of those that were drawn can be read")
    for image in images[:-1]:
        with contextlib.suppress(FringeError):
            return worker.subject(model, (image,))
    return worker.subject(model, (images[-1],))


def _one(entrant: Candidate, subject: EvaluationContext, seconds: float) -> Cost:
    classifier, before = subject.problem.model, replace(subject.problem.model.passes)
    began, share = time.perf_counter(), 1.0

    def watch(done: int, planned: int) -> None:
        nonlocal share
        if time.perf_counter() - began > seconds and done < planned:
            share = max(done, 1) / planned
            raise _Enough

    with contextlib.suppress(_Enough):
        make_maps(entrant, replace(subject.problem, progress=watch))
    wait_for(subject.problem.inputs.device)
    took, spent = time.perf_counter() - began, classifier.passes.since(before)
    return Cost(took / share, 0.0, spent.forward / share, spent.jvp / share, spent.vjp / share, share)
