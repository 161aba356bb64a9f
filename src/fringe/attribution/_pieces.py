"""Streams of the terms of path integrals: points known beforehand, segments, and segments of several paths."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import torch
from torch import Tensor

from fringe.attribution._base import ProgressCounter
from fringe.attribution._quadrature import Bisection, Correction, Quadrature
from fringe.geometry import dist, log_probabilities, sqrt_chart
from fringe.linalg import add_rows, batch_view
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
)

Reduce = Literal["sum", "mean"]


@dataclass(frozen=True)
class Piece:
    """L terms of path integrals.

    Attributes:
        rows: Paths (L,) that the terms belong to.
        step: Number (L,) of each step, from where its path begins; ascending on each path.
        value: Terms (L, *S), of K classes (L, K, *S).
        weight: What a term counts, (L,) or (L, *S); None: once, and then no path occurs twice.
        stats: Measurements (L,) by name.
        trace: Further measurements (L,) that only a record of the path holds.
        x: Points (L, *S) that a record shows.
    """

    rows: Tensor
    step: Tensor
    value: Tensor
    weight: Tensor | None
    stats: Mapping[str, Tensor]
    trace: Mapping[str, Tensor]
    x: Tensor


class PieceStream(ABC):
    """The terms of the integrals along R paths, and numbers of each path, which are final once all pieces are read.

    Args:
        problem: The images and the model.
        planned: Steps of each path that are known beforehand.
        geodesic: Distances to the reference distribution; None: to the uniform one.
        begins: The end at which paths begin.

    Attributes:
        images: The image (R,) of each path; None: path r is that of image r.
        weight: What each path counts (R,); None: 1.
        scale: What the sum of an image's terms is multiplied by (B, *S); None: 1.
        error: Errors (R,) that were removed from the terms; None: none were.
        taken: Steps taken on each path.
        outcomes: How each path ended.
        score: Score (R,) at the input.
        endpoint_score: Score (R,) at the other end.
    """

    images: Tensor | None = None
    weight: Tensor | None = None
    scale: Tensor | None = None
    error: Tensor | None = None

    def __init__(
        self,
        problem: Problem,
        planned: list[int],
        geodesic: GeodesicDiagnostics | None = None,
        begins: Orientation = "input",
    ):
        self.problem, self.planned = problem, planned
        self.geodesic = geodesic or GeodesicDiagnostics(log_probabilities(problem.logits))
        self.begins: Orientation = begins
        self.taken, self.outcomes = list(planned), [PathStatus.COMPLETE] * len(planned)
        self.score = problem.score(problem.logits)
        self.endpoint_score = self.score.clone()
        self.counter = ProgressCounter(problem.progress, sum(planned))

    @abstractmethod
    def __iter__(self) -> Iterator[Piece | Correction]:
        """Yield the terms of all paths."""

    def count(self, piece: Piece) -> None:
        """Report the progress that a piece makes."""
        self.counter.tick(len(piece.rows))


# -- segments, one after the other ------------------------------------------------------------------------------------


class SegmentPieces(PieceStream):
    """The segments of a sequential path, each integrated by a rule.

    Args:
        path: The path.
        quadrature: The rule.
        problem: The images and the model.
    """

    def __init__(self, path: Path, quadrature: Quadrature, problem: Problem):
        self.run = run = path.run(problem)
        super().__init__(problem, run.planned, run.diagnostics, run.begins)
        self.quadrature = quadrature
        self.taken, self.outcomes = run.steps_taken, run.outcomes
        self._planned = batch_view(torch.tensor(run.planned, device=self.score.device), self.score)
        ends = (sqrt_chart(log_p) for log_p in (run.diagnostics.log_p0, run.diagnostics.log_q))
        self._distance, self._shares = dist(*ends), [0.0] * len(run.planned)
        self._bisection = Bisection(quadrature, problem, run.planned) if quadrature.rule == "adaptive" else None
        if quadrature.rule == "corrected":
            self.error = torch.zeros_like(self.score, dtype=torch.float64)

    def __iter__(self) -> Iterator[Piece | Correction]:
        for s in self.run.segments():
            self._update_scores(s)
            value, error = self.quadrature.integrate(s)
            if self.error is not None and error is not None:
                add_rows(self.error, s.rows, error)
            yield Piece(s.rows, s.step, value, None, s.stats, {"score": s.start.score}, s.start.x)
            if self._bisection is not None and error is not None:
                self._bisection.add(s, error)
                yield from self._bisection.run(full=True)
        if self._bisection is not None:
            yield from self._bisection.run(full=False)

    def count(self, piece: Piece) -> None:
        """Report a step; for a path that may go on until it arrives, report the expected share of its T planned steps.

        After k steps this share is k / T. If a path has no end but its arrival, it is the larger of 1 - 2^(-k / T) and
        the covered part of the distance to the reference. It never falls, and is 1 only on arrival.

        Args:
            piece: Terms of one step.
        """
        stats, step, arrived = piece.stats, piece.step, None
        if self.problem.progress is not None and "reference_kl" in stats:
            arrived = self.run.arrived(piece.rows, step, stats["reference_kl"])
        if arrived is None:
            super().count(piece)
            return
        left = stats["reference_distance"] / self._distance[piece.rows]
        table = torch.stack([column.to(left) for column in (piece.rows, step, left, arrived)], 1)
        for path, k, rest, ended in table.tolist():  # one transfer from the device
            planned = self.planned[row := int(path)]
            share = max(1.0 - 0.5 ** (k / planned), 1.0 - rest) if self.run.open_ended else k / planned
            self._shares[row] = 1.0 if ended else max(min(share, 0.99), self._shares[row])
        self.counter.reach(int(sum(share * planned for share, planned in zip(self._shares, self.planned, strict=True))))

    def _update_scores(self, s: Segment) -> None:
        """Scores at the ends are taken from the path's own points, so that the sum telescopes exactly."""
        at_input, at_end = batch_view(s.step == 1, s.stop.score), s.start.score
        if self.begins == "baseline":
            at_end = torch.where(at_input, at_end, self.endpoint_score[s.rows])
            at_input = batch_view(s.step, s.stop.score) == self._planned[s.rows]
        self.score[s.rows] = torch.where(at_input, s.stop.score, self.score[s.rows])
        self.endpoint_score[s.rows] = at_end


