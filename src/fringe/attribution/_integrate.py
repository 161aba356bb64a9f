r"""Path integrals of gradients: the sums of all, and the two loops of methods other than FRInGe.

.. math:: A = \int \nabla F^t(\gamma) \odot d\gamma

:func:`integrate` is the loop over points that are known beforehand, such as those of a line; :func:`integrate_steps`
that of paths whose next point depends on the gradient at the last one. That of FRInGe is in ``_walk.py``.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fringe.attribution._base import ProgressCounter, Trajectory
from fringe.attribution._record import Record
from fringe.geometry import dist, log_probabilities, sqrt_chart
from fringe.linalg import add_rows, batch_view
from fringe.paths import (
    AT_POINTS,
    Geodesic,
    Node,
    Nodes,
    Orientation,
    Point,
    Problem,
    Rows,
    SampleSet,
    SequentialPath,
    Steps,
    all_finite,
    fisher_rao_step,
)

#: By how many eps of the larger one two scores of the same input may differ: the order in which a layer's products are
#: summed changes their last bits, and a path may reach its end by several additions.
ROUNDINGS = 8

NodeRule = Literal["midpoint", "gausslegendre", "trapezoid", "left", "right", "closed_mean"]
Reduce = Literal["sum", "mean"]


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


class Stats:
    """Statistics of each measured name on R paths, whatever the number of steps; zero where nothing was measured.

    Args:
        names: What is measured, N names.
        count: Number of measurements (R,), all zero.
        begins: The end at which the paths begin.

    Attributes:
        total: By name the sum (R,) over a path's steps.
        largest: By name the maximum (R,) over them, at least 0.
        last: By name what was measured farthest from the input (R,): the first of a path that begins at the baseline.
    """

    def __init__(self, names: tuple[str, ...], count: Tensor, begins: Orientation = "input"):
        self._begins, self.count = begins, count
        # a column for each name: one launch on a GPU, and not one for each of them
        tables = [count.new_zeros(len(count), len(names)) for _ in range(3)]
        self._total, self._largest, self._last = tables
        self.total, self.largest, self.last = (dict(zip(names, t.unbind(1), strict=True)) for t in tables)

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
        pool = Stats(tuple(self.total), self.count.new_zeros(batch))
        every, moved = torch.ones_like(self.count), (self.count > 0).to(self.count)

        def mean(values: Tensor, weight: Tensor) -> Tensor:
            total = add_rows(values.new_zeros(batch, *values.shape[1:]), images, values * batch_view(weight, values))
            share = add_rows(values.new_zeros(batch), images, weight).clamp_min(1.0)
            return total / batch_view(share, total)

        pool.count.copy_(mean(self.count, every))
        pool._total.copy_(mean(self._total, every))
        pool._last.copy_(mean(self._last, moved))
        pool._largest.scatter_reduce_(0, images[:, None].expand_as(self._largest), self._largest, "amax")
        return pool


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
        """The residual (B,), see :func:`completeness_residual`."""
        return completeness_residual(self.gap, self.score, self.endpoint_score)


class Sums:
    """The sums over the paths of one call, in place.

    Args:
        problem: The images and the model.
        planned: Steps of each of R paths that are known beforehand.
        geodesic: The geodesics (R) of the predictions along the paths.
        measures: Names of the N measurements of each term.
        begins: The end at which paths begin.
        images: The image (R,) of each path; None: path r is that of image r.
        weight: What each path counts (R,); None: 1.

    Attributes:
        values: Maps (B, *S) so far, without the scale.
        score: Score (R,) at the input.
        endpoint_score: Score (R,) at the other end.
        taken: Steps taken on each path; None: as many as were measured.
        finite: Whether logits and gradients were finite along each path.
        counter: Counts the planned steps that are done.
    """

    def __init__(
        self,
        problem: Problem,
        planned: list[int],
        geodesic: Geodesic,
        measures: tuple[str, ...] = (),
        begins: Orientation = "input",
        images: Tensor | None = None,
        weight: Tensor | None = None,
    ):
        self.problem, self.images, self.weight, score = problem, images, weight, problem.score(problem.logits)
        shape = (*problem.target.shape, *problem.inputs.shape[1:])
        self.values = torch.zeros(shape, dtype=torch.float64, device=score.device)
        self.score = score.clone() if images is None else score[images]
        self.endpoint_score = self.score.clone()
        count = torch.zeros(len(planned), dtype=torch.float64, device=score.device)
        self.stats = Stats(measures, count, begins)
        self.taken: list[int] | None = None
        self.finite = [True] * len(planned)
        self.counter = ProgressCounter(problem.progress, sum(planned))
        self.record = Record(problem, planned, geodesic, measures, begins, images) if problem.record_path else None

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
            stats: Measurements (L, N), see ``measures``.
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
        images, shares = self.images, self.weight
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

    def result(self, scale: Tensor | None = None) -> PathIntegral:
        """The integral of each image: if one has several paths, the change of the score and the map are weighted sums,
        ``steps`` are those of the longest path, the outcome is the worst, the statistics are pooled, and the trajectory
        is that of the first path. The sum of an image's terms is multiplied by ``scale`` (B, *S); None: 1."""
        problem, images, stats = self.problem, self.images, self.stats
        if scale is not None and problem.target.dim() == 2:
            scale = scale[:, None]
        self.counter.reach(self.counter.total)  # paths may end before their planned steps
        values = self.values if scale is None else self.values.mul_(scale)
        maps = values.to(problem.inputs.dtype)
        score, endpoint = self.score, self.endpoint_score
        change = score.double() - endpoint.double()
        if images is not None:
            score, per_path = problem.score(problem.logits), change
            change = torch.zeros_like(score, dtype=torch.float64)
            add_rows(change, images, per_path if self.weight is None else per_path * self.weight)
            endpoint, stats = (score.double() - change).to(score.dtype), stats.pooled(images, len(score))
        steps, finite = [0] * len(values), all_finite(maps).tolist()
        owners = range(len(values)) if images is None else images.tolist()
        numbers = [int(count) for count in self.stats.count.tolist()] if self.taken is None else self.taken
        for image, taken, is_finite in zip(owners, numbers, self.finite, strict=True):
            steps[image], finite[image] = max(steps[image], taken), finite[image] and is_finite
        gap = completeness_gap(values, change)
        trajectories = None if self.record is None else self.record.trajectories(scale)
        return PathIntegral(maps, score, endpoint, gap, steps, finite, stats, trajectories)


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


