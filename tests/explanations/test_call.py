"""``fringe.explain``: every form of model and input that a person has at hand, and what is said of the others."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import fringe
from fringe.data import find_inputs
from fringe.errors import InputError, TargetError
from fringe.models import load_model

IG = fringe.IntegratedGradients(steps=4)
DIGITS = load_model("embedded:digits")


def scan(index=3):
    """A digit as a PIL image of mode L."""
    return next(iter(find_inputs([f"embedded:digits:{index}"]))).open(channels=1).image


def explain(inputs, model="embedded:digits", **more):
    return fringe.explain(model, inputs, method=IG, telemetry=False, **more)


class Net(nn.Module):
    """A small colour network of three classes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.layers(x))


def test_one_picture_in_all_its_forms_is_one_map(tmp_path):
    image = scan()
    path = tmp_path / "three.png"
    image.save(path)
    expected = explain("embedded:digits:3").values
    array = np.array(image)
    forms = [
        image,
        image.convert("RGB"),
        image.convert("RGBA"),
        image.convert("LA"),
        path,
        str(path),
        tmp_path,
        array,
        array[..., None],
        array.astype(np.float32) / 255,
        array.astype(np.uint16) * 257,
        np.stack([array] * 3, -1),
        [image],
        (path,),
        DIGITS.prepare([image]),
        DIGITS.prepare([image])[0],
        [DIGITS.prepare([image])[0]],
    ]
    for form in forms:
        torch.testing.assert_close(explain(form).values, expected, rtol=1e-4, atol=1e-6)


def test_lists_may_mix_forms_and_keep_their_order(tmp_path):
    scan(5).save(tmp_path / "five.png")
    mixed = explain([scan(3), tmp_path / "five.png", np.array(scan(4)), "embedded:digits:0:2"])
    assert mixed.target.tolist() == [3, 5, 4, 0, 1]
    assert mixed.context.ids == ("image-0", "five", "image-2", "digits-0000", "digits-0001")
    assert explain(np.stack([np.array(scan(3)), np.array(scan(4))])[..., None]).target.tolist() == [3, 4]


def test_a_camera_held_sideways_is_turned(tmp_path):
    image = scan()
    exif = Image.Exif()
    exif[0x0112] = 6  # the stored pixels are to be turned clockwise
    stored = image.transpose(Image.Transpose.ROTATE_90)
    stored.save(tmp_path / "held.png", exif=exif)
    expected = explain(image).values
    with Image.open(tmp_path / "held.png") as opened:
        torch.testing.assert_close(explain(opened).values, expected)
    torch.testing.assert_close(explain(tmp_path / "held.png").values, expected)


def test_the_context_is_what_the_model_saw_and_says():
    result = explain("embedded:digits:3:5")
    context, x = result.context, DIGITS.prepare([scan(3), scan(4)])
    assert torch.equal(context.inputs, x)
    assert (context.kind, context.model, context.ids) == ("image", "digits", ("digits-0003", "digits-0004"))
    torch.testing.assert_close(context.probabilities, DIGITS.module(x).softmax(-1))
    torch.testing.assert_close(context.pixels(x), DIGITS.preprocessing.denormalise(x).clamp(0, 1))
    assert [name for _, name, _ in context.top(0, 1)] == ["3"]
    assert context.class_label(99) == "class 99"


def test_class_names_are_a_list_a_dictionary_or_a_file(tmp_path):
    forms = [["cat", "dog", "eel"], {0: "cat", "1": "dog", 2: ["n02", "eel"]}]
    for name, text in {
        "names.txt": "cat\ndog\neel\n",
        "names.json": json.dumps(["cat", "dog", "eel"]),
        "index.json": json.dumps({"0": ["n0", "cat"], "1": ["n1", "dog"], "2": ["n2", "eel"]}),
    }.items():
        (tmp_path / name).write_text(text)
        forms.append(tmp_path / name)
    for classes in forms:
        result = explain(torch.rand(3, 8, 8), Net(), classes=classes, target="Dog", contrast="eel")
        assert result.context.class_names == ("cat", "dog", "eel")
        assert (result.target.tolist(), result.contrast.tolist()) == ([1], [2])


