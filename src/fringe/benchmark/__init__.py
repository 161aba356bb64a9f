"""Evaluation: the methods of one room under the metrics of another, per image, with controls beside them; plans of it,
the store that keeps it, and the statistics that sum it up."""

from fringe.benchmark.compare import Comparison as Comparison
from fringe.benchmark.compare import compare as compare
from fringe.benchmark.controls import CONTROLS as CONTROLS
from fringe.benchmark.coverage import coverage as coverage
from fringe.benchmark.coverage import stale as stale
from fringe.benchmark.dominance import Dominance as Dominance
from fringe.benchmark.dominance import Picks as Picks
from fringe.benchmark.entrants import Entrant as Entrant
from fringe.benchmark.intervals import Estimate as Estimate
from fringe.benchmark.intervals import estimate as estimate
from fringe.benchmark.manifest import Manifest as Manifest
from fringe.benchmark.paired import Difference as Difference
from fringe.benchmark.paired import holm as holm
from fringe.benchmark.plan import Arm as Arm
from fringe.benchmark.plan import ModelSource as ModelSource
from fringe.benchmark.plan import Plan as Plan
from fringe.benchmark.results import Results as Results
from fringe.benchmark.results import read_results as read_results
from fringe.benchmark.row import Row as Row
from fringe.benchmark.rows import ScoreRow as ScoreRow
from fringe.benchmark.store import Store as Store
from fringe.benchmark.store import StoreFull as StoreFull
from fringe.benchmark.table import summarise as summarise
from fringe.benchmark.table import tidy as tidy
