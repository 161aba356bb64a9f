"""Geodesic IG by an energy: the fits against loops written out, the maps against laws."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from attribution_oracles import (
    length_energy,
    line,
    log_probability,
    logit,
    most_probable_path,
    point_energy,
    published_energy,
    published_map,
    published_path,
    published_respacing,
    variational_path,
)
from attribution_toys import NETWORKS, Affine, Quadratic, ReluCNN, SoftplusMLP, images
from torch import nn

import fringe
from fringe._rng import KeyedGenerator, content_hash
from fringe.classifier import PassCounts
from fringe.paths import GradientNorm, Problem
from fringe.paths._geodesic import _Fit

BENT = fringe.GeoIGSVI(steps=12, iterations=15, beta=1.0, learning_rate=3e-2)
OFFICIAL = fringe.GeoIGSVI(mode="official", steps=12, iterations=15, learning_rate=2e-2, beta=0.5)


def noise_of(x, seed=0):
    """The draws of an image without an id, for its oracle."""
    return lambda i, like: KeyedGenerator(seed).normal(f"geoig_svi {content_hash(x)} {i}", like)


# -- repaired ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [3e-2, 0.1])
@pytest.mark.parametrize("norm_of", ["score", "log_probability"])
@pytest.mark.parametrize("objective", ["points", "length"])
def test_the_most_probable_path_written_out(objective, norm_of, rate):
    """At the higher rate Adam overshoots in places, and an earlier path is the best: here even the straight one."""
    model, x, target = SoftplusMLP(), images(2), [0, 3]
    method = dataclasses.replace(BENT, objective=objective, norm_of=norm_of, resample=False, learning_rate=rate)
    found = fringe.attribute(model, x, method=method, target=target, telemetry=True)
    scalar = {"score": logit, "log_probability": log_probability}[norm_of]
    build = {"points": point_energy, "length": length_energy}[objective]
    for i in range(2):
        path, first, least = most_probable_path(build(model, scalar(target[i]), 1.0), line(x[i], 12), 15, rate)
        values = trapezoid(model, path, target[i])
        torch.testing.assert_close(found.values[i], values, rtol=0, atol=1e-9)
        assert found.diagnostics["energy_start"][i].item() == pytest.approx(first, rel=1e-12)
        assert found.diagnostics["energy_end"][i].item() == pytest.approx(least, rel=1e-9)
        length = sum(float((b - a).norm()) for a, b in itertools.pairwise(path))
        assert found.diagnostics["path_length"][i].item() == pytest.approx(length, rel=1e-9)
        assert rate == 0.1 or (least < first and length > float(x[i].norm()) + 1e-3)


def test_the_variational_path_written_out():
    model, x = SoftplusMLP(), images(2)
    method = dataclasses.replace(BENT, stochastic=True, resample=False)
    found = fringe.attribute(model, x, method=method, target=1, seed=7)
    for i in range(2):
        energy = point_energy(model, log_probability(1), 1.0)
        path, loss = variational_path(energy, line(x[i], 12), 15, 3e-2, noise_of(x[i], 7))
        torch.testing.assert_close(found.values[i], trapezoid(model, path, 1), rtol=0, atol=1e-9)
        assert found.diagnostics["energy_end"][i].item() == pytest.approx(loss, rel=1e-10)


def trapezoid(model, path, target):
    z = path.clone().requires_grad_(True)
    (g,) = torch.autograd.grad(model(z)[:, target].sum(), z)
    return (0.5 * (g[:-1] + g[1:]) * (path[:-1] - path[1:])).sum(0)


@pytest.mark.parametrize("resample", [False, True])
@pytest.mark.parametrize("objective", ["points", "length"])
@pytest.mark.parametrize("stochastic", [False, True])
def test_any_path_is_complete(objective, resample, stochastic):
    """The trapezoid rule is exact for a quadratic along every polyline: what is left is rounding."""
    method = dataclasses.replace(BENT, objective=objective, resample=resample, stochastic=stochastic, beta=8.0)
    found = fringe.attribute(Quadratic(), images(3), method=method)
    assert (found.diagnostics["path_length"] > found.diagnostics["straight_length"] + 1e-3).all()
    assert found.completeness_gap.abs().max() < 1e-12
    assert found.verdict == ("ok",) * 3


def test_the_gap_of_a_smooth_score_falls_with_more_steps():
    """Four times as many: by about 16 on one curve, and somewhat less here, where more points make another curve."""
    method = dataclasses.replace(BENT, iterations=8)
    few, many = (
        fringe.attribute(SoftplusMLP(), images(3), method=dataclasses.replace(method, steps=n + 1)) for n in (12, 48)
    )
    assert (many.diagnostics["path_length"] > many.diagnostics["straight_length"] + 1e-2).all()
    assert (few.completeness_gap.abs() > 1e-3).all()
    assert (many.completeness_gap.abs() < few.completeness_gap.abs() / 5).all()


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("objective", ["points", "length"])
def test_without_the_model_the_path_is_straight(objective, network):
    model, x = NETWORKS[network](), images(3)
    straight = fringe.IntegratedGradients(steps=12, rule="trapezoid")
    expected = fringe.attribute(model, x, method=straight)
    for stochastic in (False, True):
        method = dataclasses.replace(BENT, beta=0.0, objective=objective, stochastic=stochastic)
        found = fringe.attribute(model, x, method=method)
        torch.testing.assert_close(found.values, expected.values, rtol=0, atol=1e-13)
        checked = dataclasses.replace(expected.passes, jvp=1)  # of the check of the model
        assert found.passes == checked  # the model is not asked where the path should go


def test_a_push_weaker_than_one_moves_nothing():
    """``|delta|`` has slope one at zero, so a point moves only where ``beta |grad s|`` is more: 0.01 of it is not."""
    found = fringe.attribute(SoftplusMLP(), images(3), method=dataclasses.replace(BENT, beta=1e-2))
    assert (found.diagnostics["force_mean"] > 1e-3).all()
    assert torch.equal(found.diagnostics["energy_start"], found.diagnostics["energy_end"])
    torch.testing.assert_close(found.diagnostics["path_length"], found.diagnostics["straight_length"])


def test_a_path_gets_flatter_the_more_it_is_asked_to():
    """On the realised path, the mean steepness falls as beta rises."""
    model, x = SoftplusMLP(), images(3)
    steep = []
    for beta in (0.0, 0.3, 3.0):
        method = fringe.GeoIGSVI(steps=15, iterations=30, learning_rate=3e-2, beta=beta)
        found = fringe.attribute(model, x, method=method, telemetry=True, target=1)
        points = torch.stack([t.snapshots for t in found.trajectory]).flatten(0, 1)
        problem = Problem.of(fringe.Classifier(model), x, target=1)
        values, _ = GradientNorm(problem, "log_probability")(points, torch.zeros(len(points)).long())
        steep.append(values.view(3, -1).mean(1))
    assert (steep[1] < steep[0] - 0.01).all()
    assert (steep[2] < steep[1] - 0.01).all()


def test_the_baseline_itself_has_nothing_to_explain():
    x = images(2)
    found = fringe.attribute(SoftplusMLP(), x, method=BENT, baseline=torch.stack((x[0], 0 * x[0])))
    assert found.verdict[0] == "at_reference"
    assert torch.equal(found.values[0], torch.zeros_like(x[0]))
    assert found.values[1].abs().max() > 0.1


# -- official ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resample", [False, True])
def test_the_published_fit_written_out(resample):
    model, x, target = SoftplusMLP(), images(2), [0, 3]
    found = fringe.attribute(model, x, method=dataclasses.replace(OFFICIAL, resample=resample), target=target, seed=3)
    for i in range(2):
        path, losses, _ = published_path(
            published_energy(model, 0.5), official_line(x[i], 12), 15, 2e-2, noise_of(x[i], 3), 25, 100
        )
        path = published_respacing(path) if resample else path
        values, length = published_map(model, path, target[i])
        torch.testing.assert_close(found.values[i], values, rtol=1e-9, atol=1e-9)
        assert found.diagnostics["path_length"][i].item() == pytest.approx(length, rel=1e-10)
        assert found.diagnostics["energy_start"][i].item() == pytest.approx(losses[0], rel=1e-12)
    assert found.verdict == ("unchecked",) * 2
    assert found.completeness_gap.isnan().all()


def official_line(x, count):
    """Gauss-Legendre points from zero on, without the ends."""
    a = torch.from_numpy((np.polynomial.legendre.leggauss(count)[0] + 1) / 2)
    return a.view(-1, 1, 1, 1) * x


def test_learning_rates_are_halved_and_the_fit_ends(monkeypatch):
    """With little patience, so that both happen within a few steps; images end at different times."""
    monkeypatch.setattr("fringe.paths._geodesic.HALVE_AFTER", 3)
    monkeypatch.setattr("fringe.paths._geodesic.STOP_AFTER", 7)
    model, x = SoftplusMLP(), images(3)
    method = dataclasses.replace(OFFICIAL, iterations=120, learning_rate=0.3)
    found = fringe.attribute(model, x, method=method, target=1, batch_size=36)
    taken = []
    for i in range(3):
        path, losses, halvings = published_path(
            published_energy(model, 0.5), official_line(x[i], 12), 120, 0.3, noise_of(x[i]), 3, 7
        )
        assert halvings >= 2
        taken.append(len(losses))
        values, _ = published_map(model, published_respacing(path), 1)
        torch.testing.assert_close(found.values[i], values, rtol=1e-7, atol=1e-7)
    assert found.diagnostics["iterations"].tolist() == taken
    assert len(set(taken)) > 1
    assert max(taken) < 120
    assert found.passes.jvp == 12 * sum(taken) + 1  # one of the check of the model: ended images cost nothing


@pytest.mark.parametrize(
    ("level", "rate", "decline", "taken", "last", "since"),
    [
        (1.0, 1.0, 5e-5, 102, 2**-4, 0),
        (0.0, 1.0, 0.0, 102, 2**-4, 0),
        (1.0, 3e-5, 0.0, 102, 1e-5, 50),
        (1.0, 1.0, 2e-4, 300, 2**-11, 23),
    ],
)
def test_the_published_patience(level, rate, decline, taken, last, since):
    """No loss is below the second: the rate is halved at each 25th after it, and the 100th that gains less than 1e-4 of
    the one before ends the fit. At the least rate the optimiser goes on."""
    fit = _Fit(0, torch.zeros(2, 3), rate)
    while not fit.stopped and fit.steps_taken < 300:
        fit._update_schedule(level * (1.0 if fit.steps_taken == 1 else 2.0 * (1.0 - decline) ** fit.steps_taken))
    assert (fit.steps_taken, fit.rate, fit.since_halved) == (taken, last, since)


def test_the_force_is_the_mean_over_the_iterations_that_were_done(monkeypatch):
    """The outputs sum to ``|x|^2 / 2``: the gradient of each row's norm is a unit vector, so that a point is pulled by
    beta times the root of the number of rows, wherever it is."""
    monkeypatch.setattr("fringe.paths._geodesic.STOP_AFTER", 5)
    model = lambda z: torch.stack((0.5 * z.square().sum((1, 2, 3)), 0.0 * z.sum((1, 2, 3))), 1)  # noqa: E731
    x, method = images(2), dataclasses.replace(OFFICIAL, learning_rate=0.3, iterations=100)
    found = fringe.attribute(model, x, method=method, target=0).diagnostics
    assert (found["iterations"] < 100).all()
    rows = x[0].numel() / x.shape[-1]
    assert found["force_mean"].tolist() == pytest.approx([0.5 * rows**0.5] * 2, rel=1e-12)


def test_an_affine_score_is_multiplied_by_the_length_of_the_path():
    """No displacement and no division: the map is the gradient times a length."""
    model, x = Affine(), images(2)
    found = fringe.attribute(model, x, method=dataclasses.replace(OFFICIAL, resample=False), target=2)
    for i in range(2):
        path, *_ = published_path(
            published_energy(model, 0.0), official_line(x[i], 12), 15, 2e-2, noise_of(x[i]), 25, 100
        )
        steps = [(b - a).norm() for a, b in itertools.pairwise(path)]
        torch.testing.assert_close(found.values[i], model.weight[2] * (sum(steps) + steps[-1]), rtol=1e-10, atol=1e-12)


def test_the_published_path_does_not_know_the_target():
    model, x = SoftplusMLP(), images(2)
    found = [fringe.attribute(model, x, method=OFFICIAL, target=t) for t in (0, 1)]
    for name in ("path_length", "force_mean", "energy_end"):
        assert torch.equal(found[0].diagnostics[name], found[1].diagnostics[name])
    assert not torch.allclose(found[0].values, found[1].values)
    repaired = [fringe.attribute(model, x, method=BENT, target=t).diagnostics["path_length"] for t in (0, 1)]
    assert (repaired[0] - repaired[1]).abs().min() > 1e-4


@pytest.mark.parametrize("head", ["relu", "softmax"])
def test_where_the_published_path_has_nothing_to_follow(head):
    """Logits of ReLUs, and outputs that sum to one: beta changes nothing, and force_mean says it."""
    inner = ReluCNN() if head == "relu" else SoftplusMLP()
    model = inner if head == "relu" else lambda x: inner(x).softmax(1)
    classifier = fringe.Classifier(model, output="logits")
    found = [
        fringe.attribute(classifier, images(2), method=dataclasses.replace(OFFICIAL, beta=b), target=0)
        for b in (0.0, 5.0)
    ]
    assert found[1].diagnostics["force_mean"].max() < 1e-12
    torch.testing.assert_close(found[0].values, found[1].values, rtol=1e-7, atol=1e-10)


# -- both -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", [BENT, dataclasses.replace(BENT, stochastic=True), OFFICIAL], ids=["map", "svi", "official"]
)
@pytest.mark.parametrize("batch_size", [1, 30])
def test_an_image_s_map_is_its_own(method, batch_size):
    model, x, order = SoftplusMLP(), images(4), torch.tensor([2, 0, 3, 1])
    method = dataclasses.replace(method, iterations=6)
    together = fringe.attribute(model, x, method=method, batch_size=64, target=[0, 1, 2, 3])
    shuffled = fringe.attribute(model, x[order], method=method, batch_size=batch_size, target=order)
    torch.testing.assert_close(shuffled.values, together.values[order], rtol=1e-9, atol=1e-10)
    for name, values in together.diagnostics.items():
        torch.testing.assert_close(shuffled.diagnostics[name], values[order], rtol=1e-8, atol=1e-10, msg=name)


@pytest.mark.parametrize("method", [dataclasses.replace(BENT, stochastic=True), OFFICIAL], ids=["svi", "official"])
def test_noise_is_the_seed_s(method):
    model, x = SoftplusMLP(), images(1)
    first, again, other = (fringe.attribute(model, x, method=method, seed=s).values for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert (first - other).abs().max() > 1e-4


@pytest.mark.parametrize(("method", "integral"), [(BENT, 1), (OFFICIAL, 0)], ids=["repaired", "official"])
def test_exact_passes(method, integral):
    """N points an iteration with second derivatives, N gradients of the map, and the score at the baseline."""
    x, classifier = images(3), fringe.Classifier(SoftplusMLP(), batch_size=24)
    problem = Problem.of(classifier, x)
    before = dataclasses.replace(classifier.passes)
    with classifier.session(x.device):
        method.attribute(problem)
    points = 3 * 12 * 15
    expected = PassCounts(forward=points + 36 + 3 * integral, jvp=points, vjp=2 * points + 36)
    assert classifier.passes.since(before) == expected


def test_out_of_memory_costs_only_time():
    class Limited(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = SoftplusMLP()

        def forward(self, x):
            if len(x) > 5:
                raise torch.OutOfMemoryError("simulated")
            return self.model(x)

    x = images(3)
    for method in (BENT, OFFICIAL):
        found = fringe.attribute(Limited().eval(), x, method=method, batch_size=64)
        expected = fringe.attribute(SoftplusMLP(), x, method=method)
        torch.testing.assert_close(found.values, expected.values, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("method", [BENT, OFFICIAL, dataclasses.replace(BENT, beta=0.0)])
def test_progress_ends_when_everything_is_done(method):
    heard = []
    fringe.attribute(SoftplusMLP(), images(3), method=method, batch_size=24, progress=lambda *p: heard.append(p))
    first = 2 if method.beta else 2 * 15  # an iteration of the first two images; there are none without the model
    assert (heard[0], heard[-1]) == ((first, 3 * 16), (3 * 16, 3 * 16))
    assert heard == sorted(heard)


def test_telemetry_follows_the_path():
    found = fringe.attribute(SoftplusMLP(), images(3), method=BENT, telemetry=True, batch_size=24)
    for i, trajectory in enumerate(found.trajectory):
        torch.testing.assert_close(trajectory.cumulative[-1], found.values[i])
        assert len(trajectory.points["score"]) == 12 + 2
    official = fringe.attribute(SoftplusMLP(), images(3), method=OFFICIAL, telemetry=True)
    assert official.trajectory == (None,) * 3


def test_tables_have_paths_too():
    model = lambda z: torch.stack(((z**3).sum(1), torch.cos(z).sum(1), (z[:, 0] * z[:, 1])), 1)  # noqa: E731
    x = images(2).flatten(1)[:, :3]
    found = fringe.attribute(model, x, method=dataclasses.replace(BENT, steps=80), target=0)
    assert found.completeness_residual.max() < 1e-3
    official = fringe.attribute(model, x, method=OFFICIAL, target=0)
    assert official.values.shape == (2, 3)


def test_settings_are_checked():
    for wrong, message in (
        ({"mode": "published"}, "mode: got 'published', expected one of repaired, official"),
        ({"steps": 1}, "steps: got 1, expected a whole number of at least 2"),
        ({"iterations": 0}, "iterations: got 0"),
        ({"learning_rate": -1.0}, "learning_rate: got -1.0"),
        ({"beta": -0.1}, "beta: got -0.1, expected a number of at least 0"),
        ({"objective": "energy"}, "objective: got 'energy', expected one of points, length"),
        ({"norm_of": "probability"}, "norm_of: got 'probability'"),
    ):
        with pytest.raises(fringe.InputError, match=message):
            fringe.GeoIGSVI(**wrong)
    paper = fringe.GeoIGSVI.preset("paper")
    assert (paper.mode, paper.steps, paper.iterations) == ("official", 50, 500)
    assert (paper.beta, paper.learning_rate, paper.baseline) == (0.1, 0.01, "zero")
