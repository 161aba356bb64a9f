"""Rectifiers (ReLU, ReLU6, hardtanh, clamps at zero) whose backward pass can take a smooth slope.

The slope of a rectifier jumps at its kink, so that rounding turns the direction of a path that comes near one. Inside
:func:`smooth_slopes` a vector-Jacobian product takes a sigmoid in place of the jump: the product is that of a network
with rectifiers like softplus. Values, other products and second derivatives stay those of the network.
"""

import contextlib
import math
from collections.abc import Generator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

#: Inverse width of the sigmoid, in units of what a rectifier takes. From 3 to 30 maps are equally steady, with 1 not.
SHARPNESS = 10.0

#: Names of the arguments that bound the interval in which the slope is one, and its ends without them.
_KINDS: dict[str, tuple[tuple[str, ...], float, float]] = {
    **{"relu": ((), 0.0, math.inf), "relu6": ((), 0.0, 6.0), "hardtanh": (("min_val", "max_val"), -1.0, 1.0)},
    **dict.fromkeys(("clamp", "clip"), (("min", "max"), -math.inf, math.inf)),
    "clamp_min": (("min",), -math.inf, math.inf),
}
_PACKAGES: tuple[Any, ...] = (F, torch, Tensor, torch.ops.aten)  # the last of exported programs
_RECTIFIERS: dict[Any, tuple[tuple[str, ...], float, float]] = {
    getattr(package, name + end): kind
    for package in _PACKAGES
    for name, kind in _KINDS.items()
    for end in ("", "_")
    if hasattr(package, name + end)
}
#: Whether backward passes take smooth slopes now. Not of a thread: PyTorch runs those of a GPU in threads of its own.
_is_smooth = False


@contextlib.contextmanager
def smooth_slopes() -> Generator[None]:
    """Take smooth slopes in the backward passes within the block, in graphs recorded under :class:`Rectifiers`."""
    global _is_smooth
    before, _is_smooth = _is_smooth, True
    try:
        yield
    finally:
        _is_smooth = before


class Rectifiers(TorchFunctionMode):
    """Records rectifiers that are called inside the ``with`` block so that their slopes can be smooth."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        kind, x = _RECTIFIERS.get(getattr(func, "overloadpacket", func)), args[0] if args else None
        if kind is None or not isinstance(x, Tensor) or not (x.requires_grad and torch.is_grad_enabled()):
            return func(*args, **kwargs)
        names, *ends = kind
        given = {**dict(zip(names, args[1:], strict=False)), **kwargs}
        for i, name in enumerate(names):
            ends[i] = ends[i] if given.get(name) is None else given[name]
        inplace = func.__name__.split(".")[0].endswith("_") or bool(kwargs.get("inplace"))
        varies, is_clamp = any(isinstance(end, Tensor) for end in ends), "min" in names
        if varies or (is_clamp and 0 not in ends) or (inplace and x._is_view()):
            return func(*args, **kwargs)
        return _Rectifier.apply(x, lambda: func(*args, **kwargs), *map(float, ends), is_clamp, inplace)


class _Rectifier(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, plain: Any, low: float, high: float, is_clamp: bool, inplace: bool) -> Tensor:
        ctx.save_for_backward(x.clone() if inplace else x)
        ctx.low, ctx.high, ctx.is_clamp = low, high, is_clamp
        if inplace:
            ctx.mark_dirty(x)
        return plain()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, low, high = ctx.saved_tensors[0].detach(), ctx.low, ctx.high  # of the slope there are no derivatives
        if _is_smooth:
            inside = x - low if high == math.inf else torch.minimum(x - low, high - x)  # how far
            product = inside.mul_(SHARPNESS).sigmoid_().mul_(grads[0])
        elif ctx.is_clamp:
            product = torch.where((x >= low) & (x <= high), grads[0], 0.0)
        elif high == math.inf:
            product = torch.ops.aten.threshold_backward(grads[0], x, low)
        else:
            product = torch.ops.aten.hardtanh_backward(grads[0], x, low, high)
        return product, None, None, None, None, None
