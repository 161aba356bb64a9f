r"""Rules for the path integral of gradients, and the loop that runs paths step by step.

.. math:: A = \int \nabla F^t(\gamma) \odot d\gamma \approx
          \sum_k \tfrac12 (\nabla F^t(z_k) + \nabla F^t(z_{k+1})) \odot (z_{k+1} - z_k)

Segments are oriented baseline -> input, so the sum has the sign of Integrated Gradients (FRInGe accumulates the
reverse path and returns the negative: the same number; eq. trapezoid).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fringe.attribution._integrate import IntegralTerms, Sums, completeness_gap
from fringe.geometry import dist, sqrt_chart
from fringe.linalg import add_rows, batch_view
from fringe.paths import Path, Point, Problem, Rows, Segment, State

NodeRule = Literal["midpoint", "gausslegendre", "trapezoid", "left", "right", "closed_mean"]
Rule = Literal["trapezoid", "adaptive"]
EndRule = Literal["left", "right"]

#: Share of the change of the score between an input and the uniform prediction that the adaptive rule takes for covered
#: from the first step on. Else a score that hardly moves at first would be summed to within nothing.
LEAST_CHANGE = 0.1
#: Least and largest share of the gradient at the middle of a halved piece in its sum: 1/2 is the trapezoid rule on both
#: halves, 2/3 Simpson's rule.
MIDDLE = 0.5, 0.75
#: Halves whose error is more than this times what a piece may have count as halves: a sum that is right by weights
#: alone says little of its terms.
ROUGH = 8.0


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
    """A rule that integrates gradients along the segments of a sequential path.

    ``"adaptive"`` (ours) is the trapezoid rule with some segments halved: :class:`Adaptive`.

    Attributes:
        rule: ``"trapezoid"``, the paper's; ``"adaptive"``; ``"left"`` takes the gradient at the
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
        return total, error


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
        bounds: (L, K, 3): the sum of the errors before each segment on its path, the limit of that sum, and that of the
            error of a segment.
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


@dataclass(frozen=True)
class _StepResult:
    """What a step of L paths result.

    Attributes:
        flags: What the host reads (L, 3) or (L, 3 + K): which paths are finite, which go on, which of these to their
            last point, and ``chosen``.
        segment: The segments that end where it began; None before the first step.
        errors: Their errors (L, K), if the rule needs them.
        chosen, bounds: As of :class:`Choice`, if the rule is adaptive.
    """

    flags: Tensor
    segment: Segment | None
    errors: Tensor | None = None
    chosen: Tensor | None = None
    bounds: Tensor | None = None


@dataclass(frozen=True)
class Covered(Rows):
    """What the adaptive rule knows of L paths.

    Attributes:
        first: Scores (L, K) at the inputs.
        least: What of the score (L, K) counts as covered from the first step on.
        total: Planned steps (L, 1).
        missed: Sum of the errors (L, K) so far.
    """

    first: Tensor
    least: Tensor
    total: Tensor
    missed: Tensor


class Adaptive:
    r"""Chooses the segments to halve: where the sum along a path is about to miss the change of the score.

    The error of a piece is known exactly, since the score is known at both ends: :math:`e = \langle \tfrac12 (g_0 +
    g_1), z_1 - z_0 \rangle - (F(z_1) - F(z_0))`. While the errors so far, taken together, exceed ``rtol`` times the
    change of the score so far, the pieces of the latest segment are halved whose own \|e\| exceeds ``rtol`` times
    the segment's scale, less by sqrt(2) each time because the errors of the pieces add like random signs. The
    gradient at a middle counts as the known error says, so that one is enough for most (:func:`halved`). Each class has
    its own points.

    Segments of many steps, images and classes wait until they fill a batch. Which of them are halved must not depend on
    the others, so the steps after one that waits assume that each halving leaves a quarter of its error.
    """

    def __init__(self, rule: Quadrature, problem: Problem, start: State):
        self.rule = rule
        uniform = problem.logits.mean(1, keepdim=True).expand_as(problem.logits)
        scores = (problem.score(logits).view(len(uniform), -1)[start.image] for logits in (problem.logits, uniform))
        first, centre = scores
        least = LEAST_CHANGE * (first - centre).double().abs()
        self.covered = Covered(first, least, start.total[:, None], torch.zeros_like(least))

    def choose(self, s: Segment, covered: Covered, error: Tensor) -> tuple[Tensor, Tensor]:
        """Tell which segments with this ``error`` (L, K) are to be halved, and return :attr:`Choice.bounds` of them."""
        near, far, rtol = s.stop.score.view_as(error), s.start.score.view_as(error), self.rule.rtol
        change = torch.maximum((covered.first - far).double().abs(), covered.least)
        scale = torch.maximum((near - far).double().abs(), change / covered.total)
        limit, allowed = rtol * change, rtol * scale
        chosen = ((covered.missed + error).abs() > limit) & (error.abs() > allowed)
        return chosen, torch.stack([covered.missed, limit, allowed], 2)

    def add(self, of: Choice, error: Tensor, *, some: bool) -> None:
        """Add the ``error`` (L, K) of segments, of which those chosen, if there are ``some``, will be halved."""
        before, limit, _ = of.bounds.unbind(2)
        for _ in range(self.rule.max_depth if some else 0):
            error = torch.where(of.chosen & ((before + error).abs() > limit), 0.25 * error, error)
        self.covered.missed[of.segment.path] = before + error


