"""Metrics of attribution maps: how well a map predicts what the model does."""

from fringe._direction import ARROW as ARROW
from fringe._direction import Direction
from fringe._direction import best_of as best_of
from fringe.metrics._base import Aggregate as Aggregate
from fringe.metrics._base import EvaluatedMaps, EvaluationContext, Explainer, Metric, Scores
from fringe.metrics._base import Maps as Maps
from fringe.metrics._evaluate import METRICS, evaluate
from fringe.metrics._evaluate import get_metric as get_metric
from fringe.metrics._insertion_deletion import Deletion, Insertion
from fringe.metrics._localisation import ExpectedHit, MassInside, RankAccuracy
from fringe.metrics._mas import MASDeletion, MASInsertion
from fringe.metrics._path_diagnostics import CompletenessResidual, EndpointKL, TrackingErrorMax, TrackingErrorMean
from fringe.metrics._region_completeness import RegionCompleteness
from fringe.metrics._region_completeness import SumOfRegions as SumOfRegions
from fringe.metrics._sensitivity import Infidelity, MaxSensitivity
from fringe.metrics._sparseness import Sparseness

__all__ = [
    "METRICS",
    "CompletenessResidual",
    "Deletion",
    "Direction",
    "EndpointKL",
    "EvaluatedMaps",
    "EvaluationContext",
    "ExpectedHit",
    "Explainer",
    "Infidelity",
    "Insertion",
    "MASDeletion",
    "MASInsertion",
    "MassInside",
    "MaxSensitivity",
    "Metric",
    "RankAccuracy",
    "RegionCompleteness",
    "Scores",
    "Sparseness",
    "TrackingErrorMax",
    "TrackingErrorMean",
    "evaluate",
]
