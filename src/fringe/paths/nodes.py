"""Paths that are known before they are walked: their points can be visited in any order, many at once."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Node:
    """Points ``x`` (L, *S) of paths, the ``displacement`` (L, *S) that the gradient at each is multiplied by, and how
    far from the input they lie, as a fraction ``alpha`` (L,) of the path.

    Where there is a :attr:`Sites.way`, displacements are multiples (L,) of it.
    """

    x: Tensor
    displacement: Tensor
    alpha: Tensor


class SampleSet(ABC):
    """``count`` N points for each of B images, on one path or on many.

    Their sum is ``sum_j g(x_j) * displacement_j``: a rule of quadrature is how the displacements share the way.
    ``way`` (B, *S) is what all displacements of an image are multiples of, where there is such a thing: then
    ``sum_j w_j g(x_j)`` is multiplied by it once.
    """

    count: int
    way: Tensor | None = None

    @abstractmethod
    def at(self, rows: Tensor, nodes: Tensor) -> Node:
        """The points numbered ``nodes`` (L,) of images ``rows`` (L,)."""


class Nodes(SampleSet):
    """N points of each of B paths, numbered from the input to the ``endpoint`` (B, *S)."""

    endpoint: Tensor


class StraightLine(Nodes):
    """Points ``x' + a (x - x')`` with weights w: displacement ``w (x - x')``.

    ``fractions`` a and ``weights`` are (N,), or (B, N) where they differ between images, from the input (a = 1) on.
    """

    def __init__(self, inputs: Tensor, baseline: Tensor, fractions: Tensor, weights: Tensor):
        way = inputs - baseline
        self.endpoint, self.way, self.count = baseline, way, fractions.shape[-1]
        self.fractions = fractions.to(inputs.device).expand(len(inputs), -1)
        self.weights = weights.to(inputs.device).expand(len(inputs), -1)
        self._way = way

    def at(self, rows: Tensor, nodes: Tensor) -> Node:
        fraction, weight = self.fractions[rows, nodes], self.weights[rows, nodes]
        start, way = self.endpoint.index_select(0, rows), self._way.index_select(0, rows)
        x = start.addcmul_(fraction.to(way.dtype).view(-1, *[1] * (way.dim() - 1)), way)
        return Node(x, weight, 1.0 - fraction)
