"""Terms of path integrals at points that are known beforehand."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fringe.attribution._integrate import IntegralTerms, Sums, finite_maps
from fringe.geometry import log_probabilities
from fringe.linalg import batch_view
from fringe.paths import AT_POINTS, Geodesic, Node, Nodes, PathStatus, Problem, SampleSet, fisher_rao_step


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
        sums.outcomes = [PathStatus.COMPLETE if ok else PathStatus.DIVERGED for ok in finite_maps(logits)]
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
