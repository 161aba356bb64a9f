"""A comparison as text, notebook, table and picture; and models and images in the forms that ``explain`` takes."""

import dataclasses
import re

import matplotlib.figure
import numpy as np
import pytest
import torch
from markupsafe import escape

import fringe
from fringe._strings.formats import with_interval
from fringe.bench.comparison import ImageComparison
from fringe.data import SOURCE
from fringe.evaluation import NOT_BETTER_MEANS, TidyScores, grid_row, tidy
from fringe.evaluation._statistics import BELOW, least_images, too_few
from fringe.explanations._spec import CompareSpec
from fringe.metrics import USUAL_METRICS, get_metric
from fringe.models import load_model

METHODS = [("ig", fringe.IntegratedGradients(steps=4)), ("<b>", fringe.IntegratedGradients(steps=2))]
METRICS = ["sparseness", "insertion"]


@pytest.fixture(scope="module")
def result():
    return fringe.compare("embedded:digits", "embedded:digits:3:5", METHODS, METRICS)


def test_a_spec_and_images_are_the_tensor_and_the_module(result):
    digits = load_model("embedded:digits")
    low, high = digits.preprocessing.bounds()
    plain = fringe.compare(
        digits.module,
        result.context.inputs,
        METHODS,
        METRICS,
        ids=["digits-0003", "digits-0004"],
        space=fringe.InputSpace(low, high),
    )
    assert tidy(plain) == tidy(result)
    array = (result.context.pixels(result.context.inputs)[:, 0].numpy() * 255).round().astype(np.uint8)
    pictures = fringe.compare(digits, [array[0], array[1]], METHODS, METRICS, controls=False)
    for row, other in zip(pictures.rows, result.rows, strict=False):
        torch.testing.assert_close(row.maps, other.maps, rtol=1e-3, atol=1e-5)
    with pytest.raises(fringe.InputError, match="preprocessing='imagenet'"):
        fringe.compare(digits.module, array[0], METHODS, METRICS)


def test_the_text_is_the_table_of_the_summaries(result):
    lines = repr(result).splitlines()
    assert lines[0] == "Comparison of digits · 2 images · 2 methods"
    assert lines[1].split() == ["method", "sparseness", "↑", "insertion", "↑", "passes"]
    (entry,) = (r for r in result.tidy_scores.entries() if (r["method"], r["metric"]) == ("ig", "insertion"))
    shown = with_interval(entry["mean"], entry["low"], entry["high"], 3)
    assert re.split(r" {2,}", lines[3])[1:4:2] == ["ig (Integrated Gradients)", shown]
    assert len(lines) == 5 + len(result.rows)  # with two rules and a note
    assert lines[-1].strip().startswith("not tested: 2 images cannot show")
    assert len(result) == 2
    assert not [name for name in dir(result) if name.startswith("_")]


def test_scores_that_are_not_better_than_every_control_are_marked():
    """Eight images, one method, two metrics: two sign assignments of 2**8 are as extreme as the observed one."""
    rows = [
        {
            "method": name,
            "control": name != "ig",
            "metric": metric,
            "image": str(place),
            "score": score,
            "flags": [],
        }
        for metric in ("insertion", "deletion")
        for name, level in (("ig", 0.5), ("zero", 0.2), ("edge", 0.3))
        for place, score in enumerate(level + 0.01 * np.arange(8))
    ]
    metrics = {"insertion": get_metric("insertion"), "deletion": get_metric("deletion")}
    better = {(e["method"], e["metric"]): e["better_than_controls"] for e in TidyScores(rows, metrics).entries()}
    assert better == {
        ("ig", "insertion"): True,  # .0156, as the other p is 1
        ("ig", "deletion"): False,
        **{(control, metric): None for control in ("zero", "edge") for metric in metrics},
    }
    few = [row for row in rows if int(row["image"]) < least_images(2) - 1]
    assert {entry["better_than_controls"] for entry in TidyScores(few, metrics).entries()} == {None}


