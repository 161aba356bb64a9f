"""Attributions of tables, series and texts: bars, lines over strips of evidence, words on coloured ground."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from numpy.typing import ArrayLike, NDArray

from fringe._strings.formats import number
from fringe.plots import _style as styles
from fringe.plots._maps import DIVERGING

if TYPE_CHECKING:
    from rich.text import Text


#: Features that bars are drawn of, and channels that lines are drawn of; the others are summed, or left out.
MOST_BARS, MOST_CHANNELS = 12, 6
#: Inches of a picture, of a bar with its gap, and of a channel; letters of the longest name.
_WIDTH, _BAR, _CHANNEL, _NAME = 5.6, 0.27, 1.35, 30
_SWARM = 0.36  # inches of a line of points
_MISSED = "not in the map"


def feature_bars(
    names: Sequence[str],
    values: ArrayLike,
    *,
    inputs: ArrayLike | None = None,
    title: str = "",
    label: str = "",
    note: str = "",
    ax: styles.Canvas | None = None,
) -> Figure:
    """Draw the attribution (F,) of a row of a table: one bar for each feature, the strongest first; positive values
    speak for the class. Of more than 12 features, the weakest share the last bar.

    Args:
        names: Names of the features.
        values: Attributions (F,).
        inputs: Values of the features (F,), which stand beside the names.
        title: Title of the figure.
        label: Name of the class.
        note: A further sentence of the caption.
        ax: Where to draw in place of a new figure.

    Returns:
        The figure.

    Raises:
        ValueError: If the numbers of names and values differ.
    """
    rows = _strongest(names, values, inputs)
    caption = [f"Red bars speak for {styles.quoted(label)}, blue bars against it.", note]
    axes = styles.open_axes(_WIDTH, _BAR * len(rows) + 0.35, title=title, caption=caption, ax=ax)
    _draw_bars(axes, rows, [0.0] * len(rows))
    axes.axvline(0, color=styles.INK, linewidth=0.8)
    return styles.root(axes)


def feature_waterfall(
    names: Sequence[str],
    values: ArrayLike,
    ends: tuple[float, float],
    *,
    inputs: ArrayLike | None = None,
    title: str = "",
    label: str = "",
    note: str = "",
    ax: styles.Canvas | None = None,
) -> Figure:
    """Draw how the attribution (F,) of a row of a table adds up: read from below, each bar begins where the one below
    it ends. What the map misses of the change of the score is a grey bar if it is more than 1 %.

    Args:
        names: Names of the features.
        values: Attributions (F,).
        ends: Scores at the end of the path and at the row.
        inputs: Values of the features (F,), which stand beside the names.
        title: Title of the figure.
        label: Name of the class.
        note: A further sentence of the caption.
        ax: Where to draw in place of a new figure.

    Returns:
        The figure.

    Raises:
        ValueError: If the numbers of names and values differ.
    """
    rows, change = _strongest(names, values, inputs), ends[1] - ends[0]
    missed = change - sum(v for _, v in rows)
    if abs(missed) > 0.01 * abs(change):
        rows.append((_MISSED, missed))
    stops = ends[1] - np.cumsum([0.0, *(v for _, v in rows)])
    caption = [
        f"From the score {number(ends[0])} at the end of the path (below) to {number(ends[1])} of this input (above). "
        f"Red bars speak for {styles.quoted(label)}, blue bars against it.",
        note,
    ]
    axes = styles.open_axes(_WIDTH, _BAR * len(rows) + 0.35, title=title, caption=caption, ax=ax)
    axes.use_sticky_edges = False  # else a bar that begins furthest left seems cut off
    _draw_bars(axes, rows, [float(v) for v in stops[1:]])
    axes.vlines(
        stops[1:-1], np.arange(len(rows) - 1) - 0.36, np.arange(len(rows) - 1) + 1.36, styles.MUTED, linewidth=0.7
    )
    for stop in ends:
        axes.axvline(stop, color=styles.INK, linewidth=0.8, linestyle=(0, (2, 2)))
    return styles.root(axes)


def feature_swarm(
    names: Sequence[str],
    values: ArrayLike,
    inputs: ArrayLike,
    *,
    title: str = "",
    label: str = "",
    ax: styles.Canvas | None = None,
) -> Figure:
    """Draw the attributions (B, F) of many rows of a table: a point for each row in the line of each feature, at its
    attribution, and in the colour of the feature's value. The features with the largest mean strength stand first; of
    more than 12, these 12 are drawn.

    Args:
        names: Names of the features.
        values: Attributions (B, F).
        inputs: Values of the features (B, F).
        title: Title of the figure.
        label: Name of the class, if all rows have one.
        ax: Where to draw in place of a new figure.

    Returns:
        The figure.

    Raises:
        ValueError: If shapes and the number of names differ.
    """
    strength, given = _finite(np.asarray(values, dtype=np.float64)), np.asarray(inputs, dtype=np.float64)
    if strength.ndim != 2 or strength.shape != given.shape or strength.shape[1] != len(names) or not len(names):
        raise ValueError(f"values: got shape {strength.shape} for inputs {given.shape} and {len(names)} names")
    mean = np.nan_to_num(np.abs(strength)).mean(0) if len(strength) else np.zeros(len(names))
    order: list[int] = np.argsort(-mean, kind="stable")[:MOST_BARS].tolist()
    caption = [
        f"On the right, a row speaks for {styles.quoted(label) if label else 'its class'}; on the left, against it.",
        f"{len(order)} of {len(names)} features: those with the largest mean strength." * (len(order) < len(names)),
    ]
    axes = styles.open_axes(_WIDTH, _SWARM * len(order) + 0.35, title=title, caption=caption, ax=ax)
    styles.name_rows(axes, [styles.sanitise(names[k], _NAME) for k in order])
    axes.axvline(0, color=styles.INK, linewidth=0.8, zorder=1)
    reach = float(np.nanmax(np.abs(strength), initial=0.0)) or 1.0
    colours = ScalarMappable(Normalize(0, 1), cmap="viridis")
    for row, k in enumerate(order):
        finite = np.isfinite(strength[:, k])
        x, value = strength[finite, k], given[finite, k]
        low, high = np.percentile(value, (5, 95)) if len(value) else (0.0, 1.0)
        share = np.clip((value - low) / ((high - low) or 1.0), 0, 1) if high > low else np.full(len(value), 0.5)
        axes.scatter(x, row + _spread(x / reach), s=11, c=colours.to_rgba(share), linewidths=0, zorder=2)
    bar = styles.parent(axes).colorbar(colours, cax=axes.inset_axes((1.03, 0, 0.025, 1)), ticks=[0, 1])
    bar.ax.set_yticklabels(["low", "high"])
    bar.outline.set_visible(False)
    styles.style_ticks(bar.ax)
    bar.set_label("value of the feature", labelpad=2, **styles.text_style(styles.TICK, styles.MUTED))
    _annotate_empty(axes, strength)
    return styles.root(axes)


def _spread(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Offsets of points at ``x`` (B,) in [-1, 1], so that neighbours stand above and below each other: the n-th of the
    points in the same hundredth of the line is n steps away from its middle, in turns up and down."""
    levels, shift = np.floor(x * 50).astype(int), np.zeros(len(x))
    for level in np.unique(levels):
        members = np.flatnonzero(levels == level)
        turns = (np.arange(len(members)) + 1) // 2 * np.where(np.arange(len(members)) % 2, 1, -1)
        shift[members] = turns * min(0.09, 0.8 / max(len(members), 1))
    return shift


