"""Linear algebra by products: operators, conjugate gradients, operators diagonal in the Laplacian's eigenbasis."""

from fringe.linalg.cg import CGSolution as CGSolution
from fringe.linalg.cg import CGStatus as CGStatus
from fringe.linalg.cg import conjugate_gradient as conjugate_gradient
from fringe.linalg.cg import inner_product as inner_product
from fringe.linalg.operators import Damped as Damped
from fringe.linalg.operators import Identity as Identity
from fringe.linalg.operators import LinearOperator as LinearOperator
from fringe.linalg.operators import Scaled as Scaled
from fringe.linalg.operators import Sum as Sum
from fringe.linalg.spectral import Boundary as Boundary
from fringe.linalg.spectral import Grid as Grid
from fringe.linalg.spectral import SpectralOperator as SpectralOperator
