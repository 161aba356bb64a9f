"""Networks of images (N, 2, 6, 6) with 4 classes whose scores are known well enough to judge methods by, in float64.

Frozen: an affine and a quadratic one with their gradients and integrals in closed form, a smooth one, and a piecewise
affine one. ``images(count)`` are inputs for them.
"""

import torch
from torch import Tensor, nn

SHAPE = (2, 6, 6)
ENTRIES = 72
CLASSES = 4
CHECKED = 9
"""Forward passes of the check of the model on three images: each alone, all in another order, a linearisation, and a
central difference."""


def images(count: int, seed: int = 1, shape: tuple[int, ...] = SHAPE) -> Tensor:
    """Standard normal images (count, *shape)."""
    return _normal(seed, count, *shape)


class Affine(nn.Module):
    """``F_c(x) = <w_c, x> + b_c``: its gradient is the same everywhere, and every rule of quadrature exact."""

    def __init__(self, seed: int = 0):
        super().__init__()
        self.weight, self.bias = _frozen(_normal(seed, CLASSES, *SHAPE) / 4), _frozen(_normal(seed + 1, CLASSES))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("nchw,kchw->nk", x, self.weight) + self.bias

    def gradient(self, x: Tensor, target: Tensor) -> Tensor:
        """Gradient (N, *S) of the score of ``target`` (N,)."""
        return self.weight[target]


class Quadratic(nn.Module):
    """``F_c(x) = <x, Q_c x> / 2 + <w_c, x>`` with symmetric, indefinite ``matrix`` Q (C, n, n) and ``weight`` w."""

    def __init__(self, seed: int = 0):
        super().__init__()
        square = _normal(seed, CLASSES, ENTRIES, ENTRIES) / ENTRIES**0.5
        self.matrix = _frozen((square + square.mT) / 2)
        self.weight = _frozen(_normal(seed + 1, CLASSES, ENTRIES) / 4)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return torch.einsum("ni,kij,nj->nk", flat, self.matrix, flat) / 2 + flat @ self.weight.T

    def gradient(self, x: Tensor, target: Tensor) -> Tensor:
        """Gradient (N, *S) of the score of ``target`` (N,): ``Q x + w``."""
        flat = x.flatten(1)
        return (torch.einsum("nij,nj->ni", self.matrix[target], flat) + self.weight[target]).view_as(x)


class SoftplusMLP(nn.Module):
    """Two layers with a softplus between them: infinitely differentiable, and not a polynomial."""

    def __init__(self, seed: int = 0, hidden: int = 24):
        super().__init__()
        self.first, self.bias = _frozen(_normal(seed, hidden, ENTRIES) / 4), _frozen(_normal(seed + 1, hidden))
        self.second = _frozen(_normal(seed + 2, CLASSES, hidden))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.softplus(x.flatten(1) @ self.first.T + self.bias) @ self.second.T


class ReluCNN(nn.Module):
    """Two convolutions with ReLU and a linear head: piecewise affine, kinks as real networks have them."""

    def __init__(self, seed: int = 0, channels: int = 6):
        super().__init__()
        self.first = _frozen(_normal(seed, channels, SHAPE[0], 3, 3) / 3)
        self.second = _frozen(_normal(seed + 1, channels, channels, 3, 3) / 5)
        self.bias = _frozen(_normal(seed + 2, 2, channels) / 2)
        self.head = _frozen(_normal(seed + 3, CLASSES, channels * 9))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.conv2d(x, self.first, self.bias[0], padding=1).relu()
        hidden = nn.functional.conv2d(hidden, self.second, self.bias[1], stride=2, padding=1).relu()
        return hidden.flatten(1) @ self.head.T


NETWORKS = {"affine": Affine, "quadratic": Quadratic, "softplus": SoftplusMLP, "relu": ReluCNN}


def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _frozen(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values, requires_grad=False)
