"""Integrate gradients at points that are known beforehand: parallel over images and over points."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fringe.attribution.integral import completeness_gap
from fringe.attribution.path_integral import Integrated
from fringe.attribution.telemetry import Recorder, Summary
from fringe.geometry import geometry_dtype, log_probabilities
from fringe.paths import GeodesicGauge, Nodes, Outcome, Problem, Sample, Sites, fisher_rao_step, log_uniform


@dataclass(frozen=True)
class Visit:
    """Nodes visited together: those numbered ``nodes`` (L,) of images ``rows`` (L,), their ``sample``, and the
    ``logits`` (L, C) and the score's ``gradient`` (L, *S) there."""

    rows: Tensor
    nodes: Tensor
    sample: Sample
    logits: Tensor
    gradient: Tensor


Weigh = Callable[[Visit], Tensor]
"""From what was found at nodes to what their gradients are multiplied by; usually the displacements."""


def displacement(visit: Visit) -> Tensor:
    """The path integral's own factor."""
    return visit.sample.displacement


def integrate_nodes(nodes: Nodes, problem: Problem, weigh: Weigh = displacement) -> Integrated:
    """``sum_j g(x_j) * displacement_j`` for each image of ``problem``; memory does not grow with the number of nodes.

    Costs one forward pass and one VJP a node, and one forward pass for the end point.
    """
    account = _NodeAccount(nodes, problem)
    for visit in visits(nodes, problem, problem.every_row):
        account.add(visit, weigh(visit))
    return account.close()


def sum_nodes(sites: Sites, problem: Problem, images: Tensor, tick: Callable[[int], None] | None = None) -> Tensor:
    """``sum_j g(x_j) * displacement_j`` (L, *S) for sites that belong to ``images`` (L,), in the dtype of the geometry,
    with nothing measured on the way: one forward pass and one VJP a point. ``tick`` hears how many points were done.
    """
    like = problem.inputs
    total = torch.zeros((len(images), *like.shape[1:]), dtype=geometry_dtype(like.device), device=like.device)
    for visit in visits(sites, problem, images):
        add_weighted(total, visit.rows, visit.sample.displacement, visit.gradient)
        if tick is not None:
            tick(len(visit.rows))
    return total if sites.way is None else total * sites.way


def visits(nodes: Sites, problem: Problem, images: Tensor) -> Iterator[Visit]:
    """Every node of every path once, those of a path in order, a batch at a time; path i belongs to ``images[i]``."""
    for rows, columns in chunks(problem, nodes.count, len(images)):
        sample = nodes.at(rows, columns)
        yield Visit(rows, columns, sample, *problem.logits_gradient(sample.x, images[rows]))


