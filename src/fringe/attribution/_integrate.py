"""The one accumulator of path integrals, and what it records along the paths."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fringe.attribution._base import Trajectory
from fringe.attribution._pieces import Piece, PieceStream, add_weighted, finite_maps
from fringe.attribution._quadrature import Correction, completeness_gap
from fringe.linalg import add_rows, batch_view
from fringe.paths import Orientation, PathStatus, Problem

#: Points of a trajectory that are stored as images where no number is given, both ends included.
SNAPSHOTS = 6

#: Names of what is measured at points; everything else is measured along steps.
AT_POINTS = ("entropy", "reference_kl", "reference_distance", "waypoint_kl", "tracking_error", "score")


class RunningStats:
    """Statistics of each measured name per image, whatever the number of steps; zero where nothing was measured.

    Args:
        batch: Number of images B.
        device: Where the statistics are stored.
        begins: The end at which the paths begin.

    Attributes:
        count: Number (B,) of measurements.
    """

    def __init__(self, batch: int, device: torch.device, begins: Orientation = "input"):
        self._begins = begins
        self.count = torch.zeros(batch, dtype=torch.float64, device=device)
        self._names: tuple[str, ...] = ()
        # a column for each name: one launch on a GPU, and not one for each of them
        self._total = self._largest = self._last = self.count.new_zeros(batch, 0)

    def add(self, rows: Tensor, stats: Mapping[str, Tensor]) -> None:
        """Add measurements (L,) of images ``rows`` (L,), in which an image may occur more than once. The names are the
        same each time."""
        first = self.count[rows] == 0 if self._begins == "baseline" else None
        add_rows(self.count, rows, torch.ones_like(rows, dtype=torch.float64))
        if not stats:
            return
        if not self._names:
            self._names, shape = tuple(stats), (len(self.count), len(stats))
            self._total, self._largest, self._last = (self.count.new_zeros(shape) for _ in range(3))
        values = torch.stack([stats[name].to(torch.float64) for name in self._names], 1)
        add_rows(self._total, rows, values)
        self._largest.scatter_reduce_(0, rows[:, None].expand_as(values), values, "amax")
        if first is not None:  # no path occurs twice, and its first measurement is the farthest
            values = torch.where(first[:, None], values, self._last[rows])
        self._last[rows] = values

    def pooled(self, images: Tensor, batch: int) -> "RunningStats":
        """The statistics of ``batch`` images from those of their paths; path i belongs to image ``images[i]`` (R,).

        Counts and totals are averaged over the paths, the last values over those that moved; the largest is of all.
        """
        pool = RunningStats(batch, images.device)
        pool._names, moved = self._names, (self.count > 0).to(self.count)

        def mean(values: Tensor, weight: Tensor) -> Tensor:
            total = add_rows(values.new_zeros(batch, *values.shape[1:]), images, values * batch_view(weight, values))
            share = add_rows(values.new_zeros(batch), images, weight).clamp_min(1.0)
            return total / batch_view(share, total)

        pool.count = mean(self.count, torch.ones_like(self.count))
        pool._total, pool._last = mean(self._total, torch.ones_like(self.count)), mean(self._last, moved)
        pool._largest = self._largest.new_zeros(batch, len(self._names))
        pool._largest.scatter_reduce_(0, images[:, None].expand_as(self._largest), self._largest, "amax")
        return pool

    def total(self, name: str) -> Tensor:
        """Sum (B,) over an image's steps."""
        return self._column(self._total, name)

    def mean(self, name: str) -> Tensor:
        """Mean (B,) over an image's steps; 0 for an image without steps."""
        return self.total(name) / self.count.clamp_min(1)

    def largest(self, name: str) -> Tensor:
        """Maximum (B,) over an image's steps, at least 0."""
        return self._column(self._largest, name)

    def last(self, name: str) -> Tensor:
        """What was measured farthest from the input (B,): the first of a path that begins at the baseline."""
        return self._column(self._last, name)

    def _column(self, table: Tensor, name: str) -> Tensor:
        return table[:, self._names.index(name)] if name in self._names else torch.zeros_like(self.count)


