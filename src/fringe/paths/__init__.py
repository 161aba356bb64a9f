"""Paths through input space, and the problem that a method solves.

``__all__`` is what the author of a method needs; the rest serves the methods of this package.
"""

from fringe.paths._authors_geodesic import AuthorsSVI as AuthorsSVI
from fringe.paths._base import GeodesicDiagnostics, Path, PathRun, PathStatus, Point, Segment
from fringe.paths._base import Orientation as Orientation
from fringe.paths._base import Rows as Rows
from fringe.paths._base import fisher_rao_step as fisher_rao_step
from fringe.paths._counterfactual import AdversarialPath as AdversarialPath
from fringe.paths._counterfactual import CounterfactualPath as CounterfactualPath
from fringe.paths._counterfactual import last_linear_layer as last_linear_layer
from fringe.paths._fisher_rao import FisherRaoTracking as FisherRaoTracking
from fringe.paths._fisher_rao import Until as Until
from fringe.paths._fisher_rao import Waypoint as Waypoint
from fringe.paths._geodesic import AuthorsEnergy as AuthorsEnergy
from fringe.paths._geodesic import GradientNorm as GradientNorm
from fringe.paths._geodesic import LengthEnergy as LengthEnergy
from fringe.paths._geodesic import NoiseFn as NoiseFn
from fringe.paths._geodesic import OptimizedPath as OptimizedPath
from fringe.paths._geodesic import PathEnergy as PathEnergy
from fringe.paths._geodesic import PathOptimizer as PathOptimizer
from fringe.paths._geodesic import PointEnergy as PointEnergy
from fringe.paths._graph import NeighbourGraph as NeighbourGraph
from fringe.paths._graph import euclidean_lengths as euclidean_lengths
from fringe.paths._graph import model_lengths as model_lengths
from fringe.paths._guided import GuidedPath as GuidedPath
from fringe.paths._lines import BlurLine as BlurLine
from fringe.paths._lines import Displacements as Displacements
from fringe.paths._lines import Node, Nodes, PiecewiseNodes, Polyline, StraightLine, Vertices
from fringe.paths._lines import ReferencePairs as ReferencePairs
from fringe.paths._lines import SampleSet as SampleSet
from fringe.paths._lines import authors_spacing as authors_spacing
from fringe.paths._lines import resample_by_arc_length as resample_by_arc_length
from fringe.paths._natural_gradient import JacobianForm as JacobianForm
from fringe.paths._natural_gradient import NaturalStep as NaturalStep
from fringe.paths._natural_gradient import PreconditionerName as PreconditionerName
from fringe.paths._natural_gradient import Smoothing as Smoothing
from fringe.paths._natural_gradient import Solve as Solve
from fringe.paths._natural_gradient import Structure as Structure
from fringe.paths._problem import Problem
from fringe.paths._problem import Progress as Progress
from fringe.paths._spectral import Basis as Basis
from fringe.paths._spectral import SpectralLine as SpectralLine
from fringe.paths._spectral import SpectralRule as SpectralRule
from fringe.paths._trust_region import Bound as Bound
from fringe.paths._trust_region import TrustRegion as TrustRegion
from fringe.paths._verification import verify as verify

__all__ = [
    "GeodesicDiagnostics",
    "Node",
    "Nodes",
    "Path",
    "PathRun",
    "PathStatus",
    "PiecewiseNodes",
    "Point",
    "Polyline",
    "Problem",
    "Segment",
    "StraightLine",
    "Vertices",
]
