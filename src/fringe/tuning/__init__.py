"""Tuning: search and one-factor sweeps of a method's settings, with scores computed by the caller."""

from fringe.tuning._objective import PAPER_WEIGHTS as PAPER_WEIGHTS
from fringe.tuning._objective import Weights as Weights
from fringe.tuning._objective import objective as objective
from fringe.tuning._preset import FORMAT as FORMAT
from fringe.tuning._preset import PresetMetadata as PresetMetadata
from fringe.tuning._preset import check_preset as check_preset
from fringe.tuning._preset import preset_metadata as preset_metadata
from fringe.tuning._preset import read_preset as read_preset
from fringe.tuning._preset import write_preset as write_preset
from fringe.tuning._search import Progress as Progress
from fringe.tuning._search import Trial as Trial
from fringe.tuning._search import Tuned as Tuned
from fringe.tuning._search import tune as tune
from fringe.tuning._space import SearchSpace as SearchSpace
from fringe.tuning._space import Study as Study
from fringe.tuning._space import paper_space as paper_space
from fringe.tuning._space import space_of as space_of
from fringe.tuning._sweep import SweepLine as SweepLine
from fringe.tuning._sweep import default_factors as default_factors
from fringe.tuning._sweep import one_at_a_time as one_at_a_time
from fringe.tuning._sweep import sweep_lines as sweep_lines
