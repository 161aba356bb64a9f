"""Coordinates in which a path takes its steps: a diagonal change of variables, whose gradients are integrated over x.

With a focus, ``x = x_0 + s (y - x_0)``: an entry with a small s is dear to move. As a mask, ``x = b + m(y) (x_0 - b)``
with ``m(y) = sigmoid(y) / sigmoid(3)``, which is 1 at the input, y = 3: entries fade towards b and come back, and
nothing that the input has not can be added.
"""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from fringe.paths import Problem, Rows, filling, part_numbers

#: y of a mask at the input, and its largest value: a larger one makes the slope there smaller, and the path longer.
TOP = 3.0


@dataclass(frozen=True)
class Coordinates(Rows):
    """The coordinates of L paths.

    Attributes:
        free: s, how freely each entry moves (L, *S).
        y: Where the paths are (L, *S); None: at the inputs.
        base: b of a mask (L, *S); None: there is none.
        span: x_0 - b of a mask (L, *S).
    """

    free: Tensor
    y: Tensor | None = None
    base: Tensor | None = None
    span: Tensor | None = None

    @classmethod
    def of(cls, problem: Problem, scale: Tensor | None, *, mask: bool) -> Self | None:
        """Return the coordinates with a ``scale`` s, which broadcasts to (B, *S); None for those of the input."""
        x = problem.inputs
        if not mask:
            return None if scale is None else cls(scale.expand_as(x))
        base = filling(problem, part_numbers(problem)).expand_as(x)
        free = torch.ones_like(x) if scale is None else scale.expand_as(x).to(x)
        return cls(free, torch.full_like(x, TOP), base, x - base)

    def slope(self) -> Tensor:
        """Return dx / dy (L, *S) where the paths are."""
        if self.y is None or self.span is None:
            return self.free
        share = self.y.sigmoid()
        return self.free * self.span * (share * (1.0 - share) / _at_top(self.y))

    def move(self, x: Tensor, v: Tensor, dx: Tensor, size: Tensor) -> tuple[Tensor, Self]:
        """Take a step of ``-size v`` in y, to first order ``-size dx`` in x: return the points and the coordinates."""
        if self.base is None or self.span is None or self.y is None:
            return x - size * dx, replace(self, y=(x if self.y is None else self.y) - size * v)
        y = (self.y - size * self.free * v).clamp_max(TOP)
        return self.base + self.span * (y.sigmoid() / _at_top(y)), replace(self, y=y)


def _at_top(like: Tensor) -> Tensor:
    return torch.full((), TOP, dtype=like.dtype, device=like.device).sigmoid()
