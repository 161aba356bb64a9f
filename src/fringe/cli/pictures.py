"""The pictures of an explained input."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fringe.attribution import Trajectory
from fringe.cli.record import Explained, Run, top_classes
from fringe.plots import SheetItem, contact_sheet, geometric_profile, overlay, signed_map, trajectory

SHEET = 24
"""Inputs on the overview."""
_THUMBNAIL = 512

_UNITS = {"logit": "logit", "log_probability": "nats", "probability": "probability"}


def draw(item: Explained, run: Run, folder: Path) -> None:
    """All pictures of one input."""
    image, values = displayed(item.x, run), item.found.values[item.row].cpu().numpy()
    overlay(image, values).savefig(folder / "overlay.png")
    name = run.class_label(item.target)
    signed_map(values, title=f"Evidence for {name}", unit=_unit(item, run)).savefig(folder / "signed.png")
    walked = None if item.found.trajectory is None else item.found.trajectory[item.row]
    if walked is not None:
        _draw_walk(walked, item, run, folder)


def _unit(item: Explained, run: Run) -> str:
    """That of the score for a map that adds up to a difference of scores; a gradient's has none worth a name."""
    adds_up = math.isfinite(float(item.found.completeness_gap[item.row]))
    return _UNITS[run.options.score] if adds_up else ""


def _draw_walk(walked: Trajectory, item: Explained, run: Run, folder: Path) -> None:
    classes, entropy = item.logits.numel(), walked.points["entropy"].numpy()
    images = np.stack([displayed(x, run) for x in walked.snapshots])
    whither = "towards the reference prediction" if run.what == "fringe" else f"by {run.what}"
    title = f"Path from the input {whither}: {run.class_label(item.target)}"
    figure = trajectory(
        entropy / math.log(classes), walked.snapshot_steps.numpy(), images, walked.cumulative.numpy(), title=title
    )
    figure.savefig(folder / "trajectory.png")
    empty = np.array([])
    names = ("fisher_rao_step", "euclidean_step", "active_bound")  # only a trust region has the last one
    radians, length, bound = (walked.steps[n].numpy() if n in walked.steps else empty for n in names)
    if radians.size:
        title = f"Geometry of the path: {run.class_label(item.target)}"
        geometric_profile(radians, length, entropy, bound, title=title).savefig(folder / "profile.png")


def displayed(x: Tensor, run: Run) -> NDArray[Any]:
    """The model's input (C, H, W) as the image (H, W, C) that a person sees."""
    return run.loaded.preprocessing.denormalise(x).clamp(0, 1).permute(1, 2, 0).cpu().numpy()


def cell(item: Explained, run: Run) -> SheetItem:
    """An input of the overview; very large ones thinned, so that they need little memory."""
    best = top_classes(item.logits, run, 1)[0]
    label = run.class_label(best["class"])
    explained = "" if best["class"] == item.target else f", explained: {run.class_label(item.target)}"
    image, values = displayed(item.x, run), item.found.values[item.row].cpu().numpy()
    every = max(1, max(image.shape[:2]) // _THUMBNAIL)
    return SheetItem(
        image=image[::every, ::every],
        values=values[:, ::every, ::every],
        name=item.ref.id,
        prediction=f"{label} · {best['probability']:.1%}{explained}",
        verdict=item.found.verdict[item.row],
    )


def draw_sheet(cells: list[SheetItem], run: Run, total: int, path: Path) -> None:
    """The overview of the first inputs."""
    more = f", first {len(cells)} of {total}" if total > len(cells) else ""
    contact_sheet(cells, title=f"{run.loaded.architecture} · {run.what}{more}").savefig(path)
