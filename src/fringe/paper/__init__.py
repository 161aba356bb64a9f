"""The paper's studies: what each computes in a run folder, its figures, and its numbers beside the paper's."""

from fringe.paper._estimate import estimate_reproduction as estimate_reproduction
from fringe.paper._reproduction import write_reproduction as write_reproduction
from fringe.paper._studies import PaperStudy as PaperStudy
from fringe.paper._studies import ablation_study as ablation_study
from fringe.paper._studies import cap_study as cap_study
from fringe.paper._studies import check_studies as check_studies
from fringe.paper._studies import paper_models as paper_models
from fringe.paper._studies import read_search_space as read_search_space
from fringe.paper._studies import reproduction_plan as reproduction_plan
from fringe.paper._studies import runtime_study as runtime_study
from fringe.paper._studies import study_plans as study_plans
from fringe.paper._studies import sweep_study as sweep_study
from fringe.paper._studies import tuning_study as tuning_study
from fringe.paper._tables import paper_tables as paper_tables
from fringe.paper._timing import Timing as Timing
from fringe.paper._timing import describe_timings as describe_timings
from fringe.paper._timing import measure_runtimes as measure_runtimes
from fringe.paper._timing import timing_records as timing_records
from fringe.paper._timing import write_timings as write_timings
from fringe.paper._trajectories import draw_study as draw_study
from fringe.paper._tuning import tune_preset as tune_preset
