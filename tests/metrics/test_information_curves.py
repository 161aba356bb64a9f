"""Performance information curves: the authors' package on the same images, and which images are skipped."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from fringe import Classifier, InputError
from fringe._numbers.rng import KeyedGenerator
from fringe.baselines import InputSpace
from fringe.metrics import EvaluationContext, PerformanceInformationCurve, evaluate
from fringe.metrics._imputation import _as_bytes, _image_information, information_curve, interpolate
from fringe.paths import Problem
from toys import TanhMLP, normal

SIDE, IMAGES = 24, 4


class Patches(nn.Module):
    """Class k of four weighs the difference of its quarter of the image and of the others, of pictures on [0, 1]."""

    def __init__(self, scale: float = 80.0):
        super().__init__()
        self.scale = scale
        self.eval()

    def forward(self, x):
        half = SIDE // 2
        quarters = [x[..., i : i + half, j : j + half] for i in (0, half) for j in (0, half)]
        means = torch.stack([quarter.flatten(1).mean(1) for quarter in quarters], 1)
        return self.scale * (means - means.mean(1, keepdim=True))


def pictures(channels: int) -> torch.Tensor:
    """Pictures of 256 levels: noise, with a bright square inside of one quarter each."""
    noise = KeyedGenerator(0).uniform("pictures", torch.empty(IMAGES, channels, SIDE, SIDE, dtype=torch.float64))
    x, half = 0.5 * noise, SIDE // 2
    for k in range(IMAGES):
        i, j = half * (k // 2), half * (k % 2)
        x[k, :, i + 3 : i + half - 3, j + 3 : j + half - 3] += 0.5
    return (x * 255).round() / 255


def context(x: torch.Tensor, model: nn.Module | None = None, space: InputSpace | None = None) -> EvaluationContext:
    ids = tuple(f"image {k}" for k in range(len(x)))
    return EvaluationContext(
        Problem.of(
            Classifier(model or Patches()), x, ids=ids, domain=space or InputSpace(0.0, 1.0), rng=KeyedGenerator(0)
        )
    )


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("preset", ["sic", "aic"])
def test_areas_are_those_of_the_authors_package(channels, preset, monkeypatch):
    monkeypatch.setattr(np, "trapz", np.trapezoid, raising=False)  # the package was written for NumPy 1
    pic = pytest.importorskip("saliency.metrics.pic")
    x, maps = pictures(channels), normal(IMAGES, channels, SIDE, SIDE)
    evaluated, one = context(x), PerformanceInformationCurve.preset(preset)
    result = evaluate(evaluated, maps, [one])["pic"]
    for i, target in enumerate(evaluated.problem.target.tolist()):
        mask = np.zeros(SIDE * SIDE, dtype=bool)
        mask[KeyedGenerator(0).permutation(f"pic image {i}", SIDE * SIDE)[: int(0.01 * SIDE * SIDE)]] = True

        def predict(images, target=target):
            images = images[..., None] if images.ndim == 3 else images
            p = Patches()(torch.tensor(images).permute(0, 3, 1, 2).double() / 255).softmax(1)
            return (p[:, target] if preset == "sic" else (p.argmax(1) == target).double()).tolist()

        picture = (x[i] * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
        picture = picture[..., 0] if channels == 1 else picture
        arguments = picture, maps[i].abs().sum(0).numpy(), mask.reshape(SIDE, SIDE), predict, one.thresholds
        if bool(result.flags["skipped"][i]):
            with pytest.raises(pic.ComputePicMetricError):
                pic.compute_pic_metric(*arguments)
            continue
        expected = pic.compute_pic_metric(*arguments)
        assert float(result.values[i]) == pytest.approx(expected.auc, abs=1e-9)
        assert result.curves["pic"][i].tolist() == pytest.approx(expected.curve_y[::10].tolist(), abs=1e-9)
    assert not bool(result.flags["skipped"].all())


def test_a_constant_map_shows_all_at_once_and_is_flagged():
    x = pictures(3)
    for value in (0.0, 1.0):
        result = evaluate(context(x), torch.full_like(x, value), ["pic"])["pic"]
        shown = ~result.flags["skipped"]
        assert result.values[shown].tolist() == pytest.approx([0.5] * int(shown.sum()), abs=1e-12)
        assert result.flags["constant_map"].tolist() == [True] * IMAGES
        assert result.flags["zero_map"].tolist() == [value == 0.0] * IMAGES
    assert not bool(evaluate(context(x), normal(*x.shape), ["pic"])["pic"].flags["constant_map"].any())


def test_images_are_skipped_for_a_doubtful_or_an_uninformed_prediction():
    x = pictures(3)
    doubtful = evaluate(context(x, Patches(1.0)), normal(*x.shape), ["pic"])["pic"]
    assert bool(doubtful.flags["skipped"].all())  # no probability reaches .8
    assert bool(doubtful.values.isnan().all())
    any_probability = evaluate(context(x, Patches(1.0)), normal(*x.shape), [PerformanceInformationCurve(least=0.0)])
    known = int((~any_probability["pic"].flags["skipped"]).nonzero()[0])
    least = float(any_probability["pic"].details["p_input"][known])
    for bound, skipped in ((least, False), (math.nextafter(least, 1.0), True)):
        found = evaluate(context(x, Patches(1.0)), normal(*x.shape), [PerformanceInformationCurve(least=bound)])["pic"]
        assert bool(found.flags["skipped"][known]) is skipped
    smooth = torch.linspace(0, 1, SIDE, dtype=torch.float64).expand(IMAGES, 3, SIDE, SIDE).clone()
    smooth[:, 0, :2, :2] = 1.0  # a ramp is the interpolation of its own corners: nothing is left to show
    blurred = evaluate(
        context(smooth, TanhMLP(3 * SIDE**2)), normal(*x.shape), [PerformanceInformationCurve(least=0.0)]
    )
    assert bool(blurred["pic"].flags["skipped"].all())


def test_a_first_image_of_all_pixels_is_the_input():
    """Of any two sides, and in single precision, as networks have it."""
    x = KeyedGenerator(0).uniform("wide", torch.empty(3, 1, 6, 9))
    whole = evaluate(context(x, TanhMLP(54).float()), x, [PerformanceInformationCurve(initial=1.0)])["pic"]
    assert whole.details["initial"].tolist() == whole.details["p_input"].tolist()
    assert whole.flags["skipped"].all()  # nothing is left to show


def test_a_normalised_picture_has_the_curve_of_the_picture():
    """As bytes both are one picture; -2 and 6 are black and white after the normalisation."""

    class Normalised(Patches):
        def forward(self, x):
            return super().forward((x + 2.0) / 8.0)

    x, a = pictures(3), normal(IMAGES, 3, SIDE, SIDE)
    plain = evaluate(context(x), a, ["pic"])["pic"]
    shifted = evaluate(context(8.0 * x - 2.0, Normalised(), InputSpace(-2.0, 6.0)), a, ["pic"])["pic"]
    assert not plain.flags["skipped"].all()
    torch.testing.assert_close(shifted.values, plain.values, rtol=1e-9, atol=1e-12, equal_nan=True)
    assert shifted.values.dtype == torch.float64


def test_a_curve_runs_from_zero_to_one_and_only_rises():
    information, prediction = np.array([0.1, 0.3, 0.3, 0.8]), np.array([0.2, 0.7, 0.5, 0.6])
    curve = information_curve(information, prediction, monotone=True)
    assert (curve[0], curve[-1], curve[100], curve[800]) == (0.0, 1.0, pytest.approx(0.2), pytest.approx(0.7))
    assert bool((np.diff(curve) >= -1e-12).all())
    assert information_curve(information, prediction, monotone=False)[800] == pytest.approx(0.6)
    ends = information_curve(np.array([0.0, 0.5, 1.0]), np.array([0.3, 0.4, 0.6]), monotone=True)[[0, 500, -1]]
    assert ends.tolist() == [0.0, 0.4, 1.0]  # whatever is predicted with no information or all of it


def test_what_lies_beyond_the_valid_range_is_black_or_white():
    x = np.array([-3.0, -2.0, 0.0, 2.0, 8.0, 9.0, 19.0])
    assert _as_bytes(x, np.full(7, -2.0), np.full(7, 8.0)).tolist() == [0, 0, 51, 102, 255, 255, 255]


def test_information_is_larger_for_noise_and_of_any_number_of_channels():
    generator = np.random.default_rng(0)
    noise = generator.integers(0, 256, (3, 16, 16), dtype=np.uint8)
    assert _image_information(noise) > _image_information(np.zeros_like(noise))
    assert _image_information(noise[:2]) > _image_information(noise[:1]) > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"thresholds": (0.5, 0.1)}, "ascending"),
        ({"thresholds": (0.0, 0.5)}, "between 0 and 1"),
        ({"thresholds": (0.5, 1.0)}, "between 0 and 1"),
        ({"least": 2.0}, "least"),
    ],
)
def test_settings_that_make_no_curve(settings, message):
    with pytest.raises(InputError, match=message):
        PerformanceInformationCurve(**settings)


@pytest.mark.parametrize("shape", [(9,), (1, 9), (6, 5), (4, 5, 6)])
def test_what_is_not_shown_is_interpolated_linearly(shape):
    """A linear function of the place is restored from the corners and any other entries."""
    grid = np.stack(np.meshgrid(*(np.arange(float(size)) for size in shape), indexing="ij"))
    image = np.stack([np.tensordot(weights, grid, 1) for weights in ([1.0, 2.0, 4.0], [3.0, -1.0, 0.5])
                      for weights in (weights[: len(shape)],)])  # fmt: skip
    mask = normal(*shape).numpy() > 1.0
    np.testing.assert_allclose(interpolate(image, mask), image, atol=1e-9)
    bent = image.copy()
    bent[:, ~mask] += 7.0
    corners = np.zeros(shape, dtype=bool)
    corners[np.ix_(*[(0, -1)] * len(shape))] = True
    found = interpolate(np.where(corners, image, bent), mask)
    np.testing.assert_allclose(found, image, atol=1e-9)


def test_what_is_longer_than_a_webp_file_may_be_is_stored_in_several():
    noise = (pictures(1)[0].numpy() * 255).astype(np.uint8).reshape(1, -1)
    long = np.tile(noise, 40)
    assert long.shape[1] == 40 * SIDE**2 > 16_383
    assert _image_information(long) == _image_information(long[:, :16_383]) + _image_information(long[:, 16_383:])
    volume = noise.reshape(1, 4, 12, 12)
    assert _image_information(volume) == _image_information(volume.reshape(1, 48, 12))
