"""The studies of the paper: an experiment, or its plan, turned into the plan of each study."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast, get_args

from fringe.attribution import Attributor, FRInGe, IntegratedGradients, Variant, preset_names, table
from fringe.errors import InputError, check_known, require_choice
from fringe.experiments import PAPER_METHODS, Arm, ExperimentSpec, Plan, build_plan
from fringe.metrics import Metric, get_metric
from fringe.paper._tables import METRICS, MODELS
from fringe.settings import settings_of
from fringe.tuning import SearchSpace, one_at_a_time, paper_space, space_of

STUDIES = ("comparison", "ablation", "cap", "max_sensitivity", "sweep", "runtime")
#: Full FRInGe, the two ablations of the paper's table, and the three of its figures.
VARIANTS: tuple[Variant, ...] = get_args(Variant)
#: Labels of FRInGe with the Euclidean bound of its steps, and without.
CAPPED, UNCAPPED = "cap", "no_cap"
#: Metrics of the study of the Euclidean cap (appendix "Quantitative Effect of the Euclidean Trust-Region Cap").
DIAGNOSTICS = ("completeness_residual", "endpoint_kl", "tracking_error_mean", "tracking_error_max")
#: Metrics of the paper's tuning objective.
OBJECTIVE = ("insertion", "deletion", "infidelity")
#: The paper's networks; V1 weights are the only ones that all six have.
SPECS = {name: f"torchvision:{name}@IMAGENET1K_V1" for name in MODELS}
#: Label of ``FRInGe()`` in the studies that have it beside the paper's setting.
DEFAULT = "fringe_default"
WITH_DEFAULT = ("comparison", "max_sensitivity", "runtime")
#: Images of the paper's studies of sensitivity and run time; the sweep and the cap, for which it gives no number, too.
SMALL = 64


@dataclass(frozen=True)
class PaperStudy:
    """A study that is run and drawn: the plan that bears its name, the ``base`` that this was made from, and values of
    a sweep by setting; None for the default ones."""

    plan: Plan
    base: Plan
    factors: Mapping[str, Sequence[Any]] | None = None


def ablation_study(spec: ExperimentSpec) -> PaperStudy:
    """Plan the scores and paths of FRInGe with parts removed, by default on 100 images.

    The first method of each model is varied, by default fringe; InputError is raised if it is another. A model whose
    setting is one of the paper's has the variants that the paper tuned for it.
    """
    base = _plan_of(spec, "ablation")
    return PaperStudy(ablation_plan(base), base)


def cap_study(spec: ExperimentSpec) -> PaperStudy:
    """Plan the path diagnostics of FRInGe with and without its Euclidean cap, and of IG, by default on 100 images.

    The first method of each model is varied, by default fringe. Raises InputError if it is another, or has no cap.
    """
    base = _plan_of(spec, "cap", metrics=DIAGNOSTICS, also=("ig",))
    return PaperStudy(cap_plan(base), base)


def sweep_study(spec: ExperimentSpec, factors: Sequence[str] = ()) -> PaperStudy:
    """Plan the tuning objective along one setting of each model's first method, by default fringe, at a time; by
    default on 100 images.

    ``factors`` are ``KEY=VALUE,VALUE,...`` texts, such as ``tau=1e-3,1e-2``; without any, the paper's five settings for
    FRInGe, all with a range for another method. Raises InputError for a text of another form, an unknown setting or a
    value that it does not take.
    """
    base = _plan_of(spec, "sweep", metrics=OBJECTIVE)
    values = read_factors(base_method(base.arms[0]), factors)
    return PaperStudy(sweep_plan(base, values), base, values)


def tuning_study(spec: ExperimentSpec) -> Plan:
    """Build the plan of each trial of a search of the first method, by default of fringe on 256 images.

    No other plan of the same seed uses its images. Raises InputError if there are several models, or scenes.
    """
    return tuning_plan(_plan_of(spec, "tune", n=256, metrics=OBJECTIVE))


def runtime_study(spec: ExperimentSpec) -> Plan:
    """Build the plan whose maps are timed, by default with fringe and ig on 16 images.

    A warning names the options of scores, which are not used.
    """
    spec = _without_scoring(spec, "run times have no scores")
    return build_plan(spec.with_defaults(name="runtime", methods="fringe,ig", n=16, controls=False))


def reproduction_plan(spec: ExperimentSpec) -> Plan:
    """Build the plan that all studies of the paper are made from, by :func:`study_plans` and :func:`timed_plan`: by
    default of the paper's six networks, its eight methods and 1000 images. Raises InputError if no images are named, or
    fringe (first) and ig are not among the methods."""
    spec = _without_scoring(spec, "the studies have metrics of their own", controls=False)
    if not spec.data:
        raise InputError("none given", argument="data", hint="name the folder of ImageNet's validation images")
    plan = build_plan(spec.with_defaults(name="comparison", methods=PAPER_METHODS, model=SPECS, n=1000, limits={}))
    for arm in plan.arms:
        if next(iter(arm.methods)) != "fringe" or "ig" not in arm.methods:
            raise InputError("the studies need fringe, first, and ig among the methods", argument="methods")
        if arm.methods.get(DEFAULT, FRInGe()) != FRInGe():
            message = f"{DEFAULT} is the label of FRInGe() here; give this method another"
            raise InputError(message, argument="methods")
    return plan


def study_plans(base: Plan, studies: Sequence[str] = STUDIES) -> dict[str, Plan]:
    """Build the plans of the studies of a reproduction by name, in the order in which they run; none for ``runtime``,
    which is timed and not stored. Of ``base``, FRInGe is the first method, and its metrics are used where a study has
    one of the same name."""
    comparison = replace(base, name="comparison", metrics=_metrics(base, METRICS.values()), limits={})
    small = replace(comparison, n=min(base.n, SMALL), metrics=base.metrics, controls=False)
    arms = tuple(map(_with_default, base.arms))
    makers: dict[str, Callable[[], Plan]] = {
        "comparison": lambda: replace(comparison, arms=arms),
        "ablation": lambda: replace(ablation_plan(comparison), controls=False),
        "cap": lambda: cap_plan(_with_cap(small)),
        "max_sensitivity": lambda: replace(
            small,
            name="max_sensitivity",
            arms=tuple(_only(arm, ("fringe", "ig", DEFAULT)) for arm in arms),
            metrics=_metrics(base, ["max_sensitivity"]),
        ),
        "sweep": lambda: sweep_plan(small, None),
    }
    return {name: make() for name, make in makers.items() if name in studies}


def timed_plan(base: Plan, methods: Sequence[str] = ("fringe", "ig")) -> Plan:
    """Build the plan whose run times a reproduction measures, on the paper's number of images.

    ``methods`` are labels of methods of ``base``, or :data:`DEFAULT`.
    """
    arms = tuple(_only(_with_default(arm), methods) for arm in base.arms)
    return replace(base, name="runtime", n=min(base.n, SMALL), arms=arms, controls=False)


def ablation_plan(plan: Plan) -> Plan:
    """The plan with FRInGe's variants as its methods: those that the paper tuned for a network, for a setting that is
    the paper's; else the setting with parts removed."""
    return _with_methods(plan, "ablation", lambda arm: {name: _variant(base_fringe(arm), name) for name in VARIANTS})


