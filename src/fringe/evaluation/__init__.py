"""Scores of maps on a batch in memory: methods against controls, intervals, paired tests, what a metric is worth."""

from fringe.evaluation._comparison import (
    DRAWN_CONTROL,
    METRIC_REFUSED,
    Comparison,
    TidyScores,
    compare,
    grid_row,
    metric_labels,
    tidy,
)
from fringe.evaluation._conclusions import conclude, variants_of
from fringe.evaluation._evaluator import (
    BOX_CONTROLS,
    CONTROLS,
    TEXT_CONTROLS,
    Candidate,
    Evaluator,
    MethodResult,
    Progress,
    control_candidates,
    make_maps,
    map_controls,
    one_by_one,
    planned_work,
    with_controls,
)
from fringe.evaluation._statistics import (
    LEVEL,
    NOT_BETTER,
    NOT_BETTER_MEANS,
    RESAMPLES,
    ControlTest,
    Difference,
    Estimate,
    compare_with_controls,
    estimate,
    estimate_all,
    holm,
    paired,
    paired_all,
    too_few,
)
from fringe.evaluation._summary import Score, ScoreTable, method_cell
from fringe.evaluation._validity import (
    LEAST,
    SHARES,
    Validity,
    degraded_passes,
    degraded_scores,
    judge_metrics,
    validate_metrics,
    validity_table,
)

__all__ = [  # noqa: RUF022 - by topic
    "compare",
    "Comparison",
    "Estimate",
    "estimate",
    "Difference",
    "paired",
    "holm",
    "validate_metrics",
]
