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


def test_the_best_of_all_trials_is_found_with_its_value(tmp_path):
    tuned = search(tmp_path / "new" / "journal.log", 24)
    assert [trial.number for trial in tuned.trials] == list(range(24))
    for trial in tuned.trials:
        method = dataclasses.replace(BASE, **trial.settings)
        assert trial.value == pytest.approx(value_of(method), rel=1e-12)
        assert {name: list(values) for name, values in trial.scores.items()} == score(method)
    assert tuned.value == max(trial.value for trial in tuned.trials) == value_of(tuned.best)
    assert (tuned.running, tuned.seed) == (0, 5)
    # the estimator is worth its name: better than where it started, by more than luck among its ten random trials
    assert quality(tuned.best) > max(quality(dataclasses.replace(BASE, **t.settings)) for t in tuned.trials[:10])


def test_the_search_starts_from_the_base_as_it_is(tmp_path):
    seen = []
    base = PaperFRInGe(tau=0.5, delta_euc="auto", cg_rtol=1e-5)  # tau beyond its range, a cap that is no number
    tuned = search(
        tmp_path / "j",
        3,
        lambda m: seen.append(m) or score(m),
        base=base,
        space=space_of(PaperFRInGe, ("tau", "delta_euc")),
    )
    assert seen[0] == base
    assert tuned.trials[0].settings == {"tau": 0.5, "delta_euc": "auto"}
    assert {method.cg_rtol for method in seen} == {1e-5}
    assert all(isinstance(method.delta_euc, float) for method in seen[1:])


def test_the_earliest_of_equals_is_best(tmp_path):
    assert search(tmp_path / "j", 4, lambda method: SAME).best == BASE


def test_equal_seeds_ask_the_same(tmp_path):
    first, longer, other = (
        search(tmp_path / name, trials, seed=seed) for name, trials, seed in (("a", 4, 5), ("b", 6, 5), ("c", 4, 6))
    )
    assert asked(first) == asked(longer)[:4]
    assert asked(first)[0] == asked(other)[0]
    assert not any(a == b for a, b in zip(asked(first)[1:], asked(other)[1:], strict=True))
    assert len({tuple(settings.values()) for settings in asked(longer)}) == 6


def test_a_search_in_parts_asks_what_one_in_one_asks(tmp_path):
    whole = search(tmp_path / "whole", 12)
    for stop in (5, 11, 12):
        parts = search(tmp_path / "parts", stop)
    assert asked(parts) == asked(whole)
    assert parts == whole


@pytest.mark.parametrize(
    ("interrupt", "place", "trials"), [(KeyboardInterrupt, 0, 2), (RuntimeError, 3, 5), (KeyboardInterrupt, 11, 12)]
)
def test_an_interrupted_trial_is_run_again_and_nothing_else_changes(tmp_path, interrupt, place, trials):
    whole, calls = search(tmp_path / "whole", trials), []

    def breaks(method):
        calls.append(method)
        if len(calls) == place + 1:
            raise interrupt("now")
        return score(method)

    for _ in range(2):  # a second interruption of the same trial costs no more than the first
        with pytest.raises(interrupt):
            search(tmp_path / "j", trials, breaks)
        calls = calls[:place]
    assert search(tmp_path / "j", trials) == whole


def test_finished_trials_are_not_scored_again(tmp_path):
    search(tmp_path / "j", 5)

    def never(method):
        raise AssertionError(method)

    assert len(search(tmp_path / "j", 5, never).trials) == 5
    assert len(search(tmp_path / "j", 3, never).trials) == 5


def test_a_failed_trial_keeps_its_reason_and_the_search_goes_on(tmp_path):
    def fails(method):
        if method.tau < 1e-3:
            raise InputError(f"tau: {method.tau} is too small")
        return score(method)

    tuned = search(tmp_path / "j", 15, fails)
    failed = [trial for trial in tuned.trials if trial.settings["tau"] < 1e-3]
    assert len(tuned.trials) == 15
    assert 0 < len(failed) < 15
    for trial in tuned.trials:
        assert (trial.problem == f"tau: {trial.settings['tau']} is too small") == (trial in failed)
        assert math.isnan(trial.value) == (trial in failed)
        assert (trial.scores == {}) == (trial in failed)
    assert tuned.best.tau >= 1e-3