def halved(problem: Problem, depth: int, batch: Halving) -> Tensor:
    """Return what the trapezoid rule on L segments changes by when pieces whose error is too large are halved, at most
    ``depth`` times: (L, *S). A change that is not finite is dropped. The ``problem`` has a row for each class.

    Of a halved piece, the gradient at its middle counts for the share in ``MIDDLE`` that removes its known error, or
    most of it, unless its halves are far off. Where the sum is off even so, the pieces that are count as two halves,
    which may be halved again.
    """
    a, b, (before, limit, allowed) = batch.start, batch.stop, batch.bounds.unbind(1)
    rows, values = torch.arange(len(batch), device=limit.device), trapezoid(a, b)
    change, error = torch.zeros_like(values), segment_error(values, a, b)
    missed = before + error
    for level in range(1, depth + 1):
        x, of = 0.5 * (a.x + b.x), batch.row[rows]
        logits, gradient = problem.logits_gradient(x, of)
        middle = Point(x, problem.score(logits, of), gradient)
        turn = gradient * (b.x - a.x) - values
        slope = turn.flatten(1).sum(1, dtype=torch.float64)
        rough = (error + MIDDLE[0] * slope).abs() > ROUGH * allowed[rows]
        share = torch.where(rough | (slope == 0), MIDDLE[0], (-error / slope).clamp(*MIDDLE))
        off = add_rows(missed.clone(), rows, share * slope).abs() > limit
        again = off[rows] & ((error + share * slope).abs() > allowed[rows]) & (level < depth)
        share = torch.where(again, MIDDLE[0], share)
        add_rows(missed, rows, share * slope)
        add_rows(change, rows, batch_view(share.to(turn.dtype), turn) * turn)
        a, b = Point.concat([a[again], middle[again]]), Point.concat([middle[again], b[again]])
        del middle, gradient, turn  # or they would be there in the next pass
        rows, values, allowed = rows[again].repeat(2), trapezoid(a, b), allowed / math.sqrt(2.0)
        error, off = segment_error(values, a, b), missed.abs() > limit
        some = ((error.abs() > allowed[rows]) & off[rows]).nonzero()[:, 0]
        if some.numel() == 0:
            break
        a, b, rows, values, error = a[some], b[some], rows[some], values[some], error[some]
    finite = change.flatten(1).abs().amax(1).isfinite()  # else one point between two steps would spoil a whole map
    return torch.where(batch_view(finite, change), change, 0.0)


def trapezoid(start: Point, stop: Point) -> Tensor:
    """``(g_0 + g_1) / 2 * (z_1 - z_0)``: (L, *S)."""
    return 0.5 * (start.gradient + stop.gradient) * (stop.x - start.x)


def segment_error(values: Tensor, start: Point, stop: Point) -> Tensor:
    """What ``values`` of segments miss (L,): known, since the score is known at both ends."""
    return completeness_gap(values, stop.score.double() - start.score.double())


Reduce = Literal["sum", "mean"]


class SegmentTerms(IntegralTerms):
    """The segments of paths, each integrated by a rule.

    Args:
        path: The paths.
        quadrature: The rule.
        problem: The images and the model.
        reduce: For several paths per image: whether their integrals are summed or averaged; None: there is one.

    Attributes:
        start: All paths before their first step.
    """

    def __init__(self, path: Path, quadrature: Quadrature, problem: Problem, reduce: Reduce | None = None):
        self.path, self.quadrature, self.problem = path, quadrature, problem
        self.start = start = path.init(problem)
        self.planned, self.geodesic = [int(total) for total in start.total.tolist()], start.geodesic
        self.begins, self.measures = path.begins, path.measures
        if reduce is not None:
            self.images = start.image
        if reduce == "mean":
            self.weight = start.image.bincount(minlength=len(problem.inputs))[start.image].double().reciprocal()

    def add_to(self, sums: Sums) -> None:
        _Driver(self, sums).run()


