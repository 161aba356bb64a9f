"""Models, image processors, tokenizers and pipelines of the transformers library as they are given."""

import numpy as np
import pytest
import torch
from PIL import Image
from text_toys import make_model, make_tokenizer

import fringe
from fringe.models import ModelError, import_transformers

NAMES = ("cat", "dog", "bird")
IG = fringe.IntegratedGradients(steps=3)


@pytest.fixture(scope="module")
def library():
    torch.set_num_threads(1)
    try:
        return import_transformers()
    except ModelError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def network(library):
    config = library.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], id2label=dict(enumerate(NAMES)), layer_type="basic"
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return library.ResNetForImageClassification(config).eval()


@pytest.fixture(scope="module")
def processor(library):
    return library.ViTImageProcessor(size={"height": 32, "width": 32})


def photo():
    y, x = np.mgrid[:48, :60]
    return Image.fromarray(np.stack([x * 4, y * 5, 255 - x * 2], -1).astype(np.uint8))


def test_a_processor_is_the_preprocessing_and_the_configuration_names_the_classes(network, processor):
    result = fringe.explain(network, photo(), preprocessing=processor, method=IG)
    expected = processor(photo(), return_tensors="pt")["pixel_values"]
    assert (result.context.inputs - expected).abs().mean() < 2 / 255  # two resizers differ by rounding
    assert result.context.class_names == NAMES
    assert result.context.model == "ResNetForImageClassification"
    named = fringe.explain(network, photo(), preprocessing=processor, method=IG, target="dog", contrast="bird")
    assert (named.target.tolist(), named.contrast.tolist()) == ([1], [2])
    assert named.labels(0) == ("dog, not bird",)
    given = fringe.explain(network, photo(), preprocessing=processor, method=IG, classes=["a", "b", "c"])
    assert given.context.class_names == ("a", "b", "c")


def test_names_that_are_not_those_of_the_outputs_are_not_taken(network, processor):
    """A module that holds a configuration of another network does not state its names."""

    class Head(torch.nn.Module):
        config = network.config

        def forward(self, x):
            return x.mean((2, 3)) @ torch.eye(3)[:, :2]

    result = fringe.explain(Head().eval(), photo(), preprocessing=processor, method=IG)
    assert result.context.class_names is None


def test_a_pipeline_of_images_is_explained(library, network, processor):
    pipe = library.pipeline("image-classification", model=network, image_processor=processor)
    result = fringe.explain(pipe, photo(), method=IG)
    best = pipe(photo())[0]
    number, name, probability = result.context.top(0, 1)[0]
    assert (name, number) == (best["label"], int(result.target[0]))
    assert probability == pytest.approx(best["score"], abs=0.01)
    table = fringe.compare(pipe, [photo()], methods=[IG], metrics=["sparseness"], controls=False)
    assert table.context.class_names == NAMES


@pytest.mark.parametrize("form", ["pipeline", "tokenizer", "preprocessing"])
def test_texts_are_explained_in_every_form(library, form):
    model, tokenizer, text = make_model(), make_tokenizer(), "a great film with a dull ending"
    pipe = library.pipeline("text-classification", model=model, tokenizer=tokenizer)
    given, options = (pipe, {}) if form == "pipeline" else (model, {form: tokenizer})
    result = fringe.explain(given, text, method=IG, **options)
    best = pipe(text)[0]
    _, name, probability = result.context.top(0, 1)[0]
    assert name == best["label"]
    assert probability == pytest.approx(best["score"], abs=1e-5)
    assert "great" in result.context.features[0]


def test_blue_first_is_put_first(library, network):
    given = library.MobileViTImageProcessor(size={"shortest_edge": 40}, crop_size={"height": 32, "width": 32})
    assert given.do_flip_channel_order
    result = fringe.explain(network, photo(), preprocessing=given, method=IG)
    pixels = given(photo(), return_tensors="pt")["pixel_values"]
    assert (result.context.inputs.flip(1) - pixels).abs().mean() < 1 / 255
    with torch.no_grad():
        expected = network(result.context.inputs.flip(1)).logits.softmax(1)
    torch.testing.assert_close(result.context.probabilities, expected, rtol=0, atol=1e-5)
    assert result.context.class_names == NAMES
    with pytest.raises(fringe.InputError, match="puts blue first, which needs a torch"):
        fringe.explain(lambda x: network(x).logits, photo(), preprocessing=given, method=IG)


def test_what_cannot_be_meant_is_refused(library, network, processor):
    with pytest.raises(fringe.InputError, match=r"inputs: got a picture .* or the image processor of a model"):
        fringe.explain(network, photo())
    with pytest.raises(fringe.InputError, match="tokenizer: got BertForSequenceClassification without its tokenizer"):
        fringe.explain(make_model(), "a great film")
    with pytest.raises(fringe.InputError, match="inputs: got Image, expected a text or a list of texts"):
        fringe.explain(network, photo(), preprocessing=make_tokenizer())
    with pytest.raises(fringe.InputError, match="preprocessing: got float, expected a Preprocessing"):
        fringe.explain(network, photo(), preprocessing=0.5)
    pipe = library.pipeline("image-classification", model=network, image_processor=processor)
    with pytest.raises(fringe.InputError, match=r"model: got a pipeline of transformers.*fringe.explain"):
        fringe.attribute(pipe, torch.rand(1, 3, 32, 32))
    pipe.task = "object-detection"
    with pytest.raises(fringe.InputError, match=r"model: got a pipeline of the task 'object-detection', expected one"):
        fringe.explain(pipe, photo())
    with pytest.raises(fringe.TargetError, match=r"got 'dog', .* are understood by fringe.explain"):
        fringe.attribute(network, torch.rand(1, 3, 32, 32), target="dog", method=IG)
