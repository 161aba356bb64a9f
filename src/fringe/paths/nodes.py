"""Paths that are known before they are walked: their points can be visited in any order, many at once."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Sample:
    """Points ``x`` (L, *S) of paths, the ``displacement`` (L, *S) that the gradient at each is multiplied by, and how
    far from the input they lie, as a fraction ``alpha`` (L,) of the path."""

    x: Tensor
    displacement: Tensor
    alpha: Tensor


class Nodes(ABC):
    """N points of each of B paths, numbered from the input to the ``endpoint`` (B, *S).

    A path integral is ``sum_j g(x_j) * displacement_j``: a rule of quadrature is how the displacements share the way.
    """

    count: int
    endpoint: Tensor

    @abstractmethod
    def at(self, rows: Tensor, nodes: Tensor) -> Sample:
        """The points numbered ``nodes`` (L,) on the paths of images ``rows`` (L,)."""


class StraightLine(Nodes):
    """Points ``x' + a (x - x')`` with weights w: displacement ``w (x - x')``.

    ``fractions`` a and ``weights`` are (N,), or (B, N) where they differ between images, from the input (a = 1) on.
    """

    def __init__(self, inputs: Tensor, baseline: Tensor, fractions: Tensor, weights: Tensor):
        self.inputs, self.endpoint, self.count = inputs, baseline, fractions.shape[-1]
        self.fractions = fractions.to(inputs.device).expand(len(inputs), -1)
        self.weights = weights.to(inputs.device).expand(len(inputs), -1)

    def at(self, rows: Tensor, nodes: Tensor) -> Sample:
        start, way = self.endpoint[rows], self.inputs[rows] - self.endpoint[rows]
        shape = (-1, *[1] * (way.dim() - 1))
        fraction, weight = self.fractions[rows, nodes], self.weights[rows, nodes]
        x = start + fraction.to(way.dtype).view(shape) * way
        return Sample(x, weight.to(way.dtype).view(shape) * way, 1.0 - fraction)