def test_scores_that_are_not_finite_fail_their_trial(tmp_path):
    def partly(method):
        scores = score(method)
        if method != BASE:
            scores["infidelity"][1] = math.nan
            scores["deletion"][0] = math.inf
        return scores

    first, second = search(tmp_path / "j", 2, partly).trials
    assert not first.problem
    assert second.problem == "scores are not finite: deletion of 1, infidelity of 1 of 2 images"
    assert math.isnan(second.scores["infidelity"][1])
    assert second.scores["infidelity"][0] == 0.1


def test_a_search_without_success_says_so(tmp_path):
    def fails(method):
        raise InputError("nothing works")

    with pytest.raises(FringeError, match=r"none of 3 trials succeeded \(0 still running\); the first: nothing works"):
        search(tmp_path / "j", 3, fails)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"insertion": [0.5], "infidelity": [0.5]}, "score: got 'insertion, infidelity', expected 'deletion' among"),
        ({"insertion": [0.5], "deletion": [0.5, 0.5], "infidelity": [0.5]}, "of the same images"),
        ({}, "score: got 'nothing', expected 'insertion'"),
    ],
)
def test_a_score_function_that_is_none_ends_the_search(tmp_path, wrong, message):
    with pytest.raises(InputError, match=message):
        search(tmp_path / "j", 3, lambda method: wrong)
    assert len(search(tmp_path / "j", 3).trials) == 3  # the interrupted trial is not lost


def test_other_scores_are_kept_too(tmp_path):
    tuned = search(tmp_path / "j", 2, lambda method: score(method) | {"seconds": [1, 2]})
    assert tuned.trials[1].scores["seconds"] == (1.0, 2.0)


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"seed": 6}, "seed: 5, now 6"),
        ({"base": PaperFRInGe(cg_rtol=1e-4)}, r"base.cg_rtol: 0.001, now 0.0001"),
        ({"space": space_of(PaperFRInGe, ("tau", "damping"))}, r"space.cg_iterations: \{.*, now absent"),
        ({"identity": {"weights": "b", "images": [1, 2]}}, "identity.weights: a, now b$"),
    ],
)
def test_a_search_of_other_settings_is_refused_with_the_difference(tmp_path, other, difference):
    same = {"identity": {"weights": "a", "images": (1, 2)}, "score": lambda method: SAME}
    search(tmp_path / "j", 2, **same)
    before = (tmp_path / "j").read_bytes()
    with pytest.raises(InputError, match=difference):
        search(tmp_path / "j", 3, **(same | other))
    assert (tmp_path / "j").read_bytes() == before
    assert len(search(tmp_path / "j", 3, **same).trials) == 3
    assert len(search(tmp_path / "j", 2, **(same | other), name="another").trials) == 2


def test_settings_enqueued_by_hand_take_a_slot(tmp_path):
    search(tmp_path / "j", 2)
    study = optuna.load_study(study_name="study", storage=f"sqlite:///{tmp_path}/j")
    study.enqueue_trial({"tau": 2e-3, "damping": 1e-5, "cg_iterations": 7})
    tuned = search(tmp_path / "j", 4)
    assert tuned.trials[2].settings == {"tau": 2e-3, "damping": 1e-5, "cg_iterations": 7}
    assert tuned.best.cg_iterations == 7
    assert len(tuned.trials) == 4


def test_optuna_is_quiet_and_as_loud_as_before_afterwards(tmp_path, caplog):
    logger = logging.getLogger("optuna")
    logger.addHandler(caplog.handler)
    optuna.logging.set_verbosity(optuna.logging.INFO)
    try:
        search(tmp_path / "j", 12)
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
        ({"name": ""}, "name: got ''"),
        ({"space": space_of(METHODS["ig"])}, "space: got 'ig', expected a space of 'paper'"),
    ],
)
def test_arguments_are_checked(tmp_path, more, message):
    with pytest.raises(InputError, match=message):
        search(tmp_path / "j", **({"trials": 2} | more))


def test_without_optuna_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    for name in ("_study",):
        monkeypatch.delitem(sys.modules, f"fringe.bench.tuning.{name}", raising=False)
    with pytest.raises(InputError, match=r'tune needs Optuna; run pip install -c constraints.txt -e "\.\[tune\]"'):
        search(tmp_path / "j", 2)
