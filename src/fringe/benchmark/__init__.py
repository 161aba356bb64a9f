"""Comparisons: the methods of one room under the metrics of another, per image, with controls beside them."""

from fringe.benchmark.compare import Comparison as Comparison
from fringe.benchmark.compare import compare as compare
from fringe.benchmark.controls import CONTROLS as CONTROLS
from fringe.benchmark.entrants import Entrant as Entrant
from fringe.benchmark.intervals import Estimate as Estimate
from fringe.benchmark.intervals import estimate as estimate
from fringe.benchmark.row import Row as Row
from fringe.benchmark.table import summarise as summarise
from fringe.benchmark.table import tidy as tidy
