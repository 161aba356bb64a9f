"""Image-level dominance, worked by hand."""

import numpy as np
import pytest

from fringe.bench.report._maps import WEIGHTS, dominance, pick
from fringe.errors import InputError

DIRECTIONS = {"mas_insertion": "higher", "mas_deletion": "lower", "insertion": "higher", "deletion": "lower"}
SCORES = {  # three images, FRInGe and three rivals
    "mas_insertion": {"fringe": [0.8, 0.5, 0.4], "a": [0.5, 0.5, 0.3], "b": [0.6, 0.4, 0.3], "c": [0.9, 0.6, 0.5]},
    "mas_deletion": {"fringe": [0.2, 0.5, 0.3], "a": [0.5, 0.6, 0.6], "b": [0.3, 0.6, 0.2], "c": [0.4, 0.6, 0.1]},
    "insertion": {"fringe": [0.7, 0.7, 0.7], "a": [0.4, 0.7, 0.7], "b": [0.7, 0.7, 0.7], "c": [0.7, 0.7, 0.7]},
    "deletion": {"fringe": [0.1, 0.2, 0.3], "a": [0.1, 0.2, 0.3], "b": [0.1, 0.2, 0.3], "c": [0.7, 0.2, 0.0]},
}


def columns(scores=SCORES, **changes):
    made = {metric: {label: np.array(of) for label, of in methods.items()} for metric, methods in scores.items()}
    for place, value in changes.items():
        metric, label = place.split("__")
        made[metric][label] = np.array(value)
    return made


def test_the_score_by_hand():
    score, eligible = dominance(columns(), "fringe", DIRECTIONS)
    # Image 0: MAS insertion (.3 + .2 - .1) / 3, MAS deletion (.3 + .1 + .2) / 3, insertion .3 / 3, deletion .6 / 3.
    # Image 1: (0 + .1 - .1) / 3, (.1 + .1 + .1) / 3, 0, 0. Image 2: (.1 + .1 - .1) / 3, (.3 - .1 - .2) / 3, 0, -.3 / 3.
    expected = [(2 * 0.4 + 2 * 0.6 + 0.3 + 0.6) / 3 / 6, (2 * 0.0 + 2 * 0.3) / 3 / 6, (2 * 0.1 + 2 * 0.0 - 0.3) / 3 / 6]
    np.testing.assert_allclose(score, expected, rtol=1e-12, atol=1e-15)
    # On image 1 it beats one of three on MAS insertion; on image 2 two of three there, but one on MAS deletion.
    assert eligible.tolist() == [True, False, False]


@pytest.mark.parametrize(("rivals", "eligible"), [("ac", [False, False, False]), ("a", [True, False, True])])
def test_half_of_the_rivals_is_not_most_and_a_single_one_is_all(rivals, eligible):
    few = {metric: {label: methods[label] for label in ("fringe", *rivals)} for metric, methods in SCORES.items()}
    assert dominance(columns(few), "fringe", DIRECTIONS)[1].tolist() == eligible


def test_a_metric_without_scores_has_no_weight():
    mas = {metric: columns()[metric] for metric in ("mas_insertion", "mas_deletion")}
    np.testing.assert_allclose(dominance(mas, "fringe", DIRECTIONS)[0], np.array([0.4 + 0.6, 0.3, 0.1]) / 6, rtol=1e-12)
    assert WEIGHTS["mas_insertion"] == WEIGHTS["mas_deletion"] == 2 * WEIGHTS["insertion"] == 2 * WEIGHTS["deletion"]


@pytest.mark.filterwarnings("error")
def test_who_has_no_score_is_left_out_and_not_beaten():
    nan, inf = np.nan, np.inf
    score, eligible = dominance(columns(mas_insertion__a=[nan, 0.5, inf]), "fringe", DIRECTIONS)
    first = (2 * 0.1 / 2 + 2 * 0.6 / 3 + 0.3 / 3 + 0.6 / 3) / 6  # (.2 - .1) / 2 of two rivals
    assert score[0] == pytest.approx(first)
    assert eligible.tolist() == [False, False, False]  # one of three is beaten
    score, eligible = dominance(columns(deletion__fringe=[nan, 0.2, 0.3]), "fringe", DIRECTIONS)
    assert np.isnan(score).tolist() == [True, False, False]
    assert not eligible[0]
    everybody = columns(insertion__a=[nan] * 3, insertion__b=[0.1, nan, 0.1], insertion__c=[nan, nan, 0.1])
    assert np.isnan(dominance(everybody, "fringe", DIRECTIONS)[0]).tolist() == [False, True, False]


def test_picks_by_hand():
    score = [0.5, -0.2, 0.1, 0.9, np.nan, 0.0, 0.3, 0.12, -0.4]
    eligible = [True, False, True, False, False, False, True, True, False]
    found = pick(np.array(score), np.array(eligible), each=2)
    assert found["strong"] == (0, 6)  # 3 has more, but is not eligible
    assert found["failures"] == (8, 1)
    assert found["typical"] == (2, 7)  # the median of the eight is .11: .10 and .12 are as near, and 2 comes first


def test_equals_come_in_their_order():
    found = pick(np.zeros(9), np.ones(9, dtype=bool), each=2)
    assert (found["strong"], found["failures"], found["typical"]) == ((0, 1), (2, 3), (4, 5))


def test_fewer_images_than_asked_for():
    assert pick(np.full(3, np.nan), np.ones(3, dtype=bool))["strong"] == ()
    found = pick(np.array([0.1, 0.4, 0.2, 0.3]), np.array([True, True, True, False]))
    assert (found["strong"], found["typical"], found["failures"]) == ((1, 2, 0), (), (3,))


def test_no_image_is_picked_twice_and_the_order_of_the_methods_does_not_matter():
    rng = np.random.default_rng(3)
    scores = {metric: {label: rng.random(12) for label in "abcd"} for metric in DIRECTIONS}
    turned = {metric: dict(reversed(methods.items())) for metric, methods in scores.items()}
    first, second = (dominance(found, "b", DIRECTIONS) for found in (scores, turned))
    np.testing.assert_allclose(first[0], second[0], rtol=1e-12)
    found = pick(*first)
    everybody = found["strong"] + found["typical"] + found["failures"]
    assert len(set(everybody)) == len(everybody)
    assert first[0][list(found["failures"])].max() <= first[0][list(found["typical"])].min()


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ({"mas_insertion": SCORES["mas_insertion"]}, "mas_deletion was not computed, and images are chosen by both"),
        ({m: {"fringe": np.zeros(3)} for m in SCORES}, "scores: only fringe has mas_insertion"),
    ],
)
def test_what_is_missing_is_named(scores, message):
    with pytest.raises(InputError, match=message):
        dominance(scores, "fringe", DIRECTIONS)
