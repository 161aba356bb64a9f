"""Maps made of the finished map of another method, against their definitions."""

import json

import pytest
import torch
from torch import nn

import fringe
from fringe import CentrePrior, InputError, IntegratedGradients, Power
from fringe.attribution import get_method, method_label, method_of_record
from toys import build, images, normal

MODEL, X = build(), images(4)
IG = IntegratedGradients(steps=6)
NAMES = ("centre_prior:ig", "power(2):ig")


def explained(method, x=X, **more):
    return fringe.attribute(MODEL, x, method=method, **more)


def test_a_map_of_a_focused_map_has_its_region():
    focused = IntegratedGradients(steps=6, focus="cam")
    assert torch.equal(explained(Power(focused, 2.0)).region, explained(focused).region)


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
    assert get_method("power(2):centre_prior:fringe") == Power(CentrePrior(fringe.FRInGe()), exponent=2.0)


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
    if name == "centre_prior:ig":
        assert record["hides"] == "what is not at the centre"
        assert all("it hides what is not at the centre" in advice for advice in result.advice)


def test_the_verdict_of_the_path_remains():
    method = fringe.FRInGe(steps=1, until="budget")
    inner, result = explained(method), explained(Power(method))
    assert "short" in inner.verdict
    for before, after, why in zip(inner.verdict, result.verdict, result.advice, strict=True):
        assert after == (before if before in ("short", "stalled", "diverged") else "unchecked")
        assert why.startswith("the path of fringe: ") is (before == after)
