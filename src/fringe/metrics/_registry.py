"""The metrics by name: a class in this list is in ``METRICS``, in the package's face, in listings, pages and tests."""

from fringe.metrics._base import Metric
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
from fringe.metrics._imputation import ROAD, PerformanceInformationCurve
from fringe.metrics._localisation import ExpectedHit, MassInside, ObjectBalance, RankAccuracy, RegionCompleteness
from fringe.metrics._randomisation import MPRT, EfficientMPRT, RandomLogit
from fringe.metrics._sensitivity import Infidelity, MaxSensitivity, OcclusionAgreement, SaCo, SingleDeletion
from fringe.metrics._without_passes import (
    CompletenessResidual,
    EndpointKL,
    Sparseness,
    TrackingErrorMax,
    TrackingErrorMean,
)

#: The metrics by name.
METRICS: dict[str, type[Metric]] = {
    kind.name: kind
    for kind in (
        *(Insertion, Deletion, MASInsertion, MASDeletion, Infidelity, MaxSensitivity, Sparseness),
        *(CompletenessResidual, EndpointKL, TrackingErrorMean, TrackingErrorMax),
        *(
            SingleDeletion,
            OcclusionAgreement,
            SaCo,
            ROAD,
            PerformanceInformationCurve,
            DiffID,
            SignedInsertion,
            SymmetricRelevanceGain,
        ),
        *(CumulativePredictionDifference, CumulativePredictionPreservation),
        *(MassInside, RankAccuracy, ExpectedHit, ObjectBalance, RegionCompleteness),
        *(MPRT, EfficientMPRT, RandomLogit),
    )
}
