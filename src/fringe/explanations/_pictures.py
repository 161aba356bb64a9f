"""The pictures of an explained image, and the contact sheet of a run."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fringe.attribution import Attribution, Trajectory
from fringe.experiments import Comparison
from fringe.metrics import Metric
from fringe.models import Preprocessing
from fringe.plots import (
    GridCell,
    GridRow,
    MetricLabel,
    SheetItem,
    captions,
    class_title,
    comparison_grid,
    contact_sheet,
    geometric_profile,
    labels,
    method_title,
    overlay,
    signed_map,
    trajectory,
)

#: Points of the path in the picture of it.
COLUMNS = 6
#: Images of the contact sheet.
SHEET = 24
_THUMBNAIL = 512
_UNITS = {"logit": "logit", "log_probability": "nats", "probability": "probability"}


def draw_pictures(
    folder: Path, x: Tensor, attribution: Attribution, row: int, record: Mapping[str, Any], recipe: Preprocessing
) -> None:
    """Write all pictures of the image ``x`` (C, H, W), which ``row`` of the attribution explains."""
    image, values = to_image(x, recipe), attribution.values[row].cpu().numpy()
    name = class_label(record["target"])
    unit = "" if record["completeness_gap"] is None else _UNITS[record["score_kind"]]  # no unit for a bare gradient
    method = method_title(record["settings"]["method"])
    overlay(image, values, title=f"{name}: where the evidence lies ({method})", label=name).savefig(
        folder / "overlay.png"
    )
    title = f"{name}: evidence for and against ({method})"
    signed_map(values, title=title, unit=unit, image=image, label=name).savefig(folder / "signed.png")
    path = None if attribution.trajectory is None else attribution.trajectory[row]
    if path is not None:
        _draw_path(folder, path.thinned(COLUMNS), name, record, recipe)


def _draw_path(folder: Path, path: Trajectory, name: str, record: Mapping[str, Any], recipe: Preprocessing) -> None:
    entropy = path.points["entropy"].numpy()
    images = np.stack([to_image(x, recipe) for x in path.snapshots])
    title = f"{name}: how the evidence builds up along the path ({method_title(record['settings']['method'])})"
    share, steps = entropy / math.log(record["classes"]), path.snapshot_steps.numpy()
    trajectory(share, steps, images, path.cumulative.numpy(), title=title, label=name).savefig(
        folder / "trajectory.png"
    )
    empty = np.array([])
    names = ("fisher_rao_step", "euclidean_step", "active_bound")  # only a trust region has the last one
    radians, length, bound = (path.steps[n].numpy() if n in path.steps else empty for n in names)
    if radians.size:
        title = f"{name}: the steps of the path"
        profile = geometric_profile(radians, length, entropy, bound, title=title, classes=record["classes"])
        profile.savefig(folder / "profile.png")


def to_image(x: Tensor, recipe: Preprocessing) -> NDArray[Any]:
    """The model's input (C, H, W) as an image (H, W, C) in [0, 1]."""
    return recipe.denormalise(x).clamp(0, 1).permute(1, 2, 0).cpu().numpy()


def class_label(entry: Mapping[str, Any]) -> str:
    """The name of a recorded class in words, or its number where it has none."""
    return class_title(entry["name"]) if entry["name"] else f"class {entry['class']}"


def contact_cell(tensors: Mapping[str, Tensor], record: Mapping[str, Any], recipe: Preprocessing) -> SheetItem:
    """An image of the contact sheet; very large ones are thinned to save memory."""
    image, values = to_image(tensors["input"], recipe), tensors["values"].cpu().numpy()
    best, target = record["prediction"], record["target"]
    explained = "" if best["class"] == target["class"] else f", explained: {class_label(target)}"
    every = max(1, max(image.shape[:2]) // _THUMBNAIL)
    return SheetItem(
        image=image[::every, ::every],
        values=values[:, ::every, ::every],
        name=record["id"],
        prediction=f"{class_label(best)} · {best['probability']:.1%}{explained}",
        verdict=record["verdict"],
    )


def draw_contact_sheet(cells: Sequence[SheetItem], model: str, method: str, total: int, path: Path) -> None:
    """Write the contact sheet of the first images."""
    more = f", first {len(cells)} of {total}" if total > len(cells) else ""
    contact_sheet(cells, title=f"{model} · {method_title(method)}{more}").savefig(path)


def comparison_row(
    comparison: Comparison, index: int, x: Tensor, entry: Mapping[str, Any], recipe: Preprocessing
) -> GridRow:
    """Image ``index`` of a comparison as a row of the picture."""
    methods = [result for result in comparison.rows if not result.control]
    columns = [
        label.annotations([float(result.scores[label.label].values[index]) for result in methods])
        for label in _labels(comparison.metrics)
    ]
    cells = [
        GridCell(
            None if result.maps is None else result.maps[index].cpu().numpy().copy(),
            words,
            result.faults[index].replace("_", " "),
        )
        for result, words in zip(methods, zip(*columns, strict=True), strict=True)
    ]
    best, target = entry["prediction"], entry["target"]
    prediction = f"{class_label(best)} · {best['probability']:.1%}"
    same = best["class"] == target["class"]
    return GridRow(
        image=to_image(x, recipe),
        name=entry["id"],
        prediction=prediction if same else f"{class_label(target)}, not {prediction}",
        cells=tuple(cells),
    )


def draw_comparison(
    rows: Sequence[GridRow],
    methods: Sequence[str],
    metrics: Mapping[str, Metric],
    title: str,
    pool: int | None,
    path: Path,
) -> None:
    """Write the picture of a comparison."""
    comparison_grid(rows, methods, title=title, caption=captions(_labels(metrics)), pool=pool).savefig(path)


def _labels(metrics: Mapping[str, Metric]) -> list[MetricLabel]:
    return labels([MetricLabel(label, m.name, m.title, m.direction) for label, m in metrics.items()])
