"""Path integrals: the one accumulator, the record of their paths, and terms at points that are known beforehand."""

import bisect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from fringe.attribution._base import ProgressCounter, Trajectory
from fringe.geometry import log_probabilities
from fringe.linalg import add_rows, batch_view
from fringe.paths import AT_POINTS, Geodesic, Node, Nodes, Orientation, Problem, SampleSet, fisher_rao_step


class IntegralTerms(ABC):
    """The terms of the integrals along R paths: a description, which :func:`integrate` evaluates.

    Attributes:
        problem: The images and the model.
        planned: Steps of each path that are known beforehand.
        geodesic: The geodesics (R) of the predictions along the paths.
        begins: The end at which paths begin.
        measures: Names of the N measurements of each term.
        scale: What the sum of an image's terms is multiplied by (B, *S); None: 1.
        images: The image (R,) of each path; None: path r is that of image r.
        weight: What each path counts (R,); None: 1.
    """

    problem: Problem
    planned: list[int]
    geodesic: Geodesic
    begins: Orientation = "input"
    measures: tuple[str, ...] = ()
    scale: Tensor | None = None
    images: Tensor | None = None
    weight: Tensor | None = None

    @abstractmethod
    def add_to(self, sums: "Sums") -> None:
        """Evaluate all terms and add them up."""


class Stats:
    """Statistics of each measured name on R paths, whatever the number of steps; zero where nothing was measured.

    Args:
        names: What is measured, N names.
        count: Number of measurements (R,), all zero.
        begins: The end at which the paths begin.
    """

    def __init__(self, names: tuple[str, ...], count: Tensor, begins: Orientation = "input"):
        self._names, self._begins, self.count = names, begins, count
        # a column for each name: one launch on a GPU, and not one for each of them
        self._total, self._largest, self._last = (count.new_zeros(len(count), len(names)) for _ in range(3))

    def add(self, rows: Tensor, values: Tensor, counts: Tensor | None = None) -> None:
        """Add measurements (L, N) of paths ``rows`` (L,), in which a path may occur more than once, unless ``counts``
        (L,) names those that are to be added."""
        last = values = values.to(self.count.dtype)
        first = self.count[rows] == 0 if self._begins == "baseline" else None
        if counts is not None:
            values = torch.where(counts[:, None], values, 0.0)
            last = torch.where(counts[:, None], values, self._last[rows])
        if first is not None:  # no path occurs twice, and its first measurement is the farthest
            last = torch.where(first[:, None], last, self._last[rows])
        number = torch.ones_like(rows) if counts is None else counts
        add_rows(self.count, rows, number.to(self.count))
        add_rows(self._total, rows, values)
        self._largest.scatter_reduce_(0, rows[:, None].expand_as(values), values, "amax")
        self._last[rows] = last

    def pooled(self, images: Tensor, batch: int) -> "Stats":
        """The statistics of ``batch`` images from those of their paths; path i belongs to image ``images[i]`` (R,).

        Counts and totals are averaged over the paths, the last values over those that moved; the largest is of all.
        """
        pool, moved = Stats(self._names, self.count.new_zeros(batch)), (self.count > 0).to(self.count)

        def mean(values: Tensor, weight: Tensor) -> Tensor:
            total = add_rows(values.new_zeros(batch, *values.shape[1:]), images, values * batch_view(weight, values))
            share = add_rows(values.new_zeros(batch), images, weight).clamp_min(1.0)
            return total / batch_view(share, total)

        pool.count = mean(self.count, torch.ones_like(self.count))
        pool._total, pool._last = mean(self._total, torch.ones_like(self.count)), mean(self._last, moved)
        pool._largest.scatter_reduce_(0, images[:, None].expand_as(self._largest), self._largest, "amax")
        return pool

    def total(self, name: str) -> Tensor:
        """Sum (R,) over a path's steps."""
        return self._total[:, self._names.index(name)]

    def mean(self, name: str) -> Tensor:
        """Mean (R,) over a path's steps; 0 for one without steps."""
        return self.total(name) / self.count.clamp_min(1)

    def largest(self, name: str) -> Tensor:
        """Maximum (R,) over a path's steps, at least 0."""
        return self._largest[:, self._names.index(name)]

    def last(self, name: str) -> Tensor:
        """What was measured farthest from the input (R,): the first of a path that begins at the baseline."""
        return self._last[:, self._names.index(name)]


