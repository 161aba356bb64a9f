"""Metrics of attribution maps: how well a map predicts what the model does."""

from fringe._tables import ARROW, Direction, best_of
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
from fringe.metrics._evaluate import METRICS, evaluate, evaluated_maps, get_metric, score, why_refused
from fringe.metrics._information_curves import PerformanceInformationCurve
from fringe.metrics._insertion_deletion import Deletion, Insertion
from fringe.metrics._localisation import ExpectedHit, MassInside, ObjectBalance, RankAccuracy
from fringe.metrics._mas import MASDeletion, MASInsertion
from fringe.metrics._path_diagnostics import CompletenessResidual, EndpointKL, TrackingErrorMax, TrackingErrorMean
from fringe.metrics._randomisation import MPRT, EfficientMPRT, RandomLogit
from fringe.metrics._region_completeness import RegionCompleteness
from fringe.metrics._removal_curves import (
    CumulativePredictionDifference,
    CumulativePredictionPreservation,
    DiffID,
    SignedInsertion,
)
from fringe.metrics._road import ROAD
from fringe.metrics._sensitivity import Infidelity, MaxSensitivity
from fringe.metrics._single_deletion import SaCo, SingleDeletion
from fringe.metrics._sparseness import Sparseness

__all__ = [
    "METRICS",
    "MPRT",
    "ROAD",
    "CompletenessResidual",
    "CumulativePredictionDifference",
    "CumulativePredictionPreservation",
    "Deletion",
    "DiffID",
    "Direction",
    "EfficientMPRT",
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
    "ObjectBalance",
    "PerformanceInformationCurve",
    "RandomLogit",
    "RankAccuracy",
    "RegionCompleteness",
    "SaCo",
    "Scores",
    "SignedInsertion",
    "SingleDeletion",
    "Sparseness",
    "TrackingErrorMax",
    "TrackingErrorMean",
    "evaluate",
]
