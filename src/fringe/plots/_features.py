"""Attributions of tables and of series: bars with names and values, and lines over strips of evidence."""

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from numpy.typing import ArrayLike, NDArray

from fringe.plots._layout import Canvas, fitted, open_sheet, root, text_width
from fringe.plots._maps import DIVERGING
from fringe.plots._style import INK, LABEL, MUTED, TICK, Style, annotate, despine, quoted, sanitise, text_style

#: Features that bars are drawn of, and channels that lines are drawn of; the others are summed, or left out.
MOST_BARS, MOST_CHANNELS = 12, 6
#: Inches of a picture, of a bar with its gap, of a channel, of the longest name, and between a bar and its number.
_WIDTH, _BAR, _CHANNEL, _NAME, _BESIDE = 5.6, 0.27, 1.35, 2.4, 0.05


def feature_bars(
    names: Sequence[str],
    values: ArrayLike,
    *,
    inputs: ArrayLike | None = None,
    title: str = "",
    label: str = "",
    note: str = "",
    ax: Canvas | None = None,
) -> Figure:
    """Draw the attribution (F,) of a row of a table: one bar for each feature, the strongest first; positive values
    speak for the class. Of more than 12 features, the weakest share the last bar.

    ``inputs`` (F,) stand beside the names, ``label`` is the name of the class, ``note`` a further sentence of the
    caption, and ``ax`` where to draw in place of a new figure. Raises ValueError if the numbers of names and values
    differ.
    """
    strength = _finite(np.asarray(values, dtype=np.float64))
    if strength.shape != (len(names),) or not len(names):
        raise ValueError(f"values: got shape {strength.shape} for {len(names)} names")
    ends = [""] * len(names) if inputs is None else [f" = {float(v):.4g}" for v in np.asarray(inputs)]
    words = [(sanitise(name, 400), end) for name, end in zip(names, ends, strict=True)]
    order = sorted(range(len(words)), key=lambda k: -abs(np.nan_to_num(strength[k])))
    rows = [(words[k], float(strength[k])) for k in order]
    if len(rows) > MOST_BARS:
        rest = rows[MOST_BARS - 1 :]
        rows = [*rows[: MOST_BARS - 1], ((f"sum of {len(rest)} others", ""), sum(v for _, v in rest))]
    caption = [f"Red bars speak for {quoted(label)}, blue bars against it.", *([note] if note else [])]
    sheet = open_sheet(_WIDTH, _BAR * len(rows) + 0.35, title=title, caption=caption, ax=ax)
    left = min(_NAME, 0.55 * sheet.width, max(text_width("".join(row), LABEL) for row, _ in rows) + 0.15)
    axes = sheet.add_axes(left, 0, sheet.width - left, max(sheet.height - 0.35, 0.1))
    axes.barh(range(len(rows)), [v for _, v in rows], height=0.72, color=[_sided(v) for _, v in rows])
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    numbers = [f"{v:+.3g}".replace("-", "\N{MINUS SIGN}") for _, v in rows]
    drawn = [v for _, v in rows if np.isfinite(v)]
    low, high = min(0.0, *drawn, 0.0), max(0.0, *drawn, 0.0)
    wide = [(text_width(number, TICK), v) for number, (_, v) in zip(numbers, rows, strict=True)]
    before = max((w for w, v in wide if v < 0), default=0.0) + 2 * _BESIDE
    behind = max((w for w, v in wide if v >= 0), default=0.0) + 2 * _BESIDE
    inch = ((high - low) or 1.0) / max(sheet.width - left - before - behind, 0.3)
    axes.set_xlim(low - before * inch, high + behind * inch)
    despine(axes)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    labels = [fitted(name, left - 0.1 - text_width(end, LABEL), LABEL) + end for (name, end), _ in rows]
    axes.set_yticks(range(len(rows)), labels, parse_math=False)
    axes.tick_params(axis="y", length=0, labelsize=LABEL, labelcolor=INK)
    for k, (number, (_, v)) in enumerate(zip(numbers, rows, strict=True)):
        side = {"ha": "left", "x": v + _BESIDE * inch} if v >= 0 else {"ha": "right", "x": v - _BESIDE * inch}
        axes.text(y=k, s=number, va="center_baseline", **side, **text_style(TICK, MUTED))
    if not np.isfinite(strength).all() or not strength.any():
        annotate(axes, "the attribution is zero or not finite")
    return root(axes)


