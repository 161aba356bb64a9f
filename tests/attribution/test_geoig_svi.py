"""Geodesic IG by an energy: the fits against loops written out, the maps against laws."""

import dataclasses

import numpy as np
import pytest
import torch
from attribution_oracles import (
    published_energy,
    published_map,
    published_path,
    published_respacing,
)
from attribution_toys import SoftplusMLP, images

import fringe
from fringe._numbers.rng import KeyedGenerator, content_hash
from fringe.paths._fitted import _Fit

OFFICIAL = fringe.GeoIGSVI(steps=12, iterations=15, learning_rate=2e-2, beta=0.5)


def noise_of(x, seed=0):
    """The draws of an image without an id, for its oracle."""
    return lambda i, like: KeyedGenerator(seed).normal(f"geoig_svi {content_hash(x)} {i}", like)


def test_the_published_fit_written_out():
    model, x, target = SoftplusMLP(), images(2), [0, 3]
    found = fringe.attribute(model, x, method=OFFICIAL, target=target, seed=3)
    for i in range(2):
        path, losses, _ = published_path(
            published_energy(model, 0.5), official_line(x[i], 12), 15, 2e-2, noise_of(x[i], 3), 25, 100
        )
        path = published_respacing(path)
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
