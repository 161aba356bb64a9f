"""What stands for a removed pixel, against pooling and SciPy."""

import pytest
import torch
from scipy import ndimage

from fringe.metrics._perturbation import Infill, box_size, folded_gaussian_kernel
from toys import Affine, context_of, normal

X = normal(2, 3, 12, 9)


def made(x=X, **settings):
    defaults = {"kind": "box", "size": None, "sigma": 3.0, "padding": "zeros"}
    infill = Infill(**{**defaults, **settings}).resolve(x)
    return infill.make(context_of(Affine(x[0].numel()), x))


@pytest.mark.parametrize(
    ("height", "width", "size"), [(224, 224, 23), (299, 299, 29), (32, 32, 3), (128, 224, 13), (8, 8, 3), (400, 59, 5)]
)
def test_the_box_is_a_tenth_of_the_shorter_side_rounded_up_to_odd(height, width, size):
    assert box_size(height, width) == size


@pytest.mark.parametrize(("padding", "counted"), [("zeros", True), ("exclude", False)])
@pytest.mark.parametrize("size", [3, 5])
def test_box_is_average_pooling(padding, counted, size):
    pooled = torch.nn.functional.avg_pool2d(X, size, 1, size // 2, count_include_pad=counted)
    torch.testing.assert_close(made(size=size, padding=padding), pooled, rtol=1e-13, atol=1e-14)


def test_box_takes_its_size_from_the_image():
    assert made().equal(made(size=3))


@pytest.mark.parametrize(("padding", "mode"), [("reflect", "mirror"), ("replicate", "nearest"), ("zeros", "constant")])
def test_gaussian_is_scipys_cut_to_its_window(padding, mode):
    result = made(kind="gaussian", size=15, sigma=3.0, padding=padding)
    expected = ndimage.gaussian_filter(X.numpy(), 3.0, mode=mode, axes=(2, 3), radius=7)
    torch.testing.assert_close(result, torch.from_numpy(expected), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("sigma", "low", "high"), [(11.0, 0.008264, 0.008265), (5.0, 0.007737, 0.008833)])
def test_folded_kernel_is_an_impulse_filtered_inside_its_window(sigma, low, high):
    impulse = torch.zeros(11, 11, dtype=torch.float64)
    impulse[5, 5] = 1.0
    expected = torch.from_numpy(ndimage.gaussian_filter(impulse.numpy(), sigma))
    taps = folded_gaussian_kernel(sigma, 11)
    torch.testing.assert_close(torch.outer(taps, taps), expected, rtol=1e-12, atol=1e-16)
    assert (round(float(expected.min()), 6), round(float(expected.max()), 6)) == (low, high)
    kernel = torch.outer(taps, taps).expand(3, 1, 11, 11)
    filtered = torch.nn.functional.conv2d(X, kernel, padding=5, groups=3)
    torch.testing.assert_close(made(kind="folded", size=11, sigma=sigma), filtered, rtol=1e-12, atol=1e-14)


def test_zeros_and_mean():
    assert made(kind="zeros").equal(torch.zeros_like(X))
    torch.testing.assert_close(made(kind="mean"), X.mean((2, 3), keepdim=True).expand_as(X))


def test_what_has_no_meaning_makes_no_other_reference():
    box = Infill("box", None, 3.0, "zeros").resolve(X)
    assert box == Infill("box", 3, 7.0, "zeros").resolve(X) != Infill("box", 5, 3.0, "zeros").resolve(X)
    assert Infill("zeros", 15, 3.0, "reflect").resolve(X) == Infill("zeros", None, 1.0, "zeros").resolve(X)
    assert Infill("gaussian", 15, 3.0, "reflect").resolve(X) != Infill("gaussian", 15, 2.0, "reflect").resolve(X)


@pytest.mark.parametrize("shape", [(3, 17), (2, 7, 5, 6)])
def test_series_and_volumes_are_blurred_along_their_axes(shape):
    x = normal(2, *shape)
    axes = tuple(range(2, x.dim()))
    kernel = ndimage.uniform_filter(x.numpy(), size=3, mode="constant", axes=axes)
    torch.testing.assert_close(made(x), torch.from_numpy(kernel), rtol=1e-12, atol=1e-14)
    gaussian = ndimage.gaussian_filter(x.numpy(), 2.0, mode="mirror", axes=axes, radius=4)
    result = made(x, kind="gaussian", size=9, sigma=2.0, padding="reflect")
    torch.testing.assert_close(result, torch.from_numpy(gaussian), rtol=1e-12, atol=1e-14)
    assert (box_size(200), box_size(64, 40, 50)) == (21, 5)
