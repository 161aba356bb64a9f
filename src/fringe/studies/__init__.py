"""The paper's studies: each a plan over the same store, and what is drawn from it."""

from fringe.studies.drawing import draw_cap as draw_cap
from fringe.studies.drawing import draw_sweep as draw_sweep
from fringe.studies.drawing import draw_trajectories as draw_trajectories
from fringe.studies.plans import ablation as ablation
from fringe.studies.plans import cap_study as cap_study
from fringe.studies.plans import sweep_plan as sweep_plan
