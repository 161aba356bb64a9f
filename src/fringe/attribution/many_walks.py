"""Path integrals of images that are explained by several walks each: towards classes, or towards references."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fringe.attribution.base import Progress, Trajectory
from fringe.attribution.diagnosis import Judgement, judge_completeness
from fringe.attribution.integral import Quadrature, completeness_gap
from fringe.attribution.path_integral import Integrated, integrate
from fringe.attribution.telemetry import Summary
from fringe.geometry import geometry_dtype
from fringe.paths import Outcome, Path, Problem

Reduce = Literal["sum", "mean"]


@dataclass(frozen=True)
class Walks:
    """At most ``steps`` steps a walk; walk r belongs to image ``images[r]``, and ``path`` describes those it is asked
    for. What an image's walks gather is summed or averaged."""

    path: Callable[[list[int]], Path]
    images: Sequence[int]
    steps: int
    reduce: Reduce


def integrate_walks(walks: Walks, quadrature: Quadrature, problem: Problem) -> Integrated:
    """The sum or mean of the path integrals along each image's walks.

    Walks are taken a batch at a time, so memory grows neither with their number nor with their steps. The map's sum is
    compared with the sum or mean of the walks' changes of the score: ``endpoint_score`` is ``score`` less that.
    ``steps`` are those of an image's longest walk, summaries are pooled, and a trajectory is that of its first walk.
    """
    pool, done, count = _Pool(walks, problem), 0, len(walks.images)
    while done < count:
        batch = list(range(done, min(done + problem.model.batch_size.on(problem.inputs.device), count)))
        progress = _shifted(problem.progress, done * walks.steps, count * walks.steps)
        part = dataclasses.replace(problem.select([walks.images[walk] for walk in batch]), progress=progress)
        pool.add(batch, integrate(walks.path(batch), quadrature, part))
        done += len(batch)
        if problem.progress is not None:
            problem.progress(done * walks.steps, count * walks.steps)
    return pool.close(problem.score(problem.logits))


def judge_walks(found: Integrated, cure: str, still: str) -> list[Judgement]:
    """The verdict on each image by its completeness; ``still`` is said where no walk could take a step."""
    return [
        ("stalled", still)
        if steps == 0 and found.outcomes[image] is not Outcome.DIVERGED
        else judge_completeness(found, image, cure)
        for image, steps in enumerate(found.steps)
    ]


class _Pool:
    """What the walks of each image come to together."""

    def __init__(self, walks: Walks, problem: Problem):
        device, self.batch = problem.inputs.device, len(problem.inputs)
        self.images, self.kind = torch.tensor(walks.images, device=device), problem.inputs.dtype
        self.values = torch.zeros_like(problem.inputs, dtype=geometry_dtype(device))
        self.change = torch.zeros(self.batch, dtype=self.values.dtype, device=device)
        self.weight = torch.ones_like(self.change)
        if walks.reduce == "mean":
            self.weight = self.images.bincount(minlength=self.batch).to(self.change).clamp_min(1.0).reciprocal()
        self.parts: list[Summary] = []
        self.steps, self.outcomes = [0] * self.batch, [Outcome.COMPLETE] * self.batch
        self.trajectories: dict[int, Trajectory] = {}

    def add(self, batch: list[int], found: Integrated) -> None:
        rows = self.images[batch]
        weight = self.weight[rows]
        shape = (-1, *[1] * (self.values.dim() - 1))
        self.values.index_add_(0, rows, found.values.to(self.values.dtype) * weight.view(shape))
        change = found.score.to(self.change.dtype) - found.endpoint_score.to(self.change.dtype)
        self.change.index_add_(0, rows, weight * change)
        self.parts.append(found.summary)
        for walk, image in enumerate(rows.tolist()):
            self.steps[image] = max(self.steps[image], found.steps[walk])
            self.outcomes[image] = max(self.outcomes[image], found.outcomes[walk])
            if found.trajectories is not None:
                self.trajectories.setdefault(image, found.trajectories[walk])

    def close(self, score: Tensor) -> Integrated:
        kept = tuple(self.trajectories[image] for image in range(self.batch)) if self.trajectories else None
        endpoint = (score.to(self.change.dtype) - self.change).to(score.dtype)
        return Integrated(
            values=self.values.to(self.kind),
            score=score,
            endpoint_score=endpoint,
            gap=completeness_gap(self.values, self.change),
            steps=self.steps,
            outcomes=self.outcomes,
            summary=Summary.pooled(self.parts, self.images, self.batch),
            trajectories=kept,
        )


def _shifted(progress: Progress | None, before: int, total: int) -> Progress | None:
    """Progress of one batch of walks, told as that of all of them."""
    if progress is None:
        return None
    return lambda done, _planned: progress(before + done, total)
