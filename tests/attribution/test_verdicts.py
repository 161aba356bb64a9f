"""What a verdict on a path says, by number, and that who follows its advice gets another verdict."""

import ast
import dataclasses
import math
import re

import pytest
import torch
from torch import nn

import fringe
from fringe.attribution import Diffusion
from fringe.attribution._fisher_rao import Bound
from fringe.attribution._fringe import _PathOfImage, fringe_advice, fringe_verdict
from fringe.data import digits_samples
from fringe.models import load_model
from toys import TanhMLP, normal

ARRIVAL, BUDGET, OWN = {"until": "arrival"}, {"until": "budget"}, {"reference": (0.25, 0.75)}
PLAIN, STRONG, DIFFUSION = {"temperature": 1.0}, {"gamma_prior": 0.1}, {"smooths": True}
ETA, CAP, LOGIT = ({"bound": bound} for bound in (Bound.ETA_MAX, Bound.EUCLIDEAN, Bound.LOGIT))
FEW = {"steps": 4, "planned": 6, "limit": 4}
NEAR = {"start": 0.06, "end": 0.04}


@pytest.mark.parametrize(
    ("settings", "path", "verdict", "advice"),
    [
        # half of the divergence; what remains is more than half a nat, and then not
        ({}, {"end": 1.001}, "short", r" lost only 49% of .* uniform .*: use until='arrival'; or read the map"),
        (BUDGET, {"end": 1.001}, "short", r" lost only 49% of .*: use until='half'; or read"),
        ({}, {"end": 1.001, "steps": 29}, "short", r" lost only 49% .*: use until='arrival'; or read"),
        ({}, {"end": 0.999, "steps": 29}, "ok", r" lost 50% of .* \(ok needs 50%\)$"),
        ({}, {"end": 0.999}, "ok", r" lost 50% of .* \(ok needs 50%\)$"),
        (BUDGET, {"end": 0.999}, "ok", r" lost 50% of .* \(ok needs 50%\); to go further, use until='arrival'$"),
        (BUDGET, {"end": 0.501}, "ok", r" lost 74% of .*; to go further,"),
        (BUDGET, {"end": 0.5}, "ok", r" lost 75% of .* \(ok needs 50%\)$"),
        ({}, {"end": 2.2}, "short", r" lost only 0% of"),
        (OWN, {"end": 1.001}, "short", r" lost only 49% of its divergence from the reference"),
        # what cut the last step, and by how much: 1.6 of 2 nats are left, 4 % or less of the distance is gone
        ({}, {"end": 1.6} | ETA, "short", r": use eta_max=20 \(now 4\); or"),
        ({}, {"end": 1.6} | CAP, "short", r": use until='arrival'; or"),
        ({}, {"end": 1.6, "steps": 29} | CAP, "short", r": use delta_euc=1\.1 \(now 0\.23\); or"),
        ({}, {"end": 1.9, "share": 0.04} | CAP, "stalled", r": use delta_euc=5\.7 \(now 0\.23\)$"),
        ({"delta_euc": 2.0}, {"end": 1.9, "share": 0.0} | CAP, "stalled", r": use delta_euc=1e\+02 \(now 2\)$"),
        ({}, {"end": 1.9, "share": 0.0} | ETA, "stalled", r": use eta_max=2e\+02 \(now 4\)$"),
        (ARRIVAL, {"end": 1.9, "share": 0.04, "steps": 1000} | CAP, "stalled", r": use delta_euc=5\.7"),
        (STRONG, {"end": 1.9, "share": 0.0} | CAP, "stalled", r": use gamma_prior=0\.0006 \(now 0\.1\)$"),
        (STRONG, {"end": 1.9, "share": 0.0} | ETA, "stalled", r": use eta_max="),
        (DIFFUSION | STRONG, {"end": 1.9, "share": 0.0} | CAP, "stalled", r": use delta_euc="),
        # nothing did
        ({}, {"end": 1.9, "share": 0.0} | LOGIT, "stalled", r": use until='arrival'$"),
        (ARRIVAL, {"end": 1.6, "steps": 1000}, "short", r": use max_steps=5000; or"),
        (ARRIVAL | {"max_steps": 4}, {"end": 1.9, "share": 0.04} | FEW | CAP, "stalled", r": use max_steps=100$"),
        (ARRIVAL, {"end": 1.6}, "short", r": the gradient is zero where it ended: use delta_euc=0\.057 \(now 0\.23\)"),
        (ARRIVAL | {"delta_euc": None}, {"end": 1.6}, "short", r" where it ended: use delta_euc='auto'; or"),
        ({"tau": 1e6}, {"end": 2.2, "share": -0.1} | ETA, "stalled", r" too long: use tau=0\.04$"),
        # a twentieth of the distance
        ({}, {"end": 1.9, "share": 0.049}, "stalled", r" only 4\.9% of .* to the uniform prediction \(under 5%\)"),
        (PLAIN, {"end": 1.9, "share": 0.049}, "stalled", r": use until='arrival'$"),
        (PLAIN, {"end": 1.9, "share": 0.049, "softening": 37.3}, "stalled", r" nearly certain: use temperature=37$"),
        ({}, {"end": 1.9, "share": 0.049, "softening": 37.3}, "stalled", r": use until='arrival'$"),
        ({}, {"end": 1.9, "share": 0.051}, "short", r" lost only 5% of"),
        (OWN, {"end": 1.9, "share": 0.049}, "stalled", r" of the Fisher-Rao distance to the reference \(under 5%\)"),
        # a twentieth of the change of the score
        ({}, {"residual": 0.05}, "ok", r"sum within 5\.0% of the change of the score;"),
        ({}, {"residual": 0.051}, "coarse", r" by 5\.1%: use halvings=8 \(now 3\)$"),
        ({}, {"residual": math.nan}, "coarse", ""),
        ({"halvings": 0}, {"residual": 0.051}, "coarse", r": use halvings='auto'$"),
        (
            {"halvings": "line", "steps": 4},
            {"residual": 0.3},
            "coarse",
            r" by 30\.0%: use halvings='auto', or method='fringe'$",
        ),
        ({}, {"residual": 0.051, "end": 1.5}, "coarse", ""),
        # half, however near the reference the path ends
        (ARRIVAL, {"end": 0.05}, "ok", r" lost 97% of .* \(ok needs 50%\)$"),
        (ARRIVAL, {"end": 0.6, "steps": 1000}, "ok", r" lost 70% of .* \(ok needs 50%\)$"),
        (ARRIVAL, NEAR | {"steps": 1000}, "short", r" lost only 33% of"),
        ({}, NEAR, "short", r" lost only 33% of"),
        ({}, NEAR | {"share": 0.01}, "stalled", ""),
        ({}, {"start": 0.04, "end": 0.02}, "ok", r" lost 50% of"),
        # nothing to explain
        ({}, {"planned": 0, "steps": 0}, "at_reference", r" already is the uniform prediction"),
        (OWN, {"planned": 0, "steps": 0}, "at_reference", r" already is the reference"),
        ({}, {"finite": False, "residual": 1.0}, "diverged", r" not finite after step 30: use delta_euc=0\.057 \(now"),
        ({"delta_euc": None}, {"finite": False, "residual": 1.0}, "diverged", r": use delta_euc='auto', or check"),
    ],
)
def test_verdicts_by_number(settings, path, verdict, advice):
    """30 = 5 T steps from 2 nats to 0.2, over half of the distance, with a residual of 1 %, and what differs."""
    one = {"start": 2.0, "end": 0.2, "share": 0.5, "residual": 0.01, "steps": 30, "planned": 6, "finite": True} | path
    method = Diffusion(**STRONG) if settings == DIFFUSION | STRONG else fringe.FRInGe(**settings)
    where, limit = method.path(128), method.path(128).limit(6)
    steps = one["finite"], one["steps"], one["planned"], one.get("limit", limit)
    ends = one["end"], 1.0 - one["end"] / one["start"], one["share"]
    walked = _PathOfImage(*steps, *ends, 0, one.get("bound", Bound.KL), one.get("softening", 1.0))
    found = fringe_verdict(walked, one["residual"])
    assert found == verdict
    assert re.search(advice, fringe_advice(found, where, walked, one["residual"]))


