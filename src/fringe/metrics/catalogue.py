"""The metrics there are: one line each. A new metric is a file of this room and a line here."""

from fringe.metrics.completeness_residual import CompletenessResidual as CompletenessResidual
from fringe.metrics.deletion import Deletion as Deletion
from fringe.metrics.endpoint_kl import EndpointKL as EndpointKL
from fringe.metrics.infidelity import Infidelity as Infidelity
from fringe.metrics.insertion import Insertion as Insertion
from fringe.metrics.mas_deletion import MASDeletion as MASDeletion
from fringe.metrics.mas_insertion import MASInsertion as MASInsertion
from fringe.metrics.max_sensitivity import MaxSensitivity as MaxSensitivity
from fringe.metrics.sparseness import Sparseness as Sparseness
from fringe.metrics.tracking_error_max import TrackingErrorMax as TrackingErrorMax
from fringe.metrics.tracking_error_mean import TrackingErrorMean as TrackingErrorMean
