"""Steepness, energies of paths and spacing of points: against calculus, and against sums written out."""

import pytest
import torch
from attribution_oracles import (
    line,
    published_respacing,
)
from attribution_toys import SoftplusMLP, images

import fringe
from fringe.paths import (
    AuthorsEnergy,
    GradientNorm,
    Problem,
    authors_spacing,
)


def problem(model, target, **options):
    """Images to be explained for these classes."""
    return Problem.of(fringe.Classifier(model, **options), images(len(target)), target=target)


def test_steepness_against_finite_differences():
    model, x, every = SoftplusMLP(), images(3), torch.arange(3)
    steepness = GradientNorm(problem(model, [0, 1, 3]))
    z = x[1:2].clone().requires_grad_(True)
    (g,) = torch.autograd.grad(model(z).sum(), z)
    norm, push = steepness(x, every)
    torch.testing.assert_close(norm[1], g.norm(dim=-1).sum(), rtol=1e-13, atol=0)
    toward, h = images(3, seed=4), 1e-5
    slope = (steepness(x + h * toward, every)[0] - steepness(x - h * toward, every)[0]) / (2 * h)
    torch.testing.assert_close((push * toward).flatten(1).sum(1), slope, rtol=1e-7, atol=1e-8)


class Once(torch.autograd.Function):
    """``sin x``, whose backward pass cannot be differentiated."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0].cos()

    @staticmethod
    def jvp(ctx, tangent):
        return tangent * ctx.saved_tensors[0].cos()


def test_a_model_that_is_differentiable_once_is_refused():
    """Not a path that quietly ignores the term."""
    model = SoftplusMLP()
    with (
        pytest.raises(fringe.NotDifferentiableError, match=r"no second derivatives .* use method 'geoig_knn'"),
        pytest.warns(UserWarning, match="no second derivatives"),
    ):
        fringe.attribute(lambda x: model(Once.apply(x)), images(1), method=fringe.GeoIGSVI(steps=3, iterations=1))


def test_a_second_derivative_that_nobody_wrote_is_named():
    parts = torch.tensor([[images(1).numel() - 3, 1, 1, 1]])
    model = lambda x: torch.segment_reduce(x.flatten(1).exp(), "sum", lengths=parts, axis=1)  # noqa: E731
    steepness = GradientNorm(problem(model, [0]))
    missing = r"no second derivatives \(derivative for aten::_segment_reduce_backward"
    with pytest.raises(fringe.NotDifferentiableError, match=missing):
        steepness(images(1), torch.tensor([0]))


def test_slopes_of_the_energy_against_finite_differences():
    asked, every = problem(SoftplusMLP(), [1, 2]), torch.arange(2)
    energy, straight = AuthorsEnergy(GradientNorm(asked), 0.7), torch.stack([line(x, 21) for x in images(2)])
    points = straight + torch.stack((images(21, seed=5), images(21, seed=6))) / 10
    toward, h = torch.stack((images(21, seed=7), images(21, seed=8))), 1e-6
    at = energy.at(points, straight, every)
    ahead, behind = (energy.at(points + sign * h * toward, straight, every).energy for sign in (1, -1))
    change = (at.gradient * toward).flatten(1).sum(1)
    torch.testing.assert_close(change, (ahead - behind) / (2 * h), rtol=1e-7, atol=1e-6)


def test_points_are_spread_as_the_published_code_does():
    path = images(9, seed=2).cumsum(0)
    torch.testing.assert_close(authors_spacing(path[None])[0], published_respacing(path), rtol=0, atol=1e-13)
