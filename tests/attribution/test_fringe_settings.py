"""FRInGe's configuration, and what it refuses."""

import dataclasses
import math
import re

import pytest
import torch
from attribution_toys import Smooth, inputs

import fringe
from fringe.attribution._fringe import _PathOfImage, fringe_advice, fringe_verdict
from fringe.paths import TrustRegion


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


def test_a_reference_of_another_size_is_named():
    with pytest.raises(fringe.InputError, match=r"reference: got shape \(3,\), expected \(10,\) or \(1, 10\)"):
        fringe.attribute(torch.nn.Flatten(), torch.randn(1, 1, 2, 5), method=fringe.FRInGe(reference=(0.2, 0.3, 0.5)))


def test_a_reference_is_kept_to_the_last_digit_and_sums_to_one():
    assert fringe.FRInGe(reference=torch.tensor([0.25, 0.75])).reference == (0.25, 0.75)
    assert fringe.FRInGe(reference=(0.3, 0.7)).reference == (0.3, 0.7)
    assert fringe.FRInGe(reference=((0.3, 0.7), (0.1, 0.9))).reference == ((0.3, 0.7), (0.1, 0.9))
    assert sum(fringe.FRInGe(reference=(0.5, 0.5000005)).reference) == pytest.approx(1.0, abs=1e-15)


def test_a_preview_takes_at_most_twenty_passes_an_image():
    """Of several images, and of one that bears the check of the model alone."""
    for images, most in (("embedded:digits:0:8", 17), ("embedded:digits:3", 20)):
        counts = fringe.explain("embedded:digits", images, method="fringe:preview", telemetry=False)
        passes = counts.passes.forward + counts.passes.jvp + counts.passes.vjp
        assert passes / len(counts) <= most


@pytest.mark.parametrize(
    ("settings", "each"),
    [
        ({}, 4),
        ({"fisher_rank": 3}, 6),
    ],
)
def test_planned_passes_are_those_of_its_steps(settings, each):
    """Where every step measures its length and a solve uses all its iterations: what five more steps cost."""
    every = {"feedback": None, "quadrature": "trapezoid", **settings}
    spent = {}
    for steps in (4, 9):
        method = fringe.FRInGe(steps=steps, **every)
        passes = fringe.attribute(Smooth(), inputs(1), method=method, telemetry=False).passes
        spent[steps] = passes.forward + passes.jvp + passes.vjp
        assert method.planned_passes == each * steps
    assert spent[9] - spent[4] == 5 * each
    assert fringe.FRInGe(until="arrival", max_steps=70, **every).planned_passes == 70 * each
    farthest = 2 * math.acos(0.0) / math.sqrt(2 * 5e-3)  # the distance between two corners of the simplex
    assert fringe.FRInGe(tau=5e-3, **every).planned_passes == pytest.approx(5 * farthest * each)
    assert fringe.FRInGe(tau=5e-3, until="budget", **every).planned_passes == pytest.approx(farthest * each)


def test_a_budget_of_more_steps_than_can_be_counted_is_refused():
    assert fringe.FRInGe(tau=1e-37).tau == 1e-37
    with pytest.raises(fringe.InputError, match=r"tau: got 1e-38, expected at least 1e-37"):
        fringe.FRInGe(tau=1e-38)


@pytest.mark.parametrize(
    ("structure", "cap", "rank", "logit", "until"),
    [("image", 1.0, 1, None, "half"), ("sequence", 10.0, 16, 1.0, "arrival"), ("none", 10.0, 16, 1.0, "arrival")],
)
def test_automatic_settings_follow_the_structure(structure, cap, rank, logit, until):
    """The cap 0.01 sqrt(n) of images and 0.1 sqrt(n) of others, or twice that; what is given goes before."""

    def path(**settings):
        return fringe.FRInGe(structure=structure, **settings).path(10_000)

    assert path().trust == TrustRegion(4.0, 4e-2, cap, logit)
    assert path(kl_bound=False, delta_euc="long").trust == TrustRegion(4.0, None, 2 * cap, logit)
    assert path(delta_euc=0.7).trust.delta_euc == 0.7
    assert path(delta_euc=None).trust.delta_euc is None
    assert (path().fisher_rank, path(fisher_rank=3).fisher_rank) == (rank, 3)
    assert (path().until, path(steps=9).until) == (until, "budget")
    assert {path(until=given, steps=9).until for given in ("half", "arrival")} == {"half", "arrival"}


ARRIVAL, BUDGET, OWN = {"until": "arrival"}, {"until": "budget"}, {"reference": (0.25, 0.75)}
PLAIN = {"temperature": 1.0}


