"""The one accumulator of path integrals: it adds up a stream of pieces, whichever way they were computed."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fringe.attribution.base import Trajectory
from fringe.attribution.integral import batch_view, completeness_gap
from fringe.attribution.pieces import PieceStream, add_weighted, finite_maps
from fringe.attribution.telemetry import Recorder, RunningStats
from fringe.geometry import geometry_dtype
from fringe.paths import PathStatus


@dataclass(frozen=True)
class PathIntegral:
    """A path integral of B images: ``values`` (B, *S), the explained ``score`` and ``endpoint_score`` (B,), the
    completeness ``gap`` (B,), ``steps`` and ``outcomes`` per image, and what was measured on the way. Of K classes,
    ``values`` are (B, K, *S) and scores and gaps (B, K). ``uncorrected_gap`` is the gap that the rule had before the
    map was corrected, where it was."""

    values: Tensor
    score: Tensor
    endpoint_score: Tensor
    gap: Tensor
    steps: list[int]
    outcomes: list[PathStatus]
    stats: RunningStats
    trajectories: tuple[Trajectory, ...] | None = None
    uncorrected_gap: Tensor | None = None

    @property
    def residual(self) -> Tensor:
        """The paper's epsilon_comp (B,): |gap| over the score difference; 0 where both are zero."""
        return self._relative(self.gap)

    @property
    def rule_residual(self) -> Tensor:
        """The residual (B,) that the rule of integration left, of the worst of K classes: what a map is judged by."""
        residual = self._relative(self.gap if self.uncorrected_gap is None else self.uncorrected_gap)
        return residual.view(len(residual), -1).amax(1)

    def _relative(self, gap: Tensor) -> Tensor:
        return torch.where(gap == 0, 0.0, gap.abs() / (self.score - self.endpoint_score).double().abs())


def integrate(stream: PieceStream) -> PathIntegral:
    """Add up a stream of pieces. Memory does not grow with the number of steps.

    Returns:
        The integral of each image. Of several paths of an image, the change of the score and the map are the weighted
        sums, ``steps`` those of the longest, the outcome the worst, the statistics pooled, and the trajectory that of
        the first.
    """
    problem, images = stream.problem, stream.images
    device = problem.inputs.device
    shape = (*problem.target.shape, *problem.inputs.shape[1:])
    values = torch.zeros(shape, dtype=geometry_dtype(device), device=device)
    stats = RunningStats(len(stream.planned), device, stream.begins)
    owners = range(len(values)) if images is None else images.tolist()
    recorder = Recorder(problem, stream, owners) if problem.record_path else None
    for piece in stream:
        rows, value = piece.rows if images is None else images[piece.rows], piece.value
        if piece.weight is not None:
            add_weighted(values, rows, piece.weight, value)
        elif stream.weight is None:
            values.index_add_(0, rows, value.to(values.dtype))
        else:
            values.index_add_(0, rows, value.to(values.dtype) * batch_view(stream.weight[piece.rows], value))
        stats.add(piece.rows, piece.stats)
        if recorder is not None:
            recorder.add(piece)
        stream.counter.tick(len(rows))
    values = values if stream.scale is None else values * stream.scale
    maps = values.to(problem.inputs.dtype)
    score, change = stream.score, stream.score.double() - stream.endpoint_score.double()
    endpoint = stream.endpoint_score
    if images is not None:
        score, per_path = problem.score(problem.logits), change
        change = torch.zeros_like(score, dtype=torch.float64)
        change.index_add_(0, images, per_path if stream.weight is None else per_path * stream.weight)
        endpoint, stats = (score.double() - change).to(score.dtype), stats.pooled(images, len(score))
    steps = [0] * len(values)
    outcomes = [PathStatus.COMPLETE if ok else PathStatus.DIVERGED for ok in finite_maps(maps)]
    for path, image in enumerate(owners):
        steps[image] = max(steps[image], stream.taken[path])
        outcomes[image] = max(outcomes[image], stream.outcomes[path])
    gap = completeness_gap(values, change)
    trajectories = None if recorder is None else recorder.trajectories()
    return PathIntegral(maps, score, endpoint, gap, steps, outcomes, stats, trajectories, stream.error)
