"""What the methods of a model did to a few images on their way: the paper's figures of trajectories (appendix "Ablation
Study Configurations") and of geometric profiles (appendix "Geometric Effect of the Euclidean Trust-Region Cap")."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from torch import Tensor

from fringe._filters import gaussian_blur
from fringe._rng import KeyedGenerator
from fringe.attribution import Attributor
from fringe.errors import InputError, check_known, known_hint, require_positive
from fringe.experiments import Resolved, TaskRunner
from fringe.metrics import EvaluationContext
from fringe.paths import Problem
from fringe.plots import PathRecord

SHOWN = 6
"""Points of a walk that are shown, both ends among them."""

SIGMA = 1.0
"""Pixels: the standard deviation of the method's own blur, its preconditioner's. The paper gives none for its maps."""


def blur_change(points: Tensor, start: Tensor, sigma: float = SIGMA) -> Tensor:
    """Where ``points`` (M, C, H, W) differ from ``start`` (C, H, W): maps (M, H, W) in [0, 1].

    The absolute change, averaged over the channels, under a Gaussian of ``sigma`` pixels, divided by its largest entry
    over all M points; zero where nothing changed. The paper shows a "normalized blur-change map relative to the initial
    image" and gives no formula: this is our reading of its words.
    """
    if points.dim() != 4 or points.shape[1:] != start.shape:
        shapes = f"{tuple(points.shape)} and {tuple(start.shape)}"
        raise InputError(f"points and start: got shapes {shapes}, expected (M, C, H, W) and (C, H, W)")
    require_positive("sigma", sigma)
    blurred = gaussian_blur((points - start).abs().mean(1, keepdim=True), sigma)[:, 0]
    largest = blurred.max()
    return blurred if largest == 0 else blurred / largest


def walks(
    resolved: Resolved,
    model: str,
    images: Sequence[str] | int,
    *,
    device: str = "cpu",
    batch_size: int | Literal["auto"] = "auto",
    seed: int | None = None,
) -> dict[str, tuple[PathRecord, ...]]:
    """By image digest, the walk of each method that ``model`` has in the plan, in their order; a method that keeps no
    trajectory has none. ``images`` are digests of the plan, or how many of its first ones.

    Images are explained one at a time, as the benchmark does: with the plan's target and score, and its seed where
    ``seed`` is None. Raises InputError for a model or image that is not the plan's, FringeError for an image that the
    model cannot take.
    """
    arms = {arm.label: arm for arm in resolved.plan.arms}
    check_known("model", model, arms)
    chosen = _choose(images, [image["digest"] for image in resolved.manifest.images])
    worker = TaskRunner(resolved, device=device, batch_size=batch_size)
    found: dict[str, tuple[PathRecord, ...]] = {}
    for digest in chosen:
        subject = worker.subject(model, (digest,))
        noise = subject.problem.rng if seed is None else KeyedGenerator(seed)
        with subject.problem.model.session(subject.problem.inputs.device):
            one = (_walk(name, method, subject, noise) for name, method in arms[model].methods.items())
            found[digest] = tuple(walk for walk in one if walk is not None)
    return found


def _choose(images: Sequence[str] | int, known: Sequence[str]) -> list[str]:
    if isinstance(images, str):
        raise InputError(f"images: got the text {images!r}, expected a list such as [{images!r}], or how many")
    if isinstance(images, int):
        if not 1 <= images <= len(known):
            raise InputError(f"images: got {images}, expected 1 to {len(known)}: so many images has the plan")
        return list(known[:images])
    for digest in images:
        if digest not in known:
            hint = known_hint(digest, known, f"it is none of the plan's {len(known)} digests")
            raise InputError(f"got {digest!r}", argument="images", hint=hint)
    return list(images)


def _walk(label: str, method: Attributor, subject: EvaluationContext, noise: KeyedGenerator) -> PathRecord | None:
    """The walk of the subject's only image."""
    found = method.attribute(replace(subject.problem, rng=noise, record_path=True))
    trajectory = None if found.trajectory is None else found.trajectory[0]
    if trajectory is None:
        return None
    shown = _spread(len(trajectory.snapshot_steps))
    points = trajectory.snapshots[shown]
    steps = {name: column.numpy() for name, column in trajectory.steps.items()}
    names = ("fisher_rao_step", "euclidean_step", "active_bound")
    radians, length, bound = (steps.get(name, np.empty(0)) for name in names)
    return PathRecord(
        label=label,
        entropy=trajectory.points["entropy"].numpy() / math.log(subject.problem.logits.shape[1]),
        snapshot_steps=trajectory.snapshot_steps[shown].numpy(),
        images=_displayed(points, subject.problem).permute(0, 2, 3, 1).numpy(),
        changes=blur_change(points, trajectory.snapshots[0]).numpy(),
        attribution=found.values[0].cpu().numpy(),
        fisher_rao_step=radians,
        euclidean_step=length,
        active_bound=bound,
        verdict=found.verdict[0],
    )


def _displayed(points: Tensor, problem: Problem) -> Tensor:
    """Model inputs (M, C, H, W) as a person sees them: 0 where the space of valid inputs begins, 1 where it ends."""
    low, high = (bound.cpu() for bound in problem.domain.bounds(problem.inputs))
    return ((points - low) / (high - low)).clamp(0, 1)


def _spread(count: int) -> list[int]:
    """At most ``SHOWN`` of so many places, evenly, with the first and the last."""
    if count <= SHOWN:
        return list(range(count))
    return [round(place * (count - 1) / (SHOWN - 1)) for place in range(SHOWN)]
