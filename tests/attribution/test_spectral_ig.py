"""Spectral Integrated Gradients: a literal transcription, closed forms, and its limits."""

from itertools import pairwise

import numpy as np
import pytest
import torch

import fringe

SHAPE = (2, 8, 8)


def images(count, shape=SHAPE, seed=0):
    return 4 * torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 2


def network(shape=SHAPE):
    weight = torch.randn(3, int(np.prod(shape)), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return lambda x: torch.tanh(x.flatten(1) @ weight.T / 4) * 3 + (x.flatten(1) @ weight.T) ** 2 / 50


def explained(model, x, **settings):
    baseline = settings.pop("baseline_tensor", None)
    return fringe.attribute(model, x, method=fringe.SpectralIG(**settings), target=1, baseline=baseline)


def literal(model, x, baseline, steps, overlap, components):
    """The published loop for one image (C, H, W): ``components`` are pairs of a strength and an image."""
    points = []
    for k in range(steps + 1):
        point = baseline.clone()
        for strength, component in components:
            start = (1 - overlap) * (1 - strength)
            point = point + min(max((k / steps - start) / overlap, 0.0), 1.0) * component
        points.append(point)
    total = torch.zeros_like(x)
    for before, after in pairwise(points):
        z = before[None].clone().requires_grad_(True)
        (gradient,) = torch.autograd.grad(model(z)[0, 1], z)
        total += gradient[0] * (after - before)
    return total


def singular_components(difference):
    """Of each channel: strengths and rank-one images."""
    pairs = []
    for channel, matrix in enumerate(difference.numpy()):
        u, s, vh = np.linalg.svd(matrix)
        for i, value in enumerate(s):
            image = torch.zeros_like(difference)
            image[channel] = torch.from_numpy(value * np.outer(u[:, i], vh[i]))
            pairs.append((value / s[0], image))
    return pairs


@pytest.mark.parametrize("overlap", [0.4, 0.9])
def test_it_is_the_published_loop(overlap):
    model, x, baseline = network(), images(2), images(2, seed=5)
    result = explained(model, x, steps=7, overlap=overlap, baseline_tensor=baseline)
    for image, start, values in zip(x, baseline, result.values, strict=True):
        expected = literal(model, image, start, 7, overlap, singular_components(image - start))
        torch.testing.assert_close(values, expected, rtol=1e-9, atol=1e-12)


def test_its_path_goes_from_the_input_to_the_baseline_and_the_strong_comes_first():
    x = images(1)
    path = fringe.attribute(network(), x, method=fringe.SpectralIG(steps=10), telemetry=12, target=1).trajectory[0]
    torch.testing.assert_close(path.snapshots[0], x[0], rtol=0, atol=0)
    torch.testing.assert_close(path.snapshots[-1], torch.zeros_like(x[0]), rtol=0, atol=1e-12)
    begun = path.snapshots[-4]  # two tenths of the way: only components of strength above two thirds
    s = torch.linalg.svdvals(x[0])
    assert torch.linalg.matrix_rank(begun).tolist() == (s / s[:, :1] > 1 - 0.2 / 0.6).sum(1).tolist()
