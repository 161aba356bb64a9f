"""Maps, scores, verdicts and passes of every method, frozen: a restructuring must not move them.

``python tests/contract/test_golden_maps.py`` writes the files anew. Do that only for a change that is meant to move
numbers, and say in its message which ones and why.
"""

import json
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
import torch
from golden_runs import as_json
from safetensors.torch import load_file, save_file

import fringe
from fringe.attribution import PaperFRInGe, Variant
from fringe.data import digits_samples
from fringe.models import load_model

HERE = Path(__file__).parent
MAPS, NUMBERS = HERE / "golden_maps.safetensors", HERE / "golden_maps.json"
TOLERANCE = 1e-6
"""Relative, in float64: sums may be taken in another order, and maps are stored in single precision."""

BUDGET = {"tau": 3e-2, "until": "budget", "temperature": 1.0}
FAST = {**BUDGET, "gamma_prior": 1e-3}
GIVEN = tuple((k + 1) / 55 for k in range(10))

# label: the method's name, its settings, and what the call is given beside
CASES = {
    "agi": ("agi", {"steps": 3, "classes": 2}, {}),
    "agi official": ("agi", {"steps": 3, "classes": 1, "mode": "official"}, {}),
    "blur_ig": ("blur_ig", {"steps": 6}, {"telemetry": True}),
    "blur_ig derivative": ("blur_ig", {"steps": 6, "mode": "derivative"}, {}),
    "expected_gradients": ("expected_gradients", {"samples": 6}, {}),
    "fringe": ("fringe", FAST, {"telemetry": True}),
    "fringe default": ("fringe", {}, {}),
    "fringe feedback": ("fringe", BUDGET, {"batch_size": 2}),
    "fringe half": ("fringe", {"delta_euc": 0.2, "temperature": 1.0}, {"telemetry": True, "batch_size": 2}),
    "fringe softened": ("fringe", {"delta_euc": 0.2}, {"telemetry": True, "batch_size": 2}),
    "fringe temperature": ("fringe", {**FAST, "temperature": 3.0}, {"telemetry": True}),
    "fringe batch": ("fringe", FAST, {"batch_size": 2}),
    "fringe adaptive": ("fringe", {**FAST, "quadrature_rtol": 1e-3, "halvings": 8}, {}),
    "fringe arrival": ("fringe", {**FAST, "until": "arrival", "max_steps": 12}, {"telemetry": True}),
    "fringe reference": ("fringe", {**FAST, "reference": GIVEN}, {}),
    "fringe reference each": ("fringe", {**FAST, "reference": (GIVEN, GIVEN[::-1], (0.1,) * 10)}, {}),
    "fringe targets": ("fringe", FAST, {"target": [3, 0, 7], "score": "log_probability"}),
    "diffusion": ("diffusion", BUDGET, {}),
    "paper": ("paper", {"tau": 1e-2}, {"telemetry": True, "batch_size": 2}),
    "paper products": ("paper", {"tau": 1e-2, "cg_iterations": 6}, {"target": [3, 0, 7], "score": "log_probability"}),
    "released": ("released", {"tau": 1e-2, "cg_iterations": 2}, {}),
    "fringe focus": ("fringe", {**BUDGET, "focus": "cam"}, {}),
    "fringe_b": ("fringe_b", BUDGET, {"telemetry": True}),
    "guided_ig": ("guided_ig", {"steps": 5}, {"telemetry": True}),
    "guided_ig notebook": ("guided_ig", {"steps": 5, "fraction": 0.4, "max_dist": 1.0}, {"batch_size": 2}),
    "geoig_knn": ("geoig_knn", {"neighbours": 2, "order": 2}, {"target": [1, 1, 4]}),
    "geoig_knn euclidean": ("geoig_knn", {"neighbours": 2, "order": 2, "metric": "euclidean"}, {"telemetry": True}),
    "geoig_svi": ("geoig_svi", {"steps": 6, "iterations": 2}, {}),
    "ggig": ("ggig", {"intervals": 4, "iterations": 3}, {}),
    "ggig trapezoid": (
        "ggig",
        {"intervals": 4, "iterations": 3, "aggregate": "trapezoid", "input_factor": "difference"},
        {"baseline": 0.3},
    ),
    "idg": ("idg", {"steps": 5}, {"telemetry": True}),
    "idg official": ("idg", {"steps": 5, "mode": "official"}, {}),
    "ig": ("ig", {"steps": 8}, {"telemetry": True, "target": [2, 2, 2]}),
    "ig gauss": ("ig", {"steps": 5, "rule": "gausslegendre", "baseline": "uniform"}, {"score": "probability"}),
    "ig2": ("ig2", {"steps": 5, "references": 2}, {}),
    "ig2 few": ("ig2", {"steps": 4, "references": 3}, {"telemetry": True, "batch_size": 4}),
    "smoothgrad": ("smoothgrad", {"samples": 4}, {}),
    "smoothgrad square": ("smoothgrad", {"samples": 4, "square": True}, {"seed": 3}),
    "rise": ("rise", {"masks": 9, "cells": 3}, {"batch_size": 4}),
    "spectral_ig": ("spectral_ig", {"steps": 6}, {"telemetry": True}),
    "spectral_ig overlap": ("spectral_ig", {"steps": 5, "overlap": 0.8}, {"baseline": 0.3}),
    "smooth": ("smooth", {"of": fringe.IntegratedGradients(steps=6), "sigma": 1.5}, {"telemetry": True}),
    "smooth smoothgrad": ("smooth", {"of": fringe.SmoothGrad(samples=3)}, {}),
    "straight": ("straight", {"of": fringe.FRInGe(**FAST), "steps": 6}, {"telemetry": True}),
    "straight guided_ig": ("straight", {"of": fringe.GuidedIG(steps=5, baseline="blur"), "steps": 4}, {"seed": 2}),
    "gradcam": ("gradcam", {}, {"batch_size": 2}),
    "gradcam layer": ("gradcam", {"layer": "features.6"}, {"target": [3, 0, 7]}),
    "captum occlusion": ("captum", {"algorithm": "occlusion", "window": 8}, {}),
    "captum gradient_shap": ("captum", {"algorithm": "gradient_shap", "samples": 5}, {}),
    "captum deep_lift": ("captum", {"algorithm": "deep_lift"}, {}),
    "captum guided_backprop": ("captum", {"algorithm": "guided_backprop"}, {"score": "log_probability"}),
    "captum kernel_shap": (
        "captum",
        {"algorithm": "kernel_shap", "samples": 40, "segments": 9, "superpixels": "grid"},
        {"baseline": 0.3},
    ),
    "captum input_x_gradient": ("captum", {"algorithm": "input_x_gradient"}, {}),
}
PRESETS = ("resnet18", "vgg19")


