"""The paper's studies: what each computes in a run folder, its figures, and its numbers beside the paper's.

What draws is loaded when it is used: the command line shows the options of a study without it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fringe.bench.paper._estimate import estimate_reproduction
from fringe.bench.paper._studies import (
    PAPER_STUDIES,
    PaperStudy,
    StudySpec,
    paper_study,
    read_search_space,
    study_plans,
)
from fringe.bench.paper._tables import READINGS, paper_tables
from fringe.bench.paper._timing import Timing, describe_timings, measure_runtimes, timing_records, write_timings
from fringe.bench.paper._tuning import tune_preset

if TYPE_CHECKING:
    from fringe.bench.paper._budget import budget_chapter, equal_budgets
    from fringe.bench.paper._reproduction import write_reproduction
    from fringe.bench.paper._trajectories import draw_study

_MODULES = dict.fromkeys(("budget_chapter", "equal_budgets"), "_budget") | {
    "write_reproduction": "_reproduction",
    "draw_study": "_trajectories",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
