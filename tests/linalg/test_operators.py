"""Operators against explicit matrices: compositions, finite differences, padded convolution, dense inverses."""

import numpy as np
import pytest
import torch
from linalg_toys import EPS, Dense, Identity, symmetric

from fringe import linalg
from fringe.linalg import LaplacianBasis, SumOperator, add_rows, inner_product
from toys import normal


def test_the_sum_is_the_dense_one():
    a, b, v = symmetric(torch.linspace(1, 2, 6), 1), symmetric(torch.linspace(0, 3, 6), 2), normal(1, 6, seed=3)
    product = SumOperator((Dense(a), Dense(b), Identity())).matvec(v)
    expected = (a + b + torch.eye(6)) @ v[..., None]
    assert torch.allclose(product, expected[..., 0], rtol=1e-14, atol=1e-14)


def test_no_product_is_or_alters_its_argument():
    v = normal(2, 6, seed=1)
    before = v.clone()
    grid = LaplacianBasis((6,))
    spectral = grid.operator(torch.ones(6), v)
    for operator in (spectral, SumOperator((spectral,)), SumOperator((Identity(), Identity()))):
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


BOUNDARIES = ["neumann", "dirichlet", "periodic"]
ALL = [*BOUNDARIES, "reflect"]
"""Also the one whose operators are not symmetric."""
SIZES = [(1,), (2,), (3,), (8,), (9,), (1, 1), (1, 4), (2, 2), (2, 5), (6, 4), (7, 7)]
PAD = {"neumann": "symmetric", "periodic": "wrap", "reflect": "reflect"}


def second_difference(n, boundary):
    """The matrix of v -> 2 v_i - v_(i-1) - v_(i+1), the neighbours beyond the edge as the boundary rule says."""
    matrix = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        matrix[i, i] += 2
        for j in (i - 1, i + 1):
            if boundary == "periodic":
                matrix[i, j % n] -= 1
            elif 0 <= j < n:
                matrix[i, j] -= 1
            elif boundary == "neumann":
                matrix[i, i] -= 1
            elif boundary == "reflect":
                matrix[i, min(2 * i - j, n - 1)] -= 1
    return matrix


def laplacian(sizes, boundary):
    total = torch.zeros(1, 1, dtype=torch.float64)
    for n in sizes:
        d = second_difference(n, boundary)
        total = torch.kron(total, torch.eye(n).double()) + torch.kron(torch.eye(total.shape[0]).double(), d)
    return total


def dense(grid, symbol, dtype=torch.float64):
    """The operator's matrix, one unit vector at a time."""
    count = int(np.prod(grid.sizes))
    units = torch.eye(count, dtype=dtype).view(count, *grid.sizes)
    return grid.operator(symbol, units).matvec(units).reshape(count, count).mT