def _strongest(names: Sequence[str], values: ArrayLike, inputs: ArrayLike | None) -> list[tuple[str, float]]:
    """Name and attribution of each feature, the strongest first; the weakest of more than 12 are summed."""
    strength = _finite(np.asarray(values, dtype=np.float64))
    if strength.shape != (len(names),) or not len(names):
        raise ValueError(f"values: got shape {strength.shape} for {len(names)} names")
    ends = [""] * len(names) if inputs is None else [f" = {number(float(v), digits=4)}" for v in np.asarray(inputs)]
    words = [styles.sanitise(name, _NAME) + end for name, end in zip(names, ends, strict=True)]
    order = sorted(range(len(words)), key=lambda k: -abs(np.nan_to_num(strength[k])))
    rows = [(words[k], float(strength[k])) for k in order]
    if len(rows) > MOST_BARS:
        rest = rows[MOST_BARS - 1 :]
        rows = [*rows[: MOST_BARS - 1], (f"sum of {len(rest)} others", sum(v for _, v in rest))]
    return rows


def _draw_bars(axes: Axes, rows: Sequence[tuple[str, float]], begins: Sequence[float]) -> None:
    """Draw a bar for each name and number, from where it begins; the number stands on the right."""
    values = [v for _, v in rows]
    against, speaks = (to_hex(colormaps[DIVERGING](share)) for share in (0.13, 0.87))
    colours = [styles.RULE if name == _MISSED else speaks if v >= 0 else against for name, v in rows]
    axes.barh(range(len(rows)), values, left=begins, height=0.72, color=colours)
    styles.name_rows(axes, [name for name, _ in rows])
    numbers = axes.secondary_yaxis("right")
    numbers.set_yticks(range(len(rows)), [number(v, signed=True) for v in values])
    numbers.tick_params(length=0, labelsize=styles.TICK, labelcolor=styles.MUTED)
    numbers.spines[:].set_visible(False)
    _annotate_empty(axes, np.asarray(values))