@dataclass(frozen=True)
class PathIntegral:
    """The path integrals of B images. Of K classes, values are (B, K, *S), scores and gaps (B, K).

    Attributes:
        values: Maps (B, *S).
        score: Explained score (B,) at the input.
        endpoint_score: Score (B,) at the other end.
        gap: Completeness gap (B,).
        steps: Steps taken, per image.
        finite: Whether the map, and the logits and gradients along its paths, are finite, per image.
        stats: What was measured along the paths.
        trajectories: Records of the paths, if they were requested.
    """

    values: Tensor
    score: Tensor
    endpoint_score: Tensor
    gap: Tensor
    steps: list[int]
    finite: list[bool]
    stats: Stats
    trajectories: tuple[Trajectory, ...] | None = None

    @property
    def residual(self) -> Tensor:
        """The paper's epsilon_comp (B,): |gap| over the score difference; 0 where both are zero."""
        return relative_gap(self.gap, self.score - self.endpoint_score)

    @property
    def rule_residual(self) -> Tensor:
        """The residual (B, K), K = 1 for one class: verdicts depend on it."""
        return self.residual.view(len(self.gap), -1)


class Sums:
    """The sums of one call of :func:`integrate`, in place.

    Attributes:
        values: Maps (B, *S) so far, without the scale.
        score: Score (R,) at the input.
        endpoint_score: Score (R,) at the other end.
        taken: Steps taken on each path; None: as many as were measured.
        finite: Whether logits and gradients were finite along each path.
        counter: Counts the planned steps that are done.
    """

    def __init__(self, terms: IntegralTerms):
        problem, images = terms.problem, terms.images
        self.terms, self.planned, score = terms, terms.planned, problem.score(problem.logits)
        shape = (*problem.target.shape, *problem.inputs.shape[1:])
        self.values = torch.zeros(shape, dtype=torch.float64, device=score.device)
        self.score = score.clone() if images is None else score[images]
        self.endpoint_score = self.score.clone()
        count = torch.zeros(len(self.planned), dtype=torch.float64, device=score.device)
        self.stats = Stats(terms.measures, count, terms.begins)
        self.taken: list[int] | None = None
        self.finite = [True] * len(self.planned)
        self.counter = ProgressCounter(problem.progress, sum(self.planned))
        self.record = None
        if problem.record_path:
            self.record = Record(terms)

    def see(
        self,
        path: Tensor,
        step: Tensor,
        x: Tensor,
        stats: Tensor,
        trace: Mapping[str, Tensor],
        counts: Tensor | None = None,
    ) -> None:
        """Take note of what was measured at the far ends of L terms.

        Args:
            path: Paths (L,).
            step: Number (L,) of each step, from where its path begins; ascending on each path.
            x: Points (L, *S) that a record shows.
            stats: Measurements (L, N), see :attr:`IntegralTerms.measures`.
            trace: Measurements (L,) by name that only a record of the path holds.
            counts: Which terms (L,) there are; None: all. The others are zero.
        """
        self.stats.add(path, stats, counts)
        if self.record is not None:
            self.record.see(path, step, x, stats, trace, counts)

    def add(
        self, path: Tensor, step: Tensor, value: Tensor, k: int | Tensor | None = None, weight: Tensor | None = None
    ) -> None:
        """Add L terms to the sums.

        Args:
            path: Paths (L,); ascending, if terms have weights.
            step: Number (L,) of each step.
            value: Terms (L, *S).
            k: The class of the terms among K, or their classes (L,); None: there is one class per image.
            weight: What a term counts, (L,) or (L, *S); None: once.
        """
        images, shares = self.terms.images, self.terms.weight
        if weight is not None:
            add_weighted(self.values, path, weight, value)
            value = value if self.record is None else batch_view(weight, value) * value
        else:
            rows, total, wide = path if images is None else images[path], self.values, value.to(self.values.dtype)
            if isinstance(k, Tensor):
                total, rows = total.flatten(0, 1), rows * total.shape[1] + k
            elif k is not None:
                total = total[:, k]
            add_rows(total, rows, wide if shares is None else wide * batch_view(shares[path], wide))
        if self.record is not None:
            self.record.add(path, step, value, k)

    def result(self) -> PathIntegral:
        """The integral of each image."""
        terms, problem, images, stats = self.terms, self.terms.problem, self.terms.images, self.stats
        self.counter.reach(self.counter.total)  # paths may end before their planned steps
        values = self.values if terms.scale is None else self.values.mul_(terms.scale)
        maps = values.to(problem.inputs.dtype)
        score, endpoint = self.score, self.endpoint_score
        change = score.double() - endpoint.double()
        if images is not None:
            score, per_path = problem.score(problem.logits), change
            change = torch.zeros_like(score, dtype=torch.float64)
            add_rows(change, images, per_path if terms.weight is None else per_path * terms.weight)
            endpoint, stats = (score.double() - change).to(score.dtype), stats.pooled(images, len(score))
        steps, finite = [0] * len(values), finite_maps(maps)
        owners = range(len(values)) if images is None else images.tolist()
        numbers = [int(count) for count in self.stats.count.tolist()] if self.taken is None else self.taken
        for image, taken, is_finite in zip(owners, numbers, self.finite, strict=True):
            steps[image], finite[image] = max(steps[image], taken), finite[image] and is_finite
        gap = completeness_gap(values, change)
        trajectories = None if self.record is None else self.record.trajectories()
        return PathIntegral(maps, score, endpoint, gap, steps, finite, stats, trajectories)


