"""Terms of path integrals along paths whose steps depend on earlier steps: the driver of all such paths."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from fringe.attribution._integrate import IntegralTerms, Sums
from fringe.attribution._quadrature import Adaptive, Choice, Quadrature, halved
from fringe.geometry import dist, log_probabilities, sqrt_chart
from fringe.linalg import add_rows, batch_view
from fringe.paths import Geodesic, Orientation, Path, PathStatus, Problem, Segment, State

Reduce = Literal["sum", "mean"]


@dataclass(frozen=True)
class SegmentTerms(IntegralTerms):
    """The segments of paths, each integrated by a rule.

    Attributes:
        path: The paths.
        quadrature: The rule.
        problem: The images and the model.
        reduce: For several paths per image: whether their integrals are summed or averaged; None: there is one.
    """

    path: Path
    quadrature: Quadrature
    problem: Problem
    reduce: Reduce | None = None

    @cached_property
    def start(self) -> State:
        """All paths before their first step."""
        return self.path.init(self.problem)

    @property
    def planned(self) -> list[int]:
        return [int(total) for total in self.start.total.tolist()]

    @property
    def geodesic(self) -> Geodesic:
        return self.start.geodesic

    @property
    def begins(self) -> Orientation:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.path.begins

    @property
    def measures(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.path.measures

    @property
    def images(self) -> Tensor | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return None if self.reduce is None else self.start.image

    @cached_property
    def weight(self) -> Tensor | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        if self.reduce != "mean":
            return None
        image = self.start.image
        return image.bincount(minlength=len(self.problem.inputs))[image].double().reciprocal()

    @cached_property
    def _each(self) -> Problem:
        """The problem with a row for each class of an image, for the points of one class."""
        problem = self.problem
        if (target := problem.target).dim() == 1:
            return problem
        arguments = problem.forward_args.select(problem.every_row.repeat_interleave(target.shape[1]))
        contrast = None if problem.contrast is None else problem.contrast.flatten()
        return replace(problem, target=target.flatten(), contrast=contrast, forward_args=arguments)

    @property
    def _classes(self) -> Sequence[int | None]:
        return (None,) if self.problem.target.dim() == 1 else range(self.problem.target.shape[1])

    def add_to(self, sums: Sums) -> None:
        """Run the paths of all images: a loop, four kinds of work.

        Paths that begin, go on, or end at their next point wait in queues, as do segments that are to be halved. A
        batch that does not fit in memory is tried again with half the rows: steps are pure, so nothing is lost. The
        host reads one small tensor a step: which paths go on, and which segments to halve.
        """
        rule, start, size, device = self.quadrature, self.start, self.problem.model.batch_size, sums.values.device
        adaptive = Adaptive(rule, self.problem, start) if rule.rule == "adaptive" else None
        progress = _Progress(self, sums)
        sums.outcomes = [PathStatus.COMPLETE if steps else PathStatus.AT_REFERENCE for steps in sums.planned]
        if rule.rule == "corrected":
            sums.error = torch.zeros_like(sums.score, dtype=torch.float64)
        queues = _Queues(_some(start, [steps > 0 for steps in sums.planned]))
        while len(queues):
            try:
                kind, batch = queues.next(size.on(device))
                if kind == "halve":
                    result = halved(self._each, rule.max_depth, batch)
                else:
                    result = self._step(batch, kind == "close", adaptive)
            except (RuntimeError, MemoryError) as error:
                size.halve(device, error)
                continue
            queues.drop(kind, len(batch))
            if isinstance(result, Tensor):
                sums.add(batch.path, batch.step, result, None if self._each is self.problem else batch.k)
            else:
                self._book(sums, result, adaptive, queues, progress)
            del batch, result  # or the next batch would be computed beside this one

    def _step(self, state: State, closing: bool, adaptive: Adaptive | None) -> "_Step":
        """Take a step of L paths, and change nothing."""
        here, more = self.path.look(self.problem, state, closing)
        segment, errors, choice = self.path.segment(state, here), None, None
        flags = torch.stack([here.finite, here.goes_on, here.last_next])
        if segment is not None and self.quadrature.rule in ("adaptive", "corrected"):
            columns = [self.quadrature.integrate(segment, k)[1] for k in self._classes]
            errors = torch.stack([column for column in columns if column is not None], 1)
            if adaptive is not None:
                choice = adaptive.choose(segment, state.image, errors)
                flags = torch.cat([flags, choice.chosen.T])
        finite, goes_on, last_next, *off = flags.tolist()  # the one wait of a step
        after = self.path.move(self.problem, state, here, more) if any(goes_on) else None
        pairs = [(i, k) for i in range(len(state)) for k, column in enumerate(off) if column[i]]
        further = [go and not last for go, last in zip(goes_on, last_next, strict=True)]
        return _Step(state.path, segment, errors, choice, after, finite, goes_on, further, pairs)

    def _book(
        self, sums: Sums, step: "_Step", adaptive: Adaptive | None, queues: "_Queues", progress: "_Progress"
    ) -> None:
        """Add what a step found, and let its paths wait for the next one."""
        s, errors = step.segment, step.errors
        if step.after is not None:
            queues.add("step", _some(step.after, step.further))
            last = [go and not further for go, further in zip(step.goes_on, step.further, strict=True)]
            queues.add("close", _some(step.after, last))
        for number, finite in zip(step.path.tolist() if not all(step.finite) else (), step.finite, strict=False):
            if not finite:
                sums.outcomes[number] = PathStatus.DIVERGED
        if s is None:
            return
        counts = None if all(step.finite) else s.counts
        self._add_ends(sums, s)
        if errors is not None and counts is not None:
            errors = torch.where(counts[:, None], errors, 0.0)
        if adaptive is not None and errors is not None and step.choice is not None:
            adaptive.add(step.choice, errors, some=bool(step.pairs))
            queues.wait(step.choice, step.pairs)
        elif sums.error is not None and errors is not None:
            add_rows(sums.error, s.path, errors.view_as(s.stop.score))
        sums.see(s.path, s.step, s.start.x, s.stats, {"score": s.start.score}, counts)
        for k in self._classes:  # one after the other: K maps in double precision are large
            value, _ = self.quadrature.integrate(s, k)
            sums.add(s.path, s.step, value if counts is None else torch.where(batch_view(counts, value), value, 0.0), k)
        progress(s, step.goes_on)

    def _add_ends(self, sums: Sums, s: Segment) -> None:
        """Scores at the ends are taken from the path's own points, so that the sum telescopes exactly."""
        first, score, endpoint = s.counts & (s.step == 1), sums.score[s.path], sums.endpoint_score[s.path]
        at_input, at_end = (first, s.counts) if self.begins == "input" else (s.step == self.start.total[s.path], first)
        sums.score[s.path] = torch.where(batch_view(at_input & s.counts, score), s.stop.score, score)
        sums.endpoint_score[s.path] = torch.where(batch_view(at_end, endpoint), s.start.score, endpoint)