def method_of(label):
    kind, _, rest = label.partition(" ")
    if kind == "variant":
        return PaperFRInGe(tau=1e-2).variant(rest), {}
    if kind == "preset":
        return PaperFRInGe.preset(rest), {"telemetry": True}
    name, settings, given = CASES[label]
    return fringe.METHODS[name](**settings), given


LABELS = [*CASES, *(f"variant {name}" for name in get_args(Variant)[1:]), *(f"preset {name}" for name in PRESETS)]


@cache
def digits():
    loaded, samples = load_model("embedded:digits"), digits_samples()
    x = loaded.prepare([samples[i].image for i in (0, 101, 203)]).double()
    references = loaded.prepare([samples[i].image for i in range(5, 360, 61)]).double()
    low, high = loaded.preprocessing.bounds()
    space = fringe.InputSpace(low.double(), high.double(), references=references)
    return loaded.module.double(), x, space


def pooled(maps):
    """Maps at half the resolution, and each map's norm, so that nothing can hide between the pixels: (B, P + 1)."""
    norm = maps.flatten(1).norm(dim=1, keepdim=True)
    return torch.cat([torch.nn.functional.avg_pool2d(maps, 2).flatten(1), norm], 1).float()


def explained(label):
    """The maps of a case, and everything else that it says, as plain data."""
    method, given = method_of(label)
    model, x, space = digits()
    found = fringe.attribute(model, x, method=method, space=space, ids=["a", "b", "c"], **given)
    numbers = {
        "target": found.target.tolist(),
        "score": found.score.tolist(),
        "endpoint_score": found.endpoint_score.tolist(),
        "completeness_gap": found.completeness_gap.tolist(),
        "diagnostics": {name: column.tolist() for name, column in found.diagnostics.items()},
    }
    exact = {"verdict": list(found.verdict), "passes": vars(found.passes)}
    if given.get("telemetry"):
        exact["trajectory"] = [
            [sorted(t.points), sorted(t.steps), t.snapshot_steps.tolist(), len(t.points["score"])]
            for t in found.trajectory
        ]
        numbers["path"] = [{n: float(c.sum()) for n, c in {**t.points, **t.steps}.items()} for t in found.trajectory]
        numbers["cumulative"] = [t.cumulative.flatten(1).norm(dim=1).tolist() for t in found.trajectory]
    return pooled(found.values), {"numbers": numbers, "exact": exact}


