"""The loop over the steps of FRInGe's paths, with the sums along them and the halves of segments whose sum is off."""

import math
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from fringe.attribution._fisher_rao import FisherRaoPath, Segment, State, piece_error, trapezoid
from fringe.attribution._integrate import PathIntegral, Queues, Sums, integrate, quadrature_nodes, some_rows
from fringe.linalg import add_rows, batch_view
from fringe.paths import AT_POINTS, Point, Problem, Rows, StraightLine, fisher_rao_step

#: Least and largest share of the gradient at the middle of a halved piece in its sum: 1/2 is the trapezoid rule on both
#: halves, 2/3 Simpson's rule.
MIDDLE = 0.5, 0.75
#: Halves whose error is more than this times what a piece may have count as halves: a sum that is right by weights
#: alone says little of its terms.
ROUGH = 8.0
#: Points on the straight line to the end of a path: at first, and where the sum is off.
FEW_POINTS, MORE_POINTS = 6, 12


# -- halves of segments -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Halving(Rows):
    """N segments of one class each that are to be halved.

    Attributes:
        row: Image times K plus the class (N,).
        step: The number (N,) of each on its path.
        start, stop: Its ends.
        bounds: See :class:`Segment` (N, 3).
    """

    row: Tensor
    step: Tensor
    start: Point
    stop: Point
    bounds: Tensor


def halved(problem: Problem, depth: int, batch: Halving) -> Tensor:
    """Return what the trapezoid rule on N segments changes by when pieces whose error is too large are halved, at most
    ``depth`` times: (N, *S). A change that is not finite is dropped. The ``problem`` has a row for each class.

    Of a halved piece, the gradient at its middle counts for the share in ``MIDDLE`` that removes its known error, or
    most of it, unless its halves are far off. Where the sum is off even so, the pieces that are count as two halves,
    which may be halved again; what a piece may miss is less by sqrt(2) then, because errors add like random signs.
    """
    a, b, (before, limit, allowed) = batch.start, batch.stop, batch.bounds.unbind(1)
    rows, values = torch.arange(len(batch), device=limit.device), trapezoid(a, b)
    change, error = torch.zeros_like(values), piece_error(values, a, b)
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
        error = piece_error(values, a, b)
        some = ((error.abs() > allowed[rows]) & (missed.abs() > limit)[rows]).nonzero()[:, 0]
        if some.numel() == 0:
            break
        a, b, rows, values, error = a[some], b[some], rows[some], values[some], error[some]
    finite = change.flatten(1).abs().amax(1).isfinite()  # else one point between two steps would spoil a whole map
    return torch.where(batch_view(finite, change), change, 0.0)


# -- all paths: line 5 ------------------------------------------------------------------------------------------------


