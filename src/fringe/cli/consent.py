"""Ask before a run that would take absurdly long: a slip in a setting, or a plan file that somebody else wrote."""

import sys
from collections.abc import Iterable, Mapping

import typer

from fringe.attribution import Attributor
from fringe.cli.problems import Exit
from fringe.errors import InputError
from fringe.experiments import Plan
from fringe.metrics import Metric

MOST_OF_A_MAP = 1e6
"""Passes of one map or one score of an image that need no consent: a quarter of an hour at a millisecond a pass. The
longest of the paper's settings take 2e5."""
MOST = 1e10
"""Passes of a whole run that need no consent. All of the paper's tables take about 1e9."""


def require_consent(work: Iterable[tuple[str, float, float]], *, yes: bool, quiet: bool) -> None:
    """Ask whether to start where ``work`` is absurdly much: what is made, the passes of one, and how many.

    Asks on a terminal alone. Raises InputError, which names --yes, anywhere else, and typer.Exit after a no.
    """
    done = list(work)
    if yes or not done:
        return
    total = sum(passes * count for _, passes, count in done)
    name, longest, _ = max(done, key=lambda one: one[1])
    if longest <= MOST_OF_A_MAP and total <= MOST:
        return
    said = f"the settings mean about {total:.2g} forward and backward passes, {longest:.2g} for {name} of one image"
    if quiet or not sys.stdin.isatty():
        raise InputError(f"--yes: {said}; lower the settings, or pass --yes to start all the same")
    if not typer.confirm(f"{said}. Start?", err=True):
        raise typer.Exit(Exit.NOTHING_DONE)


def work_of(
    methods: Mapping[str, Attributor],
    metrics: Mapping[str, Metric],
    images: int,
    limits: Mapping[str, int] | None = None,
) -> list[tuple[str, float, float]]:
    """What making maps and scoring them takes, as far as the settings tell."""
    work: list[tuple[str, float, float]] = []
    for label, metric in metrics.items():
        samples = getattr(metric, "samples", 0)  # forward passes of a score, or whole maps
        count = min((limits or {}).get(label, images), images)
        work.append((f"the score {label}", samples, count * len(methods)))
        if metric.requires_explainer:
            work += [(f"a map by {name}", _passes(method), samples * count) for name, method in methods.items()]
    return work + [(f"a map by {name}", _passes(method), images) for name, method in methods.items()]


def work_of_plans(plans: Iterable[Plan]) -> list[tuple[str, float, float]]:
    """What plans take."""
    return [
        one for plan in plans for arm in plan.arms for one in work_of(arm.methods, plan.metrics, plan.n, plan.limits)
    ]


def _passes(method: Attributor) -> float:
    return method.planned_passes or 0.0
