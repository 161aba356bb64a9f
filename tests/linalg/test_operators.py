"""Composition of operators: each product against the dense sum, and no alias handed out."""

import torch
from dense_systems import Dense, normal, symmetric

from fringe.linalg import DampedOperator, IdentityOperator, ScaledOperator, SumOperator, inner_product


def test_compositions_are_the_dense_ones():
    a, b, v = symmetric(torch.linspace(1, 2, 6), 1), symmetric(torch.linspace(0, 3, 6), 2), normal((1, 6), 3)
    product = SumOperator((DampedOperator(Dense(a), 0.25), ScaledOperator(Dense(b), -2.0), IdentityOperator())).matvec(
        v
    )
    expected = (a + 0.25 * torch.eye(6) - 2 * b + torch.eye(6)) @ v[..., None]
    assert torch.allclose(product, expected[..., 0], rtol=1e-14, atol=1e-14)


def test_no_product_is_or_alters_its_argument():
    v = normal((2, 6), 1)
    before = v.clone()
    eye = IdentityOperator()
    for operator in (
        eye,
        ScaledOperator(eye, 1.0),
        DampedOperator(eye, 0.0),
        SumOperator((eye,)),
        SumOperator((eye, eye)),
    ):
        operator.matvec(v).add_(1.0)
        assert torch.equal(v, before)


def test_inner_products_of_float32_are_summed_in_float64():
    a = torch.full((1, 3, 1000), 0.1, dtype=torch.float32)
    exact = 3000 * float(a[0, 0, 0]) ** 2
    assert abs(inner_product(a, a).item() - exact) <= 3000 * torch.finfo(torch.float64).eps * exact


def test_inner_products_neither_overflow_nor_vanish_in_float32():
    for size in (1e-30, 1e30):
        a = torch.full((1, 4), size, dtype=torch.float32)
        assert abs(inner_product(a, a).item() / (4 * float(a[0, 0]) ** 2) - 1) <= 1e-15
