"""Inputs that are prepared, or not, and objects that prepare them: each is used, or the message says what to pass."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import fringe

NETWORK = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 3)).eval()
X = torch.linspace(0, 1, 3 * 8 * 8).reshape(1, 3, 8, 8)


def test_a_tensor_far_outside_of_what_the_preprocessing_makes_is_told(recwarn):
    fringe.explain(NETWORK, X * 2, method="ig", preprocessing="imagenet")
    assert not [w for w in recwarn if "prepared pixels" in str(w.message)]
    with pytest.warns(UserWarning, match=r"has values up to 255, and prepared pixels end at 2\.64"):
        fringe.explain(NETWORK, X * 255, method="ig", preprocessing="imagenet")


def test_whether_pixels_are_normalised_is_asked_where_the_numbers_say_that_they_are_not(recwarn):
    for x, recipe in ((X, "unit"), (X / 2, "imagenet"), (X * 4 - 2, "imagenet")):
        fringe.explain(NETWORK, x, method="ig", preprocessing=recipe)
    assert not [w for w in recwarn if "normalised" in str(w.message)]
    with pytest.warns(
        UserWarning, match=r"values from 0 to 1, as pixels that are not normalised have, .* begin at -2\.12"
    ):
        fringe.explain(NETWORK, X, method="ig", preprocessing="imagenet")


@pytest.mark.parametrize("x", [X.permute(0, 2, 3, 1), X[0].permute(1, 2, 0)])
def test_tensors_with_channels_last_are_refused_with_the_order_that_is_meant(x):
    with pytest.raises(fringe.InputError, match=r"channels seem to be the last axis; pass x\.permute\(0, 3, 1, 2\)"):
        fringe.explain(NETWORK, x, method="ig", preprocessing="imagenet")


def test_a_transform_is_no_preprocessing_and_its_tensor_is_an_input():
    with pytest.raises(fringe.InputError, match="for a transform of torchvision pass the tensors that it makes"):
        fringe.explain(NETWORK, X, preprocessing=lambda image: image)


@pytest.mark.parametrize("form", ["inputs", "labels", "dictionary"])
def test_batches_of_a_loader_are_joined_with_their_passes_added(form):
    x = X + torch.arange(5.0).view(-1, 1, 1, 1) / 10
    rows = {"inputs": lambda v: v, "labels": lambda v: (v, 1), "dictionary": lambda v: {"input": v}}[form]
    loader, target = DataLoader([rows(v) for v in x], batch_size=2), [0, 1, 2, 0, 1]
    kwargs = {"method": "ig", "target": target, "telemetry": 2}
    model = fringe.Classifier(NETWORK)  # which is checked once
    joined = fringe.attribute(model, loader, ids=list("abcde"), **kwargs)
    assert joined.passes.vjp == model.passes.vjp
    assert joined.passes.forward + 2 * len(x) == model.passes.forward  # those at recorded points are not counted
    apart = [fringe.attribute(model, x[i : i + 2], **{**kwargs, "target": target[i : i + 2]}) for i in (0, 2, 4)]
    torch.testing.assert_close(joined.values, torch.cat([part.values for part in apart]))
    assert joined.target.tolist() == target
    assert joined.passes.vjp > max(part.passes.vjp for part in apart)
    assert len(joined.trajectory) == len(x)
    halves = [joined[:2], joined[2:]]
    assert fringe.Attribution.concat(halves).passes == joined.passes, "they are of one call"


def test_a_loader_with_a_bad_batch_is_explained_but_for_this_batch():
    x = X.repeat(4, 1, 1, 1)
    x[:2] = torch.nan
    result = fringe.attribute(NETWORK, DataLoader(x, batch_size=2), method="ig", bad_images="mark", telemetry=2)
    assert result.verdict[:2] == ("nan_input",) * 2
    assert result.values[2:].isfinite().all()
    assert [path is None for path in result.trajectory] == [True, True, False, False]
    assert all(column[:2].isnan().all() and column[2:].isfinite().all() for column in result.diagnostics.values())


def test_what_a_loader_cannot_say_is_refused_before_or_at_its_batch():
    loader = DataLoader(X.repeat(4, 1, 1, 1), batch_size=2)
    with pytest.raises(fringe.InputError, match=r"target: got 5 for 4 inputs of the loader"):
        fringe.attribute(NETWORK, loader, method="ig", target=[0] * 5)
    with pytest.raises(fringe.InputError, match=r"forward_kwargs: got further arguments for the batches"):
        fringe.attribute(NETWORK, loader, method="ig", forward_kwargs={"mask": torch.ones(4)})
    with pytest.raises(fringe.InputError, match=r"its batches have 2 tensors; let its collate_fn"):
        fringe.attribute(NETWORK, DataLoader([(X[0], X[0])] * 2), method="ig")
    with pytest.raises(fringe.InputError, match=r"batch 1 has inputs of shape \{0: \(3, 4, 8\)\}, and the first"):
        fringe.attribute(NETWORK, DataLoader([X[0], X[0, :, :4]]), method="ig")


def test_maps_of_several_methods_or_shapes_are_not_joined():
    one, other = (fringe.attribute(NETWORK, X, method=name) for name in ("ig", "rise"))
    with pytest.raises(fringe.InputError, match=r"parts: got ig \(3, 8, 8\); rise \(3, 8, 8\), expected maps of one"):
        fringe.Attribution.concat([one, other])
    with pytest.raises(fringe.InputError, match="parts: got none"):
        fringe.Attribution.concat([])
