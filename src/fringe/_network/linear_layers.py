"""Layers that are linear in their input, differentiated as such.

A Jacobian-vector product on a retained graph differentiates the backward pass once more. For a convolution PyTorch
then computes the derivative in the *weight* as well, requested or not, which is the more expensive half; for batch
normalisation in evaluation mode it runs a chain of elementwise operations. Neither is needed when weights are
frozen: the layer is affine in its input, its backward is its transpose, and the derivative of that is the layer
again. Inside :class:`LinearLayers` these calls are replaced by functions that use this. Values of convolutions are the
same bits; a normalisation is the same affine map in another order of rounding. The user's module is not touched.

Inside :class:`FoldedLayers` a batch normalisation is computed within the layer before it, whose weights are multiplied.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

Geometry = tuple[list[int], list[int], list[int], int]  # stride, padding, dilation, groups
Activations = tuple[torch.Size, torch.memory_format]  # shape and layout of a layer's input


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
        ctx.activations = x.shape, torch.channels_last if last else torch.contiguous_format
        ctx.weight, ctx.geometry = weight, geometry
        stride, padding, dilation, groups = geometry
        return torch.convolution(x, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _Transpose.apply(grads[0], ctx.weight, ctx.geometry, ctx.activations), None, None, None


class _Transpose(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, weight: Tensor, geometry: Geometry, activations: Activations) -> Tensor:
        ctx.weight, ctx.geometry = weight, geometry
        stride, padding, dilation, groups = geometry
        shape, layout = activations
        if layout is torch.channels_last:  # both in the layout of the activations: 1.3 to 1.9 times as fast
            y = y.contiguous(memory_format=layout)
            shape_only = torch.empty(shape, dtype=y.dtype, device=y.device, memory_format=layout)
        else:
            shape_only = y.new_empty(1).expand(shape)
        output_mask = [True, False, False]
        zeros = [0] * len(stride)
        return torch.ops.aten.convolution_backward(
            y, shape_only, weight, None, stride, padding, dilation, False, zeros, groups, output_mask
        )[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _Convolution.apply(grads[0], ctx.weight, None, ctx.geometry), None, None, None


#: Arguments of both functions after the tensors that they are given always, in their order, with the defaults.
_CONVOLUTION: dict[str, Any] = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
_BATCH_NORM: dict[str, Any] = {"weight": None, "bias": None, "training": False, "momentum": 0.1, "eps": 1e-5}


def _convolution(
    plain: Callable[..., Tensor], input: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any
) -> Tensor:
    options = {**_CONVOLUTION, **dict(zip(_CONVOLUTION, args, strict=False)), **kwargs}
    learnt = weight.requires_grad or (bias is not None and bias.requires_grad)
    if isinstance(options["padding"], str) or learnt or input.dim() != weight.dim():
        return plain(input, weight, bias, *args, **kwargs)
    axes, given = weight.dim() - 2, (options["stride"], options["padding"], options["dilation"])
    each = ([value] if isinstance(value, int) else [*value] for value in given)
    stride, padding, dilation = (values * axes if len(values) == 1 else values for values in each)
    return cast(Tensor, _Convolution.apply(input, weight, bias, (stride, padding, dilation, options["groups"])))


def _batch_norm(
    plain: Callable[..., Tensor],
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    options = {**_BATCH_NORM, **dict(zip(_BATCH_NORM, args, strict=False)), **kwargs}
    if options["training"] or running_mean is None or running_var is None:
        return plain(input, running_mean, running_var, *args, **kwargs)
    weight, bias = options["weight"], options["bias"]
    scale = (running_var + options["eps"]).rsqrt()
    scale = scale if weight is None else scale * weight
    shift = -running_mean * scale if bias is None else bias - running_mean * scale
    shape = (1, -1, *[1] * (input.dim() - 2))
    return torch.addcmul(shift.view(shape), input, scale.view(shape))


_ATEN = torch.ops.aten  # what exported programs call, decomposed ones included
_NORMALISATIONS = {
    *(F.batch_norm, torch.batch_norm, _ATEN.batch_norm, _ATEN.native_batch_norm),
    *(F.instance_norm, torch.instance_norm, _ATEN.instance_norm),
    *(_ATEN._native_batch_norm_legit, _ATEN._native_batch_norm_legit_no_training),
}


class GradientLayouts(TorchFunctionMode):
    """Gives the gradients of normalisations called inside the ``with`` block the layout of their outputs.

    On a CPU their backward pass takes the entries in a wrong order if the gradient of one image (of all images, for an
    instance normalisation) has other strides than the output, and both fit channels last; as after ``transpose``. For
    networks of which :func:`keep_gradient_layouts` cannot read the graph.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "overloadpacket", func) in _NORMALISATIONS:
            output = result[0] if isinstance(result, tuple) else result  # beside the statistics
            if output.requires_grad and output.dim() > 3 and output.device.type == "cpu":
                output.register_hook(partial(_with_strides, strides=output.stride()))
        return result