def digits():
    loaded = load_model("embedded:digits")
    return loaded.module, loaded.prepare([sample.image for sample in digits_samples()[:6]])


def bent():
    return TanhMLP(6), 3 * normal(6, 6)


def certain():
    """Two classes, of which one has all probability but 1e-19."""
    model = nn.Linear(4, 2).requires_grad_(False).eval()
    model.weight.copy_(torch.tensor([[4.0, 1.0, -2.0, 0.5], [-4.0, 0.0, 1.0, -0.5]]))
    return model, torch.tensor([[5.0, 3.0, -0.5, 1.0]])


@pytest.mark.parametrize(
    ("data", "settings"),
    [
        *((digits, each) for each in ({"eta_max": 0.05}, {"eta_max": 0.005}, {"damping": 10.0}, {"delta_euc": 0.01})),
        *((digits, each) for each in ({"until": "budget"}, {"steps": 3}, {"until": "arrival", "max_steps": 3})),
        *(
            (digits, each)
            for each in (
                {"gamma_prior": 0.3},
                {"delta_euc": None, "tau": 1e6, "steps": 12, "until": "half", "eta_max": 1e3},
            )
        ),
        (bent, {"delta_euc": None, "tau": 0.3, "halvings": 0}),
        (bent, {"delta_euc": None, "tau": 0.3, "halvings": 1, "quadrature_rtol": 0.05}),
        (certain, {"temperature": 1.0, "max_steps": 30}),
        (certain, {"until": "half", "delta_euc": 0.01}),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_who_follows_the_advice_gets_another_verdict(data, settings):
    """One setting and a value for each map; and after at most three such changes every map is ok."""
    model, x = data()
    todo, advised = [(fringe.FRInGe(**settings), image, None) for image in x.split(1)], 0
    for _ in range(4):
        left = []
        for method, image, before in todo:
            found = fringe.attribute(model, image, method=method, telemetry=False)
            assert found.verdict[0] != before
            if found.verdict[0] != "ok":
                name, value = re.search(r"use (\w+)=('\w+'|True|[\d.e+-]+)", found.advice[0]).groups()
                left.append((dataclasses.replace(method, **{name: ast.literal_eval(value)}), image, found.verdict[0]))
        todo, advised = left, advised + len(left)
    assert advised
    assert not todo


def test_a_path_that_begins_near_the_reference_still_loses_half():
    """From 0.06, 0.04 and 1e-3 nats: 0.05 are no arrival for them."""
    weight = torch.tensor([[1.0, 0.5, -0.3]], dtype=torch.float64)
    model = lambda z: nn.functional.pad(torch.tanh(z @ weight.T), (0, 1))  # noqa: E731
    x = weight / weight.square().sum() * torch.tensor([[0.8], [0.6], [0.09]], dtype=torch.float64).atanh()
    found = fringe.attribute(model, x, method=fringe.FRInGe())
    start = math.log(2) - found.diagnostics["entropy"]
    assert found.settings["until"] == "auto"
    torch.testing.assert_close(start, torch.tensor([0.077, 0.0437, 0.001]).double(), rtol=0.05, atol=0)
    assert (found.diagnostics["endpoint_kl"] <= start / 2).all()
    assert found.verdict == ("ok",) * 3
