"""Baselines are data: what each name means, per image, and what is refused."""

import math

import numpy as np
import pytest
import torch

import fringe
from fringe import InputError, InputSpace
from fringe._numbers.rng import KeyedGenerator
from fringe.baselines import BASELINES, gaussian_blur, make_baseline, parse_baseline

NOISE = KeyedGenerator(3)


def images(count: int, shape: tuple[int, ...] = (3, 6, 8), seed: int = 0) -> torch.Tensor:
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make(text: str, x: torch.Tensor, space: InputSpace | None = None, noise: KeyedGenerator = NOISE) -> torch.Tensor:
    return make_baseline(text, x, space or InputSpace(), noise, [f"image {i}" for i in range(len(x))])


# -- what they are ------------------------------------------------------------------------------------------------


def test_zero_and_mean():
    x = images(3)
    assert torch.equal(make("zero", x), torch.zeros_like(x))
    for i in range(3):
        for c in range(3):
            torch.testing.assert_close(make("mean", x)[i, c], x[i, c].mean().expand(6, 8))
    rows = images(2, (5,))
    torch.testing.assert_close(make("mean", rows)[1], rows[1].mean().expand(5))
    sequences = images(2, (4, 9))
    torch.testing.assert_close(make("mean", sequences)[0, 2], sequences[0, 2].mean().expand(9))


def test_black_and_white_are_the_ends_of_the_valid_range():
    x = images(2)
    assert (make("black", x, InputSpace(-2, 3)) == -2).all()
    assert (make("white", x, InputSpace(-2, 3)) == 3).all()
    low = torch.tensor([-2.1, -2.0, -1.8]).view(3, 1, 1)  # black and white after normalisation, one a channel
    space = InputSpace(low, -low + 0.5)
    torch.testing.assert_close(make("black", x, space), low.double().expand_as(x))
    torch.testing.assert_close(make("white", x, space), (0.5 - low).double().expand_as(x))


def test_without_a_valid_range_each_image_has_its_own():
    x = images(2) * torch.tensor([1.0, 9.0], dtype=torch.float64).view(2, 1, 1, 1)
    for i in range(2):
        assert (make("black", x)[i] == x[i].min()).all()
        assert (make("white", x)[i] == x[i].max()).all()


def test_a_blur_is_a_share_of_the_shorter_side():
    x = images(2, (3, 20, 30))
    torch.testing.assert_close(make("blur", x), gaussian_blur(x, 2.0, "reflect"))
    torch.testing.assert_close(make("blur:0.25", x), gaussian_blur(x, 5.0, "reflect"))


def test_noise_is_gaussian_about_the_image_and_clipped():
    x, space = images(1, (3, 50, 50)).clamp(-2, 2), InputSpace(-4.0, 4.0)
    small = make("noise:0.01", x, space) - x  # 0.08 in a range of 8: nothing reaches the ends
    assert float(small.std()) == pytest.approx(0.08, rel=5 / math.sqrt(2 * small.numel()))
    assert abs(float(small.mean())) <= 5 * 0.08 / math.sqrt(small.numel())
    large = make("noise", x, space)
    assert float(large.min()) == -4.0
    assert float(large.max()) == 4.0
    free = x + 4.0 * NOISE.normal("baseline image 0", x[0])
    torch.testing.assert_close(large, free.clamp(-4.0, 4.0))


def test_uniform_fills_the_valid_range():
    x, space = images(1, (3, 50, 50)), InputSpace(-1.0, 3.0)
    found = make("uniform", x, space)
    torch.testing.assert_close(found[0], -1.0 + 4.0 * NOISE.uniform("baseline image 0", x[0]))
    assert float(found.min()) >= -1.0
    assert float(found.max()) < 3.0
    n = found.numel()  # mean 1 and variance 16 / 12
    assert abs(float(found.mean()) - 1.0) <= 5 * math.sqrt(16 / 12 / n)


