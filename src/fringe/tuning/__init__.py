"""Tuning: search and one-factor sweeps of a method's settings, scored by whoever calls."""

from fringe.tuning.naming import require_known as require_known
from fringe.tuning.objective import PAPER as PAPER
from fringe.tuning.objective import Weights as Weights
from fringe.tuning.objective import objective as objective
from fringe.tuning.preset import About as About
from fringe.tuning.preset import about as about
from fringe.tuning.preset import read_preset as read_preset
from fringe.tuning.preset import write_preset as write_preset
from fringe.tuning.space import SearchSpace as SearchSpace
from fringe.tuning.space import paper_space as paper_space
from fringe.tuning.space import space_of as space_of
from fringe.tuning.study import Progress as Progress
from fringe.tuning.study import Trial as Trial
from fringe.tuning.study import Tuned as Tuned
from fringe.tuning.study import tune as tune
from fringe.tuning.sweep import SweepLine as SweepLine
from fringe.tuning.sweep import default_factors as default_factors
from fringe.tuning.sweep import one_at_a_time as one_at_a_time
from fringe.tuning.sweep import sweep_lines as sweep_lines
