"""Fisher-Rao Integrated Gradients for PyTorch classifiers."""

from fringe._errors import FringeError as FringeError
from fringe._errors import InputError as InputError
from fringe._errors import ModelOutputError as ModelOutputError
from fringe._errors import NotDifferentiableError as NotDifferentiableError
from fringe._errors import TargetError as TargetError
from fringe.attribution import METHODS as METHODS
from fringe.attribution import Attribution as Attribution
from fringe.attribution import Attributor as Attributor
from fringe.attribution import FRInGe as FRInGe
from fringe.attribution import Trajectory as Trajectory
from fringe.attribution import attribute as attribute
from fringe.classifier import Classifier as Classifier
from fringe.classifier import PassCounts as PassCounts
from fringe.classifier import TwoClass as TwoClass

__version__ = "0.1.0"
