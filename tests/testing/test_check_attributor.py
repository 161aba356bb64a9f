"""The checks of methods find what they are there to find."""

import re

import pytest
from broken_methods import FAULTS, Correct, Gradient, Polite

from fringe import InputError, IntegratedGradients
from fringe.errors import FringeError
from fringe.testing import ATTRIBUTOR_CHECKS, CheckError, CheckResult, check_attributor

Shrinks, _ = FAULTS["nine tenths, honestly reported"]


def all_but(*checks):
    return set(ATTRIBUTOR_CHECKS) - set(checks)


def failures(method, *checks):
    """What these checks say against the method."""
    with pytest.raises(CheckError) as caught:
        check_attributor(method, skip=all_but(*checks))
    return {result.name: result.detail for result in caught.value.results if not result.passed}


@pytest.mark.thorough
@pytest.mark.parametrize(("fault", "checks"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_found_by_the_check_for_it(fault, checks):
    assert set(failures(fault(), *checks)) == checks


def test_every_check_has_a_fault_that_it_finds():
    assert set().union(*(checks for _, checks in FAULTS.values())) == set(ATTRIBUTOR_CHECKS)


@pytest.mark.parametrize(
    ("method", "checks"),
    [
        (Correct(), ATTRIBUTOR_CHECKS),
        (Gradient(), ("affine_score", "completeness", "refinement", "zero_displacement")),
        (Polite(), ("tabular_inputs",)),
    ],
)
def test_correct_methods_pass(method, checks):
    results = check_attributor(method, skip=all_but(*checks))
    assert [result.name for result in results] == list(checks)
    assert all(result.passed for result in results)
    assert all(isinstance(result, CheckResult) for result in results)


def test_a_failure_is_told_in_numbers():
    details = failures(Shrinks(), "affine_score", "refinement")
    assert re.search(r"misses the change of an affine score by \d\.\de-\d\d of", details["affine_score"])
    assert re.search(r"the gap went from \S+ \(4 steps\) to \S+$", details["refinement"])
    details = failures(FAULTS["goes past the classifier to the model"][0](), "passes")
    reported, seen = (int(word) for word in details["passes"].split() if word.isdigit())
    assert seen - reported == 3


def test_all_failures_are_listed_at_once():
    with pytest.raises(CheckError, match=r"method 'correct' breaks its contract in 2 of 24 checks") as caught:
        check_attributor(Shrinks())
    assert "\n  affine_score: " in str(caught.value)
    assert "\n  refinement: " in str(caught.value)
    assert isinstance(caught.value, AssertionError)
    assert isinstance(caught.value, FringeError)


def test_what_a_check_meets_is_a_failure_and_not_the_end():
    details = failures(FAULTS["only images"][0](), "tabular_inputs")
    assert details["tabular_inputs"].startswith("ValueError: not enough values to unpack")


def test_a_method_may_be_named():
    skipped = all_but("settings_recorded", "completeness")
    assert check_attributor("ig", skip=skipped) == check_attributor(IntegratedGradients(), skip=skipped)


def test_an_expected_failure_that_passes_is_told():
    with pytest.raises(CheckError, match=r"passes: passed, though it was expected to fail \(they lie\)"):
        check_attributor(Correct(), skip=all_but("passes"), expected_failures={"passes": "they lie"})


def test_checks_are_known_by_name():
    for argument in ({"skip": ["speed"]}, {"expected_failures": {"speed": "slow"}}):
        with pytest.raises(InputError, match=f"{next(iter(argument))}: got 'speed', expected one of settings_frozen"):
            check_attributor(Correct(), **argument)
