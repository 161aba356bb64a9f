"""Class activation maps: where the last layer with positions in space sees the explained class."""

import contextlib
import dataclasses
import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fringe._network.isolation import leaf
from fringe._network.passes import network_of
from fringe._numbers.rng import KeyedGenerator
from fringe.attribution._base import Attribution, Attributor, ProgressCounter
from fringe.attribution._diagnostics import gradient_attribution
from fringe.errors import InputError, did_you_mean, warn_caller
from fringe.paths import Problem
from fringe.settings import Doc, Setting

#: How maps of so many axes in space are scaled up.
_MODES = {1: "linear", 2: "bilinear", 3: "trilinear"}
#: Tokens beside those of the patches: of the class, of distillation, registers.
_MOST_EXTRA = 8
#: Share of the input's gradient past a layer above which its maps say so.
MOST_OUTSIDE = 0.5
#: How far, in sides of the image, a layer may see half of an image on the wrong side: as it does if each of its
#: positions sees the whole image.
TURNED = 0.1


def find_cam_layer(problem: Problem, name: str = "auto") -> nn.Module | None:
    """Find the layer whose activations show where a class is seen.

    It is the last layer with weights whose activations lie at more than one position in space and reach the score, or
    the last module after it with the same positions, such as its activation function; not the head that a detector
    applies to several grids, if there is another layer, nor one whose activations are the answers of places, such as
    the head of a detector of one grid. Activations are (B, C, *grid), channels last, or tokens (B, N, C) of patches,
    after those of the class and registers. In the last block of a vision transformer that reads the class token alone,
    it is the first normalisation. Costs a forward and a backward pass of one image, unless the layer is named.

    Args:
        problem: The images and the model. Its session is open.
        name: Dotted name of a module of the network; ``"auto"``: find it.

    Returns:
        The module; None if there is none: for rows of features, texts, and networks that are no ``nn.Module``.

    Raises:
        InputError: If the network has no module of this name.
    """
    network = problem.model.module
    modules = {} if network is None else dict(network.named_modules())
    scripted = any(isinstance(module, torch.jit.ScriptModule) for module in modules.values())
    if not modules or problem.structure == "none" or scripted:
        return None
    if name != "auto":
        if name not in modules:
            hint = did_you_mean(name, modules) or "its named_modules() lists the names, and 'auto' chooses one"
            raise InputError(f"the model has no module {name!r}", argument="layer", hint=hint)
        return modules[name]
    ran: list[tuple[nn.Module, Tensor]] = []

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        ran.append((module, tensor_of(output)))

    x = leaf(problem.inputs[:1])
    with problem.model.session(x.device), hooked(modules.values(), note):
        logits = problem.model.evaluate(x, problem.forward_args.select(problem.every_row[:1]))
    # linear layers of tokens give queries, keys and values, too; and a detector may have queries in place of patches
    aside = set(getattr(network, "queries", ())) | {m for m in modules.values() if type(m) is nn.Linear}
    maps = [(m, z) for m, z in ran if z.requires_grad and m not in aside and in_space(z, x) is not None]
    if not maps or not logits.requires_grad:
        return None
    cotangent = torch.linspace(1, 2, logits.shape[1], dtype=logits.dtype, device=x.device)[None]  # of all classes
    gradients = gradients_at(problem, logits, [z for _, z in maps], cotangent)
    # the last block's patches do not reach a score that is read from the class token
    reach = [
        (module, z, g)
        for (module, z), g in zip(maps, gradients, strict=True)
        if bool((cast(Tensor, in_space(g, x)) != 0).any())
    ]
    runs = Counter(id(module) for module, _ in ran)
    grids = Counter(module for module, _ in {(id(m), cast(Tensor, in_space(z, x)).shape[2:]) for m, z in maps})
    weighted = [i for i, (m, *_) in enumerate(reach) if next(m.parameters(recurse=False), None) is not None]
    # a head that a detector applies to several grids has no one grid for a map
    ordered = sorted(weighted, key=lambda i: (grids[id(reach[i][0])] == 1, i), reverse=True)
    last = next((i for i in ordered if not _is_answer(problem, logits, *reach[i][1:])), None)
    if last is None:
        return None
    side = cast(Tensor, in_space(reach[last][1], x)).shape[2:]
    after = [one for one in reach[last:] if cast(Tensor, in_space(one[1], x)).shape[2:] == side]
    same = [module for module, *one in after if not _is_answer(problem, logits, *one)]
    fewest = min(runs[id(module)] for module in same)  # an activation function may run elsewhere, too
    return [module for module in same if runs[id(module)] == fewest][-1]


