"""The path from an image to its blurred self."""

from typing import Literal

import torch
from torch import Tensor

from fringe.errors import InputError
from fringe.paths.nodes import Node, Nodes

TRUNCATE = 4.0
"""Standard deviations that a kernel reaches."""

FORWARD_STEP = 0.01
"""Pixels of sigma over which the authors' code takes its forward difference."""

Displacements = Literal["chord", "derivative"]


class BlurLine(Nodes):
    """Images ``z(sigma) = G_sigma * x`` at ascending ``sigmas`` (S + 1,) in pixels, the first 0: zeros beyond the edge.

    ``"chord"`` is the trapezoid rule on the chords between these S + 1 images, which telescope from the input to the
    end. ``"derivative"`` multiplies the first S of them by a forward difference over sigma, the left rule in sigma.
    """

    def __init__(self, inputs: Tensor, sigmas: Tensor, displacements: Displacements = "chord"):
        if inputs.dim() != 4:
            raise InputError(f"inputs: got shape {tuple(inputs.shape)}, expected images (B, C, H, W) to blur")
        self.inputs, self.sigmas, self.displacements = inputs, sigmas.double().to(inputs.device), displacements
        self.count = len(sigmas) if displacements == "chord" else len(sigmas) - 1
        self.endpoint = self.blurred(
            torch.arange(len(inputs), device=inputs.device), self.sigmas[-1:].expand(len(inputs))
        )

    def at(self, rows: Tensor, nodes: Tensor) -> Node:
        x, displacement = (self._chords if self.displacements == "chord" else self._derivatives)(rows, nodes)
        return Node(x, displacement, self.sigmas[nodes] / self.sigmas[-1])

    def _chords(self, rows: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Half the way between the neighbours on either side; neighbours within the batch are blurred once."""
        last = len(self.sigmas) - 1
        wanted = torch.cat((nodes, (nodes - 1).clamp_min(0), (nodes + 1).clamp_max(last)))
        each, place = (rows.repeat(3) * (last + 1) + wanted).unique(return_inverse=True)
        images = self.blurred(each // (last + 1), self.sigmas[each % (last + 1)])
        x, before, after = images[place].chunk(3)
        return x, 0.5 * (before - after)

    def _derivatives(self, rows: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
        sigma = self.sigmas[nodes]
        x, further = self.blurred(rows, sigma), self.blurred(rows, sigma + FORWARD_STEP)
        share = (self.sigmas[nodes + 1] - sigma) / FORWARD_STEP
        return x, share.to(x.dtype).view(-1, 1, 1, 1) * (x - further)

    def blurred(self, rows: Tensor, sigmas: Tensor) -> Tensor:
        """Images ``rows`` (L,) under Gaussians of ``sigmas`` (L,) pixels: (L, C, H, W)."""
        distinct, which = sigmas.unique(return_inverse=True)
        z = self.inputs[rows]
        for _ in range(2):  # along the last axis, which then takes its turn as the last but one
            filters = blur_matrices(distinct, z.shape[-1]).to(z.dtype)[which]
            z = (z.flatten(1, 2) @ filters).view(z.shape).transpose(2, 3).contiguous()
        return z


def blur_matrices(sigmas: Tensor, side: int) -> Tensor:
    """Gaussian blurs of a line of ``side`` pixels as symmetric matrices (K, side, side), ``sigmas`` (K,) in pixels.

    Kernels sum to one over ``int(4 sigma + 1/2)`` pixels each way (SciPy's rule: the identity below sigma = 1/8), and
    see zeros beyond the edge. As matrices they cost the same for every sigma, and a batch may mix them.
    """
    radius = (TRUNCATE * sigmas + 0.5).floor()
    reach = torch.arange(max(int(radius.max()) + 1, side), dtype=sigmas.dtype, device=sigmas.device)
    weights = torch.exp(-0.5 * (reach / sigmas.clamp_min(torch.finfo(sigmas.dtype).tiny)[:, None]).square())
    weights = torch.where(reach <= radius[:, None], weights, 0.0)
    weights = weights / (2.0 * weights.sum(1, keepdim=True) - 1.0)
    place = torch.arange(side, device=sigmas.device)
    return weights[:, (place[:, None] - place).abs()]
