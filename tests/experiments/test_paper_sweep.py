"""One setting at a time: which settings are scored, and what the lines through them say."""

import dataclasses
import math

import numpy as np
import pytest
from paper_sweep import default_factors, one_at_a_time, sweep_lines

from fringe import METHODS, FRInGe, InputError
from fringe.attribution import PaperFRInGe
from fringe.bench.tuning import has_paper_settings, objective

BASE = PaperFRInGe(tau=1e-3, delta_euc=3.0, damping=1e-5, gamma_step=1e-3, gamma_prior=1e-3)


def scores_of(method, images=40, spread=0.1):
    """Scores of one kind: images differ by the same amounts in every setting."""
    noise = spread * np.random.default_rng(0).standard_normal(images)
    level = 0.5 + 0.05 * math.log10(method.damping / 1e-5) / 5 + 0.1 * math.log10(method.gamma_step / 1e-3)
    return {"insertion": level + noise, "deletion": 0.3 - noise / 2, "infidelity": 0.2 + np.abs(noise)}


@pytest.mark.parametrize("method", [PaperFRInGe(), FRInGe()])
def test_the_papers_factors_and_their_grids(method):
    factors = default_factors(method)
    assert list(factors) == ["tau", "eta_max", "delta_euc", "damping", "gamma"]
    ends = {"tau": (3e-4, 5e-2), "eta_max": (1, 30), "delta_euc": (0.3, 40), "damping": (1e-12, 0.1)}
    for factor, values in factors.items():
        low, high = ends.get(factor, (1e-5, 1e-2))  # gamma: over the ranges of both
        assert (values[0], values[-1], len(values)) == (low, high, 7)
        steps = np.diff(np.log(values))
        assert np.allclose(steps, steps[0], atol=0.01)  # three digits
    assert factors["gamma"] == (1e-5, 3.16e-5, 1e-4, 3.16e-4, 1e-3, 3.16e-3, 1e-2)


@pytest.mark.parametrize("name", sorted(name for name, method in METHODS.items() if method.search_space()))
def test_default_grids_lie_in_the_ranges_of_every_method(name):
    fields = {f["name"]: f for f in METHODS[name].describe()}
    ranged = {n for n, about in fields.items() if about["low"] is not None}
    factors = default_factors(METHODS[name]())
    expected = {"tau", "eta_max", "delta_euc", "damping"} if has_paper_settings(METHODS[name]) else ranged
    assert set(factors) - {"gamma"} == expected
    for factor in set(factors) & ranged:
        low, high = fields[factor]["low"], fields[factor]["high"]
        assert (factors[factor][0], factors[factor][-1]) == (low, high)
        assert list(factors[factor]) == sorted(set(factors[factor]))
        whole = isinstance(low, int) and isinstance(high, int)
        assert {type(value) for value in factors[factor]} == {int if whole else float}
    assert len(one_at_a_time(METHODS[name]())) > 5 or not factors


def test_each_setting_differs_from_the_centre_in_one_factor():
    points = one_at_a_time(BASE, {"damping": [1e-5, 1e-3, 0.1], "cg_iterations": [5], "gamma": [0.0, 1e-3]})
    assert points == {
        "centre": BASE,
        "damping=0.001": dataclasses.replace(BASE, damping=1e-3),
        "damping=0.1": dataclasses.replace(BASE, damping=0.1),
        "cg_iterations=5": dataclasses.replace(BASE, cg_iterations=5),
        "gamma=0.0": dataclasses.replace(BASE, gamma_step=0.0, gamma_prior=0.0),
    }


def test_labels_are_as_one_types_them():
    assert "damping=1e-05" in one_at_a_time(FRInGe(), {"damping": [1e-5]})
    assert "direction=gradient" in one_at_a_time(PaperFRInGe(), {"direction": ["gradient"]})
    assert "delta_euc=None" in one_at_a_time(FRInGe(), {"delta_euc": [None]})


@pytest.mark.parametrize(
    ("base", "factors", "message"),
    [
        (BASE, {"dampin": [1]}, r"paper factor: got 'dampin', expected one of .*, gamma; did you mean 'damping'"),
        (
            METHODS["ig"](),
            {"gamma": [1]},
            "ig factor: got 'gamma', expected one of steps, baseline, rule, focus, focus_floor$",
        ),
        (BASE, {"tau": [0.0]}, "tau: got 0.0, expected a positive number"),
        (BASE, {"gamma": [-1]}, "gamma_step: got -1"),
    ],
)
def test_factors_that_are_none(base, factors, message):
    with pytest.raises(InputError, match=message):
        one_at_a_time(base, factors)


