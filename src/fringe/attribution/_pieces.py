"""Streams of the terms of path integrals: points known beforehand, segments, and segments of several paths."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fringe.attribution._base import ProgressCounter
from fringe.attribution._quadrature import Quadrature, batch_view, segment_error
from fringe.geometry import log_probabilities
from fringe.paths import (
    GeodesicDiagnostics,
    Node,
    Nodes,
    Orientation,
    Path,
    PathStatus,
    Problem,
    SampleSet,
    Segment,
    fisher_rao_step,
    uniform_log_probs,
)

Reduce = Literal["sum", "mean"]


@dataclass(frozen=True)
class Piece:
    """L terms ``value`` (L, *S), or (L, K, *S), of path integrals: of paths ``rows`` (L,), ``step`` (L,) steps from
    where each begins, and in that order.

    A term counts ``weight`` times, (L,) or (L, *S); None: once, and then no path occurs twice. ``stats`` (L,) were
    measured there. A record of the path shows the point ``x`` (L, *S), and holds ``trace`` (L,) in place of ``stats``.
    """

    rows: Tensor
    step: Tensor
    value: Tensor
    weight: Tensor | None
    stats: Mapping[str, Tensor]
    trace: Mapping[str, Tensor]
    x: Tensor


class PieceStream(ABC):
    """The terms of the integrals along R paths, and the paths' own numbers: final once all pieces are read.

    ``planned`` steps of each path are known beforehand, ``taken`` and ``outcomes`` afterwards; ``score`` and
    ``endpoint_score`` (R,) are those at the ends. Path r belongs to image ``images[r]`` of the problem, in which it
    counts ``weight[r]``; without ``images``, it is that of image r and counts 1. The sum of an image's terms is
    multiplied by ``scale`` (B, *S), where given. ``error`` (R,) is what the terms were corrected by.
    """

    images: Tensor | None = None
    weight: Tensor | None = None
    scale: Tensor | None = None
    error: Tensor | None = None

    def __init__(self, problem: Problem, planned: list[int], gauge: GeodesicDiagnostics, begins: Orientation = "input"):
        self.problem, self.planned, self.gauge = problem, planned, gauge
        self.begins: Orientation = begins
        self.taken, self.outcomes = list(planned), [PathStatus.COMPLETE] * len(planned)
        self.score = problem.score(problem.logits)
        self.endpoint_score = self.score.clone()
        self.counter = ProgressCounter(problem.progress, sum(planned))

    @abstractmethod
    def __iter__(self) -> Iterator[Piece]: ...


# -- segments, one after the other ------------------------------------------------------------------------------------


class SegmentPieces(PieceStream):
    """The segments of a sequential path, each integrated by a rule."""

    def __init__(self, path: Path, quadrature: Quadrature, problem: Problem):
        self.walk = walk = path.walk(problem)
        super().__init__(problem, walk.planned, walk.gauge, walk.begins)
        self.quadrature = quadrature
        self.taken, self.outcomes = walk.taken, walk.outcomes
        steps = torch.tensor(walk.planned, device=self.score.device)
        self._planned = steps.view(-1, *[1] * (self.score.dim() - 1))
        if quadrature.rule == "corrected":
            self.error = torch.zeros_like(self.score, dtype=torch.float64)

    def __iter__(self) -> Iterator[Piece]:
        for s in self.walk.segments():
            self._meet_ends(s)
            value = self.quadrature.integrate(self.problem, s.rows, s, self._scale)
            if self.error is not None:
                self.error.index_add_(0, s.rows, segment_error(s.start, s.stop))
            yield Piece(s.rows, s.step, value, None, s.stats, {"score": s.start.score}, s.start.x)

    def _meet_ends(self, s: Segment) -> None:
        """Scores at the ends are taken from the path's own points, so that the sum telescopes exactly."""
        first = batch_view(s.step == 1, s.stop.score)
        at_input, at_end = first, torch.ones_like(first)
        if self.begins == "baseline":
            at_input, at_end = batch_view(s.step, s.stop.score) == self._planned[s.rows], first
        self.score[s.rows] = torch.where(at_input, s.stop.score, self.score[s.rows])
        self.endpoint_score[s.rows] = torch.where(at_end, s.start.score, self.endpoint_score[s.rows])

    def _scale(self, s: Segment) -> Tensor:
        """How much the score moves along this segment, or along a mean one so far, whichever is more: (L,)."""
        near, far = self.score[s.rows], s.start.score
        if self.begins == "baseline":
            near, far = s.stop.score, self.endpoint_score[s.rows]
        change = (s.stop.score - s.start.score).double().abs()
        return torch.maximum(change, (near - far).double().abs() / self._planned[s.rows])


