"""The figures of the studies, as files, and the numbers behind them."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fringe._files import require_local
from fringe._text import to_csv
from fringe.experiments import Plan, Resolved, Results
from fringe.paper.plans import CAP, NO_CAP, OBJECTIVE, first
from fringe.paper.walks import walks
from fringe.plots import PathRecord, SweepCurve, SweepPanel, plot_profiles, plot_sensitivity, plot_variants
from fringe.tuning import SweepLine, one_at_a_time, sweep_lines

ORDER = ("ig", NO_CAP, CAP)
"""Of the paper's figure of geometric profiles."""


def draw_trajectories(resolved: Resolved, images: int, out: Path, *, device: str = "cpu") -> list[Path]:
    """A figure for each model and each of the first ``images``: where the plan's variants walked."""
    paths: list[Path] = []
    for model, place, image, found in _walked(resolved, images, device):
        path = _place(out, f"trajectories-{_safe(model)}-{place}.png")
        plot_variants(found, title=f"{model}: {image}").savefig(path)
        paths.append(path)
    return paths


def draw_cap(resolved: Resolved, images: int, out: Path, *, device: str = "cpu") -> list[Path]:
    """A figure for each model and each of the first ``images``: step lengths and entropy of IG, and of FRInGe without
    and with the Euclidean cap."""
    paths: list[Path] = []
    for model, place, image, found in _walked(resolved, images, device):
        by_label = {walk.label: walk for walk in found}
        path = _place(out, f"profiles-{_safe(model)}-{place}.png")
        columns = [by_label[label] for label in ORDER if label in by_label]
        plot_profiles(columns, title=f"{model}: {image}").savefig(path)
        paths.append(path)
    return paths


def draw_sweep(base: Plan, results: Results, factors: Mapping[str, Sequence[Any]] | None, out: Path) -> list[Path]:
    """The sensitivity figure of all models, and its numbers as CSV. ``base`` is the plan that the sweep varies."""
    lines = {arm.label: _lines(arm.label, first(arm), results, factors) for arm in base.arms}
    names = dict.fromkeys(factor for found in lines.values() for factor in found)
    panels = [
        SweepPanel(factor, tuple(_curve(model, found[factor]) for model, found in lines.items() if factor in found))
        for factor in names
    ]
    figure, table = _place(out, "sensitivity.png"), _place(out, "sensitivity.csv")
    images = max((cell.scored for cell in results.coverage()), default=0)
    plot_sensitivity(panels, title=f"One setting varied at a time, {images} images").savefig(figure)
    columns = ("factor", "value", "objective", "low", "high")
    rows = [
        {"model": model, **dict(zip(columns, (line.factor, *row), strict=True))}
        for model, found in lines.items()
        for line in found.values()
        for row in zip(line.values, line.objective, line.low, line.high, strict=True)
    ]
    table.write_text(to_csv(rows, ("model", *columns)), encoding="utf-8", newline="")
    return [figure, table]


def _lines(
    model: str, base: Any, results: Results, factors: Mapping[str, Sequence[Any]] | None
) -> dict[str, SweepLine]:
    """The objective along each factor. An image that has a score under no setting, as one that cannot be read, is left
    out of all; a setting without a score of another image is failed, as its mean would be one of other images."""
    columns = {
        label: {name: results.scores(model, label, name) for name in OBJECTIVE}
        for label in one_at_a_time(base, factors)
    }
    known = np.stack([np.isfinite([*found.values()]).all(0) for found in columns.values()])
    images = np.asarray(known.any(0))
    scores = {
        label: {name: column[images].tolist() for name, column in found.items()} if images.any() else None
        for label, found in columns.items()
    }
    return sweep_lines(base, scores, factors)


def _walked(resolved: Resolved, images: int, device: str) -> list[tuple[str, int, str, tuple[PathRecord, ...]]]:
    if images == 0:
        return []
    names = {image["digest"]: image["id"] for image in resolved.manifest.images}
    count = min(images, len(names))
    return [
        (arm.label, place, names[image], found)
        for arm in resolved.plan.arms
        for place, (image, found) in enumerate(walks(resolved, arm.label, count, device=device).items(), start=1)
    ]


def _curve(model: str, line: SweepLine) -> SweepCurve:
    return SweepCurve(model, line.values, line.objective, line.low, line.high, line.centre, line.centre_objective)


def _safe(model: str) -> str:
    """A model's label as a part of a file's name."""
    return re.sub(r"[^\w.-]", "_", model)


def _place(out: Path, name: str) -> Path:
    require_local("out", out)
    out.mkdir(parents=True, exist_ok=True)
    return out / name
