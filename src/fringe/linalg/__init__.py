"""Linear algebra by products: operators, conjugate gradients, operators diagonal in the Laplacian's eigenbasis."""

from fringe.linalg.cg import CGSolution as CGSolution
from fringe.linalg.cg import CGStatus as CGStatus
from fringe.linalg.cg import conjugate_gradient as conjugate_gradient
from fringe.linalg.cg import inner_product as inner_product
from fringe.linalg.operators import DampedOperator as DampedOperator
from fringe.linalg.operators import IdentityOperator as IdentityOperator
from fringe.linalg.operators import LinearOperator as LinearOperator
from fringe.linalg.operators import ScaledOperator as ScaledOperator
from fringe.linalg.operators import SumOperator as SumOperator
from fringe.linalg.spectral import Boundary as Boundary
from fringe.linalg.spectral import LaplacianBasis as LaplacianBasis
from fringe.linalg.spectral import SpectralOperator as SpectralOperator