def completeness_residual(gap: Tensor, score: Tensor, endpoint_score: Tensor) -> Tensor:
    """The paper's epsilon_comp: |gap| over the change of the score; 0 where the gap is what two scores of the same
    input may differ by, as each is a sum that the processor may round in another order: some eps of the larger one."""
    start, end = score.double(), endpoint_score.double()
    rounding = ROUNDINGS * torch.finfo(score.dtype).eps * torch.maximum(start.abs(), end.abs())
    return torch.where((gap.abs() <= rounding) & rounding.isfinite(), 0.0, gap.abs() / (start - end).abs())


# -- points that are known beforehand ----------------------------------------------------------------------------------


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


def integrate(
    samples: SampleSet,
    problem: Problem,
    weight_fn: WeightFn = _displacement,
    endpoint_score: Tensor | None = None,
) -> PathIntegral:
    """Add up ``g(x_j) * displacement_j`` over points that are known beforehand, of all images side by side.

    One forward pass and one VJP for each point. The nodes of a path are also measured for the path diagnostics, and
    cost a forward pass for each image more, at its end point. Memory does not grow with the number of points.

    Args:
        samples: The points: :class:`fringe.paths.Nodes` for those of one path.
        problem: The images and the model. The caller holds ``problem.model.session`` open.
        weight_fn: Returns the factors of the gradients, instead of the displacements.
        endpoint_score: What the sum of a map is the score's difference to (B,), for points of no single path; None: the
            score itself.

    Returns:
        The integral of each image.
    """
    path, every, count = samples if isinstance(samples, Nodes) else None, problem.every_row, samples.count
    geodesic = Geodesic.between(log_probabilities(problem.logits))
    measures = () if path is None else (*AT_POINTS, "euclidean_step")
    sums = Sums(problem, [count + (path is not None)] * len(every), geodesic, measures)
    sums.counter.total = count * len(every)  # the nodes are counted, and not the end points
    sums.taken = [count] * len(every)
    measure = _NodeMeasures(problem, geodesic, samples.displacement) if path is not None else None
    for rows, columns in iter_batches(problem, count):
        sample = samples.at(rows, columns)
        at = Evaluation(rows, columns, sample, *problem.logits_gradient(sample.x, rows))
        sums.see(rows, columns + 1, sample.x, *(measure(at) if measure else (at.logits.new_empty(len(rows), 0), {})))
        sums.add(rows, columns + 1, at.gradient, weight=weight_fn(at))
        sums.counter.tick(len(rows))
    if path is not None and measure is not None:
        end = path.endpoint
        logits = problem.forward(end, every)
        endpoint_score, sums.finite = problem.score(logits), all_finite(logits).tolist()
        same = (end == problem.inputs).flatten(1).all(1)  # another layout or batch may round its score otherwise
        endpoint_score = torch.where(batch_view(same, endpoint_score), sums.score, endpoint_score)
        none = torch.zeros(len(end), device=end.device)
        at = Evaluation(every, torch.full_like(every, count), Node(end, none, none + 1), logits, end)
        sums.see(every, at.nodes + 1, end, *measure(at, last=True))
    if endpoint_score is not None:
        sums.endpoint_score = endpoint_score
    return sums.result(samples.displacement)


