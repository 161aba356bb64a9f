"""What a table of scores prints: which scores are bold, and what its marks mean."""

import numpy as np
import pytest

from fringe.evaluation import METRIC_REFUSED, NOT_BETTER_MEANS, TidyScores
from fringe.metrics import get_metric

ROAD = {"road": get_metric("road")}
NOISE = np.random.default_rng(1).normal(size=(4, 12))


def printed(n=12, **means):
    """The table of n scores of each method and control, with these means."""
    rows = []
    for noise, (name, mean) in zip(NOISE[:, :n], means.items(), strict=False):
        scores = mean + 0.02 * (noise - noise.mean())
        names = {"method": name.replace("__", ":"), "control": name.startswith(("power", "edge")), "metric": "road"}
        rows += [{**names, "image": str(i), "score": one, "flags": []} for i, one in enumerate(scores)]
    table = TidyScores(rows, ROAD).printed({row["method"]: () for row in rows}, ())
    return table, {row[0].value: row[1] for row in table.rows}


def test_no_method_is_bold_that_a_sharper_map_of_another_one_beats():
    _, cells = printed(fringe=0.5, ig=0.4, power__ig=0.6)
    assert {cell.style for cell in cells.values()} == {""}
    _, cells = printed(fringe=0.5, ig=0.4, power__ig=0.45, edge=0.1)
    assert [cell.style for cell in cells.values()] == ["best", "", "", ""]


@pytest.mark.parametrize(("n", "edge", "better"), [(12, 0.3, True), (12, 0.6, False), (3, 0.3, None), (3, 0.6, None)])
def test_the_best_is_bold_if_it_is_shown_and_what_is_not_shown_is_explained(n, edge, better):
    """Too few images show nothing (None), and then a control may be ahead."""
    table, cells = printed(n, fringe=0.5, ig=0.2, edge=edge)
    assert [cell.style for cell in cells.values()] == ["best" if better else "", "", ""]
    assert [cell.mark for cell in cells.values()] == ["‡" * (better is False), "‡" * (n > 3), ""]
    assert next(cell.hint for cell in cells.values()) == "not shown to be better than edge" * (better is False)
    assert (NOT_BETTER_MEANS in table.notes) == (n > 3)
    assert any(note.startswith("not tested: 3 images") for note in table.notes) == (n == 3)


def test_without_controls_the_best_is_bold():
    _, cells = printed(fringe=0.5, ig=0.4)
    assert [cell.style for cell in cells.values()] == ["best", ""]


def test_one_image_is_compared_by_its_values_where_this_is_asked_for():
    """Also with the own sharper map, but not with that of another method."""
    scores = {"fringe": 0.5, "ig": 0.4, "sg": 0.3, "edge": 0.35, "power:fringe": 0.1, "power:ig": 0.4}
    rows = [
        {"method": name, "control": name[0] in "pe", "metric": "road", "image": "a", "score": one, "flags": []}
        for name, one in scores.items()
    ]
    found = TidyScores(rows, ROAD, by_value=True)
    better = {entry["method"]: entry["better_than_controls"] for entry in found.entries()}
    # the sharper map of ig has the ranking of ig: it says nothing
    controls = dict.fromkeys(("edge", "power:fringe", "power:ig"))
    assert better == {"fringe": True, "ig": True, "sg": False, **controls}
    assert {entry["better_than_controls"] for entry in TidyScores(rows, ROAD).entries()} == {None}
    cells = {row[0].value: row[1] for row in found.printed({row["method"]: () for row in rows}, ()).rows}
    assert [name for name, cell in cells.items() if cell.style == "best"] == ["fringe"]
    assert [name for name, cell in cells.items() if cell.mark] == ["sg"]


def test_a_method_has_its_title_beside_its_label():
    table, _ = printed(fringe=0.5, ig=0.4, edge=0.1)
    assert [(row[0].value, row[0].note) for row in table.rows] == [
        ("fringe", ""),
        ("ig", "Integrated Gradients"),
        ("edge", "control"),
    ]


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
    assert TidyScores([row], {"pic": get_metric("pic")}).printed({"ig": ()}, ()).notes == notes