def cap_plan(plan: Plan) -> Plan:
    """The plan with FRInGe with and without the Euclidean cap, and IG (the plan's, if it has one), under the path
    diagnostics. Raises InputError for a setting without a cap."""

    def methods(arm: Arm) -> dict[str, Attributor]:
        base = base_fringe(arm)
        if base.delta_euc is None:
            raise InputError(f"methods: the setting of {arm.label} has no Euclidean cap to take off; set delta_euc")
        ig = arm.methods.get("ig", IntegratedGradients())
        return {CAPPED: base, UNCAPPED: replace(base, delta_euc=None), "ig": ig}

    return _scored_by(_with_methods(plan, "cap", methods), DIAGNOSTICS)


def sweep_plan(plan: Plan, factors: Mapping[str, Sequence[Any]] | None) -> Plan:
    """The plan with one factor at a time varied around each model's first method, under the tuning objective."""
    return _scored_by(_with_methods(plan, "sweep", lambda arm: one_at_a_time(base_method(arm), factors)), OBJECTIVE)


def tuning_plan(plan: Plan) -> Plan:
    """The plan of one trial: the last images of the seed's order, under the tuning objective. Raises InputError for
    several models, and for scenes, of which every plan has the first examples."""
    if plan.scenes:
        raise InputError("a search needs images that no other plan uses", argument="scene", hint="name none")
    if len(plan.arms) != 1:
        raise InputError(f"models: got {len(plan.arms)}, expected one: a setting is tuned for one network at a time")
    return replace(_scored_by(plan, OBJECTIVE), name="tune", holdout=True)


def base_method(arm: Arm) -> Attributor:
    """Return the method that a sweep or a search varies: the first of the model."""
    return next(iter(arm.methods.values()))


def base_fringe(arm: Arm) -> FRInGe:
    """Return the FRInGe setting of a model. Raises InputError if its first method is another."""
    method = base_method(arm)
    if not isinstance(method, FRInGe):
        raise InputError(f"methods: the study is of fringe, got {method.name!r} first for {arm.label}")
    return method


def paper_models(names: Sequence[str]) -> dict[str, str]:
    """Return the specs of some of the paper's networks by name. Raises InputError for an unknown name."""
    return {name: SPECS[name] for name in _known("models", names, MODELS)}


def check_studies(names: Sequence[str]) -> list[str]:
    """Return the given names of studies, or all if none is given. Raises InputError for an unknown name."""
    return _known("studies", names or STUDIES, STUDIES)


