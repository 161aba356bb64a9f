"""Metrics of attribution maps: one file a metric, listed in ``catalogue``."""

from fringe.metrics.base import ARROW as ARROW
from fringe.metrics.base import Direction as Direction
from fringe.metrics.base import Explain as Explain
from fringe.metrics.base import Explained as Explained
from fringe.metrics.base import Metric as Metric
from fringe.metrics.base import Scores as Scores
from fringe.metrics.base import Subject as Subject
from fringe.metrics.base import Summary as Summary
from fringe.metrics.base import best_of as best_of
from fringe.metrics.catalogue import *  # noqa: F403 - each line of the catalogue is public
from fringe.metrics.evaluate import check_maps as check_maps
from fringe.metrics.evaluate import evaluate as evaluate
from fringe.metrics.registry import METRICS as METRICS
from fringe.metrics.registry import resolve_metric as resolve_metric
