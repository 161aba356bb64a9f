"""Maps made of the finished map of another method, against their definitions."""

import json

import pytest
import torch
from torch import nn

import fringe
from fringe import Competing, InputError, IntegratedGradients, Located, Power
from fringe.attribution import get_method, method_label, method_of_record
from toys import build, images, normal

MODEL, X = build(), images(4)
IG = IntegratedGradients(steps=6)
NAMES = ("located:ig", "other_cam:ig", "centre_prior:ig", "power(2):ig", "competing:ig")


def explained(method, x=X, **more):
    return fringe.attribute(MODEL, x, method=method, **more)


def region(x=X):
    """Grad-CAM over its maximum."""
    cam = explained("gradcam", x).values.sum(1, keepdim=True)
    return cam / cam.flatten(1).amax(1).view(-1, 1, 1, 1).clamp_min(1e-300)


def test_a_located_map_is_the_map_times_the_activation_map():
    plain, result = explained(IG), explained(Located(IG))
    torch.testing.assert_close(result.values, region() * plain.values, rtol=1e-9, atol=1e-12)
    left, total = (maps.sum(1).abs().flatten(1).sum(1) for maps in (result.values, plain.values))
    lost = 1 - left / total
    torch.testing.assert_close(result.diagnostics["hidden_share"], lost, rtol=1e-9, atol=1e-12)
    assert bool((lost > 0.05).all())
    torch.testing.assert_close(result.region, region(), rtol=1e-9, atol=1e-12)  # of which pages draw the outline
    assert plain.region is None
    # one image more to find the layer and one to check it, with three gradients, then one pass each
    spent = result.passes.forward - plain.passes.forward, result.passes.vjp - plain.passes.vjp
    assert spent == (4 + 2, 4 + 1 + 3)
    assert all("; the layer is " in advice for advice in result.advice)
    named = explained(get_method("located:ig").with_text({"of.steps": "6", "layer": "0"}))
    assert (named.values - result.values).norm() > 1e-3 * result.values.norm()


def test_a_map_of_a_focused_map_has_its_region():
    focused = IntegratedGradients(steps=6, focus="cam")
    for changed in (Power(focused, 2.0), Competing(focused, 2)):
        assert torch.equal(explained(changed).region, explained(focused).region)


def test_another_images_region_is_that_of_the_next_name():
    ids, regions = ["c", "a", "d", "b"], region()
    result = explained(get_method("other_cam:ig").with_text({"of.steps": "6"}), ids=ids)
    following = [2, 3, 1, 0]  # c: d, a: b, d: a, b: c
    torch.testing.assert_close(result.values, regions[following] * explained(IG).values, rtol=1e-9, atol=1e-12)
    alone = explained(get_method("other_cam:ig").with_text({"of.steps": "6"}), X[:1])
    expected = region(X[:1]).flip(2, 3) * explained(IG, X[:1]).values
    torch.testing.assert_close(alone.values, expected, rtol=1e-9, atol=1e-12)


def test_a_centre_prior_is_a_gaussian_in_space():
    result, plain = explained(get_method("centre_prior:ig").with_text({"of.steps": "6"})), explained(IG)
    away = ((torch.arange(8, dtype=torch.float64) - 3.5) / 2) ** 2
    weights = (-(away[:, None] + away[None]) / 2).exp()
    torch.testing.assert_close(result.values, weights * plain.values, rtol=1e-12, atol=0)
    with pytest.raises(InputError, match="expected axes in space, which have a centre"):
        fringe.attribute(nn.Linear(4, 3).double().eval(), normal(2, 4), method="centre_prior:ig")


def test_a_power_keeps_the_ranking_and_the_signs():
    result, plain = explained(Power(IG, exponent=1.5)), explained(IG)
    torch.testing.assert_close(result.values, plain.values.sign() * plain.values.abs() ** 1.5, rtol=1e-12, atol=0)
    order = plain.values.flatten(1).argsort(1)
    assert torch.equal(result.values.flatten(1).argsort(1), order)
    assert result.passes == plain.passes
    assert method_label(Power(IG).record()) == "power(1.5):ig"
    assert get_method("power(2):located:fringe") == Power(Located(fringe.FRInGe()), exponent=2.0)


@pytest.mark.parametrize("inner", [IG, fringe.FRInGe(tau=3e-2)])
def test_a_competing_map_is_the_classs_map_less_the_largest_of_the_others(inner):
    logits = MODEL(X).detach()
    target, order = logits.argmin(1), logits.argsort(1, descending=True)  # the class itself need not be probable
    rivals = order[:, :2]
    every = [explained(inner, target=classes) for classes in (target, rivals[:, 0], rivals[:, 1])]
    result = explained(Competing(inner, classes=3), target=target)
    other = torch.maximum(every[1].values, every[2].values)
    torch.testing.assert_close(result.values, every[0].values - other, rtol=1e-6, atol=1e-9)
    left = (every[0].values - other.relu()).relu().flatten(1).sum(1)
    total = every[0].values.relu().flatten(1).sum(1)
    torch.testing.assert_close(result.diagnostics["hidden_share"], 1 - left / total, rtol=1e-6, atol=1e-9)
    if isinstance(inner, fringe.FRInGe):  # one path for all classes
        assert result.passes.forward == every[0].passes.forward
        assert result.passes.vjp > every[0].passes.vjp
    assert result.target.tolist() == target.tolist()


@pytest.mark.parametrize("name", NAMES)
def test_such_a_map_says_that_it_is_not_complete(name):
    method = get_method(name).with_text({"of.steps": "6"})
    record = json.loads(json.dumps(method.record()))
    assert record["complete"] is False
    assert method_of_record(record) == method
    assert not method.is_complete
    result = explained(method)
    assert bool(result.completeness_gap.isnan().all())
    assert result.verdict == ("unchecked",) * 4
    assert all("not complete: the sum of a map of" in advice for advice in result.advice)
    hides = {"located": "what the last layer does not see", "competing": "what speaks as much for another class"}
    if (kind := name.partition(":")[0]) in hides:
        assert record["hides"] == hides[kind]
        assert all(f"it hides {hides[kind]}" in advice for advice in result.advice)
        assert "hidden_share" in result.diagnostics


def test_the_verdict_of_the_path_remains():
    method = fringe.FRInGe(steps=1, until="budget")
    inner, result = explained(method), explained(Power(method))
    assert "short" in inner.verdict
    for before, after, why in zip(inner.verdict, result.verdict, result.advice, strict=True):
        assert after == (before if before in ("short", "stalled", "diverged") else "unchecked")
        assert why.startswith("the path of fringe: ") is (before == after)


def test_what_cannot_be_made_is_refused():
    with pytest.raises(InputError, match="competing:ig compares the class with the other probable ones already"):
        explained("competing:ig", contrast=0, target=1)
    with pytest.raises(InputError, match="classes: got 1, expected a whole number of at least 2"):
        Competing(IG, classes=1)