def keep_gradient_layouts(output: Tensor) -> None:
    """Do the same in the graph of ``output``, at a fraction of the time; no hooks may have saved its tensors: those of
    a checkpoint would run its part again."""
    seen: set[Any] = {None, output.grad_fn}
    nodes = [output.grad_fn] if output.grad_fn is not None else []
    while nodes:
        node: Any = nodes.pop()
        if "BatchNorm" in node.name():
            # overwritten, which the backward pass will say; or a function of the model's author by a like name
            with contextlib.suppress(RuntimeError, AttributeError):
                strides = torch.empty_like(node._saved_input, device="meta").stride()
                node.register_prehook(partial(_first_with_strides, strides))
        following = [after for after, _ in node.next_functions if after not in seen]
        seen.update(following)
        nodes += following


def _first_with_strides(strides: tuple[int, ...], gradients: tuple[Any, ...]) -> tuple[Any, ...]:
    return (_with_strides(gradients[0], strides), *gradients[1:]) if gradients[0] is not None else gradients


def _with_strides(gradient: Tensor, strides: tuple[int, ...]) -> Tensor:
    if gradient.stride() == strides:
        return gradient
    return torch.empty_strided(gradient.shape, strides, dtype=gradient.dtype, device=gradient.device).copy_(gradient)


class BackwardLayouts(TorchDispatchMode):
    """The same around a backward pass, at a cost per operator: for calls that no function mode sees.

    They are those of TorchScript, whose optimiser decides whether they come out wrong, and those of re-entrant
    checkpoints, which run their part within the backward pass.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func is torch.ops.aten.native_batch_norm_backward.default:
            gradient, x, *others = args
            if gradient.stride() != x.stride():
                args = (gradient.contiguous(), x.contiguous(), *others)
        return func(*args, **(kwargs or {}))


class LinearLayers(TorchFunctionMode):
    """Replaces convolutions and evaluation-mode batch normalisations called inside the ``with`` block."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.conv1d, torch.conv2d, torch.conv3d):
            return _convolution(func, *args, **kwargs)
        if func is F.batch_norm:
            return _batch_norm(func, *args, **kwargs)
        return func(*args, **kwargs)


# -- normalisations in the weights of the layers before them -----------------------------------------------------------

