"""What a walk measured: running summaries always, every step on request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fringe.attribution.base import Trajectory
from fringe.paths import Begins, Segment

SNAPSHOTS = 6
"""Points of a trajectory kept as images, both ends included."""


def snapshot_steps(steps: int) -> list[int]:
    """The steps of a path after which its point is kept."""
    return sorted({round(steps * m / (SNAPSHOTS - 1)) for m in range(SNAPSHOTS)})


AT_POINTS = ("entropy", "reference_kl", "reference_distance", "waypoint_kl", "tracking_error", "score")
"""Names measured at points; everything else is measured along steps."""


class Summary:
    """Mean, maximum and last value of each measured name, per image: (B,) tensors, whatever the number of steps.

    The last is what was measured farthest from the input: what comes first where a walk ``begins`` at the baseline.
    """

    def __init__(self, batch: int, device: torch.device, begins: Begins = "input"):
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

    @classmethod
    def pooled(cls, parts: "Sequence[Summary]", images: Tensor, batch: int) -> "Summary":
        """A summary an image from those of its walks; row i of all ``parts`` belongs to image ``images[i]`` (L,).

        Counts and totals are averaged over the walks, the last values over those that moved; the largest is of all.
        """
        pool = cls(batch, images.device)
        count = torch.cat([part.count for part in parts])

        def mean(values: Tensor, weight: Tensor) -> Tensor:
            total = torch.zeros_like(pool.count).index_add_(0, images, values * weight)
            return total / torch.zeros_like(pool.count).index_add_(0, images, weight).clamp_min(1.0)

        pool.count = mean(count, torch.ones_like(count))
        for name in dict.fromkeys(name for part in parts for name in part._total):
            total = torch.cat([part.total(name) for part in parts])
            pool._total[name] = mean(total, torch.ones_like(total))
            pool._last[name] = mean(torch.cat([part.last(name) for part in parts]), (count > 0).to(total))
            largest = torch.cat([part.largest(name) for part in parts])
            pool._of(pool._largest, name).scatter_reduce_(0, images, largest, "amax")
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


@dataclass
class _Log:
    snapshot_steps: list[int]
    points: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    steps: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    snapshots: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    cumulative: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    latest: tuple[int, Tensor, Tensor] | None = None

    def keep(self, step: int, x: Tensor, values: Tensor) -> None:
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
    """Keeps every measured number of every step, and a few points on the way, on the CPU."""

    def __init__(self, inputs: Tensor, planned: list[int], start: Mapping[str, Tensor], zeros: Tensor | None = None):
        """``start`` holds the point measurements (B,) at the inputs themselves, ``zeros`` maps (B, K, *S) of zeros if
        they are of K classes."""
        self._planned, self._logs = planned, [_Log(snapshot_steps(t)) for t in planned]
        zeros = torch.zeros_like(inputs) if zeros is None else zeros
        for i, (log, x) in enumerate(zip(self._logs, inputs, strict=True)):
            log.points = {name: [values[i].tolist()] for name, values in start.items()}
            log.keep(0, x, zeros[i])

    def add(self, segment: Segment, values: Tensor, begins: Begins = "input") -> None:
        """One segment; ``values`` (B, *S) is what was gathered on the way to its ``start``."""
        stats = {name: column.tolist() for name, column in segment.stats.items()}
        stats["score"] = segment.start.score.tolist()
        for row, (image, step) in enumerate(zip(segment.index, segment.step, strict=True)):
            measured = {name: column[row] for name, column in stats.items()}
            away = step if begins == "input" else self._planned[image] - step + 1
            self.visit(image, away, segment.start.x[row], values[image], measured)

    def visit(self, image: int, step: int, x: Tensor, cumulative: Tensor, measured: Mapping[str, Any]) -> None:
        """The point ``x`` (*S) of one image ``step`` steps from the input, the attribution gathered on the way there,
        and what was measured."""
        log = self._logs[image]
        for name, value in measured.items():
            table = log.points if name in AT_POINTS else log.steps
            table.setdefault(name, []).append(value)
        log.latest = (step, x, cumulative.clone())  # any step may prove to be the last
        if step in log.snapshot_steps:
            log.keep(*log.latest)

    def trajectories(self, arrived: Tensor | None = None) -> tuple[Trajectory, ...]:
        """From the inputs on; ``arrived`` (B, *S) is what walks that began at the baselines gathered in all."""
        if arrived is not None:
            for log, total in zip(self._logs, arrived, strict=True):
                log.reverse(total)
        return tuple(_trajectory(log) for log in self._logs)


def _trajectory(log: _Log) -> Trajectory:
    if log.latest is not None:
        log.keep(*log.latest)
    steps = sorted(log.snapshots)
    return Trajectory(
        points={name: torch.tensor(column, dtype=torch.float64) for name, column in log.points.items()},
        steps={name: torch.tensor(column, dtype=torch.float64) for name, column in log.steps.items()},
        snapshot_steps=torch.tensor(steps),
        snapshots=torch.stack([log.snapshots[k] for k in steps]),
        cumulative=torch.stack([log.cumulative[k] for k in steps]),
    )