def test_each_input_may_have_its_class_by_name():
    x, classes = torch.rand(3, 3, 8, 8), ["eel", "cat", "dog"]
    found = explain(x, Net(), classes=classes, target=["dog", "Cat", "eel"], contrast=("cat", "eel", "cat"))
    assert found.target.tolist() == [2, 1, 0]
    assert found.contrast.tolist() == [1, 0, 1]
    assert torch.equal(found.values, explain(x, Net(), target=[2, 1, 0], contrast=[1, 0, 1]).values)
    with pytest.raises(TargetError, match="contrast: got 'cow', which is no class of the model"):
        explain(x, Net(), classes=classes, contrast=["dog", "cow", "eel"])


def test_class_names_that_are_none_are_refused():
    with pytest.raises(InputError, match="classes: got 4, expected a file or the names of classes"):
        explain(torch.rand(3, 8, 8), Net(), classes=4)
    with pytest.raises(InputError, match="got 2 names for a model of 3 classes; give one name for each class"):
        explain(torch.rand(3, 8, 8), Net(), classes=["cat", "dog"])


def test_a_module_states_its_preprocessing_and_a_loaded_model_its_output():
    photo = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    net = Net()
    net.preprocessing = "resize=16x16,mean=0.5,std=0.25"
    stated = explain(photo, net)
    assert torch.equal(stated.values, explain(photo, Net(), preprocessing=net.preprocessing).values)
    assert stated.context.mean == (0.5, 0.5, 0.5)
    softmax = nn.Sequential(DIGITS.module, nn.Softmax(-1))
    found = explain(scan(), dataclasses.replace(DIGITS, module=softmax, output="probabilities"))
    torch.testing.assert_close(found.context.probabilities, explain(scan()).context.probabilities)


def test_the_path_of_a_model_file_is_not_in_what_is_sent_away(tmp_path):
    file = tmp_path / "zoo.py"
    net = "torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))"
    file.write_text(f"import torch\n\n\ndef net():\n    return {net}\n")
    for model, name in ((f"{file}:net", "zoo.net"), (f"mine={file}:net", "mine")):
        result = explain(scan(), model, preprocessing="resize=8x8,channels=1,mean=0.5,std=0.5", trust_code=True)
        assert result.context.model == name


def test_my_own_module_with_my_own_picture():
    photo = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    result = explain(photo, Net(), preprocessing="resize=16x16,mean=0.5,std=0.25")
    assert (result.values.shape, result.context.model) == ((1, 3, 16, 16), "Net")
    with pytest.raises(InputError, match=r"does not say how pictures are prepared; pass preprocessing='imagenet'"):
        explain(photo, Net())
    module = Net().train()
    assert explain(torch.rand(3, 8, 8), fringe.Classifier(module)).target.shape == (1,)
    assert module.training


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (np.full((8, 8, 3), 7.0), r"floats from 7 to 7, expected pixels from 0 to 1; divide pixels of 0 to 255 by 255"),
        (np.full((8, 8, 3), np.nan), "floats from nan to nan"),
        (np.zeros((3, 8, 8), np.uint8), r"\(3, 8, 8\), expected \(H, W\).*transpose\(1, 2, 0\)"),
        (np.zeros((8, 8, 3), np.int64), "int64, expected uint8 or floats"),
        (torch.zeros(1, 8, 8, dtype=torch.uint8), "uint8, expected floating point"),
        (torch.zeros(8), r"shape \(8,\), expected \(C, H, W\)"),
        (3, "got int, expected a PIL image"),
        ([], "got no images"),
        (np.zeros((0, 8, 8), np.uint8)[..., None], "got no images"),
        ("absent.png", "absent.png"),
        ([torch.zeros(1, 8, 8), torch.zeros(1, 8, 9)], r"image-0 has shape \(1, 8, 8\) and image-1 \(1, 8, 9\)"),
    ],
)
def test_what_cannot_be_explained_is_named(inputs, message):
    with pytest.raises(fringe.FringeError, match=message):
        explain(inputs)


