"""The search: what is scored, what is kept, what is found again, and what is refused."""

import dataclasses
import logging
import math
import sys

import optuna
import pytest
from tuning_toys import BASE, asked, quality, score, search, value_of

from fringe import METHODS, FringeError, InputError
from fringe.attribution import PaperFRInGe
from fringe.bench.tuning import space_of

SAME = {"insertion": [0.5], "deletion": [0.5], "infidelity": [0.5]}


def test_the_best_of_all_trials_is_found_with_its_value():
    tuned = search(24)
    assert [trial.number for trial in tuned.trials] == list(range(24))
    for trial in tuned.trials:
        method = dataclasses.replace(BASE, **trial.settings)
        assert trial.value == pytest.approx(value_of(method), rel=1e-12)
    assert tuned.value == max(trial.value for trial in tuned.trials) == value_of(tuned.best)
    # the estimator is worth its name: better than where it started, by more than luck among its ten random trials
    assert quality(tuned.best) > max(quality(dataclasses.replace(BASE, **t.settings)) for t in tuned.trials[:10])


def test_the_search_starts_from_the_base_as_it_is():
    seen = []
    base = PaperFRInGe(tau=0.5, delta_euc="auto", cg_rtol=1e-5)  # tau beyond its range, a cap that is no number
    tuned = search(
        3,
        lambda m: seen.append(m) or score(m),
        base=base,
        space=space_of(PaperFRInGe, dict.fromkeys(("tau", "delta_euc"))),
    )
    assert seen[0] == base
    assert tuned.trials[0].settings == {"tau": 0.5, "delta_euc": "auto"}
    assert {method.cg_rtol for method in seen} == {1e-5}
    assert all(isinstance(method.delta_euc, float) for method in seen[1:])


def test_the_earliest_of_equals_is_best():
    assert search(4, lambda method: SAME).best == BASE


def test_equal_seeds_ask_the_same():
    first, longer, other = (search(trials, seed=seed) for trials, seed in ((4, 5), (6, 5), (4, 6)))
    assert asked(first) == asked(longer)[:4]
    assert asked(first)[0] == asked(other)[0]
    assert not any(a == b for a, b in zip(asked(first)[1:], asked(other)[1:], strict=True))
    assert len({tuple(settings.values()) for settings in asked(longer)}) == 6


@pytest.mark.parametrize(("stop", "trials"), [(0, 2), (3, 5), (11, 12)])
def test_a_search_that_begins_anew_proposes_the_same_and_goes_on(stop, trials):
    """Also behind trials that failed; what is stored is not scored again."""
    stored, scored = {}, []

    def remembered(method, until=trials):
        if method not in stored:
            if len(scored) == until:
                raise KeyboardInterrupt
            scored.append(method)
            stored[method] = None if len(scored) == 3 else score(method)
        if stored[method] is None:
            raise InputError("the third one fails")
        return stored[method]

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            search(trials, lambda method: remembered(method, stop))
    resumed = search(trials, remembered)
    assert len(scored) == trials
    stored.clear()
    scored.clear()
    whole = search(trials, remembered)
    assert asked(resumed) == asked(whole)
    assert [trial.problem for trial in resumed.trials] == [trial.problem for trial in whole.trials]
    assert (resumed.best, resumed.value) == (whole.best, whole.value)


def test_a_failed_trial_keeps_its_reason_and_the_search_goes_on():
    def fails(method):
        if method.tau < 1e-3:
            raise InputError(f"tau: {method.tau} is too small")
        return score(method)

    tuned = search(15, fails)
    failed = [trial for trial in tuned.trials if trial.settings["tau"] < 1e-3]
    assert len(tuned.trials) == 15
    assert 0 < len(failed) < 15
    for trial in tuned.trials:
        assert (trial.problem == f"tau: {trial.settings['tau']} is too small") == (trial in failed)
        assert math.isnan(trial.value) == (trial in failed)
    assert tuned.best.tau >= 1e-3


def test_scores_that_are_not_finite_fail_their_trial():
    def partly(method):
        scores = score(method)
        if method != BASE:
            scores["infidelity"][1] = math.nan
            scores["deletion"][0] = math.inf
        return scores

    first, second = search(2, partly).trials
    assert not first.problem
    assert second.problem == "scores are not finite: deletion of 1, infidelity of 1 of 2 images"
    assert math.isnan(second.value)


def test_a_search_without_success_says_so():
    def fails(method):
        raise InputError("nothing works")

    with pytest.raises(FringeError, match=r"none of 3 trials succeeded; the first: nothing works"):
        search(3, fails)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"insertion": [0.5], "infidelity": [0.5]}, "score: got 'insertion, infidelity', expected 'deletion' among"),
        ({"insertion": [0.5], "deletion": [0.5, 0.5], "infidelity": [0.5]}, "of the same images"),
        ({}, "score: got 'nothing', expected 'insertion'"),
    ],
)
def test_a_score_function_that_is_none_ends_the_search(wrong, message):
    with pytest.raises(InputError, match=message):
        search(3, lambda method: wrong)


def test_optuna_is_quiet_and_as_loud_as_before_afterwards(caplog):
    logger = logging.getLogger("optuna")
    logger.addHandler(caplog.handler)
    optuna.logging.set_verbosity(optuna.logging.INFO)
    try:
        search(12)
        assert optuna.logging.get_verbosity() == optuna.logging.INFO
    finally:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        logger.removeHandler(caplog.handler)
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"trials": 0}, "trials: got 0"),
        ({"seed": -1}, "seed: got -1"),
        ({"space": space_of(METHODS["smoothgrad"])}, "space: got 'samples', expected one of"),
    ],
)
def test_arguments_are_checked(more, message):
    with pytest.raises(InputError, match=message):
        search(**({"trials": 2} | more))


def test_without_optuna_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r'tune needs Optuna; run pip install -c constraints.txt -e "\.\[tune\]"'):
        search(2)
