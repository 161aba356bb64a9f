"""Operators against explicit matrices: finite differences, and dense inverses."""

import pytest
import torch

from fringe import linalg
from fringe.linalg import SpectralOperator, add_rows, inner_product, laplacian
from toys import normal

EPS = torch.finfo(torch.float64).eps


def test_no_product_is_or_alters_its_argument():
    v = normal(2, 6, seed=1)
    before = v.clone()
    applied(SpectralOperator.of(torch.ones(6), v), v).add_(1.0)
    assert torch.equal(v, before)


def test_inner_products_of_float32_are_summed_in_float64():
    a = torch.full((1, 3, 1000), 0.1, dtype=torch.float32)
    exact = 3000 * float(a[0, 0, 0]) ** 2
    assert abs(inner_product(a, a).item() - exact) <= 3000 * torch.finfo(torch.float64).eps * exact


def test_inner_products_neither_overflow_nor_vanish_in_float32():
    for size in (1e-30, 1e30):
        a = torch.full((1, 4), size, dtype=torch.float32)
        assert abs(inner_product(a, a).item() / (4 * float(a[0, 0]) ** 2) - 1) <= 1e-15


SIZES = [(1,), (2,), (3,), (8,), (9,), (1, 1), (1, 4), (2, 2), (2, 5), (6, 4), (7, 7)]


def second_difference(n):
    """The matrix of v -> 2 v_i - v_(i-1) - v_(i+1); beyond an edge the neighbour is the edge."""
    matrix = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        for j in (i - 1, i + 1):
            matrix[i, i] += 1
            matrix[i, min(max(j, 0), n - 1)] -= 1
    return matrix


def matrix_of_laplacian(sizes):
    total = torch.zeros(1, 1, dtype=torch.float64)
    for n in sizes:
        d = second_difference(n)
        total = torch.kron(total, torch.eye(n).double()) + torch.kron(torch.eye(total.shape[0]).double(), d)
    return total


def applied(operator, v):
    return operator.from_modes(operator.symbol * operator.to_modes(v))


def dense(symbol, dtype=torch.float64):
    """The operator's matrix, one unit vector at a time."""
    count = symbol.numel()
    units = torch.eye(count, dtype=dtype).view(count, *symbol.shape)
    return applied(SpectralOperator.of(symbol, units), units).reshape(count, count).mT


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 32, 33, 224])
def test_bases_are_orthonormal(n):
    (basis,) = SpectralOperator.of(torch.ones(n), torch.zeros(1, dtype=torch.float64)).bases
    identity = torch.eye(n, dtype=torch.float64)
    assert (basis @ basis.mT - identity).abs().max() <= 10 * n * EPS
    assert (basis.mT @ basis - identity).abs().max() <= 10 * n * EPS


@pytest.mark.parametrize("sizes", [(1,), (2,), (3,), (8,), (9,), (64,), (1, 6), (7, 5), (8, 12)])
def test_cosine_modes_by_ffts_are_those_by_matrices(sizes, monkeypatch):
    symbol = laplacian(sizes) + 1
    x = torch.randn(2, *sizes, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrices = SpectralOperator.of(symbol, x)
    monkeypatch.setattr(linalg, "FFT_FROM", 1)
    ffts = SpectralOperator.of(symbol, x)
    assert matrices.bases
    assert not ffts.bases
    modes = matrices.to_modes(x)
    assert (ffts.to_modes(x) - modes).abs().max() <= 100 * sum(sizes) * EPS
    assert (ffts.from_modes(modes) - x).abs().max() <= 100 * sum(sizes) * EPS
    assert (applied(ffts, x) - applied(matrices, x)).abs().max() <= 1000 * sum(sizes) * EPS


@pytest.mark.parametrize(("sizes", "by_ffts"), [((511, 700), False), ((512, 700), True), ((600,), True)])
def test_long_axes_take_ffts(sizes, by_ffts):
    assert (SpectralOperator.of(torch.ones(sizes), torch.zeros(1)).bases == ()) == by_ffts


@pytest.mark.parametrize("sizes", SIZES)
def test_the_laplacian_its_square_and_inverse_are_those_of_the_matrix_of_second_differences(sizes):
    """The condition of what is inverted is (0.3 + 2 * 64) / 0.3 = 430, as |L| <= 8."""
    found, matrix = laplacian(sizes), matrix_of_laplacian(sizes)
    regularised = 0.3 * torch.eye(len(matrix)).double() + 2.0 * matrix @ matrix
    for symbol, expected, size in (
        (found, matrix, 8),
        (found.square(), matrix @ matrix, 64),
        (1 / (0.3 + 2.0 * found.square()), torch.linalg.inv(regularised), 430),
    ):
        assert (dense(symbol) - expected).abs().max() <= size * 10 * sum(sizes) * EPS


def test_without_axes_the_laplacian_is_zero():
    v = normal(3, 7, seed=1)
    assert torch.equal(applied(SpectralOperator.of(laplacian(()), v), v), torch.zeros_like(v))


def test_three_axes_are_refused():
    with pytest.raises(ValueError, match=r"at most 2 axes, got 3: \(2, 3, 4\)"):
        laplacian((2, 3, 4))


def test_float32_is_float64_to_its_rounding():
    found, v = laplacian((224, 224)), normal(2, 3, 224, 224, seed=1)
    eps = torch.finfo(torch.float32).eps
    for symbol in (found, 1 / (0.1 + found.square())):
        exact = applied(SpectralOperator.of(symbol, v), v)
        single = applied(SpectralOperator.of(symbol, v.float()), v.float())
        assert single.dtype == torch.float32
        # four products of length 224 with orthonormal rows: rounding grows like sqrt(224) in each
        assert (single - exact).norm() <= 4 * 224**0.5 * eps * symbol.max() * v.norm()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("shape", [(), (5,), (3, 4)])
def test_rows_that_occur_more_than_once_are_added_up_in_one_order(device, shape):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    draw = torch.Generator().manual_seed(0)
    rows = torch.randint(0, 4, (500,), generator=draw)
    values = torch.randn(500, *shape, generator=draw, dtype=torch.float64)
    total = torch.randn(6, *shape, generator=draw, dtype=torch.float64)
    expected = torch.stack([total[b] + values[rows == b].sum(0) for b in range(6)])
    found = [add_rows(total.to(device, copy=True), rows.to(device), values.to(device)) for _ in range(5)]
    torch.testing.assert_close(found[0].cpu(), expected)
    assert all(torch.equal(other, found[0]) for other in found)
    inplace = total.to(device, copy=True)
    assert add_rows(inplace, rows.to(device), values.to(device)) is inplace