class PooledPieces(PieceStream):
    """The segments of several paths per image, one batch of paths after the other: memory does not grow with them.

    Args:
        path: Describes paths to these goals.
        pairs: The image of each path, and the number of its goal.
        steps: Most steps of a path.
        reduce: Whether the integrals along an image's paths are summed or averaged.
        quadrature: The rule.
        problem: The images and the model.
    """

    def __init__(
        self,
        path: Callable[[tuple[int, ...]], Path],
        pairs: Sequence[tuple[int, int]],
        steps: int,
        reduce: Reduce,
        quadrature: Quadrature,
        problem: Problem,
    ):
        super().__init__(problem, [steps] * len(pairs))
        self.path, self.steps, self.quadrature = path, steps, quadrature
        self.owners, self.goals = zip(*pairs, strict=True)
        self.images = index = torch.tensor(self.owners, device=self.score.device)
        self.score, self.endpoint_score = self.score[index], self.endpoint_score[index]
        if reduce == "mean":
            self.weight = index.bincount(minlength=len(problem.inputs))[index].double().reciprocal()

    def __iter__(self) -> Iterator[Piece | Correction]:
        start, total = 0, len(self.owners)
        quiet = dataclasses.replace(self.problem, progress=None)
        while start < total:
            stop = min(start + self.problem.model.batch_size.on(self.score.device), total)
            part = quiet.select(self.owners[start:stop])
            batch = SegmentPieces(self.path(self.goals[start:stop]), self.quadrature, part)
            for piece in batch:
                yield dataclasses.replace(piece, rows=piece.rows + start)
            self.taken[start:stop], self.outcomes[start:stop] = batch.taken, batch.outcomes
            self.score[start:stop], self.endpoint_score[start:stop] = batch.score, batch.endpoint_score
            start = stop
            self.counter.reach(start * self.steps)


# -- points that are known beforehand ---------------------------------------------------------------------------------


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


class SitePieces(PieceStream):
    """Points known beforehand, parallel over images and over points: ``sum_j g(x_j) * displacement_j``.

    One forward pass and one VJP per point; nothing else is measured.

    Args:
        sites: The points.
        problem: The images and the model.
        weight_fn: Returns the factors of the gradients, instead of the displacements.
    """

    def __init__(self, sites: SampleSet, problem: Problem, weight_fn: WeightFn = _displacement):
        super().__init__(
            problem, [sites.count] * len(problem.inputs), GeodesicDiagnostics(log_probabilities(problem.logits))
        )
        self.sites, self.weight_fn, self.scale = sites, weight_fn, sites.displacement

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
    """The nodes of a path, measured for the path diagnostics: one more forward pass per image, at the end point.

    Args:
        nodes: The nodes.
        problem: The images and the model.
        weight_fn: Returns the factors of the gradients, instead of the displacements.
    """

    def __init__(self, nodes: Nodes, problem: Problem, weight_fn: WeightFn = _displacement):
        super().__init__(nodes, problem, weight_fn)
        self.endpoint, self.planned = nodes.endpoint, [nodes.count + 1] * len(problem.inputs)
        displacement = nodes.displacement
        self._length = torch.ones_like(problem.logits[:, 0]) if displacement is None else _norm(displacement)
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
        stats = self.geodesic.point(at.rows, log_p, self.geodesic.waypoint(at.rows, at.sample.alpha))
        stats["euclidean_step"] = (share.abs() if share.dim() == 1 else _norm(share)) * self._length[at.rows]
        return stats, self._trace(at, log_p) if self.problem.record_path else {}

    def _trace(self, at: Evaluation, log_p: Tensor) -> dict[str, Tensor]:
        """The score, and how far each point is from the one before on its path."""
        if self._before is None:
            self._before = self.problem.inputs.clone(), self.geodesic.log_p0.clone()
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
    runs = [(image, sum(1 for _ in group)) for image, group in groupby(rows.tolist())]
    counts = [count for _, count in runs]
    parts = zip(runs, weight.to(values.dtype).split(counts), values.split(counts), strict=True)
    for (image, _), weights, terms in parts:  # apart: a NaN stays with its image
        total[image] += (weights @ terms.flatten(1)).view_as(total[image])


def finite_maps(values: Tensor) -> list[bool]:
    """Which maps (B, *S) hold neither NaN nor infinity."""
    return torch.isfinite(values).flatten(1).all(1).tolist()


def _norm(x: Tensor) -> Tensor:
    """Euclidean norm (L,) of each row of ``x`` (L, *S)."""
    return torch.linalg.vector_norm(x, dim=tuple(range(1, x.dim())))
