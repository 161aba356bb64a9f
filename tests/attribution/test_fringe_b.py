"""FRInGe-B against explicit matrices, in float64."""

import dataclasses
import math

import pytest
import torch
from attribution_toys import SmallNet, small_images
from torch import Tensor

import fringe
from fringe import FRInGe
from fringe.attribution import FRInGeBinary, PaperFRInGe, preset_names


def binary_map(net, image: Tensor, target: int, m: FRInGe) -> Tensor:
    """The map of one image by the 2 x 2 metric of (p_t, 1 - p_t), as a matrix over all entries."""

    def value(z):
        logits = net(z[None])[0]
        rest = torch.cat([logits[:target], logits[target + 1 :]]).logsumexp(0)
        return torch.stack([logits[target], logits[target] - rest])

    entries, classes = image.numel(), net(image[None]).shape[1]
    modes = [second_differences(n) for n in image.shape[1:]]
    laplacian = torch.kron(modes[0], torch.eye(len(modes[1]), dtype=image.dtype))
    laplacian += torch.kron(torch.eye(len(modes[0]), dtype=image.dtype), modes[1])
    biharmonic = torch.block_diag(*[laplacian @ laplacian] * len(image))
    p = value(image)[1].sigmoid()
    s0 = torch.stack([p.sqrt(), (1 - p).sqrt()])
    s1 = torch.tensor([1 / classes, 1 - 1 / classes], dtype=image.dtype).sqrt()
    theta = torch.arccos(s0 @ s1)
    n = math.ceil(2 * float(theta) / math.sqrt(2 * m.tau))
    x, total, columns = image.flatten(), torch.zeros(entries, dtype=image.dtype), list[Tensor]()
    for i in range(1, n + 1):
        s = (torch.sin((1 - i / n) * theta) * s0 + torch.sin(i / n * theta) * s1) / torch.sin(theta)
        score, u = torch.func.jacrev(value)(x.view_as(image)).flatten(1)
        p = value(x.view_as(image))[1].sigmoid()
        beta = 0.5 * (p * (1 - p).sqrt() * s[1] - (1 - p) * p.sqrt() * s[0])
        a = p * (1 - p)
        columns.append(a.sqrt() * u)
        weights = 0.7 ** torch.arange(i, dtype=x.dtype).flip(0)
        mean = (weights / weights.sum()) @ torch.stack(columns)
        system = torch.outer(mean, mean) + m.damping * torch.eye(entries, dtype=x.dtype) + m.gamma_step * biharmonic
        v = torch.linalg.solve(system, beta / a.sqrt() * mean + m.gamma_prior * biharmonic @ x)
        eta = min(m.eta_max, math.sqrt(2 * m.tau / float(a * (u @ v) ** 2)), m.delta_euc / float(v.norm()))
        after = x - eta * v
        total += 0.5 * (score + torch.func.jacrev(value)(after.view_as(image)).flatten(1)[0]) * (x - after)
        x = after
    return total.view_as(image)


def second_differences(n: int) -> Tensor:
    """2 on the diagonal, 1 at its ends, -1 beside it."""
    matrix = 2 * torch.eye(n) - torch.eye(n).roll(1, 0) - torch.eye(n).roll(-1, 0)
    matrix[[0, -1], [-1, 0]] = 0
    matrix[[0, -1], [0, -1]] = 1
    return matrix.double()


@pytest.mark.parametrize("smooth", [0.0, 1e-2])
def test_fringe_b_equals_dense_algebra(smooth):
    net, x = SmallNet(4.0), small_images()
    method = FRInGeBinary(
        tau=2e-3, gamma_step=smooth, gamma_prior=smooth / 10, until="budget", halvings=0, temperature=1.0
    )
    method = dataclasses.replace(method, delta_euc=0.4)
    found = fringe.attribute(net, x, method=method)
    assert found.passes.jvp == 0
    for i, target in enumerate(found.target.tolist()):
        expected = binary_map(net, x[i], target, method)
        assert (found.values[i] - expected).norm() <= 1e-9 * expected.norm()


def test_of_two_classes_it_is_fringe():
    """(p_t, 1 - p_t) is the whole prediction then; FRInGe learns the length of a step that FRInGe-B knows."""

    class Two(SmallNet):
        def forward(self, x):
            return super().forward(x)[:, :2]

    net, x = Two(4.0), small_images()
    found = fringe.attribute(net, x, method=FRInGeBinary())
    expected = fringe.attribute(net, x, method=FRInGe())
    assert torch.allclose(found.values, expected.values, rtol=1e-9, atol=1e-12)


def test_a_path_belongs_to_one_class():
    net, x = SmallNet(4.0), small_images()
    both = fringe.attribute(net, x, method="fringe_b", target=torch.tensor([[0, 3], [1, 2]])).values
    single = fringe.attribute(net, x, method="fringe_b", target=torch.tensor([3, 2])).values
    assert torch.allclose(both[:, 1], single, rtol=1e-9, atol=1e-12)
    assert (both[:, 0] - both[:, 1]).norm() > 0.1 * both[:, 0].norm()


def test_the_presets_of_fringe_b_are_the_released_numbers():
    assert set(FRInGeBinary.presets) == set(preset_names())
    found = FRInGeBinary.preset("resnet50")
    assert (found.tau, found.eta_max, found.damping, found.gamma_prior) == (4.4065e-4, 3.553, 2.8034e-9, 1.5934e-4)
    full = PaperFRInGe.preset("vgg19")
    assert (FRInGeBinary.preset("vgg19").tau, FRInGeBinary.preset("vgg19").damping) == (full.tau, full.damping)
