"""Cards: what is measured, which theorems are tried, and what is said where a method fails."""

import math
import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch

from fringe import FRInGe, InputError, IntegratedGradients
from fringe.attribution import Diffusion
from fringe.bench.cards import Card, Measurement, _measure, failures, summarise_card, verdict, verify
from fringe.errors import TransientError
from fringe.evaluation import Evaluator
from fringe.metrics import METRICS
from fringe.testing import CheckResult


def redness(model, inputs, target):
    """Red pixels: what the colour counter counts."""
    red = inputs[:, :1] - inputs[:, 1:].amax(1, keepdim=True) if inputs.shape[1] == 3 else inputs[:, :1]
    return (red > 0.5).to(inputs).expand_as(inputs)


@pytest.fixture(scope="module", autouse=True)
def few_metrics():
    """One or two metrics of each part; cards with all of them are in the contract suite."""
    few = {"Interventions": (("saco", "insertion"), False), "Sanity": (("random_logit",), True)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_measure, "PARTS", {**_measure.PARTS, **few})
        yield


@pytest.fixture(scope="module")
def ig(few_metrics) -> Card:
    calls = []
    card = verify(
        "ig",
        n=3,
        scenes=("colour_counter", "difull"),
        progress=lambda name, done, total: calls.append((name, done, total)),
    )
    names = ["checks", "Colour counter", "DiFull", "Interventions", "Sanity", "Noise sensitivity", "Completeness"]
    assert calls == [(name, number, 7) for number, name in enumerate(names)]
    return card


def of(card: Card, metric: str, subject: str | None = None) -> Measurement:
    (one,) = (m for m in card.measurements if m.metric == metric and subject in (None, m.subject))
    return one


def test_a_path_method_keeps_every_check_and_theorem(ig):
    assert [check.name for check in ig.checks][-1] == "difull"
    assert all(check.passed for check in ig.checks)
    assert of(ig, "mass_inside", "DiFull").scores == (1.0, 1.0, 1.0)
    assert ig.skipped == {}


def test_every_number_stands_beside_blind_maps(ig):
    for measurement in ig.measurements:
        assert set(measurement.controls) == {"edge", "random", "uniform", "power(1.5)", "centre_prior"}
        assert all(len(scores) == len(measurement.scores) == 3 for scores in measurement.controls.values())
    assert of(ig, "mass_inside", "DiFull").chance == 0.25
    assert of(ig, "mass_inside", "DiFull").controls["uniform"] == pytest.approx((0.25,) * 3)
    assert of(ig, "random_logit").controls["edge"] == pytest.approx((1.0,) * 3)  # the edge map knows no class


def test_costs_are_those_of_a_map(ig):
    assert ig.passes == {"forward": 51, "jvp": 0, "vjp": 50}
    assert ig.seconds > 0
    assert sum(ig.verdicts.values()) == 3
    assert any("adds up" in line for line in ig.assumptions)
    assert any("baseline: zero" in line for line in ig.assumptions)


def test_a_function_that_knows_the_answer_finds_it():
    card = verify(redness, n=2, scenes=("colour_counter",), checks=False)
    assert of(card, "mass_inside").scores == (1.0, 1.0)
    assert of(card, "rank_accuracy").scores == (1.0, 1.0)
    assert card.checks == ()
    assert card.passes == {"forward": 0, "jvp": 0, "vjp": 0}
    assert card.skipped == {"Completeness": "the method claims no sum of its map"}
    assert of(card, "random_logit").scores == (1.0, 1.0)  # it does not look at the model


@dataclass(frozen=True)
class Leaking(IntegratedGradients):
    """Integrated gradients with a constant added to every pixel."""

    name: ClassVar[str] = "leaking"

    def attribute(self, problem):
        result = super().attribute(problem)
        return replace(result, values=result.values + 1e-3)


def test_a_method_that_leaks_breaks_theorems():
    card = verify(Leaking(steps=2), n=1, scenes=("difull",))
    broken = {check.name for check in card.failed_checks()}
    assert {"constant_model", "unread_inputs", "difull"} <= broken
    assert "difull" not in {check.name for check in card.failed_checks(["difull"])}
    said = failures(card, [])
    assert any(
        re.match(r"The check difull fails: share of the mass .*: [\d.e-]+, the least of \d+ maps", line)
        for line in said
    )


