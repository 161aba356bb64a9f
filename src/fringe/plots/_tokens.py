"""Attributions of texts: words on coloured ground, as a figure, as HTML and in a terminal."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from numpy.typing import ArrayLike, NDArray

from fringe.plots._layout import Canvas, fitted, open_sheet, root, text_width
from fringe.plots._maps import DIVERGING
from fringe.plots._style import INK, MUTED, annotate, quoted, sanitise, text_style

if TYPE_CHECKING:
    from rich.text import Text

#: Points of a word in the figure; inches of the figure, of a line, between words, and around a word.
_SIZE, _WIDTH, _LINE, _BETWEEN, _AROUND = 11.0, 6.6, 0.36, 0.06, 0.05


def token_map(
    words: Sequence[str],
    values: ArrayLike,
    *,
    title: str = "",
    label: str = "",
    note: str = "",
    ax: Canvas | None = None,
) -> Figure:
    """Draw a text with each word on the colour of its evidence (W,); words that were held fixed are grey, and positive
    values speak for the class.

    ``label`` is the name of the class, ``note`` a further sentence of the caption, and ``ax`` where to draw in place of
    a new figure. Raises ValueError if the numbers of words and values differ.
    """
    strength = _checked(words, values)
    caption = [f"Red words speak for {quoted(label)}, blue words against it.", *([note] if note else [])]
    lines = _flow(words, _WIDTH)
    sheet = open_sheet(_WIDTH, _LINE * len(lines), title=title, caption=caption, ax=ax)
    lines = _flow(words, sheet.width)
    axes = sheet.add_axes(0, 0, sheet.width, sheet.height)
    axes.set(xlim=(0, sheet.width), ylim=(max(sheet.height, _LINE * len(lines)), 0))
    axes.set_axis_off()
    for row, line in enumerate(lines):
        for k, left, width in line:
            ground, ink = _colours(strength[k])
            if strength[k] != 0:
                corner, height = (left + 0.02, row * _LINE + 0.04), _LINE - 0.08
                shape = f"round,pad=0,rounding_size={_AROUND}"
                axes.add_patch(FancyBboxPatch(corner, width - 0.04, height, shape, facecolor=ground, linewidth=0))
            word = fitted(words[k], sheet.width - 2 * _AROUND, _SIZE)
            middle = (left + width / 2, (row + 0.5) * _LINE)
            axes.text(*middle, word, ha="center", va="center_baseline", **text_style(_SIZE, ink))
    if not strength.any():
        annotate(axes, "the attribution is zero or not finite")
    return root(axes)


def token_html(words: Sequence[str], values: ArrayLike) -> str:
    """Return a text as one ``<span>`` with each word, escaped, on the colour of its evidence (W,); the value is in the
    word's title. Raises ValueError if the numbers of words and values differ."""
    strength, numbers = _checked(words, values), np.asarray(values, dtype=np.float64)
    parts: list[str] = []
    for word, share, number in zip(words, strength, numbers, strict=True):
        text = escape(word, quote=True)
        if share == 0:
            parts.append(f'<span style="opacity:.6">{text}</span>')
            continue
        ground, ink = _colours(share)
        style = f"background:{ground};color:{ink};border-radius:3px;padding:1px 4px"
        parts.append(f'<span style="{style}" title="{number:+.3g}">{text}</span>')
    return f'<span style="font-family:sans-serif;line-height:2;overflow-wrap:anywhere">{" ".join(parts)}</span>'


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
        return "#ffffff", MUTED
    shade = colormaps[DIVERGING](0.5 + 0.45 * share)[:3]
    bright = float(np.dot(shade, (0.299, 0.587, 0.114)))
    return to_hex(shade), INK if bright > 0.5 else "#ffffff"


def _flow(words: Sequence[str], across: float) -> list[list[tuple[int, float, float]]]:
    """Lines of words: the number of each, its left edge and its width in inches."""
    lines: list[list[tuple[int, float, float]]] = [[]]
    left = 0.0
    for k, word in enumerate(words):
        width = min(text_width(sanitise(word, 400), _SIZE) + 2 * _AROUND + 0.04, across)
        if lines[-1] and left + width > across:
            lines.append([])
            left = 0.0
        lines[-1].append((k, left, width))
        left += width + _BETWEEN
    return lines
