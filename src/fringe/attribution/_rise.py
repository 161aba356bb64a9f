"""RISE: randomised input sampling (Petsiuk et al. 2018)."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from fringe._filters import require_images
from fringe.attribution._base import Attribution, Attributor, ProgressCounter
from fringe.attribution._diagnostics import gradient_attribution
from fringe.attribution._smoothgrad import averaged
from fringe.classifier import Score
from fringe.paths import Problem
from fringe.settings import Doc, PositiveFraction, PositiveInt, Search


@dataclass(frozen=True)
class RISE(Attributor):
    """Weigh random masks by the score of the masked image (Petsiuk et al. 2018, eq. 6).

    .. math:: A = \\frac{1}{p N} \\sum_{i=1}^N F^t(x \\odot M_i) \\, M_i

    A mask is a grid of ``cells`` x ``cells`` zeros and ones (one with probability p). It is scaled up bilinearly to
    ``(cells + 1) c`` pixels, c = ``ceil(H / cells)``, and cut out at a random offset below c. Masked pixels are zero in
    the model's own coordinates, as in the authors' code. The defaults are the authors'; they explain the probability
    and take 8,000 masks for ResNet-50. Every image has its own masks, keyed by its name. Each channel gets an equal
    part of the map. The map has no completeness identity. If the model ignores the image, the map is not zero but the
    mean of the masks. ``relative_error`` is the standard error of the mean over the map's own norm. Costs N forward
    passes per image.
    """

    name = "rise"
    title = "Randomised input sampling (RISE)"
    source = "Petsiuk, Das and Saenko 2018"
    is_complete = False
    has_path = False
    presets: ClassVar = {"official": {}, "quick": {"masks": 500}}

    masks: Annotated[PositiveInt, Search(100, 8000, log=True), Doc("random masks (N)")] = 4000
    cells: Annotated[PositiveInt, Search(3, 16), Doc("cells of a mask along each side")] = 7
    keep: Annotated[PositiveFraction, Search(0.1, 0.9), Doc("share of cells that are not masked (p)")] = 0.5
    score: Annotated[Score, Doc("the explained score, whatever the classifier's own is")] = "probability"

    @property
    def planned_passes(self) -> float:
        return self.masks

    def attribute(self, problem: Problem) -> Attribution:
        require_images(problem.inputs, "to mask")
        problem = dataclasses.replace(problem, score_kind=self.score)
        grids, offsets = self._draw(problem)
        channels = problem.inputs.shape[1]

        def term(rows: Tensor, copies: Tensor) -> Tensor:
            masks = self._masks(grids[rows, copies], offsets[rows, copies], problem.inputs)
            score = problem.score(problem.forward(problem.inputs[rows] * masks, rows), rows)
            return (score.view(-1, 1, 1, 1) * masks / (self.keep * channels)).expand(-1, channels, -1, -1)

        counter = ProgressCounter(problem.progress, len(grids) * self.masks)
        values, error = averaged(term, problem, self.masks, counter)
        steps = torch.full_like(problem.every_row, self.masks)
        why = "a mean of masks, weighted by scores, has no completeness identity"
        return gradient_attribution(self, values, problem, {"steps": steps, "relative_error": error}, why)

    def _draw(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """The grids (B, N, s, s) of each image's masks, and where in them masks begin (B, N, 2), in pixels."""
        like = torch.empty(self.masks, self.cells, self.cells, dtype=torch.float64)
        grids, offsets = list[Tensor](), list[Tensor]()
        for key in problem.keys:
            grids.append(problem.rng.uniform(f"rise {key}", like) < self.keep)
            axes = zip(("rows", "columns"), self._cell(problem.inputs), strict=True)
            drawn = [problem.rng.integers(f"rise {axis} {key}", size, self.masks) for axis, size in axes]
            offsets.append(torch.tensor(drawn).T)
        device = problem.inputs.device
        return torch.stack(grids).to(device), torch.stack(offsets).to(device)

    def _cell(self, inputs: Tensor) -> tuple[int, int]:
        """Height and width of a cell in pixels."""
        height, width = (-(-side // self.cells) for side in inputs.shape[-2:])
        return height, width

    def _masks(self, grids: Tensor, offsets: Tensor, inputs: Tensor) -> Tensor:
        """Masks (L, 1, H, W) from grids (L, s, s) and offsets (L, 2)."""
        sizes = [(self.cells + 1) * side for side in self._cell(inputs)]
        scaled = functional.interpolate(grids[:, None].to(inputs.dtype), size=sizes, mode="bilinear")
        rows, columns = (
            offsets[:, axis, None] + torch.arange(side, device=inputs.device)
            for axis, side in enumerate(inputs.shape[-2:])
        )
        every = torch.arange(len(grids), device=inputs.device)[:, None, None]
        return scaled[every, 0, rows[:, :, None], columns[:, None, :]][:, None]
