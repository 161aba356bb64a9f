"""A name for the numbers in a model."""

import hashlib

import torch
from torch import Tensor, nn


def state_digest(module: nn.Module) -> str:
    """SHA-256 in hexadecimal over the state dict sorted by name: each entry's name, dtype, shape and bytes.

    It sees neither the code of ``forward`` nor state that is no dense tensor beyond its type, so it tells two
    sets of weights of one architecture apart, not two architectures without weights.
    """
    total = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        if isinstance(value, Tensor) and value.layout == torch.strided:
            total.update(f"{name}\0{value.dtype}\0{tuple(value.shape)}\0".encode())
            # as bytes, because NumPy has no bfloat16
            flat = value.detach().cpu().contiguous().reshape(-1)
            total.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
        else:
            total.update(f"{name}\0{type(value).__name__}\0".encode())
    return total.hexdigest()