# -- whose they are -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", BASELINES)
@pytest.mark.parametrize("space", [InputSpace(), InputSpace(-2.0, 2.0)], ids=["own", "given"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_baseline_belongs_to_its_image(text, space, dtype):
    """Alone or in a batch, in any order: the same; of the kind of the inputs, which stay as they are."""
    x = images(4).to(dtype)
    before, keys = x.clone(), list("abcd")
    together = make_baseline(text, x, space, NOISE, keys)
    assert (together.dtype, together.shape) == (x.dtype, x.shape)
    for order in ([2], [3, 1, 0, 2]):
        found = make_baseline(text, x[order], space, NOISE, [keys[i] for i in order])
        torch.testing.assert_close(found, together[order], rtol=1e-6, atol=1e-6)
    assert torch.equal(x, before)
    together.mul_(2.0)  # memory of its own
    assert torch.equal(x, before)


@pytest.mark.parametrize("text", ["noise", "uniform"])
def test_random_baselines_follow_the_seed_and_the_key(text):
    x = images(1).expand(2, -1, -1, -1)
    first = make(text, x)
    assert not torch.equal(first[0], first[1])
    assert torch.equal(first, make(text, x))
    assert not torch.equal(first, make(text, x, noise=KeyedGenerator(4)))


# -- what is refused ----------------------------------------------------------------------------------------------


def test_names_are_parsed_with_their_numbers():
    assert parse_baseline("zero") == ("zero", 0.0)
    assert parse_baseline("blur") == ("blur", 0.1)
    assert parse_baseline("blur:0.3") == ("blur", 0.3)
    assert parse_baseline("noise:2") == ("noise", 2.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (0.0, "baseline: got 0.0, expected a name such as 'zero' or 'blur:0.1'"),
        ("blakc", "baseline: got 'blakc'; did you mean 'black'\\? Known baselines: zero, black"),
        ("xyz", "baseline: got 'xyz'; known"),
        ("zero:1", "got 'zero:1', but zero takes no number"),
        ("blur:", "got 'blur:', but blur takes a positive number, as in 'blur:0.1'"),
        ("blur:wide", "blur takes a positive number"),
        ("blur:-1", "blur takes a positive number"),
        ("noise:0", "noise takes a positive number"),
        ("blur:nan", "blur takes a positive number"),
        ("blur:inf", "blur takes a positive number"),
    ],
)
def test_wrong_names_are_explained(text, message):
    with pytest.raises(InputError, match=message):
        parse_baseline(text)


def test_the_argument_s_name_is_told():
    with pytest.raises(InputError, match="reference: got 'nil'"):
        parse_baseline("nil", "reference")


def test_spaces_are_checked():
    x = images(2)
    with pytest.raises(InputError, match="space: give both of low and high, or neither"):
        InputSpace(low=0.0)
    for low, high in ((1.0, 1.0), (2.0, 1.0), (math.nan, 1.0), (0.0, math.nan)):
        with pytest.raises(InputError, match="space: low must be below high everywhere"):
            make("black", x, InputSpace(low, high))
    with pytest.raises(InputError, match=r"space.high: got shape \(4, 1, 1\).* an input \(3, 6, 8\)"):
        make("black", x, InputSpace(0.0, torch.ones(4, 1, 1)))
    with pytest.raises(InputError, match=r"space.low: got shape \(1, 3, 6, 8\)"):
        make("black", x, InputSpace(torch.zeros(1, 3, 6, 8), 1.0))
    with pytest.raises(InputError, match=r"space\.low: got str, expected numbers in a tensor or an array"):
        InputSpace("black", 1.0)
    with pytest.raises(InputError, match="expected series, images or volumes"):
        make("blur", images(2, (5,)))


def test_arrays_are_bounds_and_references():
    x, references = images(2), images(5)
    space = InputSpace(np.full((3, 1, 1), -4.0), [[[4.0]]], references.numpy())
    assert torch.equal(space.references, references)
    assert make("black", x, space).unique().tolist() == [-4.0]
    assert make("white", x, space).unique().tolist() == [4.0]
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(x[0].numel(), 3)).to(x)
    found, expected = (
        fringe.attribute(model, x, method="expected_gradients", space=InputSpace(references=given)).values
        for given in (references.numpy(), references)
    )
    assert torch.equal(found, expected)
    with pytest.raises(InputError, match=r"space: got \(0, 1\), expected an InputSpace, such as fringe"):
        fringe.attribute(model, x, method="ig", space=(0, 1))


@pytest.mark.parametrize("name", ["mean", "blur:0.1"])
def test_an_image_of_one_colour_is_its_own_mean_and_blur_and_its_map_is_zero(name):
    """What rounding leaves of it has another size than the map of the image beside it, and is drawn as bright."""
    x = torch.stack([torch.full((3, 96, 96), 0.37), torch.linspace(0, 1, 3 * 96 * 96).view(3, 96, 96)])
    result = fringe.attribute(
        lambda z: torch.stack([z.square().mean((1, 2, 3)), z.mean((1, 2, 3))], 1),
        x,
        method=fringe.IntegratedGradients(baseline=name, steps=5),
        target=0,
    )
    assert result.verdict[0] == "at_reference"
    assert not result.values[0].any()
    assert result.verdict[1] != "at_reference"
    assert result.values[1].any()
