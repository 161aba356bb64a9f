"""The same curve through other points: vertices (B, N, *S) spread along their polylines."""

import torch
from torch import Tensor

from fringe.paths.polyline import stacked


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