def scored():
    """Scores of the maps of Integrated Gradients under every metric that is computed by default."""
    model, x, space = digits()
    metrics = sorted(name for name, metric in fringe.METRICS.items() if metric.by_default)
    ig = fringe.IntegratedGradients(steps=4)
    found = fringe.compare(model, x, [ig], metrics, space=space, ids=["a", "b", "c"])
    return {row.label: {name: scores.values.tolist() for name, scores in row.scores.items()} for row in found.rows}


def nan_free(value):
    """JSON has no NaN."""
    if isinstance(value, dict):
        return {key: nan_free(v) for key, v in value.items()}
    if isinstance(value, list):
        return [nan_free(v) for v in value]
    return None if isinstance(value, float) and value != value else value


def agree(mine, stored, path=""):
    """The same structure, and numbers within the tolerance."""
    if isinstance(stored, dict):
        assert sorted(mine) == sorted(stored), path
        for key in stored:
            agree(mine[key], stored[key], f"{path}/{key}")
    elif isinstance(stored, list):
        assert len(mine) == len(stored), path
        for i, (a, b) in enumerate(zip(mine, stored, strict=True)):
            agree(a, b, f"{path}/{i}")
    elif stored is None:
        assert mine is None, path
    else:
        assert mine == pytest.approx(stored, rel=TOLERANCE, abs=TOLERANCE), path


@cache
def golden():
    return load_file(MAPS), json.loads(NUMBERS.read_text())


@pytest.mark.parametrize("label", LABELS)
def test_a_map_is_what_it_was(label):
    maps, said = explained(label)
    frozen_maps, frozen = golden()
    assert (maps - frozen_maps[label]).norm() <= TOLERANCE * frozen_maps[label].norm()
    assert said["exact"] == frozen["cases"][label]["exact"]
    agree(nan_free(said["numbers"]), frozen["cases"][label]["numbers"])


def test_scores_are_what_they_were():
    agree(nan_free(scored()), golden()[1]["scores"])


def test_a_small_change_is_seen():
    maps = golden()[0]["ig"]
    assert ((1 + 1e-5) * maps - maps).norm() > TOLERANCE * maps.norm()


if __name__ == "__main__":
    found = {label: explained(label) for label in LABELS}
    save_file({label: maps.contiguous() for label, (maps, _) in found.items()}, MAPS)
    cases = {label: said for label, (_, said) in found.items()}
    NUMBERS.write_text(as_json(nan_free({"cases": cases, "scores": scored()})) + "\n")
