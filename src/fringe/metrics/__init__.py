"""Metrics of attribution maps: how well a map predicts what the model does."""

from fringe._strings.tables import ARROW, Direction, best_of
from fringe.metrics._base import (
    KINDS,
    Aggregate,
    EvaluatedMaps,
    EvaluationContext,
    Explainer,
    Maps,
    Metric,
    PlainMaps,
    Scores,
)
from fringe.metrics._evaluate import (
    DEFAULT_METRICS,
    USUAL_METRICS,
    evaluate,
    evaluated_maps,
    get_metric,
    score,
    why_refused,
    with_references,
)
from fringe.metrics._registry import *  # METRICS, and the class of each metric
from fringe.metrics._registry import METRICS

__all__ = [
    "METRICS",
    "Direction",
    "EvaluatedMaps",
    "EvaluationContext",
    "Explainer",
    "Metric",
    "Scores",
    "evaluate",
]
