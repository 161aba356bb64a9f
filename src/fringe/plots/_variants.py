"""Paths of a method's variants under each other: where each moves the prediction, and where it acts in the picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fringe.plots._maps import display_scale, picture, show, show_signed, spatial
from fringe.plots._style import (
    BLUE,
    INK,
    LABEL,
    MUTED,
    RULE,
    TICK,
    TITLE,
    frame,
    new_figure,
    note,
    printable,
    text_style,
    tidy,
)

NAMES = {
    "euclidean": "Euclidean tracking",
    "fisher_rao_unregularized": "Unregularised Fisher–Rao",
    "fringe": "Full FRInGe",
    "gamma_step_only": "gamma_step only",
    "gamma_prior_only": "gamma_prior only",
    "non_geometric": "non-geometric",
    "diffusion": "diffusion (control)",
}
"""What the paper's variants are called in a figure. A band of another label shows the label itself."""

CHANGES = "inferno"
"""Colours of the blur-change maps: dark is no change."""


@dataclass(frozen=True)
class Band:
    """The path of one variant: ``entropy`` (T + 1,) in units of log C, the pictures ``images`` (M, H, W, 1 or 3) in
    [0, 1] and the blur-change maps ``changes`` (M, H, W) in [0, 1] after ``snapshot_steps`` (M,) steps, the first of
    them 0, and the final ``attribution`` (C, H, W). ``verdict`` is shown unless it is "ok"."""

    label: str
    entropy: NDArray[Any]
    snapshot_steps: NDArray[Any]
    images: NDArray[Any]
    changes: NDArray[Any]
    attribution: NDArray[Any]
    verdict: str = ""


_CURVE, _TILE, _GAP, _APART = 1.75, 0.84, 0.05, 0.14
"""Inches: the width of a curve, a picture, the gap between two of a kind, and that between kinds."""
_MARGIN, _LEFT, _RIGHT, _TOP, _BOTTOM, _TITLE, _LINE = 0.1, 0.48, 0.12, 0.12, 0.42, 0.28, 0.16
_LABEL, _BELOW = 0.21, 0.24
"""Inches: the words above a band, and the numbers of the axis below it."""
_LETTERS = 18
"""Letters of the caption that an inch holds at least."""
_SMALL = TICK - 0.5
"""Points: what is written in every band."""
_CAPTION = (
    "entropy in units of ln C · change since the input, blurred, in units of the band's largest (dark: none) · "
    "attribution: red for the class, blue against it, own scale"
)


def draw_variants(rows: Sequence[Band], path: Path | None = None, *, title: str = "") -> Figure:
    """A band a variant: its entropy curve with the waypoints marked; the input; the blur-change map of each later
    waypoint; the picture where the path ended; the signed attribution map. Saved under ``path`` if one is given.

    All bands share the axis of steps. Blur-change maps are drawn from 0 to 1, that is in units of the largest change
    of their own band; each attribution map on its own scale.
    """
    if not rows:
        raise ValueError("draw_variants: no bands")
    for band in rows:
        _check(band)
    waypoints = max(len(band.snapshot_steps) for band in rows)
    tall = _TILE * min(max(rows[0].changes.shape[1] / rows[0].changes.shape[2], 0.4), 2.5)
    sheet = _Sheet(waypoints, tall, len(rows), title)
    last = max(len(band.entropy) for band in rows) - 1
    for place, band in enumerate(rows):
        _draw(sheet, place, band, last, lowest=place == len(rows) - 1)
    if path is not None:
        sheet.figure.savefig(path)
    return sheet.figure


def _check(band: Band) -> None:
    count = {len(band.snapshot_steps), len(band.images), len(band.changes)}
    if len(count) != 1 or not len(band.snapshot_steps) or band.snapshot_steps[0] != 0:
        raise ValueError(
            f"draw_variants: {band.label!r} has {len(band.snapshot_steps)} steps, {len(band.images)} images and "
            f"{len(band.changes)} maps, expected as many of each, the first at step 0"
        )


