r"""The path integral of gradients, over a stream of segments.

.. math:: A = \int \nabla F^t(\gamma) \odot d\gamma \approx
          \sum_k \tfrac12 (\nabla F^t(z_k) + \nabla F^t(z_{k+1})) \odot (z_{k+1} - z_k)

Segments are oriented baseline -> input, so the sum has the sign of Integrated Gradients (FRInGe accumulates the
reverse path and returns the negative: the same number; eq. trapezoid).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fringe.paths import Point, Problem, Segment

NodeRule = Literal["midpoint", "gausslegendre", "trapezoid", "left", "right", "closed_mean"]


def quadrature_nodes(rule: NodeRule, count: int) -> tuple[Tensor, Tensor]:
    """Nodes (count,) in [0, 1], descending (from the input, a = 1, to the baseline), and their weights, in float64.

    Weights sum to one. ``left`` looks at the baseline's end of each interval and ``right`` at the input's;
    ``trapezoid`` halves the ends of a closed grid of ``count - 1`` intervals (Captum's divides by ``count`` and loses
    that share of every map); ``closed_mean`` weighs the closed grid equally, as PAIR-code/saliency does.
    """
    if rule == "gausslegendre":
        x, w = np.polynomial.legendre.leggauss(count)
        nodes, weights = torch.from_numpy((x + 1) / 2), torch.from_numpy(w / 2)
    else:
        k = torch.arange(count, dtype=torch.float64)
        shift = {"midpoint": 0.5, "left": 0.0, "right": 1.0}
        nodes = (k + shift[rule]) / count if rule in shift else torch.linspace(0, 1, count, dtype=torch.float64)
        weights = torch.full((count,), 1.0 / count, dtype=torch.float64)
        if rule == "trapezoid":
            weights = torch.full((count,), 1.0 / (count - 1), dtype=torch.float64)
            weights[[0, -1]] *= 0.5
    return nodes.flip(0), weights.flip(0)


Rule = Literal["trapezoid", "adaptive", "corrected"]
EndRule = Literal["left", "right"]


@dataclass(frozen=True)
class Quadrature:
    """``"trapezoid"`` is the paper's rule. ``"adaptive"`` (ours) bisects a segment while its own error is too large.

    The error of a piece is known exactly, since the score is known at both ends:
    :math:`e = \\langle \\tfrac12 (g_0 + g_1), z_1 - z_0 \\rangle - (F(z_1) - F(z_0))`. A piece is bisected while |e|
    exceeds what it is allowed: ``rtol`` times the segment's ``scale``, less by sqrt(2) at each bisection because the
    errors of the pieces add like random signs. At most ``max_depth`` bisections deep. ``"corrected"`` (ours) is the
    trapezoid rule with the error e of each segment taken from its entries in proportion to their size,
    ``a - e |a| / sum |a|``: the map then sums to the change of the score. Every entry changes by the same share,
    ``|e| / sum |a|``, and none changes its sign while that is under one. It costs no pass. ``"left"`` takes the
    gradient at the baseline's end of a segment, ``"right"`` at the input's.
    """

    rule: Rule | EndRule = "trapezoid"
    rtol: float = 1e-2
    max_depth: int = 8

    def integrate(
        self, problem: Problem, images: Tensor, segment: Segment, scale: Callable[[Segment], Tensor]
    ) -> Tensor:
        """Contribution (L, *S), or (L, K, *S) of K classes, of a segment to ``images`` (L,).

        ``scale`` (L,) or (L, K) of a segment is the error allowed at ``rtol = 1``, for the adaptive rule."""
        if self.rule in ("left", "right"):
            end = segment.start if self.rule == "left" else segment.stop
            return end.gradient * along_classes(segment.stop.x - segment.start.x, end.gradient)
        total = trapezoid(segment.start, segment.stop)
        if self.rule == "trapezoid":
            return total
        if self.rule == "corrected":
            return corrected(total, segment_error(segment.start, segment.stop))
        allowed = self.rtol * scale(segment)
        rows = _too_large(segment_error(segment.start, segment.stop), allowed)
        pieces = [(_take(segment.start, rows), _take(segment.stop, rows), rows)]
        for _ in range(self.max_depth):
            a, b, rows = _join(pieces)
            if rows.numel() == 0:
                break
            allowed = allowed / math.sqrt(2.0)
            middle = _midpoint(problem, images[rows], a, b)
            change = trapezoid(a, middle) + trapezoid(middle, b) - trapezoid(a, b)
            total = total.index_add(0, rows, change)
            pieces = []
            for left, right in ((a, middle), (middle, b)):
                keep = _too_large(segment_error(left, right), allowed[rows])
                pieces.append((_take(left, keep), _take(right, keep), rows[keep]))
        return total


def trapezoid(start: Point, stop: Point) -> Tensor:
    """``(g_0 + g_1) / 2 * (z_1 - z_0)``: (L, *S)."""
    return 0.5 * (start.gradient + stop.gradient) * along_classes(stop.x - start.x, start.gradient)


def batch_view(x: Tensor, like: Tensor) -> Tensor:
    """``x`` (L,) shaped to multiply ``like`` (L, ...)."""
    return x.view(-1, *[1] * (like.dim() - 1))


def along_classes(x: Tensor, gradient: Tensor) -> Tensor:
    """``x`` (L, *S) shaped to multiply gradients (L, *S) or, of several classes, (L, K, *S)."""
    return x if x.dim() == gradient.dim() else x[:, None]


def corrected(values: Tensor, error: Tensor) -> Tensor:
    """``values`` (L, *S) or (L, K, *S) without their ``error`` (L,) or (L, K), shared in proportion to their size."""
    size = values.abs()
    total = size.double().flatten(error.dim()).sum(-1)
    share = torch.where(total > 0, error / torch.where(total > 0, total, 1.0), 0.0)
    return values - share.to(values.dtype).view(*error.shape, *[1] * (values.dim() - error.dim())) * size


def completeness_gap(values: Tensor, difference: Tensor) -> Tensor:
    """Sum of ``values`` (B, *S) or (B, K, *S) minus the score ``difference`` (B,) or (B, K), in float64."""
    return values.double().flatten(difference.dim()).sum(-1) - difference.double()


def segment_error(start: Point, stop: Point) -> Tensor:
    """What the trapezoid rule misses on a segment, known since the score is known at both ends: (L,) or (L, K)."""
    return completeness_gap(trapezoid(start, stop), stop.score.double() - start.score.double())


def _too_large(error: Tensor, allowed: Tensor) -> Tensor:
    """Rows of which any class is."""
    return (error.abs() > allowed).view(len(error), -1).any(1).nonzero()[:, 0]


def _midpoint(problem: Problem, images: Tensor, a: Point, b: Point) -> Point:
    x = 0.5 * (a.x + b.x)
    logits, gradient = problem.logits_gradient(x, images)
    return Point(x, problem.score(logits, images), gradient)


def _take(point: Point, rows: Tensor) -> Point:
    return Point(point.x[rows], point.score[rows], point.gradient[rows])


def _join(pieces: list[tuple[Point, Point, Tensor]]) -> tuple[Point, Point, Tensor]:
    starts, stops, rows = zip(*pieces, strict=True)
    return _cat(starts), _cat(stops), torch.cat(rows)


def _cat(points: tuple[Point, ...]) -> Point:
    return Point(
        torch.cat([p.x for p in points]),
        torch.cat([p.score for p in points]),
        torch.cat([p.gradient for p in points]),
    )
