"""Paths through input space, and the problem that a method solves.

``__all__`` is what the author of a method needs; the rest serves the methods of this package.
"""

from fringe.paths._base import (
    AT_POINTS,
    Geodesic,
    Here,
    Orientation,
    Path,
    Point,
    Rows,
    Segment,
    State,
    fisher_rao_step,
)
from fringe.paths._fisher_rao import ENOUGH, Bound, FisherRaoPath, FisherRaoTracking, TrustRegion, Until
from fringe.paths._fitted import (
    AuthorsEnergy,
    AuthorsSVI,
    GradientNorm,
    LengthEnergy,
    NeighbourGraph,
    NoiseFn,
    OptimizedPath,
    PathEnergy,
    PathOptimizer,
    PointEnergy,
    euclidean_lengths,
    model_lengths,
)
from fringe.paths._lines import (
    Basis,
    BlurLine,
    Displacements,
    Node,
    Nodes,
    PiecewiseNodes,
    Polyline,
    ReferencePairs,
    SampleSet,
    SpectralLine,
    SpectralRule,
    StraightLine,
    Vertices,
    authors_spacing,
    resample_by_arc_length,
)
from fringe.paths._natural_gradient import NaturalStep, Solve
from fringe.paths._problem import Problem, Progress
from fringe.paths._sequential import AdversarialPath, CounterfactualPath, GuidedPath, last_linear_layer
from fringe.paths._verification import JVPUse, verify

__all__ = [
    "Geodesic",
    "Here",
    "Node",
    "Nodes",
    "Path",
    "PiecewiseNodes",
    "Point",
    "Polyline",
    "Problem",
    "Segment",
    "State",
    "StraightLine",
    "Vertices",
]
