"""The one accumulator of path integrals, and what it records along the paths."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fringe.attribution._base import Trajectory
from fringe.attribution._pieces import Piece, PieceStream, add_weighted, finite_maps
from fringe.attribution._quadrature import batch_view, completeness_gap
from fringe.geometry import geometry_dtype
from fringe.paths import Orientation, PathStatus, Problem


class RunningStats:
    """Mean, maximum and last value of each measured name, per image: (B,) tensors, whatever the number of steps.

    The last is what was measured farthest from the input: what comes first where a walk ``begins`` at the baseline.
    """

    def __init__(self, batch: int, device: torch.device, begins: Orientation = "input"):
        self._batch, self._device, self._begins = batch, device, begins
        self.count = torch.zeros(batch, dtype=torch.float64, device=device)
        self._total: dict[str, Tensor] = {}
        self._largest: dict[str, Tensor] = {}
        self._last: dict[str, Tensor] = {}

    def add(self, rows: Tensor, stats: Mapping[str, Tensor]) -> None:
        """Measurements (L,) of images ``rows`` (L,); an image may occur more than once, except in what is ``last``."""
        far = slice(None) if self._begins == "input" else self.count[rows] == 0
        self.count.index_add_(0, rows, torch.ones(len(rows), dtype=torch.float64, device=self._device))
        for name, values in stats.items():
            values = values.to(torch.float64)
            self._of(self._total, name).index_add_(0, rows, values)
            self._of(self._largest, name).scatter_reduce_(0, rows, values, "amax")
            self._of(self._last, name)[rows[far]] = values[far]

    def pooled(self, images: Tensor, batch: int) -> "RunningStats":
        """The statistics of ``batch`` images from those of their paths; path i belongs to image ``images[i]`` (R,).

        Counts and totals are averaged over the paths, the last values over those that moved; the largest is of all.
        """
        pool = RunningStats(batch, images.device)

        def mean(values: Tensor, weight: Tensor) -> Tensor:
            total = torch.zeros_like(pool.count).index_add_(0, images, values * weight)
            return total / torch.zeros_like(pool.count).index_add_(0, images, weight).clamp_min(1.0)

        pool.count = mean(self.count, torch.ones_like(self.count))
        for name, total in self._total.items():
            pool._total[name] = mean(total, torch.ones_like(total))
            pool._last[name] = mean(self._last[name], (self.count > 0).to(total))
            pool._of(pool._largest, name).scatter_reduce_(0, images, self._largest[name], "amax")
        return pool

    def mean(self, name: str) -> Tensor:
        """Mean over an image's steps; 0 for an image without steps."""
        return self._of(self._total, name) / self.count.clamp_min(1)

    def total(self, name: str) -> Tensor:
        return self._of(self._total, name)

    def largest(self, name: str) -> Tensor:
        return self._of(self._largest, name)

    def last(self, name: str) -> Tensor:
        return self._of(self._last, name)

    def _of(self, table: dict[str, Tensor], name: str) -> Tensor:
        if name not in table:
            table[name] = torch.zeros(self._batch, dtype=torch.float64, device=self._device)
        return table[name]


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


SNAPSHOTS = 6
"""Points of a trajectory kept as images, both ends included."""


def snapshot_steps(steps: int) -> list[int]:
    """The steps of a path after which its point is kept."""
    return sorted({round(steps * m / (SNAPSHOTS - 1)) for m in range(SNAPSHOTS)})


AT_POINTS = ("entropy", "reference_kl", "reference_distance", "waypoint_kl", "tracking_error", "score")
"""Names measured at points; everything else is measured along steps."""