def taps(sigma, size):
    weights = torch.exp(-0.5 * (torch.arange(-(size // 2), size // 2 + 1, dtype=torch.float64) / sigma) ** 2)
    return weights / weights.sum()


def convolved(v, kernel, boundary):
    """``v`` convolved along each axis with its extension beyond the edges written out."""
    width = len(kernel) // 2
    for axis in range(v.ndim):
        padding = [(0, 0)] * v.ndim
        padding[axis] = (width, width)
        extended = np.pad(v, padding, mode=PAD[boundary])
        n = v.shape[axis]
        v = sum(w * np.take(extended, range(k, k + n), axis) for k, w in enumerate(kernel.tolist()))
    return v


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 32, 33, 224])
def test_bases_are_orthonormal(boundary, n):
    (basis,) = LaplacianBasis((n,), boundary).operator(torch.ones(n), torch.zeros(1, dtype=torch.float64)).bases
    identity = torch.eye(n, dtype=torch.float64)
    assert (basis @ basis.mT - identity).abs().max() <= 10 * n * EPS
    assert (basis.mT @ basis - identity).abs().max() <= 10 * n * EPS


@pytest.mark.parametrize("sizes", [(1,), (2,), (3,), (8,), (9,), (64,), (1, 6), (7, 5), (8, 12)])
def test_cosine_modes_by_ffts_are_those_by_matrices(sizes, monkeypatch):
    grid = LaplacianBasis(sizes)
    x = torch.randn(2, *sizes, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrices = grid.operator(grid.laplacian() + 1, x)
    monkeypatch.setattr(linalg, "FFT_FROM", 1)
    ffts = grid.operator(grid.laplacian() + 1, x)
    assert matrices.bases
    assert not ffts.bases
    modes = matrices.to_modes(x)
    assert (ffts.to_modes(x) - modes).abs().max() <= 100 * sum(sizes) * EPS
    assert (ffts.from_modes(modes) - x).abs().max() <= 100 * sum(sizes) * EPS
    assert (ffts.matvec(x) - matrices.matvec(x)).abs().max() <= 1000 * sum(sizes) * EPS


@pytest.mark.parametrize(
    ("sizes", "boundary", "by_ffts"),
    [
        ((511, 700), "neumann", False),
        ((512, 700), "neumann", True),
        ((600,), "neumann", True),
        ((512, 700), "dirichlet", False),
    ],
)
def test_long_axes_take_ffts_where_the_modes_are_cosines(sizes, boundary, by_ffts):
    operator = LaplacianBasis(sizes, boundary).operator(torch.ones(sizes), torch.zeros(1))
    assert (operator.bases == ()) == by_ffts


@pytest.mark.parametrize("boundary", ALL)
@pytest.mark.parametrize("sizes", SIZES)
def test_the_laplacian_its_square_and_inverse_are_those_of_the_matrix_of_second_differences(sizes, boundary):
    """The condition of what is inverted is (0.3 + 2 * 64) / 0.3 = 430, as |L| <= 8."""
    grid, matrix = LaplacianBasis(sizes, boundary), laplacian(sizes, boundary)
    regularised = 0.3 * torch.eye(len(matrix)).double() + 2.0 * matrix @ matrix
    for symbol, expected, size in (
        (grid.laplacian(), matrix, 8),
        (grid.biharmonic(), matrix @ matrix, 64),
        (1 / (0.3 + 2.0 * grid.biharmonic()), torch.linalg.inv(regularised), 430),
    ):
        assert (dense(grid, symbol) - expected).abs().max() <= size * 10 * sum(sizes) * EPS


@pytest.mark.parametrize("boundary", PAD)
@pytest.mark.parametrize("sizes", [(1,), (2,), (3,), (9,), (2, 5), (1, 8), (8, 7)])
@pytest.mark.parametrize(("sigma", "size"), [(1.0, 7), (0.5, 3), (0.8, 1), (1.5, 15)])
def test_blur_is_the_truncated_gaussian_on_the_extended_signal(boundary, sizes, sigma, size):
    grid, v = LaplacianBasis(sizes, boundary), normal(*sizes, seed=3)
    blurred = grid.operator(grid.gaussian_blur(sigma, size), v).matvec(v)
    expected = torch.from_numpy(convolved(v.numpy(), taps(sigma, size), boundary))
    assert (blurred - expected).abs().max() <= 10 * sum(sizes) * EPS * v.abs().max()


def test_blur_of_odd_extension_for_dirichlet():
    v = normal(9, seed=3)
    zero = torch.zeros(1, dtype=torch.float64)
    period = torch.cat([zero, v, zero, -v.flip(0)])  # odd about the zeros beyond each edge
    grid = LaplacianBasis((9,), "dirichlet")
    blurred = grid.operator(grid.gaussian_blur(1.0, 7), v).matvec(v)
    expected = convolved(period.numpy(), taps(1.0, 7), "periodic")[1:10]
    assert (blurred - torch.from_numpy(expected)).abs().max() <= 100 * EPS


class TestKernelsThatAreRefused:
    def test_an_indefinite_truncation(self):
        # 1 + 2 w1 cos w + 2 w2 cos 2w with sigma 1.5 is negative near w = 2.4
        with pytest.raises(ValueError, match=r"5 taps truncates sigma=1.5 so that it is not positive definite"):
            LaplacianBasis((16, 16)).gaussian_blur(1.5, 5)

    @pytest.mark.parametrize("sigma", [1.0, 1.2, 1.5, 2.0, 2.7])
    def test_the_advice_is_sound(self, sigma):
        with pytest.raises(ValueError, match="use more taps") as refusal:
            LaplacianBasis((64,)).gaussian_blur(sigma, 3)
        advised = int(str(refusal.value).split(" = ")[1].split(")")[0])
        for boundary in BOUNDARIES:
            assert (LaplacianBasis((64,), boundary).gaussian_blur(sigma, advised) > 0).all()

    @pytest.mark.parametrize("size", [7, 21, 201])
    def test_a_blur_that_rounding_makes_singular(self, size):
        with pytest.raises(ValueError, match=r"use a sigma of at most 2\.7"):
            LaplacianBasis((64,)).gaussian_blur(4.0, size)

    @pytest.mark.parametrize(
        ("sigma", "size"),
        [(1.0, 4), (1.0, 0), (1.0, -1), (0.0, 7), (-1.0, 7), (torch.nan, 7), (torch.inf, 3), (torch.inf, 1)],
    )
    def test_a_kernel_without_meaning(self, sigma, size):
        with pytest.raises(ValueError, match=rf"size must be odd and sigma positive .* got size={size}, sigma={sigma}"):
            LaplacianBasis((16,)).gaussian_blur(sigma, size)


class TestNoStructure:
    def test_the_laplacian_is_zero_and_the_blur_the_identity(self):
        grid, v = LaplacianBasis(()), normal(3, 7, seed=1)
        assert torch.equal(grid.operator(grid.laplacian(), v).matvec(v), torch.zeros_like(v))
        assert torch.equal(grid.operator(grid.biharmonic(), v).matvec(v), torch.zeros_like(v))
        assert torch.equal(grid.operator(grid.gaussian_blur(1.0, 7), v).matvec(v), v)

    def test_three_axes_and_unknown_boundaries_are_refused(self):
        with pytest.raises(ValueError, match=r"at most 2 axes, got 3: \(2, 3, 4\)"):
            LaplacianBasis((2, 3, 4))
        with pytest.raises(ValueError, match="got 'mirror', expected one of neumann, dirichlet, periodic, reflect"):
            LaplacianBasis((4,), "mirror")


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_float32_is_float64_to_its_rounding(boundary):
    grid, v = LaplacianBasis((224, 224), boundary), normal(2, 3, 224, 224, seed=1)
    eps = torch.finfo(torch.float32).eps
    for symbol in (grid.laplacian(), grid.gaussian_blur(1.0, 7), 1 / (0.1 + grid.biharmonic())):
        exact = grid.operator(symbol, v).matvec(v)
        single = grid.operator(symbol, v.float()).matvec(v.float())
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
