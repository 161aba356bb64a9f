"""Control maps: closed forms, and numbers that belong to an image."""

import math

import pytest
import torch

from fringe._rng import KeyedGenerator, content_hash
from fringe.classifier import Classifier
from fringe.evaluation import CONTROLS
from fringe.paths import Problem


def problem(x, ids=None, seed=0):
    model = Classifier(lambda x: torch.zeros(len(x), 3))
    return Problem.of(model, x, ids=ids, rng=KeyedGenerator(seed))


def control(name, x, ids=None, seed=0):
    return CONTROLS[name](problem(x, ids, seed))


def test_zero_and_uniform_are_constants_of_the_inputs_shape_and_dtype():
    for dtype in (torch.float32, torch.float64):
        x = torch.randn(2, 3, 4, 5, dtype=dtype)
        assert torch.equal(control("zero", x), torch.zeros(2, 3, 4, 5, dtype=dtype))
        assert torch.equal(control("uniform", x), torch.ones(2, 3, 4, 5, dtype=dtype))


def test_random_belongs_to_the_images_name_and_not_to_its_numbers_or_neighbours():
    x = torch.randn(3, 2, 4, 4, dtype=torch.float64)
    found = control("random", x, ("a", "b", "c"))
    assert torch.equal(found[1], KeyedGenerator(0).normal("control random b", x[0]))
    assert torch.equal(control("random", 7 + x[[2, 1]], ("c", "b")), found[[2, 1]])
    assert not torch.equal(control("random", x, ("a", "b", "c"), seed=1), found)
    assert torch.equal(control("random", x)[0], KeyedGenerator(0).normal(f"control random {content_hash(x[0])}", x[0]))


def test_random_is_standard_normal():
    draw = control("random", torch.zeros(1, 1, 300, 300, dtype=torch.float64), ("a",)).flatten()
    assert abs(draw.mean()) < 5 / 300
    assert abs(draw.square().mean() - 1) < 5 * math.sqrt(2) / 300


def test_the_edges_of_a_ramp_are_its_slope_everywhere_and_in_each_channel():
    rows, columns = torch.meshgrid(torch.arange(5.0), torch.arange(7.0), indexing="ij")
    x = torch.stack([2 * rows - 3 * columns, 6 * rows])[None].double()
    torch.testing.assert_close(control("edge", x), torch.full_like(x, math.sqrt(4 + 9 + 36)), rtol=1e-15, atol=0)


def test_edges_against_a_naive_loop():
    x = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def slope(line, k):
        low, high = max(k - 1, 0), min(k + 1, len(line) - 1)
        return (line[high] - line[low]) / (high - low)

    found = control("edge", x)
    for b in range(2):
        for i in range(4):
            for j in range(5):
                squares = [slope(x[b, c, :, j], i) ** 2 + slope(x[b, c, i, :], j) ** 2 for c in range(3)]
                for c in range(3):
                    assert found[b, c, i, j] == pytest.approx(math.sqrt(sum(squares)), rel=1e-14)


def test_edges_of_sequences_tables_and_single_pixels():
    ramp = torch.arange(6.0).double()
    assert torch.equal(control("edge", torch.stack([3 * ramp, 4 * ramp])[None]), torch.full((1, 2, 6), 5.0).double())
    assert torch.equal(control("edge", 2 * ramp[None]), torch.full((1, 6), 2.0).double())
    assert torch.equal(control("edge", torch.ones(2, 3, 1, 1)), torch.zeros(2, 3, 1, 1))
    assert torch.equal(control("edge", ramp.view(1, 1, 6, 1)), torch.ones(1, 1, 6, 1).double())
