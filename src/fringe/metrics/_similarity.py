"""How similar two maps are, and how ordered one is."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from fringe.linalg import batch_view
from fringe.metrics._base import images_only

#: How maps are compared: by the ranks of their entries, or by local structure.
Similarity = Literal["spearman", "ssim"]
#: Side of the windows of structural similarity, as in scikit-image.
WINDOW = 7


def similarity_refusal(kind: Similarity, shape: Sequence[int]) -> str:
    """Why maps of this shape (B, *S) cannot be compared in this way; empty if they can."""
    reason = images_only(shape, "structural similarity is defined") if kind == "ssim" else ""
    return reason and f"{reason}; use similarity='spearman'"


def similarity(a: Tensor, b: Tensor, kind: Similarity, *, signed: bool) -> Tensor:
    """Compare maps one by one.

    Equal maps have similarity 1; a constant map has no order and no structure, and has similarity 0 to any other. NaN
    where a map is not finite.

    Args:
        a: Maps (B, *S).
        b: Maps (B, *S).
        kind: ``"spearman"``: the rank correlation of all entries; ``"ssim"``: the mean structural similarity over
            windows of 7 by 7 pixels and channels, of maps divided by their largest magnitude (Wang et al. 2004).
        signed: Whether to compare signed maps, and not their magnitudes.

    Returns:
        Similarities (B,) from -1 to 1, in float64.
    """
    a, b = (x.double() for x in (a, b))
    a, b = (a, b) if signed else (a.abs(), b.abs())
    flat, other = a.flatten(1), b.flatten(1)
    if kind == "spearman":
        values = correlation(average_ranks(flat), average_ranks(other))
    else:
        values = _structural(_unit(a), _unit(b))
    constant = (flat == flat[:, :1]).all(1) | (other == other[:, :1]).all(1)
    values = values.masked_fill(constant, 0.0).masked_fill((flat == other).all(1), 1.0)
    return values.masked_fill(~(flat.isfinite().all(1) & other.isfinite().all(1)), torch.nan)


def correlation(a: Tensor, b: Tensor) -> Tensor:
    """Pearson's correlation (B,) of the rows of ``a`` and ``b`` (B, n); NaN where one of them is constant."""
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    return ((a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))).clamp(-1.0, 1.0)


def average_ranks(values: Tensor) -> Tensor:
    """Ranks (B, n) from 1 on of the entries of each row of ``values`` (B, n); equal ones share the mean of theirs."""
    ordered, values = values.sort(dim=1).values.contiguous(), values.contiguous()
    below = torch.searchsorted(ordered, values)
    up_to = torch.searchsorted(ordered, values, right=True)
    return (below + up_to + 1).to(values.dtype) / 2.0


def entropy(values: Tensor, bins: int) -> Tensor:
    """Entropy (B,) in nats of the histogram of all entries of each map of ``values`` (B, *S), with equal bins from the
    smallest entry to the largest one, as NumPy counts them; 0 for a constant map, NaN for one that is not finite."""
    flat = values.double().flatten(1)
    finite = flat.isfinite().all(1)
    flat = flat.nan_to_num()
    low, high = flat.amin(1, keepdim=True), flat.amax(1, keepdim=True)
    edges = low + torch.arange(bins + 1, dtype=flat.dtype, device=flat.device) * ((high - low) / bins)
    edges[:, -1:] = high
    position = torch.searchsorted(edges, flat.contiguous(), right=True) - 1
    counts = torch.zeros(len(flat), bins, dtype=flat.dtype, device=flat.device)
    counts.scatter_add_(1, position.clamp(0, bins - 1), torch.ones_like(flat))
    share = counts / flat.shape[1]
    nats = -torch.special.xlogy(share, share).sum(1)
    return nats.masked_fill((low == high)[:, 0], 0.0).masked_fill(~finite, torch.nan)


def _unit(maps: Tensor) -> Tensor:
    """Maps divided by their largest magnitude; maps of zeros as they are."""
    largest = batch_view(maps.flatten(1).abs().amax(1), maps)
    return maps / largest.where(largest > 0, 1.0)


def _structural(a: Tensor, b: Tensor) -> Tensor:
    """Structural similarity (B,) of images (B, C, H, W): windows of equal weight inside the image, sample variances,
    and as dynamic range that of both maps."""
    window = min(WINDOW, *a.shape[2:])
    window -= 1 - window % 2
    count = window * window

    def mean(x: Tensor) -> Tensor:
        return avg_pool2d(x, window, stride=1)

    mean_a, mean_b, norm = mean(a), mean(b), count / max(count - 1, 1)
    variance_a, variance_b = norm * (mean(a * a) - mean_a**2), norm * (mean(b * b) - mean_b**2)
    covariance = norm * (mean(a * b) - mean_a * mean_b)
    both = torch.cat([a.flatten(1), b.flatten(1)], 1)
    span = (both.amax(1) - both.amin(1)).view(-1, 1, 1, 1)
    c1, c2 = (0.01 * span) ** 2, (0.03 * span) ** 2
    top = (2 * mean_a * mean_b + c1) * (2 * covariance + c2)
    return (top / ((mean_a**2 + mean_b**2 + c1) * (variance_a + variance_b + c2))).flatten(1).mean(1)