_WEIGHTED = frozenset({torch.conv1d, torch.conv2d, torch.conv3d, F.linear})
_SHAPES = frozenset(
    {Tensor.dim, Tensor.size, *(getattr(Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device"))}
)


class NotFoldable(Exception):
    """What a layer returns went elsewhere than to the normalisation that is folded into it."""


@dataclass(frozen=True)
class Fold:
    """A convolution or linear layer with the batch normalisation in evaluation mode that takes its output.

    Attributes:
        weight: Weight of the layer.
        bias: Its bias; None: it has none.
        norm: The module of the normalisation.
        eps: What it adds to variances.
        folded: Weight and bias of one layer that computes both.
    """

    weight: Tensor
    bias: Tensor | None
    norm: nn.Module
    eps: float
    folded: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None, norm: nn.Module, eps: float) -> Self:
        """Compute the weights of both, in double precision: PyTorch's formula serves linear layers, too."""
        mean, variance, *affine = (None if t is None else t.double() for t in _statistics(norm))
        wide = (None if bias is None else bias.double(), mean, variance, eps)
        folded = fuse_conv_bn_weights(weight.double(), *wide, *affine)  # pyright: ignore[reportArgumentType]
        a, b = (t.detach().to(weight.dtype) for t in folded)
        return cls(weight, bias, norm, eps, (a, b))

    def takes(self, func: Any, args: Any, kwargs: Mapping[str, Any], x: Tensor) -> bool:
        """Whether a call is that of the normalisation, on ``x``."""
        if func is not F.batch_norm or args[0] is not x:
            return False
        options = {**_BATCH_NORM, **dict(zip(_BATCH_NORM, args[3:], strict=False)), **kwargs}
        given = (*args[1:3], options["weight"], options["bias"])
        is_same = all(a is b for a, b in zip(given, _statistics(self.norm), strict=True))
        return is_same and not options["training"] and options["eps"] == self.eps


def _statistics(norm: nn.Module) -> list[Any]:
    return [getattr(norm, name) for name in ("running_mean", "running_var", "weight", "bias")]


def _is_layer(func: Any, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a call is that of a layer on a batch, in the form in which PyTorch's modules make it."""
    if func not in _WEIGHTED or len(args) < 2 or not kwargs.keys().isdisjoint(("weight", "bias")):
        return False
    return args[0].dim() == args[1].dim()


def _bias(args: Any) -> Tensor | None:
    return args[2] if len(args) > 2 else None


@dataclass(frozen=True)
class _Call:
    """The call of a layer, and those that took its output; None: not at once."""

    args: tuple[Any, ...]
    output: Tensor
    takers: list[tuple[Any, Any, Any] | None] = field(default_factory=list)


class FindFolds(TorchFunctionMode):
    """Notes which functions take the outputs of layers that are called inside the ``with`` block."""

    def __init__(self) -> None:
        super().__init__()
        self._calls = dict[int, _Call]()  # by the id of an output, which is kept alive
        self._latest: Any = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _SHAPES:
            return func(*args, **kwargs)
        for value in (*args, *kwargs.values()):
            for one in cast(tuple[Any, ...], value if isinstance(value, (tuple, list)) else (value,)):
                if (call := self._calls.get(id(one))) is not None:
                    call.takers.append((func, args, kwargs) if one is self._latest else None)
        self._latest = result = func(*args, **kwargs)
        if _is_layer(func, args, kwargs):
            self._calls[id(result)] = _Call(args, result)
        return result

    def folds(self, modules: Iterable[nn.Module]) -> dict[int, Fold]:
        """The folds of a network with these modules, by the id of a layer's weight: of each layer whose output goes to
        the same normalisation at once in all its calls, and nowhere else."""
        by_mean, folds = {id(getattr(m, "running_mean", m)): m for m in modules}, dict[int, Fold | None]()
        for call in self._calls.values():
            weight, fold = call.args[1], None
            func, args, kwargs = (call.takers[0] if len(call.takers) == 1 else None) or (None, (), {})
            if func is F.batch_norm and (norm := by_mean.get(id(args[1]))) is not None:
                fold = folds.get(id(weight)) or Fold.of(weight, _bias(call.args), norm, kwargs["eps"])
                fold = fold if fold.takes(func, args, kwargs, call.output) else None
            folds[id(weight)] = None if folds.get(id(weight), fold) is None else fold
        return {key: fold for key, fold in folds.items() if fold is not None}


class FoldedLayers(TorchFunctionMode):
    """Computes layers inside the ``with`` block with the normalisations that are folded into them, which then return
    what they are given.

    Raises:
        NotFoldable: If the output of such a layer goes elsewhere first.
    """

    def __init__(self, folds: Mapping[int, Fold]):
        super().__init__()
        self._folds = folds
        self._waiting: tuple[Tensor, Fold] | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if self._waiting is not None and func not in _SHAPES:
            (x, fold), self._waiting = self._waiting, None
            if not fold.takes(func, args, kwargs, x):
                raise NotFoldable
            return x
        fold = self._folds.get(id(args[1])) if _is_layer(func, args, kwargs) else None
        if fold is None or fold.bias is not _bias(args):
            return func(*args, **kwargs)
        result = func(args[0], *fold.folded, *args[3:], **kwargs)
        self._waiting = (result, fold)
        return result

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)
        if kind is None and self._waiting is not None:
            raise NotFoldable