def read_factors(method: Attributor, texts: Sequence[str]) -> dict[str, list[Any]] | None:
    """Read ``KEY=VALUE,VALUE,...`` texts as values by setting; None if there are none. Raises InputError."""
    factors: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not values:
            message = f"got {text!r}, expected KEY=VALUE,VALUE,..., such as tau=1e-3,1e-2"
            raise InputError(message, argument="factor")
        if key in factors:
            raise InputError(f"{key} is given twice", argument="factor")
        field = "gamma_step" if key == "gamma" else key
        try:
            factors[key] = [getattr(method.with_text({field: v.strip()}), field) for v in values.split(",")]
        except InputError as error:
            raise InputError(str(error), argument="factor") from error
        if not all(type(value) in (int, float) for value in factors[key]):  # now, and not after all maps are made
            raise InputError(f"got {text!r}, expected numbers, for a line", argument="factor")
    return factors or None


def read_search_space(plan: Plan, texts: Sequence[str], *, smoothing: bool = True) -> SearchSpace:
    """Read the settings that a search by the plan of :func:`tuning_study` varies, from ``KEY`` or ``KEY=LOW,HIGH``
    texts; without any, those of the paper for FRInGe, with its two gammas if ``smoothing``, or all of another method.
    Raises InputError for a text of another form, an unknown setting or an empty range."""
    kind = type(base_method(plan.arms[0]))
    if not texts:
        return paper_space(smoothing=smoothing) if issubclass(kind, FRInGe) else space_of(kind)
    names: list[str] = []
    ranges: dict[str, tuple[float, float]] = {}
    for text in texts:
        key, equals, bounds = (part.strip() for part in text.partition("="))
        check_known("search", key, settings_of(kind))
        if key in names:
            raise InputError(f"{key} is given twice", argument="search")
        names.append(key)
        if equals:
            try:
                low, high = (float(bound) for bound in bounds.split(","))
            except ValueError:
                raise InputError(f"got {text!r}, expected KEY or KEY=LOW,HIGH", argument="search") from None
            ranges[key] = (low, high)
    try:
        return space_of(kind, names, ranges)
    except InputError as error:
        raise InputError(str(error), argument="search") from error


def _plan_of(
    spec: ExperimentSpec, name: str, *, n: int = 100, metrics: Sequence[str] = (), also: Sequence[str] = ()
) -> Plan:
    """The plan of a study of one method, by default fringe, and of those in ``also``. What the study does not use is
    named in a warning: a file may hold it for another study."""
    defaults: dict[str, Any] = {"name": name, "methods": "fringe", "n": n}
    if metrics:
        defaults |= {"metrics": list(metrics), "limits": {}}
        others = set(spec.metrics or ()) - set(metrics)
        spec = spec.model_copy(update={"set": {label: s for label, s in spec.set.items() if label not in others}})
        spec = _without_scoring(spec, f"this study is scored by {', '.join(metrics)} on all images")
    plan = build_plan(spec.with_defaults(**defaults))
    arms: list[Arm] = []
    for arm in plan.arms:
        chosen, *rest = arm.methods
        unused = [label for label in rest if label not in also]
        if unused:
            warnings.warn(f"{', '.join(unused)}: not used; this study is of {chosen}, the first method", stacklevel=3)
        arms.append(_only(arm, [label for label in arm.methods if label not in unused]))
    return replace(plan, arms=tuple(arms))


def _without_scoring(spec: ExperimentSpec, reason: str, *, controls: bool = True) -> ExperimentSpec:
    """The experiment without its options of scores; those that were given are named in a warning."""
    fields = ("metrics", "limits", *(("controls",) if controls and spec.controls else ()))
    given = [name for name in fields if name in spec.model_fields_set]
    if given:
        warnings.warn(f"{', '.join(given)}: not used; {reason}", stacklevel=4)
    return spec.without(*fields)


def _known(argument: str, names: Sequence[str], known: Sequence[str]) -> list[str]:
    for name in names:
        require_choice(argument, name, known)
    return list(names)


def _variant(base: FRInGe, name: Variant) -> FRInGe:
    for model in preset_names():
        if base == FRInGe.preset(model) and (model, name) in table():
            return FRInGe.preset(model, cast(Any, name))
    return base.variant(name)


def _with_methods(plan: Plan, name: str, methods: Callable[[Arm], Mapping[str, Attributor]]) -> Plan:
    return replace(plan, name=name, arms=tuple(replace(arm, methods=methods(arm)) for arm in plan.arms))


def _metrics(plan: Plan, names: Iterable[str]) -> dict[str, Metric]:
    """Metrics as the plan has them, or else by their defaults."""
    return {name: plan.metrics.get(name) or get_metric(name) for name in names}


def _scored_by(plan: Plan, names: Sequence[str]) -> Plan:
    """The plan under these metrics, on all images and without controls."""
    return replace(plan, metrics=_metrics(plan, names), limits={}, controls=False)


def _only(arm: Arm, methods: Sequence[str]) -> Arm:
    return replace(arm, methods={name: arm.methods[name] for name in methods})


def _with_default(arm: Arm) -> Arm:
    """The arm with ``FRInGe()`` as its last method: the first is the one that the studies vary."""
    return replace(arm, methods={**arm.methods, DEFAULT: FRInGe()})


def _with_cap(plan: Plan) -> Plan:
    """The plan with the models whose setting has a cap, or with all if none has."""
    return replace(plan, arms=tuple(arm for arm in plan.arms if base_fringe(arm).delta_euc is not None) or plan.arms)