class Walk:
    """Runs the paths of all images, and adds up their segments.

    Segments that are to be halved wait for a full batch beside the paths. The host reads one small tensor a step.

    Args:
        path: The path.
        problem: The images and the model. The caller holds ``problem.model.session`` open.
        scale: How freely each entry moves, broadcasts to (B, *S): dear to move where it is small; None: 1. The path is
            then that of the network ``g(y) = F(x_0 + scale (y - x_0))``, seen in x.

    Attributes:
        start: All paths before their first step.
        planned: T of each.
        ends: The last points (B, *S); None: not kept.
    """

    def __init__(self, path: FisherRaoPath, problem: Problem, scale: Tensor | None = None):
        has_jvp = problem.model.jvp_mode != "none" or path.jvp_use == "required"
        self.path, self.problem = path.on(problem.inputs[0], has_jvp=has_jvp), problem
        self.start = self.path.start(problem, scale)
        self.planned = [int(total) for total in self.start.total.tolist()]
        step = ("euclidean_step", "step_size", "active_bound", *(["focused_step"] if self.start.coordinates else []))
        self.measures = (*step, "fisher_rao_step", *AT_POINTS)
        self.sums = Sums(problem, self.planned, self.start.geodesic, self.measures)
        self.classes = problem.target.view(len(self.planned), -1).shape[1]
        self.each = problem.of_each_class()
        self.shares = [0.0] * len(self.planned)
        self.ends = problem.inputs.clone() if path.line else None
        self.queues = Queues(problem, some_rows(self.start, [steps > 0 for steps in self.planned]))

    def run(self) -> PathIntegral:
        """Return the integral of each image: what is left to halve comes last."""
        while (found := self.queues.next()) is not None:
            kind, state = found
            try:
                result = self.look(state, closing=kind == "close")
            except (RuntimeError, MemoryError) as error:
                self.queues.halve(error)
                continue
            self.queues.done(kind, len(state))
            self.add(state, *result)
            del found, state, result  # or the next batch would be computed beside this one
        while self.queues.rows.get("halve") is not None:
            self.halve()
        return self.sums.result()

    def add(self, state: State, read: list[list[bool]], segment: Segment | None, after: State | None) -> None:
        """Add what a step found to the sums, and let its paths wait for the next one."""
        finite, goes_on, last_next, *chosen = read
        for queue, is_last in (("step", False), ("close", True)) if after is not None else ():
            rows = [go and end is is_last for go, end in zip(goes_on, last_next, strict=True)]
            self.queues.wait(queue, some_rows(after, rows))
        if not all(finite):
            for image, is_finite in zip(state.image.tolist(), finite, strict=True):
                self.sums.finite[image] &= is_finite
        if segment is None:
            return
        self.add_segment(state, segment, None if all(finite) else torch.tensor(finite, device=state.step.device))
        pairs = [(i, k) for i in range(len(state)) for k, column in enumerate(chosen) if column[i]]
        # halves of halves are several times as large: of many classes, more than all maps
        most = self.queues.most
        few = most if self.classes <= most else max(1, most // 4)
        while pairs:
            room = max(few - len(self.queues.rows.get("halve") or ()), 1)
            self.queues.wait("halve", self.halving(state, segment, pairs[:room]))
            pairs = pairs[room:]
            if len(self.queues.rows["halve"]) >= few:
                self.halve()
        if self.sums.counter.progress is not None:
            self.report(state, segment, goes_on)

    def look(self, state: State, *, closing: bool) -> tuple[list[list[bool]], Segment | None, State | None]:
        """Compute a step and change nothing: each flag as a list (L,), the segments, and where the paths are then."""
        if state.x is None:
            state = replace(state, x=self.problem.inputs[state.image])
        name = (closing, replace(self.path, reference=None))
        parts = self.problem.call(partial(self.path.parts, closing=closing), name, state.image, state)
        flags, segment = next(parts)
        read: list[list[bool]] = flags.T.tolist()  # the one wait of a step
        after = replace(next(parts), image=state.image) if any(read[1]) else None
        return read, segment, after

    def add_segment(self, state: State, segment: Segment, counts: Tensor | None) -> None:
        """Add segments to the sums; ``counts`` (L,) tells which there are, None: all."""
        sums, start, stop = self.sums, segment.start, segment.stop
        every = torch.ones_like(state.step, dtype=torch.bool) if counts is None else counts
        # scores at the ends are taken from the path's own points, so that the sum telescopes exactly
        for known, now, where in (
            (sums.score, stop.score, every & (state.step == 1)),
            (sums.endpoint_score, start.score, every),
        ):
            before = known[state.image]
            known[state.image] = torch.where(batch_view(where, before), now, before)
        if self.ends is not None:
            known = self.ends[state.image]
            self.ends[state.image] = torch.where(batch_view(every, known), start.x, known)
        sums.see(state.image, state.step, start.x, segment.stats, {"score": start.score}, counts)
        for k, (a, b) in enumerate(zip(start.of_classes(), stop.of_classes(), strict=True)):
            value = trapezoid(a, b)  # one after the other: K maps in double precision are large
            value = value if counts is None else torch.where(batch_view(counts, value), value, 0.0)
            sums.add(state.image, state.step, value, None if self.problem.target.dim() == 1 else k)

    def halving(self, state: State, s: Segment, pairs: list[tuple[int, int]]) -> Halving:
        """Return these pairs of a segment and a class, in memory of their own."""
        rows, k = torch.tensor(pairs, device=state.step.device).T

        def of(end: Point) -> Point:
            gradient = end.gradient.view(-1, self.classes, *end.x.shape[1:])
            return Point(end.x[rows], end.score.view(-1, self.classes)[rows, k], gradient[rows, k])

        row = state.image[rows] * self.classes + k
        return Halving(row, state.step[rows], of(s.start), of(s.stop), s.bounds[rows, k])

    def halve(self) -> None:
        """Halve a batch of segments, and add what their sums change by."""
        batch: Halving = self.queues.batch("halve")
        try:
            change = halved(self.each, self.path.halvings, batch)
        except (RuntimeError, MemoryError) as error:
            self.queues.halve(error)
            return
        self.queues.done("halve", len(batch))
        k = None if self.each is self.problem else batch.row % self.classes
        self.sums.add(batch.row // self.classes, batch.step, change, k)

    def report(self, state: State, s: Segment, goes_on: list[bool]) -> None:
        """Report planned steps done: k of T. If a path has no end but its arrival: T times the larger of 1 - 2^(-k / T)
        and the covered part of the distance to the reference. The share never falls, and is 1 only on arrival."""
        open_ended = self.path.until == "arrival"
        far = s.stats[:, self.measures.index("reference_distance")]
        whole = fisher_rao_step(state.geodesic.log_p, state.geodesic.log_q)
        table = torch.stack([state.image.to(far), state.step.to(far), far / whole], 1).tolist()
        for (image, k, rest), goes in zip(table, goes_on, strict=True):
            row, share = int(image), k / self.planned[int(image)]
            share = max(1.0 - 0.5**share, 1.0 - rest) if open_ended else share
            self.shares[row] = max(min(share, 0.99), self.shares[row]) if goes else 1.0
        self.sums.counter.reach(int(sum(share * steps for share, steps in zip(self.shares, self.planned, strict=True))))


# -- along the straight line ------------------------------------------------------------------------------------------


def integrate_line(problem: Problem, path: PathIntegral, ends: Tensor, rtol: float) -> PathIntegral:
    """Return the integrals along the straight lines to the ``ends`` (B, *S) of paths, with what was measured on these.

    By the rule of Gauss and Legendre, with more points for each class of an image whose sum misses more than ``rtol``
    of the change of the score.
    """

    def of(part: Problem, to: Tensor, count: int) -> PathIntegral:
        return integrate(StraightLine(part.inputs, to, *quadrature_nodes("gausslegendre", count)), part)

    line = of(problem, ends, FEW_POINTS)
    off = (line.residual > rtol).view(len(ends), -1)
    rows = off.any(1).nonzero()[:, 0]
    if len(rows):
        more, values, gap = of(problem.select(rows), ends[rows], MORE_POINTS), line.values.clone(), line.gap.clone()
        is_off = off[rows].view_as(more.gap)
        gap[rows] = torch.where(is_off, more.gap, gap[rows])
        values[rows] = torch.where(is_off.view(*is_off.shape, *[1] * (ends.dim() - 1)), more.values, values[rows])
        paths, finite = list(line.trajectories or ()), list(line.finite)
        for i, row in enumerate(rows.tolist()):
            finite[row] = more.finite[i]
            if more.trajectories is not None:  # whose sums end at the maps that count
                record = more.trajectories[i]
                rest = values[row].to(record.cumulative) - record.cumulative[-1]
                share = torch.linspace(0, 1, len(record.cumulative)).view(-1, *[1] * rest.dim()).to(rest)
                paths[row] = replace(record, cumulative=record.cumulative + share * rest)
        line = replace(line, values=values, gap=gap, finite=finite, trajectories=tuple(paths) if paths else None)
    finite = [a and b for a, b in zip(path.finite, line.finite, strict=True)]
    return replace(line, steps=path.steps, stats=path.stats, finite=finite)
