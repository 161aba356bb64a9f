"""Networks small enough for dense linear algebra, in float64."""

import torch
from torch import nn


class Smooth(nn.Module):
    """A small convolutional softplus classifier of (N, 2, 8, 8) images (n = 128): twice differentiable everywhere."""

    def __init__(self, classes: int = 5, seed: int = 0, sharpness: float = 1.0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.conv = nn.Conv2d(2, 6, 3, padding=1).double()
        self.norm = nn.BatchNorm2d(6).double()
        self.head = nn.Linear(6 * 16, classes).double()
        for parameter in self.parameters():
            parameter.data = 0.4 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        self.norm.running_mean.normal_(generator=generator)
        self.norm.running_var.uniform_(0.5, 2.0, generator=generator)
        self.sharpness = sharpness
        self.eval().requires_grad_(False)

    def forward(self, x):
        hidden = nn.functional.softplus(self.norm(self.conv(x)))
        return self.sharpness * self.head(nn.functional.avg_pool2d(hidden, 2).flatten(1))


def inputs(count: int, seed: int = 1, shape: tuple[int, ...] = (2, 8, 8)) -> torch.Tensor:
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Linear(nn.Module):
    """``logits = x W^T``; its gradient is the same everywhere."""

    def __init__(self, classes: int = 4, seed: int = 0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(0.1 * torch.randn(classes, 128, generator=generator, dtype=torch.float64))
        self.eval().requires_grad_(False)

    def forward(self, x):
        return x.flatten(1) @ self.weight.T
