"""Which settings a study is of: the paper's where it tuned them, else the plan's own with parts taken out."""

from dataclasses import replace
from pathlib import Path

import pytest

import fringe.bench.paper
from fringe import FRInGe, InputError, IntegratedGradients, SmoothGrad
from fringe.bench.experiments import ExperimentSpec, ModelSource, Plan, PlanModel
from fringe.bench.experiments._spec import QUICK_METHODS
from fringe.bench.paper import PAPER_STUDIES, StudySpec, paper_study
from fringe.bench.paper._studies import (
    CAPPED,
    DIAGNOSTICS,
    OBJECTIVE,
    SPECS,
    STUDIES,
    UNCAPPED,
    VARIANTS,
    _complete,
    ablation_plan,
    base_fringe,
    cap_plan,
    sweep_plan,
)
from fringe.metrics import Infidelity, Insertion, Sparseness


def plan(*models, **changes):
    found = [PlanModel(label, ModelSource("embedded:digits"), methods) for label, methods in models]
    known = {"metrics": {"sparseness": Sparseness()}, "limits": {"sparseness": 1}, **changes}
    return Plan("benchmark", ("embedded:digits",), tuple(found), n=3, **known)


def methods(found, place=0):
    return dict(found.models[place].methods)


def test_the_paper_tuned_three_variants_of_a_network_and_the_rest_are_its_setting_reduced():
    base = FRInGe.preset("resnet18")
    found = methods(ablation_plan(plan(("net", {"fringe": base, "ig": IntegratedGradients()}))))
    assert [*found] == [*VARIANTS]
    assert VARIANTS[0] == "fringe"
    for name in ("fringe", "fisher_rao_unregularized", "euclidean"):
        assert found[name] == FRInGe.preset("resnet18", name)
    assert found["fisher_rao_unregularized"].eta_max == 1.98215  # its table's; the full setting has 13.6
    assert found["gamma_step_only"] == replace(base, gamma_prior=0.0)
    assert found["gamma_prior_only"] == replace(base, gamma_step=0.0)
    assert found["non_geometric"] == replace(base, gamma_step=0.0, solve="gradient")


def test_any_other_setting_is_reduced_itself():
    base = replace(FRInGe.preset("resnet18"), tau=0.004)
    found = methods(ablation_plan(plan(("resnet18", {"own": base}))))
    assert found == {
        "fringe": base,
        "fisher_rao_unregularized": replace(base, gamma_step=0.0, gamma_prior=0.0),
        "euclidean": replace(base, gamma_step=0.0, gamma_prior=0.0, solve="gradient", kl_bound=False, delta_euc=None),
        "gamma_step_only": replace(base, gamma_prior=0.0),
        "gamma_prior_only": replace(base, gamma_step=0.0),
        "non_geometric": replace(base, gamma_step=0.0, solve="gradient"),
        "diffusion": replace(base, gamma_prior=1e3, solve="diffusion"),
    }


def test_each_model_has_the_variants_of_its_own_setting():
    found = ablation_plan(plan(("a", {"fringe": FRInGe.preset("vgg19")}), ("b", {"fringe": FRInGe(steps=2)})))
    assert methods(found)["euclidean"] == FRInGe.preset("vgg19", "euclidean")
    assert methods(found, 1)["euclidean"] == FRInGe(steps=2).variant("euclidean")


def test_an_ablation_keeps_what_it_is_scored_by():
    before = plan(("a", {"fringe": FRInGe()}))
    found = ablation_plan(before)
    assert found == replace(before, name="ablation", models=found.models)
    assert found.limit("sparseness") == 1


def test_the_cap_is_taken_off_and_nothing_else():
    base = FRInGe.preset("resnet50")
    found = cap_plan(plan(("a", {"fringe": base, "smoothgrad": SmoothGrad()})))
    assert methods(found) == {CAPPED: base, UNCAPPED: replace(base, delta_euc=None), "ig": IntegratedGradients()}
    assert base.delta_euc == 5.00773
    assert tuple(found.metrics) == DIAGNOSTICS
    assert (found.name, found.limits, found.controls, found.n) == ("cap", {}, False, 3)
    own = cap_plan(plan(("a", {"fringe": FRInGe(), "ig": IntegratedGradients(steps=9)})))
    assert methods(own)["ig"] == IntegratedGradients(steps=9)
    with pytest.raises(InputError, match="the setting of a has no Euclidean cap to take off; set delta_euc"):
        cap_plan(plan(("a", {"fringe": FRInGe(delta_euc=None)})))


