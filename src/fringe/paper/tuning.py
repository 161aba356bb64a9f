"""A search for a model's setting on images that no evaluation meets."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fringe.attribution import Attributor
from fringe.errors import FringeError, InputError, TransientError
from fringe.experiments import (
    TRIAL,
    Arm,
    Interrupted,
    Plan,
    Resolved,
    RunOptions,
    Store,
    require_same_logits,
    resolve,
    results_of,
    run_plan,
)
from fringe.metrics import get_metric
from fringe.paper.plans import OBJECTIVE, first
from fringe.tuning import (
    PAPER_WEIGHTS,
    Progress,
    SearchSpace,
    Study,
    Tuned,
    Weights,
    preset_metadata,
    tune,
    write_preset,
)

JOURNAL = "tune.journal"


@dataclass(frozen=True)
class Search:
    """What is searched, and how long: ``trials`` settings of ``space`` scored on the plan's images."""

    space: SearchSpace
    trials: int
    weights: Weights = PAPER_WEIGHTS


@dataclass(frozen=True)
class Preset:
    """A tuned setting and the file that it was written to."""

    model: str
    tuned: Tuned
    path: Path


def tuning_plan(plan: Plan) -> Plan:
    """The plan of one trial: the last images of the seed's order, under the metrics of the objective. Raises InputError
    for several models: each is searched on its own."""
    if len(plan.arms) != 1:
        raise InputError(f"models: got {len(plan.arms)}, expected one: a setting is tuned for one network at a time")
    metrics = {name: plan.metrics.get(name, get_metric(name)) for name in OBJECTIVE}
    return replace(plan, name="tune", metrics=metrics, limits={}, controls=False, holdout=True)


def search(plan: Plan, root: Path, how: RunOptions, wanted: Search, progress: Progress | None = None) -> Preset:
    """Tune the first method of the plan's model; the scores of every trial are kept in the store, and the trials in a
    journal, so that a search that was killed goes on, also in several processes at once."""
    if how.renew:
        raise InputError("renew: the trials of a search were scored with the model as it was; name another folder")
    store, trial_plan = Store(root), tuning_plan(plan)
    resolved = resolve(trial_plan, logits=True)
    require_same_logits(store, resolved, renew=False)
    model = plan.arms[0].label

    def score(method: Attributor) -> dict[Literal["insertion", "deletion", "infidelity"] | str, Sequence[float]]:
        return _score(trial_plan, method, store, how)

    tuned = tune(
        first(plan.arms[0]),
        wanted.space,
        score,
        Study(root / JOURNAL, f"{model} {first(plan.arms[0]).name}", plan.seed, _identity(resolved, model)),
        trials=wanted.trials,
        weights=wanted.weights,
        progress=progress,
    )
    known = resolved.manifest.models[model]
    digests = [image["digest"] for image in resolved.manifest.images]
    path = root / f"{known['architecture']}.preset.json"
    write_preset(
        path,
        tuned,
        preset_metadata(tuned, architecture=known["architecture"], weights=known["weights"], images=digests),
    )
    score(tuned.best)  # the folder's plan is then the best setting's, not the last one's
    return Preset(model, tuned, path)


def _score(plan: Plan, method: Attributor, store: Store, how: RunOptions) -> dict[str, Sequence[float]]:
    """The trial's scores by metric, (n,) each. Raises FringeError where an image has none: a mean over others would
    compare settings on different images."""
    arm: Arm = replace(plan.arms[0], methods={TRIAL: method})
    finished = run_plan(replace(plan, arms=(arm,)), store.root, replace(how, amend=True))
    if finished.stopped:
        raise Interrupted(finished.stopped)
    if finished.left:
        raise TransientError(f"{finished.left[0]['images']} images have no score yet ({finished.left[0]['reason']})")
    found = results_of(store, finished.resolved.manifest)
    cells = {name: found.cell(arm.label, TRIAL, name) for name in OBJECTIVE}
    worst = max(cells.values(), key=lambda cell: cell.failed + cell.missing)
    if worst.failed + worst.missing:
        reasons = dict.fromkeys(row.error or row.status for row in worst.rows if row is not None and row.status != "ok")
        raise FringeError(
            f"{worst.failed + worst.missing} of {len(worst.frame)} images have no score "
            f"({next(iter(reasons), 'they are not computed')})"
        )
    return {name: [float(score) for score in cell.scores] for name, cell in cells.items()}


def _identity(resolved: Resolved, model: str) -> dict[str, Any]:
    """What a search's scores depend on beside the setting."""
    manifest = resolved.manifest
    return {
        "model": {name: value for name, value in manifest.models[model].items() if name != "spec"},
        "images": [image["digest"] for image in manifest.images],
        "metrics": {name: manifest.metrics[name]["settings"] for name in OBJECTIVE},
        "target": manifest.plan["target"],
        "score": manifest.plan["score"],
    }
