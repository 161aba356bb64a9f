"""The Gini index: laws, and the mean difference that it is."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fringe.metrics import evaluate
from fringe.metrics._without_passes import _gini
from toys import Affine, context_of, normal


def index(*values: float) -> float:
    return float(_gini(torch.tensor([values], dtype=torch.float64)))


VALUES = st.lists(st.floats(-1e3, 1e3).map(lambda v: round(v, 3)), min_size=1, max_size=12)


@given(VALUES)
def test_it_is_the_mean_difference_over_twice_the_mean(values):
    a = [abs(v) for v in values]
    if sum(a) > 0:
        expected = sum(abs(u - v) for u in a for v in a) / (2 * len(a) * sum(a))
        assert index(*values) == pytest.approx(expected, abs=1e-12)


@given(VALUES, st.randoms(use_true_random=False))
def test_laws(values, random):
    expected = index(*values)
    shuffled = random.sample(values, len(values))
    assert index(*shuffled) == expected
    assert index(*[-1e-25 * v for v in values]) == pytest.approx(expected, abs=1e-12)
    n = len(values)
    if any(values):  # appended zeros: 1 - G shrinks by n / (n + 1)
        assert index(*values, 0.0) == pytest.approx(1 - (1 - expected) * n / (n + 1), abs=1e-12)


def test_single_precision_gives_the_numbers_of_double_precision():
    a = normal(4, 3, 16, 16, seed=3).float()
    a[0, 0] = 0.0
    assert torch.equal(_gini(a), _gini(a.double()))


def test_maps_of_tiny_norm_in_single_precision_are_scored_alike():
    a = normal(2, 3, 8, 8)
    torch.testing.assert_close(_gini((1e-30 * a).float()), _gini(a), rtol=1e-6, atol=0)


def test_entries_and_pixels():
    a = torch.tensor([[[[1.0, 3.0]], [[2.0, 0.0]]], [[[0.0, 0.0]], [[0.0, 0.0]]]], dtype=torch.float64)
    result = evaluate(context_of(Affine(4), normal(2, 2, 1, 2)), a, ["sparseness"])["sparseness"]
    assert result.values.tolist() == pytest.approx([index(0, 1, 2, 3), 0])
    assert result.details["spatial"].tolist() == pytest.approx([index(2, 3), 0])
    assert result.flags["zero_map"].tolist() == [False, True]