@pytest.mark.parametrize("count", [1, 2, 9, 100])
def test_so_many_images_can_show_that_a_score_is_better(count):
    """n images have 2^n signs, and the first step of Holm's adjustment multiplies by the number of scores."""
    least = least_images(count)
    assert count * 2 / 2**least < BELOW <= count * 2 / 2 ** (least - 1)
    assert too_few(least, count) == []
    (said,) = too_few(least - 1, count)
    assert said.endswith(f"take at least {least}")


def test_the_mark_of_a_comparison_is_explained_below_its_table(result):
    found = fringe.compare("embedded:digits", "embedded:digits:0:7", METHODS, ["sparseness"])
    assert [entry["better_than_controls"] for entry in found.tidy_scores.entries()][:2] == [False, False]
    head, _, *lines = repr(found).splitlines()[1:]
    assert [re.split(r" {2,}", line)[2].endswith("‡") for line in lines[:2]] == [True, True]
    assert lines[-1].strip() == NOT_BETTER_MEANS
    assert sum("‡" in line for line in [head, *lines]) == 3
    assert f"<li>{escape(NOT_BETTER_MEANS)}</li>" in found._repr_html_()
    assert "‡" not in repr(result)  # of two images


def test_the_command_line_and_the_library_have_the_same_usual_metrics(tmp_path):
    assert CompareSpec().metrics == ",".join(USUAL_METRICS)
    kinds = [CompareSpec(), CompareSpec(set=["signed_insertion.steps=8"]), CompareSpec(metrics="signed_insertion")]
    asked = [ImageComparison([SOURCE], tmp_path / "out", spec).plan.metrics for spec in kinds]
    assert asked[0] == USUAL_METRICS
    assert [[metric.steps for metric in one.values() if hasattr(metric, "steps")] for one in asked] == [
        [32, 32],
        [8, 32],
        [None],
    ]


def test_the_picture_shows_a_control_beside_the_methods(result):
    row = grid_row(result, result.context, 0)
    assert len(row.cells) == len([one for one in result.rows if not one.control])
    ((name, cell),) = row.controls
    (edge,) = [one for one in result.rows if one.label == name == "edge"]
    assert (cell.values == edge.maps[0].numpy()).all()
    marked = [one for one in (*row.cells, cell) if any(score.best for score in one.annotations)]
    assert marked  # the best of all that is drawn, a control, too
    alone = fringe.compare("embedded:digits", "embedded:digits:0", ["ig"], ["sparseness"], controls=False)
    assert grid_row(alone, alone.context, 0).controls == ()


def test_a_notebook_shows_the_table_and_the_picture(result):
    html = result._repr_html_()
    assert "&lt;b&gt;" in html
    assert html.count("data:image/png;base64,") == 1
    bare = fringe.compare(lambda x: torch.stack([x.sum(1), x[:, 0]], 1), torch.rand(2, 5), ["ig"], ["sparseness"])
    assert "<img" not in bare._repr_html_()
    with pytest.raises(fringe.InputError, match="the inputs are no images"):
        bare.plot()


def test_the_picture_is_a_figure_of_its_own_or_a_part_of_the_callers(result):
    assert isinstance(result.plot(), matplotlib.figure.Figure)
    mine = matplotlib.figure.Figure()
    assert result.plot(ax=mine.subplots()) is mine
    rows = tuple(dataclasses.replace(row, maps=None) for row in result.rows)
    with pytest.raises(fringe.InputError, match="keep_maps"):
        dataclasses.replace(result, rows=rows).plot()


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_table_has_a_row_for_each_method_metric_and_image(library, result):
    pytest.importorskip(library)
    table = result.to_dataframe(library)
    assert len(table) == len(result.rows) * 2 * 2
    assert list(table["score"][:2]) == [row["score"] for row in tidy(result)[:2]]