@dataclass(frozen=True)
class MultiPath:
    """Several paths of at most ``steps`` steps for each image: path r belongs to image ``images[r]``, and ``path``
    describes those that it is asked for. What an image's paths add up to is summed or averaged."""

    path: Callable[[list[int]], Path]
    images: Sequence[int]
    steps: int
    reduce: Reduce


class PooledPieces(PieceStream):
    """The segments of several paths per image, a batch of paths after the other: memory does not grow with them."""

    def __init__(self, paths: MultiPath, quadrature: Quadrature, problem: Problem):
        gauge = GeodesicDiagnostics(log_probabilities(problem.logits), uniform_log_probs(problem.logits))
        super().__init__(problem, [paths.steps] * len(paths.images), gauge)
        self.paths, self.quadrature = paths, quadrature
        self.images = torch.tensor(paths.images, device=self.score.device)
        self.score, self.endpoint_score = self.score[self.images], self.endpoint_score[self.images]
        if paths.reduce == "mean":
            self.weight = self.images.bincount(minlength=len(problem.inputs))[self.images].double().reciprocal()

    def __iter__(self) -> Iterator[Piece]:
        start, stop, count = 0, 0, len(self.planned)
        quiet = dataclasses.replace(self.problem, progress=None)
        while start < count:
            stop = min(start + self.problem.model.batch_size.on(self.score.device), count)
            part = quiet.select(self.paths.images[start:stop])
            batch = SegmentPieces(self.paths.path(list(range(start, stop))), self.quadrature, part)
            for piece in batch:
                yield dataclasses.replace(piece, rows=piece.rows + start)
            self.taken[start:stop], self.outcomes[start:stop] = batch.taken, batch.outcomes
            self.score[start:stop], self.endpoint_score[start:stop] = batch.score, batch.endpoint_score
            start = stop
            self.counter.reach(start * self.paths.steps)


# -- points that are known beforehand ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evaluation:
    """Nodes evaluated together: those numbered ``nodes`` (L,) of images ``rows`` (L,), their ``sample``, and the
    ``logits`` (L, C) and the score's ``gradient`` (L, *S) there."""

    rows: Tensor
    nodes: Tensor
    sample: Node
    logits: Tensor
    gradient: Tensor


WeightFn = Callable[[Evaluation], Tensor]
"""From what was computed at nodes to what their gradients are multiplied by; usually the displacements."""


