"""What a walk measured: running summaries always, every step on request."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fringe.attribution.base import Trajectory
from fringe.paths import Segment

SNAPSHOTS = 6
"""Points of a trajectory kept as images, both ends included."""

AT_POINTS = ("entropy", "reference_kl", "waypoint_kl", "tracking_error", "score")
"""Names measured at points; everything else is measured along steps."""


class Summary:
    """Mean, maximum and last value of each measured name, per image: (B,) tensors, whatever the number of steps."""

    def __init__(self, batch: int, device: torch.device):
        self._batch, self._device = batch, device
        self.count = torch.zeros(batch, dtype=torch.float64, device=device)
        self._total: dict[str, Tensor] = {}
        self._largest: dict[str, Tensor] = {}
        self._last: dict[str, Tensor] = {}

    def add(self, segment: Segment) -> None:
        rows = torch.tensor(segment.index, device=self._device)
        self.count[rows] += 1
        for name, values in segment.stats.items():
            values = values.to(torch.float64)
            self._of(self._total, name)[rows] += values
            largest = self._of(self._largest, name)
            largest[rows] = torch.maximum(largest[rows], values)
            self._of(self._last, name)[rows] = values

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
    points: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    steps: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    snapshots: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    cumulative: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    latest: tuple[int, Tensor, Tensor] | None = None

    def keep(self, step: int, x: Tensor, values: Tensor) -> None:
        self.snapshots[step], self.cumulative[step] = x.detach().cpu().clone(), values.detach().cpu().clone()


class Recorder:
    """Keeps every measured number of every step, and a few points on the way, on the CPU."""

    def __init__(self, inputs: Tensor, planned: list[int], start: Mapping[str, Tensor]):
        """``start`` holds the point measurements (B,) at the inputs themselves."""
        self._logs = [_Log(sorted({round(t * m / (SNAPSHOTS - 1)) for m in range(SNAPSHOTS)})) for t in planned]
        for i, (log, x) in enumerate(zip(self._logs, inputs, strict=True)):
            log.points = {name: [float(values[i])] for name, values in start.items()}
            log.keep(0, x, torch.zeros_like(x))

    def add(self, segment: Segment, values: Tensor) -> None:
        """One segment; ``values`` (B, *S) is the attribution so far."""
        stats = {name: column.tolist() for name, column in segment.stats.items()}
        stats["score"] = segment.start.score.tolist()
        for row, (image, step) in enumerate(zip(segment.index, segment.step, strict=True)):
            log = self._logs[image]
            for name, column in stats.items():
                table = log.points if name in AT_POINTS else log.steps
                table.setdefault(name, []).append(float(column[row]))
            log.latest = (step, segment.start.x[row], values[image].clone())  # any step may prove to be the last
            if step in log.snapshot_steps:
                log.keep(*log.latest)

    def trajectories(self) -> tuple[Trajectory, ...]:
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
