"""The figures of the studies: paths of the ablation and of the cap, and the sweep of settings.

(Appendices "Ablation Study Configurations", "Geometric Effect of the Euclidean Trust-Region Cap" and "Hyperparameter
Sensitivity Across Architectures".)
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from paper_studies import CAPPED, UNCAPPED
from paper_sweep import SweepLine, one_at_a_time, sweep_lines
from torch import Tensor

import fringe
from fringe.attribution import Attributor
from fringe.bench.experiments import Results
from fringe.bench.tuning import OBJECTIVE
from fringe.plots import PathRecord, SweepCurve, SweepPanel, plot_profiles, plot_sensitivity, plot_variants

#: Points of a path that are shown, both ends among them.
SHOWN = 6
#: Pixels: the standard deviation of the method's own blur, its preconditioner's. The paper gives none for its maps.
SIGMA = 1.0
#: Titles of the methods and variants of the studies in a figure.
TITLES = {
    "ig": "IG",
    "no_cap": "FRInGe without cap",
    "cap": "FRInGe with cap",
    "euclidean": "Euclidean tracking",
    "fisher_rao_unregularized": "Unregularised Fisher–Rao",
    "fringe": "Full FRInGe",
    "gamma_step_only": "gamma_step only",
    "gamma_prior_only": "gamma_prior only",
    "non_geometric": "non-geometric",
    "diffusion": "diffusion (control)",
}


def blur_change(points: Tensor, start: Tensor) -> Tensor:
    """Map where ``points`` (M, C, H, W) differ from ``start`` (C, H, W), as (M, H, W) in [0, 1].

    The absolute change, averaged over the channels, under a Gaussian of ``SIGMA`` pixels, divided by its largest entry
    over all points; zero where nothing changed. The paper shows a "normalized blur-change map relative to the initial
    image" and gives no formula: this is our reading of its words.
    """
    from fringe._numbers.filters import gaussian_blur

    blurred = gaussian_blur((points - start).abs().mean(1, keepdim=True), SIGMA)[:, 0]
    largest = blurred.max()
    return blurred if largest == 0 else blurred / largest


def path_record(
    label: str, method: Attributor, model: torch.nn.Module, x: Tensor, space: fringe.InputSpace, seed: int
) -> PathRecord | None:
    """The path of a method on an image (1, C, H, W); None for a method that records none."""
    result = fringe.attribute(model, x, method=method, telemetry=SHOWN, seed=seed, space=space)
    path = None if result.trajectory is None else result.trajectory[0]
    if path is None:
        return None
    points, classes = path.snapshots, len(path.probabilities[0]) if path.probabilities is not None else 2
    low, high = (bound.cpu() for bound in space.bounds(x))
    steps = {name: column.numpy() for name, column in path.steps.items()}
    return PathRecord(
        label=label,
        entropy=path.points["entropy"].numpy() / math.log(classes),
        snapshot_steps=path.snapshot_steps.numpy(),
        images=((points - low) / (high - low)).clamp(0, 1).permute(0, 2, 3, 1).numpy(),
        changes=blur_change(points, points[0]).numpy(),
        attribution=result.values[0].cpu().numpy(),
        verdict=result.verdict[0],
        **{name: steps.get(name, np.empty(0)) for name in ("fisher_rao_step", "euclidean_step", "active_bound")},
    )


def draw_paths(study: str, records: list[PathRecord], title: str, path: Path) -> Path:
    """Draw the paths of the ablation, or those of the cap, of one image."""
    if study == "cap":
        by_label = {record.label: record for record in records}
        records = [by_label[label] for label in ("ig", UNCAPPED, CAPPED) if label in by_label]
    named = [replace(record, label=TITLES.get(record.label, record.label)) for record in records]
    figure = (plot_profiles if study == "cap" else plot_variants)(named, title=title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def sweep(base: Attributor, results: Results, model: str) -> dict[str, SweepLine]:
    """The objective along each factor. An image without a score under every setting, such as one that cannot be read,
    is left out of all; a setting that lacks a score of another image has failed: its mean would be over other images.
    """
    columns = {label: {name: results.scores(model, label, name) for name in OBJECTIVE} for label in one_at_a_time(base)}
    known = np.stack([np.isfinite([*column.values()]).all(0) for column in columns.values()])
    images = np.asarray(known.any(0))
    scores = {
        label: {name: values[images].tolist() for name, values in column.items()} if images.any() else None
        for label, column in columns.items()
    }
    return sweep_lines(base, scores)


def draw_sweep(lines: Mapping[str, Mapping[str, SweepLine]], path: Path) -> Path:
    """Draw the lines of all networks, and write their numbers beside them as CSV."""

    def curve(model: str, line: SweepLine) -> SweepCurve:
        return SweepCurve(model, line.values, line.objective, line.low, line.high, line.centre, line.centre_objective)

    factors = dict.fromkeys(factor for of_model in lines.values() for factor in of_model)
    panels = [
        SweepPanel(factor, tuple(curve(model, of[factor]) for model, of in lines.items() if factor in of))
        for factor in factors
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    plot_sensitivity(panels, title="One setting varied at a time").savefig(path)
    rows = [
        ",".join(map(str, (model, line.factor, *numbers)))
        for model, of in lines.items()
        for line in of.values()
        for numbers in zip(line.values, line.objective, line.low, line.high, strict=True)
    ]
    path.with_suffix(".csv").write_text("\n".join(["model,factor,value,objective,low,high", *rows]) + "\n")
    return path