def _is_answer(problem: Problem, logits: Tensor, z: Tensor, gradient: Tensor) -> bool:
    """Whether activations are what one place answers: its class alone, or that and whether there is an object. Costs a
    backward pass of one image, where the ``gradient`` of all classes has few entries."""
    if int((gradient != 0).sum()) > logits.shape[1] + 1:
        return False
    explained = functional.one_hot(problem.target.flatten()[:1], logits.shape[1]).to(logits)
    return int((gradients_at(problem, logits, [z], explained)[0] != 0).sum()) <= 2


def layer_name(problem: Problem, layer: nn.Module) -> str:
    """Return the dotted name of a module of the network."""
    modules = () if problem.model.module is None else problem.model.module.named_modules()
    return next((name for name, module in modules if module is layer), type(layer).__name__)


def cam_weights(activations: Tensor, gradients: Tensor) -> Tensor:
    """Weigh channels by their mean gradient: Grad-CAM at the layer's own positions.

    Args:
        activations: A (B, C, *grid).
        gradients: G (B, K, C, *grid).

    Returns:
        ``sum_c mean(G_c) A_c`` (B, K, *grid), which Grad-CAM shows without its negative part.
    """
    means = gradients.flatten(3).mean(3)
    return torch.einsum("bkc,bcn->bkn", means, activations.flatten(2)).unflatten(2, activations.shape[2:])


def cam_maps(
    problem: Problem, layer: nn.Module, weigh: Callable[[Tensor, Tensor], Tensor] = cam_weights
) -> tuple[Tensor, list[str]]:
    """Compute what a layer shows of the explained classes, in chunks of the batch size.

    Costs a forward pass for each image, and a backward pass from the score to the layer for each of K classes; once
    more a pass of both kinds where the score sees the image past the layer; and for the first image, to see whether the
    positions of the layer are those of the image, a forward pass, and a backward one for each axis and one more.

    Args:
        problem: B images and the model.
        layer: A module of the network. If it runs n times in a pass, all runs on the grid of the last one count, each
            as further channels. What a run gives to a later one is counted there.
        weigh: Makes maps (B, K, *grid) of activations (B, n C, *grid) and gradients (B, K, n C, *grid) of the scores.

    Returns:
        The maps (B, K, *grid); K is 1 for one class per image. A note on each image, which names the layer, and says so
        if more than half of the gradient of the score in the input does not pass through it; this is a warning, too.

    Raises:
        InputError: If the layer does not run, its activations have no positions in space, it is used on several grids,
            or it sees the image flipped, turned, cropped or enlarged.
    """
    name = layer_name(problem, layer)

    def evaluate(rows: Tensor) -> tuple[Tensor, Tensor]:
        part, seen = problem.select(rows), list[Tensor]()

        def cut(module: nn.Module, inputs: Any, output: Any) -> Any:  # the graph begins behind the layer
            seen.append(leaf(tensor_of(output)))
            return with_tensor(output, seen[-1])

        x = leaf(part.inputs)
        with hooked([layer], cut):
            logits = part.model.evaluate(x, part.forward_args)
        cotangent = part.score_cotangent(logits.detach()).view(len(rows), -1, logits.shape[1])
        given = [gradients_at(part, logits, [*seen, x], cotangent[:, k]) for k in range(cotangent.shape[1])]
        # a run that passes all of its evidence on to a later one has no gradient of its own
        used = [z for i, z in enumerate(seen) if z is seen[-1] or any(bool((g[i] != 0).any()) for g in given)]
        grids = [None if a is None else a.shape[1:] for a in (in_space(z, x) for z in used)]
        if grids != grids[-1:] * len(grids) or None in grids or not grids:
            shapes = " and ".join(dict.fromkeys(str(tuple(z.shape)) for z in used))
            came = f"gives activations of shape {shapes}" if seen else "does not run"
            message = f"the layer {name!r} {came}, expected activations in space{', on one grid' * (len(used) > 1)}"
            raise InputError(message, argument="layer", hint="name another one, or leave it out")
        runs = [i for i, z in enumerate(seen) if z.shape == seen[-1].shape]
        maps = [torch.cat([cast(Tensor, in_space(z[i], x)) for i in runs], 1) for z in (seen, *given)]
        past, through = given[0][-1], torch.zeros_like(x)  # in the input
        if bool((past != 0).any()):
            classes = (None if c is None else c.view(len(c), -1)[:, 0] for c in (part.target, part.contrast))
            first = dataclasses.replace(part, **dict(zip(("target", "contrast"), classes, strict=True)))
            through = first.logits_gradient(part.inputs, part.every_row)[1] - past
        outside, inside = (g.flatten(1).norm(dim=1) for g in (past, through))
        share = torch.where(outside > 0, outside / (outside + inside), 0.0)
        return weigh(maps[0].detach().contiguous(), torch.stack(maps[1:], 1).contiguous()), share

    with problem.model.session(problem.inputs.device):
        _check_frame(problem, layer, name)
        maps, shares = problem.model.batch_size.map(evaluate, problem.every_row)
    notes = [f"the layer is {name}"] * len(shares)
    missed = {i: f"{share:.0%}" for i, share in enumerate(shares.tolist()) if share > MOST_OUTSIDE}
    for i, share in missed.items():
        notes[i] += f", and {share} of the gradient of the score in the input does not pass through it"
    if missed:
        listed = ", ".join(f"{share} for image {i}" for i, share in list(missed.items())[:8])
        warn_caller(
            f"most of the gradient of the score in the input does not pass through the layer {name!r} ({listed}), and "
            "what it shows misses that: name another one as layer, or choose a method without a layer"
        )
    return maps, notes