def chunks(problem: Problem, count: int, paths: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Every (path, node) pair once, ``count`` nodes of a path in order, a batch at a time: path and node indices. There
    is one path an image, unless ``paths`` says otherwise."""
    device, done, total = problem.inputs.device, 0, (len(problem.inputs) if paths is None else paths) * count
    while done < total:
        pairs = torch.arange(done, min(done + problem.model.batch_size.on(device), total), device=device)
        done += len(pairs)
        yield pairs // count, pairs % count


def add_weighted(total: Tensor, rows: Tensor, factor: Tensor, gradient: Tensor) -> None:
    """Add to ``total`` (B, *S) at ``rows`` (L,), in ascending order, the ``gradient`` (L, *S) times ``factor``: numbers
    (L,), or tensors (L, *S).

    The terms of an image are summed in their own precision, as one product, before they join its total.
    """
    if factor.dim() > 1:
        gradient, factor = gradient * factor, torch.ones_like(factor.flatten(1)[:, 0])
    images, counts = rows.unique_consecutive(return_counts=True)
    parts = zip(factor.to(gradient.dtype).split(counts.tolist()), gradient.split(counts.tolist()), strict=True)
    for image, (weights, terms) in zip(images.tolist(), parts, strict=True):  # apart: a NaN stays with its image
        total[image] += (weights @ terms.flatten(1)).view_as(total[image])


class _NodeAccount:
    """The running totals of one integration."""

    def __init__(self, nodes: Nodes, problem: Problem):
        self.nodes, self.problem = nodes, problem
        self.gauge = GeodesicGauge(log_probabilities(problem.logits), log_uniform(problem.logits))
        self.total = torch.zeros_like(problem.inputs, dtype=geometry_dtype(problem.inputs.device))
        self.length = torch.ones_like(problem.logits[:, 0]) if nodes.way is None else _norm(nodes.way)
        self.summary = Summary(len(problem.inputs), problem.inputs.device)
        self.diary = _Diary(nodes, problem, self.gauge) if problem.record_path else None
        self.done, self.planned = 0, len(problem.inputs) * nodes.count

    def add(self, visit: Visit, factor: Tensor) -> None:
        add_weighted(self.total, visit.rows, factor, visit.gradient)
        self._measure(visit, factor)
        self.done += len(visit.rows)
        if self.problem.progress is not None:
            self.problem.progress(self.done, self.planned)

    def _measure(self, visit: Visit, factor: Tensor) -> None:
        log_p, share = log_probabilities(visit.logits), visit.sample.displacement
        stats = self.gauge.point(visit.rows, log_p, visit.sample.alpha)
        stats["euclidean_step"] = (share.abs() if share.dim() == 1 else _norm(share)) * self.length[visit.rows]
        self.summary.add(visit.rows, stats)
        if self.diary is not None:
            stats["score"] = self.problem.score(visit.logits, visit.rows)
            self.diary.write(visit, factor, log_p, stats)

    def close(self) -> Integrated:
        problem, end, batch = self.problem, self.nodes.endpoint, len(self.problem.inputs)
        rows = problem.every_row
        logits = problem.forward(end, rows)
        none, whole = torch.zeros(batch, device=end.device), torch.ones(batch, device=end.device)
        last = Visit(rows, torch.full_like(rows, self.nodes.count), Sample(end, none, whole), logits, end)
        self._measure(last, none)
        values = self.total if self.nodes.way is None else self.total * self.nodes.way
        score, endpoint = problem.score(problem.logits), problem.score(logits)
        sound = (torch.isfinite(values).flatten(1).all(1) & torch.isfinite(logits).all(1)).tolist()
        return Integrated(
            values=values.to(problem.inputs.dtype),
            score=score,
            endpoint_score=endpoint,
            gap=completeness_gap(values, score.double() - endpoint.double()),
            steps=[self.nodes.count] * batch,
            outcomes=[Outcome.COMPLETE if ok else Outcome.DIVERGED for ok in sound],
            summary=self.summary,
            trajectories=None if self.diary is None else self.diary.recorder.trajectories(),
        )


class _Diary:
    """Writes down every node in order, and both ends: N + 2 points of each image."""

    def __init__(self, nodes: Nodes, problem: Problem, gauge: GeodesicGauge):
        zeros = torch.zeros(len(problem.inputs), device=problem.inputs.device)
        start = gauge.point(problem.every_row, gauge.log_p0, zeros)
        score = problem.score(problem.logits)
        self.recorder = Recorder(problem.inputs, [nodes.count + 1] * len(zeros), {**start, "score": score})
        self.before = list(zip(problem.inputs, gauge.log_p0, strict=True))
        self.way, self.total = nodes.way, torch.zeros_like(problem.inputs, dtype=gauge.log_p0.dtype)

    def write(self, visit: Visit, factor: Tensor, log_p: Tensor, stats: dict[str, Tensor]) -> None:
        """One point a row, each with the attribution that led to it."""
        for row, (image, node) in enumerate(zip(visit.rows.tolist(), visit.nodes.tolist(), strict=True)):
            self.total[image] += factor[row] * visit.gradient[row]
            so_far = self.total[image] if self.way is None else self.total[image] * self.way[image]
            x, x_before, log_p_before = visit.sample.x[row], *self.before[image]
            self.before[image] = (x, log_p[row])
            measured = {name: float(column[row]) for name, column in stats.items()}
            measured["euclidean_step"] = float((x - x_before).double().norm())
            measured["fisher_rao_step"] = float(fisher_rao_step(log_p_before, log_p[row]))
            self.recorder.visit(image, node + 1, x, so_far, measured)


def _norm(x: Tensor) -> Tensor:
    """Euclidean norm (L,) of each row of ``x`` (L, *S)."""
    return torch.linalg.vector_norm(x, dim=tuple(range(1, x.dim())))
