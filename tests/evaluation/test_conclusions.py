"""Conclusions: tables with a known winner, none, a control that is level or ahead, a tie, and two references."""

import dataclasses

import numpy as np
import pytest

from fringe.evaluation import ScoreTable, conclude
from fringe.metrics import Aggregate, Direction

Words = dict[str, tuple[Direction, Aggregate]]

SCORES = np.random.default_rng(3).normal(size=(8, 60))
SCORES -= SCORES.mean(1, keepdims=True)


def sentences(scores, controls=(), metrics=("a",), variants=None, groups=None):
    words: Words = dict.fromkeys(metrics, ("higher", "mean"))
    return conclude(ScoreTable(scores, controls, words, groups=groups or {}), variants=variants)


def table(**shifts):
    """One metric: noise of each method, and what is added to it."""
    return {(name, "a"): SCORES[i] * 0.1 + shift for i, (name, shift) in enumerate(shifts.items())}


def test_a_method_that_beats_all_others_and_all_controls_is_named_with_its_scores():
    scores = table(fringe=1.0, ig=0.5, edge=0.0)
    scores |= {(name, "b_c"): 0.1 * values[::-1] + values.mean() for (name, _), values in list(scores.items())}
    assert sentences(scores, ["edge"], ("a", "b_c")) == [
        "fringe is better than all other methods and all controls in a and b c.",
    ]


def test_lower_is_better_where_the_metric_says_so():
    scores = table(fringe=1.0, ig=0.5, edge=0.7)
    words: Words = {"a": ("lower", "mean")}
    assert conclude(ScoreTable(scores, ["edge"], words)) == [
        "ig is better than all other methods and all controls in a."
    ]


@pytest.mark.parametrize(
    ("shift", "what"),
    [
        (1.3, "The control diffusion has a better value than the best method"),
        (0.999, "The best method is not shown to be better than the control diffusion"),
    ],
)
def test_no_method_wins_where_a_control_is_level_or_ahead(shift, what):
    first, second = sentences(table(fringe=1.0, ig=0.5, diffusion=shift), ["diffusion"])
    assert first == (
        "No method is shown to be better than all other methods and all controls in any metric; "
        "in a fringe is better than ig."
    )
    assert second == f"{what} in a: such a metric is no evidence for a map here, take another one."


def test_the_control_with_the_best_value_is_named():
    """Also where a sharper map of another method is ahead, by less."""
    scores = {**table(fringe=0.5, ig=1.0, diffusion=1.4), ("power(1.5):fringe", "a"): SCORES[5] * 0.1 + 1.2}
    _, second = sentences(scores, ["diffusion", "power(1.5):fringe"])
    assert second.startswith("The control diffusion has a better value than the best method in a:")


def test_what_more_images_would_show_is_said_of_metrics_that_say_something():
    scores = table(fringe=1.0, ig=0.999, diffusion=1.3)
    scores |= {(name, "b"): 0.1 * SCORES[i] + value for i, (name, value) in enumerate((("fringe", 1.0), ("ig", 0.99)))}
    scores["diffusion", "b"] = 0.1 * SCORES[6]
    *_, alone = sentences({pair: column for pair, column in scores.items() if pair[1] == "a"}, ["diffusion"])
    assert " differ by 0.001 in a, " in alone  # the only metric, though it says nothing
    *_, last = sentences(scores, ["diffusion"], ("a", "b"))
    assert " differ by 0.01 in b, " in last


def test_methods_that_are_level_but_ahead_of_all_controls_are_named():
    scores = table(fringe=1.0, ig=1.0, agi=0.5, edge=0.0)
    first, *_ = sentences(scores, ["edge"])
    best, other = sorted(("fringe", "ig"), key=lambda name: -scores[name, "a"].mean())
    assert first == (
        "No method is shown to be better than all other methods and all controls in any metric; "
        f"in a {best} is better than all controls, and level with {other}."
    )


def test_a_sharper_map_of_another_method_may_be_ahead():
    """Where the map of fringe, made sharper, is ahead of ig, ig has shown no more than that sharper maps win."""
    scores = {**table(fringe=0.5, ig=1.0, edge=0.0), ("power(1.5):fringe", "a"): SCORES[5] * 0.1 + 1.2}
    first, second = sentences(scores, ["edge", "power(1.5):fringe"])
    assert first.endswith(" and all controls in any metric; in a ig is better than fringe.")
    assert second.startswith("The control power(1.5):fringe has a better value than the best method in a:")
    scores["power(1.5):fringe", "a"] -= 0.5
    told = sentences(scores, ["edge", "power(1.5):fringe"])
    assert told == ["ig is better than all other methods and all controls in a."]


