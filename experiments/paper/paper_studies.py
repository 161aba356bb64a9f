"""The studies of the paper as experiments, for one network: which methods, under which metrics, on how many images."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from paper_sweep import one_at_a_time
from paper_tables import METRICS, MODELS

from fringe import FRInGe, InputError
from fringe.attribution import Attributor, IntegratedGradients, PaperFRInGe, Variant, preset_names, table
from fringe.bench.experiments import ExperimentSpec, build_plan
from fringe.bench.tuning import OBJECTIVE
from fringe.metrics import METRICS as KINDS
from fringe.metrics import Metric, get_metric

#: The paper's networks; V1 weights are the only ones that all six have.
SPECS = {name: f"torchvision:{name}@IMAGENET1K_V1" for name in MODELS}
#: The methods of the paper's comparison. ``paper:auto`` is the setting that it tuned for a network.
COMPARED = {
    "fringe": "paper:auto",
    **{name: f"{name}:paper" for name in ("ig", "smoothgrad", "guided_ig", "agi", "ig2", "ggig", "geoig_svi")},
}
#: Labels of the method with the Euclidean bound of its steps, and without.
CAPPED, UNCAPPED = "cap", "no_cap"
#: Label of ``FRInGe()``, which stands beside the paper's method in some studies.
DEFAULT = "fringe_default"
#: Metrics of the study of the Euclidean cap (appendix "Quantitative Effect of the Euclidean Trust-Region Cap").
DIAGNOSTICS = ("completeness_residual", "endpoint_kl", "tracking_error_mean", "tracking_error_max")
#: Images of the paper's studies of sensitivity and run time; the sweep and the cap, for which it gives no number, too.
SMALL = 64
#: The studies that are stored scores, in the order in which they run.
SCORED = ("comparison", "ablation", "cap", "max_sensitivity", "sweep")
#: What a name on the command line stands for.
GROUPS = {
    "tables": ("comparison", "ablation", "cap", "max_sensitivity", "runtime"),
    "all": (*SCORED, "runtime"),
    **{name: (name,) for name in (*SCORED, "runtime", "budget")},
}


def with_defaults(spec: ExperimentSpec) -> ExperimentSpec:
    """The given options, with the paper's networks, methods, metrics and number of images where nothing is said.

    The label or spec ``resnet50`` alone stands for the paper's weights. Raises InputError without images.
    """
    if not spec.data:
        raise InputError("none given", argument="data", hint="name the folder of ImageNet's validation images")
    models = spec.model or SPECS
    given = {name: getattr(spec, name) for name in spec.model_fields_set}
    metrics = {name: f"{name}:paper" for name, kind in KINDS.items() if kind.by_default}
    usual = {"methods": COMPARED, "metrics": metrics, "n": 1000, "limits": {}, "controls": False}
    models = {label: SPECS.get(model, model) if isinstance(model, str) else model for label, model in models.items()}
    return ExperimentSpec(**{**usual, **given, "model": models})


def of_network(spec: ExperimentSpec, label: str) -> tuple[dict[str, Attributor], dict[str, Metric], ExperimentSpec]:
    """The methods and metrics of a network, configured, and the specification of it alone."""
    alone = _changed(spec, model={label: spec.model[label]})
    plan = build_plan(alone)
    return dict(plan.models[0].methods), dict(plan.metrics), alone


def studies(spec: ExperimentSpec, label: str, names: tuple[str, ...]) -> dict[str, ExperimentSpec]:
    """The experiments of a network by study; the first method, ``fringe``, is the one that they vary.

    Raises InputError if that is not the method paper or released, or the study of the cap has no cap to take off.
    """
    methods, metrics, alone = of_network(spec, label)
    base = base_method(methods)
    scored = {name: metrics.get(name) or get_metric(f"{name}:paper") for name in METRICS.values()}
    diagnostics = {name: get_metric(name) for name in DIAGNOSTICS}
    objective = {name: metrics.get(name) or get_metric(f"{name}:paper") for name in OBJECTIVE}
    sensitivity = {"max_sensitivity": metrics.get("max_sensitivity") or get_metric("max_sensitivity")}
    ig = methods.get("ig", IntegratedGradients.preset("paper"))

    def study(name: str, chosen: Mapping[str, Attributor], by: Mapping[str, Metric], small: bool) -> ExperimentSpec:
        n = min(spec.n, SMALL) if small else spec.n
        return _changed(alone, name=name, methods=dict(chosen), metrics=dict(by), set={}, n=n)

    makers = {
        "comparison": lambda: study("comparison", {**methods, DEFAULT: FRInGe()}, scored, False),
        "ablation": lambda: study("ablation", ablation(base), scored, False),
        "cap": lambda: study("cap", {**capped(base), "ig": ig}, diagnostics, True),
        "max_sensitivity": lambda: study(
            "max_sensitivity", {"fringe": base, "ig": ig, DEFAULT: FRInGe()}, sensitivity, True
        ),
        "sweep": lambda: study("sweep", one_at_a_time(base), objective, True),
    }
    return {name: makers[name]() for name in SCORED if name in names}


def base_method(methods: Mapping[str, Attributor]) -> PaperFRInGe:
    """The method that the studies vary."""
    base = methods.get("fringe")
    if not isinstance(base, PaperFRInGe):
        hint = "as in --set methods=fringe=paper:auto,ig=ig:paper"
        raise InputError("the studies need the label fringe, of paper or released", argument="methods", hint=hint)
    return base


def ablation(base: PaperFRInGe) -> dict[str, Attributor]:
    """The paper's variants: with their own numbers where the table has them for this setting, else with parts removed
    from it."""
    kind = type(base)
    tuned = next((known for known in preset_names() if base == kind.preset(known)), None)
    return {
        name: kind.preset(tuned, name) if tuned and (tuned, name) in table() else base.variant(name)
        for name in get_args(Variant)
    }


def capped(base: PaperFRInGe) -> dict[str, Attributor]:
    """The method with the Euclidean cap, and without."""
    if base.delta_euc is None:
        raise InputError("the setting has no Euclidean cap to take off", argument="methods", hint="set delta_euc")
    return {CAPPED: base, UNCAPPED: replace(base, delta_euc=None)}


def overridden(spec: ExperimentSpec, given: ExperimentSpec) -> list[str]:
    """Say what of the paper's own settings the caller replaced, a sentence each."""
    lines = [
        f"{label}.{key} = {value}, by --set or a file."
        for label, texts in spec.set.items()
        for key, value in texts.items()
    ]
    if dict(spec.methods) != COMPARED:
        lines.append(f"Methods: {', '.join(f'{label}={_name(method)}' for label, method in spec.methods.items())}.")
    names = {name for name in given.model_fields_set if name not in ("model", "data", "methods", "set", "name")}
    usual: dict[str, Any] = {"n": 1000, "limits": {}, "controls": False}
    return lines + [
        f"{name} = {getattr(spec, name)}."
        for name in sorted(names)
        if getattr(spec, name) != usual.get(name, ExperimentSpec.model_fields[name].default)
    ]


def _name(method: Any) -> str:
    return method if isinstance(method, str) else method.label


def _changed(spec: ExperimentSpec, **fields: Any) -> ExperimentSpec:
    return ExperimentSpec(**{name: getattr(spec, name) for name in spec.model_fields_set} | fields)
