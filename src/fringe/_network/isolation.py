"""Run a user's network in a defined state and restore its own afterwards."""

import contextlib
import functools
import sys
import types
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import register_module_forward_pre_hook

from fringe.errors import InputError, warn_caller

Mode = Literal["eval", "keep"]


@contextlib.contextmanager
def isolated(modules: Sequence[nn.Module], device: torch.device, mode: Mode) -> Generator[None]:
    """Set evaluation mode of the modules and of all in them, no parameter gradients, gradients of inputs, full
    precision and plain attention.

    Restored on exit, also after an exception: the training flag of every submodule, ``requires_grad`` of every
    parameter, every buffer, the torch generators of the CPU and of ``device``, gradient mode, inference mode, autocast,
    the attention backend, the fast path of multi-head attention, and whether compiled functions run as such (here they
    run as they were written). ``.grad`` and hooks are never touched.
    ``mode="keep"`` leaves the training flags alone.
    """
    devices, kind = ([device], device.type) if device.type in ("cuda", "xpu") else ([], "cuda")
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.random.fork_rng(devices=devices, device_type=kind))
        if device.type == "mps":  # which fork_rng does not know
            stack.callback(torch.mps.set_rng_state, torch.mps.get_rng_state())
        if torch.amp.is_autocast_available(device.type):
            stack.enter_context(torch.autocast(device.type, enabled=False))
        # Fused attention has neither forward-mode nor second derivatives; the fast path has no derivatives at all.
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        if "torch._dynamo" in sys.modules:  # compiled functions have no second derivatives, and one backward pass
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        _use_full_precision(stack)
        every = list({id(child): child for module in modules for child in module.modules()}.values())
        if device.type == "cuda":
            _limit_cudnn(every, stack)
        _freeze(modules, every, mode, stack)
        yield


def detached(x: Tensor) -> Tensor:
    """Return ``x`` without its graph; an inference tensor, which autograd refuses, is copied."""
    with torch.inference_mode(False):
        return x.clone() if x.is_inference() else x.detach()


def leaf(x: Tensor) -> Tensor:
    """Return a copy of ``x`` whose gradient can be asked for."""
    return x.detach().clone().requires_grad_(True)


@contextlib.contextmanager
def restored(target: Any) -> Generator[None]:
    """Give a class or a module of Python its attributes back at the end."""
    before = dict(vars(target))
    try:
        yield
    finally:
        for name, value in list(vars(target).items()):
            if name not in before:
                delattr(target, name)
            elif value is not before[name]:
                setattr(target, name, before[name])


def _set(stack: contextlib.ExitStack, owner: Any, name: str, value: object) -> None:
    """Set an attribute until the stack is closed."""
    stack.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)


def _freeze(modules: Sequence[nn.Module], every: Sequence[nn.Module], mode: Mode, stack: contextlib.ExitStack) -> None:
    """Switch the gradients of parameters off, and training mode; what the modules write into their buffers, such as
    running statistics, goes into copies."""
    for parameter in [p for module in modules for p in module.parameters() if p.requires_grad]:
        _set(stack, parameter, "requires_grad", False)
    copies = dict[Tensor, Tensor]()
    for child in every:
        for name, buffer in list(child.named_buffers(recurse=False)):
            _set(stack, child, name, copies.setdefault(buffer, buffer.clone()))
    if mode == "keep":
        return
    flags = {child: child.training for child in every if hasattr(child, "training")}  # a frozen script has none
    for child, flag in flags.items():
        stack.callback(setattr, child, "training", flag)
    warned = False
    for module in modules:
        if not any(flags.get(child, False) for child in module.modules()):
            continue
        try:
            module.eval()
        except NotImplementedError:  # of an exported program, whose mode is fixed
            for child in flags.keys() & set(module.modules()):
                child.training = False
        else:
            warned = True
    if warned:
        warn_caller(
            "the model is in training mode; it is explained in evaluation mode and given back as it was "
            "(Classifier(model, mode='keep') explains it as it is)"
        )


def _use_full_precision(stack: contextlib.ExitStack) -> None:
    """No TF32: its 10-bit products make the Fisher operator unsymmetric, and CG needs symmetry."""
    cudnn: Any = torch.backends.cudnn
    onednn, cuda = torch.backends.mkldnn, torch.backends.cuda
    older = None
    with contextlib.suppress(RuntimeError):  # it contradicts the newer settings already
        older = cudnn.allow_tf32
    # set at run time, so untyped; a CPU rounds to bfloat16 after torch.set_float32_matmul_precision("medium")
    settings: list[Any] = [getattr(b, k) for b in (cudnn, onednn) for k in ("conv", "rnn")]
    for setting in (*settings, cuda.matmul, getattr(onednn, "matmul")):  # noqa: B009
        _set(stack, setting, "fp32_precision", "ieee")
    if older is not None:  # torch.backends.cudnn.flags(), which a model may use, raises where the older flag differs
        stack.callback(setattr, cudnn, "allow_tf32", older)
        cudnn.allow_tf32 = False
        for setting in settings[:2]:  # which it changed, too
            setting.fp32_precision = "ieee"


def set_tf32(allowed: bool) -> None:
    """Round float32 to TF32 or not in convolutions, recurrent layers and matrix products on CUDA devices: a session,
    which does not, restores what was set before it."""
    cudnn: Any = torch.backends.cudnn
    with contextlib.suppress(RuntimeError):
        if cudnn.allow_tf32 is not allowed:
            cudnn.allow_tf32 = allowed  # it must agree with the newer settings, and changes them
    for setting in (cudnn.conv, cudnn.rnn, torch.backends.cuda.matmul):
        setting.fp32_precision = "tf32" if allowed else "ieee"


def _limit_cudnn(modules: Sequence[nn.Module], stack: contextlib.ExitStack) -> None:
    """Sums of convolutions in the same order each time, so that the same call gives the same map, bit for bit; and no
    cuDNN for a network with recurrent layers: its own have no gradients in evaluation mode."""
    _set(stack, torch.backends.cudnn, "deterministic", True)
    if any(isinstance(m, nn.RNNBase) for m in modules):
        _set(stack, torch.backends.cudnn, "enabled", False)


# -- the modules that a callable holds ---------------------------------------------------------------------------------


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
        code = getattr(type(module).forward, "__code__", None)  # which may read the flag, as F.dropout is told it
        reads = code is not None and "training" in code.co_names and bool(getattr(module, "dropout", True))
        if module.training and (reads or isinstance(module, _DIFFERENT)):
            message = f"{getattr(function, '__qualname__', 'it')} runs a {type(module).__name__} in training mode"
            raise InputError(message, argument="model", hint="call .eval() of that network, or pass it itself")

    handle = register_module_forward_pre_hook(refuse)
    try:
        yield
    finally:
        handle.remove()