class _NodeMeasures:
    """Measures evaluated nodes of a path in their order: numbers (L, N), and by name (L,) those that only a record
    holds. What only a record tells of the nodes before the last one is zero without it: each takes several passes over
    all classes."""

    def __init__(self, problem: Problem, geodesic: Geodesic, displacement: Tensor | None):
        self.problem, self.geodesic = problem, geodesic
        self.length = torch.ones_like(problem.logits[:, 0]) if displacement is None else _norm(displacement)
        self.latest = (problem.inputs.clone(), log_probabilities(problem.logits))

    def __call__(self, at: Evaluation, *, last: bool = False) -> tuple[Tensor, Mapping[str, Tensor]]:
        share, records = at.sample.displacement, bool(self.problem.record_path)
        step = (share.abs() if share.dim() == 1 else _norm(share)) * self.length[at.rows]
        points = torch.zeros(len(step), len(AT_POINTS), dtype=torch.float64, device=step.device)
        log_p = self.latest[1]
        if records or self.problem.model.has_classes:
            log_p, waypoint = log_probabilities(at.logits), self.geodesic.at(at.sample.alpha, at.rows)
            if records or last:
                points = self.geodesic[at.rows].measured(log_p, waypoint)
            else:
                points[:, AT_POINTS.index("tracking_error")] = dist(sqrt_chart(log_p), waypoint)
        stats = torch.cat([points, step[:, None]], 1)
        if not records:
            return stats, {}
        first = at.rows != at.rows.roll(1)
        first[:1] = True
        final, before = first.roll(-1), list[Tensor]()  # each point is the next one after these on its path
        for known, now in zip(self.latest, (at.sample.x, log_p), strict=True):
            before.append(torch.where(batch_view(first, now), known[at.rows], now.roll(1, 0)))
            known[at.rows[final]] = now[final]
        return stats, {
            "score": self.problem.score(at.logits, at.rows),
            "euclidean_step": _norm((at.sample.x - before[0]).double()),
            "fisher_rao_step": fisher_rao_step(before[1], log_p),
        }


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


# -- paths that go step by step ---------------------------------------------------------------------------------------


class Queues:
    """Paths that wait until they fill a batch: before their first point (``begin``), a further one (``step``) and their
    last one (``close``), or whatever else waits. No number depends on what a row waits with.

    Args:
        problem: The images and the model.
        begin: The paths; None: there are none.
    """

    def __init__(self, problem: Problem, begin: Rows | None):
        self._size, self._device = problem.model.batch_size, problem.inputs.device
        self.rows: dict[str, Any] = {"begin": begin, "step": None, "close": None}

    @property
    def most(self) -> int:
        """Rows of a batch."""
        return self._size.on(self._device)

    def wait(self, kind: str, rows: Any) -> None:
        """Let rows wait; None: none."""
        before = self.rows.get(kind)
        if rows is not None:
            self.rows[kind] = rows if before is None else type(rows).concat([before, rows])

    def next(self) -> tuple[str, Any] | None:
        """Return the kind of the paths that are next, and a batch of them; None: all are at their ends. Last points
        wait for a full batch, or until nothing else is left."""
        most = self.most
        begin, step, close = (len(self.rows[kind] or ()) for kind in ("begin", "step", "close"))
        kind = "begin" if begin and step < most else "step" if step else None
        if close and (close >= most or kind is None):
            kind = "close"
        return None if kind is None else (kind, self.batch(kind))

    def batch(self, kind: str) -> Any:
        """Return the first rows of a kind, as many as a batch has."""
        rows, most = self.rows[kind], self.most
        return rows if len(rows) <= most else rows[:most]

    def done(self, kind: str, count: int) -> None:
        """Forget the first rows of a kind."""
        self.rows[kind] = some_rows(self.rows[kind], [i >= count for i in range(len(self.rows[kind]))])

    def halve(self, error: Exception) -> None:
        """Let batches have half as many rows from now on, if memory ran out; any other ``error`` is raised."""
        self._size.halve(self._device, error)


def some_rows(rows: Any, chosen: list[bool]) -> Any:
    """Return these rows, None if there are none: in memory of their own, as what waits must not keep alive the batch in
    which it was computed."""
    if all(chosen) or not any(chosen):
        return rows if any(chosen) else None
    index = [i for i, one in enumerate(chosen) if one]
    return rows[torch.tensor(index, device=rows.step.device)]


