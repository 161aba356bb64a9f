"""RISE: masks and maps against a literal transcription of the authors' code, and closed forms."""

import numpy as np
import pytest
import torch
from skimage.transform import resize

import fringe
from fringe._numbers.rng import KeyedGenerator


class Half(torch.nn.Module):
    """Its score is the share of light in the upper half."""

    def forward(self, x):
        return torch.stack([x[:, :, : x.shape[2] // 2].mean((1, 2, 3)), x.mean((1, 2, 3))], 1)


def authors_masks(seed, key, count, s, p, size):
    """``generate_masks`` of eclique/RISE with the draws of this library."""
    rng = KeyedGenerator(seed)
    cell = np.ceil(np.array(size) / s).astype(int)
    grid = (rng.uniform(f"rise {key}", torch.empty(count, s, s, dtype=torch.float64)) < p).numpy().astype(float)
    x, y = (
        rng.integers(f"rise {axis} {key}", int(n), count) for axis, n in zip(("rows", "columns"), cell, strict=True)
    )
    masks = []
    for i in range(count):
        large = resize(grid[i], (s + 1) * cell, order=1, mode="edge", anti_aliasing=False)
        masks.append(large[x[i] : x[i] + size[0], y[i] : y[i] + size[1]])
    return torch.tensor(np.array(masks))


@pytest.mark.parametrize(("size", "s", "p"), [((14, 21), 7, 0.5), ((10, 10), 3, 0.3), ((5, 9), 4, 0.8)])
def test_masks_and_map_are_those_of_the_authors(size, s, p):
    model, count = Half(), 12
    x = torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1
    method = fringe.RISE(masks=count, cells=s, keep=p)
    result = fringe.attribute(model, x, method=method, target=0, ids=["a", "b"], seed=4)
    for image, key, values in zip(x, "ab", result.values, strict=True):
        masks = authors_masks(4, key, count, s, p, size)
        scores = model(image * masks[:, None]).softmax(1)[:, 0]
        expected = torch.einsum("n,nhw->hw", scores, masks) / count / p
        torch.testing.assert_close(values.sum(0), expected, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(values[0], values[2], rtol=0, atol=0)


def test_the_probability_is_explained_whatever_the_score_of_the_classifier():
    x = torch.rand(1, 1, 8, 8, dtype=torch.float64)
    given = {"target": 1, "ids": ["a"]}
    a, b = (
        fringe.attribute(Half(), x, method=fringe.RISE(masks=5), score=s, **given) for s in ("logit", "probability")
    )
    assert torch.equal(a.values, b.values)
    assert float(a.score) == pytest.approx(float(Half()(x).softmax(1)[0, 1]))


def test_its_error_falls_with_the_root_of_the_masks():
    x = torch.rand(1, 1, 8, 8, dtype=torch.float64)
    errors = [
        float(fringe.attribute(Half(), x, method=fringe.RISE(masks=n)).diagnostics["relative_error"]) for n in (50, 800)
    ]
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.15)
