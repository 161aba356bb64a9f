"""Run a user's network in a defined state and restore its own afterwards."""

import contextlib
import warnings
from collections.abc import Generator
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

Mode = Literal["eval", "keep"]


@contextlib.contextmanager
def isolated(module: nn.Module | None, device: torch.device, mode: Mode) -> Generator[None]:
    """Set evaluation mode, no parameter gradients, gradients of inputs, full precision and plain attention.

    Restored on exit, also after an exception: the training flag of every submodule, ``requires_grad`` of every
    parameter, the torch generators of the CPU and of ``device``, gradient mode, inference mode, autocast, the attention
    backend and the fast path of multi-head attention. ``.grad`` and hooks are never touched. ``mode="keep"`` leaves
    the training flags alone.
    """
    devices = [device] if device.type == "cuda" else []
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.random.fork_rng(devices=devices))
        if torch.amp.is_autocast_available(device.type):
            stack.enter_context(torch.autocast(device.type, enabled=False))
        # Fused attention has neither forward-mode nor second derivatives; the fast path has no derivatives at all.
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(_no_fast_path())
        stack.enter_context(_full_precision())
        if module is not None:
            stack.enter_context(_no_parameter_gradients(module))
            stack.enter_context(_evaluation_mode(module) if mode == "eval" else _copied_buffers(module))
        yield


def detached(x: Tensor) -> Tensor:
    """Return ``x`` without its graph; an inference tensor, which autograd refuses, is copied."""
    with torch.inference_mode(False):
        return x.clone() if x.is_inference() else x.detach()


@contextlib.contextmanager
def _evaluation_mode(module: nn.Module) -> Generator[None]:
    flags = [(child, child.training) for child in module.modules()]
    if any(training for _, training in flags):
        warnings.warn(
            "the model is in training mode; it is explained in evaluation mode and given back as it was "
            "(Classifier(model, mode='keep') explains it as it is)",
            stacklevel=2,
        )
        module.eval()
    try:
        yield
    finally:
        for child, training in flags:
            child.training = training


@contextlib.contextmanager
def _copied_buffers(module: nn.Module) -> Generator[None]:
    """A module in training mode writes into its buffers (running statistics): give it copies."""
    buffers = [(m, name, b) for m in module.modules() for name, b in m.named_buffers(recurse=False)]
    for child, name, buffer in buffers:
        setattr(child, name, buffer.clone())
    try:
        yield
    finally:
        for child, name, buffer in buffers:
            setattr(child, name, buffer)


@contextlib.contextmanager
def _no_parameter_gradients(module: nn.Module) -> Generator[None]:
    required = [p for p in module.parameters() if p.requires_grad]
    for parameter in required:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in required:
            parameter.requires_grad_(True)


@contextlib.contextmanager
def _no_fast_path() -> Generator[None]:
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


@contextlib.contextmanager
def _full_precision() -> Generator[None]:
    """No TF32: its 10-bit products make the Fisher operator unsymmetric, and CG needs symmetry."""
    cudnn, onednn, cuda = torch.backends.cudnn, torch.backends.mkldnn, torch.backends.cuda
    # set at run time, so untyped; a CPU rounds to bfloat16 after torch.set_float32_matmul_precision("medium")
    settings: list[Any] = [getattr(b, k) for b in (cudnn, onednn) for k in ("conv", "rnn")]
    settings += [cuda.matmul, getattr(onednn, "matmul")]  # noqa: B009
    before = [s.fp32_precision for s in settings]
    for s in settings:
        s.fp32_precision = "ieee"
    try:
        yield
    finally:
        for s, precision in zip(settings, before, strict=True):
            s.fp32_precision = precision
