"""Trajectories through input space."""

from fringe.paths.base import Outcome as Outcome
from fringe.paths.base import Path as Path
from fringe.paths.base import Point as Point
from fringe.paths.base import Query as Query
from fringe.paths.base import Segment as Segment
from fringe.paths.base import Walk as Walk
from fringe.paths.direction import NaturalStep as NaturalStep
from fringe.paths.direction import Smoothing as Smoothing
from fringe.paths.gauge import GeodesicGauge as GeodesicGauge
from fringe.paths.gauge import fisher_rao_step as fisher_rao_step
from fringe.paths.gauge import log_uniform as log_uniform
from fringe.paths.nodes import Nodes as Nodes
from fringe.paths.nodes import Sample as Sample
from fringe.paths.nodes import StraightLine as StraightLine
from fringe.paths.tracking import FisherRaoTracking as FisherRaoTracking
from fringe.paths.trust_region import Bound as Bound
from fringe.paths.trust_region import TrustRegion as TrustRegion
