"""Turn a name, a class of this library or of Captum, or a function into a method of this library."""

import contextlib
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from fringe._numbers.rng import global_seed
from fringe._strings.names import Reference, split_source
from fringe.attribution._base import METHODS, Attribution, Attributor, get_method
from fringe.attribution._diagnostics import gradient_attribution
from fringe.errors import FringeError, InputError, did_you_mean
from fringe.paths import Problem

#: ``function(model, inputs, target)``: maps of inputs (1, *S) for the class ``target`` (1,).
Function = Callable[..., Any]


def read_target(target: object, *, trust_code: bool = False) -> Attributor:
    """Turn any form of an attribution method into a method of this library.

    Args:
        target: A name, as for :func:`fringe.attribution.get_method`; ``"module:NAME"`` or ``"file.py:NAME"``, which
            runs that code; a configured method or its class; a class of ``captum.attr``; a function of Quantus; or any
            function ``(model, inputs, target)`` that returns maps of the inputs' shape, or with one channel.
        trust_code: Whether a module or a file that is named may be run.

    Returns:
        The method. A class of Captum or a function is called with one input at a time, and the global generators are
        seeded by the input, so its maps do not depend on the other inputs. Its passes are counted.

    Raises:
        InputError: If the target has none of these forms, or names code without ``trust_code``.
    """
    if isinstance(target, str):
        if ":" not in target or Reference.parse(target).name in METHODS:
            return get_method(target)
        return read_target(_imported(target, trust_code=trust_code))
    if isinstance(target, Attributor) or (isinstance(target, type) and issubclass(target, Attributor)):
        return get_method(target)
    bases = target.__mro__ if isinstance(target, type) and hasattr(target, "attribute") else ()
    if isinstance(target, type) and any(base.__module__.startswith("captum.attr") for base in bases):

        def attribute(model: nn.Module, inputs: Tensor, target: Tensor, kind: Any = target) -> Any:
            return kind(model).attribute(inputs.requires_grad_(), target=target)

        attribute.__doc__ = inspect.getdoc(target)
        return _method(target.__name__, "Captum", attribute)
    if callable(target) and not isinstance(target, (type, nn.Module)):
        name = getattr(target, "__name__", type(target).__name__)
        # a module read from a file has an invented name, so record the file; a notebook's module has no file
        file = getattr(inspect.getmodule(target), "__file__", None)
        source = Path(file).name if file else getattr(target, "__module__", "") or ""
        code = ""  # the text of the file that it is written in, or of the function where there is no file
        for written in (inspect.getmodule(target), target):
            with contextlib.suppress(Exception):  # a function of a compiled module, or of a program that was typed in
                code = code or inspect.getsource(cast(Any, written))
        return _method(name, source, _call_function(target), code)
    hint = "give a name, a method, a class of captum.attr, or a function (model, inputs, target)"
    raise InputError(f"got {target!r}, which is no attribution method", argument="target", hint=hint)


def _imported(text: str, *, trust_code: bool) -> object:
    source, name = split_source(text)
    file = Path(source) if source.endswith(".py") else Path(f"{source.replace('.', '/')}.py")
    is_file = source.endswith(".py") or (importlib.util.find_spec(source.partition(".")[0]) is None and file.is_file())
    if not is_file and importlib.util.find_spec(source.partition(".")[0]) is None:
        hint = "name a method, module:NAME or file.py:NAME; 'fringe methods' lists the methods"
        raise InputError(
            f"got {text!r}, but no method and no module is called {source!r}", argument="target", hint=hint
        )
    if not trust_code:
        message = f"{text!r} {'runs the Python code in ' + str(file) if is_file else 'imports ' + source}"
        raise InputError(message, argument="target", hint="pass trust_code=True only if you trust its author")
    if is_file and not file.is_file():
        raise InputError(f"Python file {str(file)!r} does not exist", argument="target")
    from fringe.models import run_file

    code: ModuleType = run_file(file) if is_file else importlib.import_module(source)
    if not hasattr(code, name):
        public = [known for known in vars(code) if not known.startswith("_")]
        raise InputError(f"{source} has no {name!r}", argument="target", hint=did_you_mean(name, public))
    return getattr(code, name)


