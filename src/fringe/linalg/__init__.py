"""Linear algebra by products: operators, and conjugate gradients."""

from fringe.linalg._cg import CGStatus as CGStatus
from fringe.linalg._cg import conjugate_gradient as conjugate_gradient
from fringe.linalg._cg import inner_product as inner_product
from fringe.linalg._cg import textbook_conjugate_gradient as textbook_conjugate_gradient
from fringe.linalg._operators import Boundary as Boundary
from fringe.linalg._operators import LaplacianBasis as LaplacianBasis
from fringe.linalg._operators import SpectralOperator as SpectralOperator
from fringe.linalg._operators import SumOperator as SumOperator
from fringe.linalg._operators import add_rows as add_rows
from fringe.linalg._operators import batch_view as batch_view
