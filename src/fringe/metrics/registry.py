"""Metrics by name."""

from fringe._registry import collect, nearest
from fringe.errors import InputError
from fringe.metrics import catalogue
from fringe.metrics.base import Metric

METRICS: dict[str, type[Metric]] = collect(vars(catalogue), Metric)


def get_metric(metric: str | Metric) -> Metric:
    """A configured metric, or a registered one by name: ``"insertion"``, or with a preset ``"insertion:rise"``."""
    if isinstance(metric, Metric):
        return metric
    if not isinstance(metric, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"metric: got {metric!r}, expected a name or a configured metric such as Insertion()")
    name, colon, preset = metric.partition(":")
    if name not in METRICS:
        raise InputError(f"metric: got {metric!r}{nearest(name, METRICS)} Known metrics: {', '.join(METRICS)}")
    return METRICS[name].preset(preset) if colon else METRICS[name]()
