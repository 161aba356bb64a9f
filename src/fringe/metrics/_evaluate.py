"""A metric by its name, and scores of maps under metrics."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from fringe._strings.names import Reference, unique
from fringe.errors import InputError
from fringe.metrics._base import EvaluatedMaps, EvaluationContext, Explainer, Maps, Metric, Scores
from fringe.metrics._perturbation import ExchangeMetric
from fringe.metrics._quantus import KNOWN, quantus_metric
from fringe.metrics._registry import METRICS
from fringe.settings import configured


def with_references(names: Iterable[str]) -> tuple[str, ...]:
    """Names of metrics, after each that exchanges pixels the same with zeros: what replaces them may decide who is
    best."""
    return tuple(one for name in names for one in (name, *[f"{name}:zero"] * issubclass(METRICS[name], ExchangeMetric)))


#: The scores of an experiment that names none.
DEFAULT_METRICS = with_references(name for name, kind in METRICS.items() if kind.by_default)


def get_metric(metric: str | Metric) -> Metric:
    """Return a configured metric.

    Args:
        metric: The name of a registered metric, ``"insertion"`` or with a preset ``"insertion:rise"``; the name of a
            metric of Quantus, such as ``"quantus:pixel_flipping"``; or a configured metric, which is returned as it is.

    Returns:
        The configured metric.

    Raises:
        InputError: If no metric or no preset has this name.
    """
    if isinstance(metric, str):
        reference = Reference.parse(metric)
        if reference.head == "quantus":
            return quantus_metric(reference.rest or "")
        if reference.head in KNOWN and reference.head not in METRICS:
            raise InputError(f"got {metric!r}", argument="metric", hint=f"did you mean 'quantus:{reference.head}'?")
    return configured(metric, Metric, METRICS, "Insertion()")


def _usual(name: str) -> Metric:
    metric = get_metric(name)
    return replace(metric, steps=32) if isinstance(metric, ExchangeMetric) and metric.steps is None else metric


#: The scores of a comparison that names none, by label (docs/compare.md, "Which metrics"). Curves have 32 steps, as
#: one for each row of a large picture takes most of the time (chosen by experiments/curve_steps.py).
USUAL_METRICS: Mapping[str, Metric] = {
    name: _usual(name) for name in with_references(("road", "signed_insertion", "random_logit", "occlusion_agreement"))
}


def evaluate(
    context: EvaluationContext,
    maps: Maps | Tensor,
    metrics: Sequence[str | Metric] | Mapping[str, Metric],
    explain: Explainer | None = None,
) -> dict[str, Scores]:
    """Score maps under each of several metrics.

    Args:
        context: The images that the maps explain.
        maps: Maps (B, *S), or an object with ``values`` (B, *S) and ``diagnostics`` (B,) such as
            :class:`fringe.Attribution`.
        metrics: Names such as ``"insertion:raw"``, configured metrics, or configured metrics by label.
        explain: Makes maps of other problems with the same method, for metrics that require it.

    Returns:
        The scores by label, by name with preset, or by the name of a configured metric.

    Raises:
        InputError: If maps have another shape than the inputs, or hold NaN or infinity; if a metric is unknown, is
            given twice, refuses this kind of input, or requires ``explain`` or a truth that is missing.
    """
    if isinstance(metrics, Mapping):
        chosen = metrics
    else:
        configured = zip(metrics, map(get_metric, metrics), strict=True)
        pairs = ((given if isinstance(given, str) else metric.name, metric) for given, metric in configured)
        chosen = unique(pairs, "metrics", "scores are stored by name: evaluate them in separate calls")
    evaluated = evaluated_maps(context, maps, explain)
    for name, metric in chosen.items():
        if reason := why_refused(metric, evaluated):
            raise InputError(f"metric {name}: {reason}")
    with context.problem.model.session(evaluated.values.device):
        return {name: score(name, metric, evaluated) for name, metric in chosen.items()}


def evaluated_maps(context: EvaluationContext, maps: Maps | Tensor, explain: Explainer | None) -> EvaluatedMaps:
    """The maps of a context's images as metrics take them. Raises InputError for maps that cannot be scored."""
    values, inputs = maps if isinstance(maps, Tensor) else maps.values, context.problem.inputs
    if values.shape != inputs.shape:
        message = f"got shape {tuple(values.shape)}, expected {tuple(inputs.shape)}, as the inputs"
        raise InputError(message, argument="maps")
    if bad := (~torch.isfinite(values)).flatten(1).any(1).nonzero()[:, 0].tolist():
        hint = "leave them out (a broken map has no score)"
        raise InputError(f"those of images {bad} hold NaN or infinity", argument="maps", hint=hint)
    diagnostics = {} if isinstance(maps, Tensor) else dict(maps.diagnostics)
    residual = getattr(maps, "completeness_residual", None)  # that of an Attribution
    if residual is not None:
        diagnostics.setdefault("completeness_residual", cast(Tensor, residual))
    if not values.is_floating_point():  # |-128| is no 8-bit integer, and |true| is not defined
        values = values.to(context.problem.inputs.dtype)
    return EvaluatedMaps(context, values.detach().to(context.problem.inputs.device), diagnostics, explain)


def score(name: str, metric: Metric, evaluated: EvaluatedMaps) -> Scores:
    """The scores of a metric that does not refuse the maps. The caller holds the session of the model. Somebody else
    may have written the metric: raises InputError unless each of its numbers has a row for each map."""
    scores, count = cast(object, metric.score(evaluated)), len(evaluated.values)
    if not isinstance(scores, Scores):
        raise InputError(f"metric {name}: it returned {type(scores).__name__}, expected Scores(values)")
    columns: list[tuple[str, object]] = [("values", scores.values), *scores.flags.items(), *scores.details.items()]
    shapes = [(what, tuple(c.shape) if isinstance(c, Tensor) else type(c).__name__) for what, c in columns]
    shapes += [(what, tuple(curve.shape[:1])) for what, curve in scores.curves.items()]  # a detail may have its name
    for what, shape in shapes:
        if shape != (count,):
            raise InputError(f"metric {name}: it returned {what} {shape}, expected a tensor ({count},)")
    return scores


def why_refused(metric: Metric, evaluated: EvaluatedMaps) -> str:
    """Why a metric cannot score these maps, before it is computed; empty if it can."""
    if metric.requires_explainer and evaluated.explain is None:
        return "it needs the method that made the maps (explain=), not maps alone"
    if metric.requires_truth and evaluated.context.truth is None:
        return "it needs images of a scene, of which it is known what the model uses"
    return metric.refusal(evaluated.values.shape)
