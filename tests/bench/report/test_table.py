"""The numbers of a table against ones worked out another way: plain numpy, all sign flips by hand, Holm by hand."""

import itertools
import math

import numpy as np
import pytest
import report_toys as runs

from fringe.bench.report import build_table
from fringe.bench.report._table import flag_lines, legend, reference_of
from fringe.errors import InputError
from fringe.evaluation import NOT_BETTER_MEANS, compare_with_controls

rng = np.random.default_rng(7)
N = 8
FRINGE = rng.normal(0.70, 0.02, N)
NEAR = FRINGE - np.array([0.001, -0.002, 0.003, 0.001, 0.002, -0.001, 0.001, -0.002])
FAR = FRINGE - 0.2 - 0.01 * np.arange(N)
METHODS = ("fringe", "near", "far", "random")


def table(metrics=("insertion", "deletion"), **more):
    about = runs.manifest(METHODS, metrics, N, seed=5)
    scores = {}
    for metric in metrics:
        sign = -1 if metric in ("deletion", "infidelity") else 1
        columns = {"fringe": FRINGE, "near": NEAR, "far": FAR, "random": FRINGE + 0.5}
        for method, column in columns.items():
            scores["net", method, metric] = list(sign * column)
    return build_table(runs.results(about, scores), "net", **more)


def table_of(columns, metrics=("insertion",), **more):
    return build_table(runs.scored(columns, metrics, **more), "net")


def cells(found, metric):
    return {method: found.scores.cells[method, metric] for method in found.rows}


def test_means_and_intervals_are_numpys():
    """The bootstrap as its definition says: resample images 1000 times, and take 2.5 and 97.5 percentiles of means."""
    for metric, sign in (("insertion", 1), ("deletion", -1)):
        found = cells(table(), metric)
        for method, column in (("fringe", FRINGE), ("near", NEAR), ("far", FAR)):
            drawn = np.random.default_rng(5).integers(0, N, (1000, N))
            low, high = np.percentile((sign * column)[drawn].mean(1), [2.5, 97.5])
            cell = found[method]
            assert cell.estimate.n == N
            assert cell.estimate.value == pytest.approx(sign * column.mean(), rel=1e-12)
            assert (cell.estimate.low, cell.estimate.high) == pytest.approx((low, high), rel=1e-12)
            assert cell.estimate.half == pytest.approx((high - low) / 2, rel=1e-12)


def test_a_median_stands_with_the_interval_of_the_median():
    scores = np.array([1.0, 2, 4, 8, 100])
    cell = cells(table_of({"fringe": scores, "ig": [9] * 5}, ("max_sensitivity",)), "max_sensitivity")["fringe"]
    drawn = np.random.default_rng(0).integers(0, 5, (1000, 5))
    low, high = np.percentile(np.median(scores[drawn], 1), [2.5, 97.5])
    assert (cell.estimate.value, cell.estimate.half_iqr) == (4.0, (8 - 2) / 2)
    assert cell.cell().text == f"4.000 [{low:.3f}, {high:.3f}]"


def test_p_is_that_of_all_sign_flips_adjusted_by_holm_over_the_whole_table():
    found = table(("insertion", "deletion", "steps"))
    by_hand = {}
    for metric, sign in (("insertion", 1), ("deletion", -1)):
        for method, column in (("near", NEAR), ("far", FAR)):
            d = sign * (FRINGE - column)
            flips = [abs(np.dot(signs, d)) >= abs(d.sum()) - 1e-12 for signs in itertools.product((1, -1), repeat=N)]
            by_hand[metric, method] = float(np.mean(flips))
    assert found.scores.comparisons == 4
    running = 0.0
    for rank, (place, p) in enumerate(sorted(by_hand.items(), key=lambda item: item[1])):
        running = max(running, min(1.0, p * (4 - rank)))
        metric, method = place
        assert cells(found, metric)[method].adjusted == pytest.approx(running)
    # Every image speaks against `far`: 2 of 256 assignments are as extreme, and four comparisons are asked
    far = cells(found, "insertion")["far"]
    assert far.difference.p == 2 / 2**N
    assert far.adjusted == pytest.approx(4 * 2 / 2**N)
    assert far.mark == "*‡"
    assert far.difference.value == pytest.approx(np.mean(FRINGE - FAR))
    assert cells(found, "steps")["far"].difference is None
    assert all(cell.difference is None for cell in cells(found, "insertion").values() if cell.rank == "best")


