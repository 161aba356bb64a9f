"""Paths that are known before they are walked: their points can be visited in any order, many at once."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fringe.errors import InputError


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


@dataclass(frozen=True)
class Polyline:
    """B polylines of V vertices each: vertex k of image b is row ``route[b, k]`` of ``points`` (P, *S).

    They run from the input to the baseline. ``route`` (B, V) may use a point more than once.
    """

    points: Tensor
    route: Tensor

    def vertex(self, rows: Tensor, k: Tensor) -> Tensor:
        """Vertices ``k`` (L,) of images ``rows`` (L,): (L, *S)."""
        return self.points[self.route[rows, k]]

    def lengths(self) -> Tensor:
        """Euclidean length of each of the V - 1 pieces: (B, V - 1), in float64."""
        pieces = [self.points[b] - self.points[a] for a, b in zip(self.route.T, self.route.T[1:], strict=False)]
        return torch.stack([p.flatten(1).double().norm(dim=1) for p in pieces], 1)

    def ways(self) -> Tensor:
        """How far from the input each vertex lies, as a fraction of the length: (B, V); equal shares where it is 0."""
        lengths = self.lengths()
        shares = torch.where(lengths.sum(1, keepdim=True) > 0, lengths, 1.0)
        way = torch.nn.functional.pad(shares.cumsum(1), (1, 0))
        return way / way[:, -1:]


def stacked(vertices: Tensor) -> Polyline:
    """The polylines with ``vertices`` (B, V, *S)."""
    batch, count = vertices.shape[:2]
    return Polyline(vertices.flatten(0, 1), torch.arange(batch * count, device=vertices.device).view(batch, count))


class Vertices(Nodes):
    r"""The trapezoid rule at the vertices: displacement ``(z_{k-1} - z_{k+1}) / 2``, one-sided at the ends.

    .. math:: \sum_k \tfrac12 (g_k + g_{k+1}) \odot (z_k - z_{k+1}) = \sum_k g_k \odot \tfrac12 (z_{k-1} - z_{k+1})
    """

    def __init__(self, line: Polyline):
        self.line, self.count = line, line.route.shape[1]
        self.endpoint = line.points[line.route[:, -1]]
        self._ways = line.ways()

    def at(self, rows: Tensor, nodes: Tensor) -> Node:
        before, after = (nodes - 1).clamp_min(0), (nodes + 1).clamp_max(self.count - 1)
        displacement = 0.5 * (self.line.vertex(rows, before) - self.line.vertex(rows, after))
        return Node(self.line.vertex(rows, nodes), displacement, self._ways[rows, nodes])


class PiecewiseNodes(Nodes):
    """A rule on every piece: ``fractions`` (q,) of it and their ``weights`` (q,), both from its input's end (1) on."""

    def __init__(self, line: Polyline, fractions: Tensor, weights: Tensor):
        self.line, self.order = line, len(fractions)
        self.count = (line.route.shape[1] - 1) * self.order
        self.endpoint = line.points[line.route[:, -1]]
        self.fractions, self.weights = fractions.to(self.endpoint.device), weights.to(self.endpoint.device)
        self._ways = line.ways()

    def at(self, rows: Tensor, nodes: Tensor) -> Node:
        piece, place = nodes // self.order, nodes % self.order
        start, stop = self.line.vertex(rows, piece + 1), self.line.vertex(rows, piece)
        fraction, weight, way = self.fractions[place], self.weights[place], stop - start
        shape = (-1, *[1] * (way.dim() - 1))
        alpha = fraction * self._ways[rows, piece] + (1 - fraction) * self._ways[rows, piece + 1]
        x = start + fraction.to(way.dtype).view(shape) * way
        return Node(x, weight.to(way.dtype).view(shape) * way, alpha)


def resample_by_arc_length(vertices: Tensor) -> Tensor:
    """N points at equal distances along each polyline (B, N, *S); the ends stay."""
    count = vertices.shape[1]
    ways = stacked(vertices).ways()
    goal = torch.linspace(0, 1, count, dtype=ways.dtype, device=ways.device).expand(len(ways), -1).contiguous()
    piece = torch.searchsorted(ways, goal, right=True).clamp(1, count - 1) - 1
    start, stop = ways.gather(1, piece), ways.gather(1, piece + 1)
    fraction = torch.where(stop > start, (goal - start) / torch.where(stop > start, stop - start, 1.0), 0.0)
    spread = _between(vertices, piece, fraction)
    return torch.cat((vertices[:, :1], spread[:, 1:-1], vertices[:, -1:]), 1)


def authors_spacing(vertices: Tensor) -> Tensor:
    """The published code's respacing: every piece is cut into ``floor(N length / longest length)`` equal parts, cuts
    and both ends listed (joints twice), and N points are taken at equal places of the list, rounded down."""
    count = vertices.shape[1]
    lengths = stacked(vertices).lengths()
    parts = torch.where(lengths > 0, count * lengths / lengths.amax(1, keepdim=True), 0.0).long().tolist()
    chosen = [_listed(row, count) for row in parts]
    piece = torch.tensor([[p for p, _ in row] for row in chosen], device=vertices.device)
    fraction = torch.tensor([[f for _, f in row] for row in chosen], dtype=torch.float64, device=vertices.device)
    return _between(vertices, piece, fraction)


def _listed(parts: list[int], count: int) -> list[tuple[int, float]]:
    """``count`` entries (piece, fraction of it) of the list of all cuts."""
    cuts = [(0, 0.0)]
    for piece, n in enumerate(parts):
        cuts += [(piece, k / n if n else 0.0) for k in range(n + 1)]
    return [cuts[int(place)] for place in torch.linspace(0, len(cuts) - 1, count, dtype=torch.float32).tolist()]


def _between(vertices: Tensor, piece: Tensor, fraction: Tensor) -> Tensor:
    """Points at ``fraction`` (B, N) of the way from vertex ``piece`` (B, N) to the next."""
    rows = torch.arange(len(vertices), device=vertices.device)[:, None]
    start, stop = vertices[rows, piece], vertices[rows, piece + 1]
    return start + fraction.to(start.dtype).view(*fraction.shape, *[1] * (start.dim() - 2)) * (stop - start)


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
