"""Tuning: search and one-factor sweeps of a method's settings, with scores computed by the caller."""

from fringe.tuning._objective import objective
from fringe.tuning._preset import FORMAT, check_preset, preset_metadata, read_preset, write_preset
from fringe.tuning._search import Progress, Trial, Tuned, tune
from fringe.tuning._space import SearchSpace, Study, paper_space, space_of
from fringe.tuning._sweep import SweepLine, default_factors, one_at_a_time, sweep_lines