def test_the_greatest_p_over_the_controls_counts_adjusted_by_holm():
    """By hand: every sign assignment against each control, the greatest p, then Holm over four scores."""
    n = 9
    rng = np.random.default_rng(11)
    base = rng.normal(0.6, 0.05, n)
    columns = {
        "fringe": base + 0.3,
        "ig": base + 0.1 + rng.normal(0, 0.1, n),
        "zero": base,
        "random": base - 0.4,
        "edge": base + 0.05 + rng.normal(0, 0.02, n),
    }
    about = runs.manifest(tuple(columns), ("insertion", "deletion", "steps"), n)
    signs = {"insertion": 1, "deletion": -1, "steps": 1}
    columns["edge"][-1] = np.nan  # compared on the other images
    scores = {
        ("net", method, metric): [None if math.isnan(value) else sign * value for value in column]
        for metric, sign in signs.items()
        for method, column in columns.items()
    }
    found = build_table(runs.results(about, scores), "net")
    by_hand = {}
    for method in ("fringe", "ig"):
        p_values = {}
        for control in ("zero", "random", "edge"):
            d = columns[method] - columns[control]
            d = d[np.isfinite(d)]
            flips = [abs(np.dot(s, d)) >= abs(d.sum()) - 1e-12 for s in itertools.product((1, -1), repeat=len(d))]
            p_values[control] = float(np.mean(flips)) if d.sum() > 0 else 1.0
        by_hand[method] = max(p_values.items(), key=lambda item: item[1])
    assert by_hand["fringe"] == ("edge", 2 / 2**8)  # zero and random: 2 / 2**9
    assert 0.004 < by_hand["ig"][1] < 1
    assert len(found.scores.tests) == 4
    ranked = sorted(by_hand.items(), key=lambda item: item[1][1])
    wanted, running = {}, 0.0
    for rank, (method, (_, p)) in enumerate([one for one in ranked for _ in range(2)]):
        running = max(running, min(1.0, p * (4 - rank)))
        wanted.setdefault(method, []).append(running)
    for method, adjusted in wanted.items():
        tests = [cells(found, metric)[method].test for metric in ("insertion", "deletion")]
        assert [test.control for test in tests] == [by_hand[method][0]] * 2
        assert sorted(test.adjusted for test in tests) == pytest.approx(adjusted)
        d = columns[method] - columns[by_hand[method][0]]
        assert [test.difference.value for test in tests] == pytest.approx([np.nanmean(d), -np.nanmean(d)])
    assert cells(found, "insertion")["fringe"].test.better
    assert not cells(found, "insertion")["ig"].test.better
    assert all(cell.test is None for cell in cells(found, "steps").values())
    assert all(cells(found, "insertion")[control].test is None for control in ("zero", "random", "edge"))


def test_images_that_share_pixels_have_one_sign():
    rng = np.random.default_rng(2)
    clusters = [f"c{i // 2}" for i in range(14)]
    scores = {"ig": rng.normal(0.3, 0.4, 14), "zero": np.zeros(14)}
    d = scores["ig"].reshape(7, 2).sum(1)
    flips = [abs(np.dot(s, d)) >= abs(d.sum()) - 1e-12 for s in itertools.product((1, -1), repeat=7)]
    test = compare_with_controls(scores, ["zero"], "higher", "mean", 0, clusters=clusters)["ig"]
    assert test.p == np.mean(flips)
    assert test.p != compare_with_controls(scores, ["zero"], "higher", "mean", 0)["ig"].p


def test_a_control_that_is_ahead_decides_and_the_farthest_one_is_named():
    levels = {"fringe": 0.5, "zero": 0.4, "random": 0.9, "edge": 0.6}
    columns = {method: [value + 0.01 * place for place in range(8)] for method, value in levels.items()}
    found = table_of(columns, ("insertion", "max_sensitivity"))
    first, second = (cells(found, metric)["fringe"].test for metric in ("insertion", "max_sensitivity"))
    assert (first.control, first.p, first.better) == ("random", 1.0, False)
    assert (second.control, second.p, second.better) == ("zero", 1.0, False)  # lower is better: zero is ahead
    assert second.difference.value == pytest.approx(0.1)


