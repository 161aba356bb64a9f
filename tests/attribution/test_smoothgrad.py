"""SmoothGrad: peer libraries on their own noise, the law of its variance, and noise that belongs to the image."""

import math

import pytest
import torch
from attribution_toys import Affine, Quadratic, ReluCNN, SoftplusMLP, images, score_and_gradient
from captum.attr import NoiseTunnel, Saliency

import fringe
from fringe import SmoothGrad
from fringe._numbers.rng import KeyedGenerator, content_hash
from fringe.attribution import _sampling


def explain(model, x, target=1, **settings):
    return fringe.attribute(model, x, method=SmoothGrad(**settings), target=target)


# -- peers, on the noise that they drew ---------------------------------------------------------------------------


@pytest.mark.parametrize("square", [False, True])
def test_it_equals_captum_s_noise_tunnel(square, monkeypatch):
    model, x, count, sigma = SoftplusMLP(), images(1), 6, 0.4
    torch.manual_seed(3)
    noise = torch.normal(0, torch.full((count, *x.shape[1:]), sigma)).to(x)  # captum draws in float32
    kind = "smoothgrad_sq" if square else "smoothgrad"
    torch.manual_seed(3)
    tunnel = NoiseTunnel(Saliency(model))
    peer = tunnel.attribute(x, nt_type=kind, nt_samples=count, stdevs=sigma, target=2, abs=False)
    monkeypatch.setattr(_sampling, "_keyed", lambda problem, sigma: lambda rows, copies: noise[copies])
    found = explain(model, x, 2, samples=count, square=square).values
    torch.testing.assert_close(found, peer, rtol=0, atol=1e-12 * float(peer.abs().max()))


# -- laws ---------------------------------------------------------------------------------------------------------


def test_one_sample_with_hardly_any_noise_is_captum_s_saliency():
    model, x = SoftplusMLP(), images(2)
    theirs = Saliency(model).attribute(x, target=1, abs=False)
    torch.testing.assert_close(explain(model, x, samples=1, sigma=1e-12).values, theirs, rtol=1e-9, atol=1e-11)


def test_noise_is_keyed_by_the_image_and_the_number_of_the_copy():
    model, x, count = ReluCNN(), images(2), 5
    for ids in (None, ["cat", "dog"]):
        found = fringe.attribute(model, x, method=SmoothGrad(samples=count), target=[1, 2], seed=7, ids=ids)
        for i, target in enumerate((1, 2)):
            key = content_hash(x[i]) if ids is None else ids[i]
            sigma = 0.15 * (x[i].max() - x[i].min())
            total = torch.zeros_like(x[i])
            for j in range(count):
                z = x[i] + sigma * KeyedGenerator(7).normal(f"smoothgrad {key} {j}", x[i])
                total += score_and_gradient(model, z, target)[1]
            torch.testing.assert_close(found.values[i], total / count, rtol=1e-10, atol=1e-12)


def test_the_gradient_of_an_affine_score_has_no_noise():
    model, target = Affine(), torch.tensor([3, 0])
    found = explain(model, images(2), target=target, samples=3)
    torch.testing.assert_close(found.values, model.weight[target], rtol=1e-12, atol=1e-14)
    assert found.diagnostics["relative_error"].max() < 1e-6  # a difference of squares keeps half the digits


def test_a_mean_of_many_batches_in_single_precision_does_not_gather_their_rounding():
    model = Affine().float()
    found = fringe.attribute(model, images(1).float(), method=SmoothGrad(samples=150), target=1, batch_size=1)
    torch.testing.assert_close(found.values[0], model.weight[1], rtol=1.8e-7, atol=0)  # three roundings, not 150


def test_mean_and_variance_on_a_quadratic_score_are_known():
    """The gradient at x + e is g + Q e: the mean of m has mean g and covariance sigma^2 Q^2 / m."""
    model, x, m, repeats, sigma = Quadratic(), images(1), 10, 400, 0.3
    method = SmoothGrad(samples=m, sigma=sigma)
    names = [str(i) for i in range(repeats)]
    found = fringe.attribute(model, x.expand(repeats, -1, -1, -1), method=method, target=1, ids=names)
    error = (found.values - model.gradient(x, torch.tensor([1]))).flatten(1)
    variance = sigma**2 * (model.matrix[1] @ model.matrix[1]).diagonal() / m
    # Gaussian: a mean of R draws has standard error sqrt(v / R), a mean of squares v sqrt(2 / R)
    assert ((error.mean(0) / variance.sqrt()).abs() <= 5 / math.sqrt(repeats)).all()
    assert ((error.square().mean(0) / variance - 1).abs() <= 5 * math.sqrt(2 / repeats)).all()
    reported = found.diagnostics["relative_error"].square() * found.values.flatten(1).square().sum(1)
    assert float(reported.mean()) == pytest.approx(float(variance.sum()), rel=0.03)


def test_without_noise_it_is_the_gradient():
    model, x = SoftplusMLP(), images(2)
    z = x.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(model(z)[:, 1].sum(), z)
    tiny = explain(model, x, samples=2, sigma=1e-9)
    torch.testing.assert_close(tiny.values, gradient, rtol=1e-6, atol=1e-8)
    flat = explain(model, torch.full_like(x, 0.7), samples=2)  # an image without range has no noise
    assert flat.diagnostics["sigma"].tolist() == [0.0, 0.0]
    torch.testing.assert_close(explain(model, x, samples=2, sigma=1e-9, square=True).values, tiny.values**2)


def test_the_noise_is_a_share_of_each_image_s_own_range():
    x = images(2) * torch.tensor([1.0, 10.0], dtype=torch.float64).view(2, 1, 1, 1)
    found = explain(SoftplusMLP(), x, samples=2, spread=0.2)
    span = x.flatten(1).amax(1) - x.flatten(1).amin(1)
    torch.testing.assert_close(found.diagnostics["sigma"], 0.2 * span)
    assert explain(SoftplusMLP(), x, samples=2, sigma=0.5).diagnostics["sigma"].tolist() == [0.5, 0.5]


# -- account ------------------------------------------------------------------------------------------------------


def test_a_map_of_zeros_has_no_error():
    model = Affine()
    model.weight.zero_()
    found = explain(model, images(2), samples=3)
    assert not found.values.any()
    assert found.diagnostics["relative_error"].tolist() == [0.0, 0.0]


def test_one_sample_has_no_known_error():
    assert explain(SoftplusMLP(), images(1), samples=1).diagnostics["relative_error"].isnan().all()
