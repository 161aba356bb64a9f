"""The checks of methods find what they are there to find, and nothing else."""

import re

import broken_methods as broken
import pytest

from fringe import InputError, IntegratedGradients
from fringe.errors import FringeError
from fringe.testing import ATTRIBUTOR_CHECKS, CheckError, CheckResult, check_attributor

#: The checks that explain something: all of them fail for a result that attribute() refuses.
EXPLAINING = {name for name in ATTRIBUTOR_CHECKS if not name.startswith("settings") and name != "presets"}

FAULTS = {
    broken.Boastful: {"completeness"},
    broken.Mutable: {"settings_frozen"},
    broken.Undocumented: {"settings_documented"},
    broken.Unwritable: {"settings_recorded"},
    broken.Forgetful: {"settings_recorded"},
    broken.Misnamed: {"presets"},
    broken.SinglePrecision: {"shape_and_dtype", "completeness", "affine_score"},
    broken.Graphed: {"shape_and_dtype"},
    broken.ShortDiagnostics: EXPLAINING,
    broken.DividesByDoubt: {"finite", "tabular_inputs"},
    broken.NeverEmpty: {"constant_model", "zero_displacement"},
    broken.SmearsChannels: {"unread_inputs", "affine_score"},
    broken.Transposed: {"unread_inputs"},
    broken.Shrinks: {"affine_score", "refinement"},
    broken.ClaimsToBeExact: {"completeness"},
    broken.WrongSign: {"completeness"},
    broken.OtherScore: {"completeness", "affine_score", "explained_class", "unread_inputs"},
    broken.CalledUnchecked: {"completeness"},
    broken.IgnoresSteps: {"refinement"},
    broken.IgnoresBaseline: {"zero_displacement"},
    broken.OnlyImages: {"tabular_inputs"},
    broken.MeanOfTheBatch: {"batch_of_one"},
    broken.CountsRows: {"batch_of_one", "order", "explained_class"},
    broken.AllAtOnce: {"batch_size"},
    broken.GlobalNoise: {"repeatable"},
    broken.MovesNumPy: {"random_generators"},
    broken.WritesIntoReferences: {"caller_tensors"},
    broken.LeavesAHook: {"caller_model"},
    broken.ClearsGradients: {"caller_model"},
    broken.CountsTooFew: {"passes"},
    broken.DependsOnTheCall: {"bad_images", "batch_of_one"},
    broken.RecordingMatters: {"telemetry"},
    broken.OverPlan: {"telemetry"},
    broken.AlwaysThePrediction: {"explained_class", "unread_inputs"},
    broken.WithoutContrast: {"explained_class"},
    broken.Negated: {"affine_score"},
    broken.Mirrored: {"unread_inputs"},
    broken.Shifted: {"unread_inputs"},
    broken.NextClass: {"unread_inputs"},
    broken.OfTheProbability: {"unread_inputs"},
    broken.FirstClassOnly: {"explained_class"},
}


def failures(method):
    with pytest.raises(CheckError) as caught:
        check_attributor(method)
    return {result.name: result.detail for result in caught.value.results if not result.passed}


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS, ids=lambda kind: kind.__name__)
def test_a_fault_is_found_by_the_check_for_it(fault):
    assert set(failures(fault())) == FAULTS[fault]


def test_every_check_has_a_fault_that_it_finds():
    assert set().union(*FAULTS.values()) == set(ATTRIBUTOR_CHECKS)


@pytest.mark.parametrize("method", [broken.Correct(), broken.Gradient(), broken.OnlyImagesPolitely()])
def test_correct_methods_pass(method):
    results = check_attributor(method)
    assert [result.name for result in results] == list(ATTRIBUTOR_CHECKS)
    assert all(result.passed for result in results)
    assert all(isinstance(result, CheckResult) for result in results)


def test_a_failure_is_told_in_numbers():
    details = failures(broken.Shrinks())
    assert re.search(r"misses the change of an affine score by \d\.\de-\d\d of", details["affine_score"])
    assert re.search(r"the gap went from \S+ \(4 steps\) to \S+$", details["refinement"])
    reported, seen = (int(word) for word in failures(broken.CountsTooFew())["passes"].split() if word.isdigit())
    assert seen - reported == 3


def test_all_failures_are_listed_at_once():
    with pytest.raises(CheckError, match=r"method 'correct' breaks its contract in 2 of 24 checks") as caught:
        check_attributor(broken.Shrinks())
    assert "\n  affine_score: " in str(caught.value)
    assert "\n  refinement: " in str(caught.value)
    assert isinstance(caught.value, AssertionError)
    assert isinstance(caught.value, FringeError)


def test_what_a_check_meets_is_a_failure_and_not_the_end():
    assert failures(broken.OnlyImages())["tabular_inputs"].startswith("ValueError: not enough values to unpack")


def test_a_method_may_be_named():
    skipped = set(ATTRIBUTOR_CHECKS) - {"settings_recorded", "completeness"}
    assert check_attributor("ig", skip=skipped) == check_attributor(IntegratedGradients(), skip=skipped)


def test_checks_may_be_left_out():
    names = [result.name for result in check_attributor(broken.Shrinks(), skip=["affine_score", "refinement"])]
    assert names == [name for name in ATTRIBUTOR_CHECKS if name not in ("affine_score", "refinement")]


def test_a_failure_may_be_expected():
    reasons = {"affine_score": "nine tenths", "refinement": "as before"}
    results = check_attributor(broken.Shrinks(), expected_failures=reasons)
    assert [result.name for result in results if not result.passed] == list(reasons)


def test_an_expected_failure_that_passes_is_told():
    with pytest.raises(CheckError, match=r"passes: passed, though it was expected to fail \(they lie\)"):
        check_attributor(broken.Correct(), expected_failures={"passes": "they lie"})


def test_checks_are_known_by_name():
    for argument in ({"skip": ["speed"]}, {"expected_failures": {"speed": "slow"}}):
        with pytest.raises(
            InputError, match=f"{next(iter(argument))}: no check is called speed; known: settings_frozen"
        ):
            check_attributor(broken.Correct(), **argument)
