"""Preprocessing: torchvision's geometry to the bit, an exact inverse, and messages for every wrong recipe."""

import re

import numpy as np
import pytest
import torch
from PIL import Image

from fringe.models import ModelError, Preprocessing

IMAGENET = Preprocessing.parse("imagenet")


def noise_image(height, width, mode="RGB", seed=0):
    channels = {"RGB": (3,), "L": ()}[mode]
    values = np.random.default_rng(seed).integers(0, 256, (height, width, *channels), dtype=np.uint8)
    return Image.fromarray(values)


@pytest.fixture(scope="module")
def transforms():
    from fringe.models._torchvision import import_torchvision

    try:
        return import_torchvision().transforms
    except ModelError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("size", [(256, 256), (300, 201), (201, 300), (37, 500), (20, 20), (1, 1), (225, 224)])
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize(
    ("resize", "crop", "interpolation"),
    [
        ((64,), (56, 56), "bilinear"),
        ((57,), (48, 31), "bicubic"),
        ((40, 71), None, "bilinear"),
        ((33,), None, "nearest"),
        (None, (224, 224), "bilinear"),
        ((30,), (41, 60), "lanczos"),
    ],
)
def test_pixels_equal_torchvision_to_the_bit(transforms, size, mode, resize, crop, interpolation):
    image = noise_image(*size, mode)
    steps = []
    if resize is not None:
        target = resize[0] if len(resize) == 1 else list(resize)
        steps.append(transforms.Resize(target, transforms.InterpolationMode(interpolation)))
    if crop is not None:
        steps.append(transforms.CenterCrop(list(crop)))
    channels = len(image.getbands())
    recipe = Preprocessing(resize, crop, (0.5,) * channels, (0.5,) * channels, channels, interpolation)
    expected = transforms.Compose([*steps, transforms.ToTensor()])(image)
    got = recipe.pixels(image)
    assert got.dtype == torch.float32
    assert torch.equal(got, expected)


