"""The paper's studies: what each computes in a run folder, its figures, and its numbers beside the paper's."""

from fringe.paper._estimate import estimate_reproduction
from fringe.paper._reproduction import write_reproduction
from fringe.paper._studies import PAPER_STUDIES, PaperStudy, StudySpec, paper_study, read_search_space, study_plans
from fringe.paper._tables import paper_tables
from fringe.paper._timing import Timing, describe_timings, measure_runtimes, timing_records, write_timings
from fringe.paper._trajectories import draw_study
from fringe.paper._tuning import tune_preset
