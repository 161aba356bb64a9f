"""Diagnostics that all path methods share, and the verdict on each image."""

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fringe.attribution._base import SEVERITY, Attribution, Attributor, Verdict
from fringe.attribution._integrate import (
    PathIntegral,
    completeness_gap,
    completeness_residual,
    integrate,
)
from fringe.geometry import entropy, kl, log_probabilities
from fringe.paths import Geodesic, Nodes, Problem, all_finite

#: Completeness residual above which a map is called coarse: its sum misses what it explains by more than 5 %.
COARSE_ABOVE = 0.05

#: The verdict on an image, and why.
Status = tuple[Verdict, str]

_AT_REFERENCE: Status = ("at_reference", "the baseline is the input itself: there is nothing to explain")
_NOT_FINITE: Status = ("diverged", "the logits or their gradient were not finite on the way")
# For a map that is zero to rounding, whose sum says nothing.
_ZERO_MAP: Status = (
    "stalled",
    "the map is zero: at every point that was evaluated, the gradient of the score is zero to rounding. Explain "
    "score='logit' where a probability is saturated, and take longer steps or a baseline further away; a score that "
    "ignores the input has no map",
)


class PathAttributor(Attributor):
    """A method that integrates along points known beforehand: it describes the path, and the rest is shared."""

    @property
    def hint(self) -> str:
        """The setting, with its value, that makes the integral more accurate: for the advice on inaccurate maps."""
        return "use rule='trapezoid'" if getattr(self, "rule", None) == "left" else finer(self)

    @property
    def planned_passes(self) -> float | None:
        steps = getattr(self, "steps", None)
        return 2 * steps if isinstance(steps, int) else None

    @abstractmethod
    def nodes(self, problem: Problem) -> Nodes:
        """Describe the path by points that are known before the model is evaluated.

        Args:
            problem: The images and the model.

        Returns:
            The points, with what the gradient at each counts.
        """

    def attribute(self, problem: Problem) -> Attribution:
        """Explain images, see :meth:`Attributor.attribute`."""
        return path_attribution(self, integrate(self.nodes(problem), problem), problem, self.hint)


def path_diagnostics(result: PathIntegral, log_p0: Tensor, log_q: Tensor | None = None) -> dict[str, Tensor]:
    """The paper's path diagnostics, (B,) each: distances in radians, entropies and divergences in nats, lengths in
    input units. ``log_p0`` (B, C) are the predictions, ``log_q`` (B, C) the references; None: uniform."""
    stats, geodesic = result.stats, Geodesic.between(log_p0, log_q)
    moved, distance = stats.count > 0, geodesic.length
    return {
        "steps": torch.tensor(result.steps, device=distance.device),
        "distance": distance,
        "endpoint_distance": torch.where(moved, stats.last["reference_distance"], distance),
        "entropy": entropy(log_p0),
        "endpoint_entropy": torch.where(moved, stats.last["entropy"], entropy(log_p0)),
        "endpoint_kl": torch.where(moved, stats.last["reference_kl"], kl(log_p0, geodesic.log_q)),
        "tracking_error_mean": stats.total["tracking_error"] / stats.count.clamp_min(1),
        "tracking_error_max": stats.largest["tracking_error"],
        "path_length": stats.total["euclidean_step"],
    }


def completeness_status(result: PathIntegral, image: int, hint: str) -> Status:
    """The status of an image by its completeness; ``hint`` says what makes the integral more accurate."""
    if not result.finite[image]:
        return "diverged", f"the logits or their gradient were not finite after step {result.steps[image]}"
    residual = float(result.residual[image])
    if not residual <= COARSE_ABOVE:
        return "coarse", f"{describe_coarse(residual)}: {hint}"
    return "ok", f"sum within {residual:.1%} of the change of the score"


def finer(method: Attributor, name: str = "steps") -> str:
    """Advise four times as many steps, or as much of the setting ``name``."""
    now = getattr(method, name, None)
    return f"use {name}={4 * now}" if isinstance(now, int) else "use more steps"


def describe_coarse(residual: float) -> str:
    """Say what the sum of a map misses."""
    if math.isinf(residual):
        return "the map has a sum, and the score did not change"
    return f"the map's sum misses the change of the score by {residual:.1%}"