def _check_frame(problem: Problem, layer: nn.Module, name: str) -> None:
    """Refuse a layer that sees the image flipped, turned, cropped or enlarged.

    The gradients of its activations say so, in noise, where no part of the layer is dead. Those of the first half of
    the positions along an axis lie before those of all along this axis (by a quarter of the side where each position
    sees its own place alone), and those of all reach each edge but for less than two positions.
    """
    draw, seen, first = KeyedGenerator().normal, list[Tensor](), problem.inputs[:1]
    values = first[first.isfinite()]
    x = leaf(draw("noise for a layer", first) * values.std() + values.mean())
    with hooked([layer], lambda module, inputs, output: seen.append(tensor_of(output))):
        problem.model.evaluate(x, problem.forward_args.select(problem.every_row[:1]))
    for grid in (in_space(z, x) for z in seen if z.requires_grad):
        if grid is None:
            continue
        cells, sides = grid.shape[2:], x.shape[2:]
        cotangent, wrong = draw("cotangent of a layer", grid), False
        whole = _profiles(gradients_at(problem, grid, [x], cotangent)[0])
        for axis, (count, side, profile) in enumerate(zip(cells, sides, whole, strict=True)):
            half = cotangent.movedim(axis + 2, -1) * (torch.arange(count, device=x.device) < count / 2)
            part = _profiles(gradients_at(problem, grid, [x], half.movedim(-1, axis + 2))[0])
            ahead = [_centre(a) - _centre(b) for a, b in zip(whole, part, strict=True)]
            forwards = ahead.pop(axis)
            wrong |= forwards < -TURNED or any(abs(aside) > max(forwards, 0) + TURNED for aside in ahead)
            reached = profile.nonzero().flatten().tolist()
            wrong |= bool(reached) and max(reached[0], side - 1 - reached[-1]) > 1.5 * side / count
        if wrong:
            message = f"the layer {name!r} sees the image flipped, turned, cropped or enlarged" + (
                f" in one of its {len(seen)} runs" if len(seen) > 1 else ""
            )
            hint = "its positions are not those of the image: explain one view, as the input of a model of it, name "
            raise InputError(
                message,
                argument="layer",
                hint=hint + "a layer that sees the image as it is, or choose a method without a layer",
            )


