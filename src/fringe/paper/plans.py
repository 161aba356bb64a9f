"""A plan of methods turned into the plan of a study."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast, get_args

from fringe.attribution import Attributor, FRInGe, IntegratedGradients, Variant, preset_names, table
from fringe.errors import InputError
from fringe.experiments import Arm, Plan
from fringe.metrics import Metric, get_metric
from fringe.tuning import one_at_a_time

VARIANTS: tuple[Variant, ...] = get_args(Variant)
"""Full FRInGe first, then the paper's two ablations of its table, then the three of its figures."""

CAP = "cap"
NO_CAP = "no_cap"
"""FRInGe with the Euclidean bound of its steps, and without."""

DIAGNOSTICS = ("completeness_residual", "endpoint_kl", "tracking_error_mean", "tracking_error_max")
"""What the paper's study of the Euclidean cap reports (appendix "Quantitative Effect of the Euclidean Trust-Region
Cap")."""

OBJECTIVE = ("insertion", "deletion", "infidelity")
"""What the paper's tuning objective is made of."""


def ablation(plan: Plan) -> Plan:
    """FRInGe with parts taken out, in place of the plan's methods. A model whose setting is the paper's gets the
    variants that the paper tuned for it (its hyper-parameter table); any other its own setting, reduced."""
    return _with_methods(plan, "ablation", lambda arm: {name: _variant(centre(arm), name) for name in VARIANTS})


def cap_study(plan: Plan) -> Plan:
    """FRInGe with and without the Euclidean cap, and IG (the plan's own, if it has one), under the path diagnostics.
    Raises InputError for a setting without a cap."""

    def methods(arm: Arm) -> dict[str, Attributor]:
        base = centre(arm)
        if base.delta_euc is None:
            raise InputError(f"methods: the setting of {arm.label} has no Euclidean cap to take off; set delta_euc")
        return {CAP: base, NO_CAP: replace(base, delta_euc=None), "ig": arm.methods.get("ig", IntegratedGradients())}

    return _scored_by(_with_methods(plan, "cap", methods), DIAGNOSTICS)


def sweep_plan(plan: Plan, factors: Mapping[str, Sequence[Any]] | None) -> Plan:
    """One factor at a time around each model's first method, under the metrics of the tuning objective."""
    return _scored_by(_with_methods(plan, "sweep", lambda arm: one_at_a_time(first(arm), factors)), OBJECTIVE)


def first(arm: Arm) -> Attributor:
    """The method that a sweep or a search varies."""
    return next(iter(arm.methods.values()))


def centre(arm: Arm) -> FRInGe:
    """The FRInGe setting of a model. Raises InputError where its first method is another."""
    method = first(arm)
    if not isinstance(method, FRInGe):
        raise InputError(f"methods: the study is of fringe, got {method.name!r} first for {arm.label}")
    return method


def _variant(base: FRInGe, name: Variant) -> FRInGe:
    for model in preset_names():
        if base == FRInGe.preset(model) and (model, name) in table():
            return FRInGe.preset(model, cast(Any, name))
    return base.variant(name)


def _with_methods(plan: Plan, name: str, methods: Callable[[Arm], Mapping[str, Attributor]]) -> Plan:
    arms = tuple(replace(arm, methods=methods(arm)) for arm in plan.arms)
    return replace(plan, name=name, arms=arms)


def _scored_by(plan: Plan, names: Sequence[str]) -> Plan:
    """The plan under these metrics, as it has them or else by their defaults, on all images and without controls."""
    metrics: dict[str, Metric] = {name: plan.metrics.get(name) or get_metric(name) for name in names}
    return replace(plan, metrics=metrics, limits={}, controls=False)
