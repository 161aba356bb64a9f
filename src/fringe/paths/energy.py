r"""Energies of discrete paths that a model makes costly where it is steep, with their gradients.

A path is G rows of N points :math:`\gamma_k` (G, N, *S) about straight lines :math:`\gamma^0_k`; :math:`\delta_k =
\gamma_k - \gamma^0_k`, and :math:`s` is the :class:`GradientNorm` of the model.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fringe.paths.steepness import GradientNorm

END_PENALTY, END_SHARE = 100.0, 0.1
"""The published code's weight on deviations of the points at either end, and their share of the path."""


@dataclass(frozen=True)
class Landscape:
    """Where a path stands: its ``energy`` (G,) in float64, the gradient ``slope`` (G, N, *S) of it, and ``force`` (G,),
    how hard the model pushes: the mean over points of the norm of the model's part of the slope."""

    energy: Tensor
    slope: Tensor
    force: Tensor


class PathEnergy(ABC):
    """An energy with weight ``beta`` on the model's part; without it the model is not asked."""

    steepness: GradientNorm
    beta: float

    @abstractmethod
    def at(self, points: Tensor, straight: Tensor, rows: Tensor) -> Landscape:
        """The landscape at ``points`` about ``straight`` (G, N, *S), for images ``rows`` (G,)."""

    def weighted(self, points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """``beta s`` (G, N) in float64 and ``beta grad s`` (G, N, *S)."""
        if self.beta == 0:
            return torch.zeros(points.shape[:2], dtype=torch.float64, device=points.device), torch.zeros_like(points)
        values, slopes = self.steepness(points.flatten(0, 1), rows.repeat_interleave(points.shape[1]))
        return self.beta * values.view(points.shape[:2]).double(), self.beta * slopes.view(points.shape)


@dataclass(frozen=True)
class PointEnergy(PathEnergy):
    r"""``sum_k |delta_k| + beta sum_k s(gamma_k)``: a sum over points, without a term between neighbours."""

    steepness: GradientNorm
    beta: float

    def at(self, points: Tensor, straight: Tensor, rows: Tensor) -> Landscape:
        steep, push = self.weighted(points, rows)
        deviation = points - straight
        distance = deviation.flatten(2).norm(dim=2)
        energy = distance.double().sum(1) + steep.sum(1)
        return Landscape(energy, push + _unit(deviation, _like(distance, deviation)), _force(push))


@dataclass(frozen=True)
class LengthEnergy(PathEnergy):
    r"""``sum_k (1 + beta (s_k + s_{k+1}) / 2) |gamma_{k+1} - gamma_k|``: the length of the path in the metric that
    stretches space by ``1 + beta s``. Large beta is the metric of the neighbour graph."""

    steepness: GradientNorm
    beta: float

    def at(self, points: Tensor, straight: Tensor, rows: Tensor) -> Landscape:
        steep, push = self.weighted(points, rows)
        step = points[:, 1:] - points[:, :-1]
        length = step.flatten(2).norm(dim=2)
        stretch = 1.0 + 0.5 * (steep[:, 1:] + steep[:, :-1])
        near = torch.zeros_like(steep)
        near[:, 1:] += 0.5 * length
        near[:, :-1] += 0.5 * length
        push = push * _like(near, points)
        pull = _like(stretch, points) * _unit(step, _like(length, points))
        slope = push.clone()
        slope[:, 1:] += pull
        slope[:, :-1] -= pull
        return Landscape((stretch * length.double()).sum(1), slope, _force(push))


@dataclass(frozen=True)
class AuthorsEnergy(PathEnergy):
    r"""The published code's: ``sum_k |delta_k| - beta sum_k s(gamma_k) + 100 (|delta_k| over both ends' tenths)``.

    Its norms are sums over the last axis, in the distance as in ``steepness``; and its sign makes steep places
    attractive, against what its documentation means.
    """

    steepness: GradientNorm
    beta: float

    def at(self, points: Tensor, straight: Tensor, rows: Tensor) -> Landscape:
        steep, push = self.weighted(points, rows)
        deviation = points - straight
        distance = deviation.norm(dim=-1, keepdim=True)
        count = points.shape[1]
        ends = max(1, int(END_SHARE * count))
        weight = torch.ones(count, dtype=points.dtype, device=points.device)
        weight[:ends] += END_PENALTY
        weight[count - ends :] += END_PENALTY  # a path so short that its ends overlap pays twice
        energy = (weight.double() * distance.flatten(2).double().sum(2)).sum(1) - steep.sum(1)
        return Landscape(energy, _like(weight[None], points) * _unit(deviation, distance) - push, _force(push))


def _unit(vector: Tensor, norm: Tensor) -> Tensor:
    """``vector / norm``, the gradient of the norm; zero where the norm is."""
    return torch.where(norm > 0, vector / torch.where(norm > 0, norm, 1.0), 0.0)


def _like(values: Tensor, points: Tensor) -> Tensor:
    """``values`` (G, N) for broadcasting against ``points`` (G, N, *S), in its dtype."""
    return values.to(points.dtype).view(*values.shape, *[1] * (points.dim() - 2))


def _force(push: Tensor) -> Tensor:
    return push.flatten(2).double().norm(dim=2).mean(1)
