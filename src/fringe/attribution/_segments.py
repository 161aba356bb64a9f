"""Terms of path integrals along paths whose steps depend on earlier steps: the driver of all such paths."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from fringe.attribution._integrate import IntegralTerms, Sums
from fringe.attribution._quadrature import Adaptive, Choice, Quadrature, halved
from fringe.geometry import dist, sqrt_chart
from fringe.linalg import add_rows, batch_view
from fringe.paths import Path, PathStatus, Problem, Segment, State

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
    """Runs the paths of all images: a loop, four kinds of work.

    Paths that begin, go on, or end at their next point wait in queues, as do segments that are to be halved: of these
    at most a batch is in memory of its own, and the rest of a step's choice follows at once. A batch that does not fit
    in memory is tried again with half the rows: steps are pure, so nothing is lost. The host reads one small tensor a
    step: which paths go on, and which segments to halve.
    """

    def __init__(self, terms: SegmentTerms, sums: Sums):
        problem, rule, start = terms.problem, terms.quadrature, terms.start
        self.terms, self.sums, self.problem, self.path, self.rule = terms, sums, problem, terms.path, rule
        self.classes: Sequence[int | None] = (None,) if problem.target.dim() == 1 else range(problem.target.shape[1])
        self.adaptive = Adaptive(rule, problem, start) if rule.rule == "adaptive" else None
        if rule.rule == "corrected":
            sums.error = torch.zeros_like(sums.score, dtype=torch.float64)
        sums.outcomes = [PathStatus.COMPLETE if steps else PathStatus.AT_REFERENCE for steps in terms.planned]
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
        if self.choice is not None and (room := most - self._count("halve")) > 0:
            choice, pairs = self.choice
            self._wait("halve", choice.of(pairs[:room]))
            self.choice = (choice, pairs[room:]) if len(pairs) > room else None
        moving = self._count("begin") + self._count("step") > 0
        if self._count("halve") >= most or not (moving or self._count("close")):
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

    def _step(self, state: State, closing: bool) -> tuple[Any, ...]:
        """Take a step of L paths, and change nothing. The segments that end where it began, their errors (L, K), which
        of them are to be halved, the paths after it, and what was read: which paths are finite, go on, go on to their
        last point (L), and which segments are to be halved, for each class (L)."""
        here, more = self.path.look(self.problem, state, closing)
        segment, errors, choice = self.path.segment(state, here), None, None
        flags = torch.stack([here.finite, here.goes_on, here.last_next])
        if segment is not None and self.rule.rule in ("adaptive", "corrected"):
            columns = [self.rule.integrate(segment, k)[1] for k in self.classes]
            errors = torch.stack([column for column in columns if column is not None], 1)
            if self.adaptive is not None:
                choice = self.adaptive.choose(segment, state.image, errors)
                flags = torch.cat([flags, choice.chosen.T])
        read: list[list[bool]] = flags.tolist()  # the one wait of a step
        after = self.path.move(self.problem, state, here, more) if any(read[1]) else None
        return segment, errors, choice, after, read

    def _book(
        self,
        state: State,
        s: Segment | None,
        errors: Tensor | None,
        choice: Choice | None,
        after: State | None,
        read: list[list[bool]],
    ) -> None:
        """Add what a step found, and let its paths wait for the next one."""
        (finite, goes_on, last_next, *chosen), sums = read, self.sums
        if after is not None:
            for kind, last in (("step", False), ("close", True)):
                self._wait(kind, _some(after, [go and end is last for go, end in zip(goes_on, last_next, strict=True)]))
        if not all(finite):
            for number, is_finite in zip(state.path.tolist(), finite, strict=True):
                sums.outcomes[number] = sums.outcomes[number] if is_finite else PathStatus.DIVERGED
        if s is None:
            return
        counts = None if all(finite) else s.counts
        if errors is not None and counts is not None:
            errors = torch.where(counts[:, None], errors, 0.0)
        if self.adaptive is not None and choice is not None and errors is not None:
            pairs = [(i, k) for i in range(len(state)) for k, column in enumerate(chosen) if column[i]]
            self.adaptive.add(choice, errors, some=bool(pairs))
            self.choice = (choice, pairs) if pairs else None
        elif sums.error is not None and errors is not None:
            add_rows(sums.error, s.path, errors.view_as(s.stop.score))
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
