"""The probability that a map is right: the fit, and the diagram on scenes it was not fitted on."""

import numpy as np
import pytest
from scipy.optimize import minimize

from fringe.errors import InputError
from fringe.experiments._reliability import PENALTY, fit_reliability, judge_reliability


def world(n: int, scenes: int, weights, bias: float = 0.2, seed: int = 0, of_scene=None):
    """Reports, and maps that are right with the logistic probability of them; ``of_scene`` adds to its logit."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, len(weights)))
    scene = np.arange(n) % scenes
    extra = 0.0 if of_scene is None else np.asarray(of_scene)[scene]
    right = rng.random(n) < 1 / (1 + np.exp(-(z @ weights + bias + extra)))
    reports = {f"report{j}": 3.0 + 2.0 * z[:, j] for j in range(len(weights))}
    return reports, right, [f"scene{k}" for k in scene], [f"cluster{i}" for i in range(n)]


def test_the_fit_is_the_maximum_of_the_penalised_likelihood():
    reports, right, *_ = world(200, 2, np.array([1.0, -0.5]))
    model = fit_reliability(reports, right)
    z = np.stack([(c - c.mean()) / c.std() for c in reports.values()], 1)
    sign = 2.0 * right - 1.0

    def loss(w):
        return np.logaddexp(0, -sign * (w[0] + z @ w[1:])).sum() + 0.5 * PENALTY * w[1:] @ w[1:]

    expected = minimize(loss, np.zeros(3), method="BFGS", options={"gtol": 1e-10}).x
    np.testing.assert_allclose([model.bias, *model.weights], expected, atol=1e-5)
    np.testing.assert_allclose(
        model.probability(reports), 1 / (1 + np.exp(-(expected[0] + z @ expected[1:]))), atol=1e-5
    )


def test_reports_that_separate_have_finite_weights():
    x = np.linspace(-1, 1, 40)
    model = fit_reliability({"x": x}, x > 0)
    assert np.isfinite(model.weights).all()
    assert model.probability({"x": x})[-1] > 0.95


def test_true_probabilities_hold():
    result = judge_reliability(*world(4000, 4, np.array([1.5, 0.0])))
    assert result.holds
    assert result.maps == sum(one.maps for one in result.bins) == 4000
    assert all(abs(one.predicted - one.observed) < 0.06 for one in result.bins)


def test_reports_that_say_nothing_have_no_skill():
    reports, _, scenes, clusters = world(2000, 4, np.array([1.5]))
    right = np.random.default_rng(7).random(2000) < 0.5
    assert not judge_reliability(reports, right, scenes, clusters).holds


def test_a_scene_that_differs_from_the_others_is_seen():
    """Fitted on the same scene, the diagram would hold: what is judged is a scene that was left out."""
    data = world(4000, 4, np.array([1.5]), of_scene=[0.0, 0.0, 0.0, -4.0])
    assert not judge_reliability(*data).holds


def test_copies_of_a_map_in_one_cluster_do_not_narrow_the_interval():
    reports, right, scenes, clusters = world(300, 3, np.array([1.0]))
    once = judge_reliability(reports, right, scenes, clusters, bins=1)
    many = {name: np.repeat(column, 5) for name, column in reports.items()}
    copies = judge_reliability(
        many, np.repeat(right, 5), list(np.repeat(scenes, 5)), list(np.repeat(clusters, 5)), bins=1
    )
    assert copies.bins[0].high - copies.bins[0].low == pytest.approx(once.bins[0].high - once.bins[0].low, rel=1e-9)
    apart = judge_reliability(
        many, np.repeat(right, 5), list(np.repeat(scenes, 5)), list(map(str, range(1500))), bins=1
    )
    assert apart.bins[0].high - apart.bins[0].low < 0.6 * (once.bins[0].high - once.bins[0].low)


def test_maps_without_a_report_are_left_out():
    reports, right, scenes, clusters = world(200, 2, np.array([1.0]))
    reports["report0"][:10] = np.nan
    assert judge_reliability(reports, right, scenes, clusters).maps == 190
    assert np.isnan(fit_reliability(reports, right).probability(reports)[:10]).all()


def test_what_cannot_be_fitted_is_said():
    with pytest.raises(InputError, match="right: got 3 right maps of 3, expected right ones and wrong ones"):
        fit_reliability({"x": np.arange(3.0)}, np.ones(3, dtype=bool))
    with pytest.raises(InputError, match="scenes: got 1 scene, expected at least 2"):
        judge_reliability({"x": np.arange(4.0)}, np.arange(4) % 2 > 0, ["a"] * 4, list("abcd"))
