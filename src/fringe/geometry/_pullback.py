"""The pullback Fisher metric of a classifier, as an operator on inputs."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fringe.geometry._simplex import fisher_product


class Jacobian(Protocol):
    """Products with the Jacobians J (C x n) of B items."""

    def jvp(self, tangent: Tensor) -> Tensor:
        """``J v``: (B, *S) -> (B, C)."""
        ...

    def vjp(self, cotangent: Tensor) -> Tensor:
        """``J^T u``: (B, C) -> (B, *S)."""
        ...


@dataclass(frozen=True)
class ExplicitJacobian:
    """Jacobians as ``matrix`` (B, C, n), for inputs of ``shape`` (*S): products need no pass through the network."""

    matrix: Tensor
    shape: tuple[int, ...]

    @classmethod
    def of(cls, jacobian: Jacobian, like: Tensor, classes: int) -> "ExplicitJacobian":
        """Compute it by C VJPs, of the unit cotangents, at points ``like`` (B, *S)."""
        unit = torch.eye(classes, dtype=like.dtype, device=like.device)
        rows = [jacobian.vjp(e.expand(len(like), -1)).flatten(1) for e in unit]
        return cls(torch.stack(rows, 1), tuple(like.shape[1:]))

    def jvp(self, tangent: Tensor) -> Tensor:
        return torch.bmm(self.matrix, tangent.flatten(1)[:, :, None].to(self.matrix))[:, :, 0]

    def vjp(self, cotangent: Tensor) -> Tensor:
        return torch.bmm(cotangent[:, None, :].to(self.matrix), self.matrix)[:, 0].unflatten(1, self.shape)


@dataclass(frozen=True)
class SoftenedJacobian:
    """The Jacobians of logits divided by temperatures (B,), from those of the logits."""

    jacobian: Jacobian
    temperature: Tensor

    def jvp(self, tangent: Tensor) -> Tensor:
        return self._divided(self.jacobian.jvp(tangent))

    def vjp(self, cotangent: Tensor) -> Tensor:
        return self.jacobian.vjp(self._divided(cotangent))

    def _divided(self, u: Tensor) -> Tensor:
        return (u / self.temperature[:, None]).to(u.dtype)


@dataclass(frozen=True)
class TargetRestJacobian:
    """The Jacobians (2 x n) of :func:`target_rest_logits` for ``target`` (B,), from those of ``logits`` (B, C)."""

    jacobian: Jacobian
    logits: Tensor
    target: Tensor

    def _rows(self) -> Tensor:
        """The gradients (B, 2, C) of the two logits in the C."""
        at = self.target[:, None]
        rest = self.logits.scatter(1, at, -torch.inf).softmax(1)
        return torch.stack([torch.zeros_like(rest).scatter(1, at, 1.0), rest], 1)

    def jvp(self, tangent: Tensor) -> Tensor:
        u = self.jacobian.jvp(tangent)
        return torch.bmm(self._rows().to(u), u[:, :, None])[:, :, 0]

    def vjp(self, cotangent: Tensor) -> Tensor:
        rows = self._rows().to(cotangent)
        return self.jacobian.vjp(torch.bmm(cotangent[:, None], rows)[:, 0].to(self.logits.dtype))


@dataclass(frozen=True)
class ScaledJacobian:
    """``J diag(s)``: the Jacobians in coordinates y with ``dx = s dy``, from those in x.

    Attributes:
        jacobian: J at B points.
        scale: s (B, *S).
    """

    jacobian: Jacobian
    scale: Tensor

    def jvp(self, tangent: Tensor) -> Tensor:
        return self.jacobian.jvp(self.scale * tangent)

    def vjp(self, cotangent: Tensor) -> Tensor:
        return self.scale * self.jacobian.vjp(cotangent)


@dataclass(frozen=True)
class PullbackFisher:
    """``G v = J^T S(p) J v`` (FRInGe, eq. pullback metric): symmetric, PSD, of rank at most C - 1.

    A product costs one JVP and one VJP.

    Attributes:
        jacobian: J at B points.
        probabilities: Predictions p (B, C) at these points.
    """

    jacobian: Jacobian
    probabilities: Tensor

    def matvec(self, v: Tensor) -> Tensor:
        u = self.jacobian.jvp(v)
        return self.jacobian.vjp(fisher_product(self.probabilities, u.to(self.probabilities.dtype)).to(u.dtype))
