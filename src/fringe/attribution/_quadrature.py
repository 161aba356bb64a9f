r"""Rules for the path integral of gradients.

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

from fringe.linalg import batch_view
from fringe.paths import Point, Problem, Segment

NodeRule = Literal["midpoint", "gausslegendre", "trapezoid", "left", "right", "closed_mean"]
Rule = Literal["trapezoid", "adaptive", "corrected"]
EndRule = Literal["left", "right"]


def quadrature_nodes(rule: NodeRule, count: int) -> tuple[Tensor, Tensor]:
    """Return the nodes and weights of a quadrature rule on [0, 1].

    Args:
        rule: ``left`` takes the baseline's end of each interval and ``right`` the input's; ``trapezoid`` halves the
            ends of a closed grid of ``count - 1`` intervals (Captum's divides by ``count`` and loses that share of
            every map); ``closed_mean`` weighs the closed grid equally, as PAIR-code/saliency does.
        count: Number of nodes.

    Returns:
        Nodes (count,), descending from the input (1) to the baseline (0), and weights (count,) that sum to one, in
        float64.
    """
    if rule == "gausslegendre":
        x, w = np.polynomial.legendre.leggauss(count)
        nodes, weights = torch.from_numpy((x + 1) / 2), torch.from_numpy(w / 2)
    else:
        shift = {"midpoint": 0.5, "left": 0.0, "right": 1.0}.get(rule)
        closed = torch.linspace(0, 1, count, dtype=torch.float64)
        nodes = closed if shift is None else (torch.arange(count, dtype=torch.float64) + shift) / count
        weights = torch.full_like(nodes, 1.0 / (count - 1 if rule == "trapezoid" else count))
        if rule == "trapezoid":
            weights[[0, -1]] *= 0.5
    return nodes.flip(0), weights.flip(0)


@dataclass(frozen=True)
class RunningGap:
    """What the sums along L paths miss before a segment is added, and what to compare it with, (L,) or (L, K) each.

    Attributes:
        gap: Errors of the segments before, added up.
        change: How much the score has changed, this segment included, and at least a share of what is expected.
        scale: How much it changes along this segment, or along a mean one, whichever is more.
    """

    gap: Tensor
    change: Tensor
    scale: Tensor


@dataclass(frozen=True)
class Quadrature:
    r"""A rule that integrates gradients along the segments of a sequential path.

    ``"adaptive"`` (ours) bisects where the sum is about to miss the change of the score. The error of a piece is known
    exactly, since the score is known at both ends: :math:`e = \langle \tfrac12 (g_0 + g_1), z_1 - z_0 \rangle -
    (F(z_1) - F(z_0))`. While the errors so far, taken together, exceed ``rtol`` times the change of the score so far,
    the pieces of the latest segment are bisected whose own |e| exceeds ``rtol`` times the segment's scale, less by
    sqrt(2) at each bisection because the errors of the pieces add like random signs. Of several classes the first
    decides. ``"corrected"`` (ours) is the trapezoid rule with the error e of each segment taken from its
    entries in proportion to their size, ``a - e |a| / sum |a|``: the map then sums to the change of the score. Every
    entry changes by the same share, ``|e| / sum |a|``, and none changes its sign while that is under one. It costs no
    pass.

    Attributes:
        rule: ``"trapezoid"``, the paper's; ``"adaptive"``; ``"corrected"``; ``"left"`` takes the gradient at the
            baseline's end of a segment, ``"right"`` at the input's.
        rtol: Tolerance of the adaptive rule.
        max_depth: Most bisections of a segment, one within the other.
    """

    rule: Rule | EndRule = "trapezoid"
    rtol: float = 1e-2
    max_depth: int = 8

    def integrate(
        self, problem: Problem, images: Tensor, segment: Segment, running: Callable[[Segment], RunningGap]
    ) -> tuple[Tensor, Tensor | None]:
        """Integrate gradients along a segment of each of L paths.

        Args:
            problem: The images and the model.
            images: The images (L,) that the segments belong to.
            segment: The segments.
            running: What the sums miss before the segments, for the adaptive rule.

        Returns:
            Contributions (L, *S), of K classes (L, K, *S), and the errors (L,) or (L, K) of the rule, where it
            computes them.
        """
        a, b = segment.start, segment.stop
        if self.rule in ("left", "right"):
            return (a if self.rule == "left" else b).gradient * along_classes(b.x - a.x, a.gradient), None
        total = trapezoid(a, b)
        if self.rule == "trapezoid":
            return total, None
        error = completeness_gap(total, b.score.double() - a.score.double())
        if self.rule == "corrected":
            return corrected(total, error), error
        return self._bisected(problem, images, a, b, total, error, running(segment))

    def _bisected(
        self, problem: Problem, images: Tensor, a: Point, b: Point, total: Tensor, error: Tensor, so_far: RunningGap
    ) -> tuple[Tensor, Tensor]:
        before, limit, allowed = (_first(t) for t in (so_far.gap, so_far.change * self.rtol, so_far.scale * self.rtol))
        rows, latest, missed = torch.arange(len(total), device=total.device), error, error
        for _ in range(self.max_depth):
            off = (before + _first(missed)).abs() > limit
            some = ((_first(latest).abs() > allowed[rows]) & off[rows]).nonzero()[:, 0]  # the host waits for its length
            if some.numel() == 0:
                break
            a, b, rows, error = _select(a, some), _select(b, some), rows[some], latest[some]
            middle = _midpoint(problem, images[rows], a, b)
            change = trapezoid(a, middle) + trapezoid(middle, b) - trapezoid(a, b)
            total = total.index_add(0, rows, change)
            a, b = _concat(a, middle), _concat(middle, b)
            latest = segment_error(a, b)
            missed = missed.index_add(0, rows, latest.unflatten(0, (2, -1)).sum(0) - error)
            rows, allowed = torch.cat((rows, rows)), allowed / math.sqrt(2.0)
        return total, missed


def trapezoid(start: Point, stop: Point) -> Tensor:
    """``(g_0 + g_1) / 2 * (z_1 - z_0)``: (L, *S)."""
    return 0.5 * (start.gradient + stop.gradient) * along_classes(stop.x - start.x, start.gradient)


def _first(values: Tensor) -> Tensor:
    """The first of K classes: (L,) of (L,) or (L, K)."""
    return values if values.dim() == 1 else values[:, 0]


def along_classes(x: Tensor, gradient: Tensor) -> Tensor:
    """``x`` (L, *S) shaped to multiply gradients (L, *S) or, of several classes, (L, K, *S)."""
    return x if x.dim() == gradient.dim() else x[:, None]


def corrected(values: Tensor, error: Tensor) -> Tensor:
    """``values`` (L, *S) or (L, K, *S) without their ``error`` (L,) or (L, K), shared in proportion to their size."""
    size = values.abs()
    total = size.double().flatten(error.dim()).sum(-1)
    share = torch.where(total > 0, error / torch.where(total > 0, total, 1.0), 0.0)
    return values - batch_view(share.to(values.dtype), values) * size


def completeness_gap(values: Tensor, difference: Tensor) -> Tensor:
    """Sum of ``values`` (B, *S) or (B, K, *S) minus the score ``difference`` (B,) or (B, K), in float64."""
    return values.flatten(difference.dim()).sum(-1, dtype=torch.float64) - difference.double()


def segment_error(start: Point, stop: Point) -> Tensor:
    """Error (L,) or (L, K) of the trapezoid rule on a segment, known since the score is known at both ends."""
    return completeness_gap(trapezoid(start, stop), stop.score.double() - start.score.double())


def _midpoint(problem: Problem, images: Tensor, a: Point, b: Point) -> Point:
    x = 0.5 * (a.x + b.x)
    logits, gradient = problem.logits_gradient(x, images)
    return Point(x, problem.score(logits, images), gradient)


def _select(point: Point, rows: Tensor) -> Point:
    return Point(point.x[rows], point.score[rows], point.gradient[rows])


def _concat(a: Point, b: Point) -> Point:
    return Point(torch.cat((a.x, b.x)), torch.cat((a.score, b.score)), torch.cat((a.gradient, b.gradient)))
