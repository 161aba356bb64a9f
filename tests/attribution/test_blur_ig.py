"""Blur Integrated Gradients: SciPy's blur, the authors' library, and the chords that telescope."""

import numpy as np
import pytest
import saliency.core
import torch
from attribution_toys import SoftplusMLP, images
from scipy import ndimage

import fringe
from fringe import BlurIG
from fringe.geometry import dist, geodesic, log_probabilities, sqrt_chart
from fringe.paths import BlurLine
from fringe.paths._lines import blur_matrices

PIXEL = 1 / 6
"""One pixel as a share of the side of the test networks' images."""


def explain(model, x, target=1, **settings):
    return fringe.attribute(model, x, method=BlurIG(**settings), target=target)


def scipy_blur(x: torch.Tensor, sigma: float) -> torch.Tensor:
    """Images (B, C, H, W) under SciPy's Gaussian with zeros beyond the edge."""
    if sigma == 0:
        return x
    return torch.from_numpy(ndimage.gaussian_filter(x.numpy(), (0, 0, sigma, sigma), mode="constant"))


# -- blurs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [1, 6, 33])
def test_matrices_are_scipy_s_blur_of_each_unit_line(side):
    sigmas = [0.0, 0.05, 0.1249, 0.1251, 0.3, 0.375, 1.0, 2.7, 11.0, 50.0]
    found = blur_matrices(torch.tensor(sigmas, dtype=torch.float64), side)
    for matrix, sigma in zip(found, sigmas, strict=True):
        expected = np.eye(side)
        if sigma:
            expected = ndimage.gaussian_filter1d(expected, sigma, axis=0, mode="constant")
        np.testing.assert_allclose(matrix.numpy(), expected, rtol=1e-12, atol=1e-15)


def test_the_strongest_blur_scales_with_the_shorter_side():
    assert float(BlurIG()._sigmas(224)[-1]) == pytest.approx(50.0, rel=1e-12)
    assert float(BlurIG(sigma_max=0.1)._sigmas(32)[-1]) == pytest.approx(3.2, rel=1e-12)
    assert BlurIG(steps=4)._sigmas(224).tolist() == pytest.approx([0.0, 12.5, 25.0, 37.5, 50.0])
    x = images(1, shape=(2, 6, 12))
    model = torch.nn.Sequential(torch.nn.AvgPool2d(6), torch.nn.Flatten()).double().eval()
    found = explain(model, x, steps=2, sigma_max=0.5)
    torch.testing.assert_close(found.endpoint_score, model(scipy_blur(x, 3.0))[:, 1])


# -- the authors' library -----------------------------------------------------------------------------------------


def test_the_derivative_mode_equals_saliency():
    model, x, steps, sigma = SoftplusMLP(), images(2), 12, 2.0

    def call(batch, call_model_args=None, expected_keys=None):
        z = torch.from_numpy(np.asarray(batch)).permute(0, 3, 1, 2).requires_grad_(True)
        (gradient,) = torch.autograd.grad(model(z)[:, 1].sum(), z)
        return {saliency.core.INPUT_OUTPUT_GRADIENTS: gradient.permute(0, 2, 3, 1).numpy()}

    found = explain(model, x, steps=steps, sigma_max=sigma * PIXEL, mode="derivative")
    for i in range(2):
        peer = saliency.core.BlurIG().GetMask(
            x[i].permute(1, 2, 0).numpy(), call, max_sigma=sigma, steps=steps, sqrt=False, batch_size=1
        )
        expected = torch.from_numpy(peer).permute(2, 0, 1)
        # a forward difference over 0.01 pixels loses two digits of float64
        torch.testing.assert_close(found.values[i], expected, rtol=0, atol=1e-11 * float(expected.abs().max()))


# -- chords -------------------------------------------------------------------------------------------------------


def test_chords_are_the_trapezoid_rule_between_blurred_images():
    model, x, steps = SoftplusMLP(), images(2), 7
    found = explain(model, x, steps=steps, sigma_max=2.0 * PIXEL)
    points = [scipy_blur(x, 2.0 * i / steps) for i in range(steps + 1)]
    gradients = []
    for point in points:
        z = point.clone().requires_grad_(True)
        gradients.append(torch.autograd.grad(model(z)[:, 1].sum(), z)[0])
    total = torch.zeros_like(x)
    for k in range(steps):
        total += 0.5 * (gradients[k] + gradients[k + 1]) * (points[k] - points[k + 1])
    torch.testing.assert_close(found.values, total, rtol=1e-10, atol=1e-12)
    change = model(x)[:, 1] - model(points[-1])[:, 1]
    torch.testing.assert_close(found.completeness_gap, total.flatten(1).sum(1) - change, rtol=1e-6, atol=1e-11)


def test_without_blur_there_is_nothing_to_explain():
    """Below an eighth of a pixel the kernel is one pixel wide."""
    found = explain(SoftplusMLP(), images(2), steps=3, sigma_max=0.12 * PIXEL)
    assert (found.values == 0).all()
    assert found.verdict == ("at_reference",) * 2
    assert explain(SoftplusMLP(), images(2), steps=3, sigma_max=0.3 * PIXEL).verdict == ("ok",) * 2


# -- account ------------------------------------------------------------------------------------------------------


def test_the_trajectory_shows_the_blurs():
    x, steps = images(2), 4
    method = BlurIG(steps=steps, sigma_max=2.0 * PIXEL)
    found = fringe.attribute(SoftplusMLP(), x, method=method, target=1, telemetry=True, batch_size=3)
    for i, trajectory in enumerate(found.trajectory):
        points = torch.stack([x[i], *(scipy_blur(x[i : i + 1], 0.5 * k)[0] for k in range(steps + 1))])
        kept = [k for k in trajectory.snapshot_steps.tolist() if k <= steps + 1]
        torch.testing.assert_close(trajectory.snapshots[: len(kept)], points[kept])
        due = torch.tensor([0.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.0], dtype=torch.float64)  # of the way to uniform
        s = sqrt_chart(log_probabilities(SoftplusMLP()(torch.cat([points, points[-1:]]))))
        waypoints = geodesic(s[:1].expand_as(s), torch.full_like(s, 0.5), due)
        torch.testing.assert_close(trajectory.points["tracking_error"], dist(s, waypoints), rtol=1e-9, atol=1e-9)
        # half the chord over two steps is at most half the two steps
        length = trajectory.steps["euclidean_step"].sum()
        assert 0.9 * length <= found.diagnostics["path_length"][i] <= length + 1e-12


def test_neighbours_in_a_batch_are_blurred_once():
    """Sixteen nodes need their own blurs and one beyond each end, not three each."""

    class Counting(BlurLine):
        asked = 0

        def blurred(self, rows, sigmas):
            self.asked += len(rows)
            return super().blurred(rows, sigmas)

    line = Counting(images(2), BlurIG(steps=40)._sigmas(6))
    line.asked = 0
    line.at(torch.ones(16, dtype=torch.int64), torch.arange(10, 26))
    assert line.asked == 18


def test_a_blur_has_a_largest_width():
    with pytest.raises(fringe.InputError, match=r"sigma: got .*, expected at most 100000 pixels"):
        explain(SoftplusMLP(), images(2), sigma_max=1e30)