def test_equal_maps_are_level():
    scores = table(fringe=1.0, edge=0.0)
    scores["ig", "a"] = scores["fringe", "a"] + 0.001 * SCORES[5] + 1e-6
    *_, last = sentences(scores, ["edge"])
    assert last.startswith("ig and fringe differ by 1e-06 in a, and 60 images show a difference of ")
    assert last.endswith(" in four of five samples: they are level.")


def test_the_images_that_are_asked_for_would_tell_the_two_apart():
    """Drawn from the same distribution, four of five samples of that size have a p below .05."""
    difference = 0.12
    scores = {("fringe", "a"): SCORES[0] + difference, ("ig", "a"): SCORES[0] * 0.0}
    *_, last = sentences(scores)
    assert last.startswith("fringe and ig differ by 0.12 in a, and 60 images show a difference of 0.3")
    asked = int(last.partition("take about ")[2].partition(" images")[0].replace(",", ""))
    spread = SCORES[0].std()
    expected = ((1.96 + 0.84) * spread / difference) ** 2
    assert asked == pytest.approx(expected, rel=0.12)  # the half interval is of 1000 resamples, and two digits are said


def test_of_several_that_are_level_each_needs_more_images():
    """Of two metrics, the smaller p must be below .025, also where the other difference is 0."""
    scores = {("fringe", "a"): SCORES[0] + 0.12, ("ig", "a"): SCORES[0] * 0.0}
    scores |= {("fringe", "b"): SCORES[1] * 1e-3, ("ig", "b"): SCORES[1] * 1e-3 + SCORES[2]}
    *_, alone = sentences({pair: column for pair, column in scores.items() if pair[1] == "a"})
    *_, both = sentences(scores, metrics=("a", "b"))
    asked = [int(one.partition("take about ")[2].partition(" images")[0].replace(",", "")) for one in (alone, both)]
    assert asked[1] / asked[0] == pytest.approx(((2.24 + 0.84) / (1.96 + 0.84)) ** 2, rel=0.05)


def test_a_conclusion_that_turns_with_the_reference_is_said():
    scores = {**table(fringe=1.0, ig=0.5)}
    scores |= {("fringe", "z"): scores["ig", "a"], ("ig", "z"): scores["fringe", "a"]}
    variants = {"a": ("insertion", "gaussian"), "z": ("insertion", "zeros")}
    told = sentences(scores, metrics=("a", "z"), variants=variants)
    assert told == [
        "fringe is better than all other methods in a; ig is better than all other methods in z.",
        "insertion depends on the reference: the best is fringe with a blur and ig with zeros.",
    ]
    level = {("fringe", "a"): SCORES[0], ("ig", "a"): SCORES[0] - 1e-3 * SCORES[1] - 1e-5}
    level |= {("fringe", "z"): level["ig", "a"], ("ig", "z"): level["fringe", "a"]}
    assert not any("depends" in text for text in sentences(level, metrics=("a", "z"), variants=variants))


def test_one_method_is_compared_with_its_controls_alone():
    assert sentences(table(fringe=1.0, edge=0.0), ["edge"]) == ["fringe is better than all controls in a."]
    first, *_ = sentences(table(fringe=0.0, edge=1.0), ["edge"])
    assert first == "fringe is not shown to be better than all controls in any metric."


def test_nothing_is_said_of_too_few_images_of_one_method_or_of_metrics_without_a_direction():
    few = {key: values[:4] for key, values in table(fringe=1.0, ig=0.5, edge=0.0).items()}
    assert sentences(few, ["edge"]) == []
    assert sentences({key: values for key, values in few.items() if key[0] != "edge"}) == []  # and of two methods
    assert sentences(table(fringe=1.0)) == []
    words: Words = {"a": ("none", "mean")}
    scores = table(fringe=1.0, ig=0.5, edge=0.0)
    assert conclude(ScoreTable(scores, ["edge"], words)) == []


def test_images_of_one_cluster_count_once():
    scores = {key: np.repeat(values[:6], 10) for key, values in table(fringe=1.0, ig=0.9, edge=0.0).items()}
    clusters = [f"photograph {i // 10}" for i in range(60)]
    grouped = sentences(scores, ["edge"], groups={"a": {"clusters": clusters}})
    assert sentences(scores, ["edge"]) == ["fringe is better than all other methods and all controls in a."]
    assert grouped == []  # six photographs cannot show it of two scores


def test_a_comparison_and_its_table_say_it():
    import fringe

    found = fringe.compare("embedded:digits", "embedded:digits:0:12", ["ig", "smoothgrad"], ["sparseness", "insertion"])
    assert found.conclusions()
    assert all(sentence in repr(found).replace("\n", " ") for sentence in found.conclusions()[:1])
    assert len(found.conclusions()) <= 4
    fewer = dataclasses.replace(found, rows=found.rows[:1])
    assert fewer.conclusions() == []
