"""What stands for a removed pixel, against pooling and SciPy."""

import pytest
import torch
from scipy import ndimage

from fringe.metrics._perturbation import Infill, box_size
from toys import Affine, context_of, normal

X = normal(2, 3, 12, 9)


def made(x=X, **settings):
    defaults = {"kind": "box", "size": None, "sigma": 3.0, "padding": "zeros"}
    infill = Infill(**{**defaults, **settings}).resolve(x)
    return infill.make(context_of(Affine(x[0].numel()), x))


@pytest.mark.parametrize(
    ("sides", "size"), [((224, 224), 23), ((32, 32), 3), ((8, 8), 3), ((400, 59), 5), ((200,), 21), ((64, 40, 50), 5)]
)
def test_the_box_is_a_tenth_of_the_shorter_side_rounded_up_to_odd(sides, size):
    assert box_size(*sides) == size


@pytest.mark.parametrize("shape", [(3, 12, 9), (3, 17), (2, 7, 5, 6)])
def test_a_box_takes_its_size_from_the_input(shape):
    x = normal(2, *shape)
    expected = ndimage.uniform_filter(x.numpy(), size=3, mode="constant", axes=tuple(range(2, x.dim())))
    torch.testing.assert_close(made(x), torch.from_numpy(expected), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("padding", "counted"), [("zeros", True), ("exclude", False)])
@pytest.mark.parametrize("size", [3, 5])
def test_box_is_average_pooling(padding, counted, size):
    pooled = torch.nn.functional.avg_pool2d(X, size, 1, size // 2, count_include_pad=counted)
    torch.testing.assert_close(made(size=size, padding=padding), pooled, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(("padding", "mode"), [("reflect", "mirror"), ("replicate", "nearest"), ("zeros", "constant")])
def test_gaussian_is_scipys_cut_to_its_window(padding, mode):
    result = made(kind="gaussian", size=15, sigma=3.0, padding=padding)
    expected = ndimage.gaussian_filter(X.numpy(), 3.0, mode=mode, axes=(2, 3), radius=7)
    torch.testing.assert_close(result, torch.from_numpy(expected), rtol=1e-12, atol=1e-14)


def test_zeros_and_mean():
    assert made(kind="zeros").equal(torch.zeros_like(X))
    torch.testing.assert_close(made(kind="mean"), X.mean((2, 3), keepdim=True).expand_as(X))


def test_what_has_no_meaning_makes_no_other_reference():
    box = Infill("box", None, 3.0, "zeros").resolve(X)
    assert box == Infill("box", 3, 7.0, "zeros").resolve(X) != Infill("box", 5, 3.0, "zeros").resolve(X)
    assert Infill("zeros", 15, 3.0, "reflect").resolve(X) == Infill("zeros", None, 1.0, "zeros").resolve(X)
    assert Infill("gaussian", 15, 3.0, "reflect").resolve(X) != Infill("gaussian", 15, 2.0, "reflect").resolve(X)


def test_a_gaussian_without_a_width_is_a_fifth_of_the_shortest_side():
    """An axis of one entry has no width: a row of pixels is blurred as a series."""
    own = made(kind="gaussian", sigma=None, padding="reflect")
    torch.testing.assert_close(own, made(kind="gaussian", sigma=0.2 * 9, padding="reflect"))
    row = made(X[:, :, :1], kind="gaussian", sigma=None, padding="reflect")
    torch.testing.assert_close(row, made(X[:, :, 0], kind="gaussian", sigma=0.2 * 9, padding="reflect")[:, :, None])
