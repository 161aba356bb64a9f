"""Attributions of texts: words on coloured ground, as a figure, as HTML and in a terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from fringe._text import number
from fringe.plots import _style as styles
from fringe.plots._maps import DIVERGING

if TYPE_CHECKING:
    from rich.text import Text

#: Points of a word in the figure; letters that are drawn of it; inches of the figure, of a line, and between words.
_SIZE, _LETTERS, _WIDTH, _LINE, _BETWEEN = 11.0, 60, 6.6, 0.36, 0.16


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
    axes = styles.open_panel(_WIDTH, _LINE, title=title, caption=caption, ax=ax).subplots()
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
