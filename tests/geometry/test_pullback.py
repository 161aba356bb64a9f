"""The pullback Fisher metric of a small network, product by product, against the dense J^T S J."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from fringe.geometry import ExplicitJacobian, PullbackFisher, SoftenedJacobian
from toys import normal

CLASSES, PIXELS = 5, 24


@dataclass(frozen=True)
class DenseJacobian:
    matrix: Tensor  # (B, C, n)

    def jvp(self, tangent):
        return (self.matrix @ tangent.flatten(1)[..., None])[..., 0]

    def vjp(self, cotangent):
        return (self.matrix.mT @ cotangent[..., None])[..., 0].view(-1, 2, 3, 4)


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    layers = nn.Conv2d(2, 6, 3, padding=1), nn.SiLU(), nn.Flatten(), nn.Linear(72, CLASSES)
    return nn.Sequential(*layers).double().requires_grad_(False)


@pytest.fixture(scope="module")
def metric(network):
    """The operator at three points, and its dense matrices (3, n, n)."""
    x = normal(3, 2, 3, 4)
    j = torch.func.vmap(torch.func.jacrev(lambda z: network(z[None])[0]))(x).flatten(2)
    p = (5 * network(x)).softmax(-1)
    s = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    return PullbackFisher(DenseJacobian(j), p), j.mT @ s @ j


def matrix_of(operator, batch):
    units = torch.eye(PIXELS, dtype=torch.float64).view(PIXELS, 1, 2, 3, 4).expand(-1, batch, -1, -1, -1)
    return torch.stack([operator.matvec(e).flatten(1) for e in units], dim=2)


def test_is_the_dense_product(metric):
    """The whole matrix: what is symmetric, semidefinite and of rank C - 1 about J^T S J is so about the operator."""
    operator, dense = metric
    assert (matrix_of(operator, 3) - dense).abs().max() <= 1e-12 * dense.abs().max()


def test_in_float32_with_float64_probabilities_is_symmetric(metric):
    operator, _ = metric
    single = PullbackFisher(DenseJacobian(operator.jacobian.matrix.float()), operator.probabilities)
    for seed in range(20):
        u, v = normal(3, 2, 3, 4, seed=2 * seed).float(), normal(3, 2, 3, 4, seed=2 * seed + 1).float()
        product = single.matvec(v)
        assert product.dtype == torch.float32
        left, right = (u * product).flatten(1).sum(1), (single.matvec(u) * v).flatten(1).sum(1)
        assert ((left - right).abs() <= 1e-5 * u.flatten(1).norm(dim=1) * product.flatten(1).norm(dim=1)).all()


@pytest.mark.parametrize("logits", [torch.float32, torch.float64])
def test_an_explicit_jacobian_takes_logits_of_another_precision(logits):
    matrix = normal(2, CLASSES, PIXELS).to(torch.float32)
    explicit, dense = ExplicitJacobian(matrix, (2, 3, 4)), DenseJacobian(matrix.double())
    u, v = normal(2, CLASSES, seed=2), normal(2, 2, 3, 4, seed=3)
    torch.testing.assert_close(explicit.vjp(u.to(logits)).double(), dense.vjp(u), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(explicit.jvp(v.to(logits)).double(), dense.jvp(v), rtol=1e-5, atol=1e-5)


def test_softened_products_are_those_of_the_divided_matrix():
    matrix, temperature = normal(3, CLASSES, PIXELS), torch.tensor([1.0, 2.5, 40.0], dtype=torch.float64)
    found, expected = (
        SoftenedJacobian(DenseJacobian(matrix), temperature),
        DenseJacobian(matrix / temperature[:, None, None]),
    )
    torch.testing.assert_close(found.jvp(normal(3, 2, 3, 4)), expected.jvp(normal(3, 2, 3, 4)))
    torch.testing.assert_close(found.vjp(normal(3, CLASSES)), expected.vjp(normal(3, CLASSES)))
    single = SoftenedJacobian(DenseJacobian(matrix.float()), temperature)
    assert single.jvp(normal(3, 2, 3, 4).float()).dtype == single.vjp(normal(3, CLASSES).float()).dtype == torch.float32