@dataclass(frozen=True)
class PathIntegral:
    """The path integrals of B images. Of K classes, values are (B, K, *S), scores and gaps (B, K).

    Attributes:
        values: Maps (B, *S).
        score: Explained score (B,) at the input.
        endpoint_score: Score (B,) at the other end.
        gap: Completeness gap (B,).
        steps: Steps taken, per image.
        outcomes: How the paths ended, per image.
        stats: What was measured along the paths.
        trajectories: Records of the paths, if they were requested.
        uncorrected_gap: The gap (B,) of the rule itself, if it corrects the maps.
    """

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
        """The residual (B, K) of the rule itself, K = 1 for one class: verdicts depend on it."""
        residual = self._relative(self.gap if self.uncorrected_gap is None else self.uncorrected_gap)
        return residual.view(len(residual), -1)

    def _relative(self, gap: Tensor) -> Tensor:
        return torch.where(gap == 0, 0.0, gap.abs() / (self.score - self.endpoint_score).double().abs())


def integrate(stream: PieceStream) -> PathIntegral:
    """Add up a stream of pieces. Memory does not grow with the number of steps.

    Args:
        stream: Terms of path integrals, such as :class:`NodePieces` or :class:`SegmentPieces`.

    Returns:
        The integral of each image. If an image has several paths: the change of the score and the map are weighted
        sums, ``steps`` are those of the longest path, the outcome is the worst, the statistics are pooled, and the
        trajectory is that of the first path.
    """
    problem, images = stream.problem, stream.images
    device = problem.inputs.device
    shape = (*problem.target.shape, *problem.inputs.shape[1:])
    values = torch.zeros(shape, dtype=torch.float64, device=device)
    stats = RunningStats(len(stream.planned), device, stream.begins)
    owners = range(len(values)) if images is None else images.tolist()
    recorder = Recorder(problem, stream, owners) if problem.record_path else None
    for piece in stream:
        rows, value = piece.rows if images is None else images[piece.rows], piece.value
        if isinstance(piece, Piece) and piece.weight is not None:
            add_weighted(values, rows, piece.weight, value)
        elif stream.weight is None:
            add_rows(values, rows, value.to(values.dtype))
        else:
            add_rows(values, rows, value.to(values.dtype) * batch_view(stream.weight[piece.rows], value))
        if isinstance(piece, Correction):
            if recorder is not None:
                recorder.correct(piece)
            continue
        stats.add(piece.rows, piece.stats)
        if recorder is not None:
            recorder.add(piece)
        stream.count(piece)
    stream.counter.reach(stream.counter.total)  # paths may end before their planned steps
    values = values if stream.scale is None else values * stream.scale
    maps = values.to(problem.inputs.dtype)
    score, change = stream.score, stream.score.double() - stream.endpoint_score.double()
    endpoint = stream.endpoint_score
    if images is not None:
        score, per_path = problem.score(problem.logits), change
        change = torch.zeros_like(score, dtype=torch.float64)
        add_rows(change, images, per_path if stream.weight is None else per_path * stream.weight)
        endpoint, stats = (score.double() - change).to(score.dtype), stats.pooled(images, len(score))
    steps = [0] * len(values)
    outcomes = [PathStatus.COMPLETE if ok else PathStatus.DIVERGED for ok in finite_maps(maps)]
    for path, image in enumerate(owners):
        steps[image] = max(steps[image], stream.taken[path])
        outcomes[image] = max(outcomes[image], stream.outcomes[path])
    gap = completeness_gap(values, change)
    trajectories = None if recorder is None else recorder.trajectories()
    return PathIntegral(maps, score, endpoint, gap, steps, outcomes, stats, trajectories, stream.error)


class _Log:
    """The record of one path: what was measured, and some of its points by their number of steps from the input.

    These are ``snapshots`` points over the planned steps. On a path that goes on, as many more at the same distance are
    kept, then every second one is dropped and the distance doubled; ``snapshots`` of them are given.
    """

    def __init__(self, image: int, planned: int, snapshots: int):
        self.image = image
        self.planned = planned
        self._count, self._stride = snapshots, planned / (snapshots - 1)
        self.points: dict[str, list[Any]] = {}
        self.steps: dict[str, list[Any]] = {}
        self.snapshots: dict[int, tuple[Tensor, Tensor]] = {}

    def is_due(self, step: int) -> bool:
        """Whether the point after this step belongs to the record."""
        if len(self.snapshots) > 2 * self._count:
            self._stride *= 2.0
            self.snapshots = {k: point for k, point in self.snapshots.items() if self._is_multiple(k)}
        return self._is_multiple(step)

    def _is_multiple(self, step: int) -> bool:
        return step == round(self._stride * round(step / self._stride))

    def store(self, step: int, x: Tensor, cumulative: Tensor) -> None:
        dtype = self.snapshots[0][0].dtype if self.snapshots else x.dtype  # a path may use a higher precision
        self.snapshots[step] = (_on_cpu(x, dtype), _on_cpu(cumulative, dtype))

    def reverse(self, total: Tensor) -> None:
        """From the order of a path that begins at the baseline to the order from the input on."""
        for column in self.points.values():
            column[1:] = column[:0:-1]
        for column in self.steps.values():
            column.reverse()
        for step, (x, cumulative) in self.snapshots.items():
            if step > 0:
                self.snapshots[step] = (x, total.to(cumulative) - cumulative)

    def trajectory(self) -> Trajectory:
        steps = sorted(self.snapshots)
        path = Trajectory(
            points={name: torch.tensor(column, dtype=torch.float64) for name, column in self.points.items()},
            steps={name: torch.tensor(column, dtype=torch.float64) for name, column in self.steps.items()},
            snapshot_steps=torch.tensor(steps),
            snapshots=torch.stack([self.snapshots[k][0] for k in steps]),
            cumulative=torch.stack([self.snapshots[k][1] for k in steps]),
        )
        return path.thinned(self._count)


