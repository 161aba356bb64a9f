"""Integrate gradients at points that are known beforehand: parallel over images and over points."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from fringe.attribution.base import Request
from fringe.attribution.integral import completeness_gap
from fringe.attribution.path_integral import Integrated
from fringe.attribution.telemetry import Recorder, Summary
from fringe.classifier import Classifier
from fringe.geometry import geometry_dtype, log_probabilities
from fringe.paths import GeodesicGauge, Nodes, Outcome, Query, Sample, fisher_rao_step, log_uniform

Weigh = Callable[[Sample, Tensor], Tensor]
"""From a sample and the gradients (L, *S) there to what they contribute (L, *S)."""


def displaced(sample: Sample, gradient: Tensor) -> Tensor:
    """``g * displacement``: the path integral's own term."""
    return gradient * sample.displacement


def integrate_nodes(
    nodes: Nodes, classifier: Classifier, query: Query, request: Request, weigh: Weigh = displaced
) -> Integrated:
    """``sum_j g(x_j) * displacement_j`` for each image of ``query``; memory does not grow with the number of nodes.

    Costs one forward pass and one VJP a node, and one forward pass for the end point.
    """
    account = _NodeAccount(nodes, classifier, query, request)
    for rows, columns in chunks(len(query.inputs), nodes.count, lambda: classifier.batch_size.on(query.inputs.device)):
        account.add(rows.to(query.inputs.device), columns.to(query.inputs.device), weigh)
    return account.close()


def chunks(images: int, count: int, size: Callable[[], int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Every (image, node) pair once, nodes of an image in order, ``size()`` pairs at a time: image and node indices."""
    done, total = 0, images * count
    while done < total:
        pairs = torch.arange(done, min(done + size(), total))
        done += len(pairs)
        yield pairs // count, pairs % count


class _NodeAccount:
    """The running totals of one integration."""

    def __init__(self, nodes: Nodes, classifier: Classifier, query: Query, request: Request):
        self.nodes, self.classifier, self.query, self.request = nodes, classifier, query, request
        self.gauge = GeodesicGauge(log_probabilities(query.logits), log_uniform(query.logits))
        self.values = torch.zeros_like(query.inputs, dtype=geometry_dtype(query.inputs.device))
        self.summary = Summary(len(query.inputs), query.inputs.device)
        self.diary = _Diary(nodes.count, query, classifier, self.gauge) if request.telemetry else None
        self.done, self.total = 0, len(query.inputs) * nodes.count

    def add(self, rows: Tensor, columns: Tensor, weigh: Weigh) -> None:
        sample = self.nodes.at(rows, columns)
        logits, gradient = self.classifier.logits_gradient(sample.x, self.query.target[rows])
        share = weigh(sample, gradient).to(self.values.dtype)
        self._measure(rows, columns + 1, sample, logits, share)
        self.done += len(rows)
        if self.request.progress is not None:
            self.request.progress(self.done, self.total)

    def _measure(self, rows: Tensor, steps: Tensor, sample: Sample, logits: Tensor, share: Tensor) -> None:
        log_p = log_probabilities(logits)
        stats = self.gauge.point(rows, log_p, sample.alpha)
        self.summary.add(rows, stats)
        if self.diary is None:
            self.values.index_add_(0, rows, share)
        else:
            score = self.classifier.score(logits, self.query.target[rows])
            self.diary.write(
                rows.tolist(), steps.tolist(), sample.x, log_p, share, {**stats, "score": score}, self.values
            )

    def close(self) -> Integrated:
        query, end, batch = self.query, self.nodes.endpoint, len(self.query.inputs)
        device = self.values.device
        rows, ones = torch.arange(batch, device=device), torch.ones(batch, device=device)
        logits = self.classifier.logits(end)
        last = torch.full_like(rows, self.nodes.count + 1)
        self._measure(rows, last, Sample(end, torch.zeros_like(end), ones), logits, torch.zeros_like(self.values))
        self.summary.add(rows, {"euclidean_step": (query.inputs - end).flatten(1).double().norm(dim=1)})
        score, endpoint = (self.classifier.score(z, query.target) for z in (query.logits, logits))
        return Integrated(
            values=self.values.to(query.inputs.dtype),
            score=score,
            endpoint_score=endpoint,
            gap=completeness_gap(self.values, score.double() - endpoint.double()),
            steps=[self.nodes.count] * batch,
            outcomes=[Outcome.COMPLETE] * batch,
            summary=self.summary,
            trajectories=None if self.diary is None else self.diary.recorder.trajectories(),
        )


class _Diary:
    """Writes down every node in order, and both ends: N + 2 points of each image."""

    def __init__(self, count: int, query: Query, classifier: Classifier, gauge: GeodesicGauge):
        zeros = torch.zeros(len(query.inputs), device=query.inputs.device)
        start = gauge.point(torch.arange(len(zeros), device=zeros.device), gauge.log_p0, zeros)
        score = classifier.score(query.logits, query.target)
        self.recorder = Recorder(query.inputs, [count + 1] * len(zeros), {**start, "score": score})
        self.before = list(zip(query.inputs, gauge.log_p0, strict=True))

    def write(
        self,
        images: list[int],
        steps: list[int],
        x: Tensor,
        log_p: Tensor,
        share: Tensor,
        stats: dict[str, Tensor],
        values: Tensor,
    ) -> None:
        """One point a row; adds each ``share`` to ``values`` (B, *S) in turn, so that a snapshot has what led to it."""
        for row, (image, step) in enumerate(zip(images, steps, strict=True)):
            values[image] += share[row]
            x_before, log_p_before = self.before[image]
            self.before[image] = (x[row], log_p[row])
            measured = {name: float(column[row]) for name, column in stats.items()}
            measured["euclidean_step"] = float((x[row] - x_before).double().norm())
            measured["fisher_rao_step"] = float(fisher_rao_step(log_p_before, log_p[row]))
            self.recorder.visit(image, step, x[row], values[image], measured)
