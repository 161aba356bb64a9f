"""Attributions of tables, series and texts: bars, lines over strips of evidence, words on coloured ground."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from numpy.typing import ArrayLike, NDArray

from fringe._text import number
from fringe.plots import _style as styles
from fringe.plots._maps import DIVERGING

if TYPE_CHECKING:
    from rich.text import Text


#: Features that bars are drawn of, and channels that lines are drawn of; the others are summed, or left out.
MOST_BARS, MOST_CHANNELS = 12, 6
#: Inches of a picture, of a bar with its gap, and of a channel; letters of the longest name.
_WIDTH, _BAR, _CHANNEL, _NAME = 5.6, 0.27, 1.35, 30


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

    ``inputs`` (F,) stand beside the names, ``label`` is the name of the class, ``note`` a further sentence of the
    caption, and ``ax`` where to draw in place of a new figure. Raises ValueError if the numbers of names and values
    differ.
    """
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
    caption = [f"Red bars speak for {styles.quoted(label)}, blue bars against it.", *([note] if note else [])]
    axes = styles.open_axes(_WIDTH, _BAR * len(rows) + 0.35, title=title, caption=caption, ax=ax)
    against, speaks = (to_hex(colormaps[DIVERGING](share)) for share in (0.13, 0.87))
    colours = [speaks if v >= 0 else against for _, v in rows]
    axes.barh(range(len(rows)), [v for _, v in rows], height=0.72, color=colours)
    axes.axvline(0, color=styles.INK, linewidth=0.8)
    styles.name_rows(axes, [name for name, _ in rows])
    numbers = axes.secondary_yaxis("right")
    numbers.set_yticks(range(len(rows)), [number(v, signed=True) for _, v in rows])
    numbers.tick_params(length=0, labelsize=styles.TICK, labelcolor=styles.MUTED)
    numbers.spines[:].set_visible(False)
    if not np.isfinite(strength).all() or not strength.any():
        styles.annotate(axes, "the attribution is zero or not finite")
    return styles.root(axes)


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
        *(
            [f"{len(shown)} of {len(lines)} channels: those with the strongest evidence."]
            if len(shown) < len(lines)
            else []
        ),
        *([note] if note else []),
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
        if not np.isfinite(strength).all() or not strength.any():
            styles.annotate(axes, "the attribution is zero or not finite")
    return styles.root(panel)


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
    caption = [f"Red words speak for {styles.quoted(label)}, blue words against it.", *([note] if note else [])]
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
    if not strength.any():
        styles.annotate(axes, "the attribution is zero or not finite")
    return styles.root(axes)


def token_html(words: Sequence[str], values: ArrayLike) -> str:
    """Return a text as one ``<span>`` with each word, escaped, on the colour of its evidence (W,); the value is in the
    word's title. Raises ValueError if the numbers of words and values differ."""
    from fringe._html import render

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
