"""What ``feature_mask`` means: the same for every kind of input, and for each method that replaces or sums parts.

The networks are linear, so that each part has one right number: w (x - baseline), summed over it.
"""

import pytest
import torch
from torch import nn

import fringe

SHAPES = {"image": (3, 6, 6), "tabular": (7,), "series": (2, 9), "volume": (1, 4, 4, 4)}
PARTS = 4


def case(kind: str):
    """A linear network of three classes, two inputs, and a mask of four parts over all channels."""
    generator = torch.Generator().manual_seed(0)
    shape = SHAPES[kind]
    network = nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), 3)).double().eval()
    with torch.no_grad():
        network[1].weight.copy_(torch.randn(network[1].weight.shape, generator=generator, dtype=torch.float64))
    x = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    space = shape[1:] or shape
    mask = torch.randperm(torch.Size(space).numel(), generator=generator).view(space) % PARTS
    return network, x, mask[None] if shape[1:] else mask


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("method", ["captum:occlusion", "captum:kernel_shap", "ig"])
def test_a_part_has_one_number_in_every_kind_and_method(kind, method):
    network, x, mask = case(kind)
    result = fringe.attribute(network, x, method=method, feature_mask=mask, baseline=0.3, target=1, probe=True)
    change = (x - 0.3) * network[1].weight[1].detach().view(x.shape[1:])
    where = mask.expand_as(x[0])
    for part in range(PARTS):
        expected = change[:, where == part].sum(1)
        values = result.values[:, where == part]
        found = values.sum(1) if method == "ig" else values[:, 0]  # the others give each entry the number of its part
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
        if method != "ig":
            assert (values.amax(1) - values.amin(1)).max() < 1e-6
    assert result.diagnostics["agreement_parts"].tolist() == [PARTS] * 2
    if method == "ig":
        assert result.diagnostics["agreement_signed"].tolist() == pytest.approx([1.0, 1.0], abs=1e-9)


@pytest.mark.parametrize("kind", SHAPES)
def test_a_function_makes_the_same_mask_of_the_inputs(kind):
    network, x, mask = case(kind)
    options = {"method": "captum:occlusion", "kind": kind, "probe": False, "baseline": 0.3}
    found = fringe.explain(network, x, feature_mask=lambda inputs: mask.expand_as(inputs), **options)
    expected = fringe.attribute(network, x, method="captum:occlusion", feature_mask=mask, baseline=0.3)
    torch.testing.assert_close(found.values, expected.values)