def _profiles(gradient: Tensor) -> list[Tensor]:
    """The absolute values of a gradient (1, C, *space) along each axis of space."""
    mass = gradient.abs().sum((0, 1))
    return [mass.movedim(axis, 0).flatten(1).sum(1) if mass.dim() > 1 else mass for axis in range(mass.dim())]


def _centre(profile: Tensor) -> float:
    """Where the middle of a profile is, from 0 to 1; NaN for zeros."""
    return float((profile * torch.linspace(0, 1, len(profile)).to(profile)).sum() / profile.sum())


def upsample(weights: Tensor, space: Sequence[int]) -> Tensor:
    """Scale maps up to the input, linearly along each axis, and divide each by its maximum.

    Args:
        weights: Maps (B, K, *grid), at least zero.
        space: Sides of the input.

    Returns:
        Maps (B, K, 1, *space) between zero and one. A map of zeros stays zero.
    """
    large = functional.interpolate(weights, tuple(space), mode=_MODES[len(space)])
    top = large.flatten(2).amax(2).view(*large.shape[:2], *[1] * len(space))
    return torch.where(top > 0, large / top, 0.0)[:, :, None]


def coarse_attribution(method: Attributor, maps: Tensor, problem: Problem, notes: Sequence[str]) -> Attribution:
    """Make the attribution of maps at a layer: scaled up linearly, with an equal part for each channel.

    Args:
        method: The method, which promises no sum.
        maps: Maps (B, 1, *grid).
        problem: What is explained.
        notes: A note on each image, for its advice.

    Returns:
        The attribution.
    """
    shape = problem.inputs.shape[1:]
    large = functional.interpolate(maps, tuple(shape[1:]), mode=_MODES[len(shape) - 1])
    ProgressCounter(problem.progress, len(maps)).tick(len(maps))
    why = f"{method.label} promises no sum that could be compared with the score"
    return gradient_attribution(method, large.expand(-1, *shape) / shape[0], problem, {}, why).noted(notes)


