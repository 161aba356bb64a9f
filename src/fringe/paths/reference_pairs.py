"""Points between each input and references drawn for it."""

import torch
from torch import Tensor

from fringe.paths.nodes import Node, SampleSet


class ReferencePairs(SampleSet):
    """Points ``x'_j + a_j (x - x'_j)``, one on each of m lines: displacement ``(x - x'_j) / m``.

    Line j of image i begins at row ``drawn[i, j]`` of ``references`` (R, *S); ``drawn`` and ``fractions`` a are (B, m).
    """

    def __init__(self, inputs: Tensor, references: Tensor, drawn: Tensor, fractions: Tensor):
        self.inputs, self.references, self.count = inputs, references, drawn.shape[1]
        self.drawn, self.fractions = drawn.to(inputs.device), fractions.to(inputs.device)

    def at(self, rows: Tensor, nodes: Tensor) -> Node:
        start, fraction = self.references[self.drawn[rows, nodes]], self.fractions[rows, nodes]
        way = self.inputs[rows] - start
        x = torch.addcmul(start, fraction.to(way.dtype).view(-1, *[1] * (way.dim() - 1)), way)
        return Node(x, way / self.count, 1.0 - fraction)

    def lengths(self) -> Tensor:
        """Mean Euclidean length of each image's lines: (B,)."""
        flat, ends = self.inputs.flatten(1).double(), self.references.flatten(1).double()
        rows = [(ends[drawn] - x).norm(dim=1).mean() for x, drawn in zip(flat, self.drawn, strict=True)]
        return torch.stack(rows)