class _Driver:
    """Runs the paths of all images: the loop of Algorithm 1, line 5.

    There are four queues: ``begin``, ``step`` and ``close`` hold paths before their first, a further and their last
    point, ``halve`` holds segments. :meth:`_next` chooses one, and at most a batch of it is computed. ``choice`` holds
    the segments that find no room in ``halve`` yet. A batch that does not fit
    in memory is tried again with half the rows: steps are pure, so nothing is lost. The host reads one small tensor a
    step: which paths go on, and which segments to halve.
    """

    def __init__(self, terms: SegmentTerms, sums: Sums):
        problem, rule, start = terms.problem, terms.quadrature, terms.start
        self.terms, self.sums, self.problem, self.path, self.rule = terms, sums, problem, terms.path, rule
        self.classes: Sequence[int | None] = (None,) if problem.target.dim() == 1 else range(problem.target.shape[1])
        self.adaptive = Adaptive(rule, problem, start) if rule.rule == "adaptive" else None
        ready = _some(start, [steps > 0 for steps in terms.planned])
        self.queues: dict[str, Any] = {"begin": ready, "step": None, "close": None, "halve": None}
        self.choice: tuple[Choice, list[tuple[int, int]]] | None = None
        self.shares = [0.0] * len(terms.planned)

    def run(self) -> None:
        problem, size, device = self._each(), self.problem.model.batch_size, self.sums.values.device
        while self.choice is not None or any(map(self._count, self.queues)):
            try:
                kind, batch = self._next(size.on(device))
                if kind == "halve":
                    result = halved(problem, self.rule.max_depth, batch)
                else:
                    result = self._step(batch, kind == "close")
            except (RuntimeError, MemoryError) as error:
                size.halve(device, error)
                continue
            self.queues[kind] = _some(self.queues[kind], [i >= len(batch) for i in range(self._count(kind))])
            if isinstance(result, Tensor):
                self.sums.add(batch.path, batch.step, result, None if problem is self.problem else batch.k)
            else:
                self._book(batch, *result)
            del batch, result  # or the next batch would be computed beside this one

    def _each(self) -> Problem:
        """The problem with a row for each class of an image, for the points of one class."""
        problem = self.problem
        if (target := problem.target).dim() == 1:
            return problem
        arguments = problem.forward_args.select(problem.every_row.repeat_interleave(target.shape[1]))
        contrast = None if problem.contrast is None else problem.contrast.flatten()
        return replace(problem, target=target.flatten(), contrast=contrast, forward_args=arguments)

    def _count(self, kind: str) -> int:
        return 0 if self.queues[kind] is None else len(self.queues[kind])

    def _next(self, most: int) -> tuple[str, Any]:
        """The kind of the next batch, and the batch of at most ``most`` rows: what waits for a full batch goes when
        there is one, or when nothing else is left."""
        # halves of halves are several times as large: of many classes, more than all maps
        few = most if len(self.classes) <= most else max(1, most // 4)
        if self.choice is not None and (room := few - self._count("halve")) > 0:
            choice, pairs = self.choice
            self._wait("halve", choice.of(pairs[:room]))
            self.choice = (choice, pairs[room:]) if len(pairs) > room else None
        moving = self._count("begin") + self._count("step") > 0
        if self._count("halve") >= few or not (moving or self._count("close")):
            kind = "halve"
        elif self._count("close") >= most or not moving:
            kind = "close"
        else:
            kind = "begin" if self._count("begin") and self._count("step") < most else "step"
        return kind, self.queues[kind] if self._count(kind) <= most else self.queues[kind][:most]

    def _wait(self, kind: str, rows: Any) -> None:
        before = self.queues[kind]
        if rows is not None:
            self.queues[kind] = rows if before is None else type(rows).concat([before, rows])

    def _step(self, state: State, closing: bool) -> tuple[_StepResult, State | None, list[list[bool]]]:
        """Take a step of L paths, and change nothing: its result, the paths after it, and each flag as a list (L,)."""
        known, path, begin = self.adaptive and self.adaptive.covered[state.path], self.path, state
        if path.recorded_as is None:
            parts = self._parts(self.problem, state.image, state, known, closing=closing)
        else:
            if state.x is None:
                begin = replace(state, x=self.problem.inputs[state.image])
            name = (closing, path.recorded_as, self.rule)
            parts = self.problem.call(partial(self._parts, closing=closing), name, state.image, begin, known)
        result: _StepResult = next(parts)
        read: list[list[bool]] = result.flags.T.tolist()  # the one wait of a step
        after = replace(next(parts), image=state.image) if any(read[1]) else None
        return result, after, read

    def _parts(
        self, problem: Problem, image: Tensor, state: State, known: Covered | None, *, closing: bool
    ) -> Iterator[Any]:
        """The two parts of a step of L paths, of which the host decides on the second by the first."""
        state = replace(state, image=image)
        here, more = self.path.look(problem, state, closing)
        segment = self.path.segment(state, here)
        flags = torch.stack([here.finite, here.goes_on, here.last_next], 1)
        errors = chosen = bounds = None
        if segment is not None and self.rule.rule == "adaptive":
            columns = [self.rule.integrate(segment, k)[1] for k in self.classes]
            errors = torch.stack([column for column in columns if column is not None], 1)
            if self.adaptive is not None and known is not None:
                chosen, bounds = self.adaptive.choose(segment, known, errors)
                flags = torch.cat([flags, chosen], 1)
        yield _StepResult(flags, segment, errors, chosen, bounds)
        if not closing:
            yield self.path.move(problem, state, here, more)

    def _book(self, state: State, result: _StepResult, after: State | None, read: list[list[bool]]) -> None:
        """Add what a step found, and let its paths wait for the next one."""
        (finite, goes_on, last_next, *chosen), sums, s, errors = read, self.sums, result.segment, result.errors
        if after is not None:
            for kind, last in (("step", False), ("close", True)):
                self._wait(kind, _some(after, [go and end is last for go, end in zip(goes_on, last_next, strict=True)]))
        if not all(finite):
            for number, is_finite in zip(state.path.tolist(), finite, strict=True):
                sums.finite[number] &= is_finite
        if s is None:
            return
        counts = None if all(finite) else s.counts
        if errors is not None and counts is not None:
            errors = torch.where(counts[:, None], errors, 0.0)
        if self.adaptive is not None and result.chosen is not None and result.bounds is not None and errors is not None:
            choice = Choice(s, state.image, result.chosen, result.bounds)
            pairs = [(i, k) for i in range(len(state)) for k, column in enumerate(chosen) if column[i]]
            self.adaptive.add(choice, errors, some=bool(pairs))
            self.choice = (choice, pairs) if pairs else None
        self._add_ends(s)
        sums.see(s.path, s.step, s.start.x, s.stats, {"score": s.start.score}, counts)
        for k in self.classes:  # one after the other: K maps in double precision are large
            value, _ = self.rule.integrate(s, k)
            sums.add(s.path, s.step, value if counts is None else torch.where(batch_view(counts, value), value, 0.0), k)
        if sums.counter.progress is not None:
            self._report(s, goes_on)

    def _add_ends(self, s: Segment) -> None:
        """Scores at the ends are taken from the path's own points, so that the sum telescopes exactly."""
        sums, total = self.sums, self.terms.start.total
        score, endpoint, first = sums.score[s.path], sums.endpoint_score[s.path], s.counts & (s.step == 1)
        at_input, at_end = first, s.counts
        if self.path.begins == "baseline":
            at_input, at_end = s.counts & (s.step == total[s.path]), first
        sums.score[s.path] = torch.where(batch_view(at_input, score), s.stop.score, score)
        sums.endpoint_score[s.path] = torch.where(batch_view(at_end, endpoint), s.start.score, endpoint)

    def _report(self, s: Segment, goes_on: list[bool]) -> None:
        """Report planned steps done: k of T. If a path has no end but its arrival: T times the larger of 1 - 2^(-k / T)
        and the covered part of the distance to the reference. The share never falls, and is 1 only on arrival."""
        planned, left = self.terms.planned, torch.zeros_like(s.stats[:, 0])
        if self.path.open_ended:
            geodesic = self.terms.geodesic
            distance = dist(sqrt_chart(geodesic.log_p), sqrt_chart(geodesic.log_q))[s.path]
            left = s.stats[:, self.path.measures.index("reference_distance")] / distance
        table = torch.stack([s.path.to(left), s.step.to(left), left], 1).tolist()
        for (number, k, rest), goes in zip(table, goes_on, strict=True):
            row, share = int(number), k / planned[int(number)]
            share = max(1.0 - 0.5**share, 1.0 - rest) if self.path.open_ended else share
            self.shares[row] = max(min(share, 0.99), self.shares[row]) if goes else 1.0
        self.sums.counter.reach(int(sum(share * steps for share, steps in zip(self.shares, planned, strict=True))))


def _some(rows: Any, chosen: list[bool]) -> Any:
    """These rows in memory of their own: what waits must not keep alive the batch it was computed in; None: none."""
    if all(chosen) or not any(chosen):
        return rows if any(chosen) else None
    return rows[torch.tensor([i for i, one in enumerate(chosen) if one], device=rows.path.device)]
