"""Symmetric positive semidefinite operators, known only by their products.

Shapes: ``v`` and the product are ``(B, *S)``; the operator acts on each of the B items alone.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class LinearOperator(Protocol):
    """A symmetric positive semidefinite map of ``(B, *S)`` to ``(B, *S)``, item by item."""

    def matvec(self, v: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class IdentityOperator:
    """``v -> v`` (a copy: callers may write into products they were given)."""

    def matvec(self, v: Tensor) -> Tensor:
        return v.clone()


@dataclass(frozen=True)
class ScaledOperator:
    """``v -> factor * A v``."""

    operator: LinearOperator
    factor: float

    def matvec(self, v: Tensor) -> Tensor:
        return self.factor * self.operator.matvec(v)


@dataclass(frozen=True)
class DampedOperator:
    """``v -> A v + damping * v``."""

    operator: LinearOperator
    damping: float

    def matvec(self, v: Tensor) -> Tensor:
        return self.operator.matvec(v).add(v, alpha=self.damping)


@dataclass(frozen=True)
class SumOperator:
    """``v -> A_1 v + … + A_m v``."""

    operators: tuple[LinearOperator, ...]

    def matvec(self, v: Tensor) -> Tensor:
        first, *rest = self.operators
        total = first.matvec(v)
        for operator in rest:
            total = total + operator.matvec(v)
        return total
