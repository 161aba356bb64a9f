"""A second device that needs no hardware: tensors that say they are elsewhere, computed by the CPU.

Inside :func:`second_device`, ``ELSEWHERE`` is a place like an accelerator: what is sent or made there lies behind a
tensor whose device is another one. Every operation is the CPU's own, so results are the same bits; one that mixes the
two places raises, as it would on an accelerator, but for what an accelerator allows: copies, a CPU tensor without axes
among operands, CPU indices of a tensor elsewhere. It says nothing of kernels, streams or memory.

``second_device(float64=False)`` refuses float64, as Apple GPUs do, and some of Intel's.
"""

import contextlib
from collections.abc import Generator
from typing import Any, ClassVar

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_map_only

ELSEWHERE = torch.device("lazy")
"""A device that PyTorch knows and has no kernels for: what slips past this file fails."""

aten = torch.ops.aten
COPIES = {aten._to_copy.default, aten.copy_.default, aten.copy.default}
WAITING = {aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default}
INDEXED = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}


class Elsewhere(torch.Tensor):
    """A tensor of the second device; its numbers are in ``raw``."""

    raw: torch.Tensor
    float64: ClassVar[bool] = True
    __torch_function__: ClassVar[Any] = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, raw):
        if raw.dtype == torch.float64 and not cls.float64:
            raise TypeError("Cannot convert a tensor to float64 dtype as the device doesn't support float64")
        self = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.shape,
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=ELSEWHERE,
        )
        self.raw = raw
        return self

    def __repr__(self, **_):
        return f"Elsewhere({self.raw!r})"

    def tolist(self):  # PyTorch has neither for its subclasses
        return self.detach().cpu().tolist()

    @property
    def data(self):
        return torch.Tensor.data.__get__(self)

    @data.setter
    def data(self, value):  # PyTorch would exchange the storage, which is not where the numbers are
        self.raw = value.raw

    def __format__(self, spec):
        return format(self.tolist(), spec)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return operate(func, args, kwargs or {})


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return operate(func, args, kwargs or {})


class _Literals(TorchFunctionMode):
    """Python numbers that PyTorch sends to a device out of the dispatcher's sight."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and torch.device(kwargs.get("device") or "cpu") == ELSEWHERE:
            del kwargs["device"]
            return func(*args, **kwargs).to(ELSEWHERE)
        if func is torch.Tensor.new_tensor and isinstance(args[0], Elsewhere):
            return torch.tensor(args[1], dtype=args[0].dtype).to(ELSEWHERE)
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):
            index = tree_map_only(list, torch.tensor, args[1], is_leaf=lambda part: isinstance(part, list))
            args = (args[0], index, *args[2:])
        return func(*args, **kwargs)


@contextlib.contextmanager
def second_device(*, float64: bool = True) -> Generator[torch.device]:
    """``ELSEWHERE``, which is a device inside the ``with`` block."""
    before, Elsewhere.float64 = Elsewhere.float64, float64
    try:
        with _Literals(), _Operations():
            yield ELSEWHERE
    finally:
        Elsewhere.float64 = before


class Transfers(TorchDispatchMode):
    """Counts what is copied to the second device, ``sent``, and what the host waits for, ``back``."""

    def __init__(self):
        super().__init__()
        self.sent = self.back = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        operands: list[torch.Tensor] = []
        tree_map_only(torch.Tensor, operands.append, (args, kwargs))
        away = [t for t in operands if isinstance(t, Elsewhere)]
        masked = func in INDEXED and any(t.dtype == torch.bool for t in away[1:])
        self.back += bool(away) and (func in WAITING or masked)
        if func is aten._to_copy.default:
            target = torch.device(kwargs.get("device") or args[0].device)
            self.back += bool(away) and target != ELSEWHERE
            self.sent += not away and target == ELSEWHERE
        return func(*args, **kwargs)


def operate(func, args, kwargs):
    """One operation on the CPU; its results are elsewhere if they are asked for there, or if an operand is."""
    operands: list[torch.Tensor] = []
    tree_map_only(torch.Tensor, operands.append, (args, kwargs))
    there = [t for t in operands if isinstance(t, Elsewhere)]
    if there and func not in COPIES:
        _refuse_two_places(func, args, operands)
    asked = kwargs.get("device")
    away = bool(there) if asked is None else torch.device(asked) == ELSEWHERE
    if func is aten.copy_.default:
        away = isinstance(args[0], Elsewhere)
    if asked is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    known = {id(t.raw): t for t in there}  # what is changed in place stays the tensor that it was
    raw_args, raw_kwargs = tree_map_only(Elsewhere, lambda t: t.raw, (args, kwargs))
    out = func(*raw_args, **raw_kwargs)
    if not away:
        return out
    out = tree_map_only(torch.Tensor, lambda t: known[id(t)] if id(t) in known else Elsewhere(t), out)
    return return_and_correct_aliasing(func, args, kwargs, out)


def _refuse_two_places(func, args, operands):
    if func in INDEXED and isinstance(args[0], Elsewhere):
        return
    here = [tuple(t.shape) for t in operands if not isinstance(t, Elsewhere) and t.dim() > 0]
    if here:
        raise RuntimeError(f"{func}: expected all tensors on one device, those of shape {here} are on the CPU")