def series_line(
    inputs: ArrayLike,
    values: ArrayLike,
    *,
    names: Sequence[str] = (),
    title: str = "",
    label: str = "",
    note: str = "",
    ax: Canvas | None = None,
) -> Figure:
    """Draw the attribution of a time series (C, L), or (L,): its line over strips that are coloured by the evidence of
    each sample; positive values speak for the class. Of more than 6 channels, those with the strongest evidence are
    drawn.

    ``label`` is the name of the class, ``note`` a further sentence of the caption, and ``ax`` where to draw in place of
    a new figure. Raises ValueError if the shapes differ or are others.
    """
    lines, strength = np.atleast_2d(np.asarray(inputs, float)), np.atleast_2d(_finite(np.asarray(values, float)))
    if lines.shape != strength.shape or lines.ndim != 2:
        raise ValueError(f"values: got shape {strength.shape} for a series of shape {lines.shape}, expected (C, L)")
    shown = sorted(np.argsort(-np.abs(strength).sum(1), kind="stable")[:MOST_CHANNELS].tolist())
    scale = float(np.nanmax(np.abs(strength), initial=0.0)) or 1.0
    caption = [
        f"Strips: red samples speak for {quoted(label)}, blue ones against it; strongest {scale:.3g}.",
        *(
            [f"{len(shown)} of {len(lines)} channels: those with the strongest evidence."]
            if len(shown) < len(lines)
            else []
        ),
        *([note] if note else []),
    ]
    sheet = open_sheet(_WIDTH + 1.0, _CHANNEL * len(shown) + 0.35, title=title, caption=caption, ax=ax)
    left, each = 0.7, max(sheet.height - 0.35, 0.1) / len(shown)
    axes = None
    for number, channel in enumerate(shown):
        axes = sheet.add_axes(left, number * each, sheet.width - left, max(each - 0.12, 0.05))
        line, length = lines[channel], lines.shape[1]
        low, high = float(line.min()), float(line.max())
        room = 0.08 * ((high - low) or 1.0)
        box = (-0.5, length - 0.5, low - room, high + room)
        colours: Style = {"cmap": DIVERGING, "vmin": -scale, "vmax": scale, "alpha": 0.85}
        axes.imshow(strength[channel][None], extent=box, aspect="auto", interpolation="nearest", **colours)
        halo = [withStroke(linewidth=3.0, foreground="white", alpha=0.8)]
        axes.plot(range(length), line, color=INK, linewidth=1.3, path_effects=halo)
        axes.set(xlim=box[:2], ylim=box[2:])
        despine(axes)
        axes.grid(visible=False)
        axes.tick_params(labelbottom=number == len(shown) - 1)
        name = str(names[channel]) if names else "" if len(lines) == 1 else f"channel {channel}"
        numbers = axes.yaxis.get_major_formatter()
        numbers.set_locs(axes.get_yticks().tolist())
        power = numbers.get_offset()  # above the axes it would stand on the series before
        axes.yaxis.offsetText.set_visible(False)
        end = f" ({power})" if power else ""
        words = fitted(name, each - 0.1 - text_width(end, TICK), TICK) + end
        axes.set_ylabel(words.strip(), **text_style(TICK, MUTED))
        if not np.isfinite(strength).all() or not strength.any():
            annotate(axes, "the attribution is zero or not finite")
    assert axes is not None
    axes.set_xlabel("sample", **text_style(TICK, MUTED))
    return root(axes)


def _finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The values, with NaN for infinity, which no axis can show."""
    return np.where(np.isfinite(values), values, np.nan)


def _sided(value: float) -> str:
    """The colour of evidence for the class, or against it, in bars."""
    return to_hex(colormaps[DIVERGING](0.87 if value >= 0 else 0.13))
