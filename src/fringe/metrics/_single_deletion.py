"""Regions deleted one at a time: single deletion (Hesse et al. 2024), and SaCo (Wu et al. 2024)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fringe.linalg import add_rows, batch_view
from fringe.metrics import _perturbation as perturb
from fringe.metrics._base import EvaluatedMaps, EvaluationContext, Metric, Scores, space_only
from fringe.metrics._similarity import average_ranks, correlation
from fringe.settings import Doc, PositiveInt

#: What a deleted cell becomes: zeros in the model's coordinates, uniform noise on [-1, 1] there, or a wide blur.
DeletedAs = Literal["zeros", "random", "blur"]


@dataclass(frozen=True)
class SingleDeletion(Metric):
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
    table has ``cells`` segments of its length or of its features. NaN, flagged ``undefined``, if all cells of the
    map, or all losses, are equal: these images do not count in the mean. Details: the ``loss`` of the most important
    cell and the share of ``ties`` of the map's cells.
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
        values = spearman(evidence, losses)
        first = losses.gather(1, evidence.argmax(1, keepdim=True))[:, 0]
        details = {"loss": first, "ties": perturb.rank_pixels(evidence).ties()}
        return Scores(values, flags={"undefined": values.isnan()}, details=details)

    def _losses(self, context: EvaluationContext, cells: Tensor) -> Tensor:
        """What the logit loses without each cell: (B, cells)."""
        problem, replaced = context.problem, self._replacement(context)
        measure = perturb.logits_score(problem)
        grid = perturb.per_channel(cells[None], problem.inputs)[0]

        def without(rows: Tensor, numbers: Tensor) -> Tensor:
            deleted = grid == batch_view(numbers, problem.inputs)
            return torch.where(deleted, replaced[rows], problem.inputs[rows])

        before = measure(problem.logits, problem.every_row)
        return before[:, None] - perturb.respond(context, int(cells.max()) + 1, without, measure)

    def _replacement(self, context: EvaluationContext) -> Tensor:
        problem = context.problem
        if self.deleted_as == "random":
            named = zip(problem.keys, problem.inputs, strict=True)
            return torch.stack([2.0 * problem.rng.uniform(f"{self.name} {key}", x) - 1.0 for key, x in named])
        kind = "zeros" if self.deleted_as == "zeros" else "gaussian"
        return perturb.Infill(kind, 51, 41.0, "reflect").make(context)


@dataclass(frozen=True)
class SaCo(Metric):
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
        ranking = perturb.rank_pixels(salience)
        count = min(self.groups, ranking.pixels)
        edges = torch.tensor([i * ranking.pixels // count for i in range(count + 1)], device=salience.device)
        sums = torch.stack([part.sum(1) for part in ranking.mass.tensor_split(edges[1:-1].cpu(), 1)], 1)
        replaced = perturb.Infill(self.reference, None, 3.0, "reflect").make(context)
        rank = perturb.per_channel(ranking.rank, problem.inputs)

        def without(rows: Tensor, numbers: Tensor) -> Tensor:
            low, high = (batch_view(edges[numbers + k], rank) for k in (0, 1))
            inside = (rank[rows] >= low) & (rank[rows] < high)
            return torch.where(inside, replaced[rows], problem.inputs[rows])

        responses = perturb.respond(context, count, without, problem.probability)
        losses = problem.probability(problem.logits)[:, None] - responses
        flat = salience.flatten(1)
        constant = flat.amin(1) == flat.amax(1)  # its groups may differ by a pixel
        values = torch.where(constant, torch.nan, saco(sums, losses))
        return Scores(values, flags={"undefined": values.isnan()}, curves={"salience": sums, "loss": losses})


def grid_cells(space: torch.Size, cells: int) -> Tensor:
    """Number of the cell of each pixel: a grid of ``cells`` along each axis of ``space``, at most one for each pixel.

    Cells have equal size where ``cells`` divides the axis, else sizes that differ by one.
    """
    number = torch.zeros((), dtype=torch.int64)
    for axis, size in enumerate(space):
        count = min(cells, size)
        along = torch.arange(size) * count // size
        number = number * count + along.view(-1, *[1] * (len(space) - axis - 1))
    return number.expand(space).contiguous()


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
