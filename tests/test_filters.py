"""Blurs against SciPy's, at the edges, for kernels larger than the image."""

import numpy as np
import pytest
import torch
from scipy import ndimage

from fringe import InputError
from fringe._numbers.filters import blur, box_kernel, gaussian_blur, gaussian_kernel, round_up_to_odd

SCIPY = {"zeros": "constant", "reflect": "mirror", "replicate": "nearest", "mirror": "reflect"}
"""SciPy's names: its "reflect" repeats the edge, which is our "mirror"; ours and PyTorch's "reflect" does not."""


def images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def correlate(x: torch.Tensor, taps: torch.Tensor, mode: str) -> torch.Tensor:
    for axis in range(2, x.dim()):
        x = torch.from_numpy(ndimage.correlate1d(x.numpy(), taps.numpy(), axis=axis, mode=mode))
    return x


@pytest.mark.parametrize("sigma", [1e6, 1e30, 1e300])
def test_a_kernel_that_fits_no_memory_is_refused(sigma):
    with pytest.raises(InputError, match=r"sigma: got .*, expected at most 100000 pixels"):
        gaussian_kernel(sigma)
    assert gaussian_kernel(sigma, 3).tolist() == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("sigma", [0.01, 0.124, 0.126, 0.5, 1.0, 3.7, 12.0])
def test_a_gaussian_is_scipy_s(sigma):
    taps = gaussian_kernel(sigma)
    impulse = np.zeros(2 * len(taps) + 1)
    impulse[len(taps)] = 1.0
    expected = ndimage.gaussian_filter1d(impulse, sigma)
    half = len(taps) // 2
    np.testing.assert_allclose(taps.numpy(), expected[len(taps) - half : len(taps) + half + 1], rtol=1e-13, atol=0)
    assert expected.sum() == pytest.approx(float(taps.sum()), rel=1e-14)
    assert np.count_nonzero(expected) <= len(taps)


def test_a_gaussian_of_a_given_size_is_cut_and_scaled():
    taps = gaussian_kernel(1.5, 5)
    weights = np.exp(-(np.arange(-2, 3) ** 2) / (2 * 1.5**2))
    np.testing.assert_allclose(taps.numpy(), weights / weights.sum(), rtol=1e-14)
    assert gaussian_kernel(3.0, 1).tolist() == [1.0]


def test_a_box_is_even():
    np.testing.assert_allclose(box_kernel(5).numpy(), np.full(5, 0.2), rtol=1e-15)


@pytest.mark.parametrize("padding", SCIPY)
@pytest.mark.parametrize("shape", [(2, 3, 7, 11), (1, 1, 6, 1), (1, 2, 1, 5), (2, 3, 9), (2, 1, 4, 6, 5)])
@pytest.mark.parametrize("sigma", [0.7, 4.0, 9.0])
def test_blurs_of_images_are_scipy_s_even_far_beyond_the_edge(padding, shape, sigma):
    """A kernel of nine pixels is 73 wide: it folds back and forth over an image of five."""
    x = images(*shape)
    expected = correlate(x, gaussian_kernel(sigma), SCIPY[padding])
    torch.testing.assert_close(gaussian_blur(x, sigma, padding), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("taps", [box_kernel(3), gaussian_kernel(2.0), gaussian_kernel(6.0, 9)])
def test_excluding_what_lies_beyond_the_edge_averages_what_is_there(taps):
    x = images(2, 2, 5, 8)
    found = blur(x, taps, "exclude")
    inside = correlate(torch.ones(1, 1, 5, 8, dtype=torch.float64), taps, "constant")
    torch.testing.assert_close(found, correlate(x, taps, "constant") / inside, rtol=1e-12, atol=1e-14)
    constant = torch.full_like(x, 2.5)
    torch.testing.assert_close(blur(constant, taps, "exclude"), constant, rtol=1e-13, atol=0)


def test_taps_that_are_not_symmetric_are_laid_on_as_they_come():
    x, taps = images(1, 1, 6, 7), torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64)
    torch.testing.assert_close(blur(x, taps, "replicate"), correlate(x, taps, "nearest"), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_precision_of_the_image_is_kept_and_the_image_left_alone(dtype):
    x = images(1, 2, 9, 9).to(dtype)
    before = x.clone()
    found = gaussian_blur(x, 1.3)
    assert found.dtype == dtype
    assert torch.equal(x, before)
    expected = correlate(x.double(), gaussian_kernel(1.3), "mirror")
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=4 * torch.finfo(dtype).eps)
    same = gaussian_blur(x, 0.1)
    assert torch.equal(same, x)
    assert same.data_ptr() != x.data_ptr()


def test_what_cannot_be_blurred_is_refused():
    with pytest.raises(InputError, match=r"inputs: got shape \(2, 5\), expected series, images or volumes .* to blur"):
        gaussian_blur(images(2, 5), 1.0)
    with pytest.raises(InputError, match="kernel: got 4, expected an odd number"):
        blur(images(1, 1, 5, 5), box_kernel(4), "zeros")
    with pytest.raises(InputError, match="size: got 4, expected an odd number"):
        gaussian_kernel(1.0, 4)


@pytest.mark.parametrize(("value", "odd"), [(0.2, 1), (1, 1), (1.01, 3), (2, 3), (22.4, 23), (29.9, 31), (31, 31)])
def test_odd_up(value, odd):
    assert round_up_to_odd(value) == odd
