"""torchvision, timm and transformers: the right weights with the right preprocessing, without a download."""

import re
import subprocess
import sys
import urllib.error

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from fringe.models import ModelError, _hubs, load_model
from fringe.models._torchvision import import_torchvision


@pytest.fixture(scope="module", autouse=True)
def torchvision():
    torch.set_num_threads(1)
    try:
        return import_torchvision()
    except ModelError as error:
        pytest.skip(str(error))


def message(spec, **options):
    with pytest.raises(ModelError) as caught:
        load_model(spec, **options)
    return str(caught.value)


def picture(height=300, width=260):
    """Smooth enough that resizing filters can be compared, with structure at every scale above 8 pixels."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / a) * np.cos(y / b) for a, b in ((9, 17), (31, 11), (15, 40))]
    return Image.fromarray(np.uint8(127.5 + 127 * np.stack(waves, -1)))


@pytest.mark.thorough
def test_import_declares_operators_only_where_they_are_missing():
    code = (
        "import torch, fringe.models._torchvision as v\n"
        "tv = v.import_torchvision(); again = v.import_torchvision()\n"
        "assert tv is again and torch.ops.torchvision.nms and torch.ops.torchvision.qnms\n"
        "declared = v._declare_operators.cache_info().currsize\n"
        "assert declared == (not tv.extension._has_ops()), declared\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("name", ["resnet18", "inception_v3", "mobilenet_v3_small", "swin_t", "efficientnet_b0"])
def test_random_weights_leave_the_generator_alone_and_get_images_as_trained_ones_do(torchvision, name):
    before = torch.get_rng_state()
    model = load_model(f"torchvision:{name}@random:5")
    assert torch.equal(torch.get_rng_state(), before)
    assert (model.architecture, model.class_names) == (name, None)
    expected = torchvision.models.get_model_weights(name).IMAGENET1K_V1.transforms()(picture())
    got = model.preprocessing.normalise(model.preprocessing.pixels(picture()))
    torch.testing.assert_close(got, expected, rtol=0, atol=2e-6)  # rounding of (x - mean) / std in float32


@pytest.mark.parametrize("name", ["inception_v3", "googlenet"])  # which have auxiliary heads
def test_random_weights_give_logits(name):
    model = load_model(f"torchvision:{name}@random:5")
    with torch.no_grad():
        assert model.module(model.prepare([picture()])).shape == (1, 1000)


def test_the_seed_decides_the_weights():
    digests = [load_model(f"torchvision:squeezenet1_1@random{s}").digest for s in ("", ":0", ":1")]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(("spec", "version"), [("torchvision:resnet50", 1), ("torchvision:resnet50@DEFAULT", 2)])
def test_the_papers_weights_are_the_default(torchvision, monkeypatch, spec, version):
    asked = []

    def fake(self, **options):
        asked.append((str(self), options))
        with torch.random.fork_rng():
            torch.manual_seed(1)
            return torchvision.models.resnet50(weights=None).state_dict()

    monkeypatch.setattr(torchvision.models.ResNet50_Weights, "get_state_dict", fake)
    model = load_model(spec)
    options = {"progress": False, "check_hash": True, "weights_only": True}
    assert asked == [(f"ResNet50_Weights.IMAGENET1K_V{version}", options)]
    assert model.class_names[:2] == ("tench", "goldfish")
    assert len(model.class_names) == 1000
    assert model.digest == load_model("torchvision:resnet50@random:1").digest
    assert model.preprocessing.resize == ((232,) if "DEFAULT" in spec else (256,))


def test_inception_rescales_its_input_as_its_weights_expect():
    assert load_model("torchvision:inception_v3@random").module.transform_input


def test_weights_for_larger_images_meet_a_network_built_for_them(torchvision, monkeypatch):
    with torch.device("meta"):
        large = torchvision.models.vit_b_16(image_size=384).state_dict()
    monkeypatch.setattr(
        torchvision.models.ViT_B_16_Weights,
        "get_state_dict",
        lambda self, **options: {name: torch.zeros_like(value, device="cpu") for name, value in large.items()},
    )
    model = load_model("torchvision:vit_b_16@IMAGENET1K_SWAG_E2E_V1")
    assert model.module.image_size == model.preprocessing.crop[0] == 384


def test_the_dotted_names_in_the_files_of_densenets_are_read(torchvision, monkeypatch):
    source = load_model("torchvision:densenet121@random:1")
    dotted = {re.sub(r"(layer\d+\.(?:norm|conv))([12])", r"\1.\2", k): v for k, v in source.module.state_dict().items()}
    assert "features.denseblock1.denselayer1.norm.1.weight" in dotted
    old = {name: value for name, value in dotted.items() if "num_batches" not in name}
    monkeypatch.setattr(torchvision.models.DenseNet121_Weights, "get_state_dict", lambda self, **options: old)
    assert load_model("torchvision:densenet121").digest == source.digest


@pytest.mark.parametrize("name", ["mnasnet0_5", "googlenet"])
def test_a_file_of_the_librarys_own_network_is_read(torchvision, tmp_path, name):
    """MNASNet wants versions, which such a file has not; GoogLeNet comes without its auxiliary heads."""
    options = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
    own = torchvision.models.get_model(name, weights=None, **options).eval()
    save_file(own.state_dict(), tmp_path / "w.safetensors")
    loaded = load_model(f"torchvision:{name}@{tmp_path / 'w.safetensors'}")
    assert loaded.class_names[999] == "toilet tissue"
    own.transform_input = True
    x = torch.rand(1, 3, 224, 224)
    assert torch.equal(loaded.module(x), own(x))


def test_a_failed_download_names_the_way_without_a_network(torchvision, monkeypatch):
    def fail(self, **options):
        raise urllib.error.URLError("name or service not known")

    monkeypatch.setattr(torchvision.models.ResNet18_Weights, "get_state_dict", fail)
    assert message("torchvision:resnet18") == (
        "could not fetch ResNet18_Weights.IMAGENET1K_V1 (URLError: <urlopen error name or service not known>); "
        "without a network, save the state_dict as safetensors on another machine and use "
        "torchvision:resnet18@FILE.safetensors, or torchvision:resnet18@random to try things out"
    )


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("torchvision:resnet81", "torchvision has no classifier or detector 'resnet81'; did you mean 'resnet18'"),
        ("torchvision:maskrcnn_resnet50_fpn", "torchvision has no classifier or detector 'maskrcnn_resnet50_fpn'"),
        ("torchvision:resnet18@IMAGENET1K_V2", "no weights 'IMAGENET1K_V2' for resnet18; did you mean 'IMAGENET1K_V1'"),
        ("torchvision:resnet18@random:x", "the seed must be a whole number from 0 to 2**63 - 1"),
        ("torchvision:resnet18@", "names no weights after '@'"),
        ("torchvision:resnet18@w.pth", "'w.pth': .pth files are not read"),
        ("timm:resnet81", "timm has no model 'resnet81'; did you mean 'resnet18'"),
    ],
)
def test_wrong_names(spec, expected):
    if spec.startswith("timm"):
        pytest.importorskip("timm")
    assert expected in message(spec)


class TestTimm:
    @pytest.fixture(autouse=True)
    def timm(self, torchvision):
        return pytest.importorskip("timm")

    @pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224", "mobilenetv3_small_050"])
    def test_preprocessing_equals_timms_own(self, timm, name):
        model = load_model(f"timm:{name}@random:2")
        own = timm.data.create_transform(**timm.data.resolve_model_data_config(model.module))
        got = model.preprocessing.normalise(model.preprocessing.pixels(picture()))
        torch.testing.assert_close(got, own(picture()), rtol=0, atol=2e-6)
        assert model.digest == load_model(f"timm:{name}@random:2").digest
        assert (model.architecture, model.class_names) == (name, None)

    def test_squash_and_unsupported_modes(self, timm):
        config = {"input_size": (3, 96, 128), "interpolation": "bicubic", "crop_pct": 0.9, "crop_mode": "squash"}
        config |= {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}
        recipe = _hubs._timm_preprocessing(config)
        own = timm.data.create_transform(**config)
        torch.testing.assert_close(recipe.normalise(recipe.pixels(picture())), own(picture()), rtol=0, atol=3e-6)
        with pytest.raises(ModelError, match="crop mode 'border' for 96x128 is not supported"):
            _hubs._timm_preprocessing({**config, "crop_mode": "border"})

    def test_weights_from_a_file_carry_class_names(self, tmp_path):
        source = load_model("timm:mobilenetv3_small_050@random:3")
        save_file(source.module.state_dict(), tmp_path / "w.safetensors")
        model = load_model(f"timm:mobilenetv3_small_050@{tmp_path / 'w.safetensors'}")
        assert model.digest == source.digest
        assert model.class_names[1].startswith("goldfish")

    def test_an_unknown_tag_lists_the_known_ones(self):
        text = message("timm:resnet18@a1_in2k")
        assert "timm could not load 'resnet18.a1_in2k' (RuntimeError: Invalid pretrained tag" in text
        assert "resnet18.a1_in1k" in text


class TestHub:
    @pytest.fixture
    def folder(self, tmp_path):
        transformers = pytest.importorskip("transformers")
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        names = {0: "ant", 1: "bee", 2: "cat"}
        config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8, id2label=names)
        transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
        transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path)
        return tmp_path

    def test_logits_names_and_preprocessing(self, folder):
        import transformers

        model = load_model(f"hf:{folder}")
        own = transformers.AutoImageProcessor.from_pretrained(folder)(picture(), return_tensors="pt")["pixel_values"]
        x = model.preprocessing.normalise(model.preprocessing.pixels(picture()))
        assert (x - own[0]).abs().max().item() <= 2 / 255 / 0.5 + 1e-6  # two grey levels between resizers
        net = transformers.AutoModelForImageClassification.from_pretrained(folder)
        torch.testing.assert_close(model.module(own), net(own).logits)
        assert (model.class_names, model.architecture) == (("ant", "bee", "cat"), "vit")

    def test_channels_are_turned_round_for_a_model_that_expects_blue_first(self, folder, tmp_path):
        import transformers

        size = {"shortest_edge": 32}
        mobile = transformers.MobileViTImageProcessor(size=size, crop_size={"height": 32, "width": 32})
        mobile.save_pretrained(tmp_path)
        model = load_model(f"hf:{folder}")
        own = mobile(picture(), return_tensors="pt")["pixel_values"]
        x = model.prepare([picture()])
        assert (x.flip(1) - own).abs().max().item() <= 2 / 255 + 1e-6
        net = transformers.AutoModelForImageClassification.from_pretrained(folder)
        torch.testing.assert_close(model.module(x), net(x.flip(1)).logits)
        replaced = load_model(f"hf:{folder}", preprocessing="resize=32x32")
        assert torch.equal(replaced.module(x), model.module(x))

    def test_a_network_without_a_trained_head_is_refused(self, folder):
        import transformers

        config = transformers.AutoConfig.from_pretrained(folder)
        transformers.ViTModel(config).save_pretrained(folder)
        assert message(f"hf:{folder}") == (
            f"'hf:{folder}' lacks the weights classifier.bias, classifier.weight; "
            "name one that was trained as an image classifier or a detector"
        )

    @pytest.mark.parametrize(
        ("old", "new", "expected"),
        [
            ('"hidden_size": 16', '"hidden_size": "16"', ("StrictDataclassFieldValidationError", "TypeError")),
            ('"hidden_size": 16', '"hidden_size": 32', "RuntimeError"),
            ('"hidden_act": "gelu"', '"hidden_act": "melu"', "KeyError"),
        ],
    )
    def test_a_folder_that_does_not_fit_is_named(self, folder, old, new, expected):
        config = folder / "config.json"
        assert old in config.read_text()
        config.write_text(config.read_text().replace(old, new))
        kinds = (expected,) if isinstance(expected, str) else expected  # the second before transformers 5
        assert message(f"hf:{folder}").startswith(tuple(f"could not load 'hf:{folder}' ({kind}" for kind in kinds))

    def test_labels_that_do_not_exclude_each_other_are_refused(self, folder):
        config = folder / "config.json"
        old, new = '"model_type"', '"problem_type": "multi_label_classification", "model_type"'
        config.write_text(config.read_text().replace('"problem_type": null,', "").replace(old, new))
        assert message(f"hf:{folder}").startswith("model: its configuration says multi_label_classification: a softm")

    def test_truncated_weights_are_named(self, folder):
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:100])
        assert f"could not load 'hf:{folder}' (SafetensorError: " in message(f"hf:{folder}")

    def test_pickled_weights_are_refused(self, folder):
        (folder / "model.safetensors").unlink()
        torch.save({}, folder / "pytorch_model.bin")
        assert f"could not load 'hf:{folder}' (OSError: " in message(f"hf:{folder}")

    def test_an_absent_library_names_the_extra(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "transformers", None)
        assert message("hf:some/model") == (
            'transformers is not installed; run pip install -c constraints.txt -e ".[hf]" in the checkout'
        )


def image_processor(name, **settings):
    """An image processor that works with Pillow, as this library does."""
    transformers = pytest.importorskip("transformers")
    return (getattr(transformers, f"{name}Pil", None) or getattr(transformers, name))(**settings)


@pytest.mark.parametrize("size", [(333, 201), (202, 334)])  # the margins of crops are odd, too
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("CLIPImageProcessor", {}),
        ("CLIPImageProcessor", {"do_center_crop": False}),
        ("CLIPImageProcessor", {"do_resize": False, "crop_size": {"height": 128, "width": 96}}),
        ("CLIPImageProcessor", {"do_normalize": False, "crop_size": {"height": 192, "width": 201}}),
        ("ViTImageProcessor", {"resample": 0}),
        ("ViTImageProcessor", {"image_mean": 0.4, "image_std": 0.3}),  # of every channel
        ("ViTImageProcessor", {"rescale_factor": 1 / 256}),
        ("ViTImageProcessor", {"rescale_factor": 1 / 127.5, "image_mean": [1.0] * 3, "image_std": [1.0] * 3}),
        ("ViTImageProcessor", {"do_rescale": False, "image_mean": [123.7] * 3, "image_std": [58.4] * 3}),
        ("ConvNextImageProcessor", {"size": {"shortest_edge": 224}, "crop_pct": 0.875}),
        ("ConvNextImageProcessor", {"size": {"shortest_edge": 384}, "crop_pct": 1.0}),
        ("EfficientNetImageProcessor", {"image_std": [0.4, 0.5, 0.6]}),  # it divides by them twice
        ("EfficientNetImageProcessor", {"include_top": False}),
        ("MobileViTImageProcessor", {"size": {"shortest_edge": 288}}),  # blue comes first, and nothing is normalised
    ],
)
def test_preprocessing_equals_that_of_an_image_processor(name, settings, size):
    processor = image_processor(name, **settings)
    expected = torch.as_tensor(processor(picture(*size), return_tensors="pt")["pixel_values"])
    recipe = _hubs.preprocessing_of(processor)
    x = recipe.normalise(recipe.pixels(picture(*size)))[None]
    x = _hubs.BlueFirst()(x) if name == "MobileViTImageProcessor" else x
    torch.testing.assert_close(x, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("LevitImageProcessor", {}, "the steps of the image processor LevitImageProcessor"),  # enlarges by 256/224
        ("PerceiverImageProcessor", {}, "the steps of the image processor PerceiverImageProcessor"),  # crops first
        ("ImageGPTImageProcessor", {}, "the steps of the image processor ImageGPTImageProcessor"),  # gives no pixels
        ("DonutImageProcessor", {}, "the steps of the image processor DonutImageProcessor"),  # pads
        ("EfficientNetImageProcessor", {"rescale_offset": True}, "the steps of the image processor EfficientNetImage"),
        ("ViTImageProcessor", {"image_mean": "a"}, "the steps of the image processor ViTImageProcessor"),
        ("ViTImageProcessor", {"rescale_factor": None}, "the steps of the image processor ViTImageProcessor"),
        ("ViTImageProcessor", {"resample": 4}, "interpolation '4' is none of nearest, bilinear, bicubic, lanczos"),
        ("CLIPImageProcessor", {"size": {"longest_edge": 9}}, "image processor size {"),
    ],
)
def test_an_image_processor_with_other_steps_is_refused(name, settings, expected):
    with pytest.raises(ModelError) as caught:
        _hubs.preprocessing_of(image_processor(name, **settings))
    assert expected in str(caught.value)


def test_a_processor_around_timm_has_timms_preprocessing():
    config = {"input_size": (3, 96, 96), "interpolation": "bicubic", "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}
    expected = _hubs._timm_preprocessing({**config, "crop_pct": 0.9, "crop_mode": "center"})

    class Wrapper:
        def to_dict(self):
            return {"data_config": {**config, "crop_pct": 0.9, "crop_mode": "center"}}

        def __call__(self, pixels, return_tensors):
            return {"pixel_values": expected.normalise(expected.pixels(Image.fromarray(pixels)))[None]}

    assert _hubs.preprocessing_of(Wrapper()) == expected


def test_logits_of_takes_them_from_a_record():
    class Answers(nn.Module):
        def forward(self, x):
            return type("Record", (), {"logits": 2 * x})

    assert torch.equal(_hubs.LogitsOf(Answers())(torch.ones(2)), torch.full((2,), 2.0))


@pytest.mark.parametrize("is_reached", [True, False])
def test_a_hub_that_does_not_answer_is_asked_once_and_what_is_stored_is_read(monkeypatch, is_reached):
    hub, asked, read = pytest.importorskip("huggingface_hub"), [], []

    class Session:
        def head(self, url, timeout):
            asked.append(timeout)
            if not is_reached:
                raise OSError("no network")

    class Automatic:
        @staticmethod
        def from_pretrained(name, **options):
            read.append(options.get("local_files_only", False))
            raise OSError("it is not stored")

    monkeypatch.setattr(hub, "get_session", Session)
    monkeypatch.setattr(_hubs.time, "monotonic", lambda: 6000.0)
    _hubs._reaches_hub.cache_clear()
    for _ in range(3):
        with pytest.raises(ModelError) as caught:
            _hubs._read("hf:some/model", "an image classifier", Automatic)
        assert ("the hub is not reached, and what is stored" in str(caught.value)) is not is_reached
    _hubs._reaches_hub.cache_clear()
    assert asked == [3]
    assert read == [not is_reached] * 3


def test_a_local_folder_is_read_without_asking_the_hub(monkeypatch, tmp_path):
    monkeypatch.setattr(_hubs, "_reaches_hub", lambda minute: pytest.fail("asked"))
    automatic = type("Automatic", (), {"from_pretrained": staticmethod(lambda name, **options: (name, options))})
    name, options = _hubs._read(f"hf:{tmp_path}", "an image classifier", automatic)
    assert (name, options) == (str(tmp_path), {"revision": "main", "trust_remote_code": False})


def test_a_file_whose_torchvision_does_not_fit_torch_says_what_to_write(tmp_path):
    file = tmp_path / "net.py"
    file.write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    said = message(f"{file}:make", trust_code=True, preprocessing="unit")
    assert said.endswith("write torchvision = fringe.models.import_torchvision() in place of import torchvision")