def test_a_sweep_varies_one_setting_of_the_first_method_under_the_plans_own_metrics():
    base, metrics = FRInGe(tau=0.004), {"insertion": Insertion(steps=5), "sparseness": Sparseness()}
    before = plan(("a", {"mine": base, "ig": IntegratedGradients()}), metrics=metrics)
    found = sweep_plan(before, {"tau": [0.002, 0.004], "gamma": [1e-3], "steps": [2]})
    assert methods(found) == {
        "centre": base,
        "tau=0.002": replace(base, tau=0.002),
        "gamma=0.001": replace(base, gamma_step=1e-3, gamma_prior=1e-3),
        "steps=2": replace(base, steps=2),
    }
    assert tuple(found.metrics) == OBJECTIVE == ("insertion", "deletion", "infidelity")
    assert (found.metrics["insertion"], found.metrics["infidelity"]) == (Insertion(steps=5), Infidelity())
    assert (found.name, found.limits, found.controls) == ("sweep", {}, False)


def test_without_factors_a_sweep_is_the_papers():
    found = methods(sweep_plan(plan(("a", {"fringe": FRInGe()})), None))
    factors = [label.partition("=")[0] for label in found]
    assert list(dict.fromkeys(factors)) == ["centre", "tau", "eta_max", "delta_euc", "damping", "gamma"]
    assert len(found) == 36  # five factors of seven values; none of these is the default's
    assert found["tau=0.05"].tau == 0.05


def test_a_study_of_fringe_refuses_another_method():
    other = plan(("a", {"ig": IntegratedGradients(), "fringe": FRInGe()}))
    for study in (ablation_plan, cap_plan):
        with pytest.raises(InputError, match="the study is of fringe, got 'ig' first for a"):
            study(other)
    assert base_fringe(plan(("a", {"x": FRInGe(steps=4)})).models[0]) == FRInGe(steps=4)


def test_each_study_has_a_file_that_python_and_the_command_line_read():
    files = Path(fringe.bench.paper.__file__).with_name("studies").glob("*.toml")
    assert {path.stem for path in files} == {*PAPER_STUDIES}
    known = {
        name: paper_study(name, ExperimentSpec(data="embedded:digits", model="embedded:digits"))
        for name in PAPER_STUDIES
    }
    assert {name: study.plan.name for name, study in known.items()} == {
        **{name: name for name in ("ablation", "cap", "sweep", "runtime", "budget")},
        **{"tuning": "tune", "tables": "comparison", "all": "comparison"},
    }
    assert [known[name].plan.n for name in PAPER_STUDIES] == [100, 100, 100, 256, 16, 64, 1000, 1000]
    assert {name: tuple(known[name].plan.metrics) for name in ("cap", "sweep", "tuning")} == {
        "cap": DIAGNOSTICS,
        "sweep": OBJECTIVE,
        "tuning": OBJECTIVE,
    }
    assert known["all"].spec.studies == STUDIES
    assert known["tables"].spec.studies == tuple(name for name in STUDIES if name != "sweep")
    assert (known["tuning"].spec.trials, known["sweep"].spec.report) == (100, False)


def test_the_tables_are_of_the_papers_networks_and_methods_at_its_settings():
    spec = _complete("tables", ExperimentSpec(data="x", model=["vgg19", "own=embedded:digits"]))
    assert spec.model == {"vgg19": SPECS["vgg19"], "own": "embedded:digits"}
    spec = _complete("tables", ExperimentSpec(data="x"))
    assert spec.model == SPECS
    assert spec.methods == {n: "fringe:auto" if n == "fringe" else f"{n}:paper" for n in QUICK_METHODS}


def test_what_is_given_replaces_the_file_and_what_is_of_no_use_is_named():
    spec = StudySpec(n=3, model="embedded:digits", metrics="sparseness", set={"sparseness.x": 1, "insertion.steps": 3})
    with pytest.warns(
        UserWarning, match=r"^metrics: not used; this study is scored by insertion, deletion, infidelity"
    ):
        found = paper_study("sweep", spec)
    assert (found.plan.n, found.plan.metrics["insertion"]) == (3, Insertion(steps=3))
