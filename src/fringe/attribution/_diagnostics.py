"""What a finished map is worth: the diagnostics that every path method shares, and the status of each image."""

from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from fringe.attribution._base import Attribution, Attributor, Verdict
from fringe.attribution._integrate import PathIntegral, integrate
from fringe.attribution._pieces import PieceStream, finite_maps
from fringe.geometry import entropy, kl, log_probabilities
from fringe.paths import GeodesicDiagnostics, PathStatus, Problem, uniform_log_probs

COARSE_ABOVE = 0.05
"""Completeness residual above which a map is called coarse: its sum misses what it explains by more than 5 %."""

Status = tuple[Verdict, str]
"""The verdict on an image, and why."""


class PathAttributor(Attributor):
    """A method that is a path integral: it says along which path, and the rest is shared."""

    @abstractmethod
    def pieces(self, problem: Problem) -> PieceStream:
        """The terms of the integrals of ``problem``'s images."""

    @property
    def hint(self) -> str:
        """What makes the integral more exact."""
        return "use more steps"

    def attribute(self, problem: Problem) -> Attribution:
        return path_attribution(self, integrate(self.pieces(problem)), problem, self.hint)


def path_diagnostics(result: PathIntegral, problem: Problem, log_q: Tensor | None = None) -> dict[str, Tensor]:
    """The paper's path diagnostics, (B,) each: distances in radians, entropies and divergences in nats, lengths in
    input units. ``log_q`` (B, C) is the reference that "reference" and "tracking" speak of; None: uniform."""
    log_q = uniform_log_probs(problem.logits) if log_q is None else log_q
    stats, gauge = result.stats, GeodesicDiagnostics(log_probabilities(problem.logits), log_q)
    moved, distance, log_p0 = stats.count > 0, gauge.distance(), gauge.log_p0
    return {
        "steps": torch.tensor(result.steps, device=distance.device),
        "distance": distance,
        "endpoint_distance": torch.where(moved, stats.last("reference_distance"), distance),
        "entropy": entropy(log_p0),
        "endpoint_entropy": torch.where(moved, stats.last("entropy"), entropy(log_p0)),
        "endpoint_kl": torch.where(moved, stats.last("reference_kl"), kl(log_p0, log_q)),
        "tracking_error_mean": stats.mean("tracking_error"),
        "tracking_error_max": stats.largest("tracking_error"),
        "path_length": stats.total("euclidean_step"),
    }


def completeness_status(result: PathIntegral, image: int, hint: str) -> Status:
    """The status of an image by its completeness; ``hint`` says what makes the integral more exact."""
    if result.outcomes[image] is PathStatus.DIVERGED:
        return "diverged", f"the logits or their gradient were not finite after step {result.steps[image]}"
    residual = float(result.rule_residual[image])
    if not residual <= COARSE_ABOVE:
        return "coarse", f"the map's sum misses the change of the score by {residual:.1%}: {hint}"
    return "ok", f"complete within {residual:.1%}"


def path_attribution(
    method: Attributor,
    result: PathIntegral,
    problem: Problem,
    hint: str,
    stalled: str = "",
) -> Attribution:
    """The attribution of a path integral, judged by its completeness; ``stalled`` says why an image has no steps, where
    a path without length is none without steps."""
    lengths = result.steps if stalled else result.stats.total("euclidean_step").tolist()
    unmoved: Status = ("stalled", stalled) if stalled else _AT_REFERENCE
    statuses = [
        unmoved
        if length == 0 and result.outcomes[i] is not PathStatus.DIVERGED
        else completeness_status(result, i, hint)
        for i, length in enumerate(lengths)
    ]
    return build_attribution(method, result, problem, path_diagnostics(result, problem), statuses)


def build_attribution(
    method: Attributor,
    result: PathIntegral,
    problem: Problem,
    diagnostics: Mapping[str, Tensor],
    statuses: list[Status],
) -> Attribution:
    """A path integral with its diagnostics and the status of each image."""
    statuses = _without_zero_maps(result.values, statuses)
    return Attribution(
        values=result.values,
        target=problem.target,
        score=result.score,
        endpoint_score=result.endpoint_score,
        completeness_gap=result.gap,
        completeness_residual=result.residual,
        verdict=tuple(verdict for verdict, _ in statuses),
        advice=tuple(advice for _, advice in statuses),
        diagnostics=diagnostics,
        settings=method.record(),
        trajectory=result.trajectories,
    )


_AT_REFERENCE: Status = ("at_reference", "the baseline is the input itself: there is nothing to explain")
_NOT_FINITE: Status = ("diverged", "the logits or their gradient were not finite on the way")
_ZERO_MAP: Status = (
    "stalled",
    "the map is zero: where it was asked, the gradient of the score vanishes to rounding. Explain score='logit' where "
    "a probability is saturated, and take longer steps or a baseline further away; a score that ignores the input has "
    "no map",
)
"""Of a map without any entry above the smallest normal number, by whatever method: completeness says nothing then,
as nothing equals a change of nothing."""


def _without_zero_maps(values: Tensor, statuses: list[Status]) -> list[Status]:
    """``statuses`` of maps ``values`` (B, *S), with that of a zero map where one would pass for an answer."""
    zero = (values.abs().flatten(1).amax(1) < torch.finfo(values.dtype).tiny).tolist()
    answers = ("ok", "short", "coarse", "unchecked")
    return [
        _ZERO_MAP if is_zero and status[0] in answers else status
        for is_zero, status in zip(zero, statuses, strict=True)
    ]


def gradient_attribution(
    method: Attributor,
    values: Tensor,
    problem: Problem,
    diagnostics: dict[str, Tensor],
    why: str,
) -> Attribution:
    """The attribution of a method without a completeness identity: its gap and residual are NaN, not zero."""
    nan = torch.full((len(values),), torch.nan, dtype=torch.float64, device=values.device)
    maps = values.to(problem.inputs.dtype)
    statuses: list[Status] = [("unchecked", why) if finite else _NOT_FINITE for finite in finite_maps(maps)]
    statuses = _without_zero_maps(maps, statuses)
    return Attribution(
        values=maps,
        target=problem.target,
        score=problem.score(problem.logits),
        endpoint_score=nan.to(values.dtype),
        completeness_gap=nan,
        completeness_residual=nan,
        verdict=tuple(verdict for verdict, _ in statuses),
        advice=tuple(advice for _, advice in statuses),
        diagnostics=diagnostics,
        settings=method.record(),
        trajectory=(None,) * len(values),
    )