def test_options_that_make_no_sense_are_named():
    x = torch.rand(3, 8, 8)
    for options, message in (
        ({"classes": ["cat"]}, "classes: got 1"),
        ({"classes": []}, "classes: got no names"),
        ({"classes": {"cat": 0}}, "got the key 'cat'"),
        ({"preprocessing": 3}, "preprocessing: got int"),
        ({"device": "meta"}, "device"),
        ({"ids": ["a", "b"]}, "ids: got 2 for 1 inputs"),
        ({"kind": "sound"}, "kind: got 'sound'"),
        ({"classes": ["cat", "dog", "eel"], "target": "dgo"}, "target: got 'dgo'.* did you mean 'dog'"),
        ({"classes": ["cat", "dog", "eel"], "contrast": "dgo"}, "contrast: got 'dgo'.* did you mean 'dog'"),
        ({"contrast": "dog"}, "contrast: got 'dog', but the model has no class names"),
    ):
        with pytest.raises(fringe.FringeError, match=message):
            explain(x, Net(), **options)
    with pytest.raises(fringe.InputError, match="model: got int"):
        explain(x, 3)


def test_methods_by_name_preset_class_and_instance():
    x = DIGITS.prepare([scan()])
    for method, steps in (("ig:paper", 200), (fringe.IntegratedGradients, 50), (IG, 4)):
        result = fringe.explain(DIGITS, x, method=method, telemetry=False)
        assert result.settings["method"] == "ig"
        assert result.settings["steps"] == steps
    fast = fringe.FRInGe.preset("fast").record() | {"structure": "image"}
    assert fringe.explain(DIGITS, x, method="fringe:fast").settings == fast
    with pytest.raises(fringe.InputError, match="has no 'quikc'"):
        fringe.explain(DIGITS, x, method="fringe:quikc")


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        (nn.GRU(3, 4, batch_first=True), torch.zeros(2, 3, 9), "got 4D instead; for a batch of series (B, C, T) give"),
        (nn.Conv1d(3, 4, 5), torch.zeros(2, 3, 9), "[1, 2, 3, 9]; for a batch of series (B, C, T) give kind='series'"),
        (nn.Conv2d(1, 4, 3), np.zeros((8, 8)), "got 3 channels instead; for grey images give channels=1 in the prep"),
        (nn.Linear(5, 3), torch.zeros(8, 5), "; for rows of a table (B, F) give kind='tabular'"),
        (nn.Conv3d(1, 4, 3), torch.zeros(2, 1, 8, 8, 8), "; for volumes (B, C, D, H, W) give kind='volume'"),
    ],
    ids=["gru", "series", "grey", "table", "volume"],
)
def test_inputs_of_another_kind_are_told_what_to_do(model, inputs, message):
    with pytest.raises(InputError) as caught:
        fringe.explain(model.eval(), inputs, preprocessing="unit")
    assert message in str(caught.value)


def test_texts_and_token_ids_hear_of_a_tokenizer_and_not_of_pictures_alone():
    network = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Flatten(), torch.nn.Linear(20, 2))
    for texts in ("a nice film", ["a nice film", "a bad one"]):
        with pytest.raises(
            fringe.InputError, match=r"fringe.explain with tokenizer=; for a picture pass preprocessing="
        ):
            fringe.explain(network, texts)
    with pytest.raises(fringe.InputError, match=r"shape \(2, 5\), .*integers have no gradient: texts are explained by"):
        fringe.explain(network, torch.zeros(2, 5, dtype=torch.int64))