@dataclass(frozen=True)
class _Step:
    """A step of L paths.

    Attributes:
        path: The paths (L,).
        segment: The segments that end where it began; None: before the first one.
        errors: Their errors (L, K), if the rule computes them.
        choice: Which of them are to be halved, if the rule is adaptive.
        after: Where the paths are now; None: none goes on.
        finite: Which are at a finite point (L).
        goes_on: Which go on (L).
        further: Which of these will go on again (L).
        pairs: The segments that are to be halved, and for which class.
    """

    path: Tensor
    segment: Segment | None
    errors: Tensor | None
    choice: Choice | None
    after: State | None
    finite: list[bool]
    goes_on: list[bool]
    further: list[bool]
    pairs: list[tuple[int, int]]


class _Queues:
    """Rows that wait, by what is to be done with them.

    What is to be halved waits in memory of its own: at most a batch. The rest of a step's choice follows at once.
    """

    def __init__(self, begin: State | None):
        self._rows: dict[str, Any] = {"begin": begin, "step": None, "close": None, "halve": None}
        self._choice: tuple[Choice, list[tuple[int, int]]] | None = None

    def __len__(self) -> int:
        return sum(map(self.count, self._rows)) + (self._choice is not None)

    def count(self, kind: str) -> int:
        return 0 if self._rows[kind] is None else len(self._rows[kind])

    def next(self, most: int) -> tuple[str, Any]:
        """The queue of the next batch, and the batch of at most ``most`` rows: what waits for a full batch goes when
        there is one, or when nothing else is left."""
        if self._choice is not None and (room := most - self.count("halve")) > 0:
            choice, pairs = self._choice
            self.add("halve", choice.of(pairs[:room]))
            self._choice = (choice, pairs[room:]) if len(pairs) > room else None
        moving = self.count("begin") + self.count("step") > 0
        if self.count("halve") >= most or not (moving or self.count("close")):
            kind = "halve"
        elif self.count("close") >= most or not moving:
            kind = "close"
        else:
            kind = "begin" if self.count("begin") and self.count("step") < most else "step"
        return kind, self._rows[kind] if self.count(kind) <= most else self._rows[kind][:most]

    def drop(self, kind: str, count: int) -> None:
        rows = self._rows[kind]
        self._rows[kind] = None if len(rows) == count else _some(rows, [i >= count for i in range(len(rows))])

    def add(self, kind: str, rows: Any) -> None:
        before = self._rows[kind]
        if rows is not None:
            self._rows[kind] = rows if before is None else type(rows).concat([before, rows])

    def wait(self, choice: Choice, pairs: list[tuple[int, int]]) -> None:
        """Let pairs of a segment and a class wait to be halved."""
        self._choice = (choice, pairs) if pairs else None


