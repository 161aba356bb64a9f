"""The probability that a map is right: the fit, and the diagram on scenes it was not fitted on."""

import numpy as np
import pytest
from scipy.optimize import minimize

from fringe.errors import InputError
from fringe.experiments._reliability import (
    PENALTY,
    Reliability,
    ReliabilityBin,
    fit_reliability,
    judge_reliability,
)


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


def test_the_diagram_is_that_of_the_models_of_the_other_scenes():
    """Against loops: a model for each scene that is left out, and draws of clusters and of the networks of a scene."""
    reports, right, scenes, _ = world(90, 3, np.array([1.0]), seed=3)
    clusters = [f"cluster{i // 2:02d}" for i in range(90)]
    networks = [f"{scene}-{i % 2}" for i, scene in enumerate(scenes)]
    found = judge_reliability(reports, right, scenes, clusters, networks, bins=4, seed=9)
    predicted, base = np.zeros(90), np.zeros(90)
    for i, scene in enumerate(scenes):
        others = [j for j in range(90) if scenes[j] != scene]
        model = fit_reliability({"report0": reports["report0"][others]}, right[others])
        predicted[i] = model.probability({"report0": reports["report0"][[i]]})[0]
        base[i] = np.mean(right[others])
    rng = np.random.default_rng(9)
    drawn = rng.multinomial(45, np.full(45, 1 / 45), size=2000)
    of_scene = [rng.multinomial(2, [0.5, 0.5], size=2000) for _ in range(3)]
    weights = [[d[i // 2] * n[i % 3][i % 2] for i in range(90)] for d, *n in zip(drawn, *of_scene, strict=True)]

    def interval(values, part):
        draws = [[(w[i], values[i]) for i in part] for w in weights]
        means = [sum(w * v for w, v in one) / total for one in draws if (total := sum(w for w, _ in one))]
        return np.percentile(means, [2.5, 97.5])

    y = right.astype(float)
    gain = [(base[i] - y[i]) ** 2 - (predicted[i] - y[i]) ** 2 for i in range(90)]
    assert found.skill == pytest.approx(np.mean(gain))
    assert (found.skill_low, found.skill_high) == pytest.approx(interval(gain, range(90)))
    order = sorted(range(90), key=lambda i: predicted[i])
    parts = [order[:23], order[23:46], order[46:68], order[68:]]  # 90 maps in four bins
    parts += [[i for i in range(90) if scenes[i] == scene] for scene in found.scenes]
    for one, part in zip([*found.bins, *found.scenes.values()], parts, strict=True):
        assert one.maps == len(part)
        assert (one.predicted, one.observed) == pytest.approx((np.mean(predicted[part]), np.mean(y[part])))
        assert (one.low, one.high) == pytest.approx(interval(y, part))


def test_a_prediction_holds_up_to_a_twentieth_outside_of_its_interval():
    def holds(predicted):
        return ReliabilityBin(predicted, 0.5, 0.4, 0.6, 10).holds

    assert [holds(p) for p in (0.34, 0.36, 0.5, 0.64, 0.66)] == [False, True, True, True, False]


def test_each_fault_is_said():
    good, bad = (ReliabilityBin(p, 0.5, 0.4, 0.6, 10) for p in (0.5, 0.9))
    scenes = {"a": good, "b": good, "c": good}
    assert Reliability((good,), scenes, 0.2, 0.1, 0.3, 30).holds
    assert Reliability((good,), {"a": good, "b": good}, 0.2, 0.1, 0.3, 20).faults == (
        "2 scenes were left out, at least 3 are needed",
    )
    assert Reliability((good, bad), scenes, 0.2, 0.1, 0.3, 30).faults == ("it is wrong where it predicts 0.90",)
    assert Reliability((good,), {**scenes, "d": bad}, 0.2, 0.1, 0.3, 40).faults == ("it is wrong on d",)
    for low in (0.0, np.nan):
        (fault,) = Reliability((good,), scenes, 0.2, low, 0.3, 30).faults
        assert fault == "it predicts no better than the share of right maps in the other scenes"
