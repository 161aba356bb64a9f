"""Networks that the adapters are tried on, in float64."""

import torch
from torch import nn

from toys import normal

SHAPE = (2, 6, 6)
CLASSES = 4


def filled(module: nn.Module, seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data = 0.4 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return module.eval().requires_grad_(False)


def smooth() -> nn.Module:
    return filled(
        nn.Sequential(nn.Conv2d(2, 4, 3), nn.Softplus(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, CLASSES))
    )


def linear() -> nn.Module:
    return filled(nn.Sequential(nn.Flatten(), nn.Linear(72, CLASSES, bias=False)))


class Scaled(nn.Module):
    """``logits(x * gain + shift)``: a model with further arguments; it keeps the batches that it was given."""

    def __init__(self):
        super().__init__()
        self.body = smooth()
        self.seen: list[int] = []
        self.eval()

    def forward(self, x, gain, shift=0.0):
        self.seen.append(len(x))
        gain = gain.view(-1, 1, 1, 1) if isinstance(gain, torch.Tensor) else gain
        return self.body(x * gain + shift)


def inputs(count: int, seed: int = 1) -> torch.Tensor:
    return normal(count, *SHAPE, seed=seed)