def integrate(terms: IntegralTerms) -> PathIntegral:
    """Add up the terms of path integrals. Memory does not grow with the number of steps.

    Args:
        terms: Terms of path integrals: :class:`NodeTerms` or :class:`SegmentTerms`.

    Returns:
        The integral of each image. If an image has several paths: the change of the score and the map are weighted
        sums, ``steps`` are those of the longest path, the outcome is the worst, the statistics are pooled, and the
        trajectory is that of the first path.
    """
    sums = Sums(terms)
    terms.add_to(sums)
    return sums.result()


def add_weighted(total: Tensor, rows: Tensor, weight: Tensor, values: Tensor) -> None:
    """Add ``values`` (L, *S) times ``weight``, (L,) or (L, *S), to ``total`` (B, *S) at ``rows`` (L,), in ascending
    order. The terms of an image are summed in their own precision, as one product, before they join its total.
    """
    if weight.dim() > 1:
        values, weight = values * weight, torch.ones_like(weight.flatten(1)[:, 0])
    runs = [(image, sum(1 for _ in group)) for image, group in groupby(rows.tolist())]
    counts = [count for _, count in runs]
    parts = zip(runs, weight.to(values.dtype).split(counts), values.split(counts), strict=True)
    for (image, _), weights, terms in parts:  # apart: a NaN stays with its image
        total[image] += (weights @ terms.flatten(1)).view_as(total[image])


def completeness_gap(values: Tensor, difference: Tensor) -> Tensor:
    """Sum of ``values`` (B, *S) or (B, K, *S) minus the score ``difference`` (B,) or (B, K), in float64."""
    return values.flatten(difference.dim()).sum(-1, dtype=torch.float64) - difference.double()


def relative_gap(gap: Tensor, change: Tensor) -> Tensor:
    """The paper's epsilon_comp: |gap| over the change of the score; 0 where both are zero."""
    return torch.where(gap == 0, 0.0, gap.abs() / change.double().abs())


def finite_maps(values: Tensor) -> list[bool]:
    """Which maps (B, *S) hold neither NaN nor infinity."""
    if values.numel() == 0:
        return [True] * len(values)
    return torch.stack(values.flatten(1).aminmax(dim=1)).isfinite().all(0).tolist()  # a copy of the maps is too much


