"""Score maps: the door to the metrics."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from fringe.errors import InputError
from fringe.metrics.base import EvaluatedMaps, EvaluationContext, Explainer, Metric, Scores
from fringe.metrics.registry import get_metric


class Maps(Protocol):
    """What is scored: an :class:`fringe.Attribution`, or anything with its ``values`` and ``diagnostics``."""

    @property
    def values(self) -> Tensor: ...
    @property
    def diagnostics(self) -> Mapping[str, Tensor]: ...


@runtime_checkable
class Complete(Protocol):
    """Maps that say how well they add up, such as an :class:`fringe.Attribution`: NaN where they have no such claim."""

    @property
    def completeness_residual(self) -> Tensor: ...


def evaluate(
    subject: EvaluationContext,
    maps: Maps | Tensor,
    metrics: Sequence[str | Metric] | Mapping[str, Metric],
    explain: Explainer | None = None,
) -> dict[str, Scores]:
    """Scores of ``maps`` (B, *S) of the subject's images under each metric, by its label, or its text or name.

    ``explain`` is for metrics that ask for maps of other inputs. Raises InputError for maps of another shape and for
    maps that hold NaN or infinity: a broken map has no score.
    """
    values = maps if isinstance(maps, Tensor) else maps.values
    if isinstance(metrics, Mapping):
        chosen = list(metrics.items())
    else:
        chosen = [(m if isinstance(m, str) else m.name, get_metric(m)) for m in metrics]
    _check_names([name for name, _ in chosen])
    check_maps(values, subject)
    for name, metric in chosen:
        if metric.needs_explain and explain is None:
            raise InputError(f"metric {name}: it needs the method that made the maps (explain=), not maps alone")
    explained = EvaluatedMaps(subject, values.detach().to(subject.problem.inputs.device), _diagnostics(maps), explain)
    with subject.problem.model.session(explained.values.device):
        return {name: metric.score(explained) for name, metric in chosen}


def _diagnostics(maps: Maps | Tensor) -> Mapping[str, Tensor]:
    """What the method reported, and how well its maps add up."""
    if isinstance(maps, Tensor):
        return {}
    complete = {"completeness_residual": maps.completeness_residual} if isinstance(maps, Complete) else {}
    return {**complete, **maps.diagnostics}


def _check_names(names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"metrics: {', '.join(twice)} given twice; scores are told apart by name, so ask separately")


def check_maps(values: Tensor, subject: EvaluationContext) -> None:
    """Refuse maps that cannot be scored."""
    inputs = subject.problem.inputs
    if values.shape != inputs.shape:
        raise InputError(f"maps: got shape {tuple(values.shape)}, expected {tuple(inputs.shape)}, as the inputs")
    bad = (~torch.isfinite(values)).flatten(1).any(1).nonzero()[:, 0].tolist()
    if bad:
        raise InputError(
            f"maps: those of images {bad} hold NaN or infinity; leave them out (a broken map has no score)"
        )
