"""A network is explained in the memory layout of its images; channels last is taken only where it computes the same."""

import pytest
import torch
from test_methods_contract import FIRST
from torch import nn

import fringe
from fringe.classifier import Classifier

IMAGES = torch.randn(3, 2, 8, 8, generator=torch.Generator().manual_seed(4))
REFERENCES = 2.0 * torch.randn(8, 2, 8, 8, generator=torch.Generator().manual_seed(5))
SPACE = fringe.InputSpace(torch.tensor(-4.0), torch.tensor(4.0), REFERENCES)


class ReadsMemory(nn.Module):
    """A smooth network of the numbers of an image in the order in which they lie in memory, or (``nothing``) in their
    own; both are the same where an image is contiguous."""

    def __init__(self, reads):
        super().__init__()
        torch.manual_seed(0)
        self.reads, self.layouts = reads, list[bool]()
        self.first, self.last = nn.Conv2d(2, 6, 3, bias=False), nn.Linear(6, 4, bias=False)
        self.eval()

    def forward(self, x):
        self.layouts.append(x.is_contiguous())
        y = x
        if self.reads == "as_strided":
            y = x.as_strided(x.shape, (128, 64, 8, 1))
        elif self.reads == "stride":
            y = x * (1.0 if x.stride(1) == 64 else 2.0)
        elif self.reads == "pointer":  # as a kernel that gets one
            y = x + (x.detach().as_strided(x.shape, (128, 64, 8, 1)) - x.detach())
        elif self.reads == "view":
            y = x.view(len(x), -1).view(x.shape)
        elif self.reads == "layout" and not x.is_contiguous():
            raise ValueError("this kernel takes contiguous images")
        return 20.0 * self.last(torch.tanh(self.first(y)).mean((2, 3)))


IG = fringe.IntegratedGradients(steps=4)


@pytest.mark.parametrize(
    ("name", "method", "reads"),
    [(*row.values, "as_strided") for row in FIRST]
    + [("ig", IG, reads) for reads in ("stride", "pointer", "view", "layout")],
)
def test_a_network_that_reads_memory_has_the_map_of_its_own_layout(name, method, reads, monkeypatch):
    arguments = {"method": method, "space": SPACE, "ids": "abc"}
    found = fringe.attribute(network := ReadsMemory(reads), IMAGES, **arguments)
    # nearly all passes are as the images came: one tries the other layout, and is made again
    assert 1 <= network.layouts.count(False) <= 2
    monkeypatch.setattr(Classifier, "layout", lambda self, x: torch.contiguous_format)
    expected = fringe.attribute(ReadsMemory("nothing"), IMAGES, **arguments)
    torch.testing.assert_close(found.values, expected.values, rtol=1e-4, atol=1e-5)
    assert found.verdict == expected.verdict
    assert found.passes.forward == expected.passes.forward + network.layouts.count(False)


def test_other_networks_have_channels_last_and_no_more_passes(monkeypatch):
    classifier = Classifier(network := ReadsMemory("nothing"))
    first, second = (fringe.attribute(classifier, IMAGES, method=IG, ids="abc") for _ in range(2))
    of_first = network.layouts.index(True, 1)  # the second call, too, begins in the layout of the images
    assert network.layouts == [True] + [False] * (of_first - 1) + [True] + [False] * (
        len(network.layouts) - of_first - 1
    )
    assert torch.equal(first.values, second.values)  # and so has the same bits
    assert torch.equal(first.score, second.score)
    monkeypatch.setattr(Classifier, "layout", lambda self, x: torch.contiguous_format)
    assert first.passes == fringe.attribute(ReadsMemory("nothing"), IMAGES, method=IG, ids="abc").passes


def test_an_image_of_one_colour_decides_nothing():
    x = torch.cat([torch.full((1, 2, 8, 8), 0.3), IMAGES])
    found = fringe.attribute(ReadsMemory("as_strided"), x, method=IG).values[1:]
    expected = fringe.attribute(ReadsMemory("nothing"), IMAGES, method=IG).values
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_other_weights_are_another_network():
    classifier = Classifier(network := ReadsMemory("nothing"))
    fringe.attribute(classifier, IMAGES, method=IG)
    network.reads = "as_strided"
    with torch.no_grad():
        network.last.weight.mul_(2.0)
    found = fringe.attribute(classifier, IMAGES, method=IG).values
    network.reads = "nothing"
    expected = fringe.attribute(network, IMAGES, method=IG).values
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