@dataclass(frozen=True)
class Picky(IntegratedGradients):
    """Integrated gradients of networks with a convolution."""

    name: ClassVar[str] = "picky"

    def attribute(self, problem):
        if not any(isinstance(module, torch.nn.Conv2d) for module in problem.model.module.modules()):
            raise InputError("it has no convolution", argument="model")
        return super().attribute(problem)


def test_a_refused_network_breaks_no_contract():
    card = verify(Picky(steps=2), n=1, scenes=())
    assert card.failed_checks() == ()
    (affine,) = (check for check in card.checks if check.name == "affine_score")
    assert affine.detail == "does not apply: it has no convolution"


@pytest.mark.parametrize(("method", "needed"), [(FRInGe, False), (Diffusion, True)])
def test_jacobian_vector_products_are_said_to_be_needed_where_the_map_depends_on_them(method, needed):
    card = verify(method(steps=2), n=1, scenes=("colour_counter",), checks=False)
    assert card.passes["jvp"] > 0
    assert ("The model must have forward-mode or second derivatives." in card.assumptions) is needed
    assert ("The model must be differentiable." in card.assumptions) is not needed


def test_the_seconds_of_a_map_are_those_of_its_share_of_all_maps(monkeypatch):
    """Six seconds of three maps; those of their scores, and of blind maps, are not the method's. No other control of a
    benchmark is made: diffusion would take as long as the method."""
    made, candidates = Evaluator.row, set()

    def timed(self, candidate, *given):
        candidates.add((candidate.label, candidate.control))
        return replace(made(self, candidate, *given), seconds=100.0 if candidate.control else 6.0)

    monkeypatch.setattr(Evaluator, "row", timed)
    card = verify(FRInGe(steps=2), n=3, scenes=(), checks=False)
    assert card.seconds == 2.0
    assert {label for label, control in candidates if control} == {
        *("edge", "random", "uniform", "power(1.5):method", "centre_prior:method"),
    }


def test_what_cannot_be_measured_is_said_and_the_rest_is_measured():
    def grey_only(model, inputs, target):
        if inputs.shape[1] == 3:
            raise ValueError("grey images only")
        return inputs

    card = verify(grey_only, n=2, scenes=("colour_counter",), checks=False)
    assert "grey images only" in card.skipped["Colour counter"]
    assert {m.part for m in card.measurements} == {"Interventions", "Sanity", "Noise sensitivity"}


def test_an_image_that_fails_does_not_cost_the_others_their_scores():
    def edge(model, inputs, target):  # the name of a blind map
        if inputs.shape[1] == 3 and float(inputs[0, 0, 8, 8]) > 0.29:  # one of four
            raise ValueError("too bright")
        return inputs

    card = verify(edge, n=4, scenes=("colour_counter",), checks=False)
    assert [math.isfinite(score) for score in of(card, "mass_inside").scores].count(True) == 3
    assert card.skipped["4 of 16 scores of Colour counter"] == "method: edge failed (ValueError: too bright)"
    assert card.label == "edge"
    assert of(card, "insertion").controls["edge"] != of(card, "insertion").scores


def test_a_function_of_no_module_is_measured():
    typed = eval("lambda model, inputs, target: inputs", {})  # as a block of a document is run
    assert typed.__module__ is None
    assert of(verify(typed, n=1, scenes=(), checks=False), "saco").scores


@dataclass(frozen=True)
class Weighted(IntegratedGradients):
    """Integrated gradients with a setting that JSON does not hold."""

    name: ClassVar[str] = "weighted"
    weight: Any = None


def test_a_setting_that_is_an_array_is_measured_and_another_that_is_no_plain_data_is_said():
    card = verify(Weighted(steps=2, weight=torch.ones(2)), n=1, scenes=("difull",), checks=False)
    assert (card.skipped, of(card, "mass_inside").scores) == ({}, (1.0,))
    card = verify(Weighted(steps=2, weight=object()), n=1, scenes=("difull",), checks=False)
    assert card.measurements == ()
    assert set(card.skipped.values()) == {
        "methods: a setting of type object cannot be stored; its record must be plain data: numbers, texts, lists and "
        "tables of them"
    }


def test_what_may_pass_is_said():
    def tired(model, inputs, target):
        raise TransientError("the disk does not answer")

    card = verify(tired, n=2, scenes=(), checks=False)
    assert card.measurements == ()
    assert card.skipped == dict.fromkeys(
        ("Interventions", "Sanity", "Noise sensitivity"), "the disk does not answer"
    ) | {"Completeness": "the method claims no sum of its map"}


