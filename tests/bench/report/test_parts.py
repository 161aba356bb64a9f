"""What a report says of a model beside its table: picks, curves, costs, reasons."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import report_toys as runs
from matplotlib.text import Text

from fringe._strings.tables import Table
from fringe.bench.report import build_table, write_report
from fringe.bench.report._build import curves, describe_status, forest, stacked, verdicts
from fringe.bench.report._maps import ExampleSet, GridData, choose_examples, plot_examples
from fringe.bench.report._table import cost_of_maps

MAS = ("mas_insertion", "mas_deletion", "insertion", "deletion")
METHODS = ("fringe", "ig", "sg")


def ranked(lead, metrics=MAS, methods=METHODS, **more):
    """A run in which fringe is ahead of every rival by ``lead`` (n,) under every metric; its model and reference."""
    about = runs.manifest(methods, metrics, len(lead), **more)
    scores = {}
    for metric in metrics:
        sign = -1 if metric in ("mas_deletion", "deletion") else 1
        for method in methods:
            column = 0.5 + (sign * np.asarray(lead) if method == "fringe" else 0.0 * np.asarray(lead))
            scores["net", method, metric] = list(column[: about.metrics[metric]["limit"]])
    found = runs.results(about, scores)
    return found, "net", "fringe"


def test_strong_typical_and_failing_images_are_chosen_by_the_lead():
    lead = [0.0, 0.3, -0.2, 0.1, 0.2, -0.3, 0.01, -0.1, 0.02, 0.4]
    sets, reason = choose_examples(*ranked(lead), each=2)
    places = {choice.name: [int(image, 16) for image in choice.images] for choice in sets}
    assert places == {"strong": [9, 1], "typical": [6, 8], "failures": [5, 2]}
    assert "are 10 images" in reason
    assert "MAS insertion (weight 2)" in reason


def test_only_images_that_every_ranking_metric_has_are_chosen():
    lead = [0.1, 0.2, -0.1, 0.9, 0.9]
    sets, _ = choose_examples(*ranked(lead, limits={"deletion": 3}), each=1)
    assert [int(choice.images[0], 16) for choice in sets] == [1, 0, 2]


@pytest.mark.parametrize(
    ("metrics", "methods"), [(("insertion", "deletion"), METHODS), (MAS, ("fringe",)), (("steps",), METHODS)]
)
def test_without_rivals_or_mas_the_first_images_are_shown_and_the_reason_given(metrics, methods):
    sets, reason = choose_examples(*ranked([0.1, 0.2, 0.3, 0.4], metrics, methods))
    assert [(c.name, len(c.images)) for c in sets] == [("first", 3)]
    assert "not chosen by their scores" in reason


def test_no_image_is_shown_as_a_strength_where_there_is_none():
    sets, _ = choose_examples(*ranked([-0.1, -0.2, -0.3, -0.4]), each=1)
    assert [choice.name for choice in sets] == ["typical", "failures"]


def test_the_forest_shows_the_table_s_differences():
    found, *_ = ranked([0.1, 0.2, -0.1, 0.3])
    table = build_table(found, "net")
    figure = forest(table)
    drawn = {line.get_gid(): line.get_xdata()[0] for line in figure.axes[0].lines if line.get_gid()}
    assert drawn["value ig"] == pytest.approx(np.mean([0.1, 0.2, -0.1, 0.3]))
    panels = [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]
    assert panels == ["MAS insertion", "MAS deletion", "Insertion AUC", "Deletion AUC"]
    assert forest(build_table(found, "net", "fringe")) is not None
    assert forest(build_table(ranked([0.1, 0.2], methods=("fringe",))[0], "net")) is None


def test_a_metric_under_which_nobody_can_be_compared_has_no_panel():
    about = runs.manifest(("fringe", "ig"), ("insertion", "deletion"), 2)
    scores = {("net", m, k): [0.1, 0.3] for m in ("fringe", "ig") for k in about.metrics}
    scores["net", "ig", "insertion"] = [None, None]
    figure = forest(build_table(runs.results(about, scores), "net"))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Deletion AUC"]


def test_a_curve_of_the_figure_is_the_mean_of_the_images_curves():
    def give(method, metric, place):
        line = np.array([0.0, 0.5, 1.0]) * (place + 1) / 3 * (1 if method == "ig" else 0.5)
        return (("normalised", line), ("raw", line / 2), ("aligned", line / 4))

    metrics = ("insertion", "insertion:raw", "mas_insertion", "steps")
    found = runs.scored({"ig": (0.1, 0.2, 0.3), "fringe": (0.1, 0.2, 0.3)}, metrics, curves=give)
    drawn = curves(found, build_table(found, "net"))
    assert list(drawn) == ["curves", "mas-curves"]
    normalised, raw = drawn["curves"].axes[:2]
    means = {line.get_gid(): line.get_ydata() for line in normalised.lines if line.get_gid()}
    np.testing.assert_allclose(means["mean ig"], np.array([0.0, 0.5, 1.0]) * 2 / 3)
    assert list(means) == ["mean fringe", "mean ig"]  # the reference first: it is drawn strongest
    np.testing.assert_allclose(raw.lines[0].get_ydata(), np.array([0.0, 0.5, 1.0]) / 6)
    np.testing.assert_allclose(drawn["mas-curves"].axes[0].lines[0].get_ydata(), np.array([0.0, 0.5, 1.0]) / 12)


def test_curves_of_images_of_different_sizes_are_brought_to_one_length():
    lines = [np.linspace(0, 1, 3), np.linspace(0, 1, 5) ** 2, np.array([0.0, np.nan, 0.0, 0.0, 1.0])]
    found = runs.scored({"ig": [0.5] * 3}, curves=lambda m, k, i: (("normalised", lines[i]),))
    lines = found.details("net", "ig", {"insertion": "curve/normalised"})["insertion"]
    stack = stacked(list(lines.values()))
    np.testing.assert_allclose(stack[0], [0, 0.25, 0.5, 0.75, 1])
    np.testing.assert_allclose(stack[1], lines[1])
    np.testing.assert_array_equal(np.isnan(stack[2]), [False, True, False, False, False])


def test_a_run_without_curves_has_no_figure_of_them():
    found, *_ = ranked([0.1, 0.2])
    assert curves(found, build_table(found, "net")) == {}


def test_costs_are_means_over_the_images_that_have_a_map():
    about = runs.manifest(("fringe", "ig", "zero"), ("insertion", "deletion"), 3, limits={"deletion": 2})
    scores = {("net", m, "insertion"): [0.1, 0.2, 0.3] for m in ("fringe", "ig", "zero")}
    scores |= {("net", m, "deletion"): [0.1, 0.2] for m in ("fringe", "ig", "zero")}
    scores["net", "ig", "insertion"] = [0.1, "broken", 0.3]
    scores["net", "ig", "deletion"] = [0.1, "broken"]
    scores["net", "fringe", "insertion"] = ["broken", 0.2, 0.3]  # and sound under deletion
    spent = {"forward": 10, "jvp": 0, "vjp": 4}
    more = {name: (lambda m, k, i, c=c: c * (i + 1.0)) for name, c in spent.items()}
    found = runs.results(about, scores, **more, seconds=lambda m, k, i: 0.5)
    assert cost_of_maps(found, ["net"], "fringe").rows() == [(3, 20, 0, 8, 28, 0.5)]
    assert cost_of_maps(found, ["net"], "ig").rows() == [(2, 20, 0, 8, 28, 0.5)]


def test_reasons_are_counted_by_image_and_not_by_score():
    about = runs.manifest(("fringe", "ig"), ("insertion", "deletion"), 4)
    scores = {("net", m, k): [0.1] * 4 for m in ("fringe", "ig") for k in about.metrics}
    for metric in about.metrics:
        scores["net", "ig", metric] = ["too large", "too large", "no memory", 0.4]
    scores["net", "fringe", "deletion"] = [0.1, 0.1, 0.1, "gone"]  # under one metric alone
    found = runs.results(about, scores).failures()
    assert found.select("method", "images", "reason").rows() == [
        ("fringe", 1, "gone"),
        ("ig", 2, "too large"),
        ("ig", 1, "no memory"),
    ]


def test_a_reason_that_methods_share_is_one_row(tmp_path):
    about = replace(runs.manifest(("fringe", "ig"), ("insertion",), 3), missing=("a.png: no such file",))
    scores = {
        ("net", "fringe", "insertion"): [0.1, "no image", 0.2],
        ("net", "ig", "insertion"): ["gone", "no image", 1.0],
    }
    write_report(runs.store_of(tmp_path / "run", about, scores), tmp_path / "out")
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "| net | fringe, ig | 1 | no image |\n| net | ig | 1 | gone |" in text
    assert "photos, drawn by seed 0 and named by their content; 1 more image cannot be read." in text


def test_images_in_their_order_are_not_called_drawn(tmp_path):
    about = runs.manifest(("fringe",), ("insertion",), 2)
    about = replace(about, plan={**about.plan, "sample": False})
    scores = {("net", "fringe", "insertion"): [0.1, 0.2]}
    write_report(runs.store_of(tmp_path / "run", about, scores), tmp_path / "out")
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "2 images of photos, the first ones in their order and named by their content." in text
    assert "drawn by seed" not in text


def test_verdicts_are_counted_by_image():
    def verdict(method, metric, place):
        return None if method == "ig" else ("ok", "ok", "coarse")[place]

    found = runs.scored({"fringe": [0.1] * 3, "ig": [0.1] * 3}, ("insertion", "deletion"), verdict=verdict)
    assert verdicts(found, "net") == {"fringe": {"ok": 2, "coarse": 1}}


def test_a_grid_shows_each_image_with_its_own_scores_and_says_why_a_map_is_not_there():
    about = runs.manifest(("ig", "fringe"), MAS, 3)
    scores = {("net", m, k): [0.1, 0.2, 0.3] for m in ("ig", "fringe") for k in MAS}
    scores["net", "fringe", "mas_insertion"] = [0.61, 0.72, 0.83]
    scores["net", "fringe", "mas_deletion"] = [0.1, 0.2, 0.0]  # zero is a score, and the best one
    for metric in MAS:
        scores["net", "ig", metric] = [0.5, 0.4, "no memory"]
    found = runs.results(about, scores)
    picked = tuple(image["digest"] for image in about.images[1:])
    spots = {image: np.eye(8)[None] * (place + 1.0) for place, image in enumerate(picked)}
    shown = GridData(
        dict.fromkeys(picked, np.ones((8, 8, 1))), {"fringe": spots, "ig": {picked[0]: spots[picked[0]]}}, None
    )
    figure = plot_examples(found, build_table(found, "net"), ExampleSet("strong", "Strong", picked), shown)
    maps = figure.axes
    assert maps[5].texts[0].get_text() == "failed"
    below = [text for text in figure.findobj(Text) if text.get_text() and text.get_gid() != "caption"]
    below = [text for text in below if text is not figure._suptitle]
    assert Counter(text.get_text() for text in below) >= Counter(
        (
            *("input", "FRInGe", "Integrated\nGradients", "failed"),
            *("class 3 · 75.0%\nimage-1, is class 1", "MI .72", "MD .20", "MI .40", "MD .40"),
            *("class 3 · 75.0%\nimage-2, is class 2", "MI .83", "MD .00", "MI –", "MD –"),
        )
    )
    bold = {text.get_text() for text in below if text.get_weight() == "bold" and text.get_text().startswith("M")}
    assert bold == {"MI .72", "MD .20", "MI .83", "MD .00"}


@pytest.mark.parametrize(("missing", "share"), [(0, "100%"), (1, "99%"), (1999, "0%")])
def test_a_status_says_100_percent_only_where_nothing_is_missing(missing, share):
    cell = {"model": "net", "method": "ig", "metric": "insertion", "required": 2000, "failed": 1}
    cells = [{**cell, "scored": 1999 - missing, "missing": missing}]
    plan = {"images": 2000, "cells": cells, "failures": [], "not_read": [], "versions": {}, "lost_maps": []}
    shown = describe_status({"plans": {"benchmark": plan}, "damaged": [], "invalidated": [], "trials": 0})
    assert [part.cells[0][-1].text for part in shown if isinstance(part, Table)] == [share]
