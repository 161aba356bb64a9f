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

_BOUNDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("relu", "relu6"), ()),
    **{"hardtanh": ("min_val", "max_val"), "clamp": ("min", "max"), "clip": ("min", "max"), "clamp_min": ("min",)},
}
_PACKAGES: tuple[Any, ...] = (F, torch, Tensor, torch.ops.aten)  # the last of exported programs
#: Each function with the names of its bounds; no names: ReLU, and ReLU6 where it says so.
_RECTIFIERS: dict[Any, tuple[str, ...]] = {
    getattr(package, name + end): bounds
    for package in _PACKAGES
    for name, bounds in _BOUNDS.items()
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
        names = _RECTIFIERS.get(getattr(func, "overloadpacket", func))
        x = args[0] if args else None
        if names is None or not isinstance(x, Tensor) or not (x.requires_grad and torch.is_grad_enabled()):
            return func(*args, **kwargs)
        inplace = func.__name__.split(".")[0].endswith("_") or bool(kwargs.get("inplace"))
        bounds = _bounds(func, names, args, kwargs)
        if bounds is None or (inplace and x._is_view()):
            return func(*args, **kwargs)
        is_clamp = names[:1] == ("min",)
        return _Rectifier.apply(x, lambda: func(*args, **kwargs), *bounds, is_clamp, inplace)


def _bounds(func: Any, names: tuple[str, ...], args: Any, kwargs: dict[str, Any]) -> tuple[float, float] | None:
    """The interval in which a call has slope one, if one of its ends is a kink at zero or it is a hardtanh."""
    if not names:
        return 0.0, 6.0 if "relu6" in func.__name__ else math.inf
    given = {**dict(zip(names, args[1:], strict=False)), **kwargs}
    if names == ("min_val", "max_val"):
        return float(given.get("min_val", -1.0)), float(given.get("max_val", 1.0))
    low, high = given.get("min"), given.get("max")
    if isinstance(low, Tensor) or isinstance(high, Tensor) or 0 not in (low, high):
        return None
    return -math.inf if low is None else float(low), math.inf if high is None else float(high)


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
        (x,), low, high, gradient = ctx.saved_tensors, ctx.low, ctx.high, grads[0]
        x = x.detach()  # of the slope there are no derivatives
        if _is_smooth:
            product = _inside(x, low, high).mul_(SHARPNESS).sigmoid_().mul_(gradient)
        elif ctx.is_clamp:
            product = torch.where((x >= low) & (x <= high), gradient, 0.0)
        elif high == math.inf:
            product = torch.ops.aten.threshold_backward(gradient, x, low)
        else:
            product = torch.ops.aten.hardtanh_backward(gradient, x, low, high)
        return product, None, None, None, None, None


def _inside(x: Tensor, low: float, high: float) -> Tensor:
    """How far inside of an interval entries are, in a new tensor; less than zero: outside."""
    above = x if low == 0.0 else x - low
    if high == math.inf:
        return above.clone() if above is x else above
    below = high - x
    return below if low == -math.inf else torch.minimum(above, below, out=below)
