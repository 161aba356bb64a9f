"""FRInGe's configuration, and what it refuses."""

import dataclasses
import math

import pytest
import torch
from attribution_toys import Smooth, inputs

import fringe
from fringe.attribution import Diffusion, FRInGeBinary, _fisher_rao, get_method


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tau": 0.0}, "tau: got 0.0, expected a positive number"),
        ({"reference": (0.5, 0.6)}, "reference: each distribution must sum to 1"),
        ({"reference": (1.5, -0.5)}, r"reference: got a smallest of -0.5 in shape \(2,\), expected positive numbers"),
        ({"reference": (1.0, 0.0)}, "reference: got a smallest of 0 .* no softmax reaches a zero"),
        ({"reference": (0.5, 0.500005)}, "reference: each distribution must sum to 1, got 1.00001"),
        ({"reference": ((0.5, 0.5), (0.5, 0.6))}, "reference: each distribution must sum to 1"),
        ({"reference": (((0.5, 0.5),),)}, r"reference: got a smallest of 0.5 in shape \(1, 1, 2\), expected"),
        ({"reference": "uniform"}, r"reference: got 'uniform', expected numbers \(C,\) or \(B, C\)"),
    ],
)
def test_bad_settings_are_named(changes, message):
    with pytest.raises(fringe.InputError, match=message):
        fringe.FRInGe(**changes)


def test_the_old_spelling_of_the_control_names_the_new_one():
    with pytest.raises(
        fringe.InputError, match=r"method: 'diffusion' is a method of its own; write method='diffusion'"
    ):
        get_method("fringe:diffusion")


def test_a_reference_of_another_size_is_named():
    with pytest.raises(fringe.InputError, match=r"reference: got shape \(3,\), expected \(10,\) or \(1, 10\)"):
        fringe.attribute(torch.nn.Flatten(), torch.randn(1, 1, 2, 5), method=fringe.FRInGe(reference=(0.2, 0.3, 0.5)))


def test_a_reference_is_kept_to_the_last_digit_and_sums_to_one():
    assert fringe.FRInGe(reference=torch.tensor([0.25, 0.75])).reference == (0.25, 0.75)
    assert fringe.FRInGe(reference=(0.3, 0.7)).reference == (0.3, 0.7)
    assert fringe.FRInGe(reference=((0.3, 0.7), (0.1, 0.9))).reference == ((0.3, 0.7), (0.1, 0.9))
    assert sum(fringe.FRInGe(reference=(0.5, 0.5000005)).reference) == pytest.approx(1.0, abs=1e-15)


def test_the_fast_preset_takes_few_passes():
    """Of several images, and of one that bears the check of the model alone."""
    for images, most in (("embedded:digits:0:8", 27), ("embedded:digits:3", 32)):
        counts = fringe.explain("embedded:digits", images, method="fringe:fast", telemetry=False, probe=False)
        passes = counts.passes.forward + counts.passes.jvp + counts.passes.vjp
        assert passes / len(counts) <= most


@pytest.mark.parametrize(
    ("method", "structure", "each"),
    [
        (fringe.FRInGe, "image", 3),
        (Diffusion, "image", 3),
        (FRInGeBinary, "image", 3),
        (fringe.FRInGe, "sequence", 7),  # of five classes: four columns of the metric, and the length of the step
    ],
)
def test_planned_passes_are_those_of_its_steps(method, structure, each, monkeypatch):
    """What five more steps cost."""
    monkeypatch.setitem(_fisher_rao.RANK, "sequence", 4)
    every, kind = {"halvings": 0, "structure": structure}, method
    spent = {}
    for steps in (4, 9):
        method = kind(steps=steps, **every)
        passes = fringe.attribute(Smooth(), inputs(1), method=method, telemetry=False).passes
        spent[steps] = passes.forward + passes.jvp + passes.vjp
        assert method.planned_passes == each * steps
    assert spent[9] - spent[4] == 5 * each
    assert kind(until="arrival", max_steps=70, **every).planned_passes == 70 * each
    farthest = 2 * math.acos(0.0) / math.sqrt(2 * 5e-3)  # the distance between two corners of the simplex
    assert kind(tau=5e-3, until="half", **every).planned_passes == pytest.approx(5 * farthest * each)
    assert kind(tau=5e-3, until="budget", **every).planned_passes == pytest.approx(farthest * each)


def test_a_budget_of_more_steps_than_can_be_counted_is_refused():
    assert fringe.FRInGe(tau=1e-37).tau == 1e-37
    with pytest.raises(fringe.InputError, match=r"tau: got 1e-38, expected at least 1e-37"):
        fringe.FRInGe(tau=1e-38)


@pytest.mark.parametrize(
    ("structure", "cap", "rank", "halvings", "until"),
    [("image", 2.0, 1, 3, "half"), ("sequence", 10.0, 16, 8, "arrival"), ("none", 10.0, 16, 8, "arrival")],
)
def test_automatic_settings_follow_the_structure(structure, cap, rank, halvings, until):
    """The cap 0.02 sqrt(n) of images and 0.1 sqrt(n) of others, or 1.5 times that; what is given goes before."""

    def path(**settings):
        return fringe.FRInGe(structure=structure, **settings).path(10_000)

    assert (path().eta_max, path().tau, path().cap, _fisher_rao.RANK[path().structure]) == (4.0, 4e-2, cap, rank)
    assert path(delta_euc="long").cap == pytest.approx(1.5 * cap)
    assert path(delta_euc=0.7).cap == 0.7
    assert path(delta_euc=None).cap is None
    assert (path().halvings, path(halvings=0).halvings) == (halvings, 0)
    assert (path().until, path(steps=9).until) == (until, "budget")
    assert {path(until=given, steps=9).until for given in ("half", "arrival")} == {"half", "arrival"}


def test_classes_that_a_mask_rules_out_are_left_out_by_a_reference():
    """Nothing raises a logit of -1e9: the uniform prediction is out of reach, that over the other classes is not."""
    weights = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def masked(x):
        return torch.cat([x @ weights.T, torch.full((len(x), 2), -1e9, dtype=x.dtype)], 1)

    x = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    method = fringe.FRInGe(structure="none", steps=8)
    result = fringe.attribute(masked, x, method=method)
    far = [
        advice for verdict, advice in zip(result.verdict, result.advice, strict=True) if verdict in ("stalled", "short")
    ]
    assert far
    assert all(
        "give reference=, nearly zero for the 2 classes" in advice and "delta_euc" not in advice for advice in far
    )
    reference = torch.tensor([1.0, 1.0, 1.0, 1e-9, 1e-9], dtype=torch.float64)
    within = fringe.attribute(masked, x, method=dataclasses.replace(method, reference=reference / reference.sum()))
    assert not {"stalled", "short"} & set(within.verdict)
