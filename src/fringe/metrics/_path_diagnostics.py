"""Metrics that a method reports of its own path: completeness residual, tracking error, KL at the end point."""

from dataclasses import dataclass

import torch

from fringe.errors import InputError
from fringe.metrics._base import EvaluatedMaps, Metric, Scores


class PathDiagnostic(Metric):
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
class CompletenessResidual(PathDiagnostic):
    """``|sum A - (F(x) - F(x_end))| / |F(x) - F(x_end)|`` at the end point that the path reached."""

    name = "completeness_residual"
    title = "Completeness residual"
    space = "the score along the method's own path"
    source = "FRInGe, appendix Effect of the Euclidean Trust-Region Cap (epsilon_comp)"


@dataclass(frozen=True)
class EndpointKL(PathDiagnostic):
    """``KL(p(x_end) || q)`` to the reference distribution q, the uniform one unless the method says otherwise."""

    name = "endpoint_kl"
    title = "End point KL"
    unit = "nats"
    space = "the prediction at the end of the method's path"
    source = "FRInGe, appendix Effect of the Euclidean Trust-Region Cap"


class _TrackingError(PathDiagnostic):
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
