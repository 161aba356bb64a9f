"""Series and texts of several lengths: each is explained without its padding, which gets nothing."""

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fringe.attribution._base import Attribution, Trajectory
from fringe.paths import Problem


def explain_without_padding(explain: Callable[[Problem], Attribution], problem: Problem) -> Attribution:
    """Explain the images of each length together, and put the maps (B, *S) in their order."""
    lengths, parts, order = problem.lengths or (), list[Attribution](), list[int]()
    for length in sorted(set(lengths)):
        rows = [row for row, other in enumerate(lengths) if other == length]
        part = dataclasses.replace(problem.without_padding(rows), progress=None)
        parts.append(_padded(explain(part), problem, rows, length))
        order += rows
        if problem.progress is not None:
            problem.progress(len(order), len(lengths))
    return Attribution.concat(parts).select(torch.tensor(order).argsort().tolist())


def _padded(result: Attribution, problem: Problem, rows: list[int], length: int) -> Attribution:
    axis, size = problem.length_axis, problem.inputs.shape[problem.length_axis]

    def zeros(x: Tensor) -> Tensor:
        return nn.functional.pad(x, [0, 0] * (-1 - axis) + [0, size - length])

    def path(row: int, given: Trajectory) -> Trajectory:
        tail = problem.inputs[row].narrow(axis, length, size - length).to(given.snapshots)
        snapshots = torch.cat([given.snapshots, tail.expand(len(given.snapshots), *tail.shape)], axis)
        return dataclasses.replace(given, snapshots=snapshots, cumulative=zeros(given.cumulative))

    paths = result.trajectory
    if paths is not None:
        paths = tuple(each and path(row, each) for row, each in zip(rows, paths, strict=True))
    return dataclasses.replace(result, values=zeros(result.values), trajectory=paths)