@dataclass(frozen=True)
class CallableMethod(Attributor):
    """A foreign function as a method; its maps need not sum to a change of the score."""

    is_complete = False
    function: ClassVar[Function]

    def attribute(self, problem: Problem) -> Attribution:
        """Explain images, each alone; see :meth:`Attributor.attribute`."""
        values = torch.stack([self._map(problem.select([i])) for i in range(len(problem.inputs))])
        return gradient_attribution(self, values, problem, {}, f"{self.name} promises no sum of its map")

    def _map(self, part: Problem) -> Tensor:
        """The map (*S) of a problem of one input."""
        x = part.inputs.detach().clone()
        seed = part.rng.integers(f"call {part.keys[0]}", 2**31, 1)[0]
        try:
            with global_seed(seed):
                result = type(self).function(CountedModule(part), x, part.target.clone())
            if result is None:
                raise InputError(f"{self.name} returned None, expected a map", argument="method")
            values = result.detach() if isinstance(result, Tensor) else torch.as_tensor(np.asarray(result))
        except (FringeError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # a foreign function may raise anything
            raise InputError(f"{self.name} failed ({type(error).__name__}: {error})", argument="method") from error
        return _shaped(values.to(x), x, self.name)[0]


class CountedModule(nn.Module):
    """The network of a problem of one input as a module ``x (L, *S) -> logits (L, C)``, whose passes are counted.

    With a contrast, its logit is subtracted from each, so that the logit of the target is the explained difference.

    Args:
        part: The problem. Its session is open.
    """

    def __init__(self, part: Problem):
        super().__init__()
        self.part, self.network = part, part.model.module
        self.training = False

    def forward(self, x: Tensor) -> Tensor:
        return self.part.model.batch_size.map(self._evaluate, x)

    def _evaluate(self, x: Tensor) -> Tensor:
        rows = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        logits = self.part.model.evaluate(x, self.part.forward_args.select(rows))
        if self.part.contrast is not None:
            logits = logits - logits[:, self.part.contrast]
        if logits.requires_grad:
            logits.register_hook(self._count)
        return logits

    def _count(self, cotangent: Tensor) -> None:
        self.part.model.passes.vjp += len(cotangent)


def _method(name: str, source: str, function: Function, code: str = "") -> Attributor:
    """Define a class for the function, so that the method's settings are plain data."""
    label = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    attributes: Mapping[str, Any] = {
        "__doc__": inspect.getdoc(function) or f"{name}, a function of {source or 'the caller'}.",
        **{"__annotations__": {}, "name": label, "title": name, "source": source},
        "function": staticmethod(function),
        **({"code": code} if code else {}),
    }
    kind = dataclass(frozen=True)(type(label, (CallableMethod,), dict(attributes)))
    return cast("type[Attributor]", kind)()


def _call_function(function: Function) -> Function:
    """Call the function; as Quantus calls one if its last argument is named ``targets``."""
    try:
        of_quantus = "targets" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a function without a signature
        of_quantus = False
    if not of_quantus:
        return function

    def call(model: nn.Module, inputs: Tensor, target: Tensor) -> Any:
        return function(model=model, inputs=inputs.cpu().numpy(), targets=target.cpu().numpy())

    call.__doc__ = inspect.getdoc(function)
    return call


def _shaped(values: Tensor, x: Tensor, name: str) -> Tensor:
    """Maps (1, *S) of maps (1, *S), (1, 1, H, W) or (1, H, W): one channel is spread evenly over all."""
    if values.shape == x.shape:
        return values
    one = (1, 1, *x.shape[2:])
    if x.dim() > 2 and tuple(values.shape) in (one, (1, *x.shape[2:]), tuple(x.shape[2:])):
        return values.reshape(one).expand_as(x) / x.shape[1]
    expected = f"that of the input, {tuple(x.shape)}"
    if x.dim() == 4:  # symbolic shape: the same message for inputs of all sizes
        expected = "that of the input, (1, C, H, W), or (1, 1, H, W), (1, H, W) or (H, W) for all channels together"
    raise InputError(f"{name} returned shape {tuple(values.shape)}, expected {expected}", argument="method")
