"""Maps against changes of the input: infidelity, max sensitivity, and regions that are deleted one at a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fringe.linalg import add_rows, batch_view, grid_cells
from fringe.metrics import _perturbation as perturb
from fringe.metrics._base import EvaluatedMaps, EvaluationContext, Metric, Scores, is_zero, space_only
from fringe.metrics._perturbation import for_each
from fringe.metrics._randomisation import average_ranks, correlation
from fringe.paths import Occlusion, filling, part_numbers
from fringe.settings import Doc, Positive, PositiveInt

#: ``draw(key, x)``: the perturbation of one image ``x`` (*S) that belongs to ``key``, the same in every batch.
Draw = Callable[[str, Tensor], Tensor]

#: ``measure(rows, perturbations)``: numbers (L, ...) of the images ``rows`` (L,) under ``perturbations`` (L, *S).
Measure = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Infidelity(Metric):
    """Mean squared error of the map as a linear prediction of the score's change.

    .. math:: E_\\delta\\bigl[(\\delta^T \\Phi - (F^t(x) - F^t(x - \\delta)))^2\\bigr],
        \\qquad \\delta_i \\sim N(0, \\sigma^2)

    F is the classifier's score, delta is in the model's own coordinates. The draws belong to the image: all methods
    get the same draws, and share their forward passes, ``samples`` per image.

    A map that predicts nothing scores about as the zero map plus ``sigma^2 |Phi|^2``: its norm dominates. So the detail
    ``zero_map`` is the score of the zero map, and ``ratio`` is the score divided by it. ``normalise`` scales each map
    by the factor that fits best (captum), ``beta = E[<delta, Phi> dF] / E[<delta, Phi>^2]``, the detail ``scale``. Then
    the map's own scale does not matter, and no map scores above the zero map. Flag: ``zero_map``.
    """

    name = "infidelity"
    title = "Infidelity"
    direction = "lower"
    unit = "score^2"
    space = "the score's change over noise on the model's input"
    source = "Yeh et al. 2019, definition 2.1; FRInGe, appendix Metric definitions"
    presets: ClassVar = {
        "paper": {},
        "released": {},
        "captum": {"samples": 10},
        "scale_free": {"normalise": True},
    }

    samples: Annotated[PositiveInt, Doc("draws of noise per image")] = 50
    sigma: Annotated[Positive, Doc("standard deviation of the noise", unit="input units")] = 0.02
    normalise: Annotated[bool, Doc("scale each map by the factor that fits best")] = False

    def score(self, maps: EvaluatedMaps) -> Scores:
        context, values = maps.context, maps.values
        change = context.cached(("score change", self.samples, self.sigma), lambda: self._changes(context))
        a = values.to(change.dtype)
        predicted = self._monte_carlo(context, lambda rows, noise: (a[rows] * noise.to(a)).flatten(1).sum(1))
        scale = change.new_ones(len(change))
        if self.normalise:  # the factor nearest in least squares; 1 if all are zero
            power = predicted.square().sum(1)
            scale = ((predicted * change).sum(1) / power).where(power > 0, 1.0)
        error = (scale[:, None] * predicted - change).square().mean(1)
        zero = change.square().mean(1)
        return Scores(
            error,
            flags={"zero_map": is_zero(values)},
            details={"zero_map": zero, "ratio": error / zero, "scale": scale},
        )

    def _changes(self, context: EvaluationContext) -> Tensor:
        """``F(x) - F(x - delta)``: (B, samples)."""
        problem = context.problem
        score = problem.score(problem.logits.double())

        def change(rows: Tensor, noise: Tensor) -> Tensor:
            logits = problem.forward(problem.inputs[rows] - noise, rows)
            return score[rows] - problem.score(logits.double(), rows)

        return self._monte_carlo(context, change)

    def _monte_carlo(self, context: EvaluationContext, measure: Measure) -> Tensor:
        def draw(key: str, x: Tensor) -> Tensor:
            return self.sigma * context.problem.rng.normal(key, x)

        return monte_carlo(context, self.name, self.samples, draw, measure)


@dataclass(frozen=True)
class MaxSensitivity(Metric):
    """The largest change of the map over M perturbations of the input.

    .. math:: \\max_m \\frac{|\\hat\\Phi(x) - \\hat\\Phi(x + \\delta_m)|_2}{|\\delta_m|_2}, \\qquad
        \\hat\\Phi = \\Phi / |\\Phi|_2, \\quad \\delta_{m,i} \\sim U(-r, r)

    The target is that of x, and x + delta is not clipped. With ``normalise=False`` maps are not scaled to unit norm;
    their distance is divided by ``|Phi(x)|``. With ``per_distance=False`` it is not divided by ``|delta|`` (captum does
    neither; Quantus draws larger and more perturbations). A zero map has no direction: it is compared as it is, and two
    zero maps have distance 0; flag ``zero_map``. If a map is not finite, the score is NaN: flag ``undefined``. The
    detail ``bound`` is the largest possible score of unit maps, 2 over the smallest divisor; orthogonal maps score
    ``bound / sqrt 2``. Preset ``rounding``: how far noise of about the size of rounding in float32 moves a map.

    Costs ``samples`` maps per image. A random method must have the same noise at x and x + delta (``explain`` decides
    this); otherwise the score measures this noise.
    """

    name = "max_sensitivity"
    title = "Max sensitivity"
    direction = "lower"
    unit = "1 / input unit"
    space = "maps of unit norm over noise on the model's input"
    source = "Yeh et al. 2019, definition 2.3; FRInGe, appendix Metric definitions"
    presets: ClassVar = {
        "paper": {},
        "released": {},
        "captum": {"normalise": False, "per_distance": False},
        "quantus": {"normalise": False, "per_distance": False, "samples": 200, "radius": 0.2},
        "rounding": {"per_distance": False, "samples": 4, "radius": 1e-6},
    }
    requires_explainer = True
    aggregate = "median"  # of maxima: appendix Robustness under small input perturbations

    samples: Annotated[PositiveInt, Doc("perturbations of an input (M)")] = 10
    radius: Annotated[Positive, Doc("largest perturbation of an entry (r)", unit="input units")] = 0.02
    normalise: Annotated[bool, Doc("compare maps of unit norm")] = True
    per_distance: Annotated[bool, Doc("divide by the norm of the perturbation")] = True

    def score(self, maps: EvaluatedMaps) -> Scores:
        changes = self._changes(maps)
        divisor = changes[..., 1] if self.per_distance else torch.ones_like(changes[..., 1])
        values = (changes[..., 0] / divisor).amax(1)
        zero = is_zero(maps.values) | changes[..., 2].bool().any(1)
        bound = {"bound": 2.0 / divisor.amin(1)} if self.normalise else {}
        return Scores(values, flags={"zero_map": zero, "undefined": torch.isnan(values)}, details=bound)

    def _changes(self, maps: EvaluatedMaps) -> Tensor:
        """Change of the map, norm of the perturbation, and whether the new map is zero, for each draw (B, M, 3)."""
        context, inputs = maps.context, maps.context.problem.inputs
        before = maps.values.double()
        size = _norm(before)
        size = size.where(size > 0, 1.0)

        def measure(rows: Tensor, noise: Tensor) -> Tensor:
            after = maps.maps_of(inputs[rows] + noise, rows.tolist()).to(before)
            length = _norm(after)
            unit = length.where(length > 0, 1.0) if self.normalise else size[rows]
            distance = _norm(before[rows] / batch_view(size[rows], after) - after / batch_view(unit, after))
            return torch.stack([distance, _norm(noise.to(before)), (length == 0).to(before)], 1)

        def draw(key: str, x: Tensor) -> Tensor:
            return self.radius * (2.0 * context.problem.rng.uniform(key, x) - 1.0)

        return monte_carlo(context, self.name, self.samples, draw, measure)


def monte_carlo(context: EvaluationContext, name: str, samples: int, draw: Draw, measure: Measure) -> Tensor:
    """Return ``measure`` of each image under each of its draws, (B, samples, ...).

    Draws are keyed by image and number, and made again instead of stored: ``measure`` is given at most the classifier's
    batch size of them at once, so memory does not grow with their number.
    """
    problem = context.problem

    def chunk(rows: Tensor, draws: Tensor) -> Tensor:
        pairs = zip(rows.tolist(), draws.tolist(), strict=True)
        noise = torch.stack([draw(f"{name} {problem.keys[i]} {m}", problem.inputs[i]) for i, m in pairs])
        return measure(rows, noise)

    return for_each(problem, samples, chunk)


def _norm(maps: Tensor) -> Tensor:
    return maps.flatten(1).norm(dim=1)


#: What a deleted cell becomes: zeros in the model's coordinates, uniform noise on [-1, 1] there, or a wide blur.
DeletedAs = Literal["zeros", "random", "blur"]


@dataclass(frozen=True)
class SingleDeletion(perturb.RankingMetric):
    """Rank correlation of the signed evidence in each cell of a grid with the loss of the logit without this cell.

    .. math:: d_j = F_t(x) - F_t(x_{\\setminus j}), \\qquad a_j = \\sum_{i \\in j} A_i, \\qquad
        \\mathrm{score} = \\mathrm{Spearman}(a, d)

    The map counts with its sign: evidence against the class must be where its deletion raises the logit. Row i of H
    rows is in row ``floor(i cells / H)`` of cells. Only one cell is missing at a time. Preset ``idsds`` is the
    in-domain score of the paper only if the model was fine-tuned for missing cells: half of its images must lack one
    cell of the same grid. On any other network it is the plain single-deletion score. A deleted cell has ``zeros`` in
    the model's coordinates, ``random`` numbers uniform on [-1, 1], or a ``blur`` of the image by a Gaussian with a
    standard deviation of 41 pixels in a window of 51.

    Costs a forward pass per cell (16 for an image), and one for a blur, for any number of methods. A series or a
    table has ``cells`` segments of its length or of its features. NaN, flagged ``undefined``, if all pixels or all
    cells of the map, or all losses, are equal: these images do not count in the mean. Details: the ``loss`` of the most
    important cell, the mean over equal ones, and the share of ``ties`` of the map's cells.
    """

    name = "single_deletion"
    title = "Single deletion"
    direction = "higher"
    space = "signed evidence in a cell against the loss of the logit without it"
    source = "Hesse, Schaub-Meyer, Roth 2024 (IDSDS, NeurIPS)"
    by_default = False
    presets: ClassVar = {
        "paper": {},
        "idsds": {"cells": 4, "deleted_as": "zeros"},
        "random": {"deleted_as": "random"},
        "blur": {"deleted_as": "blur"},
    }

    cells: Annotated[PositiveInt, Doc("cells along each axis of space")] = 4
    deleted_as: Annotated[DeletedAs, Doc("what replaces the pixels of a deleted cell")] = "zeros"

    @property
    def planned_passes(self) -> float:
        return self.cells**2

    def refusal(self, shape: Sequence[int]) -> str:
        return space_only(shape, "a blur (deleted_as='blur')") if self.deleted_as == "blur" else ""

    def score(self, maps: EvaluatedMaps) -> Scores:
        context = maps.context
        signed = perturb.signed_map(maps.values)
        cells = grid_cells(signed.shape[1:], self.cells).to(signed.device)
        losses = context.cached((self.name, self.cells, self.deleted_as), lambda: self._losses(context, cells))
        count = losses.shape[1]
        evidence = add_rows(signed.new_zeros(count, len(signed)), cells.flatten(), signed.flatten(1).T).T
        values = spearman(evidence, losses).masked_fill(_is_constant(signed), torch.nan)
        largest = evidence == evidence.amax(1, keepdim=True)
        first = losses.where(largest, 0.0).sum(1) / largest.sum(1)
        details = {"loss": first, "ties": perturb.rank_pixels(evidence, context).ties()}
        return Scores(values, flags={"undefined": values.isnan()}, details=details)

    def _losses(self, context: EvaluationContext, cells: Tensor) -> Tensor:
        """What the logit loses without each cell: (B, cells)."""
        problem = context.problem
        if self.deleted_as == "random":
            named = zip(problem.keys, problem.inputs, strict=True)
            draws = [2.0 * problem.rng.uniform(f"{self.name} {key}", x) - 1.0 for key, x in named]
            replaced = torch.stack(draws)
        else:
            kind = "zeros" if self.deleted_as == "zeros" else "gaussian"
            replaced = perturb.Infill(kind, 51, 41.0, "reflect").make(context)
        grid = perturb.per_channel(cells[None], problem.inputs)
        return Occlusion.of(problem, grid, replaced, "logit").drops[:, 0]


@dataclass(frozen=True)
class OcclusionAgreement(Metric):
    """Does the map weigh parts of the input as the score does that is lost without each of them?

    The ``agreement`` of :func:`fringe.attribute`: Pearson's correlation of the evidence in each part with the size of
    the loss, of 5 x 5 cells of an image, 16 pieces of a series, 27 boxes of a volume, or columns. Of images and volumes
    the sizes of the evidence are summed, of others the evidence. It does not see the sign of a map. Costs a forward
    pass for each part, which all methods share. NaN, flagged ``undefined``, if all parts are equal.
    """

    name = "occlusion_agreement"
    title = "Agreement with occlusion"
    direction = "higher"
    space = "evidence in parts of the input against the loss of the score without each"
    source = "this library: docs/trust.md"
    by_default = False

    @property
    def planned_passes(self) -> float:
        return 25

    def score(self, maps: EvaluatedMaps) -> Scores:
        problem = maps.context.problem

        def made() -> Occlusion:
            numbers = part_numbers(problem)
            return Occlusion.of(problem, numbers, filling(problem, numbers))

        occlusion = maps.context.cached(self.name, made)
        values = occlusion.agreement(maps.values, sizes=problem.inputs.dim() > 3)[:, 0]
        return Scores(values, flags={"undefined": values.isnan()})


@dataclass(frozen=True)
class SaCo(perturb.RankingMetric):
    """Do groups of pixels with more salience lose more probability? Pairs of groups count by their difference.

    Of the P pixels in descending order, group i has those from ``floor(i P / K)`` to ``floor((i + 1) P / K) - 1``, i =
    0 ... K - 1. With s_i the sum of the salience of its pixels and d_i the target's probability that is lost without
    it,

    .. math:: F = \\frac{\\sum_{i<j} \\sigma_{ij} (s_i - s_j)}{\\sum_{i<j} |s_i - s_j|}, \\qquad
        \\sigma_{ij} = 1 \\text{ if } d_i \\ge d_j, \\text{ else } -1

    The score is 1 for a map that orders and weighs all groups right, near 0 for a random map, and -1 for an inverted
    map. It does not depend on the scale of the map. A deleted pixel has the mean colour of its image. Costs K forward
    passes per map. NaN, flagged ``undefined``, if all pixels have the same salience.
    """

    name = "saco"
    title = "SaCo"
    direction = "higher"
    space = "salience of groups of pixels against the probability lost without each"
    source = "Wu et al. 2024 (CVPR), algorithm 1"
    by_default = False
    presets: ClassVar = {"paper": {}, "unsigned": {"salience": "max"}}

    groups: Annotated[PositiveInt, Doc("groups of pixels (K)")] = 10
    reference: perturb.Reference = "mean"
    salience: Annotated[
        Literal["sum", "max", "abs_sum", "sum_abs", "l2"], Doc("salience of a pixel; sum: of its channels with sign")
    ] = "sum"

    @property
    def planned_passes(self) -> float:
        return self.groups

    def refusal(self, shape: Sequence[int]) -> str:
        return perturb.blur_refusal(self.reference, shape)

    def score(self, maps: EvaluatedMaps) -> Scores:
        context, how = maps.context, self.salience
        problem = context.problem
        salience = perturb.signed_map(maps.values) if how == "sum" else perturb.spatial_map(maps.values, how)
        ranking = perturb.rank_pixels(salience, context)
        count = min(self.groups, ranking.pixels)
        edges = torch.tensor([i * ranking.pixels // count for i in range(count + 1)], device=salience.device)
        sums = torch.stack([part.sum(1) for part in ranking.mass.tensor_split(edges[1:-1].cpu(), 1)], 1)
        replaced = perturb.Infill(self.reference, None, None, "reflect").make(context)
        rank = perturb.per_channel(ranking.most_first, problem.inputs)

        def without(rows: Tensor, numbers: Tensor) -> Tensor:
            low, high = (batch_view(edges[numbers + k], rank) for k in (0, 1))
            inside = (rank[rows] >= low) & (rank[rows] < high)
            return torch.where(inside, replaced[rows], problem.inputs[rows])

        responses = perturb.respond(context, count, without, problem.probability)
        losses = problem.probability(problem.logits)[:, None] - responses
        values = saco(sums, losses).masked_fill(_is_constant(salience), torch.nan)
        return Scores(values, flags={"undefined": values.isnan()}, curves={"salience": sums, "loss": losses})


def _is_constant(pixels: Tensor) -> Tensor:
    """Which maps (B, *space) are equal at all pixels (B,): their cells and groups may differ in the number of them."""
    flat = pixels.flatten(1)
    return flat.amin(1) == flat.amax(1)


def spearman(a: Tensor, b: Tensor) -> Tensor:
    """Spearman's rank correlation (B,) of the rows of ``a`` and ``b`` (B, n); NaN where one of them is constant."""
    known = torch.isfinite(a).all(1) & torch.isfinite(b).all(1)
    return torch.where(known, correlation(average_ranks(a), average_ranks(b)), torch.nan)


def saco(salience: Tensor, losses: Tensor) -> Tensor:
    """The coefficient (B,) of the salience and the losses (B, K) of groups in descending order of importance."""
    count = salience.shape[1]
    first, second = torch.triu_indices(count, count, 1, device=salience.device)
    weight = salience[:, first] - salience[:, second]
    agree = torch.where(losses[:, first] >= losses[:, second], 1.0, -1.0).to(weight)
    value = (agree * weight).sum(1) / weight.abs().sum(1)  # 0 / 0 where all groups are equal
    return torch.where(torch.isfinite(losses).all(1), value, torch.nan)
