"""The record of paths: what was measured along them, and some of their points with the integral between them."""

import bisect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fringe.attribution._base import Trajectory
from fringe.paths import AT_POINTS, Geodesic, Orientation, Problem

#: Points of a trajectory that are stored as images where no number is given, both ends included.
SNAPSHOTS = 6


class Record:
    """The path of each image; of several paths of an image, the first.

    Points have numbers, their steps from the input. With each stored point there is the integral between it and the
    stored point before it, so a term that comes later joins the first stored point beyond its segment.

    Args: see :class:`fringe.attribution._integrate.Sums`.
    """

    def __init__(
        self,
        problem: Problem,
        planned: list[int],
        geodesic: Geodesic,
        measures: tuple[str, ...],
        begins: Orientation,
        images: Tensor | None,
    ):
        self.begins: Orientation = begins
        self.measures, known = measures, None if images is None else images.tolist()
        paths = [i if known is None else known.index(i) for i in range(len(problem.inputs))]
        geodesic = geodesic[torch.tensor(paths, device=problem.inputs.device)]
        start = geodesic.measured(geodesic.log_p, geodesic.s0).tolist()
        scores = problem.score(problem.logits).tolist()
        zero = torch.zeros(*problem.target.shape[1:], *problem.inputs.shape[1:], dtype=torch.float64)
        snapshots = SNAPSHOTS if problem.record_path is True else problem.record_path
        self.logs = {
            path: _Log(x, zero, dict(zip((*AT_POINTS, "score"), (*row, score), strict=True)), planned[path], snapshots)
            for path, x, row, score in zip(paths, problem.inputs, start, scores, strict=True)
        }

    def see(
        self, paths: Tensor, steps: Tensor, x: Tensor, stats: Tensor, trace: Mapping[str, Tensor], counts: Tensor | None
    ) -> None:
        """Record the points (L, *S) at the far ends of terms, and measurements (L, N), and others by name."""
        table = dict(zip(self.measures, stats.T.tolist(), strict=True)) | {k: c.tolist() for k, c in trace.items()}
        keep = [True] * len(paths) if counts is None else counts.tolist()
        for i, (path, step) in enumerate(zip(paths.tolist(), steps.tolist(), strict=True)):
            if (log := self.logs.get(path)) is None or not keep[i]:
                continue
            for name, column in table.items():
                (log.points if name in (*AT_POINTS, "score") else log.steps).setdefault(name, []).append(column[i])
            log.store(self._number(log, step), x[i], self.begins)

    def add(self, paths: Tensor, steps: Tensor, values: Tensor, k: int | Tensor | None) -> None:
        """Add terms (L, *S) of all, of one or of L of the K classes to points that were seen."""
        classes = k.tolist() if isinstance(k, Tensor) else [k] * len(paths)
        for path, step, value, of in zip(paths.tolist(), steps.tolist(), values, classes, strict=True):
            if (log := self.logs.get(path)) is not None:
                log.add(self._number(log, step), value, of)

    def _number(self, log: "_Log", step: int) -> int:
        return step if self.begins == "input" else log.planned - step + 1

    def trajectories(self, scale: Tensor | None) -> tuple[Trajectory, ...]:
        """The trajectory of each image, from the input on; its integrals times ``scale`` (B, *S), None: 1."""
        scales = [None] * len(self.logs) if scale is None else [row.double().cpu() for row in scale]
        pairs = zip(self.logs.values(), scales, strict=True)
        return tuple(log.trajectory(scale, reverse=self.begins == "baseline") for log, scale in pairs)


class _Log:
    """The record of one path.

    Stored are ``snapshots`` points over the planned steps. On a path that goes on, as many more at the same distance
    are kept, then every second one is dropped and the distance doubled; ``snapshots`` of them are given.
    """

    def __init__(self, x: Tensor, zero: Tensor, start: Mapping[str, Any], planned: int, snapshots: int):
        self.dtype, self.planned = x.dtype, planned
        self._count, self._stride = snapshots, planned / (snapshots - 1)
        self.points: dict[str, list[Any]] = {name: [value] for name, value in start.items()}
        self.steps: dict[str, list[Any]] = {}
        self.snapshots = {0: (_on_cpu(x, x.dtype), zero)}  # a point, and the integral from the stored one before it

    def store(self, number: int, x: Tensor, begins: Orientation) -> None:
        """Store a point, and drop others: the latest one of a path from the input may prove to be its last."""
        if len(self.snapshots) > 2 * self._count:
            self._stride *= 2.0
        self.snapshots[number] = (_on_cpu(x, self.dtype), torch.zeros_like(self.snapshots[0][1]))
        stored, carried = dict[int, tuple[Tensor, Tensor]](), number
        for k in sorted(self.snapshots, reverse=True):
            is_due = k == round(self._stride * round(k / self._stride))
            if is_due or (k == number and begins == "input"):
                stored[k], carried = self.snapshots[k], k
            else:
                stored[carried][1].add_(self.snapshots[k][1])
        self.snapshots = stored

    def add(self, number: int, value: Tensor, k: int | None) -> None:
        """Add to the integral between the points ``number - 1`` and ``number``, of one of K classes or of all."""
        stored = sorted(self.snapshots)  # of a step that led to no finite point there is none, and the value is zero
        term = self.snapshots[stored[min(bisect.bisect_left(stored, number), len(stored) - 1)]][1]
        (term if k is None else term[k]).add_(value.cpu())

    def trajectory(self, scale: Tensor | None, *, reverse: bool) -> Trajectory:
        """The path from the input on."""
        stored = sorted(self.snapshots)
        sums = torch.stack([self.snapshots[k][1] for k in stored]).cumsum(0)
        if reverse:
            for column in self.points.values():
                column[1:] = column[:0:-1]
            for column in self.steps.values():
                column.reverse()
        path = Trajectory(
            points={name: torch.tensor(column, dtype=torch.float64) for name, column in self.points.items()},
            steps={name: torch.tensor(column, dtype=torch.float64) for name, column in self.steps.items()},
            snapshot_steps=torch.tensor(stored),
            snapshots=torch.stack([self.snapshots[k][0] for k in stored]),
            cumulative=(sums if scale is None else sums * scale).to(self.dtype),
        )
        return path.thinned(self._count)


def _on_cpu(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.detach().to("cpu", dtype, copy=True)
