"""The figures of the studies, as files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fringe.benchmark import Plan, Results
from fringe.benchmark.manifest import Resolved
from fringe.plots.profiles import draw_profiles
from fringe.plots.sweep import SweepCurve, SweepPanel, sensitivity
from fringe.plots.variants import draw_variants
from fringe.studies.plans import OBJECTIVE, first
from fringe.tuning import SweepLine, one_at_a_time, sweep_lines
