"""What the authors' release computes: its solver written out image by image.

The facts are those of github.com/GabMartino/FRInGe; the code here is ours.
"""

import math

import pytest
import torch
from attribution_toys import SmallNet, small_images
from torch import Tensor
from torch.nn import functional

import fringe
from fringe.attribution import PaperFRInGe, ReleasedFRInGe


def stencil(v: Tensor) -> Tensor:
    """Four times a pixel minus its neighbours; beyond the edge the image is mirrored without it."""
    kernel = torch.tensor([[0.0, -1, 0], [-1, 4, -1], [0, -1, 0]], dtype=v.dtype)[None, None]
    return functional.conv2d(functional.pad(v[:, None], (1, 1, 1, 1), mode="reflect"), kernel)[:, 0]


def smoothed(v: Tensor) -> Tensor:
    taps = torch.exp(-torch.arange(-2, 3, dtype=v.dtype).square() / 8)
    kernel = torch.outer(taps, taps) / taps.sum() ** 2
    return functional.conv2d(functional.pad(v[:, None], (2, 2, 2, 2), mode="reflect"), kernel[None, None])[:, 0]


def released_map(net, image: Tensor, target: int, m: ReleasedFRInGe) -> Tensor:
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


def pcg(system, b, precondition, start, count, rtol=1e-3):
    """Preconditioned conjugate gradients as in a textbook, with the release's guards."""
    x = torch.zeros_like(b) if start is None else start
    r = b - system(x)
    d = z = precondition(r)
    rz, tolerance = (r * z).sum(), max(1e-5, rtol * float(b.norm()))
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


@pytest.mark.parametrize(("count", "scale", "within"), [(5, 1.0, 1e-9), (2, 60.0, 1e-7)])
def test_the_map_is_that_of_the_release(count, scale, within):
    """With logits times 60 some probabilities are clamped. More iterations amplify rounding: with 20, a change of the
    image by 1e-15 moves this map by 12 %."""
    net, x = SmallNet(scale), small_images()
    method = ReleasedFRInGe(cg_iterations=count, delta_euc=0.7)
    found = fringe.attribute(net, x, method=method)
    if scale > 1:
        assert net(x).softmax(1).amin() < 1e-10
    for i, target in enumerate(found.target.tolist()):
        expected = released_map(net, x[i], target, method)
        assert (found.values[i] - expected).norm() <= within * expected.norm()


@pytest.mark.parametrize("starts", [False, True])
@pytest.mark.parametrize("count", [1, 3, 12])
def test_each_image_stops_where_its_own_loop_stops(starts, count):
    """Systems of very different condition, an indefinite one, nothing to solve, less than the absolute tolerance, and
    one whose curvature is too small."""
    random = torch.Generator().manual_seed(3)
    n, widths = 8, torch.tensor([0.0, 0.5, 1.0, 1.5, 0.5, 1.0, 1.0, 1.0]).double()
    bases = torch.linalg.qr(torch.randn(len(widths), n, n, generator=random).double()).Q
    values = 10 ** (widths[:, None] * torch.linspace(-1, 1, n).double())
    values[4, :3] *= -1
    values[7] = 1e-9
    systems = bases @ torch.diag_embed(values) @ bases.mT
    scales = torch.rand(len(widths), n, generator=random).double() + 0.5
    b = torch.randn(len(widths), n, generator=random).double()
    b[5], b[6] = 0.0, 1e-6 * b[6]
    scales[6] *= 1e3  # else its curvature is too small, too
    start = 0.1 * torch.randn(len(widths), n, generator=random).double() if starts else None
    method = ReleasedFRInGe(cg_iterations=count, cg_rtol=0.1)
    found = method._conjugate_gradients(
        lambda v: (systems @ v[..., None])[..., 0], b, lambda v: scales * v, None if start is None else start.clone()
    )
    for i in range(len(widths)):
        own = None if start is None else start[i]
        expected = pcg(lambda v, a=systems[i]: a @ v, b[i], lambda v, s=scales[i]: s * v, own, count, 0.1)
        torch.testing.assert_close(found[i], expected, rtol=1e-6, atol=1e-7)
    assert found[5].norm() == 0 or starts


def test_it_has_the_numbers_of_the_paper():
    for name in PaperFRInGe.presets:
        text, released = PaperFRInGe.preset(name), ReleasedFRInGe.preset(name)
        assert text.record() == {**released.record(), "method": "paper"}
