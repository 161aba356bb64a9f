"""Algorithm 1 of the paper against explicit matrices in float64, and its table."""

import dataclasses
import math

import pytest
import torch
from attribution_oracles import laplacian_matrix, relative
from attribution_toys import Smooth, inputs
from torch import Tensor

import fringe
from fringe.attribution import PaperFRInGe
from fringe.attribution._paper import VARIANTS

EXACT = PaperFRInGe(tau=2e-2, delta_euc=0.7, damping=1e-3, cg_iterations=200, cg_rtol=1e-13)
"""Conjugate gradients run to the end."""


def dense(model, image: Tensor, target: int, m: PaperFRInGe) -> tuple[Tensor, Tensor]:
    """The map of an image (2, 8, 8) and where its path ends, by Algorithm 1 with the Fisher matrix itself."""
    rough = laplacian_matrix(8, 8)
    ltl, one = torch.block_diag(*[rough.T @ rough] * 2), torch.eye(128).double()

    def logits(x):
        return model(x.view(1, 2, 8, 8))[0]

    def gradient(x):
        return torch.autograd.functional.jacobian(logits, x)

    x, root0 = image.flatten(), logits(image.flatten()).softmax(-1).sqrt()
    root1 = torch.full_like(root0, len(root0) ** -0.5)
    theta, path_integral = torch.arccos(root0 @ root1), torch.zeros_like(x)
    steps = math.ceil(2 * theta.item() / math.sqrt(2 * m.tau))
    for k in range(steps):
        alpha = (k + 1) / steps
        s = (torch.sin((1 - alpha) * theta) * root0 + torch.sin(alpha * theta) * root1) / torch.sin(theta)
        p, j = logits(x).softmax(-1), gradient(x)
        softmax = torch.diag(p) - torch.outer(p, p)
        # d(1 - <sqrt p, s>)/dlogits by the chain rule: dsqrt(p)/dp = 1/(2 sqrt p), dp/dlogits = diag p - p p'
        b = j.T @ (softmax @ (-s / (2 * p.sqrt()))) + m.gamma_prior * ltl @ x
        fisher = j.T @ softmax @ j
        v = b if m.direction == "gradient" else torch.linalg.solve(fisher + m.damping * one + m.gamma_step * ltl, b)
        eta = m.eta_max
        if m.kl_bound:
            eta = min(eta, math.sqrt(2 * m.tau / ((v @ fisher @ v).item() + 1e-12)))
        if m.delta_euc is not None:
            eta = min(eta, m.delta_euc / (v.norm().item() + 1e-12))
        after = x - eta * v
        path_integral += 0.5 * (j[target] + gradient(after)[target]) * (after - x)
        x = after
    return -path_integral.view(2, 8, 8), x.view(2, 8, 8)


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_path_and_its_ablations_equal_dense_algebra(variant, few):
    """With J as a whole where K is at least the number of classes, and by products."""
    model, x = Smooth(classes=5 if few else 130), inputs(2)
    method = dataclasses.replace(EXACT.variant(variant), cg_iterations=200 if few else 129)
    method = dataclasses.replace(method, eta_max=0.3 if variant == "euclidean" else method.eta_max)
    found = fringe.attribute(model, x, method=method, telemetry=True)
    assert (found.passes.jvp > 0) == (method.kl_bound and not (few and method.direction == "natural"))
    for i, target in enumerate(found.target.tolist()):
        values, end = dense(model, x[i], target, method)
        assert relative(found.values[i], values) < 1e-8
        assert relative(found.trajectory[i].snapshots[-1], end) < 1e-8