def series_line(
    inputs: ArrayLike,
    values: ArrayLike,
    *,
    names: Sequence[str] = (),
    title: str = "",
    label: str = "",
    note: str = "",
    ax: styles.Canvas | None = None,
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
        f"Strips: red samples speak for {styles.quoted(label)}, blue ones against it; strongest {number(scale)}.",
        f"{len(shown)} of {len(lines)} channels: those with the strongest evidence." * (len(shown) < len(lines)),
        note,
    ]
    panel = styles.open_panel(_WIDTH + 1.0, _CHANNEL * len(shown) + 0.35, title=title, caption=caption, ax=ax)
    for axes, channel in zip(panel.subplots(len(shown), sharex=True, squeeze=False)[:, 0], shown, strict=True):
        line, length = lines[channel], lines.shape[1]
        low, high = float(line.min()), float(line.max())
        room = 0.08 * ((high - low) or 1.0)
        box = (-0.5, length - 0.5, low - room, high + room)
        colours: styles.Style = {"cmap": DIVERGING, "vmin": -scale, "vmax": scale, "alpha": 0.85}
        axes.imshow(strength[channel][None], extent=box, aspect="auto", interpolation="nearest", **colours)
        halo = [withStroke(linewidth=3.0, foreground="white", alpha=0.8)]
        axes.plot(range(length), line, color=styles.INK, linewidth=1.3, path_effects=halo)
        axes.set(xlim=box[:2], ylim=box[2:])
        styles.despine(axes)
        axes.grid(visible=False)
        name = str(names[channel]) if names else "" if len(lines) == 1 else f"channel {channel}"
        last = "sample" if channel == shown[-1] else ""
        styles.write(axes, x=last, y=styles.wrapped(name, 18))
        axes.xaxis.label.set(ha="center", x=0.5)
        _annotate_empty(axes, strength)
    return styles.root(panel)


def _annotate_empty(axes: Axes, strength: NDArray[np.float64]) -> None:
    """Write on a chart why it is blank, if it is."""
    if not np.isfinite(strength).all():
        styles.annotate(axes, "some values are not finite")
    elif not strength.any():
        styles.annotate(axes, "the map is zero everywhere")


