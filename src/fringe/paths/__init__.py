"""Paths through input space, and the problem that a method solves.

``__all__`` is what the author of a method needs; the rest serves the methods of this package.
"""

from fringe.paths._base import (
    AT_POINTS,
    Geodesic,
    Orientation,
    Point,
    Rows,
    all_finite,
    fisher_rao_step,
    softened,
    uniform_log_probs,
)
from fringe.paths._fitted import (
    AuthorsEnergy,
    AuthorsSVI,
    GradientNorm,
    NeighbourGraph,
    NoiseFn,
    OptimizedPath,
    euclidean_lengths,
    model_lengths,
)
from fringe.paths._lines import (
    BlurLine,
    Displacements,
    Node,
    Nodes,
    PiecewiseNodes,
    Polyline,
    ReferencePairs,
    SampleSet,
    SpectralLine,
    StraightLine,
    Vertices,
    authors_spacing,
)
from fringe.paths._occlusion import Occlusion, filling, movable_words, part_numbers
from fringe.paths._problem import Problem, Progress, token_length_of
from fringe.paths._sequential import (
    AdversarialPath,
    CounterfactualPath,
    Evaluation,
    GuidedPath,
    SequentialPath,
    Steps,
    last_linear_layer,
)
from fringe.paths._verification import JVPUse, verify

__all__ = [
    "Evaluation",
    "Geodesic",
    "Node",
    "Nodes",
    "PiecewiseNodes",
    "Point",
    "Polyline",
    "Problem",
    "SequentialPath",
    "Steps",
    "StraightLine",
    "Vertices",
]
