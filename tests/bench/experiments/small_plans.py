"""Plans of the shipped digits that are computed in a moment."""

from collections import Counter

from fringe import IntegratedGradients
from fringe.bench.experiments._plan import ModelSource, Plan, PlanModel
from fringe.metrics import Insertion, Sparseness
from score_records import records_in

IG = IntegratedGradients(steps=8)


def models(**methods):
    return (PlanModel("digits", ModelSource("embedded:digits"), methods or {"ig": IG}),)


def digits_plan(**changed):
    """IG and the controls on 4 digits, 2 in a unit, by metrics whose order no rounding turns over."""
    known = {
        "name": "digits",
        "data": ("embedded:digits",),
        "models": models(),
        "metrics": {"sparseness": Sparseness(), "insertion": Insertion()},
        "n": 4,
        "shard": 2,
    }
    return Plan(**{**known, **changed})


def small(**changed):
    """IG alone on two images, one in a unit."""
    return digits_plan(**{"controls": False, "n": 2, "shard": 1, **changed})


def done_units(finished):
    """What a run computed: (method, metrics, number of images) of each unit."""
    return Counter((r.task.method, r.task.metrics, len(r.task.images)) for r in finished.log.reports)


def all_rows(store):
    """Every committed row by its name."""
    return {row.key: row for row in records_in(store)}
