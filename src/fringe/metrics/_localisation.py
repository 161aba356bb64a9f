"""Localisation: how much of a map is where the model is known to look."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fringe._filters import gaussian_blur
from fringe.errors import InputError
from fringe.metrics._base import EvaluatedMaps, Metric, Scores, images_only
from fringe.settings import Doc, NotNegative, Search

#: How the channels of a map become one number per pixel.
Reduction = Literal["positive_sum", "max_abs"]
#: Maps with no more positive mass than this have no score, as in the authors' code of the grid pointing game.
LEAST_MASS = 1e-7


@dataclass(frozen=True)
class _AgainstTruth(Metric):
    """What scores of a map against the pixels of the truth share."""

    direction = "higher"
    space = "the map and the pixels that the model is known to use"
    requires_truth = True
    by_default = False
    presets: ClassVar = {
        "paper": {},
        "smooth": {"smoothing": 3.0},
        "max_abs": {"reduction": "max_abs"},
    }

    reduction: Annotated[
        Reduction, Doc("signed sum over the channels and its positive part, or the largest size among the channels")
    ] = "positive_sum"
    smoothing: Annotated[NotNegative, Search(0.0, 6.0), Doc("Gaussian filter, applied first", "pixels")] = 0.0

    def refusal(self, shape: Sequence[int]) -> str:
        return images_only(shape, "the pixels that a model uses are known")


class _Localisation(_AgainstTruth):
    """The scores that ask which of a map's values lie on the truth."""

    def score(self, maps: EvaluatedMaps) -> Scores:
        truth = truth_of(maps).flatten(1).to(maps.values.dtype)
        sign = torch.where((truth < 0).any(1), -1, 1).view(-1, 1, 1, 1)  # of the pixels of the truth in a right map
        values = reduced(maps.values * sign, self.reduction, self.smoothing).flatten(1)
        inside = (truth != 0).to(values.dtype)
        scores, flags = self._score(values, inside)
        return Scores(scores, flags, {"chance": inside.mean(1)})

    @abstractmethod
    def _score(self, values: Tensor, inside: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Scores (B,) and flags of maps (B, HW); ``inside`` is one on the truth and zero elsewhere."""


@dataclass(frozen=True)
class MassInside(_Localisation):
    """The share of the positive mass of a map that lies on the pixels that the model uses.

    .. math:: \\frac{\\sum_{i \\in M} \\max(S_i, 0)}{\\sum_i \\max(S_i, 0)}, \\qquad S_i = \\sum_c A_{c i}

    The indicator of the truth M scores 1, the indicator of the other pixels 0, and the uniform map |M| / HW, the detail
    ``chance``. A map with at most 1e-7 of positive mass has no score and is flagged ``no_positive_mass``. On grids of
    images this is the score of the grid pointing game. Another name is relevance mass accuracy.
    """

    name = "mass_inside"
    title = "Mass inside"
    source = "Böhle, Fritz and Schiele 2021; Arras, Osman and Samek 2022 (relevance mass accuracy)"

    def _score(self, values: Tensor, inside: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        positive = values.clamp_min(0)
        total = positive.sum(1)
        empty = total <= LEAST_MASS
        share = (positive * inside).sum(1) / total.clamp_min(torch.finfo(total.dtype).tiny)
        return torch.where(empty, torch.nan, share), {"no_positive_mass": empty}


@dataclass(frozen=True)
class RankAccuracy(_Localisation):
    """The share of the |M| largest entries of a map that lie on the pixels M that the model uses.

    Entries are signed sums over the channels. If several entries at the limit are equal, the share of them that is
    inside counts, so a constant map scores chance; such maps are flagged ``tied``.
    """

    name = "rank_accuracy"
    title = "Rank accuracy"
    source = "Arras, Osman and Samek 2022 (relevance rank accuracy)"

    def _score(self, values: Tensor, inside: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        size = inside.sum(1)
        rank = (size.long() - 1).clamp_min(0)[:, None]
        limit = values.sort(dim=1, descending=True).values.gather(1, rank)
        above, equal = (values > limit).to(inside), (values == limit).to(inside)
        left = size - above.sum(1)
        shared = (equal * inside).sum(1) / equal.sum(1)
        hits = (above * inside).sum(1) + left * shared
        return torch.where(size > 0, hits / size.clamp_min(1), torch.nan), {"tied": equal.sum(1) > left}


@dataclass(frozen=True)
class ExpectedHit(_Localisation):
    """The pointing game: whether the largest entry of a map lies on the pixels that the model uses.

    If several entries are the largest, the score is the share of them that is inside: the expected hit of a random
    choice. A constant map scores chance, not a hit.
    """

    name = "expected_hit"
    title = "Pointing game"
    source = "Zhang et al. 2018 (excitation backprop); ties as an expectation are ours"

    def _score(self, values: Tensor, inside: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        largest = (values == values.amax(1, keepdim=True)).to(inside)
        return (largest * inside).sum(1) / largest.sum(1), {"tied": largest.sum(1) > 1}


@dataclass(frozen=True)
class ObjectBalance(_AgainstTruth):
    """The positive mass of a map on the weakest of several objects of the class, over that on the strongest.

    1 shows all objects alike, 0 misses one. A map of noise shows them alike, too, so neither end is better: read it
    beside ``mass_inside``. The truth numbers the objects, as that of the scene ``two_objects`` does; with fewer than
    two, and without mass on any of them, there is no score (``no_positive_mass``).
    """

    name = "object_balance"
    title = "Balance of objects"
    source = "ours"
    direction = "none"

    def score(self, maps: EvaluatedMaps) -> Scores:
        truth = truth_of(maps).flatten(1)
        positive = reduced(maps.values, self.reduction, self.smoothing).flatten(1).clamp_min(0)
        of_one = [(positive * (truth == number)).sum(1) for number in range(1, int(truth.max()) + 1)]
        masses = torch.stack([*of_one, *[torch.zeros_like(positive[:, 0])] * (2 - len(of_one))])
        present = torch.stack([(truth == n + 1).any(1) for n in range(len(masses))])
        least = masses.masked_fill(~present, torch.inf).amin(0)
        most = masses.amax(0)
        empty = (most <= LEAST_MASS) | (present.sum(0) < 2)
        share = torch.where(empty, torch.nan, least / most.clamp_min(torch.finfo(most.dtype).tiny))
        return Scores(share, {"no_positive_mass": empty})


def reduced(values: Tensor, reduction: Reduction, smoothing: float) -> Tensor:
    """Pixels (B, H, W) of maps (B, C, H, W) in float64: the signed map is filtered first, as it is one of a smooth
    method, and its channels are combined then."""
    values = values.double()
    if smoothing > 0:
        first = values[..., :1, :1]  # without it a constant map is zero, and stays constant to the last digit
        values = first + gaussian_blur(values - first, smoothing, "exclude")
    return values.sum(1) if reduction == "positive_sum" else values.abs().amax(1)


def truth_of(maps: EvaluatedMaps) -> Tensor:
    """The known truth (B, H, W) of maps (B, C, H, W). Raises InputError if it does not fit."""
    truth, shape = maps.context.truth, maps.values.shape
    assert truth is not None  # or the metric is refused
    if truth.shape != (shape[0], *shape[2:]):
        raise InputError(
            f"got shape {tuple(truth.shape)} for maps {tuple(shape)}, expected (B, H, W)", argument="truth"
        )
    return truth.to(maps.values.device)
