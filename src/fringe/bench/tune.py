"""``fringe tune``: a search for a model's setting on images that no evaluation uses."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field, PositiveInt

import fringe
from fringe._files.disk import require_local
from fringe._strings.names import read_pair, unique
from fringe.attribution import Attributor, PresetMetadata, check_preset, write_preset
from fringe.bench.experiments import (
    TRIAL,
    ExperimentSpec,
    Interrupted,
    Plan,
    PlanModel,
    RunOptions,
    RunResult,
    SerialExecutor,
    build_plan,
    open_run,
    run_plan,
)
from fringe.bench.tuning import (
    OBJECTIVE,
    Progress,
    SearchSpace,
    Tuned,
    has_paper_settings,
    paper_space,
    space_of,
    tune,
)
from fringe.errors import FringeError, InputError, TransientError, require_choice, warn_caller, wrong_value
from fringe.inputs import content_of
from fringe.metrics import get_metric
from fringe.settings import settings_of

Texts = Annotated[tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]


class TuneSpec(ExperimentSpec):
    """A search for the setting of the first method with the largest objective of the paper: an experiment, with what
    the search itself takes."""

    if TYPE_CHECKING:  # the fields are converted from more than their types

        def __init__(self, **values: Any): ...

    trials: PositiveInt = Field(100, description="Number of settings to score; the given one is the first.")
    search: Texts = Field((), description="Setting to search, and its range; may be repeated. Default: the paper's.")
    smoothing: bool = Field(True, description="Also search gamma_step and gamma_prior.")


def search_plan(spec: TuneSpec) -> Plan:
    """Plan a search: fringe on 256 images, unless the specification says otherwise.

    Raises InputError for several models or scenes; a warning names what a search does not use.
    """
    unused = {"metrics": f"a search is scored by {', '.join(OBJECTIVE)}", "limits": "all images are scored"}
    for name in unused.keys() & spec.model_fields_set:
        warn_caller(f"{name}: not used; {unused[name]}")
    given = {name: getattr(spec, name) for name in spec.model_fields_set if name in ExperimentSpec.model_fields}
    of_others = set(spec.metrics or ()) - set(OBJECTIVE)
    given["set"] = {label: texts for label, texts in spec.set.items() if label not in of_others}
    others = {"metrics": OBJECTIVE, "limits": {}, "controls": False}
    plan = build_plan(ExperimentSpec(**{"methods": "fringe", "n": 256, **given, "name": "tune", **others}))
    for model in plan.models:
        chosen, *rest = model.methods
        if rest:
            warn_caller(f"{', '.join(rest)}: not used; the search is of {chosen}, the first method")
    models = tuple(replace(model, methods=dict(list(model.methods.items())[:1])) for model in plan.models)
    return tuning_plan(replace(plan, models=models))


def tuning_plan(plan: Plan) -> Plan:
    """The plan of one trial: the last images of the seed's order, under the tuning objective. Raises InputError for
    several models, and for scenes, of which every plan has the first examples."""
    if plan.scenes:
        raise InputError("a search needs images that no other plan uses", argument="scene", hint="name none")
    if len(plan.models) != 1:
        raise InputError(f"models: got {len(plan.models)}, expected one: a setting is tuned for one network at a time")
    metrics = {name: plan.metrics.get(name) or get_metric(name) for name in OBJECTIVE}
    return replace(plan, name="tune", metrics=metrics, limits={}, controls=False, holdout=True)


def base_method(model: PlanModel) -> Attributor:
    """Return the method that a search varies: the first of the model."""
    return next(iter(model.methods.values()))


def read_search_space(plan: Plan, texts: Sequence[str], *, smoothing: bool = True) -> SearchSpace:
    """Read the settings that a search varies, from ``KEY`` or ``KEY=LOW,HIGH`` texts; without any, those of the paper
    for FRInGe, with its two gammas if ``smoothing``, or all of another method. Raises InputError for a text of another
    form, an unknown setting or an empty range."""
    kind = type(base_method(plan.models[0]))
    if not texts:
        return paper_space(kind, smoothing=smoothing) if has_paper_settings(kind) else space_of(kind)
    form = "KEY or KEY=LOW,HIGH with two numbers"
    given = unique((read_pair(text, "search", form, alone=True) for text in texts), "search")
    ranges: dict[str, tuple[float, float] | None] = dict.fromkeys(given)
    for key, bounds in given.items():
        require_choice("search", key, settings_of(kind))
        if bounds:
            try:
                low, high = map(float, bounds.split(","))
            except ValueError:
                raise wrong_value("search", f"{key}={bounds}", form) from None
            ranges[key] = (low, high)
    try:
        return space_of(kind, ranges)
    except InputError as error:
        raise InputError(str(error), argument="search") from error


def tune_preset(
    plan: Plan,
    root: Path,
    options: RunOptions,
    space: SearchSpace,
    trials: int,
    *,
    progress: Progress | None = None,
) -> Tuned:
    """Tune the first method of the plan of :func:`search_plan`, and write a preset file.

    The folder stores the scores of every trial, and the settings of a trial follow from the scores before: a search
    that was killed is resumed by the same call, and several processes share the tasks of a trial. ``trials`` counts the
    given setting, too.

    Raises InputError for several models, a method that is not registered, or a folder with the preset of another
    method; FringeError if no trial has a score; TransientError if scores are left to a later run; Interrupted on SIGINT
    or SIGTERM.
    """
    require_local("out", root)
    trial_plan = tuning_plan(plan)
    opened = open_run(trial_plan, root)
    resolved, model = opened.resolved, plan.models[0]
    if options.executor is None or isinstance(options.executor, SerialExecutor):  # model and images stay in memory
        options = options.model_copy(update={"executor": SerialExecutor(keep=True)})
    method, known = base_method(model), resolved.manifest.models[model.label]
    path = root / f"{known['architecture']}.preset.json"
    check_preset(path, method, known["weights"], plan.seed)

    score = partial(_score, trial_plan, opened, options)
    tuned = tune(method, space, score, seed=plan.seed, trials=trials, progress=progress)
    images = [content_of(image["digest"]) for image in resolved.manifest.images]
    metadata: PresetMetadata = {
        "architecture": known["architecture"],
        "weights": known["weights"],
        "objective": tuned.value,
        "images": images,
        "trials": trials,
        "seed": plan.seed,
        "version": fringe.__version__,
    }
    write_preset(path, tuned.best, metadata)
    score(tuned.best)  # the folder's plan is then the best setting's, not the last one's
    return replace(tuned, path=path)


def _score(plan: Plan, opened: RunResult, options: RunOptions, method: Attributor) -> dict[str, Sequence[float]]:
    """The trial's scores by metric, (n,) each. Raises FringeError where an image has none: a mean over others would
    compare settings on different images."""
    model = replace(plan.models[0], methods={TRIAL: method})
    trial = replace(plan, models=(model,))
    result = run_plan(trial, opened.store.root, options.model_copy(update={"amend": True}), opened=opened)
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