class SitePieces(PieceStream):
    """Points known beforehand, parallel over images and over points: ``sum_j g(x_j) * displacement_j``, or what
    ``weight_fn`` multiplies the gradients by. One forward pass and one VJP per point; nothing else is measured."""

    def __init__(self, sites: SampleSet, problem: Problem, weight_fn: WeightFn = lambda at: at.sample.displacement):
        gauge = GeodesicDiagnostics(log_probabilities(problem.logits), uniform_log_probs(problem.logits))
        super().__init__(problem, [sites.count] * len(problem.inputs), gauge)
        self.sites, self.weight_fn, self.scale = sites, weight_fn, sites.way

    def __iter__(self) -> Iterator[Piece]:
        problem = self.problem
        for rows, columns in iter_batches(problem, self.sites.count):
            sample = self.sites.at(rows, columns)
            at = Evaluation(rows, columns, sample, *problem.logits_gradient(sample.x, rows))
            yield Piece(rows, columns + 1, at.gradient, self.weight_fn(at), *self._measure(at), sample.x)

    def _measure(self, at: Evaluation) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Statistics, and what a record holds beside them."""
        return {}, {}


class NodePieces(SitePieces):
    """The nodes of a path, with what the path diagnostics need: one more forward pass per image, for the end point."""

    def __init__(self, nodes: Nodes, problem: Problem, weight_fn: WeightFn = lambda at: at.sample.displacement):
        super().__init__(nodes, problem, weight_fn)
        self.endpoint, self.planned = nodes.endpoint, [nodes.count + 1] * len(problem.inputs)
        self._length = torch.ones_like(problem.logits[:, 0]) if nodes.way is None else _norm(nodes.way)
        self._before: tuple[Tensor, Tensor] | None = None

    def __iter__(self) -> Iterator[Piece]:
        yield from super().__iter__()
        end, rows = self.endpoint, self.problem.every_row
        logits = self.problem.forward(end, rows)
        self.endpoint_score = self.problem.score(logits)
        self.outcomes = [PathStatus.COMPLETE if ok else PathStatus.DIVERGED for ok in finite_maps(logits)]
        none = torch.zeros(len(end), device=end.device)
        at = Evaluation(rows, torch.full_like(rows, self.sites.count), Node(end, none, none + 1), logits, end)
        yield Piece(rows, at.nodes + 1, torch.zeros_like(end), None, *self._measure(at), end)

    def _measure(self, at: Evaluation) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        log_p, share = log_probabilities(at.logits), at.sample.displacement
        stats = self.gauge.point(at.rows, log_p, at.sample.alpha)
        stats["euclidean_step"] = (share.abs() if share.dim() == 1 else _norm(share)) * self._length[at.rows]
        return stats, self._trace(at, log_p) if self.problem.record_path else {}

    def _trace(self, at: Evaluation, log_p: Tensor) -> dict[str, Tensor]:
        """The score, and how far each point is from the one before on its path."""
        if self._before is None:
            self._before = self.problem.inputs.clone(), self.gauge.log_p0.clone()
        first = at.rows != at.rows.roll(1)
        first[:1] = True
        last, before = first.roll(-1), []
        for latest, now in zip(self._before, (at.sample.x, log_p), strict=True):
            before.append(torch.where(batch_view(first, now), latest[at.rows], now.roll(1, 0)))
            latest[at.rows[last]] = now[last]
        return {
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


def add_weighted(total: Tensor, rows: Tensor, weight: Tensor, values: Tensor) -> None:
    """Add ``values`` (L, *S) times ``weight``, (L,) or (L, *S), to ``total`` (B, *S) at ``rows`` (L,), in ascending
    order. The terms of an image are summed in their own precision, as one product, before they join its total.
    """
    if weight.dim() > 1:
        values, weight = values * weight, torch.ones_like(weight.flatten(1)[:, 0])
    images, counts = rows.unique_consecutive(return_counts=True)
    parts = zip(weight.to(values.dtype).split(counts.tolist()), values.split(counts.tolist()), strict=True)
    for image, (weights, terms) in zip(images.tolist(), parts, strict=True):  # apart: a NaN stays with its image
        total[image] += (weights @ terms.flatten(1)).view_as(total[image])


def finite_maps(values: Tensor) -> list[bool]:
    """Which maps (B, *S) hold neither NaN nor infinity."""
    return torch.isfinite(values).flatten(1).all(1).tolist()


def _norm(x: Tensor) -> Tensor:
    """Euclidean norm (L,) of each row of ``x`` (L, *S)."""
    return torch.linalg.vector_norm(x, dim=tuple(range(1, x.dim())))
