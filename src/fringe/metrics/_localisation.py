"""Maps against what is known of the model: the pixels that it uses, and the exact share of each term of a sum."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from fringe._numbers.filters import gaussian_blur
from fringe.errors import InputError
from fringe.linalg import batch_view
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
        return images_only(shape, "a map is smoothed") if self.smoothing > 0 else ""


class _Localisation(_AgainstTruth):
    """The scores that ask which of a map's values lie on the truth."""

    def score(self, maps: EvaluatedMaps) -> Scores:
        truth = _truth_of(maps).flatten(1).to(maps.values.dtype)
        sign = torch.where((truth < 0).any(1), -1, 1)  # of the pixels of the truth in a right map
        values = reduced(_channels_first(maps) * batch_view(sign, maps.values), self.reduction, self.smoothing)
        inside = (truth != 0).to(values.dtype)
        scores, flags = self._score(values.flatten(1), inside)
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
        truth = _truth_of(maps).flatten(1)
        positive = reduced(_channels_first(maps), self.reduction, self.smoothing).flatten(1).clamp_min(0)
        of_one = [(positive * (truth == number)).sum(1) for number in range(1, int(truth.max()) + 1)]
        masses = torch.stack([*of_one, *[torch.zeros_like(positive[:, 0])] * (2 - len(of_one))])
        present = torch.stack([(truth == n + 1).any(1) for n in range(len(masses))])
        least = masses.masked_fill(~present, torch.inf).amin(0)
        most = masses.amax(0)
        empty = (most <= LEAST_MASS) | (present.sum(0) < 2)
        share = torch.where(empty, torch.nan, least / most.clamp_min(torch.finfo(most.dtype).tiny))
        return Scores(share, {"no_positive_mass": empty})


def reduced(values: Tensor, reduction: Reduction, smoothing: float) -> Tensor:
    """Entries (B, *space) of maps (B, C, *space) in float64: the signed map is filtered first, as it is one of a smooth
    method, and its channels are combined then."""
    values = values.double()
    if smoothing > 0:
        first = values[..., :1, :1]  # without it a constant map is zero, and stays constant to the last digit
        values = first + gaussian_blur(values - first, smoothing, "exclude")
    return values.sum(1) if reduction == "positive_sum" else values.abs().amax(1)


def _channels_first(maps: EvaluatedMaps) -> Tensor:
    """Maps (B, C, *space): the channels of a text are its last axis, and a table has none."""
    if maps.context.problem.token_length is not None:
        return maps.values.movedim(-1, 1)
    return maps.values if maps.values.dim() > 2 else maps.values[:, None]


def _truth_of(maps: EvaluatedMaps) -> Tensor:
    """The known truth (B, *space) of maps. Raises InputError if it does not fit."""
    truth, shape = maps.context.truth, _channels_first(maps).shape
    assert truth is not None  # or the metric is refused
    if truth.shape != (shape[0], *shape[2:]):
        expected = "(B, H, W)" if len(shape) == 4 else str((shape[0], *shape[2:]))
        raise InputError(
            f"got shape {tuple(truth.shape)} for maps {tuple(maps.values.shape)}, expected {expected}", argument="truth"
        )
    return truth.to(maps.values.device)


#: Sums of explained differences below this have no shares.
LEAST_DIFFERENCE = 1e-6
#: If a map is that of the recorded path alone, and of the explained score, its change is that along the path, but for
#: this share. AGI, of the probability, has several paths, and records the first.
SAME_END = 1e-3