class Recorder:
    """Stores every measured number of every step, and a few points of the path, on the CPU.

    Args:
        problem: What is explained.
        stream: The paths.
        images: The image of each path; of several paths of an image, the first is recorded.
    """

    def __init__(self, problem: Problem, stream: PieceStream, images: Sequence[int]):
        self._begins, self._scale = stream.begins, stream.scale
        geodesic, zeros = stream.geodesic, torch.zeros(len(problem.inputs), device=problem.inputs.device)
        start = geodesic.point(problem.every_row, geodesic.log_p0, geodesic.s0)
        start["score"] = problem.score(problem.logits)
        table = {name: column.tolist() for name, column in start.items()}
        shape = (*problem.target.shape[1:], *problem.inputs.shape[1:])
        zero = torch.zeros(shape, dtype=geodesic.log_p0.dtype, device=zeros.device)
        self._totals: dict[int, Tensor] = {}
        self._latest: dict[int, tuple[int, Tensor, Tensor]] = {}
        self._logs: dict[int, _Log] = {}
        record = problem.record_path
        for image in range(len(zeros)):
            path = images.index(image)
            self._logs[path] = log = _Log(image, stream.planned[path], SNAPSHOTS if record is True else record)
            log.points = {name: [column[image]] for name, column in table.items()}
            log.store(0, problem.inputs[image], zero)
            self._totals[path] = zero

    def add(self, piece: Piece) -> None:
        """Record the points of a piece, with the attribution between each and the input (or the baseline)."""
        table = {name: column.tolist() for name, column in {**piece.stats, **piece.trace}.items()}
        for i, (path, step) in enumerate(zip(piece.rows.tolist(), piece.step.tolist(), strict=True)):
            if (log := self._logs.get(path)) is None:
                continue
            for name, column in table.items():
                (log.points if name in AT_POINTS else log.steps).setdefault(name, []).append(column[i])
            before = self._totals[path]
            after = before + (piece.value[i] if piece.weight is None else piece.weight[i] * piece.value[i])
            self._totals[path] = after
            if self._begins == "baseline":
                step, after = log.planned - step + 1, before
            self._latest[path] = (step, piece.x[i], self._scaled(after, log))  # any step may prove to be the last
            if log.is_due(step):
                log.store(*self._latest[path])

    def correct(self, correction: Correction) -> None:
        """Change the attribution at the points that lie beyond corrected segments."""
        triples = zip(correction.rows.tolist(), correction.step.tolist(), correction.value, strict=True)
        for path, step, value in triples:
            if (log := self._logs.get(path)) is None:
                continue
            self._totals[path], scaled = self._totals[path] + value, self._scaled(value, log)
            last, x, cumulative = self._latest[path]
            self._latest[path] = last, x, cumulative + scaled
            for k, (point, before) in log.snapshots.items():
                if k >= step:
                    log.snapshots[k] = point, before + _on_cpu(scaled, before.dtype)

    def trajectories(self) -> tuple[Trajectory, ...]:
        """The trajectory of each image, from the input on."""
        for path, log in self._logs.items():
            if self._begins == "baseline":
                log.reverse(self._scaled(self._totals[path], log))
            elif path in self._latest:
                log.store(*self._latest[path])
        return tuple(log.trajectory() for log in self._logs.values())

    def _scaled(self, cumulative: Tensor, log: _Log) -> Tensor:
        return cumulative if self._scale is None else cumulative * self._scale[log.image]


def _on_cpu(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.detach().to("cpu", dtype, copy=True)
