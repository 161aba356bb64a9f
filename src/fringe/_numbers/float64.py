"""Float64 for devices that have none, such as Apple GPUs and some of Intel's: these numbers lie on the host."""

import contextlib
import threading
from collections.abc import Callable, Generator
from typing import Any, cast

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

#: Types of devices that have float64.
_ALWAYS = ("cpu", "cuda")


class _Open(threading.local):
    """The types of the devices for which a context is open in this thread: they are not asked again."""

    types = frozenset[str]()


_open = _Open()


@contextlib.contextmanager
def float64_on(device: torch.device) -> Generator[None]:
    """Open a context in which float64 can be asked for on ``device``: if it has none, such tensors lie on the CPU."""
    if device.type in _ALWAYS or device.type in _open.types:
        yield
        return
    before = _open.types
    with contextlib.nullcontext() if has_float64(device) else _Float64OnHost(device):
        _open.types = before | {device.type}
        try:
            yield
        finally:
            _open.types = before


def has_float64(device: torch.device) -> bool:
    """Tell whether tensors on ``device`` can be float64."""
    if device.type in _ALWAYS:
        return True
    try:  # in an open context, this is true
        return float(torch.ones((), device=device).double()) == 1.0
    except (RuntimeError, TypeError):
        return False


class _Float64OnHost(TorchFunctionMode):
    """Has operations with a float64 tensor, among operands or results, on the CPU, where copies of the others go.

    Numbers in a lower precision go back to ``device``; masks and indices, when they meet a tensor there.
    """

    def __init__(self, device: torch.device):
        super().__init__()
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call, leaves = (args, kwargs or {}), list[Any]()
        _each(call, lambda leaf: leaves.append(leaf) or leaf)
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        name, is_move = getattr(func, "__name__", ""), func in (Tensor.to, Tensor.type_as)
        by_identity = func is Tensor.backward or getattr(func, "__module__", None) == "torch.autograd"
        if by_identity or (is_move and len(tensors) > 1):
            return func(*args, **call[1])
        wide = any(x.dtype == torch.float64 for x in tensors)
        dtypes = [x for x in leaves if isinstance(x, torch.dtype)]
        on_host = torch.float64 in dtypes or func is Tensor.double or (wide and not (is_move and dtypes))
        mutates = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
        if mutates:
            on_host = not self._is_here(tensors[0].device)
        if on_host:
            call = _each(call, self._to_host)
        elif any(self._is_here(x.device) for x in tensors):
            call = _each(call, self._to_device)
        result = func(*call[0], **call[1])
        names_device = any(isinstance(x, (torch.device, str) if is_move else torch.device) for x in leaves)
        return result if mutates or names_device or not wide else _each(result, self._back)

    def _is_here(self, where: torch.device | str) -> bool:
        return str(where).partition(":")[0] == self._device.type

    def _to_host(self, x: Any) -> Any:
        if isinstance(x, Tensor):
            return x.cpu() if self._is_here(x.device) else x
        return "cpu" if isinstance(x, (torch.device, str)) and self._is_here(x) else x

    def _to_device(self, x: Any) -> Any:
        if not isinstance(x, Tensor) or x.dtype == torch.float32:
            return x
        return x.to(self._device, torch.float32 if x.dtype == torch.float64 else x.dtype)

    def _back(self, x: Any) -> Any:
        is_narrow = isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64
        return x.to(self._device) if is_narrow else x


def _each(value: Any, function: Callable[[Any], Any]) -> Any:
    """``value`` with ``function`` of each leaf of its tuples, lists and dictionaries."""
    if isinstance(value, dict):
        return {key: _each(x, function) for key, x in cast(dict[Any, Any], value).items()}
    if isinstance(value, (tuple, list)):
        return type(value)([_each(x, function) for x in cast(list[Any], value)])
    return function(value)
