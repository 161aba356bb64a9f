"""The pullback Fisher metric of a classifier, as an operator on inputs."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fringe.geometry.simplex import fisher_product


class Jacobian(Protocol):
    """Products with the Jacobian J (C x n) of B items at once."""

    def jvp(self, tangent: Tensor) -> Tensor:
        """``J v``: (B, *S) -> (B, C)."""
        ...

    def vjp(self, cotangent: Tensor) -> Tensor:
        """``J^T u``: (B, C) -> (B, *S)."""
        ...


@dataclass(frozen=True)
class PullbackFisher:
    """``G v = J^T S(p) J v`` (FRInGe, eq. pullback metric): symmetric, PSD, of rank at most C - 1.

    ``probabilities`` is (B, C); a product costs one JVP and one VJP.
    """

    jacobian: Jacobian
    probabilities: Tensor

    def matvec(self, v: Tensor) -> Tensor:
        u = self.jacobian.jvp(v)
        return self.jacobian.vjp(fisher_product(self.probabilities, u.to(self.probabilities.dtype)).to(u.dtype))
