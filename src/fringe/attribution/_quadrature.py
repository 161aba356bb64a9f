r"""Rules for the path integral of gradients.

.. math:: A = \int \nabla F^t(\gamma) \odot d\gamma \approx
          \sum_k \tfrac12 (\nabla F^t(z_k) + \nabla F^t(z_{k+1})) \odot (z_{k+1} - z_k)

Segments are oriented baseline -> input, so the sum has the sign of Integrated Gradients (FRInGe accumulates the
reverse path and returns the negative: the same number; eq. trapezoid).
"""

import math
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

    def integrate(self, segment: Segment) -> tuple[Tensor, Tensor | None]:
        """Integrate gradients along a segment of each of L paths, without a pass through the model.

        Args:
            segment: The segments.

        Returns:
            Contributions (L, *S), of K classes (L, K, *S), and the errors (L,) or (L, K) of the rule, if it
            computes them.
        """
        a, b = segment.start, segment.stop
        if self.rule in ("left", "right"):
            return (a if self.rule == "left" else b).gradient * along_classes(b.x - a.x, a.gradient), None
        total = trapezoid(a, b)
        if self.rule == "trapezoid":
            return total, None
        error = segment_error(total, a, b)
        return (corrected(total, error) if self.rule == "corrected" else total), error


@dataclass(frozen=True)
class Halving(Rows):
    """L segments that are to be halved.

    Attributes:
        path: Paths (L,).
        image: Images (L,).
        step: Number (L,) of each segment on its path.
        start: End towards the baseline.
        stop: End towards the input.
        before: Errors (L,) before them on their paths.
        limit: How large the sum of errors may be (L,).
        allowed: How large the error of a segment may be (L,).
    """

    path: Tensor
    image: Tensor
    step: Tensor
    start: Point
    stop: Point
    before: Tensor
    limit: Tensor
    allowed: Tensor


class Adaptive:
    r"""Chooses the segments to halve: where the sum along a path is about to miss the change of the score.

    The error of a piece is known exactly, since the score is known at both ends: :math:`e = \langle \tfrac12 (g_0 +
    g_1), z_1 - z_0 \rangle - (F(z_1) - F(z_0))`. While the errors so far, taken together, exceed ``rtol`` times the
    change of the score so far, the pieces of the latest segment are halved whose own \|e\| exceeds ``rtol`` times
    the segment's scale, less by sqrt(2) each time because the errors of the pieces add like random signs. Of several
    classes the first decides.

    Segments of many steps and images wait until they fill a batch. Which of them are halved must not depend on the
    others, so the steps after one that waits assume that each halving leaves a quarter of its error.
    """

    def __init__(self, rule: Quadrature, problem: Problem, start: State):
        self.rule, self.total = rule, start.total
        uniform = problem.logits.mean(1, keepdim=True).expand_as(problem.logits)
        self.first = _first(problem.score(problem.logits))
        self.least = (LEAST_CHANGE * (self.first - _first(problem.score(uniform))).double().abs())[start.image]
        self.first = self.first[start.image]
        self.missed = torch.zeros_like(self.least)

    def choose(self, s: Segment, image: Tensor, error: Tensor) -> tuple[Tensor, Halving]:
        """Tell which segments (L,) of ``image`` (L,) with this ``error``, (L,) or (L, K), are to be halved; and all."""
        rows, rtol, error = s.path, self.rule.rtol, _first(error)
        near, far, before = _first(s.stop.score), _first(s.start.score), self.missed[rows]
        change = torch.maximum((self.first[rows] - far).double().abs(), self.least[rows])
        scale = torch.maximum((near - far).double().abs(), change / self.total[rows])
        limit, allowed = rtol * change, rtol * scale
        chosen = ((before + error).abs() > limit) & (error.abs() > allowed)
        return chosen, Halving(rows, image, s.step, s.start, s.stop, before, limit, allowed)

    def add(self, s: Halving, error: Tensor, chosen: Tensor | None) -> None:
        """Add the ``error`` of segments, of which those ``chosen`` (L,) will be halved; None: none."""
        error = _first(error)
        if chosen is not None:
            for _ in range(self.rule.max_depth):
                error = torch.where(chosen & ((s.before + error).abs() > s.limit), 0.25 * error, error)
        self.missed[s.path] = s.before + error


def halved(problem: Problem, depth: int, batch: Halving) -> Tensor:
    """Return what the trapezoid rule on L segments changes by when pieces whose error is too large are halved, at most
    ``depth`` times: (L, *S). A change that is not finite is dropped."""
    a, b, before, limit, allowed = batch.start, batch.stop, batch.before, batch.limit, batch.allowed
    rows, values = torch.arange(len(batch), device=before.device), trapezoid(a, b)
    change, error = torch.zeros_like(values), segment_error(values, a, b)
    missed = error
    for level in range(1, depth + 1):
        x, image = 0.5 * (a.x + b.x), batch.image[rows]
        logits, gradient = problem.logits_gradient(x, image)
        middle = Point(x, problem.score(logits, image), gradient)
        a, b = Point.concat([a, middle]), Point.concat([middle, b])
        halves = trapezoid(a, b)
        add_rows(change, rows, halves.unflatten(0, (2, -1)).sum(0) - values)
        if level == depth:
            break
        errors = segment_error(halves, a, b)
        missed = add_rows(missed.clone(), rows, errors.unflatten(0, (2, -1)).sum(0) - error)
        rows, allowed = torch.cat((rows, rows)), allowed / math.sqrt(2.0)
        off = (before + _first(missed)).abs() > limit
        some = ((_first(errors).abs() > allowed[rows]) & off[rows]).nonzero()[:, 0]
        if some.numel() == 0:
            break
        a, b, rows, values, error = a[some], b[some], rows[some], halves[some], errors[some]
    finite = change.flatten(1).abs().amax(1).isfinite()  # else one point between two steps would spoil a whole map
    return torch.where(batch_view(finite, change), change, 0.0)


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


def segment_error(values: Tensor, start: Point, stop: Point) -> Tensor:
    """What ``values`` of segments miss, (L,) or (L, K): known, since the score is known at both ends."""
    return completeness_gap(values, stop.score.double() - start.score.double())
