"""The methods there are: one line each. A new method is a file of this room and a line here."""

from fringe.attribution.fringe import FRInGe as FRInGe
from fringe.attribution.integrated_gradients import IntegratedGradients as IntegratedGradients
