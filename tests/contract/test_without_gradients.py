"""Methods without gradients explain models without gradients, and the others refuse them with what to do."""

import importlib.util
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import fringe
from fringe.attribution import METHODS, get_method
from fringe.errors import FringeError, NotDifferentiableError
from fringe.testing._checks import ToyProblems, smooth_cnn

IMAGES = ToyProblems(torch.float32).images(3)
NET = ToyProblems(torch.float32).build(smooth_cnn)


def of_numpy(x):
    with torch.no_grad():
        return NET(torch.from_numpy(x.numpy())).numpy()


class Detached(nn.Module):
    def forward(self, x):
        return NET(x.detach())


#: Models without a gradient whose outputs are those of the network.
MODELS = {
    "numpy": of_numpy,
    "a tensor of numpy": lambda x: torch.from_numpy(of_numpy(x)),
    "an onnx session": lambda x: [of_numpy(x)],
    "inference mode": torch.inference_mode()(lambda x: NET(x)),
    "detached": Detached().eval(),
    "no_grad": torch.no_grad()(lambda x: NET(x)),
}


def installed(name):
    return importlib.util.find_spec(name) is not None


WITHOUT = [fringe.RISE(masks=6, cells=3)]
if installed("captum"):
    WITHOUT.append(fringe.CaptumMethod("occlusion"))
if installed("captum") and installed("sklearn"):
    WITHOUT.append(fringe.CaptumMethod("kernel_shap", samples=20, segments=4, superpixels="grid"))
WITHOUT += [fringe.Smooth(WITHOUT[0]), get_method("power(2):rise").around(WITHOUT[0])]


def test_the_methods_say_that_they_need_none():
    without = {name for name, kind in METHODS.items() if not kind().uses_gradients}
    assert without == {"rise", "captum"}  # captum is the occlusion by default
    assert all(not method.uses_gradients for method in WITHOUT)


@pytest.mark.parametrize("method", WITHOUT, ids=lambda method: method.label)
@pytest.mark.parametrize("name", MODELS)
def test_their_maps_are_those_of_the_network(name, method):
    expected = fringe.attribute(NET, IMAGES, method=method, ids="abc")
    found = fringe.attribute(MODELS[name], IMAGES, method=method, ids="abc")
    torch.testing.assert_close(found.values, expected.values, rtol=1e-4, atol=1e-5)
    assert found.verdict == expected.verdict
    assert found.passes.vjp == found.passes.jvp == 0


@pytest.mark.parametrize("method", WITHOUT, ids=lambda method: method.label)
def test_numbers_quantised_with_the_scale_of_a_batch_are_explained_one_by_one(method):
    def rounded(x):  # as of dynamic quantisation
        scale = x.detach().abs().max().clamp_min(1e-6) / 20
        return NET((x / scale).round() * scale)

    with pytest.raises(FringeError, match=r"mixes images .*quantised.* can be explained with batch_size=1"):
        fringe.attribute(rounded, IMAGES, method=method)
    found = fringe.attribute(rounded, IMAGES, method=method, ids="abc", batch_size=1)
    each = [
        fringe.attribute(rounded, x, method=method, ids=key, batch_size=1)
        for x, key in zip(IMAGES.split(1), "abc", strict=True)
    ]
    torch.testing.assert_close(found.values, torch.cat([one.values for one in each]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["ig", "fringe", "smoothgrad", "straight:rise"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("count", [1, 3])
def test_methods_of_gradients_name_one_that_needs_none(name, method, count):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(NotDifferentiableError, match=r"^model: its output.*choose a method .*'rise'.*occlusion"):
            fringe.attribute(MODELS[name], IMAGES[:count], method=method)


def test_an_array_of_another_precision_is_read():
    found = fringe.attribute(lambda x: of_numpy(x).astype(np.float64), IMAGES, method=WITHOUT[0], ids="abc")
    expected = fringe.attribute(NET, IMAGES, method=WITHOUT[0], ids="abc")
    torch.testing.assert_close(found.values, expected.values, rtol=1e-4, atol=1e-5)
