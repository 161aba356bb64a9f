"""Detectors of libraries, from configurations: the box, label and probability are those of the library itself."""

import pytest
import torch

import fringe
from fringe import Detector, InputError
from fringe.detection import places_of
from fringe.models import import_torchvision, import_transformers, load_model

pytestmark = pytest.mark.thorough
NAMES = {0: "cat", 1: "dog", 2: "cup"}


def decisive(detector, x, heads):
    """Scale the class logits, which are all alike in a network with random weights."""
    with torch.no_grad():
        spread = detector.find(x)[2].std()
        for layer in heads:
            layer.weight.mul_(3 / spread)


# -- transformers -----------------------------------------------------------------------------------------------------


def _small(transformers):
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], out_features=["stage4"]
    )
    sides = {
        f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in (("attention_heads", 2), ("ffn_dim", 32))
    }
    options = {
        "use_timm_backbone": False,
        "backbone": None,
        "use_pretrained_backbone": False,
        "backbone_config": backbone,
    }
    return {
        **options,
        **sides,
        "d_model": 32,
        "encoder_layers": 1,
        "decoder_layers": 2,
        "num_queries": 10,
        "id2label": NAMES,
    }


def _transformers(name):
    transformers = import_transformers()
    if name == "Yolos":
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
        options = {**sizes, "image_size": [96, 128], "num_detection_tokens": 8, "id2label": NAMES}
    else:
        options = _small(transformers)
    if name == "DeformableDetr":
        options |= {"num_feature_levels": 1, "disable_custom_kernels": True}
    torch.manual_seed(1)
    net = getattr(transformers, f"{name}ForObjectDetection")(getattr(transformers, f"{name}Config")(**options)).eval()
    for parameter in net.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=1.2 / parameter[0].numel() ** 0.5)
    return net, getattr(transformers, f"{name}ImageProcessor")()


def _photo(height=96, width=128):
    return torch.rand(1, 3, height, width, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["Detr", "Yolos", "ConditionalDetr", "DeformableDetr"])
def test_boxes_of_transformers_are_those_of_its_own_processing(name):
    net, processor = _transformers(name)
    x, detector = _photo(), Detector(net)
    heads = [
        layer
        for path, layer in net.named_modules()
        if isinstance(layer, torch.nn.Linear) and ("class_embed" in path or "class_labels_classifier" in path)
    ]
    decisive(detector.places, x, heads[-1:] if name == "Yolos" else heads)
    with torch.no_grad():
        own = processor.post_process_object_detection(net(pixel_values=x), threshold=0.0, target_sizes=[(96, 128)])[0]
    best = int(own["scores"].argmax())
    found = detector.find(x, 1)
    assert int(found.labels) == int(own["labels"][best])
    torch.testing.assert_close(found.scores[0], own["scores"][best], rtol=1e-4, atol=1e-6)
    expected = own["boxes"][best].clamp_min(0).minimum(torch.tensor([128.0, 96.0, 128.0, 96.0]))
    torch.testing.assert_close(found.boxes[0], expected, rtol=1e-4, atol=1e-3)
    result = fringe.explain(net, x, boxes=1, method="ig")
    assert result.context.class_names is not None
    assert set(NAMES.values()) < set(result.context.class_names)


@pytest.mark.parametrize("name", ["Detr", "ConditionalDetr", "DeformableDetr"])
def test_queries_are_no_places_of_a_class_activation_map(name):
    """Ten queries would fill a grid of 2 by 3 with four other tokens."""
    result = fringe.explain(_transformers(name)[0], _photo(), boxes=1, method="gradcam")
    assert "the layer is model.model." in result.advice[0]
    assert "decoder" not in result.advice[0]


def test_queries_that_are_chosen_anew_for_each_input_are_refused():
    transformers = import_transformers()
    config = transformers.DeformableDetrConfig(**{**_small(transformers), "two_stage": True, "with_box_refine": True})
    net = type("DeformableDetrForObjectDetection", (torch.nn.Module,), {})()
    net.config = config
    with pytest.raises(InputError, match="chooses its queries anew for each input"):
        places_of(net)


@pytest.mark.parametrize("size", [(311, 457), (480, 200), (90, 333), (64, 64)])
def test_the_size_of_images_is_that_of_detr(size):
    """The short side is made 80, and the long side at most 133, as DETR's own processor does with 800 and 1333."""
    transformers = import_transformers()
    processor = transformers.DetrImageProcessor(size={"shortest_edge": 80, "longest_edge": 133})
    from PIL import Image

    from fringe.models import preprocessing_of

    photo = Image.effect_noise(size, 40).convert("RGB")
    own = processor(photo, return_tensors="pt")["pixel_values"][0]
    assert preprocessing_of(processor).pixels(photo).shape == own.shape


# -- torchvision ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ssdlite():
    load = import_torchvision().models.get_model
    torch.manual_seed(0)
    net = load("ssdlite320_mobilenet_v3_large", weights=None, weights_backbone=None, num_classes=5).eval()
    heads = [layer[1] for layer in net.head.classification_head.module_list]
    decisive(Detector(net).places, _photo(320, 320), heads)
    return net


def test_boxes_of_torchvision_are_its_own(ssdlite):
    from fringe.detection import _suppression  # its own output needs compiled operators, or ours

    x = _photo(320, 320)
    with torch.no_grad(), _suppression():
        own = ssdlite([x[0]])[0]
    found = Detector(ssdlite).find(x, 1)
    assert int(found.labels) == int(own["labels"][0])
    torch.testing.assert_close(found.scores[0], own["scores"][0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found.boxes[0], own["boxes"][0], rtol=1e-4, atol=1e-2)


def test_the_integral_of_a_place_is_that_of_captum(ssdlite):
    captum = pytest.importorskip("captum.attr")
    x, detector = _photo(320, 320), Detector(ssdlite)
    found = detector.find(x, 1)
    method = fringe.IntegratedGradients(steps=4, rule="gausslegendre")
    result = fringe.explain(ssdlite, x, boxes=1, method=method, baseline=0.0)
    own = captum.IntegratedGradients(lambda z: detector(z, place=found.places.expand(len(z))))
    expected = own.attribute(x, 0.0, target=int(found.labels), n_steps=4, method="gausslegendre", internal_batch_size=1)
    torch.testing.assert_close(result.values, expected.float(), rtol=0, atol=1e-4 * float(expected.abs().max()))


def test_a_detector_is_named_by_a_spec():
    loaded = load_model("torchvision:ssdlite320_mobilenet_v3_large@random")
    assert loaded.preprocessing.record()["resize"] == [320, 320]
    assert places_of(loaded.module) is not None
    with pytest.raises(fringe.FringeError, match="no classifier or detector"):
        load_model("torchvision:ssdlite321_mobilenet_v3_large@random")
