"""Metrics that take no pass: sparseness of the map, and what a method reports of its own path."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fringe.errors import InputError
from fringe.metrics._base import EvaluatedMaps, Metric, Scores, is_zero
from fringe.metrics._perturbation import spatial_map


class _PathDiagnostic(Metric):
    """Base class of metrics that read the diagnostic of their own name.

    The score is NaN, flagged ``undefined``, for a method that does not report it.
    """

    direction = "lower"

    def score(self, maps: EvaluatedMaps) -> Scores:
        batch, device = maps.values.shape[:1], maps.values.device
        values = maps.diagnostics.get(self.name)
        if values is None:
            values = torch.full(batch, torch.nan, device=device)
        if values.shape != batch:
            message = f"got shape {tuple(values.shape)}, expected {tuple(batch)}"
            raise InputError(message, argument=f"diagnostics[{self.name!r}]")
        values = values.detach().to(device, torch.float64)
        return Scores(values, flags={"undefined": torch.isnan(values)})


@dataclass(frozen=True)
class CompletenessResidual(_PathDiagnostic):
    """``|sum A - (F(x) - F(x_end))| / |F(x) - F(x_end)|`` at the end point that the path reached."""

    name = "completeness_residual"
    title = "Completeness residual"
    space = "the score along the method's own path"
    source = "FRInGe, appendix Effect of the Euclidean Trust-Region Cap (epsilon_comp)"


@dataclass(frozen=True)
class EndpointKL(_PathDiagnostic):
    """``KL(p(x_end) || q)`` to the reference distribution q, the uniform one unless the method says otherwise."""

    name = "endpoint_kl"
    title = "End point KL"
    unit = "nats"
    space = "the prediction at the end of the method's path"
    source = "FRInGe, appendix Effect of the Euclidean Trust-Region Cap"


class _TrackingError(_PathDiagnostic):
    unit = "radians"
    space = "predictions along the method's path"
    source = "FRInGe, appendix Effect of the Euclidean Trust-Region Cap"


@dataclass(frozen=True)
class TrackingErrorMax(_TrackingError):
    """Largest Fisher-Rao distance over the steps between the prediction and its waypoint on the geodesic."""

    name = "tracking_error_max"
    title = "Max tracking error"


@dataclass(frozen=True)
class TrackingErrorMean(_TrackingError):
    """Mean over the steps of the Fisher-Rao distance between the prediction and its waypoint on the geodesic."""

    name = "tracking_error_mean"
    title = "Mean tracking error"


@dataclass(frozen=True)
class Sparseness(Metric):
    """The concentration of a map: the Gini index of |A| over all n entries. 0: all equal; (n - 1)/n: all in one entry.

    .. math:: G = \\frac{\\sum_i (2 i - n - 1)\\, a_{(i)}}{n \\sum_i a_{(i)}}, \\qquad a_{(1)} \\le \\dots \\le a_{(n)}

    It does not depend on the map's scale, sign or order. The zero map scores 0 and is flagged ``zero_map``. The detail
    ``spatial`` is the index over pixels, each by its largest channel: with one step per pixel, the area under the
    density response of :class:`MASInsertion` is (1 + ``spatial``) / 2.
    """

    name = "sparseness"
    title = "Sparseness"
    direction = "higher"
    space = "the signed map, all entries"
    source = "Chalasani et al. 2020; FRInGe, section Metrics"

    def score(self, maps: EvaluatedMaps) -> Scores:
        return Scores(
            _gini(maps.values),
            flags={"zero_map": is_zero(maps.values)},
            # maxima are entries of the map: sorted in its own precision, in half of the time of float64
            details={"spatial": _gini(spatial_map(maps.values, "max").to(maps.values.dtype))},
        )


def _gini(values: Tensor) -> Tensor:
    """Gini index (B,) of the absolute values of ``values`` (B, *S), in float64; 0 for a row of zeros."""
    a = values.detach().abs().flatten(1)
    if a.device.type == "cpu" and a.dtype in (torch.float32, torch.float64):  # NumPy sorts faster than PyTorch
        a = torch.from_numpy(np.sort(a.numpy(), axis=1)).double()
    else:
        a = a.double().sort(dim=1).values
    n, total = a.shape[1], a.sum(1)
    rank = torch.arange(1 - n, n, 2, dtype=a.dtype, device=a.device)
    return torch.where(total > 0, (a @ rank) / (n * total.clamp_min(torch.finfo(a.dtype).tiny)), 0.0).clamp(0.0, 1.0)
