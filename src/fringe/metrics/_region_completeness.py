"""Region completeness: maps of a sum of networks against the exact share of each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from fringe.metrics._base import EvaluatedMaps, Metric, Scores, images_only

#: Sums of explained differences below this have no shares.
LEAST_DIFFERENCE = 1e-6
#: If a map is that of the recorded path alone, and of the explained score, its change is that along the path, but for
#: this share. AGI, of the probability, has several paths, and records the first.
SAME_END = 1e-3


@runtime_checkable
class SumOfRegions(Protocol):
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
    computed again. Methods without a recorded path, with several paths, or of another score (AGI), are compared with
    the zero baseline and flagged ``no_identity``: it is not known what their sums should be. Networks that are no such
    sum have no score and are flagged ``no_regions``. The same holds for explained probabilities.
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
        if not (isinstance(network, SumOfRegions) and additive):
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
        score = float(scores[image])
        change = float(made.score[image] - made.endpoint_score[image])
        recorded = score - float(path.points["score"][-1])
        if abs(recorded - change) <= SAME_END * abs(change) + LEAST_DIFFERENCE * (1 + abs(score)):
            ends[image], known[image] = path.snapshots[-1].to(x), True
    return ends, known


def _terms(maps: EvaluatedMaps, network: SumOfRegions, x: Tensor) -> tuple[Tensor, Tensor]:
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
