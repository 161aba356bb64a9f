"""Paths whose points are known before the model is evaluated: many points at once, in any order."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fringe._numbers.filters import LARGEST_SIGMA, require_images
from fringe.errors import require
from fringe.linalg import batch_view

#: Standard deviations that a blur kernel covers.
TRUNCATE = 4.0
#: Pixels of sigma over which the authors' code takes its forward difference.
FORWARD_STEP = 0.01

Displacements = Literal["chord", "derivative"]


@dataclass(frozen=True)
class Node:
    """L points of paths, and how much their gradients count.

    Attributes:
        x: The points (L, *S).
        displacement: Factors (L, *S) of the gradient at each point; multiples (L,) of
            :attr:`SampleSet.displacement` if that is not None.
        alpha: Distance of the points from the input as a fraction (L,) of the path.
    """

    x: Tensor
    displacement: Tensor
    alpha: Tensor


class SampleSet(ABC):
    """``count`` N points for each of B images, on one path or on many: ``sum_j g(x_j) * displacement_j``.

    A quadrature rule is how the displacements divide the path.

    Attributes:
        count: Number of points per image.
        displacement: What all displacements of an image are multiples of (B, *S), if there is such a thing: then
            ``sum_j w_j g(x_j)`` is multiplied by it once.
    """

    count: int
    displacement: Tensor | None = None

    @abstractmethod
    def at(self, rows: Tensor, nodes: Tensor) -> Node:
        """Return points by number.

        Args:
            rows: Images (L,).
            nodes: Numbers (L,) of the points, from 0 on.

        Returns:
            The L points.
        """


class Nodes(SampleSet):
    """N points of each of B paths, numbered from the input on.

    Attributes:
        endpoint: End of each path opposite to the input (B, *S).
    """

    endpoint: Tensor


class StraightLine(Nodes):
    """Points ``x' + a (x - x')`` with weights w: displacement ``w (x - x')``.

    Args:
        inputs: The inputs x (B, *S).
        baseline: The baselines x' (B, *S).
        fractions: a (N,), or (B, N) if they differ between images, from the input (a = 1) on.
        weights: w (N,) or (B, N).
    """

    def __init__(self, inputs: Tensor, baseline: Tensor, fractions: Tensor, weights: Tensor):
        self.endpoint, self._displacement, self.count = baseline, inputs - baseline, fractions.shape[-1]
        self.displacement = self._displacement
        self.fractions = fractions.to(inputs.device).expand(len(inputs), -1)
        self.weights = weights.to(inputs.device).expand(len(inputs), -1)

    def at(self, rows: Tensor, nodes: Tensor) -> Node:
        fraction, weight = self.fractions[rows, nodes], self.weights[rows, nodes]
        start, displacement = self.endpoint.index_select(0, rows), self._displacement.index_select(0, rows)
        x = start.addcmul_(batch_view(fraction.to(displacement.dtype), displacement), displacement)
        return Node(x, weight, 1.0 - fraction)


class ReferencePairs(SampleSet):
    """Points ``x'_j + a_j (x - x'_j)``, one on each of m lines: displacement ``(x - x'_j) / m``.

    Line j of image i begins at row ``drawn[i, j]`` of ``references`` (R, *S); ``drawn`` and ``fractions`` a are (B, m).
    """

    def __init__(self, inputs: Tensor, references: Tensor, drawn: Tensor, fractions: Tensor):
        self.inputs, self.references, self.count = inputs, references, drawn.shape[1]
        self.drawn, self.fractions = drawn.to(inputs.device), fractions.to(inputs.device)

    def at(self, rows: Tensor, nodes: Tensor) -> Node:
        start, fraction = self.references[self.drawn[rows, nodes]], self.fractions[rows, nodes]
        line = self.inputs[rows] - start
        x = torch.addcmul(start, batch_view(fraction.to(line.dtype), line), line)
        return Node(x, line / self.count, 1.0 - fraction)

    def lengths(self) -> Tensor:
        """Mean Euclidean length of each image's lines: (B,)."""
        flat, ends = self.inputs.flatten(1).double(), self.references.flatten(1).double()
        rows = [(ends[drawn] - x).norm(dim=1).mean() for x, drawn in zip(flat, self.drawn, strict=True)]
        return torch.stack(rows)


# -- polylines --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Polyline:
    """B polylines of V vertices each, from the input to the baseline.

    Attributes:
        points: All vertices (P, *S).
        route: Rows of ``points`` that are the vertices of each polyline (B, V); a point may occur more than once.
    """

    points: Tensor
    route: Tensor

    @classmethod
    def from_vertices(cls, vertices: Tensor) -> "Polyline":
        """Build polylines that share no points.

        Args:
            vertices: Vertices of each polyline (B, V, *S), the input first.

        Returns:
            The polylines.
        """
        batch, count = vertices.shape[:2]
        return cls(vertices.flatten(0, 1), torch.arange(batch * count, device=vertices.device).view(batch, count))

    def vertex(self, rows: Tensor, k: Tensor) -> Tensor:
        """Return vertices by number.

        Args:
            rows: Images (L,).
            k: Numbers (L,) of the vertices, from 0 on.

        Returns:
            The vertices (L, *S).
        """
        return self.points[self.route[rows, k]]

    def lengths(self) -> Tensor:
        """Measure the pieces.

        Returns:
            Euclidean length of each of the V - 1 pieces: (B, V - 1), in float64.
        """
        pieces = [self.points[b] - self.points[a] for a, b in zip(self.route.T, self.route.T[1:], strict=False)]
        return torch.stack([p.flatten(1).double().norm(dim=1) for p in pieces], 1)

    def alphas(self) -> Tensor:
        """Measure how far from the input each vertex lies.

        Returns:
            Fractions of the length (B, V); on a polyline of length 0 all pieces have equal shares.
        """
        lengths = self.lengths()
        shares = torch.where(lengths.sum(1, keepdim=True) > 0, lengths, 1.0)
        alphas = torch.nn.functional.pad(shares.cumsum(1), (1, 0))
        return alphas / alphas[:, -1:]


class Vertices(Nodes):
    r"""The trapezoid rule at the vertices: displacement ``(z_{k-1} - z_{k+1}) / 2``, one-sided at the ends.

    .. math:: \sum_k \tfrac12 (g_k + g_{k+1}) \odot (z_k - z_{k+1}) = \sum_k g_k \odot \tfrac12 (z_{k-1} - z_{k+1})

    Args:
        line: The polylines.
    """

    def __init__(self, line: Polyline):
        self.line, self.count = line, line.route.shape[1]
        self.endpoint = line.points[line.route[:, -1]]
        self._alphas = line.alphas()

    def at(self, rows: Tensor, nodes: Tensor) -> Node:
        before, after = (nodes - 1).clamp_min(0), (nodes + 1).clamp_max(self.count - 1)
        displacement = 0.5 * (self.line.vertex(rows, before) - self.line.vertex(rows, after))
        return Node(self.line.vertex(rows, nodes), displacement, self._alphas[rows, nodes])


class PiecewiseNodes(Nodes):
    """A quadrature rule on every piece of polylines.

    Args:
        line: The polylines.
        fractions: Nodes (q,) of the rule on [0, 1], from the input's end (1) of a piece on.
        weights: Their weights (q,).
    """

    def __init__(self, line: Polyline, fractions: Tensor, weights: Tensor):
        self.line, self.order = line, len(fractions)
        self.count = (line.route.shape[1] - 1) * self.order
        self.endpoint = line.points[line.route[:, -1]]
        self.fractions, self.weights = fractions.to(self.endpoint.device), weights.to(self.endpoint.device)
        self._alphas = line.alphas()

    def at(self, rows: Tensor, nodes: Tensor) -> Node:
        piece, index = nodes // self.order, nodes % self.order
        start, stop = self.line.vertex(rows, piece + 1), self.line.vertex(rows, piece)
        fraction, weight, displacement = self.fractions[index], self.weights[index], stop - start
        alpha = fraction * self._alphas[rows, piece] + (1 - fraction) * self._alphas[rows, piece + 1]
        x = start + batch_view(fraction.to(start.dtype), start) * displacement
        return Node(x, batch_view(weight.to(start.dtype), start) * displacement, alpha)


def authors_spacing(vertices: Tensor) -> Tensor:
    """Respace polylines (B, N, *S) as the published code of Geodesic IG does.

    Every piece is cut into ``floor(N length / longest length)`` equal parts, cuts and both ends are listed (joints
    twice), and N points are taken at equal intervals of the list, rounded down.
    """
    count = vertices.shape[1]
    lengths = Polyline.from_vertices(vertices).lengths()
    parts = torch.where(lengths > 0, count * lengths / lengths.amax(1, keepdim=True), 0.0).long().tolist()
    chosen = torch.tensor([_cuts(row, count) for row in parts], dtype=torch.float64, device=vertices.device)
    return _between(vertices, chosen[..., 0].long(), chosen[..., 1])


def _cuts(parts: list[int], count: int) -> list[tuple[int, float]]:
    """``count`` entries (piece, fraction of it) of the list of all cuts."""
    cuts = [(0, 0.0)]
    for piece, n in enumerate(parts):
        cuts += [(piece, k / n if n else 0.0) for k in range(n + 1)]
    return [cuts[int(index)] for index in torch.linspace(0, len(cuts) - 1, count, dtype=torch.float32).tolist()]


def _between(vertices: Tensor, piece: Tensor, fraction: Tensor) -> Tensor:
    """Points at ``fraction`` (B, N) of the line from vertex ``piece`` (B, N) to the next."""
    rows = torch.arange(len(vertices), device=vertices.device)[:, None]
    start, stop = vertices[rows, piece], vertices[rows, piece + 1]
    return start + batch_view(fraction.to(start.dtype), start) * (stop - start)


# -- the path from an image to its blurred version --------------------------------------------------------------------


class BlurLine(Nodes):
    """Images ``z(sigma) = G_sigma * x`` at ascending ``sigmas`` (S + 1,) in pixels, the first 0: zeros beyond the edge.

    ``"chord"`` is the trapezoid rule on the chords between these S + 1 images, which telescope from the input to the
    end. ``"derivative"`` multiplies the first S of them by a forward difference over sigma, the left rule in sigma.
    """

    def __init__(self, inputs: Tensor, sigmas: Tensor, displacements: Displacements = "chord"):
        require_images(inputs, "to blur")
        self.inputs, self.sigmas, self.displacements = inputs, sigmas.double().to(inputs.device), displacements
        self.count = len(sigmas) if displacements == "chord" else len(sigmas) - 1
        every = torch.arange(len(inputs), device=inputs.device)
        self.endpoint = self.blurred(every, self.sigmas[-1:].expand(len(inputs)))

    def at(self, rows: Tensor, nodes: Tensor) -> Node:
        sigma, count = self.sigmas[nodes], len(self.sigmas)
        if self.displacements == "chord":  # half the difference of the neighbours, each of the batch blurred once
            needed = torch.cat((nodes, (nodes - 1).clamp_min(0), (nodes + 1).clamp_max(count - 1)))
            distinct, index = (rows.repeat(3) * count + needed).unique(return_inverse=True)
            images = self.blurred(distinct // count, self.sigmas[distinct % count])
            x, before, after = images[index].chunk(3)
            displacement = 0.5 * (before - after)
        else:
            x, further = self.blurred(rows, sigma), self.blurred(rows, sigma + FORWARD_STEP)
            share = (self.sigmas[nodes + 1] - sigma) / FORWARD_STEP
            displacement = batch_view(share.to(x.dtype), x) * (x - further)
        return Node(x, displacement, sigma / self.sigmas[-1])

    def blurred(self, rows: Tensor, sigmas: Tensor) -> Tensor:
        """Blur images ``rows`` (L,) by Gaussians of ``sigmas`` (L,) pixels: (L, C, H, W)."""
        distinct, which = sigmas.unique(return_inverse=True)
        z = self.inputs[rows]
        for _ in range(2):  # along the last axis, which then changes places with the one before it
            filters = blur_matrices(distinct, z.shape[-1]).to(z.dtype)[which]
            z = (z.flatten(1, 2) @ filters).view(z.shape).transpose(2, 3).contiguous()
        return z


def blur_matrices(sigmas: Tensor, side: int) -> Tensor:
    """Gaussian blurs of a line of ``side`` pixels as symmetric matrices (K, side, side), ``sigmas`` (K,) in pixels.

    Kernels sum to one over ``int(4 sigma + 1/2)`` pixels on either side (SciPy's rule: the identity below sigma = 1/8),
    with zeros beyond the edge. As matrices they cost the same for every sigma, and a batch may mix them.
    """
    radius = (TRUNCATE * sigmas + 0.5).floor()
    longest = int(radius.max())
    require(longest <= TRUNCATE * LARGEST_SIGMA, "sigma", longest / TRUNCATE, f"at most {LARGEST_SIGMA} pixels")
    offset = torch.arange(max(longest + 1, side), dtype=sigmas.dtype, device=sigmas.device)
    weights = torch.exp(-0.5 * (offset / sigmas.clamp_min(torch.finfo(sigmas.dtype).tiny)[:, None]).square())
    weights = torch.where(offset <= radius[:, None], weights, 0.0)
    weights = weights / (2.0 * weights.sum(1, keepdim=True) - 1.0)
    pixel = torch.arange(side, device=sigmas.device)
    return weights[:, (pixel[:, None] - pixel).abs()]


# -- the path that adds the spectral components of an image, the strong ones first ------------------------------------


class SpectralLine(Nodes):
    r"""Images ``x' + sum_i m_i(a) D_i`` at a = 0, 1/N, ..., 1 - 1/N, with the singular parts D_i of each channel of
    D = x - x'. By the left rule in the order from the baseline to the input, N gradients.

    Part i enters, with its singular value r_i as a share of the channel's largest, along the gate
    :math:`m_i(a) = \mathrm{clip}((a - (1 - o)(1 - r_i)) / o, 0, 1)`: with the overlap o = 1 all enter together, which
    is the straight line.

    Args:
        inputs: Images x (B, C, H, W).
        baseline: Baselines x' (B, C, H, W).
        steps: Number N of intervals.
        overlap: o, above 0.
    """

    def __init__(self, inputs: Tensor, baseline: Tensor, steps: int, overlap: float) -> None:
        require_images(inputs, "with a spectrum")
        self.inputs, self.endpoint, self.count, self.overlap = inputs, baseline, steps, overlap
        self._left, self._amplitude, self._right = torch.linalg.svd(inputs - baseline, full_matrices=False)
        top = self._amplitude[..., :1].clamp_min(torch.finfo(self._amplitude.dtype).tiny)
        self._strength = self._amplitude / top

    def at(self, rows: Tensor, nodes: Tensor) -> Node:
        """Return nodes by number: node 0 is that nearest to the input."""
        k = self.count - 1 - nodes
        x = self._points(rows, k)
        return Node(x, self._points(rows, k + 1) - x, 1.0 - k.double() / self.count)

    def _points(self, rows: Tensor, k: Tensor) -> Tensor:
        """The images at a = k / N (L,): (L, C, H, W)."""
        strength = self._strength[rows]
        a = batch_view(k.to(strength.dtype) / self.count, strength)
        gate = ((a - (1.0 - self.overlap) * (1.0 - strength)) / self.overlap).clamp(0.0, 1.0)
        amplitude = gate * self._amplitude[rows]
        x = self.endpoint[rows] + (self._left[rows] * amplitude[..., None, :]) @ self._right[rows]
        return torch.where((k == self.count).view(-1, 1, 1, 1), self.inputs[rows], x)