@dataclass
class _Log:
    image: int
    planned: int
    total: Tensor = field(default_factory=lambda: torch.zeros(()))
    points: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    steps: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    snapshots: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    cumulative: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    latest: tuple[int, Tensor, Tensor] | None = None

    def visit(self, step: int, x: Tensor, cumulative: Tensor, measured: Mapping[str, Any]) -> None:
        """The point ``x`` (*S) at ``step`` steps from the input, the attribution gathered on the way there, and what
        was measured."""
        for name, value in measured.items():
            table = self.points if name in AT_POINTS else self.steps
            table.setdefault(name, []).append(value)
        self.latest = (step, x, cumulative)  # any step may prove to be the last
        if step in snapshot_steps(self.planned):
            self.store(*self.latest)

    def store(self, step: int, x: Tensor, values: Tensor) -> None:
        like = self.snapshots.get(0, x)  # the input: a walk may compute in a higher precision
        for table, tensor in ((self.snapshots, x), (self.cumulative, values)):
            table[step] = tensor.detach().to("cpu", like.dtype, copy=True)

    def reverse(self, total: Tensor) -> None:
        """From walking order to the order from the input on, for a walk that ended there with ``total`` gathered."""
        for column in self.points.values():
            column[1:] = column[:0:-1]
        for column in self.steps.values():
            column.reverse()
        self.latest = None  # the first point of the walk was its last from the input on
        for step in self.cumulative.keys() - {0}:
            self.cumulative[step] = total.to(self.cumulative[step]) - self.cumulative[step]


class Recorder:
    """Stores every measured number of every step, and a few points on the way, on the CPU."""

    def __init__(self, problem: Problem, stream: PieceStream, images: Sequence[int]):
        """``images`` names the image of each path; of several paths of an image, the first is recorded."""
        self._begins, self._scale = stream.begins, stream.scale
        gauge, zeros = stream.gauge, torch.zeros(len(problem.inputs), device=problem.inputs.device)
        start = {**gauge.point(problem.every_row, gauge.log_p0, zeros), "score": problem.score(problem.logits)}
        table = {name: column.tolist() for name, column in start.items()}
        self._logs: dict[int, _Log] = {}
        for image in range(len(zeros)):
            path = images.index(image)
            self._logs[path] = log = _Log(image, stream.planned[path])
            log.points = {name: [column[image]] for name, column in table.items()}
            shape = (*problem.target.shape[1:], *problem.inputs.shape[1:])
            log.total = torch.zeros(shape, dtype=gauge.log_p0.dtype, device=zeros.device)
            log.store(0, problem.inputs[image], log.total)

    def add(self, piece: Piece) -> None:
        """The points of a piece, with the attribution gathered between each and the input (or the baseline)."""
        table = {name: column.tolist() for name, column in {**piece.stats, **piece.trace}.items()}
        for i, (path, step) in enumerate(zip(piece.rows.tolist(), piece.step.tolist(), strict=True)):
            if (log := self._logs.get(path)) is None:
                continue
            term = piece.value[i] if piece.weight is None else piece.weight[i] * piece.value[i]
            before, log.total = log.total, log.total + term
            away, gathered = (step, log.total) if self._begins == "input" else (log.planned - step + 1, before)
            measured = {name: column[i] for name, column in table.items()}
            log.visit(away, piece.x[i], self._scaled(gathered, log), measured)

    def trajectories(self) -> tuple[Trajectory, ...]:
        """From the inputs on."""
        if self._begins == "baseline":
            for log in self._logs.values():
                log.reverse(self._scaled(log.total, log))
        return tuple(_trajectory(log) for log in self._logs.values())

    def _scaled(self, gathered: Tensor, log: _Log) -> Tensor:
        return gathered if self._scale is None else gathered * self._scale[log.image]


def _trajectory(log: _Log) -> Trajectory:
    if log.latest is not None:
        log.store(*log.latest)
    steps = sorted(log.snapshots)
    return Trajectory(
        points={name: torch.tensor(column, dtype=torch.float64) for name, column in log.points.items()},
        steps={name: torch.tensor(column, dtype=torch.float64) for name, column in log.steps.items()},
        snapshot_steps=torch.tensor(steps),
        snapshots=torch.stack([log.snapshots[k] for k in steps]),
        cumulative=torch.stack([log.cumulative[k] for k in steps]),
    )
