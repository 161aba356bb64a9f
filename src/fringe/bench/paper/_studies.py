"""The studies of the paper: an experiment, or its plan, turned into the plan of each study."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt

from fringe._strings.names import read_list, read_pair, unique
from fringe._strings.progress import shown
from fringe.attribution import Attributor, FRInGe, IntegratedGradients, PaperFRInGe, Variant, preset_names, table
from fringe.bench.experiments import (
    ExperimentSpec,
    Plan,
    PlanModel,
    Resolved,
    RunEstimate,
    RunOptions,
    ScoreArrays,
    Store,
    Task,
    build_plan,
    estimate_tasks,
    pending_tasks,
    resolve,
)
from fringe.bench.paper._tables import METRICS, MODELS
from fringe.bench.tuning import OBJECTIVE, SearchSpace, has_paper_settings, one_at_a_time, paper_space, space_of
from fringe.errors import InputError, require_choice, warn_caller, wrong_value
from fringe.metrics import Metric, get_metric
from fringe.settings import settings_of

#: What :func:`paper_study` plans, and the parts of ``tables`` and ``all``.
PAPER_STUDIES = ("ablation", "cap", "sweep", "tuning", "runtime", "budget", "tables", "all")
STUDIES = ("comparison", "ablation", "cap", "max_sensitivity", "sweep", "runtime")
#: The paper's method, the two ablations of its table, and the three of its figures.
VARIANTS: tuple[Variant, ...] = get_args(Variant)
#: Labels of FRInGe with the Euclidean bound of its steps, and without.
CAPPED, UNCAPPED = "cap", "no_cap"
#: Metrics of the study of the Euclidean cap (appendix "Quantitative Effect of the Euclidean Trust-Region Cap").
DIAGNOSTICS = ("completeness_residual", "endpoint_kl", "tracking_error_mean", "tracking_error_max")
#: Label of Integrated Gradients in the study of equal budgets, whose first setting is the unit of a price.
IG = "ig"
#: Options of scores, which a study with metrics of its own does not use.
SCORING = ("metrics", "limits", "controls")
#: The paper's networks; V1 weights are the only ones that all six have.
SPECS = {name: f"torchvision:{name}@IMAGENET1K_V1" for name in MODELS}
#: Label of ``FRInGe()`` in the studies that have it beside the paper's setting.
DEFAULT = "fringe_default"
WITH_DEFAULT = ("comparison", "max_sensitivity", "runtime")
#: Images of the paper's studies of sensitivity and run time; the sweep and the cap, for which it gives no number, too.
SMALL = 64


Texts = Annotated[tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]


class StudySpec(ExperimentSpec):
    """A study of the paper: an experiment, with what the study itself takes. The fields are the keys of its file."""

    if TYPE_CHECKING:  # the fields are converted from more than their types

        def __init__(self, **values: Any): ...

    studies: Texts = Field((), description="Parts of the studies tables and all. Default: all of them.")
    factor: Texts = Field((), description="Settings of a sweep with their values, tau=1e-3,1e-2. Default: the paper's.")
    budgets: tuple[PositiveFloat, ...] = Field(
        (1, 2, 5, 10), min_length=1, description="Multiples of the unit's price."
    )
    price: Literal["passes", "seconds", "memory"] = Field("passes", description="What a budget counts.")
    choosing: PositiveInt = Field(4, description="Images on which prices are measured, which are not scored.")
    trials: PositiveInt = Field(100, description="Number of settings to score; the given one is the first.")
    search: Texts = Field((), description="Setting to search, and its range; may be repeated. Default: the paper's.")
    smoothing: bool = Field(True, description="Also search gamma_step and gamma_prior.")
    figures: NonNegativeInt = Field(2, description="Images whose paths are drawn.")
    report: bool = Field(True, description="Write the report at the end.")
    probe: float = Field(2.0, ge=0.1, description="Longest time of one map of an estimate.")


@dataclass(frozen=True)
class PaperStudy:
    """A study: its ``plan``, the ``base`` that this was made from, and values of a sweep by setting (None for the
    default ones), with the merged specification."""

    plan: Plan
    base: Plan
    factors: Mapping[str, Sequence[Any]] | None = None
    spec: StudySpec = field(default_factory=lambda: StudySpec())


def paper_study(study: str, spec: ExperimentSpec) -> PaperStudy:
    """Plan a study of the paper.

    Args:
        study: ``"ablation"``, ``"cap"``, ``"sweep"`` or ``"tuning"``, of which each varies the first method of a model;
            ``"runtime"``, whose maps are timed; ``"budget"``, from whose plan :func:`equal_budgets` makes the one that
            is run; ``"tables"`` or ``"all"``, whose plan is the one that
            :func:`study_plans` and :func:`timed_plan` start from.
        spec: What is set here replaces the study's own file, ``fringe/bench/paper/studies/STUDY.toml``. The name of
            one of the paper's networks stands for its weights. A warning names what the study does not use.

    Returns:
        The study with its plan.

    Raises:
        InputError: For an unknown study, and for a specification that does not fit: another first method than fringe
            for an ablation or the cap, several models or scenes for a search, no images for the tables.
    """
    require_choice("study", study, PAPER_STUDIES)
    merged = _complete(study, spec)
    if study in ("tables", "all"):
        names = [name for text in merged.studies for name in read_list(text)]
        for name in names:
            require_choice("studies", name, STUDIES)
        merged = merged.model_copy(update={"studies": tuple(names or STUDIES)})
        plan = _reproduction_plan(merged)
        return PaperStudy(plan, plan, spec=merged)
    base = build_plan(merged)
    if study == "budget":
        return PaperStudy(base, base, budget_factors(base, merged.factor), merged)
    base = base if study == "runtime" else _of_first_method(base, also=("ig",) if study == "cap" else ())
    factors = read_factors(base_method(base.models[0]), merged.factor) if study == "sweep" else None
    makers: dict[str, Callable[[], Plan]] = {
        "ablation": lambda: ablation_plan(base),
        "cap": lambda: cap_plan(base),
        "sweep": lambda: sweep_plan(base, factors),
        "tuning": lambda: tuning_plan(base),
        "runtime": lambda: base,
    }
    return PaperStudy(makers[study](), base, factors, merged)


def _complete(study: str, spec: ExperimentSpec) -> StudySpec:
    """The given fields over those of the study's file. What the study does not use is named in a warning: a file may
    hold it for another study."""
    shipped = StudySpec.from_file(Path(__file__).with_name("studies") / f"{study}.toml")
    given = StudySpec(**{name: getattr(spec, name) for name in spec.model_fields_set})
    if study in ("tables", "all"):
        given = _without(given, ("metrics", "limits"), "the studies have metrics of their own")
    elif study == "runtime":
        given = _without(given, SCORING, "run times have no scores")
    elif shipped.metrics is not None and study != "budget":
        others = set(given.metrics or ()) - set(shipped.metrics)
        given = given.model_copy(update={"set": {label: s for label, s in given.set.items() if label not in others}})
        given = _without(given, SCORING, f"this study is scored by {', '.join(shipped.metrics)} on all images")
    merged = given.over(shipped)
    models = {
        label: SPECS.get(model, model) if isinstance(model, str) else model for label, model in merged.model.items()
    }
    return merged.model_copy(update={"model": models})


def _without(given: StudySpec, unused: Sequence[str], reason: str) -> StudySpec:
    names = [name for name in unused if name in given.model_fields_set and (name != "controls" or given.controls)]
    if names:
        warn_caller(f"{', '.join(names)}: not used; {reason}")
    return given.without(*unused)


def _of_first_method(plan: Plan, also: Sequence[str]) -> Plan:
    """The plan of the first method of each model and of those in ``also``; others are named in a warning."""
    models: list[PlanModel] = []
    for model in plan.models:
        chosen, *rest = model.methods
        unused = [label for label in rest if label not in also]
        if unused:
            warn_caller(f"{', '.join(unused)}: not used; this study is of {chosen}, the first method")
        models.append(_only(model, [label for label in model.methods if label not in unused]))
    return replace(plan, models=tuple(models))


def _reproduction_plan(spec: StudySpec) -> Plan:
    if not spec.data:
        raise InputError("none given", argument="data", hint="name the folder of ImageNet's validation images")
    plan = build_plan(spec)
    for model in plan.models:
        if next(iter(model.methods)) != "fringe" or "ig" not in model.methods:
            raise InputError("the studies need fringe, first, and ig among the methods", argument="methods")
        if model.methods.get(DEFAULT, FRInGe()) != FRInGe():
            message = f"{DEFAULT} is the label of FRInGe() here; give this method another"
            raise InputError(message, argument="methods")
    return plan


def study_plans(base: Plan, studies: Sequence[str] = STUDIES) -> dict[str, Plan]:
    """Build the plans of the studies of a reproduction by name, in the order in which they run; none for ``runtime``,
    which is timed and not stored. Of ``base``, FRInGe is the first method, and its metrics are used where a study has
    one of the same name."""
    comparison = replace(base, name="comparison", metrics=_metrics(base, METRICS.values()), limits={})
    small = replace(comparison, n=min(base.n, SMALL), metrics=base.metrics, controls=False)
    models = tuple(map(_with_default, base.models))
    capped = tuple(m for m in small.models if "cap" in studies and base_fringe(m).delta_euc is not None) or small.models
    makers: dict[str, Callable[[], Plan]] = {
        "comparison": lambda: replace(comparison, models=models),
        "ablation": lambda: replace(ablation_plan(comparison), controls=False),
        "cap": lambda: cap_plan(replace(small, models=capped)),
        "max_sensitivity": lambda: replace(
            small,
            name="max_sensitivity",
            models=tuple(_only(model, ("fringe", "ig", DEFAULT)) for model in models),
            metrics=_metrics(base, ["max_sensitivity"]),
        ),
        "sweep": lambda: sweep_plan(small, None),
    }
    return {name: make() for name, make in makers.items() if name in studies}


def timed_plan(base: Plan, methods: Sequence[str] = ("fringe", "ig")) -> Plan:
    """Build the plan whose run times a reproduction measures, on the paper's number of images.

    ``methods`` are labels of methods of ``base``, or :data:`DEFAULT`.
    """
    models = tuple(_only(_with_default(model), methods) for model in base.models)
    return replace(base, name="runtime", n=min(base.n, SMALL), models=models, controls=False)


def ablation_plan(plan: Plan) -> Plan:
    """The plan with FRInGe's variants as its methods: those that the paper tuned for a network, for a setting that is
    the paper's; else the setting with parts removed."""

    def methods(model: PlanModel) -> dict[str, Attributor]:
        base = base_fringe(model)
        kind = type(base)
        tuned = next((known for known in preset_names() if base == kind.preset(known)), None)
        return {
            name: kind.preset(tuned, name) if tuned and (tuned, name) in table() else base.variant(name)
            for name in VARIANTS
        }

    return _with_methods(plan, "ablation", methods)


