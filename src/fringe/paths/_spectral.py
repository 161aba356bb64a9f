"""The path that adds the spectral components of an image one after the other, the strong ones first."""

from typing import Literal

import torch
from torch import Tensor

from fringe._filters import require_images
from fringe.linalg import LaplacianBasis, batch_view
from fringe.paths._lines import Node, Nodes

#: Singular vectors of each channel or of all channels below one another, or cosines of rising frequency.
Basis = Literal["svd", "joint_svd", "dct"]
#: The left rule in the order from the baseline to the input, or the trapezoid rule.
SpectralRule = Literal["left", "trapezoid"]


class SpectralLine(Nodes):
    r"""Images ``x' + sum_i m_i(a) D_i`` at a = 0, 1/N, ..., 1, with the components D_i of D = x - x'.

    Component i of strength r_i in [0, 1] enters along the gate
    :math:`m_i(a) = \mathrm{clip}((a - (1 - o)(1 - r_i)) / o, 0, 1)`: with the overlap o = 1 all enter together, which
    is the straight line.

    Args:
        inputs: Images x (B, C, H, W).
        baseline: Baselines x' (B, C, H, W).
        steps: Number N of intervals.
        overlap: o, above 0.
        basis: What the components are.
        rule: The quadrature rule: N nodes, or N + 1 for the trapezoid rule.
    """

    def __init__(
        self, inputs: Tensor, baseline: Tensor, steps: int, overlap: float, basis: Basis, rule: SpectralRule
    ) -> None:
        require_images(inputs, "with a spectrum")
        self.endpoint, self.steps, self.overlap, self.rule = baseline, steps, overlap, rule
        self.inputs, self.count = inputs, steps + (rule == "trapezoid")
        difference, self._cosines = inputs - baseline, None
        if basis == "dct":
            height, width = inputs.shape[-2:]
            self._cosines = LaplacianBasis((height, width)).operator(_lowness(height, width), inputs)
            self._amplitude, self._strength = self._cosines.to_modes(difference), self._cosines.symbol[None, None]
        else:
            matrices = difference if basis == "svd" else difference.flatten(1, 2)[:, None]
            self._left, amplitude, self._right = torch.linalg.svd(matrices, full_matrices=False)
            top = amplitude[..., :1].clamp_min(torch.finfo(amplitude.dtype).tiny)
            self._amplitude, self._strength = amplitude, amplitude / top

    def at(self, rows: Tensor, nodes: Tensor) -> Node:
        """Return nodes by number: node 0 is that nearest to the input."""
        last = self.steps if self.rule == "trapezoid" else self.steps - 1
        k = last - nodes
        x = self._points(rows, k)
        if self.rule == "left":
            displacement = self._points(rows, k + 1) - x
        else:
            after, before = (k + 1).clamp_max(self.steps), (k - 1).clamp_min(0)
            displacement = 0.5 * (self._points(rows, after) - self._points(rows, before))
        return Node(x, displacement, 1.0 - k.double() / self.steps)

    def _points(self, rows: Tensor, k: Tensor) -> Tensor:
        """The images at a = k / N (L,): (L, C, H, W)."""
        strength = self._strength[rows] if self._cosines is None else self._strength
        a = batch_view(k.to(strength.dtype) / self.steps, strength)
        gate = ((a - (1.0 - self.overlap) * (1.0 - strength)) / self.overlap).clamp(0.0, 1.0)
        amplitude = gate * self._amplitude[rows]
        if self._cosines is None:
            change = (self._left[rows] * amplitude[..., None, :]) @ self._right[rows]
        else:
            change = self._cosines.from_modes(amplitude)
        x = self.endpoint[rows] + change.view_as(self.inputs[rows])
        return torch.where((k == self.steps).view(-1, 1, 1, 1), self.inputs[rows], x)


def _lowness(*sides: int) -> Tensor:
    """Strengths (H, W) of frequencies: 1 for the constant, 0 for the highest of both axes."""
    height, width = (torch.linspace(0, 1, side, dtype=torch.float64) for side in sides)
    radius = (height[:, None].square() + width.square()).sqrt()
    return 1.0 - radius / radius.max().clamp_min(1e-10)
