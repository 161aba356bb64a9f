"""Keyed draws: the same key the same numbers, whatever happens around it; and normal ones."""

import math
import random

import numpy as np
import pytest
import torch

import fringe
from fringe._numbers.rng import KeyedGenerator, content_hash, global_seed

LIKE = torch.zeros(3, 4, dtype=torch.float64)


def test_the_same_key_gives_the_same_numbers_in_any_order():
    first = {key: KeyedGenerator(7).normal(key, LIKE) for key in ("a", "b", "c")}
    again = {key: KeyedGenerator(7).normal(key, LIKE) for key in ("c", "a", "b")}
    assert all(torch.equal(first[key], again[key]) for key in first)


def test_keys_and_seeds_are_independent():
    keys = ["", "a", "b", "1", "11"]
    draws = [KeyedGenerator(seed).normal(key, torch.zeros(10_000)) for seed in (0, 1, 11) for key in keys]
    correlations = torch.corrcoef(torch.stack(draws)) - torch.eye(len(draws))
    assert correlations.abs().max() <= 5 / math.sqrt(10_000)


def test_seed_and_key_do_not_run_into_each_other():
    assert not torch.equal(KeyedGenerator(1).normal("1x", LIKE), KeyedGenerator(11).normal("x", LIKE))


@pytest.mark.parametrize("draw", [KeyedGenerator.normal, KeyedGenerator.uniform])
def test_the_global_generator_is_neither_read_nor_moved(draw):
    torch.manual_seed(1)
    before, first = torch.get_rng_state(), draw(KeyedGenerator(3), "k", LIKE)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(draw(KeyedGenerator(3), "k", LIKE), first)


def test_global_generators_are_seeded_by_a_key_and_given_back():
    def draws():
        return [float(torch.rand(())), float(np.random.rand()), random.random()]  # noqa: NPY002

    def states():
        return torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()  # noqa: NPY002

    before = states()
    with KeyedGenerator(3).seeded("k"):
        first = draws()
    assert states() == before
    draws()
    with KeyedGenerator(3).seeded("k"):
        assert draws() == first
    moved = states()
    with KeyedGenerator(3).seeded("other"):
        assert all(a != b for a, b in zip(draws(), first, strict=True))
    with pytest.raises(ZeroDivisionError), KeyedGenerator(3).seeded("k"):
        raise ZeroDivisionError
    assert states() == moved


def test_every_seed_reaches_the_generator_of_numpy():
    """It takes 32 bits; the seed of a key has 63."""
    with global_seed(2**40 + 2**32 + 2**31 + 7):
        assert np.random.rand() == np.random.RandomState(2**31 + 7).rand()  # noqa: NPY002


@pytest.mark.parametrize("draw", [KeyedGenerator.normal, KeyedGenerator.uniform])
def test_a_default_device_does_not_reach_the_draw(draw):
    expected = draw(KeyedGenerator(3), "k", LIKE)
    with torch.device("meta"):
        assert torch.equal(draw(KeyedGenerator(3), "k", LIKE), expected)


@pytest.mark.parametrize("draw", [KeyedGenerator.normal, KeyedGenerator.uniform])
def test_every_dtype_sees_the_same_numbers(draw):
    like = torch.zeros(100)  # from 16 numbers on torch draws float32 by another route
    single, double = (draw(KeyedGenerator(3), "k", like.to(dtype)) for dtype in (torch.float32, torch.float64))
    assert (single.dtype, double.dtype) == (torch.float32, torch.float64)
    assert torch.equal(single, double.float())
    assert not torch.equal(single.double(), double)


def test_moments_are_those_of_the_standard_normal():
    n = 100_000
    draw = KeyedGenerator(0).normal("moments", torch.zeros(n, dtype=torch.float64))
    # the variances of x, x^2, x^3, x^4 are 1, 2, 15, 96: five standard errors of each mean
    for power, (mean, variance) in enumerate([(0, 1), (1, 2), (0, 15), (3, 96)], start=1):
        assert abs(draw.pow(power).mean() - mean) <= 5 * math.sqrt(variance / n)


@pytest.mark.parametrize("seed", ["a", 1.5, None])
def test_a_seed_that_is_no_integer_is_refused(seed):
    with pytest.raises(fringe.InputError, match=f"seed: got {seed!r}, expected an integer"):
        fringe.explain("embedded:digits", "embedded:digits:5", seed=seed)


def test_an_integer_of_numpy_is_the_same_seed():
    drawn = KeyedGenerator(np.int64(3)).normal("k", LIKE)
    assert torch.equal(drawn, KeyedGenerator(3).normal("k", LIKE))


@pytest.mark.parametrize("key", ["a", "b"])
def test_integers_and_permutations_belong_to_their_key(key):
    n = 2000
    drawn, order = KeyedGenerator(3).integers(key, 10, n), KeyedGenerator(3).permutation(key, n)
    torch.manual_seed(1)
    assert (KeyedGenerator(3).integers(key, 10, n), KeyedGenerator(3).permutation(key, n)) == (drawn, order)
    assert sorted(order) == list(range(n))
    counts = torch.bincount(torch.tensor(drawn), minlength=10)
    assert (counts - n / 10).abs().max() < 5 * math.sqrt(n * 0.1 * 0.9)
    assert drawn != KeyedGenerator(3).integers(key + "x", 10, n)
    assert order != KeyedGenerator(3).permutation(key + "x", n)


def test_an_image_is_named_by_its_numbers_and_its_shape():
    image = KeyedGenerator(3).normal("image", torch.zeros(3, 4))
    name = content_hash(image)
    assert content_hash(image.t().contiguous().t()) == name == content_hash(image.clone().requires_grad_(True))
    nearby = torch.nextafter(image.double(), torch.tensor(9.0, dtype=torch.float64))
    others = [image.view(4, 3), image.view(torch.int32), image + 1e-6, nearby]
    assert len({name, *map(content_hash, others)}) == 5


def test_double_precision_renames_no_image():
    image = KeyedGenerator(3).normal("image", torch.zeros(3, 4))
    assert content_hash(image.double()) == content_hash(image)


@pytest.mark.parametrize("seed", [-1, 2**53, 0.5])
def test_a_seed_is_a_whole_number_that_json_holds_exactly(seed):
    with pytest.raises(fringe.InputError, match=rf"seed: got {seed}, expected an integer from 0 to 2\*\*53 - 1"):
        fringe.attribute(torch.nn.Linear(2, 2), torch.ones(1, 2), method="ig", seed=seed)
    assert KeyedGenerator(2**53 - 1).seed == 2**53 - 1
