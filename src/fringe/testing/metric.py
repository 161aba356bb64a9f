"""The contract of metrics."""

from collections.abc import Callable, Collection, Mapping
from typing import get_args

import torch

from fringe.metrics import Direction, Metric, get_metric
from fringe.testing import metric_conduct, metric_scores, settings
from fringe.testing.metric_trial import MetricTrial
from fringe.testing.result import CheckResult, refuse, run_checks


def declared(trial: MetricTrial) -> str:
    """The class says its name, title, direction, the space it works in, and where its formula comes from."""
    metric = trial.metric
    for name in ("name", "title", "space", "source"):
        refuse(not getattr(metric, name), f"{name} is empty")
    refuse(metric.direction not in get_args(Direction), f"direction: {metric.direction!r}, expected one of {Direction}")
    refuse("paper" not in metric.presets, f"presets: no 'paper' among {', '.join(metric.presets)}")
    return f"{metric.title}: {metric.direction} is better; {metric.space}; {metric.source}"


METRIC_CHECKS: Mapping[str, Callable[[MetricTrial], str]] = {
    "declared": declared,
    "settings_frozen": lambda trial: settings.frozen(trial.metric),
    "settings_explained": lambda trial: settings.explained(trial.metric),
    "settings_recorded": lambda trial: settings.recorded(trial.metric, "metric", trial.metric.name),
    "presets": lambda trial: settings.constructed(type(trial.metric), trial.metric.presets),
    "kind": metric_scores.kind,
    "ranking": metric_scores.ranking,
    "degenerate_maps": metric_scores.degenerate_maps,
    "batch_of_one": metric_conduct.batch_of_one,
    "order": metric_conduct.order,
    "batch_size": metric_conduct.batch_size,
    "repeatable": metric_conduct.repeatable,
    "shared_subject": metric_conduct.shared_subject,
    "callers_tensors": metric_conduct.callers_tensors,
    "callers_model": metric_conduct.callers_model,
    "random_generators": metric_conduct.random_generators,
    "passes": metric_conduct.passes,
}
"""The checks by name; each says in its docstring what it asks."""


def check_metric(
    metric: str | Metric,
    *,
    skip: Collection[str] = (),
    expected_failures: Mapping[str, str] = {},
    device: str | torch.device = "cpu",
) -> list[CheckResult]:
    """Try a configured metric, or a registered one by name (``"insertion:raw"``), on every check of the contract.

    It scores maps of three images (2, 8, 8) and of six (1, 16, 16) with small built-in networks; a metric that asks
    for maps of other inputs gets them. ``skip`` and ``expected_failures`` are as in :func:`check_attributor`. Returns
    what each check found; raises ContractError, which lists every failure with its numbers.
    """
    chosen = get_metric(metric)
    trial = MetricTrial(chosen, torch.device(device))
    return run_checks(f"metric {chosen.name!r}", trial, METRIC_CHECKS, skip, expected_failures)
