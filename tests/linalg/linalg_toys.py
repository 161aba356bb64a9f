"""Dense symmetric systems with a chosen spectrum: the oracle of the solver."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from toys import normal

EPS = torch.finfo(torch.float64).eps


@dataclass
class Dense:
    """``v -> A v`` for matrices (B, n, n); counts its products. No item's sum depends on its batch."""

    matrix: Tensor
    products: int = field(default=0)

    def matvec(self, v):
        self.products += 1
        return (self.matrix * v[:, None, :]).sum(-1)


class Identity:
    """``v -> v``, as a copy."""

    def matvec(self, v):
        return v.clone()


@dataclass
class Scaled:
    """``v -> factor * A v``."""

    operator: object
    factor: float

    def matvec(self, v):
        return self.factor * self.operator.matvec(v)


class Diagonal:
    """``v -> values v``, entry by entry."""

    def __init__(self, values):
        self.values = torch.as_tensor(values)

    def matvec(self, v):
        return self.values.to(v.dtype) * v


@dataclass
class Returned:
    """A preconditioner that hands back the very tensor it was given."""

    def matvec(self, v):
        return v


def symmetric(eigenvalues, seed=0):
    """``Q diag(eigenvalues) Q^T`` (B, n, n) with a random orthogonal Q an item; ``eigenvalues`` is (B, n) or (n,)."""
    eigenvalues = torch.atleast_2d(torch.as_tensor(eigenvalues, dtype=torch.float64))
    batch, n = eigenvalues.shape
    q = torch.linalg.qr(normal(batch, n, n, seed=seed))[0]
    a = q * eigenvalues[:, None, :] @ q.mT
    return 0.5 * (a + a.mT)


def conditioned(condition, n=20, seed=0):
    """One SPD matrix (1, n, n) with eigenvalues spread evenly in logarithm over [1/condition, 1]."""
    return symmetric(torch.logspace(-torch.log10(torch.tensor(condition)).item(), 0, n, dtype=torch.float64), seed)


def direct(a, b):
    return torch.linalg.solve(a.double(), b.double()[..., None])[..., 0]


def relative_error(x, exact):
    return ((x.double() - exact).norm(dim=-1) / exact.norm(dim=-1)).max().item()
