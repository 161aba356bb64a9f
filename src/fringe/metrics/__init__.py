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
from fringe.metrics._curves import (
    CumulativePredictionDifference,
    CumulativePredictionPreservation,
    Deletion,
    DiffID,
    Insertion,
    MASDeletion,
    MASInsertion,
    SignedInsertion,
    SymmetricRelevanceGain,
)
from fringe.metrics._evaluate import METRICS, evaluate, evaluated_maps, get_metric, score, why_refused
from fringe.metrics._imputation import ROAD, PerformanceInformationCurve
from fringe.metrics._localisation import ExpectedHit, MassInside, ObjectBalance, RankAccuracy, RegionCompleteness
from fringe.metrics._randomisation import MPRT, EfficientMPRT, RandomLogit
from fringe.metrics._sensitivity import Infidelity, MaxSensitivity, SaCo, SingleDeletion
from fringe.metrics._without_passes import (
    CompletenessResidual,
    EndpointKL,
    Sparseness,
    TrackingErrorMax,
    TrackingErrorMean,
)

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