def line_of(metric, scores, controls, part="Localisation"):
    measured = Measurement(part, "Scene", metric, scores, controls, settings={"metric": metric})
    return summarise_card(Card("m", measurements=(measured,)))[0]


GOOD, BAD = (0.9, 0.8, 0.95, 0.85, 0.9, 0.8), (0.1, 0.2, 0.15, 0.1, 0.2, 0.1)


@pytest.mark.parametrize(
    ("metric", "scores", "control", "beats"),
    [
        ("mass_inside", GOOD, BAD, True),
        ("mass_inside", BAD, GOOD, False),
        ("deletion", BAD, GOOD, True),
        ("deletion", GOOD, BAD, False),
        ("mass_inside", GOOD, tuple(reversed(GOOD)), False),
        ("mass_inside", GOOD[:5], BAD[:5], None),  # of five signs none is rare enough
    ],
)
def test_a_method_beats_a_blind_map_only_with_certainty(metric, scores, control, beats):
    line = line_of(metric, scores, {"edge": control})
    assert (line.test.better, line.test.control) == (beats, "edge")
    (said,) = failures(Card("m", "", "", {}), [line])
    if beats is False:
        assert said.startswith(f"Scene, {METRICS[metric].title}: ")
        assert "not shown to be better than the control edge (" in said
    elif beats is None:
        assert said == "No failure was seen, but there are too few examples to show it."
    else:
        assert said == "No failure was seen: every score is better than every control."


def test_the_verdict_counts_what_is_won_lost_and_undecided():
    """Silence about a test that decides nothing would read as a pass."""
    lines = [
        line_of("mass_inside", scores, {"edge": control})
        for scores, control in ((GOOD, BAD), (BAD, GOOD), (GOOD, GOOD[::-1]), (GOOD[:5], BAD[:5]))
    ]
    said = "1 of 4 scores are better than every control; 2 are not shown to be; 1 have too few examples to show it."
    assert verdict(lines) == said
    assert verdict(lines[:1]) == "1 of 1 scores are better than every control."
    assert verdict([]) == ""
    assert failures(Card("m"), []) == ("No score was compared with a control.",)


def test_a_control_ahead_of_few_examples_is_no_silence():
    """Five signs prove nothing for either side, and "no failure" beside a better control would say so."""
    (said,) = failures(Card("m", "", "", {}), [line_of("mass_inside", BAD[:5], {"edge": GOOD[:5]})])
    assert "and the control edge (" in said
    assert said.endswith("is not worse; 5 examples are too few for a test.")


def test_a_control_behind_of_few_examples_is_no_failure():
    """Of two examples with other signs no p is below 1, whoever is ahead in the mean."""
    (said,) = failures(Card("m", "", "", {}), [line_of("mass_inside", (1.0, 0.0), {"edge": (0.0, 0.5)})])
    assert said == "No failure was seen, but there are too few examples to show it."


def test_the_control_that_is_the_hardest_to_beat_is_named():
    controls = {"edge": (0.3, 0.35, 0.3, 0.3, 0.3, 0.3), "random": BAD, "uniform": (0.5,) * 6}
    assert line_of("mass_inside", GOOD, controls).control == "uniform (0.5)"
    assert line_of("deletion", GOOD, controls).control == "random (0.142)"


def test_a_control_of_the_own_map_counts_where_it_moves_the_score():
    assert line_of("mass_inside", GOOD, {"power(1.5)": GOOD}).test is None
    assert line_of("mass_inside", GOOD, {"power(1.5)": (0.99,) * 6}).control == "power(1.5) (0.99)"


def test_noise_sensitivity_is_no_race_with_blind_maps():
    assert line_of("max_sensitivity", GOOD, {"uniform": (0.0,) * 6}, "Noise sensitivity").test is None


def test_maps_without_a_score_are_counted():
    line = line_of("mass_inside", (0.9, float("nan"), 0.8), {"edge": BAD[:3]})
    card = Card("m", "", "", {}, checks=(CheckResult("finite", False, "2 entries"),), verdicts={"ok": 2, "short": 1})
    assert failures(card, [line]) == (
        "The check finite fails: 2 entries.",
        "Scene, Mass inside: 1 of 3 maps have no score.",
        "1 of 3 maps of digits are short.",
    )


def test_unknown_scenes_and_targets_are_refused():
    with pytest.raises(InputError, match="scene"):
        verify("ig", scenes=("nowhere",))
    with pytest.raises(InputError, match="n: got 0"):
        verify("ig", n=0)
    assert torch.get_default_dtype() == torch.float32