def test_the_greatest_p_decides_and_of_equal_ones_the_best_control():
    noise = np.array([1.2, -1.0, 1.2, -1.0, 1.2, -1.0, 1.2, 1.2])
    columns = {"ig": np.ones(8), "zero": np.full(8, 0.9), "edge": 0.4 + noise, "random": np.full(8, 0.5)}
    for direction, sign in (("higher", 1), ("lower", -1)):
        scores = {label: sign * column for label, column in columns.items()}
        for controls, decides in ((["zero", "edge", "random"], "edge"), (["random", "zero"], "zero")):
            for order in (controls, controls[::-1]):
                test = compare_with_controls(scores, order, direction, "mean", 0)["ig"]
                assert test.control == decides
                assert test.p == (2 / 2**8 if decides == "zero" else test.difference.p)
    assert np.mean(1 - columns["edge"]) > np.mean(1 - columns["zero"]) > 0  # zero is nearer, and more surely behind


def test_without_controls_or_common_images_nothing_is_compared_with_them():
    assert table_of({"fringe": [0.1, None], "zero": [None, 0.2]}).scores.tests == []
    assert table_of({"fringe": [0.1, 0.2], "ig": [0.1, 0.2]}).scores.tests == []


def test_best_near_and_far_are_told_apart_and_controls_do_not_compete():
    for metric in ("insertion", "deletion"):
        found = cells(table(), metric)
        assert [one.rank for one in found.values()] == ["best", "near", "", ""]
        assert found["random"].difference is None
        assert math.isnan(found["random"].adjusted)


def test_who_scores_exactly_as_the_best_is_best_too():
    found = cells(table_of({"a": [0.5] * 3, "b": [0.5] * 3, "c": [0.4] * 3}), "insertion")
    assert [cell.rank for cell in found.values()] == ["best", "best", ""]


def test_a_metric_without_a_direction_praises_nobody():
    assert not any(cell.rank for cell in cells(table(("steps",)), "steps").values())


def test_missing_failed_and_undefined_images_are_counted_apart():
    ig = [0.3, "missing", "missing", "out of memory", None, 0.5]
    found = table_of({"fringe": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], "ig": ig})
    cell, counts = cells(found, "insertion")["ig"], found.counts("ig", found.columns[0])
    assert (cell.estimate.n, counts.required, counts.missing, counts.failed) == (2, 6, 2, 1)
    assert found.undefined("ig", found.columns[0]) == 1
    assert cell.estimate.mean == pytest.approx(0.4)
    assert cell.difference.n == 2
    assert cell.difference.value == pytest.approx(((0.1 - 0.3) + (0.6 - 0.5)) / 2)


def test_a_method_without_any_score_has_a_cell_and_no_comparison():
    found = table_of({"fringe": [0.1, 0.2, 0.3], "ig": [None] * 3})
    assert found.scores.comparisons == 0
    cell = cells(found, "insertion")["ig"]
    assert (cell.estimate.n, found.undefined("ig", found.columns[0]), cell.mark) == (0, 3, "")
    assert cell.cell().text == "–"


def test_flags_are_counted_for_methods_and_controls_apart():
    up = {"fringe": 1, "far": 2, "random": 3}

    def flags(method, metric, place):
        return ("zero_map",) if place < up.get(method, 0) else ()

    found = table_of({method: [0.1, 0.2, 0.3] for method in METHODS}, flags=flags)
    assert found.flags(controls=False) == {("zero_map", "Insertion AUC"): 3}
    assert found.flags(controls=True) == {("zero_map", "Insertion AUC"): 3}
    assert found.counts("far", found.columns[0]).flags() == {"zero_map": 2}


def test_columns_stand_in_the_order_and_groups_of_the_paper():
    metrics = ("steps", "infidelity", "deletion", "insertion:raw", "insertion", "mas_deletion", "mas_insertion")
    about = runs.manifest(("fringe",), metrics, 2)
    found = build_table(runs.results(about, {}), "net")
    assert [column.label for column in found.columns] == [
        "mas_insertion",
        "mas_deletion",
        "insertion",
        "deletion",
        "insertion:raw",
        "infidelity",
        "steps",
    ]
    assert found.groups == [
        ("Attribution calibration", 2),
        ("Causal faithfulness (normalised, blur)", 2),
        ("Causal faithfulness (raw, or without blur)", 1),
        ("Map focus and local robustness", 1),
        ("Other metrics", 1),
    ]
    assert found.columns[2].title == "Insertion AUC (insertion)"
    assert found.columns[3].title == "Deletion AUC"


def test_the_reference_is_fringe_or_the_first_or_the_one_asked_for():
    about = runs.manifest(("ig", "fringe", "zero"), ("insertion",), 2)
    found = runs.results(about, {})
    assert reference_of(found, "net") == "fringe"
    assert reference_of(found, "net", "ig") == "ig"
    assert reference_of(runs.results(runs.manifest(("ig", "sg"), ("insertion",), 2), {}), "net") == "ig"
    for wrong in ("zero", "igg"):
        with pytest.raises(InputError, match=rf"reference: got '{wrong}'; the methods of net: ig, fringe"):
            reference_of(found, "net", wrong)