def test_a_line_holds_the_objective_of_each_value_and_the_centre_in_its_place():
    factors = {"damping": [1e-1, 1e-9], "gamma": [1e-4, 1e-3, 1e-2]}
    scores = {label: scores_of(method) for label, method in one_at_a_time(BASE, factors).items()}
    lines = sweep_lines(BASE, scores, factors)
    assert list(lines) == ["damping", "gamma"]
    assert lines["damping"].values == (1e-9, 1e-5, 1e-1)
    assert lines["gamma"].values == (1e-4, 1e-3, 1e-2)
    centre = objective(**scores["centre"])
    for line in lines.values():
        expected = [
            objective(**scores_of(dataclasses.replace(BASE, damping=v)))
            if line.factor == "damping"
            else objective(**scores_of(dataclasses.replace(BASE, gamma_step=v, gamma_prior=v)))
            for v in line.values
        ]
        assert line.objective == tuple(expected)
        assert line.centre == {"damping": 1e-5, "gamma": 1e-3}[line.factor]
        assert line.objective[line.values.index(line.centre)] == line.centre_objective == centre


@pytest.mark.parametrize(
    ("base", "factor"), [(FRInGe(), "delta_euc"), (dataclasses.replace(BASE, gamma_prior=1e-4), "gamma")]
)
def test_a_centre_that_is_no_number_has_no_place_on_the_line(base, factor):
    factors = {factor: [1e-3, 1e-2]}
    scores = {label: scores_of(method) for label, method in one_at_a_time(base, factors).items()}
    line = sweep_lines(base, scores, factors)[factor]
    assert line.values == (1e-3, 1e-2)
    assert line.centre is None
    assert line.centre_objective == objective(**scores["centre"])


def test_equal_images_have_intervals_without_width_and_one_image_none():
    for images, expected in ((5, True), (1, False)):
        line = sweep_lines(BASE, {"centre": scores_of(BASE, images, spread=0.0)}, {"damping": [1e-5]})["damping"]
        assert (line.low[0] == pytest.approx(line.objective[0])) == expected
        assert math.isnan(line.low[0]) == (not expected)


def test_intervals_of_settings_move_together():
    """The same resamples for all: a setting that is better on every image is better at both ends."""
    factors = {"damping": [1e-9, 1e-1]}
    scores = {label: scores_of(method) for label, method in one_at_a_time(BASE, factors).items()}
    line = sweep_lines(BASE, scores, factors)["damping"]
    for row in (line.objective, line.low, line.high):
        assert list(row) == sorted(row)
    assert sweep_lines(BASE, scores, factors)["damping"] == line


def test_failed_settings_are_gaps():
    factors = {"damping": [1e-9, 1e-3, 1e-1]}
    scores = {label: scores_of(method) for label, method in one_at_a_time(BASE, factors).items()}
    scores["damping=0.1"] = None
    scores["damping=0.001"] = scores["damping=0.001"] | {"deletion": [math.nan] * 40}
    line = sweep_lines(BASE, scores, factors)["damping"]
    assert [math.isfinite(v) for v in line.objective] == [True, True, False, False]
    assert [math.isfinite(v) for v in line.low] == [True, True, False, False]


def test_what_makes_no_line():
    with pytest.raises(InputError, match=r"scores: none of damping=0.1; give None"):
        sweep_lines(BASE, {"centre": scores_of(BASE)}, {"damping": [1e-1]})
    with pytest.raises(InputError, match=r"direction: got \('gradient',\), expected numbers, for a line"):
        sweep_lines(BASE, {"centre": None, "direction=gradient": None}, {"direction": ["gradient"]})
    with pytest.raises(InputError, match=r"delta_euc: got \(1.0, None\), expected numbers, for a line"):
        sweep_lines(BASE, {"centre": None, "delta_euc=1.0": None, "delta_euc=None": None}, {"delta_euc": [1.0, None]})
    scores = {"insertion": [0.5, 0.5], "deletion": [0.5, 0.5], "infidelity": [-0.1, 0.3]}  # 0.1 in the mean
    with pytest.raises(InputError, match=r"infidelity: got a mean of -0\.1, expected none below zero"):
        sweep_lines(BASE, {"centre": scores}, {"damping": [1e-5]})


@pytest.mark.parametrize("grids", ["aabbbcd", "abcdefg", "aaaaaab"])
def test_an_interval_by_hand(grids):
    """The same draws, each image written as often as its cluster is drawn."""
    rng, names = np.random.default_rng(8), sorted(set(grids))
    scores = {name: rng.random(7) for name in ("insertion", "deletion", "infidelity")}
    draws = np.random.default_rng(0).multinomial(len(names), [1 / len(names)] * len(names), size=1000)
    values = []
    for counts in draws:
        often = [dict(zip(names, counts, strict=True))[grid] for grid in grids]
        values.append(objective(*(np.repeat(column, often) for column in scores.values())))
    clusters = None if len(names) == 7 else list(grids)
    line = sweep_lines(BASE, {"centre": scores}, {"damping": [1e-5]}, clusters=clusters)["damping"]
    assert (line.low[0], line.high[0]) == pytest.approx(np.quantile(values, [0.025, 0.975]), rel=1e-12)


def test_one_cluster_has_no_interval_and_a_name_is_due_to_each_image():
    scores, factors = {"centre": scores_of(BASE)}, {"damping": [1e-5]}
    assert math.isnan(sweep_lines(BASE, scores, factors, clusters=["one"] * 40)["damping"].low[0])
    with pytest.raises(InputError, match="clusters: got '39 names', expected 40, one for each image"):
        sweep_lines(BASE, scores, factors, clusters=range(39))
