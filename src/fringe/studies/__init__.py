"""The paper's studies: each a plan over the same store, and what is drawn from it."""

from fringe.studies.plans import ablation as ablation
from fringe.studies.plans import cap_study as cap_study
from fringe.studies.plans import sweep_plan as sweep_plan