def integrate_steps(path: SequentialPath, problem: Problem, reduce: Reduce | None = None) -> PathIntegral:
    """Walk paths step by step, many side by side, and add up each step times the gradient where it departs.

    A step costs a forward pass and a VJP, or what the path's direction takes. At the last point only the score is
    evaluated.

    Args:
        path: The paths.
        problem: The images and the model. The caller holds ``problem.model.session`` open.
        reduce: For several paths per image: whether their integrals are summed or averaged; None: there is one.

    Returns:
        The integral of each image.
    """
    start, images, weight = path.start(problem), None, None
    if reduce is not None:
        images = start.image
    if reduce == "mean":
        weight = start.image.bincount(minlength=len(problem.inputs))[start.image].double().reciprocal()
    every_geodesic = Geodesic.between(log_probabilities(problem.logits))[start.image]
    planned, progress = [int(total) for total in start.total.tolist()], [0] * len(start)
    measures = ("euclidean_step", "fisher_rao_step", *AT_POINTS)
    sums = Sums(problem, planned, every_geodesic, measures, path.begins, images, weight)
    queues = Queues(problem, some_rows(start, [steps > 0 for steps in planned]))

    def look(batch: Steps, *, closing: bool) -> tuple[Point, Tensor, Tensor, list[list[int]], Steps | None]:
        """The points, predictions there, which of them are finite, what the host needs to know (the numbers of the
        paths, their steps, whether they are finite, whether they go on), and where those that go on are then."""
        x = path.begin(problem, batch.image) if batch.x is None else batch.x
        at = replace(batch, x=x)
        at = path.close(problem, at) if closing else path.evaluate(problem, at)
        finite, log_p = all_finite(at.logits, at.gradient, at.direction), log_probabilities(at.logits)
        goes_on = finite & (batch.step < path.steps)
        goes_on = goes_on if at.done is None else goes_on & ~at.done
        point = Point(x, problem.score(at.logits, batch.image), at.gradient)
        after = None
        # the host waits for the device but once
        on_host = torch.stack([batch.path, batch.step, finite, goes_on]).tolist()
        if any(on_host[-1]):
            origin = path.origin(problem, batch, x)
            moved = path.advance(problem, batch, origin, at.direction)
            after = replace(batch, step=batch.step + 1, x=moved, point=replace(point, x=origin), log_p=log_p)
        return point, log_p, finite, on_host, after

    while (found := queues.next()) is not None:
        kind, batch = found
        try:
            point, log_p, finite, on_host, after = look(batch, closing=kind == "close")
        except (RuntimeError, MemoryError) as error:
            queues.halve(error)
            continue
        queues.done(kind, len(batch))
        row, (numbers, steps, are_finite, going) = batch.path, on_host
        if after is not None:
            last = [step + 1 >= path.steps for step in steps]
            for queue, is_last in (("step", False), ("close", True)):
                chosen = [bool(goes) and end is is_last for goes, end in zip(going, last, strict=True)]
                queues.wait(queue, some_rows(after, chosen))
        for number, is_finite in zip(numbers, are_finite, strict=True):
            sums.finite[number] &= bool(is_finite)
        if batch.point is None or batch.log_p is None:
            continue

        # the segment between the last point and this one, from the baseline's end to the input's; one that leads to a
        # point that is not finite has no length
        before, both = batch.point, (batch.log_p, log_p)
        x, score = (
            torch.where(batch_view(finite, a), a, b) for a, b in ((point.x, before.x), (point.score, before.score))
        )
        after_point = Point(x, score, point.gradient)
        from_input, at_input, at_end = path.begins == "input", batch.step == 1, torch.ones_like(finite)
        far, near = (after_point, before) if from_input else (before, after_point)
        if not from_input:
            at_input, at_end = batch.step == start.total[row], at_input
        # scores at the ends are taken from the path's own points, so that the sum telescopes exactly
        sums.score[row] = torch.where(finite & at_input, near.score, sums.score[row])
        sums.endpoint_score[row] = torch.where(finite & at_end, far.score, sums.endpoint_score[row])
        distance = batch.step if from_input else path.steps - batch.step + 1  # steps of the far end from the input
        geodesic = every_geodesic[row]
        measured = geodesic.measured(both[from_input], geodesic.at(distance.double() / path.steps))
        length = (point.x - before.x).flatten(1).double().norm(dim=1)
        stats = torch.cat([torch.stack([length, fisher_rao_step(*both)], 1), measured], 1)
        sums.see(row, batch.step, far.x, stats, {"score": far.score}, finite)
        value = before.gradient * (near.x - far.x)
        sums.add(row, batch.step, torch.where(batch_view(finite, value), value, 0.0))
        for number, step, goes in zip(numbers, steps, going, strict=True):
            progress[number] = step if goes else planned[number]
        sums.counter.reach(sum(progress))
    return sums.result()
