"""A branch that the gradient misses in some images, or beyond a short step, is seen; steep networks are right."""

import warnings

import pytest
import torch
from torch import nn

import fringe
from fringe.classifier import Classifier
from fringe.paths import Problem, verify

#: Values of 8 bits, as pictures have them; only the last is bright.
IMAGES = torch.rand(4, 2, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
IMAGES = (IMAGES * torch.tensor([0.6, 0.7, 0.8, 1.0]).view(4, 1, 1, 1)).mul(255).round() / 255
BRIGHT = 0.45


class Two(nn.Module):
    """Logits from two equal convolutions; the second is in a ``branch`` whose gradient may be wrong."""

    def __init__(self, branch):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = (nn.Conv2d(2, 8, 3) for _ in range(2))
        self.last, self.branch = nn.Linear(16, 3, bias=False), branch
        self.second.load_state_dict(self.first.state_dict())
        with torch.no_grad():
            self.last.weight[:, 8:] = 2 * self.last.weight[:, :8]
        self.double().eval()

    def forward(self, x):
        kept, other = self.first(x), self.branch(x, self.second)
        return 20.0 * self.last(torch.cat([kept, other], 1).relu().mean((2, 3)))


def bright(x):
    return (x.detach().mean((1, 2, 3)) > BRIGHT).view(-1, 1, 1, 1)


def detached_where_bright(x, layer):
    return torch.where(bright(x), layer(x.detach()), layer(x))


def rounded(x, layer):  # beside a smooth part, so that a short step has a gradient that is right
    return layer((x * 255).round() / 255)


def integers_where_bright(x, layer):
    return torch.where(bright(x), (layer(x.detach()) * 256).floor() / 256, layer(x))


MISSED = {"detach": detached_where_bright, "round": rounded, "integers": integers_where_bright}

RIGHT = {
    "plain": lambda x, layer: layer(x),
    "where": lambda x, layer: torch.where(bright(x), layer(0.5 * x), layer(x)),
    "saturated": lambda x, layer: torch.tanh(30 * layer(x)),
    "steep": lambda x, layer: torch.sin(40 * layer(x)),
    "large": lambda x, layer: 1e4 * layer(x).relu(),
    "small": lambda x, layer: 1e-6 * layer(x),
    "max": lambda x, layer: nn.functional.max_pool2d(layer(nn.functional.pad(x, [1] * 4)), 3, 1, 0),
    "norm": lambda x, layer: nn.functional.layer_norm(layer(x), (8, 6, 6)),
    "clipped": lambda x, layer: layer(x.clamp(0.2, 0.6)),
}


def of_gradient(classifier, x):
    problem = Problem.of(classifier, x)
    before = classifier.passes.forward, classifier.passes.vjp
    verify(problem, ["none"], has_sum=True)
    middle = classifier.passes.forward, classifier.passes.vjp
    classifier.verified.clear()
    verify(problem, ["none"], has_sum=False)
    after = classifier.passes.forward, classifier.passes.vjp
    return [c - 2 * b + a for a, b, c in zip(before, middle, after, strict=True)]


@pytest.mark.parametrize("name", MISSED)
def test_a_branch_that_the_gradient_misses_is_seen(name):
    with pytest.warns(UserWarning, match=r"the gradient misses part .* the score of image \d changes by"):
        fringe.attribute(Two(MISSED[name]), IMAGES, method=fringe.SmoothGrad(samples=2))


@pytest.mark.parametrize("name", RIGHT)
def test_a_steep_network_is_no_such_network(name):
    x = torch.cat([IMAGES[1:], torch.zeros_like(IMAGES[:1])])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "the gradient misses")
        fringe.attribute(Two(RIGHT[name]), x, method=fringe.SmoothGrad(samples=2))


@pytest.mark.parametrize("count", [1, 4, 6])
def test_it_costs_three_gradients_of_four_images_once(count):
    classifier = Classifier(Two(RIGHT["plain"]))
    x = IMAGES.repeat(2, 1, 1, 1)[:count]
    assert of_gradient(classifier, x) == [3 * min(count, 4)] * 2
    before = classifier.passes.forward
    verify(Problem.of(classifier, x), ["none"], has_sum=False)
    assert classifier.passes.forward == before + count  # it was verified


def test_methods_with_a_sum_leave_it_to_the_sum():
    classifier = Classifier(Two(detached_where_bright))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "the gradient misses")
        found = fringe.attribute(classifier, IMAGES[[0, 3]], method=fringe.IntegratedGradients(steps=32))
    assert found.verdict[1] == "coarse"