# -- the record of paths ----------------------------------------------------------------------------------------------


#: Points of a trajectory that are stored as images where no number is given, both ends included.
SNAPSHOTS = 6


class Record:
    """The path of each image; of several paths of an image, the first.

    Points have numbers, their steps from the input. With each stored point there is the integral between it and the
    stored point before it, so a term that comes later joins the first stored point beyond its segment.

    Args:
        terms: The terms of the integrals along the paths.
    """

    def __init__(self, terms: IntegralTerms):
        problem, images = terms.problem, None if terms.images is None else terms.images.tolist()
        self.begins: Orientation = terms.begins
        self.measures, self.scale = terms.measures, terms.scale
        paths = [i if images is None else images.index(i) for i in range(len(problem.inputs))]
        geodesic = terms.geodesic[torch.tensor(paths, device=problem.inputs.device)]
        start = geodesic.measured(geodesic.log_p, geodesic.s0).tolist()
        scores = problem.score(problem.logits).tolist()
        zero = torch.zeros(*problem.target.shape[1:], *problem.inputs.shape[1:], dtype=torch.float64)
        snapshots = SNAPSHOTS if problem.record_path is True else problem.record_path
        self.logs = {
            path: _Log(
                x, zero, dict(zip((*AT_POINTS, "score"), (*row, score), strict=True)), terms.planned[path], snapshots
            )
            for path, x, row, score in zip(paths, problem.inputs, start, scores, strict=True)
        }

    def see(
        self, paths: Tensor, steps: Tensor, x: Tensor, stats: Tensor, trace: Mapping[str, Tensor], counts: Tensor | None
    ) -> None:
        """Record the points (L, *S) at the far ends of terms, and measurements (L, N), and others by name."""
        table = dict(zip(self.measures, stats.T.tolist(), strict=True)) | {k: c.tolist() for k, c in trace.items()}
        keep = [True] * len(paths) if counts is None else counts.tolist()
        for i, (path, step) in enumerate(zip(paths.tolist(), steps.tolist(), strict=True)):
            if (log := self.logs.get(path)) is None or not keep[i]:
                continue
            for name, column in table.items():
                (log.points if name in (*AT_POINTS, "score") else log.steps).setdefault(name, []).append(column[i])
            log.store(self._number(log, step), x[i], self.begins)

    def add(self, paths: Tensor, steps: Tensor, values: Tensor, k: int | Tensor | None) -> None:
        """Add terms (L, *S) of all, of one or of L of the K classes to points that were seen."""
        classes = k.tolist() if isinstance(k, Tensor) else [k] * len(paths)
        for path, step, value, of in zip(paths.tolist(), steps.tolist(), values, classes, strict=True):
            if (log := self.logs.get(path)) is not None:
                log.add(self._number(log, step), value, of)

    def _number(self, log: "_Log", step: int) -> int:
        return step if self.begins == "input" else log.planned - step + 1

    def trajectories(self) -> tuple[Trajectory, ...]:
        """The trajectory of each image, from the input on."""
        scales = [None] * len(self.logs) if self.scale is None else [row.double().cpu() for row in self.scale]
        pairs = zip(self.logs.values(), scales, strict=True)
        return tuple(log.trajectory(scale, reverse=self.begins == "baseline") for log, scale in pairs)


