"""What a table of scores prints: which scores are bold, and what its marks mean."""

import pytest

from fringe.evaluation import METRIC_REFUSED, NOT_BETTER_MEANS, score_table, summarise
from fringe.metrics import get_metric


def test_no_method_is_bold_that_a_sharper_map_of_another_one_beats():
    sharper = {**entry("power(1.5):ig", 0.6, None), "control": True}
    entries = [entry("fringe", 0.5, True), entry("ig", 0.4, True), sharper]
    table = score_table(entries, {"road": get_metric("road")}, {one["method"]: () for one in entries}, ())
    assert [row[1].style for row in table.rows] == ["", "", ""]


def entry(method, value, better):
    numbers = {"mean": value, "low": value - 0.1, "high": value + 0.1, "summary": "mean", "metric": "road"}
    numbers |= {"n": 3, "flags": {}}
    return {**numbers, "method": method, "control": method == "edge", "better_than_controls": better}


@pytest.mark.parametrize("better", [True, None, False])
def test_the_best_is_bold_if_it_is_shown_and_what_is_not_shown_is_explained(better):
    """Too few images show nothing (None), and then a control may be ahead."""
    entries = [entry("fringe", 0.5, better), entry("ig", 0.4, True), entry("edge", 0.45 if better else 0.6, None)]
    costs = {one["method"]: () for one in entries}
    table = score_table(entries, {"road": get_metric("road")}, costs, ())
    cells = {row[0].value: row[1] for row in table.rows}
    assert {name: cell.style for name, cell in cells.items()} == {
        **dict.fromkeys(("ig", "edge"), ""),
        "fringe": "best" if better else "",
    }
    assert [cell.mark for cell in cells.values()] == ["‡" if better is False else "", "", ""]
    assert (NOT_BETTER_MEANS in table.notes) == (better is False)


def test_without_controls_the_best_is_bold():
    entries = [entry("fringe", 0.5, None), entry("ig", 0.4, None)]
    table = score_table(entries, {"road": get_metric("road")}, {"fringe": (), "ig": ()}, ())
    assert [row[1].style for row in table.rows] == ["best", ""]


@pytest.mark.parametrize(
    ("flags", "score", "notes"),
    [
        (["skipped", "zero_map"], None, ["metric pic: no score (skipped, zero map)"]),
        ([], None, ["metric pic: no score (not defined for these maps)"]),
        ([METRIC_REFUSED], None, []),  # the comparison has its reason
        (["zero_map"], 0.5, []),
    ],
)
def test_a_column_without_a_score_says_why(flags, score, notes):
    row = {"method": "ig", "control": False, "metric": "pic", "image": "a", "score": score, "flags": flags}
    metrics = {"pic": get_metric("pic")}
    assert score_table(summarise([row], metrics), metrics, {"ig": ()}, ()).notes == notes
