"""Terms of path integrals along paths whose steps depend on earlier steps: the driver of all such paths."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from fringe.attribution._integrate import IntegralTerms, Sums, Terms
from fringe.attribution._quadrature import Adaptive, Halving, Quadrature, halved
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

    def add_to(self, sums: Sums) -> None:
        """Run the paths of all images: a loop, four kinds of work.

        Paths that begin, go on, or end at their next point wait in queues, as do segments that are to be halved. A
        batch that does not fit in memory is tried again with half the rows: steps are pure, so nothing is lost. The
        host reads one small tensor a step: which paths go on, and which segments to halve.
        """
        path, problem, rule, start = self.path, self.problem, self.quadrature, self.start
        size, device = problem.model.batch_size, problem.inputs.device
        adaptive = Adaptive(rule, problem, start) if rule.rule == "adaptive" else None
        progress = _Progress(self, sums)
        sums.outcomes = [PathStatus.COMPLETE if steps else PathStatus.AT_REFERENCE for steps in sums.planned]
        if rule.rule == "corrected":
            sums.error = torch.zeros_like(sums.score, dtype=torch.float64)
        queues = _Queues(_some(start, [steps > 0 for steps in sums.planned]))
        while (kind := queues.next(most := size.on(device))) is not None:
            batch = queues.first(kind, most)
            try:
                if kind == "halve":
                    change = halved(problem, rule.max_depth, batch)
                else:
                    here, more = path.look(problem, batch, kind == "close")
                    segment = path.segment(batch, here)
                    value = error = halving = None
                    chosen = torch.zeros_like(here.finite)
                    if segment is not None:
                        value, error = rule.integrate(segment)
                    if segment is not None and adaptive is not None and error is not None:
                        chosen, halving = adaptive.choose(segment, batch.image, error)
                    flags = torch.stack([here.finite, here.goes_on, here.last_next, chosen])
                    finite, goes_on, last_next, off = flags.tolist()  # the one wait of a step
                    after = path.move(problem, batch, here, more) if any(goes_on) else None
                    del more
            except (RuntimeError, MemoryError) as problem_of_memory:
                size.halve(device, problem_of_memory)
                continue
            queues.drop(kind, len(batch))
            if kind == "halve":
                sums.change(batch.path, change)
                if sums.record is not None:
                    sums.record.change(batch.path, batch.step, change)
                continue
            if after is not None:
                pairs = list(zip(goes_on, last_next, strict=True))
                queues.add("step", _some(after, [go and not last for go, last in pairs]))
                queues.add("close", _some(after, [go and last for go, last in pairs]))
            if not all(finite):
                for number in batch.path[~here.finite].tolist():
                    sums.outcomes[number] = PathStatus.DIVERGED
            if segment is None or value is None:
                continue
            if adaptive is not None and halving is not None and error is not None:
                adaptive.add(halving, error, chosen if any(off) else None)
                queues.add("halve", _some(halving, off))
            self._add_ends(sums, segment)
            if sums.error is not None and error is not None:
                add_rows(sums.error, segment.path, error)
            trace, counts = {"score": segment.start.score}, None if all(finite) else segment.counts
            sums.add(Terms(segment.path, segment.step, value, segment.start.x, segment.stats, trace, counts=counts))
            progress(segment, goes_on)

    def _add_ends(self, sums: Sums, s: Segment) -> None:
        """Scores at the ends are taken from the path's own points, so that the sum telescopes exactly."""
        first, score, endpoint = s.counts & (s.step == 1), sums.score[s.path], sums.endpoint_score[s.path]
        at_input, at_end = (first, s.counts) if self.begins == "input" else (s.step == self.start.total[s.path], first)
        sums.score[s.path] = torch.where(batch_view(at_input & s.counts, score), s.stop.score, score)
        sums.endpoint_score[s.path] = torch.where(batch_view(at_end, endpoint), s.start.score, endpoint)


class _Queues:
    """Rows that wait, by what is to be done with them."""

    def __init__(self, begin: State | None):
        self._rows: dict[str, Any] = {"begin": begin, "step": None, "close": None, "halve": None}

    def count(self, kind: str) -> int:
        return 0 if self._rows[kind] is None else len(self._rows[kind])

    def next(self, most: int) -> str | None:
        """Which queue the next batch comes from: what waits for a full batch goes when there is one, or nothing else
        is left."""
        moving = self.count("begin") + self.count("step") > 0
        if self.count("halve") >= most or not (moving or self.count("close")):
            return "halve" if self.count("halve") else None
        if self.count("close") >= most or not moving:
            return "close"
        return "begin" if self.count("begin") and self.count("step") < most else "step"

    def first(self, kind: str, most: int) -> Any:
        rows = self._rows[kind]
        return rows if len(rows) <= most else rows[:most]

    def drop(self, kind: str, count: int) -> None:
        rows = self._rows[kind]
        self._rows[kind] = None if len(rows) == count else _some(rows, [i >= count for i in range(len(rows))])

    def add(self, kind: str, rows: State | Halving | None) -> None:
        before = self._rows[kind]
        if rows is not None:
            self._rows[kind] = rows if before is None else type(rows).concat([before, rows])


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
