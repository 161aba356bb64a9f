"""What the authors' release computes: its solver written out image by image, and FRInGe-B against explicit matrices.

The facts are those of github.com/GabMartino/FRInGe; the code here is ours.
"""

import dataclasses
import math
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import fringe
from fringe import FRInGe, InputError
from fringe.attribution import FRInGeBinary, preset_names

RELEASED = FRInGe.preset("released_resnet50")


class Net(nn.Module):
    """A smooth network for images (2, 8, 9) and five classes, in float64."""

    def __init__(self, scale=1.0):
        super().__init__()
        torch.manual_seed(4)
        self.conv, self.head = nn.Conv2d(2, 6, 3, padding=1), nn.Linear(6 * 4 * 4, 5)
        self.scale = scale
        self.double().eval().requires_grad_(False)

    def forward(self, x):
        return self.scale * self.head(functional.avg_pool2d(functional.softplus(self.conv(x)), 2).flatten(1))


def images(n=2):
    return torch.randn(n, 2, 8, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def stencil(v: Tensor) -> Tensor:
    """Four times a pixel minus its neighbours; beyond the edge the image is mirrored without it."""
    kernel = torch.tensor([[0.0, -1, 0], [-1, 4, -1], [0, -1, 0]], dtype=v.dtype)[None, None]
    return functional.conv2d(functional.pad(v[:, None], (1, 1, 1, 1), mode="reflect"), kernel)[:, 0]


def smoothed(v: Tensor) -> Tensor:
    taps = torch.exp(-torch.arange(-2, 3, dtype=v.dtype).square() / 8)
    kernel = torch.outer(taps, taps) / taps.sum() ** 2
    return functional.conv2d(functional.pad(v[:, None], (2, 2, 2, 2), mode="reflect"), kernel[None, None])[:, 0]


def released_map(net, image: Tensor, target: int, m: FRInGe) -> Tensor:
    """The map (2, 8, 9) of one image."""

    def jacobian(x):
        return torch.func.jacrev(lambda z: net(z[None])[0])(x)

    p = net(image[None])[0].softmax(0).clamp_min(1e-8)
    root, uniform = (p / p.sum()).sqrt(), torch.full_like(p, len(p) ** -0.5)
    theta = torch.arccos(root @ uniform)
    n = max(1, math.ceil(1.1 * 2 * float(theta) / math.sqrt(2 * m.tau)))
    x, v, total = image, None, torch.zeros_like(image)
    for i in range(1, n + 1):
        s = (torch.sin((1 - i / n) * theta) * root + torch.sin(i / n * theta) * uniform) / torch.sin(theta)
        j = jacobian(x)
        p = net(x[None])[0].softmax(0)
        clamped = p.clamp_min(1e-10)
        loss = torch.where(p >= 1e-10, -0.5 * s * clamped.sqrt(), 0.0)  # in log p; then in the logits
        b = torch.einsum("c,c...->...", loss - p * loss.sum(), j) + m.gamma_prior * stencil(stencil(x))

        def product(w, j=j, q=clamped):
            u = torch.einsum("c...,...->c", j, w)
            return torch.einsum("c,c...->...", q * u - q * (q @ u), j)

        def system(w, product=product):
            return product(w) + m.damping * w + m.gamma_step * stencil(stencil(w))

        v = pcg(system, b, lambda w: smoothed(w) / m.damping, v, m.cg_iterations)
        fisher = (v * product(v)).sum().clamp_min(1e-12)
        eta = min(m.eta_max, float((2 * m.tau / fisher).sqrt()), m.delta_euc / float(v.norm().clamp_min(1e-12)))
        after = x - eta * v
        total += 0.5 * (j[target] + jacobian(after)[target]) * (x - after)
        x = after
    return total


def pcg(system, b, precondition, start, count):
    """Preconditioned conjugate gradients as in a textbook, with the release's guards."""
    x = torch.zeros_like(b) if start is None else start
    r = b - system(x)
    d = z = precondition(r)
    rz, tolerance = (r * z).sum(), max(1e-5, 1e-3 * float(b.norm()))
    for _ in range(count):
        if float(r.norm()) <= tolerance:
            break
        product = system(d)
        curvature = (d * product).sum()
        if curvature <= 1e-8:
            break
        alpha = rz / curvature
        x, r = x + alpha * d, r - alpha * product
        z = precondition(r)
        before, rz = rz, (r * z).sum()
        d = z + rz / (before if abs(before) > 1e-8 else 1.0) * d
    return x


@pytest.mark.filterwarnings("ignore:a kernel of 5 taps")
@pytest.mark.parametrize(("count", "scale", "within"), [(5, 1.0, 1e-9), (2, 60.0, 1e-7)])
def test_the_released_preset_is_the_released_algorithm(count, scale, within):
    """With logits times 60 some probabilities are clamped. More iterations amplify rounding: with 20, a change of the
    image by 1e-15 moves this map by 12 %."""
    net, x = Net(scale), images()
    method = dataclasses.replace(RELEASED, cg_iterations=count, delta_euc=0.7)
    found = fringe.attribute(net, x, method=method)
    if scale > 1:
        assert net(x).softmax(1).amin() < 1e-10
    for i, target in enumerate(found.target.tolist()):
        expected = released_map(net, x[i], target, method)
        assert (found.values[i] - expected).norm() <= within * expected.norm()


def test_the_paper_and_its_release_are_two_presets():
    assert set(FRInGe.presets) >= {f"released_{name}" for name in preset_names()} | {"released", *preset_names()}
    for name in preset_names():
        text, released = FRInGe.preset(name), FRInGe.preset(f"released_{name}")
        assert (text.tau, text.eta_max, text.delta_euc) == (released.tau, released.eta_max, released.delta_euc)
        assert (released.boundary, released.step_margin, released.cg_atol) == ("reflect", 1.1, 1e-5)


def test_the_indefinite_blur_is_said_for_the_release_and_refused_elsewhere():
    """The smallest response over all frequencies is that of the highest along one axis, times 1 along the other."""
    net, x = Net(), images(1)
    taps = torch.exp(-torch.arange(3.0).square() / 8)
    w = torch.pi * torch.arange(9) / 8
    least = ((taps[0] + 2 * taps[1] * torch.cos(w) + 2 * taps[2] * torch.cos(2 * w)) / (2 * taps.sum() - 1)).min()
    with pytest.warns(UserWarning, match=f"its smallest response is {least:.3f}"):
        fringe.attribute(net, x, method=RELEASED)
    with pytest.raises(InputError, match="not positive definite"):
        fringe.attribute(net, x, method=dataclasses.replace(RELEASED, cg_atol=None))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fringe.attribute(net, x, method=FRInGe.preset("resnet50"))


def test_the_closed_form_refuses_an_operator_that_is_not_symmetric():
    with pytest.raises(InputError, match=r"boundary: 'reflect' is not symmetric.*neumann"):
        FRInGe(boundary="reflect")


# -- FRInGe-B ---------------------------------------------------------------------------------------------------------


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
    n = math.ceil(m.step_margin * 2 * float(theta) / math.sqrt(2 * m.tau))
    x, total = image.flatten(), torch.zeros(entries, dtype=image.dtype)
    for i in range(1, n + 1):
        s = (torch.sin((1 - i / n) * theta) * s0 + torch.sin(i / n * theta) * s1) / torch.sin(theta)
        score, u = torch.func.jacrev(value)(x.view_as(image)).flatten(1)
        p = value(x.view_as(image))[1].sigmoid()
        beta = 0.5 * (p * (1 - p).sqrt() * s[1] - (1 - p) * p.sqrt() * s[0])
        a = p * (1 - p)
        system = a * torch.outer(u, u) + m.damping * torch.eye(entries, dtype=x.dtype) + m.gamma_step * biharmonic
        v = torch.linalg.solve(system, beta * u + m.gamma_prior * biharmonic @ x)
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
    net, x = Net(4.0), images()
    method = FRInGeBinary(
        tau=2e-3, gamma_step=smooth, gamma_prior=smooth / 10, until="budget", quadrature="trapezoid", temperature=1.0
    )
    method = dataclasses.replace(method, step_margin=1.1, delta_euc=0.4)
    found = fringe.attribute(net, x, method=method)
    assert found.passes.jvp == 0
    for i, target in enumerate(found.target.tolist()):
        expected = binary_map(net, x[i], target, method)
        assert (found.values[i] - expected).norm() <= 1e-9 * expected.norm()


def test_of_two_classes_it_is_fringe():
    """(p_t, 1 - p_t) is the whole prediction then; FRInGe learns the length of a step that FRInGe-B knows."""

    class Two(Net):
        def forward(self, x):
            return super().forward(x)[:, :2]

    net, x = Two(4.0), images()
    found = fringe.attribute(net, x, method=FRInGeBinary())
    expected = fringe.attribute(net, x, method=FRInGe(feedback=None))
    assert torch.allclose(found.values, expected.values, rtol=1e-9, atol=1e-12)


def test_a_path_belongs_to_one_class():
    net, x = Net(4.0), images()
    both = fringe.attribute(net, x, method="fringe_b", target=torch.tensor([[0, 3], [1, 2]])).values
    single = fringe.attribute(net, x, method="fringe_b", target=torch.tensor([3, 2])).values
    assert torch.allclose(both[:, 1], single, rtol=1e-9, atol=1e-12)
    assert (both[:, 0] - both[:, 1]).norm() > 0.1 * both[:, 0].norm()


def test_the_presets_of_fringe_b_are_the_released_numbers():
    assert set(FRInGeBinary.presets) == set(preset_names())
    found = FRInGeBinary.preset("resnet50")
    assert (found.tau, found.eta_max, found.damping, found.gamma_prior) == (4.4065e-4, 3.553, 2.8034e-9, 1.5934e-4)
    full = FRInGe.preset("vgg19")
    assert (FRInGeBinary.preset("vgg19").tau, FRInGeBinary.preset("vgg19").damping) == (full.tau, full.damping)


def test_the_page_shows_the_settings():
    """docs/paper.md: a column each for the paper's text, the release and the default."""
    page = (Path(__file__).parents[2] / "docs" / "paper.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.split("## The settings")[1].split("## ")[0].splitlines()]
    table = {row[0].strip("`"): row[1:] for row in rows if row[0].startswith("`")}
    methods = [FRInGe.preset("resnet50"), FRInGe.preset("released_resnet50"), FRInGe()]
    records = [method.record() for method in methods]
    differs = {name for name in records[0] if len({str(record[name]) for record in records}) > 1}
    assert differs <= set(table)
    for name, cells in table.items():
        assert [str(record[name]).lower() for record in records] == cells, name
