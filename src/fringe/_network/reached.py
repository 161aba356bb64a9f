"""Find the modules that a callable runs, wherever it holds them."""

import contextlib
import functools
import types
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from fringe.errors import InputError

#: Objects that are looked at; what is farther away is found when it runs, see :func:`refusing_training`.
MOST_OBJECTS = 20_000
#: Packages whose functions hold no network of the caller.
_LIBRARIES = {"torch", "torchvision", "numpy", "builtins"}
#: Layers that compute something else in training mode.
_DIFFERENT = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)  # pyright: ignore[reportPrivateUsage]
_LEAVES = (Tensor, torch.Generator, str, bytes, int, float, complex, type, types.ModuleType, types.BuiltinFunctionType)


def reached_modules(*callables: object) -> list[nn.Module]:
    """Return the modules that these callables may run, each once, without those that another one has registered.

    They are looked for in closures, defaults and named globals of functions, bound methods, partial functions, the
    attributes of objects, and lists, tuples, sets and dictionaries of these, at any depth.
    """
    found, seen, left = list[nn.Module](), dict[int, object](), list(callables)
    while left and len(seen) < MOST_OBJECTS:
        thing = left.pop(0)
        if id(thing) in seen or isinstance(thing, _LEAVES) or thing is None:
            continue
        seen[id(thing)] = thing  # held, so that no other object gets its address
        if isinstance(thing, nn.Module):
            found.append(thing)
        left.extend(_held(thing))
    registered = {id(child) for module in found for child in module.modules() if child is not module}
    return [module for module in found if id(module) not in registered]


def _held(thing: Any) -> Iterator[object]:
    """What an object holds."""
    if isinstance(thing, functools.partial):
        yield from (thing.func, thing.args, thing.keywords)
    elif isinstance(thing, types.MethodType):
        yield from (thing.__self__, thing.__func__)
    elif isinstance(thing, types.FunctionType):
        yield from (thing.__defaults__, thing.__kwdefaults__, vars(thing))
        for cell in thing.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty one
                yield cell.cell_contents
        if str(thing.__globals__.get("__name__")).partition(".")[0] not in _LIBRARIES:
            yield from _named(thing.__code__, thing.__globals__)
    elif isinstance(thing, Mapping):
        yield from cast("Mapping[Any, object]", thing).values()
    elif isinstance(thing, Collection) and isinstance(thing, (list, tuple, set, frozenset)):
        yield from cast("Collection[object]", thing)
    else:
        yield getattr(thing, "__dict__", None)
        if not isinstance(thing, nn.Module):
            yield from (getattr(thing, name, None) for name in getattr(type(thing), "__slots__", ()))
            yield vars(type(thing)).get("__call__")


def _named(code: types.CodeType, values: dict[str, Any]) -> Iterator[object]:
    """The globals that a function, or one inside it, names; and of a Python module the attributes that it names."""
    for name in code.co_names:
        value = values.get(name)
        if isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] not in _LIBRARIES:
            yield from (vars(value).get(attribute) for attribute in code.co_names)
        yield value
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _named(inner, values)


@contextlib.contextmanager
def refusing_training(function: Callable[..., Any]) -> Generator[None]:
    """Refuse a module in training mode before it runs: one that a function holds where nobody finds it."""

    def refuse(module: nn.Module, inputs: Any) -> None:
        if module.training and isinstance(module, _DIFFERENT):
            message = f"{getattr(function, '__qualname__', 'it')} runs a {type(module).__name__} in training mode"
            raise InputError(message, argument="model", hint="call .eval() of that network, or pass it itself")

    handle = register_module_forward_pre_hook(refuse)
    try:
        yield
    finally:
        handle.remove()