def cap_plan(plan: Plan) -> Plan:
    """The plan with FRInGe with and without the Euclidean cap, and IG (the plan's, if it has one), under the path
    diagnostics. Raises InputError for a setting without a cap."""

    def methods(model: PlanModel) -> dict[str, Attributor]:
        base = base_fringe(model)
        if base.delta_euc is None:
            raise InputError(f"methods: the setting of {model.label} has no Euclidean cap to take off; set delta_euc")
        ig = model.methods.get("ig", IntegratedGradients())
        return {CAPPED: base, UNCAPPED: replace(base, delta_euc=None), "ig": ig}

    return _scored_by(_with_methods(plan, "cap", methods), DIAGNOSTICS)


def sweep_plan(plan: Plan, factors: Mapping[str, Sequence[Any]] | None) -> Plan:
    """The plan with one factor at a time varied around each model's first method, under the tuning objective."""
    return _scored_by(_with_methods(plan, "sweep", lambda model: one_at_a_time(base_method(model), factors)), OBJECTIVE)


def tuning_plan(plan: Plan) -> Plan:
    """The plan of one trial: the last images of the seed's order, under the tuning objective. Raises InputError for
    several models, and for scenes, of which every plan has the first examples."""
    if plan.scenes:
        raise InputError("a search needs images that no other plan uses", argument="scene", hint="name none")
    if len(plan.models) != 1:
        raise InputError(f"models: got {len(plan.models)}, expected one: a setting is tuned for one network at a time")
    return replace(_scored_by(plan, OBJECTIVE), name="tune", holdout=True)


