"""Class activation maps: where the last layer with positions in space sees the explained class."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fringe.attribution._plugins import Explain, PluginMethod
from fringe.errors import InputError, did_you_mean
from fringe.paths import Problem
from fringe.settings import Doc

#: How maps of so many axes in space are scaled up.
_MODES = {1: "linear", 2: "bilinear", 3: "trilinear"}
#: Tokens beside those of the patches: of the class, of distillation, registers.
_MOST_EXTRA = 8


def find_cam_layer(problem: Problem, name: str = "auto") -> nn.Module | None:
    """Find the layer whose activations show where a class is seen.

    It is the last layer with weights whose activations lie at more than one position in space and reach the score, or
    the last module after it with the same positions, such as its activation function. Activations are (B, C, *grid),
    channels last, or tokens (B, N, C) of patches, after those of the class and registers. In the last block of a
    vision transformer that reads the class token alone, it is the first normalisation. Costs a forward and a
    backward pass of one image, unless the layer is named.

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
        ran.append((module, _tensor_of(output)))

    handles = [module.register_forward_hook(note) for module in modules.values()]
    x, model = problem.inputs[:1].detach().clone().requires_grad_(True), problem.model
    try:
        logits = model.evaluate(x, problem.forward_args.select(problem.every_row[:1]))
    finally:
        for handle in handles:
            handle.remove()
    # linear layers of tokens give queries, keys and values, too
    maps = [(m, z) for m, z in ran if z.requires_grad and type(m) is not nn.Linear and _in_space(z, x) is not None]
    if not maps or not logits.requires_grad:
        return None
    cotangent = torch.linspace(1, 2, logits.shape[1], dtype=logits.dtype, device=x.device)[None]  # of all classes
    with model.backward(x.device):
        given = torch.autograd.grad(logits, [z for _, z in maps], cotangent, allow_unused=True)
    gradients = cast("Sequence[Tensor | None]", given)  # allow_unused gives None
    model.passes.vjp += 1
    # the last block's patches do not reach a score that is read from the class token
    reach = [
        (module, cast(Tensor, _in_space(z, x)))
        for (module, z), g in zip(maps, gradients, strict=True)
        if g is not None and bool((cast(Tensor, _in_space(g, x)) != 0).any())
    ]
    runs = [id(module) for module, _ in ran]
    last = max(
        (i for i, (m, _) in enumerate(reach) if next(m.parameters(recurse=False), None) is not None), default=None
    )
    if last is None:
        return None
    same = [module for module, z in reach[last:] if z.shape[2:] == reach[last][1].shape[2:]]
    once = [module for module in same if runs.count(id(module)) == 1]
    return once[-1] if once else same[0]


def activations_and_gradients(problem: Problem, layer: nn.Module) -> tuple[Tensor, Tensor]:
    """Compute a layer's activations and the gradients of the explained scores there, in chunks of the batch size.

    Costs a forward pass for each image, and a backward pass from the score to the layer for each of K classes.

    Args:
        problem: B images and the model.
        layer: A module of the network. If it runs several times in a pass, its last activations count.

    Returns:
        Activations (B, C, *grid) and gradients (B, K, C, *grid); K is 1 for one class per image.

    Raises:
        InputError: If the layer does not run, or its activations have no positions in space.
    """

    def evaluate(rows: Tensor) -> tuple[Tensor, Tensor]:
        model, part = problem.model, problem.select(rows)
        seen: list[Tensor] = []

        def cut(module: nn.Module, inputs: Any, output: Any) -> Any:  # the graph begins behind the layer
            leaf = _tensor_of(output).detach().clone().requires_grad_(True)
            seen.append(leaf)
            ours = leaf.clone()  # later layers may work in place
            return (ours, *output[1:]) if isinstance(output, tuple) else ours

        handle = layer.register_forward_hook(cut)
        try:
            logits = model.evaluate(part.inputs, part.forward_args)
        finally:
            handle.remove()
        a = _in_space(seen[-1], part.inputs) if seen else None
        if a is None:
            came = f"gives activations of shape {tuple(seen[-1].shape)}" if seen else "does not run"
            modules = () if problem.model.module is None else problem.model.module.named_modules()
            name = next((name for name, module in modules if module is layer), type(layer).__name__)
            message = f"the layer {name!r} {came}, expected activations in space"
            raise InputError(message, argument="layer", hint="name another one, or leave it out")
        cotangent = part.score_cotangent(logits.detach()).view(len(rows), -1, logits.shape[1])
        gradients: list[Tensor] = []
        for k in range(cotangent.shape[1]):
            g = torch.zeros_like(seen[-1])
            if logits.requires_grad:
                with model.backward(part.inputs.device):
                    (g,) = torch.autograd.grad(
                        logits, seen[-1], cotangent[:, k], retain_graph=True, materialize_grads=True
                    )
                model.passes.vjp += len(rows)
            gradients.append(cast(Tensor, _in_space(g, part.inputs)))
        return a.detach().contiguous(), torch.stack(gradients, 1).contiguous()

    with problem.model.session(problem.inputs.device):
        return problem.model.batch_size.map(evaluate, problem.every_row)


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


# -- the methods ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _ActivationMap(PluginMethod):
    """A map made of the activations of one layer and of their gradients, with an equal part for each channel.

    It is coarse: a cell of the layer, scaled up linearly. It has no completeness identity.
    """

    layer: Annotated[str, Doc("dotted name of a module of the network; auto: the last one in space")] = "auto"

    @abstractmethod
    def _weights(self, activations: Tensor, gradients: Tensor) -> Tensor:
        """The maps (B, K, *grid), with their negative parts, of A (B, C, *grid) and G (B, K, C, *grid)."""

    def _explainer(self, problem: Problem) -> Explain:
        self._network(problem)
        layer, shape = find_cam_layer(problem, self.layer), problem.inputs.shape[1:]
        if layer is None:
            message = f"it has no layer with activations in space for inputs of shape {tuple(shape)}"
            raise InputError(message, argument="model", hint="name a layer, as in layer=blocks.3, or another method")

        def explain(part: Problem) -> Tensor:
            activations, gradients = activations_and_gradients(part, layer)
            weights = self._weights(activations, gradients).relu()
            maps = functional.interpolate(weights, tuple(shape[1:]), mode=_MODES[len(shape) - 1])
            return maps.expand(-1, *shape) / shape[0]

        return explain


@dataclass(frozen=True)
class GradCAM(_ActivationMap):
    """Weigh the channels of the last layer in space by their mean gradient (Selvaraju et al. 2017).

    .. math:: A = relu( \\sum_c mean(G_c) A_c )

    Where the layer's mean is the input of the last, linear layer, it is the class activation map (Zhou et al. 2016).
    Elsewhere the mean may give evidence to a place whose own gradient says the opposite: see HiResCAM. Costs a forward
    and a backward pass, and the same once to find the layer.
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


def _tensor_of(output: Any) -> Tensor:
    """The output of a module, or the first part of several; something without axes if it is no tensor."""
    first = cast("tuple[Any, ...]", output)[0] if isinstance(output, tuple) and output else output
    return first if isinstance(first, Tensor) else torch.empty(())


def _in_space(z: Tensor, x: Tensor) -> Tensor | None:
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
