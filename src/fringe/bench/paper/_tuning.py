"""A search for a model's setting on images that no evaluation uses."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fringe._files.disk import require_local
from fringe._strings.formats import counted
from fringe.attribution import Attributor, check_preset, write_preset
from fringe.bench.experiments import (
    TRIAL,
    Interrupted,
    Plan,
    RunOptions,
    Session,
    open_session,
    run_plan,
)
from fringe.bench.paper._studies import base_method, tuning_plan
from fringe.bench.tuning import OBJECTIVE, Progress, SearchSpace, Study, Tuned, preset_metadata, tune
from fringe.errors import FringeError, TransientError
from fringe.inputs import content_of

#: File of the search in the run folder.
SEARCH = "tune.db"


@dataclass(frozen=True)
class TunedPreset:
    """A tuned setting of a model, with all trials, and the preset file that it was written to."""

    model: str
    tuned: Tuned
    path: Path

    @property
    def start(self) -> float | None:
        """The objective of the setting that the search began with; None if it has no score."""
        return next((trial.value for trial in self.tuned.trials if trial.number == 0 and not trial.problem), None)

    def record(self) -> dict[str, Any]:
        """Return the best setting, its objective and that of the start, as JSON data."""
        tuned = self.tuned
        values = {"objective": tuned.value, "start": self.start, "trials": len(tuned.trials)}
        return {"preset": str(self.path), **values, "settings": tuned.best.record()}

    def describe(self) -> str:
        """Describe the result for people."""
        start = "no score" if self.start is None else f"{self.start:.4f}"
        trials, failed = self.tuned.trials, sum(bool(trial.problem) for trial in self.tuned.trials)
        fate = f", of which {failed} failed" if failed else ""
        text = f"best of {counted(len(trials), 'trial')}{fate}: {self.tuned.value:.4f}"
        return f"{text} (the setting it began with: {start})\npreset: {self.path}; use it with preset='{self.path}'"


def tune_preset(
    plan: Plan,
    root: Path,
    options: RunOptions,
    space: SearchSpace,
    trials: int,
    *,
    progress: Progress | None = None,
) -> TunedPreset:
    """Tune the first method of the plan of :func:`tuning_study`, and write a preset file.

    The scores of every trial are stored, and the trials in ``tune.db``: a search that was killed is resumed by the same
    call, also in several processes at once. ``trials`` counts the given setting, too.

    Raises InputError for several models, a method that is not registered, or a folder that holds another
    search; FringeError if no trial has a score; TransientError if scores are left to a later run; Interrupted on SIGINT
    or SIGTERM.
    """
    require_local("out", root)
    trial_plan = tuning_plan(plan)
    session = open_session(trial_plan, root)
    resolved, model = session.resolved, plan.models[0]
    method, known = base_method(model), resolved.manifest.models[model.label]
    path = root / f"{known['architecture']}.preset.json"
    check_preset(path, method, known["weights"])

    manifest = resolved.manifest
    identity = {  # what the scores depend on beside the setting
        "model": {name: value for name, value in known.items() if name != "spec"},
        "images": [image["digest"] for image in manifest.images],
        "metrics": {name: manifest.metrics[name]["settings"] for name in OBJECTIVE},
        "target": manifest.plan["target"],
        "score": manifest.plan["score"],
    }

    score = partial(_score, trial_plan, session, options)
    tuned = tune(
        method,
        space,
        score,
        Study(root / SEARCH, f"{model.label} {method.name}", plan.seed, identity),
        trials=trials,
        progress=progress,
    )
    images = [content_of(digest) for digest in identity["images"]]
    metadata = preset_metadata(tuned, architecture=known["architecture"], weights=known["weights"], images=images)
    write_preset(path, tuned.best, metadata)
    score(tuned.best)  # the folder's plan is then the best setting's, not the last one's
    return TunedPreset(model.label, tuned, path)


def _score(plan: Plan, session: Session, options: RunOptions, method: Attributor) -> dict[str, Sequence[float]]:
    """The trial's scores by metric, (n,) each. Raises FringeError where an image has none: a mean over others would
    compare settings on different images."""
    model = replace(plan.models[0], methods={TRIAL: method})
    trial = replace(plan, models=(model,))
    result = run_plan(trial, session.store.root, options.model_copy(update={"amend": True}), session=session)
    if result.stopped:
        raise Interrupted(result.stopped)
    if result.left:
        raise TransientError(f"{result.left[0]['images']} images have no score yet ({result.left[0]['reason']})")
    cells = {name: result.results.cells[model.label, TRIAL, name] for name in OBJECTIVE}
    worst = max(cells.values(), key=lambda cell: cell.failed + cell.missing)
    if worst.failed + worst.missing:
        _, reason = next(iter(worst.reasons()), (0, "they are not computed"))
        raise FringeError(f"{worst.failed + worst.missing} of {len(worst.scores)} images have no score ({reason})")
    return {name: [float(score) for score in cell.scores] for name, cell in cells.items()}