def base_method(model: PlanModel) -> Attributor:
    """Return the method that a sweep or a search varies: the first of the model."""
    return next(iter(model.methods.values()))


def base_fringe(model: PlanModel) -> PaperFRInGe:
    """Return the paper's method of a model. Raises InputError if its first method is another."""
    method = base_method(model)
    if not isinstance(method, PaperFRInGe):
        raise InputError(f"methods: the study is of paper or released, got {method.name!r} first for {model.label}")
    return method


def read_factors(method: Attributor, texts: Sequence[str]) -> dict[str, list[Any]] | None:
    """Read ``KEY=VALUE,VALUE,...`` texts as values by setting; None if there are none. Raises InputError."""
    form = "KEY=VALUE,VALUE,..., such as tau=1e-3,1e-2"
    factors: dict[str, list[Any]] = {}
    for key, values in unique((read_pair(text, "factor", form) for text in texts), "factor").items():
        if not values:
            raise wrong_value("factor", f"{key}=", form)
        field = "gamma_step" if key == "gamma" else key
        try:
            factors[key] = [getattr(method.with_text({field: v.strip()}), field) for v in values.split(",")]
        except InputError as error:
            raise InputError(str(error), argument="factor") from error
        if not all(type(value) in (int, float) for value in factors[key]):  # now, and not after all maps are made
            raise wrong_value("factor", f"{key}={values}", "numbers, for a line")
    return factors or None