# -- the methods ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _ActivationMap(Attributor):
    """A map made of the activations of one layer and of their gradients, with an equal part for each channel.

    It is coarse: a cell of the layer, scaled up linearly. It has no completeness identity.
    """

    has_path = False
    is_complete = False

    layer: Annotated[str, Doc("dotted name of a module of the network; auto: the last one in space")] = "auto"

    @property
    def planned_passes(self) -> float:
        return 4.0

    @classmethod
    def search_space(cls) -> dict[str, Setting]:
        """Return no setting: a layer suits one network alone."""
        return {}

    @abstractmethod
    def _weights(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """The maps (B, K, *grid), with their negative parts, of A (B, C, *grid) and G (B, K, C, *grid)."""

    def fitted(self, problem: Problem) -> Self:
        """Return the method with the layer that is used, which the record then names."""
        network_of(problem.model, self.label)
        layer = find_cam_layer(problem, self.layer)
        if layer is None:
            message = f"it has no layer with activations in space for inputs of shape {tuple(problem.inputs.shape[1:])}"
            raise InputError(message, argument="model", hint="name a layer, as in layer=blocks.3, or another method")
        return dataclasses.replace(self, layer=layer_name(problem, layer))

    def attribute(self, problem: Problem) -> Attribution:
        fitted = self.fitted(problem)
        weights, notes = cam_maps(problem, cast(nn.Module, find_cam_layer(problem, fitted.layer)), fitted._weights)
        return coarse_attribution(fitted, weights.relu(), problem, notes)


@dataclass(frozen=True)
class GradCAM(_ActivationMap):
    """Weigh the channels of the last layer in space by their mean gradient (Selvaraju et al. 2017).

    .. math:: A = relu( \\sum_c mean(G_c) A_c )

    Where the layer's mean is the input of the last, linear layer, it is the class activation map (Zhou et al. 2016).
    Elsewhere the mean may give evidence to a place whose own gradient says the opposite: see HiResCAM. Costs a forward
    and a backward pass, and for one image the same to find the layer and four passes to check it.
    """

    name = "gradcam"
    title = "Grad-CAM"
    source = "Selvaraju et al. 2017"

    def _weights(self, activations: Tensor, gradients: Tensor) -> Tensor:
        return cam_weights(activations, gradients)


@dataclass(frozen=True)
class LayerCAM(_ActivationMap):
    """Weigh each activation of a layer by its own gradient, where it is positive (Jiang et al. 2021).

    .. math:: A = relu( \\sum_c relu(G_c) A_c )

    Earlier layers than the last give finer maps, too. Costs as much as Grad-CAM.
    """

    name = "layercam"
    title = "LayerCAM"
    source = "Jiang et al. 2021"

    def _weights(self, activations: Tensor, gradients: Tensor) -> Tensor:
        return (gradients.relu() * activations[:, None]).sum(2)


@dataclass(frozen=True)
class HiResCAM(_ActivationMap):
    """Weigh each activation of a layer by its own gradient (Draelos and Carin 2020).

    .. math:: A = relu( \\sum_c G_c A_c )

    It shows only places that the rest of the network reads. Costs as much as Grad-CAM.
    """

    name = "hirescam"
    title = "HiResCAM"
    source = "Draelos and Carin 2020"

    def _weights(self, activations: Tensor, gradients: Tensor) -> Tensor:
        return (gradients * activations[:, None]).sum(2)


# -- activations ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def hooked(modules: Iterable[nn.Module], hook: Callable[[nn.Module, Any, Any], Any]) -> Generator[None]:
    handles = [module.register_forward_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def gradients_at(problem: Problem, of: Tensor, at: Sequence[Tensor], cotangent: Tensor) -> list[Tensor]:
    """The gradients of ``(of * cotangent).sum()``, of zeros where it does not depend on a tensor: one counted VJP."""
    if not of.requires_grad:
        return [torch.zeros_like(z) for z in at]
    with problem.model.session(of.device), problem.model.backward(of.device):
        found = torch.autograd.grad(of, at, cotangent, retain_graph=True, materialize_grads=True)
    problem.model.passes.vjp += len(of)
    return list(found)


def tensor_of(output: Any) -> Tensor:
    """The output of a module, or the first part of several; something without axes if it is no tensor."""
    first = cast("tuple[Any, ...]", output)[0] if isinstance(output, tuple) and output else output
    return first if isinstance(first, Tensor) else torch.empty(())


def with_tensor(output: Any, z: Tensor) -> Any:
    """The output of a module with a copy of ``z``, as later layers may work in place, where its tensor was."""
    return (z.clone(), *output[1:]) if isinstance(output, tuple) else z.clone()


def in_space(z: Tensor, x: Tensor) -> Tensor | None:
    """Activations as (B, C, *grid) with more than one position, if they lie in the space of the inputs (B, C, *S)."""
    sides = x.shape[2:]
    if z.dim() < 3 or len(z) != len(x):
        return None
    if z.dim() == x.dim():
        layouts = (z, z.movedim(-1, 1)) if z.dim() > 3 else (z,)
        fits = [(_distortion(layout.shape[2:], sides), k) for k, layout in enumerate(layouts)]
        distortion, k = min(fits)
        return layouts[k] if distortion <= 1 else None
    if z.dim() != 3 or z.shape[2] == 1:  # channels after a mean over space are no tokens
        return None
    for patch in range(1, min(sides) + 1):
        grid = [side // patch for side in sides]
        if math.prod(grid) <= z.shape[1]:
            extra = z.shape[1] - math.prod(grid)
            fits = extra <= _MOST_EXTRA and math.prod(grid) > 1
            return z[:, extra:].movedim(-1, 1).unflatten(2, grid) if fits else None
    return None


def _distortion(grid: Sequence[int], sides: Sequence[int]) -> float:
    """How far positions are from a scaled copy of the input's: at most 1 if some are lost or added at an edge, infinite
    for a single position and for more than an input has, as along an axis of channels."""
    if math.prod(grid) == 1 or any(g > 2 * side for g, side in zip(grid, sides, strict=True)):
        return math.inf
    pairs = zip(grid, sides, strict=True)
    return max(abs(grid[0] * side - g * sides[0]) / (side + sides[0]) for g, side in pairs)
