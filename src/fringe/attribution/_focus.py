"""Paths with a focus: they move freely in a region of the input, and little elsewhere.

In coordinates y with ``x = x_0 + s (y - x_0)`` an entry with a small s is dear to move: with a path in y, the gradients
are still integrated over x, so maps stay complete. ``s = f + (1 - f) a`` has weights a of the region, such as the class
activation map of the explained class, and a floor f. A low floor may leave the path without what the network reads. So
the floor rises until the path has done its work.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from fringe.attribution._base import Attribution, ProgressStage
from fringe.attribution._cam import cam_maps, find_cam_layer, upsample
from fringe.errors import InputError, warn_caller
from fringe.paths import Problem
from fringe.settings import Doc, Fraction, tuples_of

#: Floors that follow the first one; at 1 a path is unfocused.
LADDER = (0.2, 0.3, 0.5, 1.0)
#: The most probable other classes that "contrast" subtracts.
OTHERS = 4
#: Passes of an image for the weights: to find the layer, and for its activations and gradients.
FOCUS_PASSES: dict[object, int] = {"cam": 8, "contrast": 8 + OTHERS}

Focus = Annotated[
    Literal["none", "cam", "contrast"] | tuple[tuple[Any, ...], ...],
    Doc(
        "where the path moves freely: none: everywhere, cam: where the last layer in space sees the class, contrast: "
        "and not the most probable others; or weights (B, 1, *space) from 0 to 1"
    ),
]
FocusFloor = Annotated[Fraction, Doc("how freely it moves elsewhere; rises to 0.2, 0.3, 0.5 and 1 until the map is ok")]

#: Makes maps of a problem's images, with scales that broadcast to (B, *S); None: 1. With scales, the diagnostic
#: ``focus_length_ratio`` is that of :func:`length_ratio`.
Walk = Callable[[Problem, Tensor | None], Attribution]


def length_ratio(focused: Tensor, length: Tensor) -> Tensor:
    """Return how many times longer a path is in the coordinates y than in the input: 1 where it moves in the region
    alone, and 1 / s where it moves in entries of scale s; without a length, 1.

    It tells the size of a region, not whether it is right: on grids of four images (ResNet-20) its median is 1.78 for
    the right cell and 1.75 for a wrong one, 2.60 for the activation map of the class and 2.72 for that of another.

    Args:
        focused: Lengths (B,) in y.
        length: Lengths (B,) in the input.
    """
    return torch.where(length > 0, focused / torch.where(length > 0, length, 1.0), 1.0)


def read_focus(value: object) -> object:
    """Return the weights of the setting ``focus``, of anything that reads as an array, as tuples.

    Raises InputError for weights that are not from 0 to 1.
    """
    try:
        weights = torch.as_tensor(value, dtype=torch.float64).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        message = f"got {value!r}, expected 'none', 'cam', 'contrast' or weights (B, 1, *space)"
        raise InputError(message, argument="focus") from error
    if weights.dim() < 2 or not weights.numel():
        message = f"got shape {tuple(weights.shape)}, expected weights (B, 1, *space)"
        raise InputError(message, argument="focus")
    low, high = (extreme.item() for extreme in weights.aminmax())
    if not 0 <= low <= high <= 1:
        raise InputError(f"got weights from {low:.6g} to {high:.6g}, expected 0 to 1", argument="focus")
    return tuples_of(weights.tolist())


@dataclass(frozen=True)
class FocusedPaths:
    """Where the paths of a method move freely.

    Attributes:
        focus: The setting ``focus``.
        floor: The first floor.
    """

    focus: Any
    floor: float

    def explain(self, problem: Problem, walk: Walk, enough: Sequence[str]) -> Attribution:
        """Explain each image with the lowest floor at which its verdict is one of those that are ``enough``.

        Images without a region, and those for which no floor is enough, are explained without a focus. Diagnostics:
        ``focus_floor``, 1 for no focus; ``focus_found``, 1 where there is a region and else 0; ``focus_length_ratio``.
        """
        weights, layers, count = *self.regions(problem), len(problem.inputs)
        has_region = [False] * count if weights is None else (weights > 0).flatten(1).any(1).tolist()
        stage = ProgressStage(problem.progress)
        left, order, parts = [i for i in range(count) if has_region[i]], list[int](), list[Attribution]()
        for floor in (self.floor, *(f for f in LADDER if f > self.floor)):
            if floor == 1.0:
                left = sorted({*range(count)} - {*order})
            if not left:
                continue
            part = dataclasses.replace(problem if len(left) == count else problem.select(left), progress=stage)
            scale = None if floor == 1.0 or weights is None else 1.0 - (1.0 - floor) * (1.0 - weights[left])
            result, stage = walk(part, scale), ProgressStage(problem.progress, stage.before + stage.total)
            one = torch.ones(len(left), dtype=torch.float64, device=part.inputs.device)
            known = {"focus_length_ratio": one, **result.diagnostics, "focus_floor": floor * one}
            known["focus_found"] = torch.tensor([float(has_region[i]) for i in left]).to(one)
            done = [k for k, verdict in enumerate(result.verdict) if floor == 1.0 or verdict in enough]
            parts.append(dataclasses.replace(result, diagnostics=known).select(done))
            order += [left[k] for k in done]
            left = [left[k] for k in range(len(left)) if k not in done]
        joined = Attribution.concat(parts).select(torch.tensor(order).argsort().tolist())
        if weights is not None and weights.dim() == 4 and problem.forward_args.tail is None:
            focused = (joined.diagnostics["focus_floor"] < 1).view(-1, 1, 1, 1).to(weights)
            space = (len(weights), 1, *problem.inputs.shape[2:])
            joined = dataclasses.replace(joined, region=(focused * weights).expand(space).contiguous())
        return self._with_notes(
            joined.noted(layers) if layers else joined, problem.rows or range(count), weights is None
        )

    def weights(self, problem: Problem) -> Tensor | None:
        """The weights a, which broadcast to (B, *S), zero for an image without a region; of K classes the largest. None
        if the model has no layer in space."""
        return self.regions(problem)[0]

    def regions(self, problem: Problem) -> tuple[Tensor | None, list[str]]:
        """The weights a, and what :func:`cam_maps` notes on the layer (B), if they are of one."""
        if not isinstance(self.focus, str):
            return self._given(problem), []
        count, classes = problem.target.view(len(problem.inputs), -1).shape[1], problem.logits.shape[1]
        many = problem if self.focus == "cam" or classes == 1 else _with_others(problem)
        layer = find_cam_layer(problem, "auto")
        if layer is None:
            return None, []
        maps, notes = cam_maps(many, layer)
        maps = maps.relu()
        if many is not problem:
            maps = (maps[:, :count] - maps[:, count:].unflatten(1, (count, -1)).amax(2)).relu()
        space = list(problem.inputs.shape[2:])
        if problem.forward_args.tail is None:
            return upsample(maps, space).amax(1), notes
        space[-1] += problem.padding  # which the model gets
        return upsample(maps, space).amax(1)[..., : problem.inputs.shape[-1]], notes

    def _given(self, problem: Problem) -> Tensor:
        """The caller's weights of these images."""
        x, axis = problem.inputs, problem.length_axis % problem.inputs.dim()
        weights, size = torch.tensor(self.focus, dtype=x.dtype, device=x.device), list(x.shape)
        size[0] = problem.total or len(x)
        size[axis] += problem.padding
        if weights.dim() != x.dim() or any(n not in (1, m) for n, m in zip(weights.shape, size, strict=True)):
            message = (
                f"got weights of shape {tuple(weights.shape)}, expected ({size[0]}, 1, {', '.join(map(str, size[2:]))})"
            )
            raise InputError(message, argument="focus", hint="one weight for each position, the same for all channels")
        if weights.shape[axis] > 1:
            weights = weights.narrow(axis, 0, x.shape[axis])
        if len(weights) > 1 and problem.rows is not None:
            weights = weights[list(problem.rows)]
        return weights.expand(len(x), *weights.shape[1:])

    def _with_notes(self, result: Attribution, images: Sequence[int], no_layer: bool) -> Attribution:
        """The result with the focus in its advice, and a warning of images without a region."""
        names = ("focus_floor", "focus_found", "focus_length_ratio")
        floors, regions, ratios = (result.diagnostics[name].tolist() for name in names)
        notes = list[str]()
        for floor, has_region, ratio in zip(floors, regions, ratios, strict=True):
            if floor == 1.0:
                notes.append("unfocused: " + ("the floor is 1" if has_region else "there is no region"))
            else:
                notes.append(f"focused with floor {floor:g}, {ratio:.2f} times as long as in the input")
        without = [i for i, has_region in zip(images, regions, strict=True) if not has_region]
        if without:
            why = "the weights are zero" if not isinstance(self.focus, str) else "the class activation map is zero"
            why = "the model has no layer with activations in space" if no_layer else why
            warn_caller(f"the paths of images {without} are not focused: {why}")
        return result.noted(notes)


def _with_others(problem: Problem) -> Problem:
    """The problem with the most probable other classes of each of K as further targets: (B, K + K * others)."""
    target = problem.target.view(len(problem.inputs), -1)
    logits = problem.logits[:, None].expand(-1, target.shape[1], -1).scatter(2, target[..., None], -torch.inf)
    others = logits.topk(min(OTHERS, logits.shape[2] - 1), dim=2).indices
    contrast = None if problem.contrast is None else problem.contrast.view_as(target)
    if contrast is not None:
        contrast = torch.cat([contrast, contrast.repeat_interleave(others.shape[2], 1)], 1)
    return dataclasses.replace(problem, target=torch.cat([target, others.flatten(1)], 1), contrast=contrast)