def budget_factors(plan: Plan, texts: Sequence[str]) -> dict[str, list[str]]:
    """Read ``LABEL.KEY=VALUE,VALUE,...`` texts as texts ``KEY=VALUE`` by label. Raises InputError for a label that is
    no method of the plan, for a value that its method does not take, and if ig has no values."""
    form = "LABEL.KEY=VALUE,VALUE,..., such as ig.steps=32,64"
    pairs = (read_pair(text, "factor", form) for text in texts)
    split = ((label, (key, values)) for name, values in pairs for label, _, key in [name.partition(".")])
    factors: dict[str, list[str]] = {}
    for label, (key, values) in unique(split, "factor", "the values of a method are those of one setting").items():
        factors[label] = [f"{key}={value.strip()}" for value in values.split(",")]
        for model in plan.models:
            require_choice("method", label, tuple(model.methods))
            for text in factors[label]:
                model.methods[label].with_text(dict([read_pair(text, "factor", form)]))
    if IG not in factors:
        message = f"none of {IG}, whose first value sets the unit of a price"
        raise InputError(message, argument="factor", hint="add ig.steps=32,64")
    return factors


def read_search_space(plan: Plan, texts: Sequence[str], *, smoothing: bool = True) -> SearchSpace:
    """Read the settings that a search by the plan of :func:`tuning_study` varies, from ``KEY`` or ``KEY=LOW,HIGH``
    texts; without any, those of the paper for FRInGe, with its two gammas if ``smoothing``, or all of another method.
    Raises InputError for a text of another form, an unknown setting or an empty range."""
    kind = type(base_method(plan.models[0]))
    if not texts:
        return paper_space(kind, smoothing=smoothing) if has_paper_settings(kind) else space_of(kind)
    form = "KEY or KEY=LOW,HIGH"
    given = unique((read_pair(text, "search", form, alone=True) for text in texts), "search")
    ranges: dict[str, tuple[float, float]] = {}
    for key, bounds in given.items():
        require_choice("search", key, settings_of(kind))
        if bounds:
            try:
                low, high = map(float, bounds.split(","))
            except ValueError:
                raise wrong_value("search", f"{key}={bounds}", form) from None
            ranges[key] = (low, high)
    try:
        return space_of(kind, list(given), ranges)
    except InputError as error:
        raise InputError(str(error), argument="search") from error


