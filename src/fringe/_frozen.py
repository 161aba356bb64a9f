"""Lend a user's network to the library for a while, and give it back as it was."""

import contextlib
import warnings
from collections.abc import Generator
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

Mode = Literal["eval", "keep"]


@contextlib.contextmanager
def frozen(module: nn.Module | None, device: torch.device, mode: Mode) -> Generator[None]:
    """Evaluation mode, no parameter gradients, gradients of inputs on, full precision, plain attention.

    Restored on the way out, exceptions included: the training flag of every submodule, ``requires_grad`` of every
    parameter, the torch generators of the CPU and of ``device``, gradient mode, inference mode, autocast, the attention
    backend and the fast path of multi-head attention. ``.grad`` and hooks are never touched. ``mode="keep"`` leaves
    the training flags alone.
    """
    devices = [device] if device.type == "cuda" else []
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.random.fork_rng(devices=devices))
        stack.enter_context(torch.autocast(device.type, enabled=False))
        # Fused attention has neither forward-mode nor second derivatives; the fast path has no derivatives at all.
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(_no_fast_path())
        stack.enter_context(_full_precision())
        if module is not None:
            stack.enter_context(_no_parameter_gradients(module))
            if mode == "eval":
                stack.enter_context(_evaluation_mode(module))
        yield


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
    convolution: Any = torch.backends.cudnn.conv  # pyright: ignore[reportAttributeAccessIssue] (set at run time)
    matmul = torch.backends.cuda.matmul
    before = convolution.fp32_precision, matmul.fp32_precision
    convolution.fp32_precision = matmul.fp32_precision = "ieee"
    try:
        yield
    finally:
        convolution.fp32_precision, matmul.fp32_precision = before