def mixed():
    """A table with means and medians, large numbers, a control, and cells that are not complete."""
    methods, metrics = (
        ("fringe", "near", "far", "other", "random"),
        ("mas_insertion", "insertion", "infidelity", "max_sensitivity", "steps"),
    )
    rng = np.random.default_rng(1)
    n, about = 12, runs.manifest(methods, metrics, 12, limits={"max_sensitivity": 4}, models=("net_1",))
    base, offset = rng.normal(0.6, 0.05, n), dict(zip(methods, (0.0, 0.001, 0.3, 0.35, -0.2), strict=True))
    scores = {}
    for method in methods:
        for metric in metrics:
            column = base + (-1 if metric in ("mas_insertion", "insertion") else 1) * offset[method]
            scores["net_1", method, metric] = list(column[: about.metrics[metric]["limit"]])
    scores["net_1", "far", "infidelity"] = list(4000 + 100 * base)
    scores["net_1", "far", "insertion"][0] = "missing"
    scores["net_1", "near", "insertion"][1] = None

    def flags(method, metric, place):
        return ("zero_map",) if method == "far" and place == 1 else ()

    return build_table(runs.results(about, scores, flags=flags), "net_1")


def test_a_path_that_no_control_has_wins_nothing():
    """The residual of a sum: maps of controls have none."""
    found = table_of({"fringe": [0.1] * 8, "ig": [0.2] * 8, "zero": [None] * 8}, ("deletion",))
    assert next((one.rank, one.cell(near=True).style) for one in cells(found, "deletion").values()) == ("best", "")


def test_near_ties_are_bold_if_they_are_shown_to_be_better_than_the_controls():
    columns = {"fringe": FRINGE, "near": NEAR, "far": FAR}
    for zero, styles in ((0.0, ["best", "near", "", ""]), (NEAR + 0.001, ["", "", "", ""])):
        shown = table_of({**columns, "zero": zero + 0.001 * np.arange(N)}).shown
        assert [row[1].style for row in shown.cells] == styles


def test_what_is_printed_is_every_number_mark_and_n():
    """Infidelity of 4060 beside 0.6: the paper's appendix writes such a number as a power of ten."""
    found = mixed()
    shown = found.shown
    assert shown.columns[3:5] == ("Infidelity (score^2) ↓", "Max sensitivity (1 / input unit) ↓")
    assert [(row[0].value, row[0].note) for row in shown.cells][::4] == [("fringe", "reference"), ("random", "control")]
    assert shown.rules == (3,)
    for row, method in zip(shown.cells, found.rows, strict=True):
        for cell, of in zip(row[1:], found.columns, strict=True):
            given, counts = found.score(method, of), found.counts(method, of)
            one, is_shown = given.estimate, given.test is not None and given.test.better is True
            assert (cell.value, cell.ends, cell.decimals) == (one.value, (one.low, one.high), given.decimals)
            assert cell.style == (given.rank if is_shown else "")
            assert (cell.mark.count("*"), "†" in cell.mark) == (given.mark.count("*"), counts.missing > 0)
            assert ("‡" in cell.mark) == (given.test is not None and given.test.better is False)
            assert bool(cell.hint) == ("‡" in cell.mark)
            assert cell.note == f"n={one.n}" + (f" of {counts.required}" if one.n < counts.required else "")
    assert {"n=11 of 12", "n=4"} < {cell.note for row in shown.cells for cell in row}
    assert shown.cells[2][3].text.startswith("4.06×10³ [4.0")


def test_notes_say_what_is_there_and_nothing_else():
    table = mixed()
    text = " ".join(legend(table))
    assert "mean (median for Max sensitivity) [95% bootstrap interval over images, 1000 resamples, seed 0]" in text
    assert f"Holm for the {3 * 4} comparisons" in text
    assert "†: incomplete" in text
    assert NOT_BETTER_MEANS in text
    assert "adjusted after Holm for 16 scores." in text
    assert flag_lines(table) == [
        "Flagged scores of the methods: zero_map 5 (MAS insertion 1, Insertion AUC 1, Infidelity 1, Max sensitivity 1, "
        "Steps 1)."
    ]
    lonely = table_of({"fringe": [0.1, 0.2]})
    assert not [word for word in ("median", "Holm", "†", "‡") if word in " ".join(legend(lonely))]
    assert flag_lines(lonely) == ["No score is flagged."]