class _Log:
    """The record of one path.

    Stored are ``snapshots`` points over the planned steps. On a path that goes on, as many more at the same distance
    are kept, then every second one is dropped and the distance doubled; ``snapshots`` of them are given.
    """

    def __init__(self, x: Tensor, zero: Tensor, start: Mapping[str, Any], planned: int, snapshots: int):
        self.dtype, self.planned = x.dtype, planned
        self._count, self._stride = snapshots, planned / (snapshots - 1)
        self.points: dict[str, list[Any]] = {name: [value] for name, value in start.items()}
        self.steps: dict[str, list[Any]] = {}
        self.snapshots = {0: (_on_cpu(x, x.dtype), zero)}  # a point, and the integral from the stored one before it

    def store(self, number: int, x: Tensor, begins: Orientation) -> None:
        """Store a point, and drop others: the latest one of a path from the input may prove to be its last."""
        if len(self.snapshots) > 2 * self._count:
            self._stride *= 2.0
        self.snapshots[number] = (_on_cpu(x, self.dtype), torch.zeros_like(self.snapshots[0][1]))
        stored, carried = dict[int, tuple[Tensor, Tensor]](), number
        for k in sorted(self.snapshots, reverse=True):
            is_due = k == round(self._stride * round(k / self._stride))
            if is_due or (k == number and begins == "input"):
                stored[k], carried = self.snapshots[k], k
            else:
                stored[carried][1].add_(self.snapshots[k][1])
        self.snapshots = stored

    def add(self, number: int, value: Tensor, k: int | None) -> None:
        """Add to the integral between the points ``number - 1`` and ``number``, of one of K classes or of all."""
        stored = sorted(self.snapshots)  # of a step that led to no finite point there is none, and the value is zero
        term = self.snapshots[stored[min(bisect.bisect_left(stored, number), len(stored) - 1)]][1]
        (term if k is None else term[k]).add_(value.cpu())

    def trajectory(self, scale: Tensor | None, *, reverse: bool) -> Trajectory:
        """The path from the input on."""
        stored = sorted(self.snapshots)
        sums = torch.stack([self.snapshots[k][1] for k in stored]).cumsum(0)
        if reverse:
            for column in self.points.values():
                column[1:] = column[:0:-1]
            for column in self.steps.values():
                column.reverse()
        path = Trajectory(
            points={name: torch.tensor(column, dtype=torch.float64) for name, column in self.points.items()},
            steps={name: torch.tensor(column, dtype=torch.float64) for name, column in self.steps.items()},
            snapshot_steps=torch.tensor(stored),
            snapshots=torch.stack([self.snapshots[k][0] for k in stored]),
            cumulative=(sums if scale is None else sums * scale).to(self.dtype),
        )
        return path.thinned(self._count)