def _with_methods(plan: Plan, name: str, methods: Callable[[PlanModel], Mapping[str, Attributor]]) -> Plan:
    return replace(plan, name=name, models=tuple(replace(model, methods=methods(model)) for model in plan.models))


def _metrics(plan: Plan, names: Iterable[str]) -> dict[str, Metric]:
    """Metrics as the plan has them, or else by their defaults."""
    return {name: plan.metrics.get(name) or get_metric(name) for name in names}


def _scored_by(plan: Plan, names: Sequence[str]) -> Plan:
    """The plan under these metrics, on all images and without controls."""
    return replace(plan, metrics=_metrics(plan, names), limits={}, controls=False)


def _only(model: PlanModel, methods: Sequence[str]) -> PlanModel:
    return replace(model, methods={name: model.methods[name] for name in methods})


def _with_default(model: PlanModel) -> PlanModel:
    """The model with ``FRInGe()`` as its last method: the first is the one that the studies vary."""
    return replace(model, methods={**model.methods, DEFAULT: FRInGe()})


def estimate_reproduction(
    base: Plan,
    out: Path,
    *,
    studies: Sequence[str] = STUDIES,
    seconds: float = 2.0,
    progress: bool = False,
    **options: Any,
) -> Iterator[RunEstimate]:
    """Estimate what a reproduction of the plan of :func:`reproduction_plan` lacks in a folder, which may not exist yet,
    for each study and model: maps, their passes, and the time one after the other.

    What an earlier study computes is not missing in a later one. ``seconds`` is the longest time of a map of the probe,
    ``progress`` shows a bar, and ``options`` are fields of :class:`RunOptions`.
    """
    store, how = Store.existing(out), RunOptions(**options)
    blocks, before = [] if store is None else store.blocks(), list[Task]()
    for plan in study_plans(base, studies).values():
        resolved = resolve(plan)
        arrays = ScoreArrays(resolved.manifest, blocks)
        for task in before:
            arrays.mark(task)
        tasks = pending_tasks(resolved.manifest, arrays, plan.shard, retry=how.retry)
        before += tasks
        yield from _by_model(resolved, tasks, how, seconds, progress, store)
    if "runtime" in studies:  # each map is made twice, and not scored
        resolved = resolve(timed_plan(base, ("fringe", "ig", DEFAULT)))
        once = [replace(task, metrics=(), metric_keys=()) for task in pending_tasks(resolved.manifest, (), 1)]
        named = {(model.label, name) for model in resolved.plan.models for name in model.methods}
        tasks = [task for task in 2 * once if (task.model, task.method) in named]
        yield from _by_model(resolved, tasks, how, seconds, progress)


def _by_model(
    resolved: Resolved,
    tasks: Sequence[Task],
    how: RunOptions,
    seconds: float,
    progress: bool,
    store: Store | None = None,
) -> Iterator[RunEstimate]:
    for model in resolved.plan.models:
        one = replace(resolved, plan=replace(resolved.plan, models=(model,)))
        of_model = [task for task in tasks if task.model == model.label]
        with shown(progress, f"measuring {model.label}") as report:
            known = estimate_tasks(one, of_model, how, seconds, store, report)
        yield known