def test_normalise_equals_the_formula_and_denormalise_inverts_it():
    pixels = torch.rand(2, 5, 3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = IMAGENET.normalise(pixels)
    for channel, (mean, std) in enumerate(zip(IMAGENET.mean, IMAGENET.std, strict=True)):
        torch.testing.assert_close(x[:, :, channel], (pixels[:, :, channel] - mean) / std, rtol=1e-14, atol=0)
    assert x.dtype == torch.float64
    torch.testing.assert_close(IMAGENET.denormalise(x), pixels, rtol=1e-14, atol=1e-15)


def test_bounds_are_the_inputs_of_black_and_white():
    low, high = IMAGENET.bounds()
    mean, std = (np.array(v)[:, None, None] for v in (IMAGENET.mean, IMAGENET.std))
    np.testing.assert_allclose(low.numpy(), (0 - mean) / std, rtol=1e-6)
    np.testing.assert_allclose(high.numpy(), (1 - mean) / std, rtol=1e-6)
    for value, bound in ((0, low), (255, high)):  # to the bit: a method that clips to the bounds keeps every image
        x = IMAGENET.normalise(IMAGENET.pixels(Image.new("RGB", (224, 224), (value,) * 3)))
        assert torch.equal(x, bound.expand_as(x))


def test_grey_and_colour_images_meet_either_number_of_channels():
    grey, colour = noise_image(4, 5, "L"), noise_image(4, 5, "RGB")
    tripled = Preprocessing.parse("unit").pixels(grey)
    assert torch.equal(tripled, tripled[:1].expand(3, 4, 5))
    luma = Preprocessing.parse("unit,channels=1").pixels(colour)
    weights = np.array([0.299, 0.587, 0.114])
    assert np.abs(luma[0].numpy() * 255 - np.asarray(colour) @ weights).max() <= 1


def test_parse_reads_every_key():
    text = "resize=40x50,crop=32,mean=0.5,std=0.25,channels=1,interpolation=bicubic"
    assert Preprocessing.parse(text) == Preprocessing((40, 50), (32, 32), (0.5,), (0.25,), 1, "bicubic")
    expected = Preprocessing((256,), (224, 192), (0.1, 0.2, 0.3), (1.0, 2.0, 3.0))
    assert Preprocessing.parse("resize=256,crop=224x192,mean=0.1/0.2/0.3,std=1/2/3") == expected


def test_parse_shortcuts_and_replacements():
    assert Preprocessing.parse("unit") == Preprocessing(None, None, (0.0,) * 3, (1.0,) * 3)
    assert (IMAGENET.resize, IMAGENET.crop) == ((256,), (224, 224))
    changed = Preprocessing.parse("imagenet, crop=none, mean=0.5, std=0.5")
    assert changed == Preprocessing((256,), None, (0.5,) * 3, (0.5,) * 3)
    assert Preprocessing.parse("unit,mean=0.5").std == (1.0,) * 3  # the shortcut states it


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("imagenett", "'imagenett' is neither a shortcut (unit, imagenet) nor KEY=VALUE; did you mean 'imagenet'?"),
        ("reszie=256", "'reszie=256' is not one of KEY=VALUE with a known key; did you mean 'resize'?"),
        ("unit,zoom=3", "known key; known: resize, longest, crop, mean, std, channels, interpolation"),
        ("crop=224,crop=192", "key 'crop' is given twice"),
        ("resize=big", "preprocessing: resize='big', expected a whole number"),
        ("mean=a/b/c", "mean='a/b/c', expected numbers separated by '/'"),
        ("mean=0.5/0.5,std=1", "mean has 2 numbers for 3 channels; give one each"),
        ("mean=0,std=0", "std=(0.0, 0.0, 0.0) must be positive: normalisation divides by it"),
        ("mean=0,std=nan", "std=(nan, nan, nan) must be finite"),
        ("mean=0/inf/0,std=1", "mean=(0.0, inf, 0.0) must be finite"),
        ("mean=0,std=0.5/0/0.5", "std=(0.5, 0.0, 0.5) must be positive"),
        ("mean=0,std=0.5/0.5/-1", "std=(0.5, 0.5, -1.0) must be positive"),
        ("channels=4", "channels=4: images have 1 or 3 channels"),
        ("resize=0", "must be at least 1 pixel"),
        ("resize=1x2x3", "resize=(1, 2, 3) must be (short_side,) or (height, width)"),
        ("crop=1x2x3", "crop=(1, 2, 3) must be (height, width)"),
        ("interpolation=bilinaer", "'bilinaer' is none of nearest, bilinear, bicubic, lanczos; did you mean 'bil"),
        ("", "preprocessing: '' is neither a shortcut"),
        ("resize=32,mean=0.5", "preprocessing: got mean without std; write std=..., or std=1 if you mean it"),
        ("std=0.25", "preprocessing: got std without mean; write mean=..., or mean=0 if you mean it"),
    ],
)
def test_a_wrong_recipe_says_what_is_wrong(text, message):
    with pytest.raises(ModelError) as caught:
        Preprocessing.parse(text)
    assert message in str(caught.value)


def test_wrong_inputs_say_what_came():
    with pytest.raises(ModelError, match=r"image mode RGBA is neither RGB nor L"):
        IMAGENET.pixels(Image.new("RGBA", (4, 4)))
    for shape in ((1, 4, 4), (4, 4)):
        with pytest.raises(ModelError, match=re.escape(f"expected (..., 3, H, W), got {shape}")):
            IMAGENET.normalise(torch.zeros(shape))
    with pytest.raises(ModelError, match=r"resizing 30000x1 gives 7680000x256 pixels; crop the image first"):
        IMAGENET.pixels(Image.new("RGB", (30000, 1)))


def test_record_is_json_and_complete():
    import json

    record = json.loads(json.dumps(IMAGENET.record()))
    geometry = {"resize": [256], "crop": [224, 224], "channels": 3, "interpolation": "bilinear"}
    assert record == geometry | {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


@pytest.mark.parametrize("sides", [(8193, 8192), (1, 67108865), (67108865, 1)])
def test_a_crop_that_no_memory_holds_is_refused(sides):
    with pytest.raises(ModelError, match=rf"crop=\({sides[0]}, {sides[1]}\) is more than 67108864 pixels"):
        Preprocessing.parse(f"unit,crop={sides[0]}x{sides[1]}")
    assert Preprocessing.parse("unit,crop=8192").crop == (8192, 8192)
