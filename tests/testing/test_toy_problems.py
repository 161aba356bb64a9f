"""The networks that contracts are tried on are what they say."""

import pytest
import torch

import toys
from fringe.testing._checks import (
    CLASSES,
    ToyProblems,
    affine,
    blocks_cnn,
    constant,
    mlp,
    relu_cnn,
    saturated,
    smooth_cnn,
)

SHAPED = {smooth_cnn: (2, 8, 8), relu_cnn: (2, 8, 8), affine: (2, 8, 8), blocks_cnn: (2, 8, 8), mlp: (6,)}


def gradient(model, x):
    x = x.clone().requires_grad_(True)
    return torch.autograd.grad(model(x)[:, 0].sum(), x)[0]


@pytest.mark.parametrize("network", SHAPED, ids=lambda network: network.__name__)
def test_logits_are_standard_and_every_class_is_somewhere_predicted(network):
    toys, shape = ToyProblems(), SHAPED[network]
    model = toys.build(network, shape)
    logits = model(toys.images(64, shape, "standard"))
    torch.testing.assert_close(logits.mean(0), torch.zeros(CLASSES, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(logits.std(0), torch.full((CLASSES,), 2.0, dtype=torch.float64))
    assert len(model(toys.space(shape).references).argmax(1).unique()) > 1


def test_what_they_are_called_is_what_they_do():
    toys = ToyProblems()
    x, other = toys.images(3), toys.images(3, key="others")
    assert torch.equal(gradient(toys.build(constant), x), torch.zeros_like(x))
    assert torch.equal(gradient(toys.build(affine), x), gradient(toys.build(affine), other))
    read = gradient(toys.build(blocks_cnn), x)[0] != 0
    assert (int(read.sum()), int(read[1].sum())) == (27, 0)
    assert not (read & (read.mT | read.flip(2) | read.roll(1, 2) | read.roll(1, 1))).all()
    single = ToyProblems(torch.float32)
    assert single.build(saturated)(single.images(2)).softmax(1).amax(1).tolist() == [1.0, 1.0]
    small = 1e-6 * (other - x)
    model = toys.build(relu_cnn)
    torch.testing.assert_close(gradient(model, x), gradient(model, x + small), rtol=0, atol=0)
    assert not torch.equal(gradient(toys.build(smooth_cnn), x), gradient(toys.build(smooth_cnn), x + small))


@pytest.mark.parametrize("network", [toys.Affine, toys.Quadratic, toys.TanhMLP], ids=lambda kind: kind.__name__)
def test_networks_of_any_shape_take_their_gradients(network):
    model, x = network(), toys.images(3)
    if network is toys.Affine:
        expected = model.weight[:1].expand(3, -1).view_as(x)
    elif network is toys.Quadratic:
        expected = model.gradient(x, torch.zeros(3, dtype=torch.long))
    else:  # the chain rule
        derivative = 1 - (x.flatten(1) @ model.inner.T).tanh().square()
        expected = ((derivative * model.outer[0]) @ model.inner).view_as(x)
    torch.testing.assert_close(gradient(model, x), expected)


def test_a_toy_problem_begins_with_no_pass_counted():
    problem = toys.problem_of(toys.build(), toys.images(2), ids="ab")
    assert problem.model.passes.forward == 0
    assert list(problem.keys) == ["a", "b"]
    assert toys.build(mlp)(toys.normal(2, 6)).shape == (2, 3)
