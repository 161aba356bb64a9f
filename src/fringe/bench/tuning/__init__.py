"""Tuning: search of a method's settings, with scores computed by the caller."""

from fringe.bench.tuning._search import OBJECTIVE, Progress, Trial, Tuned, objective, preset_metadata, tune
from fringe.bench.tuning._space import SearchSpace, has_paper_settings, paper_space, space_of