def path_attribution(
    method: Attributor, result: PathIntegral, problem: Problem, hint: str, stalled: str = ""
) -> Attribution:
    """Make the attribution of a path integral, with verdicts by its completeness.

    Args:
        method: The method.
        result: The result of :func:`integrate`.
        problem: What is explained.
        hint: How to make the integral more accurate.
        stalled: Why an image may have no steps; by default, the path has no length.

    Returns:
        The attribution, with the path diagnostics.
    """
    lengths = result.steps if stalled else result.stats.total["euclidean_step"].tolist()
    unmoved: Status = ("stalled", stalled) if stalled else _AT_REFERENCE
    statuses = [
        unmoved if length == 0 and result.finite[i] else completeness_status(result, i, hint)
        for i, length in enumerate(lengths)
    ]
    return build_attribution(
        method, result, problem, path_diagnostics(result, log_probabilities(problem.logits)), [[s] for s in statuses]
    )


def build_attribution(
    method: Attributor,
    result: PathIntegral,
    problem: Problem,
    diagnostics: Mapping[str, Tensor],
    statuses: Sequence[Sequence[Status]],
) -> Attribution:
    """A path integral with its diagnostics and the status of each of K classes of each image."""
    residual = result.residual
    return Attribution(
        values=result.values,
        target=problem.target,
        score=result.score,
        endpoint_score=result.endpoint_score,
        completeness_gap=result.gap,
        completeness_residual=residual,
        diagnostics=diagnostics,
        settings=method.record(),
        trajectory=result.trajectories,
        **_verdicts(result.values, statuses, residual.view(len(residual), -1).argsort(1, descending=True).tolist()),
    )


def sum_attribution(
    method: Attributor, values: Tensor, problem: Problem, endpoint_score: Tensor, hint: str
) -> Attribution:
    """Make the attribution of a method without a path whose map still promises the sum ``score - endpoint_score`` (B,).
    ``hint`` says what to do where the sum is wrong."""
    score = problem.score(problem.logits)
    gap = completeness_gap(values, score.double() - endpoint_score.double())
    residual = completeness_residual(gap, score, endpoint_score)
    statuses: list[list[Status]] = [
        [("ok", f"complete within {r:.1%}") if r <= COARSE_ABOVE else ("coarse", f"{describe_coarse(r)}: {hint}")]
        for r in residual.tolist()
    ]
    result = gradient_attribution(method, values, problem, {}, "")
    statuses = [s if finite else [_NOT_FINITE] for s, finite in zip(statuses, all_finite(values).tolist(), strict=True)]
    numbers = {"endpoint_score": endpoint_score, "completeness_gap": gap, "completeness_residual": residual}
    return dataclasses.replace(result, **numbers, **_verdicts(result.values, statuses))


def gradient_attribution(
    method: Attributor, values: Tensor, problem: Problem, diagnostics: Mapping[str, Tensor], why: str
) -> Attribution:
    """Make the attribution of a method without a completeness identity: its gap and residual are NaN, not zero.

    Args:
        method: The method.
        values: Maps (B, *S).
        problem: What is explained.
        diagnostics: Measurements (B,) by name.
        why: Why there is no identity: the advice of the verdict ``unchecked``.

    Returns:
        The attribution.
    """
    nan = torch.full((len(values),), torch.nan, dtype=torch.float64, device=values.device)
    maps = values.to(problem.inputs.dtype)
    return Attribution(
        values=maps,
        target=problem.target,
        score=problem.score(problem.logits),
        endpoint_score=nan.to(maps.dtype),
        completeness_gap=nan,
        completeness_residual=nan,
        diagnostics=diagnostics,
        settings=method.record(),
        trajectory=(None,) * len(values),
        **_verdicts(maps, [[("unchecked", why) if finite else _NOT_FINITE] for finite in all_finite(maps).tolist()]),
    )


def _verdicts(
    values: Tensor, statuses: Sequence[Sequence[Status]], orders: Sequence[Sequence[int]] | None = None
) -> dict[str, Any]:
    """Verdicts and advice of maps (B, *S) or (B, K, *S). A map of zeros becomes ``stalled`` where its verdict would
    look like an answer. An image has the worst verdict of its K classes; if several are equally bad, that of the first
    in ``orders``."""
    size = values.abs().flatten(1).unflatten(1, (len(statuses[0]) if statuses else 1, -1)).amax(2)
    answers = ("ok", "short", "coarse", "unchecked")
    classes = tuple(
        tuple(_ZERO_MAP if z and status[0] in answers else status for z, status in zip(zero, row, strict=True))
        for zero, row in zip((size < torch.finfo(values.dtype).tiny).tolist(), statuses, strict=True)
    )
    worst = [
        max((row[k] for k in (range(len(row)) if orders is None else orders[i])), key=lambda s: SEVERITY.index(s[0]))
        for i, row in enumerate(classes)
    ]
    return {
        "verdict": tuple(verdict for verdict, _ in worst),
        "advice": tuple(advice for _, advice in worst),
        "class_verdicts": classes if statuses and len(statuses[0]) > 1 else (),
    }