@runtime_checkable
class _SumOfRegions(Protocol):
    """A network whose logits are a sum of terms, each of which reads one region of the image."""

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return K regions (K, H, W), no two of which meet, as booleans, and the terms (K, B, C) of the logits."""
        ...


@dataclass(frozen=True)
class RegionCompleteness(Metric):
    """The distance between the shares that a map gives to regions and their exact shares of the explained difference.

    The logits are a sum of terms f_j that read one region R_j each. For every path to a baseline x', the attribution of
    a region is f_j(x) - f_j(x'), so its share of the difference is known. The score is

    .. math:: \\frac{1}{2} \\sum_j |s_j - t_j| + \\frac{1}{2} |s_{rest}|, \\qquad s_j = A_j / \\sum |A|, \\quad
        t_j = \\Delta f_j / \\sum |\\Delta f|

    where A_j is the sum of the map over a region, and ``rest`` are the pixels that no term reads; the sum of |A| adds
    up |A_j| over the regions and the rest. 0 is exact, 1 the worst. With two regions and positive sums this is the
    difference between the shares of the first. The baseline is the end point of the method's own path, so the map is
    computed again. Methods without a recorded path, with several paths, of another score (AGI), or whose maps add up to
    no change of the score (IDG), are compared with the zero baseline and flagged ``no_identity``: it is not known what
    their sums should be. Networks that are no such sum have no score and are flagged ``no_regions``. The same holds for
    explained probabilities.
    """

    name = "region_completeness"
    title = "Region completeness"
    direction = "lower"
    space = "sums of the signed map over regions whose exact contribution is known"
    source = "ours: completeness (Sundararajan et al. 2017) of each term of a sum"
    requires_truth = True
    by_default = False
    requires_explainer = True

    @property
    def planned_passes(self) -> float:
        return 2.0

    @property
    def planned_maps(self) -> float:
        """One, for the ends of the paths."""
        return 1.0

    def refusal(self, shape: Sequence[int]) -> str:
        return images_only(shape, "the pixels that a model uses are known")

    def score(self, maps: EvaluatedMaps) -> Scores:
        problem, values = maps.context.problem, maps.values
        count, network = len(values), problem.model.module
        no = torch.zeros(count, dtype=torch.bool, device=values.device)
        additive = (problem.score_kind or problem.model.score_kind) == "logit"
        if not (isinstance(network, _SumOfRegions) and additive):
            nothing = torch.full((count,), torch.nan, dtype=torch.float64, device=values.device)
            return Scores(nothing, {"no_regions": ~no, "no_identity": no, "no_difference": no})
        ends, known = _end_points(maps)
        regions, before = _terms(maps, network, problem.inputs)
        _, after = _terms(maps, network, ends)
        exact = before - after  # (K, B)
        pixels = values.to(exact).sum(1)
        inside = torch.stack([(pixels * region).flatten(1).sum(1) for region in regions.to(pixels)])
        rest = (pixels * ~regions.any(0)).flatten(1).sum(1)
        seen, size = inside.abs().sum(0) + rest.abs(), exact.abs().sum(0)
        tiny = torch.finfo(exact.dtype).tiny
        shares, truth = inside / seen.clamp_min(tiny), exact / size.clamp_min(tiny)
        scores = 0.5 * ((shares - truth).abs().sum(0) + rest.abs() / seen.clamp_min(tiny))
        empty = size <= LEAST_DIFFERENCE
        details = {"share": shares[0], "exact_share": truth[0], "outside": rest.abs() / seen.clamp_min(tiny)}
        return Scores(
            torch.where(empty, torch.nan, scores),
            {"no_regions": no, "no_identity": ~known, "no_difference": empty},
            details,
        )


def _end_points(maps: EvaluatedMaps) -> tuple[Tensor, Tensor]:
    """The end (B, C, H, W) of each image's path, zero where it is not known, and whether it is (B,)."""
    assert maps.explain is not None  # or the metric is refused
    x = maps.context.problem.inputs
    ends, known = torch.zeros_like(x), torch.zeros(len(x), dtype=torch.bool, device=x.device)
    made: Any = maps.explain(replace(maps.context.problem, record_path=2))
    paths: Any = getattr(made, "trajectory", None) or ()
    scores = maps.context.problem.score(maps.context.problem.logits)
    for image, path in enumerate(paths):
        if path is None or not len(path.snapshots) or "score" not in path.points:
            continue
        if made.completeness_gap[image].isnan():  # IDG: its sum is no change along its path
            continue
        score = float(scores[image])
        change = float(made.score[image] - made.endpoint_score[image])
        recorded = score - float(path.points["score"][-1])
        if abs(recorded - change) <= SAME_END * abs(change) + LEAST_DIFFERENCE * (1 + abs(score)):
            ends[image], known[image] = path.snapshots[-1].to(x), True
    return ends, known


def _terms(maps: EvaluatedMaps, network: _SumOfRegions, x: Tensor) -> tuple[Tensor, Tensor]:
    """The regions (K, H, W), and the score (K, B) of each term in float64: as many forward passes as images."""
    problem, parts = maps.context.problem, list[Tensor]()
    regions = torch.empty(0)
    size = problem.model.batch_size.on(x.device)
    with torch.no_grad():
        for start in range(0, len(x), size):
            regions, logits = network.parts(x[start : start + size])
            parts.append(logits.double())
    problem.model.passes.forward += len(x)
    return regions, torch.stack([problem.score(term) for term in torch.cat(parts, dim=1)])
