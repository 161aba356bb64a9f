"""One method behind every door: of each kind of input, ``explain`` and ``attribute`` give the same maps."""

import pytest
import torch
from text_toys import make_model, make_tokenizer
from torch import nn

import fringe
from fringe.text import TextClassifier
from toys import normal

SHAPES = {"image": (2, 1, 6, 6), "tabular": (2, 8), "series": (2, 1, 40), "volume": (2, 1, 3, 5, 5)}
USED = {"image": "image", "text": "none", "tabular": "none", "series": "sequence", "volume": "image"}
METHODS = ["fringe", "fringe:fast", "straight:fringe", fringe.SmoothGrad(samples=3), fringe.IntegratedGradients(4)]
LONG = [("text", "fringe"), ("text", "straight:fringe")]  # of text, the fast one after every edit


class Net(nn.Module):
    """A smooth network of inputs of any shape."""

    def __init__(self, size: int):
        super().__init__()
        self.first, self.last = nn.Parameter(normal(size, 5, seed=2) / size**0.5), nn.Parameter(normal(5, 3, seed=3))
        self.eval()

    def forward(self, x):
        return torch.tanh(x.flatten(1) @ self.first) @ self.last


def network_and_inputs(kind: str):
    """A network, its inputs as ``explain`` takes them, and the arguments of ``attribute``."""
    if kind == "text":
        model = TextClassifier(make_model(), make_tokenizer())
        texts = ["the film was masterful", "a dull plot and a clumsy ending"]
        encoded = model.encode(texts)
        return model, texts, (encoded.embeddings, {"forward_kwargs": encoded.arguments})
    x = normal(*SHAPES[kind])
    return Net(x[0].numel()), x, (x, {})


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        pytest.param(kind, method, marks=pytest.mark.thorough if (kind, method) in LONG else ())
        for kind in USED
        for method in METHODS
    ],
)
def test_explain_equals_attribute_bit_for_bit(kind, method):
    model, given, (x, arguments) = network_and_inputs(kind)
    explained = fringe.explain(model, given, kind=kind, method=method)
    attributed = fringe.attribute(model, x, method=method, **arguments)
    assert torch.equal(explained.values, attributed.values)
    assert explained.verdict == attributed.verdict
    assert explained.settings == attributed.settings
    used = explained.settings.get("of", explained.settings).get("structure")
    assert used == (USED[kind] if "fringe" in str(method) else None)


def test_a_volume_is_smoothed_slice_by_slice():
    """Its map is that of the same slices as the channels of one image."""
    x = normal(2, 1, 3, 5, 5)
    volume, image = (fringe.attribute(Net(75), each, method="fringe") for each in (x, x[:, 0]))
    torch.testing.assert_close(volume.values[:, 0], image.values, rtol=1e-9, atol=1e-12)
    assert fringe.explain(Net(75), x, kind="volume", method="ig")[0].plot().axes