@pytest.mark.parametrize(
    ("settings", "path", "verdict", "advice"),
    [
        # half of the divergence; what remains is more than half a nat, and then not
        ({}, {"end": 1.001}, "short", r" lost only 49% of .* uniform .*: use until='arrival', raise delta_euc"),
        ({}, {"end": 1.001, "steps": 29}, "short", r" lost only 49% .*: the path gains nothing more: raise delta_euc"),
        ({}, {"end": 0.999, "steps": 29}, "ok", r" lost 50% of .* \(ok needs 50%\)$"),
        ({}, {"end": 0.999}, "ok", r" lost 50% of .* \(ok needs 50%\)$"),
        (BUDGET, {"end": 0.999}, "ok", r" lost 50% of .* \(ok needs 50%\); to go further, use until='arrival'$"),
        (BUDGET, {"end": 0.501}, "ok", r" lost 74% of .*; to go further,"),
        (BUDGET, {"end": 0.5}, "ok", r" lost 75% of .* \(ok needs 50%\)$"),
        ({}, {"end": 2.2}, "short", r" lost only 0% of"),
        (OWN, {"end": 1.001}, "short", r" lost only 49% of its divergence from the reference"),
        # a twentieth of the distance
        ({}, {"end": 1.9, "share": 0.049}, "stalled", r" only 4\.9% of .* to the uniform .*, or lower damping$"),
        (PLAIN, {"end": 1.9, "share": 0.049}, "stalled", r", or lower damping, or, .*, raise temperature$"),
        ({}, {"end": 1.9, "share": 0.051}, "short", r" lost only 5% of"),
        (OWN, {"end": 1.9, "share": 0.049}, "stalled", r" of the Fisher-Rao distance to the reference \(under 5%\)"),
        ({"steps": 10}, {"end": 1.9, "share": 0.0}, "stalled", r": raise steps, delta_euc or .* lower damping$"),
        (ARRIVAL, {"end": 1.9, "share": 0.0}, "stalled", r": raise delta_euc or .*, or lower damping$"),
        ({**ARRIVAL, **PLAIN}, {"end": 1.9, "share": 0.0}, "stalled", r": raise delta_euc or .*, raise temperature$"),
        (ARRIVAL, {"end": 1.9, "share": 0.0, "steps": 1000}, "stalled", r": raise max_steps, delta_euc or .* damping$"),
        # a twentieth of the change of the score
        ({}, {"residual": 0.05}, "ok", r"sum within 5\.0% of the change of the score;"),
        ({}, {"residual": 0.051}, "coarse", r" by 5\.1%: raise quadrature_depth;"),
        ({}, {"residual": math.nan}, "coarse", ""),
        ({"quadrature": "trapezoid"}, {"residual": 0.051}, "coarse", r": use quadrature='adaptive';"),
        (
            {"quadrature": "trapezoid", "steps": 4},
            {"residual": 0.3},
            "coarse",
            r" by 30\.0%: 4 long steps give a first look; for values that add up use method='fringe'$",
        ),
        ({}, {"residual": 0.051, "end": 1.5}, "coarse", ""),
        # arrival, at a twentieth of a nat; the last step, and before it
        (ARRIVAL, {"end": 0.05}, "ok", r" lost 97% of .* \(arrived\)$"),
        (ARRIVAL, {"end": 0.6}, "ok", r" lost 70% of .* \(ok needs 50%\)$"),
        (ARRIVAL, {"end": 0.6, "steps": 1000}, "ok", r"; to go further, raise max_steps$"),
        (ARRIVAL, {"start": 0.08, "end": 0.051}, "short", r": the path gains nothing more: raise"),
        (ARRIVAL, {"start": 0.08, "end": 0.051, "steps": 1000}, "short", r": raise max_steps, raise delta_euc"),
        (ARRIVAL, {"start": 0.08, "end": 0.05, "share": 0.01}, "ok", r" lost 37% of .* \(arrived\)$"),
        # nothing to explain: it began there, and hardly anything changed
        (
            {},
            {"start": 0.05, "end": 0.026},
            "at_reference",
            r"undecided, 0\.05 nats .*: lower arrival_kl \(now 0\.05\)",
        ),
        ({}, {"start": 0.05, "end": 0.024}, "ok", r" \(arrived\)$"),
        ({}, {"start": 0.051, "end": 0.026}, "ok", r" \(arrived\)$"),
        ({"arrival_kl": 0.1}, {"start": 0.08, "end": 0.06}, "at_reference", ""),
        ({}, {"end": 0.04, "steps": 0}, "at_reference", ""),
        ({}, {"planned": 0, "steps": 0}, "at_reference", r" already is the reference"),
        ({}, {"finite": False, "residual": 1.0}, "diverged", r" not finite after step 30:"),
    ],
)
def test_verdicts_by_number(settings, path, verdict, advice):
    """30 = 5 T steps from 2 nats to 0.2, over half of the distance, with a residual of 1 %, and what differs."""
    one = {"start": 2.0, "end": 0.2, "share": 0.5, "residual": 0.01, "steps": 30, "planned": 6, "finite": True} | path
    method = fringe.FRInGe(**settings)
    where, limit = method.path(128), method.path(128).limit(6)
    steps = one["finite"], one["steps"], one["planned"], limit
    walked = _PathOfImage(*steps, one["start"], one["end"], 2.0, 2.0 - 2.0 * one["share"])
    found = fringe_verdict(where, walked, one["residual"])
    assert found == verdict
    assert re.search(advice, fringe_advice(found, where, method.quadrature, walked, one["residual"]))


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
