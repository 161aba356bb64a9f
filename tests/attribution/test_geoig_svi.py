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
from attribution_toys import Quadratic, SoftplusMLP, images

import fringe
from fringe._numbers.rng import KeyedGenerator, content_hash
from fringe.paths._fitted import _Fit

BENT = fringe.GeoIGSVI(steps=12, iterations=15, beta=1.0, learning_rate=3e-2)
OFFICIAL = fringe.GeoIGSVI(mode="official", steps=12, iterations=15, learning_rate=2e-2, beta=0.5)


def noise_of(x, seed=0):
    """The draws of an image without an id, for its oracle."""
    return lambda i, like: KeyedGenerator(seed).normal(f"geoig_svi {content_hash(x)} {i}", like)


# -- repaired ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objective", "norm_of", "rate"),
    [("points", "score", 3e-2), ("points", "log_probability", 0.1), ("length", "score", 0.1)],
)
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


@pytest.mark.parametrize(
    ("objective", "resample", "stochastic"), [("points", False, True), ("length", True, False), ("points", True, True)]
)
def test_any_path_is_complete(objective, resample, stochastic):
    """The trapezoid rule is exact for a quadratic along every polyline: what is left is rounding."""
    method = dataclasses.replace(BENT, objective=objective, resample=resample, stochastic=stochastic, beta=8.0)
    found = fringe.attribute(Quadratic(), images(3), method=method)
    assert (found.diagnostics["path_length"] > found.diagnostics["straight_length"] + 1e-3).all()
    assert found.completeness_gap.abs().max() < 1e-12
    assert found.verdict == ("ok",) * 3


@pytest.mark.parametrize("objective", ["points", "length"])
def test_without_the_model_the_path_is_straight(objective):
    model, x = SoftplusMLP(), images(3)
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
    monkeypatch.setattr("fringe.paths._fitted.HALVE_AFTER", 3)
    monkeypatch.setattr("fringe.paths._fitted.STOP_AFTER", 7)
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
    monkeypatch.setattr("fringe.paths._fitted.STOP_AFTER", 5)
    model = lambda z: torch.stack((0.5 * z.square().sum((1, 2, 3)), 0.0 * z.sum((1, 2, 3))), 1)  # noqa: E731
    x, method = images(2), dataclasses.replace(OFFICIAL, learning_rate=0.3, iterations=100)
    found = fringe.attribute(model, x, method=method, target=0).diagnostics
    assert (found["iterations"] < 100).all()
    rows = x[0].numel() / x.shape[-1]
    assert found["force_mean"].tolist() == pytest.approx([0.5 * rows**0.5] * 2, rel=1e-12)


# -- both -------------------------------------------------------------------------------------------------------------
