"""What a finished map is worth: the diagnostics that every path method shares, and a word on each image."""

import torch
from torch import Tensor

from fringe.attribution.base import Attribution, Attributor, Verdict
from fringe.attribution.path_integral import Integrated
from fringe.geometry import entropy, kl, log_probabilities
from fringe.paths import GeodesicGauge, Outcome, Problem, log_uniform

COARSE_ABOVE = 0.05
"""Completeness residual above which a map is called coarse: its sum misses what it explains by more than 5 %."""

Judgement = tuple[Verdict, str]

_ZERO = (
    "stalled",
    "the map is zero: where it was asked, the gradient of the score vanishes to rounding. Explain score='logit' where "
    "a probability is saturated, and take longer steps or a baseline further away; a score that ignores the input has "
    "no map",
)
"""Of a map without any entry above the smallest normal number, by whatever method: completeness says nothing then,
as nothing equals a change of nothing."""


def diagnose(found: Integrated, problem: Problem, log_q: Tensor) -> dict[str, Tensor]:
    """The paper's path diagnostics, (B,) each: distances in radians, entropies and divergences in nats, lengths in
    input units. ``log_q`` (B, C) is the reference that "reference" and "tracking" speak of."""
    summary, gauge = found.summary, GeodesicGauge(log_probabilities(problem.logits), log_q)
    walked, distance, log_p0 = summary.count > 0, gauge.distance(), gauge.log_p0
    return {
        "steps": torch.tensor(found.steps, device=distance.device),
        "distance": distance,
        "endpoint_distance": torch.where(walked, summary.last("reference_distance"), distance),
        "entropy": entropy(log_p0),
        "endpoint_entropy": torch.where(walked, summary.last("entropy"), entropy(log_p0)),
        "endpoint_kl": torch.where(walked, summary.last("reference_kl"), kl(log_p0, log_q)),
        "tracking_error_mean": summary.mean("tracking_error"),
        "tracking_error_max": summary.largest("tracking_error"),
        "path_length": summary.total("euclidean_step"),
    }


def judge_completeness(found: Integrated, image: int, cure: str) -> Judgement:
    """The verdict on a path integral by its completeness; ``cure`` says what makes it more exact."""
    if found.outcomes[image] is Outcome.DIVERGED or not bool(torch.isfinite(found.values[image]).all()):
        return "diverged", f"the logits or their gradient were not finite after step {found.steps[image]}"
    residual = float(found.rule_residual[image])
    if not residual <= COARSE_ABOVE:
        return "coarse", f"the map's sum misses the change of the score by {residual:.1%}: {cure}"
    return "ok", f"complete within {residual:.1%}"


def judge_zeros(values: Tensor, judgements: list[Judgement]) -> list[Judgement]:
    """``judgements`` of maps ``values`` (B, *S), with the word for a zero map where one would pass for an answer."""
    zero = (values.abs().flatten(1).amax(1) < torch.finfo(values.dtype).tiny).tolist()
    pass_for_answers = ("ok", "short", "coarse", "unchecked")
    return [
        _ZERO if none and judgement[0] in pass_for_answers else judgement
        for none, judgement in zip(zero, judgements, strict=True)
    ]


def path_attribution(method: Attributor, found: Integrated, problem: Problem, cure: str) -> Attribution:
    """The attribution of a path integral, judged by its completeness."""
    still = (found.summary.total("euclidean_step") == 0).tolist()
    judgements: list[Judgement] = [
        ("at_reference", "the baseline is the input itself: there is nothing to explain")
        if still[image] and found.outcomes[image] is not Outcome.DIVERGED
        else judge_completeness(found, image, cure)
        for image in range(len(still))
    ]
    return assemble(method, found, problem, diagnose(found, problem, log_uniform(problem.logits)), judgements)


def assemble(
    method: Attributor,
    found: Integrated,
    problem: Problem,
    diagnostics: dict[str, Tensor],
    judgements: list[Judgement],
) -> Attribution:
    """A path integral with its diagnostics and the judgement of each image."""
    judgements = judge_zeros(found.values, judgements)
    return Attribution(
        values=found.values,
        target=problem.target,
        score=found.score,
        endpoint_score=found.endpoint_score,
        completeness_gap=found.gap,
        completeness_residual=found.residual,
        verdict=tuple(verdict for verdict, _ in judgements),
        advice=tuple(advice for _, advice in judgements),
        diagnostics=diagnostics,
        settings=method.record(),
        trajectory=found.trajectories,
    )


def unchecked_attribution(
    method: Attributor,
    values: Tensor,
    problem: Problem,
    diagnostics: dict[str, Tensor],
    why: str,
) -> Attribution:
    """The attribution of a method without a completeness identity: its gap and residual are NaN, not zero."""
    nan = torch.full((len(values),), torch.nan, dtype=torch.float64, device=values.device)
    sound = torch.isfinite(values).flatten(1).all(1).tolist()
    fine, bad = ("unchecked", why), ("diverged", "the logits or their gradient were not finite on the way")
    judgements: list[Judgement] = [fine if ok else bad for ok in sound]  # pyright: ignore[reportAssignmentType]
    judgements = judge_zeros(values.to(problem.inputs.dtype), judgements)
    return Attribution(
        values=values.to(problem.inputs.dtype),
        target=problem.target,
        score=problem.score(problem.logits),
        endpoint_score=nan.to(values.dtype),
        completeness_gap=nan,
        completeness_residual=nan,
        verdict=tuple(verdict for verdict, _ in judgements),
        advice=tuple(advice for _, advice in judgements),
        diagnostics=diagnostics,
        settings=method.record(),
        trajectory=(None,) * len(values),
    )
