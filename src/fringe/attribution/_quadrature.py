r"""Rules for the path integral of gradients.

.. math:: A = \int \nabla F^t(\gamma) \odot d\gamma \approx
          \sum_k \tfrac12 (\nabla F^t(z_k) + \nabla F^t(z_{k+1})) \odot (z_{k+1} - z_k)

Segments are oriented baseline -> input, so the sum has the sign of Integrated Gradients (FRInGe accumulates the
reverse path and returns the negative: the same number; eq. trapezoid).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fringe.linalg import add_rows, batch_view
from fringe.paths import Point, Problem, Rows, Segment, State

NodeRule = Literal["midpoint", "gausslegendre", "trapezoid", "left", "right", "closed_mean"]
Rule = Literal["trapezoid", "adaptive", "corrected"]
EndRule = Literal["left", "right"]

#: Share of the change of the score between an input and the uniform prediction that the adaptive rule takes for covered
#: from the first step on. Else a score that hardly moves at first would be summed to within nothing.
LEAST_CHANGE = 0.1


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
class Quadrature:
    r"""A rule that integrates gradients along the segments of a sequential path.

    ``"adaptive"`` (ours) is the trapezoid rule with some segments halved: :class:`Adaptive`. ``"corrected"`` (ours)
    is the trapezoid rule, minus the error e of each segment in proportion to the size of its entries, ``a - e
    |a| / sum |a|``. The map then sums to the change of the score. Every entry changes by the same share, ``|e| / sum
    |a|``, and no sign changes if this share is below one. It costs no pass.

    Attributes:
        rule: ``"trapezoid"``, the paper's; ``"adaptive"``; ``"corrected"``; ``"left"`` takes the gradient at the
            baseline's end of a segment, ``"right"`` at the input's.
        rtol: Tolerance of the adaptive rule.
        max_depth: How often a segment may be halved.
    """

    rule: Rule | EndRule = "trapezoid"
    rtol: float = 1e-2
    max_depth: int = 8

    def integrate(self, segment: Segment, k: int | None = None) -> tuple[Tensor, Tensor | None]:
        """Integrate gradients along a segment of each of L paths, without a pass through the model.

        Args:
            segment: The segments.
            k: Which of K classes; None: there is one.

        Returns:
            Contributions (L, *S), and the errors (L,) of the rule, if it computes them.
        """
        a, b = segment.start, segment.stop
        if k is not None:
            a, b = (Point(point.x, point.score[:, k], point.gradient[:, k]) for point in (a, b))
        if self.rule in ("left", "right"):
            return (a if self.rule == "left" else b).gradient * (b.x - a.x), None
        total = trapezoid(a, b)
        if self.rule == "trapezoid":
            return total, None
        error = segment_error(total, a, b)
        return (corrected(total, error) if self.rule == "corrected" else total), error


@dataclass(frozen=True)
class Halving(Rows):
    """L segments that are to be halved, of one class each.

    Attributes:
        path: Paths (L,).
        k: Classes (L,) among the K of an image; 0 of one class.
        row: Image times K plus k (L,).
        step: Number (L,) of each segment on its path.
        start: End towards the baseline.
        stop: End towards the input.
        bounds: See :attr:`Choice.bounds` (L, 3).
    """

    path: Tensor
    k: Tensor
    row: Tensor
    step: Tensor
    start: Point
    stop: Point
    bounds: Tensor


@dataclass(frozen=True)
class Choice:
    """Which of L segments are to be halved for which of K classes.

    Attributes:
        segment: The segments.
        image: Their images (L,).
        chosen: Which are to be halved (L, K).
        bounds: Errors before them on their paths, and how large the sums of errors and the error of a segment may be:
            (L, K, 3).
    """

    segment: Segment
    image: Tensor
    chosen: Tensor
    bounds: Tensor

    def of(self, pairs: Sequence[tuple[int, int]]) -> Halving:
        """These pairs of a segment and a class, in memory of their own."""
        rows, k = torch.tensor(pairs, device=self.image.device).T
        s, classes = self.segment, self.chosen.shape[1]

        def point(end: Point) -> Point:
            gradient = end.gradient.view(-1, classes, *end.x.shape[1:])
            return Point(end.x[rows], end.score.view(-1, classes)[rows, k], gradient[rows, k])

        row = self.image[rows] * classes + k
        return Halving(s.path[rows], k, row, s.step[rows], point(s.start), point(s.stop), self.bounds[rows, k])


class Adaptive:
    r"""Chooses the segments to halve: where the sum along a path is about to miss the change of the score.

    The error of a piece is known exactly, since the score is known at both ends: :math:`e = \langle \tfrac12 (g_0 +
    g_1), z_1 - z_0 \rangle - (F(z_1) - F(z_0))`. While the errors so far, taken together, exceed ``rtol`` times the
    change of the score so far, the pieces of the latest segment are halved whose own \|e\| exceeds ``rtol`` times
    the segment's scale, less by sqrt(2) each time because the errors of the pieces add like random signs. Each class
    has its own points.

    Segments of many steps, images and classes wait until they fill a batch. Which of them are halved must not depend on
    the others, so the steps after one that waits assume that each halving leaves a quarter of its error.
    """

    def __init__(self, rule: Quadrature, problem: Problem, start: State):
        self.rule, self.total = rule, start.total[:, None]
        uniform = problem.logits.mean(1, keepdim=True).expand_as(problem.logits)
        scores = (problem.score(logits).view(len(uniform), -1)[start.image] for logits in (problem.logits, uniform))
        self.first, centre = scores
        self.least = LEAST_CHANGE * (self.first - centre).double().abs()
        self.missed = torch.zeros_like(self.least)

    def choose(self, s: Segment, image: Tensor, error: Tensor) -> Choice:
        """Tell which segments of ``image`` (L,) with this ``error`` (L, K) are to be halved."""
        rows, rtol = s.path, self.rule.rtol
        near, far, before = s.stop.score.view_as(error), s.start.score.view_as(error), self.missed[rows]
        change = torch.maximum((self.first[rows] - far).double().abs(), self.least[rows])
        scale = torch.maximum((near - far).double().abs(), change / self.total[rows])
        limit, allowed = rtol * change, rtol * scale
        chosen = ((before + error).abs() > limit) & (error.abs() > allowed)
        return Choice(s, image, chosen, torch.stack([before, limit, allowed], 2))

    def add(self, of: Choice, error: Tensor, *, some: bool) -> None:
        """Add the ``error`` (L, K) of segments, of which those chosen, if there are ``some``, will be halved."""
        before, limit, _ = of.bounds.unbind(2)
        for _ in range(self.rule.max_depth if some else 0):
            error = torch.where(of.chosen & ((before + error).abs() > limit), 0.25 * error, error)
        self.missed[of.segment.path] = before + error


def halved(problem: Problem, depth: int, batch: Halving) -> Tensor:
    """Return what the trapezoid rule on L segments changes by when pieces whose error is too large are halved, at most
    ``depth`` times: (L, *S). A change that is not finite is dropped. The ``problem`` has a row for each class."""
    a, b, (before, limit, allowed) = batch.start, batch.stop, batch.bounds.unbind(1)
    rows, values = torch.arange(len(batch), device=limit.device), trapezoid(a, b)
    change, error = torch.zeros_like(values), segment_error(values, a, b)
    missed = before + error
    for level in range(1, depth + 1):
        x, of = 0.5 * (a.x + b.x), batch.row[rows]
        logits, gradient = problem.logits_gradient(x, of)
        middle = Point(x, problem.score(logits, of), gradient)
        a, b = Point.concat([a, middle]), Point.concat([middle, b])
        halves = trapezoid(a, b)
        add_rows(change, rows, halves.unflatten(0, (2, -1)).sum(0) - values)
        if level == depth:
            break
        errors = segment_error(halves, a, b)
        add_rows(missed, rows, errors.unflatten(0, (2, -1)).sum(0) - error)
        rows, allowed = torch.cat((rows, rows)), allowed / math.sqrt(2.0)
        off = missed.abs() > limit
        some = ((errors.abs() > allowed[rows]) & off[rows]).nonzero()[:, 0]
        if some.numel() == 0:
            break
        a, b, rows, values, error = a[some], b[some], rows[some], halves[some], errors[some]
    finite = change.flatten(1).abs().amax(1).isfinite()  # else one point between two steps would spoil a whole map
    return torch.where(batch_view(finite, change), change, 0.0)


def trapezoid(start: Point, stop: Point) -> Tensor:
    """``(g_0 + g_1) / 2 * (z_1 - z_0)``: (L, *S)."""
    return 0.5 * (start.gradient + stop.gradient) * (stop.x - start.x)


def corrected(values: Tensor, error: Tensor) -> Tensor:
    """``values`` (L, *S) without their ``error`` (L,), shared in proportion to their size."""
    size = values.abs()
    total = size.double().flatten(1).sum(-1)
    share = torch.where(total > 0, error / torch.where(total > 0, total, 1.0), 0.0)
    return values - batch_view(share.to(values.dtype), values) * size


def completeness_gap(values: Tensor, difference: Tensor) -> Tensor:
    """Sum of ``values`` (B, *S) or (B, K, *S) minus the score ``difference`` (B,) or (B, K), in float64."""
    return values.flatten(difference.dim()).sum(-1, dtype=torch.float64) - difference.double()


def segment_error(values: Tensor, start: Point, stop: Point) -> Tensor:
    """What ``values`` of segments miss (L,): known, since the score is known at both ends."""
    return completeness_gap(values, stop.score.double() - start.score.double())