def _finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The values, with NaN for infinity, which no axis can show."""
    return np.where(np.isfinite(values), values, np.nan)


#: Points of a word in the figure; letters that are drawn of it; inches of the figure, of a line, and between words.
_SIZE, _LETTERS, _TEXT_WIDTH, _LINE, _BETWEEN = 11.0, 60, 6.6, 0.36, 0.16


def token_map(
    words: Sequence[str],
    values: ArrayLike,
    *,
    title: str = "",
    label: str = "",
    note: str = "",
    ax: styles.Canvas | None = None,
) -> Figure:
    """Draw a text with each word on the colour of its evidence (W,); words that were held fixed are grey, and positive
    values speak for the class.

    ``label`` is the name of the class, ``note`` a further sentence of the caption, and ``ax`` where to draw in place of
    a new figure. Raises ValueError if the numbers of words and values differ.
    """
    strength = _checked(words, values)
    caption = [f"Red words speak for {styles.quoted(label)}, blue words against it.", note]
    axes = styles.open_panel(_TEXT_WIDTH, _LINE, title=title, caption=caption, ax=ax).subplots()
    axes.set_axis_off()
    figure = styles.root(axes)
    styles.lay_out(figure)
    across, left, row = axes.get_window_extent().width / figure.dpi - 0.08, 0.0, 0
    for word, share in zip(words, strength, strict=True):
        ground, ink = _colours(share)
        box: styles.Style = {"boxstyle": "round,pad=0.18", "facecolor": ground, "edgecolor": "none"}
        style = styles.text_style(_SIZE, ink, va="center_baseline", bbox=box if share else None)
        text = axes.text(0, 0, styles.sanitise(word, _LETTERS), **style)
        width = text.get_window_extent().width / figure.dpi
        if width > across:
            text.set_fontsize(_SIZE * across / width)
        if left and left + width > across:
            left, row = 0.0, row + 1
        text.set_position((left, row + 0.5))
        left += min(width, across) + _BETWEEN
    high = axes.get_window_extent().height / figure.dpi
    axes.set(xlim=(-0.04, across + 0.04), ylim=(row + 1 if ax is None else max(row + 1, high / _LINE), 0))
    if ax is None:
        figure.set_figheight(figure.get_figheight() + _LINE * (row + 1) - high)
    _annotate_empty(axes, strength)
    return styles.root(axes)


def token_html(words: Sequence[str], values: ArrayLike) -> str:
    """Return a text as one ``<span>`` with each word, escaped, on the colour of its evidence (W,); the value is in the
    word's title. Raises ValueError if the numbers of words and values differ."""
    from fringe._strings.html import render

    strength, numbers = _checked(words, values), np.asarray(values, dtype=np.float64)
    coloured = [
        (word, *_colours(share), number(float(value), signed=True)) if share else (word, "", "", "")
        for word, share, value in zip(words, strength, numbers, strict=True)
    ]
    return render("words", words=coloured)


def token_text(words: Sequence[str], values: ArrayLike) -> "Text":
    """Return a text for rich to print, with each word on the colour of its evidence (W,); markup and control characters
    in a word are text. Raises ValueError if the numbers of words and values differ."""
    from rich.text import Text

    text = Text()
    for word, share in zip(words, _checked(words, values), strict=True):
        ground, ink = _colours(share)
        clean = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in word)
        text.append(clean, style="dim" if share == 0 else f"{ink} on {ground}")
        text.append(" ")
    text.rstrip()
    return text


def _checked(words: Sequence[str], values: ArrayLike) -> NDArray[np.float64]:
    """The values as shares of the largest, in [-1, 1]; zero where they are not finite."""
    strength = np.asarray(values, dtype=np.float64)
    if strength.shape != (len(words),):
        raise ValueError(f"values: got shape {strength.shape} for {len(words)} words")
    strength = np.where(np.isfinite(strength), strength, 0.0)
    return strength / (np.abs(strength).max(initial=0.0) or 1.0)


def _colours(share: float) -> tuple[str, str]:
    """The ground and the ink of a word, as hexadecimal colours."""
    if share == 0:
        return "#ffffff", styles.MUTED
    shade = colormaps[DIVERGING](0.5 + 0.45 * share)[:3]
    bright = float(np.dot(shade, (0.299, 0.587, 0.114)))
    return to_hex(shade), styles.INK if bright > 0.5 else "#ffffff"
