"""Metrics of attribution maps: one file a metric, listed in ``catalogue``."""

from fringe.metrics.base import ARROW as ARROW
from fringe.metrics.base import Aggregate as Aggregate
from fringe.metrics.base import Direction as Direction
from fringe.metrics.base import EvaluatedMaps as EvaluatedMaps
from fringe.metrics.base import EvaluationContext as EvaluationContext
from fringe.metrics.base import Explainer as Explainer
from fringe.metrics.base import Metric as Metric
from fringe.metrics.base import Scores as Scores
from fringe.metrics.base import best_of as best_of
from fringe.metrics.catalogue import *  # noqa: F403 - each line of the catalogue is public
from fringe.metrics.evaluate import check_maps as check_maps
from fringe.metrics.evaluate import evaluate as evaluate
from fringe.metrics.registry import METRICS as METRICS
from fringe.metrics.registry import get_metric as get_metric
