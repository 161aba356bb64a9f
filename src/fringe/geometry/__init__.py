"""Information geometry of the probability simplex, and its pullback to inputs by a Jacobian."""

from fringe.geometry._pullback import ExplicitJacobian as ExplicitJacobian
from fringe.geometry._pullback import Jacobian as Jacobian
from fringe.geometry._pullback import PullbackFisher as PullbackFisher
from fringe.geometry._pullback import ScaledJacobian as ScaledJacobian
from fringe.geometry._pullback import SoftenedJacobian as SoftenedJacobian
from fringe.geometry._pullback import TargetRestJacobian as TargetRestJacobian
from fringe.geometry._simplex import angle as angle
from fringe.geometry._simplex import dist as dist
from fringe.geometry._simplex import entropy as entropy
from fringe.geometry._simplex import exp as exp
from fringe.geometry._simplex import fisher_norm_squared as fisher_norm_squared
from fringe.geometry._simplex import fisher_product as fisher_product
from fringe.geometry._simplex import geodesic as geodesic
from fringe.geometry._simplex import kl as kl
from fringe.geometry._simplex import log as log
from fringe.geometry._simplex import log_probabilities as log_probabilities
from fringe.geometry._simplex import softening_temperature as softening_temperature
from fringe.geometry._simplex import spherical_loss as spherical_loss
from fringe.geometry._simplex import spherical_loss_gradient as spherical_loss_gradient
from fringe.geometry._simplex import sqrt_chart as sqrt_chart
from fringe.geometry._simplex import target_rest_logits as target_rest_logits
from fringe.geometry._simplex import to_tangent as to_tangent