class _Sheet:
    """The figure and where things stand on it, in inches from its upper left corner."""

    def __init__(self, waypoints: int, tall: float, bands: int, title: str):
        self.tall, self.band = tall, _LABEL + tall + _BELOW
        self.first = _LEFT + _CURVE + 2 * _APART
        changes = (waypoints - 1) * (_TILE + _GAP) - _GAP + _APART if waypoints > 1 else 0.0
        self.end = self.first + _TILE + _APART + changes
        self.width = self.end + 2 * _TILE + _GAP + _RIGHT
        caption = wrap(_CAPTION, int((self.width - _MARGIN - _RIGHT) * _LETTERS))
        above = _TOP + (_TITLE if title else 0.0)
        self.head = above + len(caption) * _LINE + 0.12
        self.height = self.head + bands * self.band - _BELOW + _BOTTOM
        self.figure = new_figure(self.width, self.height)
        self.write(
            _MARGIN, _TOP, printable(title, int(self.width * 10)), text_style(TITLE, va="top", fontweight="bold")
        )
        for line, text in enumerate(caption):
            self.write(_MARGIN, above + line * _LINE, text, text_style(_SMALL, MUTED, va="top"))

    def top(self, band: int) -> float:
        return self.head + band * self.band + _LABEL

    def place(self, left: float, top: float, wide: float) -> Axes:
        box = (left / self.width, 1 - (top + self.tall) / self.height, wide / self.width, self.tall / self.height)
        return self.figure.add_axes(box)

    def tile(self, left: float, band: int, name: str, colour: str = MUTED) -> Axes:
        axes = self.place(left, self.top(band), _TILE)
        frame(axes)
        axes.set_title(name, pad=3, **text_style(_SMALL, colour))
        return axes

    def name(self, band: int, label: str, verdict: str) -> None:
        """The heading of a band, and quietly after it what is to be said of its map."""
        above = self.top(band) - 0.07
        bold = text_style(LABEL, INK, va="baseline", fontweight="bold")
        end = self.write(_MARGIN, above, printable(label, 27), bold).get_window_extent().x1 / self.figure.dpi
        self.write(end + 0.08, above, verdict.replace("_", " "), text_style(_SMALL, MUTED, va="baseline"))

    def write(self, left: float, top: float, text: str, style: dict[str, Any]) -> Text:
        return self.figure.text(left / self.width, 1 - top / self.height, text, **style)


def _draw(sheet: _Sheet, place: int, band: Band, last: int, lowest: bool) -> None:
    sheet.name(place, NAMES.get(band.label, band.label), "" if band.verdict == "ok" else band.verdict)
    steps = np.asarray(band.snapshot_steps)
    _draw_curve(sheet.place(_LEFT, sheet.top(place), _CURVE), np.asarray(band.entropy), steps, last, lowest)
    show(sheet.tile(sheet.first, place, "input"), picture(band.images[0]))
    for column, step in enumerate(steps[1:]):
        left = sheet.first + _TILE + _APART + column * (_TILE + _GAP)
        axes = sheet.tile(left, place, f"step {step}")
        axes.imshow(band.changes[column + 1], cmap=CHANGES, vmin=0.0, vmax=1.0, interpolation="antialiased")
    show(sheet.tile(sheet.end, place, "end"), picture(band.images[-1]))
    _draw_map(sheet.tile(sheet.end + _TILE + _GAP, place, "attribution", INK), band)


def _draw_map(axes: Axes, band: Band) -> None:
    plane = spatial(band.attribution)
    scale = display_scale(plane)
    show_signed(axes, plane, scale)
    if scale == 0:
        note(axes, "zero" if np.isfinite(plane).any() else "not finite")


def _draw_curve(axes: Axes, entropy: NDArray[Any], steps: NDArray[Any], last: int, lowest: bool) -> None:
    tidy(axes)
    along = np.arange(len(entropy))
    axes.plot(along, entropy, color=BLUE, linewidth=1.5, solid_capstyle="round")
    axes.fill_between(along, entropy, color=BLUE, alpha=0.08, linewidth=0)
    axes.vlines(steps, 0, entropy[steps], color=RULE, linewidth=0.7)
    around: dict[str, Any] = {"markeredgecolor": "white", "markeredgewidth": 0.7, "clip_on": False, "zorder": 5}
    axes.plot(steps, entropy[steps], "o", color=BLUE, markersize=4, **around)
    axes.set_xlim(-0.03 * max(last, 1), 1.03 * max(last, 1))
    axes.set_ylim(0, max([1.04, *(1.04 * entropy[np.isfinite(entropy)])]))
    axes.set_yticks([0, 0.5, 1])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    if lowest:
        axes.set_xlabel("step", labelpad=1, **text_style(TICK, MUTED))
