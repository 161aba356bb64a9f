"""Explain the images of a query in groups, and put the maps back in order."""

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from fringe.attribution.base import Attribution, Progress, Trajectory

T = TypeVar("T")


def rejoined(groups: Sequence[Sequence[int]], parts: Sequence[Attribution]) -> Attribution:
    """One attribution from those of ``groups``, lists of places that together are 0 ... B - 1.

    What is said of the whole call (``settings``) is the first part's.
    """
    places = [place for group in groups for place in group]
    order = torch.tensor(places).argsort()

    def tensors(columns: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(columns))[order.to(columns[0].device)]

    def words(columns: Sequence[Sequence[T]]) -> tuple[T, ...]:
        flat = [value for column in columns for value in column]
        return tuple(flat[i] for i in order.tolist())

    trajectories: tuple[Trajectory | None, ...] | None = None
    if parts[0].trajectory is not None:
        trajectories = words([part.trajectory or () for part in parts])
    return dataclasses.replace(
        parts[0],
        values=tensors([part.values for part in parts]),
        target=tensors([part.target for part in parts]),
        score=tensors([part.score for part in parts]),
        endpoint_score=tensors([part.endpoint_score for part in parts]),
        completeness_gap=tensors([part.completeness_gap for part in parts]),
        completeness_residual=tensors([part.completeness_residual for part in parts]),
        verdict=words([part.verdict for part in parts]),
        advice=words([part.advice for part in parts]),
        diagnostics={name: tensors([part.diagnostics[name] for part in parts]) for name in parts[0].diagnostics},
        trajectory=trajectories,
    )


class Ticker:
    """Counts what is done of ``total`` and tells a caller who wants to know."""

    def __init__(self, progress: Progress | None, total: int):
        self.progress, self.done, self.total = progress, 0, total

    def tick(self, count: int) -> None:
        self.reach(self.done + count)

    def reach(self, done: int) -> None:
        """``done`` in all; never fewer than before."""
        self.done = max(self.done, done)
        if self.progress is not None:
            self.progress(self.done, self.total)