def _some(rows: Any, chosen: list[bool]) -> Any:
    """These rows in memory of their own: what waits must not keep alive the batch it was computed in; None: none."""
    if all(chosen) or not any(chosen):
        return rows if all(chosen) else None
    return rows[torch.tensor([i for i, one in enumerate(chosen) if one], device=rows.path.device)]


class _Progress:
    """Reports planned steps done: k of T. If a path has no end but its arrival: T times the larger of 1 - 2^(-k / T)
    and the covered part of the distance to the reference. The share never falls, and is 1 only on arrival."""

    def __init__(self, terms: SegmentTerms, sums: Sums):
        self.sums, self.open_ended = sums, terms.path.open_ended
        self.column, self.shares = terms.measures.index("reference_distance"), [0.0] * len(sums.planned)
        self.distance = None
        if self.open_ended:
            log_p = log_probabilities(terms.problem.logits)[terms.start.image]
            self.distance = dist(sqrt_chart(log_p), sqrt_chart(terms.geodesic.log_q))

    def __call__(self, s: Segment, goes_on: list[bool]) -> None:
        counter, planned = self.sums.counter, self.sums.planned
        if counter.progress is None:
            return
        left = torch.zeros_like(s.stats[:, 0])
        if self.distance is not None:
            left = s.stats[:, self.column] / self.distance[s.path]
        table = torch.stack([s.path.to(left), s.step.to(left), left], 1).tolist()
        for (number, k, rest), goes in zip(table, goes_on, strict=True):
            row, share = int(number), k / planned[int(number)]
            if self.open_ended:
                share = max(1.0 - 0.5**share, 1.0 - rest)
            self.shares[row] = max(min(share, 0.99), self.shares[row]) if goes else 1.0
        counter.reach(int(sum(share * steps for share, steps in zip(self.shares, planned, strict=True))))