def _on_cpu(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.detach().to("cpu", dtype, copy=True)


@dataclass(frozen=True)
class Evaluation:
    """L nodes that were evaluated together.

    Attributes:
        rows: Their images (L,).
        nodes: Their numbers (L,).
        sample: The points.
        logits: Logits (L, C) there.
        gradient: Gradient (L, *S) of the score there.
    """

    rows: Tensor
    nodes: Tensor
    sample: Node
    logits: Tensor
    gradient: Tensor


#: Returns the factors of the gradients at nodes; usually the displacements.
WeightFn = Callable[[Evaluation], Tensor]


def _displacement(at: Evaluation) -> Tensor:
    return at.sample.displacement


#: Measures evaluated nodes: numbers (L, N), and by name (L,) those that only a record holds.
MeasureFn = Callable[[Evaluation], tuple[Tensor, Mapping[str, Tensor]]]


class SampleTerms(IntegralTerms):
    """Points known beforehand, parallel over images and over points: ``sum_j g(x_j) * displacement_j``.

    One forward pass and one VJP per point; nothing else is measured.

    Args:
        samples: The points.
        problem: The images and the model.
        weight_fn: Returns the factors of the gradients, instead of the displacements.
        endpoint_score: What the sum of a map is the score's difference to (B,); None: the score itself.
    """

    def __init__(
        self,
        samples: SampleSet,
        problem: Problem,
        weight_fn: WeightFn = _displacement,
        endpoint_score: Tensor | None = None,
    ):
        self.problem, self.samples, self.weight_fn = problem, samples, weight_fn
        self.scale, self.endpoint_score = samples.displacement, endpoint_score
        self.planned = [samples.count] * len(problem.inputs)
        self.geodesic = Geodesic.between(log_probabilities(problem.logits))

    def add_to(self, sums: Sums) -> None:
        self._add_nodes(sums)
        if self.endpoint_score is not None:
            sums.endpoint_score = self.endpoint_score

    def _add_nodes(self, sums: Sums) -> MeasureFn:
        problem, measure = self.problem, self.measure_fn()
        sums.taken = [self.samples.count] * len(problem.inputs)
        for rows, columns in iter_batches(problem, self.samples.count):
            sample = self.samples.at(rows, columns)
            at = Evaluation(rows, columns, sample, *problem.logits_gradient(sample.x, rows))
            sums.see(rows, columns + 1, sample.x, *measure(at))
            sums.add(rows, columns + 1, at.gradient, weight=self.weight_fn(at))
            sums.counter.tick(len(rows))
        return measure

    def measure_fn(self) -> MeasureFn:
        """Return the function that measures the nodes of one call, in their order."""
        return lambda at: (at.logits.new_empty(len(at.rows), 0), {})


class NodeTerms(SampleTerms):
    """The nodes of a path, measured for the path diagnostics: one more forward pass per image, at the end point.

    Args:
        nodes: The nodes.
        problem: The images and the model.
        weight_fn: Returns the factors of the gradients, instead of the displacements.
    """

    measures = (*AT_POINTS, "euclidean_step")

    def __init__(self, nodes: Nodes, problem: Problem, weight_fn: WeightFn = _displacement):
        super().__init__(nodes, problem, weight_fn)
        self.endpoint, self.planned = nodes.endpoint, [nodes.count + 1] * len(problem.inputs)

    def add_to(self, sums: Sums) -> None:
        sums.counter.total -= len(self.problem.inputs)  # the nodes are counted, and not the end points
        measure = self._add_nodes(sums)
        end, rows = self.endpoint, self.problem.every_row
        logits = self.problem.forward(end, rows)
        sums.endpoint_score = self.problem.score(logits)
        sums.finite = finite_maps(logits)
        none = torch.zeros(len(end), device=end.device)
        at = Evaluation(rows, torch.full_like(rows, self.samples.count), Node(end, none, none + 1), logits, end)
        sums.see(rows, at.nodes + 1, end, *measure(at))

    def measure_fn(self) -> MeasureFn:
        displacement = self.scale
        length = torch.ones_like(self.problem.logits[:, 0]) if displacement is None else _norm(displacement)
        latest = (self.problem.inputs.clone(), log_probabilities(self.problem.logits))

        def measure(at: Evaluation) -> tuple[Tensor, Mapping[str, Tensor]]:
            log_p, share, geodesic = log_probabilities(at.logits), at.sample.displacement, self.geodesic[at.rows]
            step = (share.abs() if share.dim() == 1 else _norm(share)) * length[at.rows]
            stats = torch.cat([geodesic.measured(log_p, geodesic.at(at.sample.alpha)), step[:, None]], 1)
            if not self.problem.record_path:
                return stats, {}
            first = at.rows != at.rows.roll(1)
            first[:1] = True
            last, before = first.roll(-1), list[Tensor]()  # each point is the next one after these on its path
            for known, now in zip(latest, (at.sample.x, log_p), strict=True):
                before.append(torch.where(batch_view(first, now), known[at.rows], now.roll(1, 0)))
                known[at.rows[last]] = now[last]
            return stats, {
                "score": self.problem.score(at.logits, at.rows),
                "euclidean_step": _norm((at.sample.x - before[0]).double()),
                "fisher_rao_step": fisher_rao_step(before[1], log_p),
            }

        return measure


def iter_batches(problem: Problem, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Every (image, node) pair once, ``count`` nodes of an image in order, a batch at a time: both indices (L,)."""
    device, done, total = problem.inputs.device, 0, len(problem.inputs) * count
    while done < total:
        pairs = torch.arange(done, min(done + problem.model.batch_size.on(device), total), device=device)
        done += len(pairs)
        yield pairs // count, pairs % count


def _norm(x: Tensor) -> Tensor:
    """Euclidean norm (L,) of each row of ``x`` (L, *S)."""
    return torch.linalg.vector_norm(x, dim=tuple(range(1, x.dim())))
