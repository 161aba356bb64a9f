"""Where things stand on a picture: positions in inches from the top left corner.

Pictures made of images know their sizes in advance. They are placed without a layout engine, so no margin is blank, a
column stands exactly under its mark, and the same code draws into a part of a reader's own figure.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.text import Text

from fringe.plots._style import LINE, MARGIN, MUTED, TICK, TITLE, Style, font_families, new_figure, sanitise, text_style

#: A figure or a part of one.
Panel = Figure | SubFigure
#: What a picture is drawn on.
Canvas = Axes | Panel
#: Inches of a title with the gap below it, of a further line of it, and of the gap above a caption.
_TITLE, _MORE, _GAP = 0.32, 0.18, 0.1
#: Letters are moved to whole pixels, which makes a line up to this much wider; bold ones less so.
_HINTED, _HINTED_BOLD = 1.11, 1.05
#: Inches of a figure that has no size yet.
_SMALLEST = 0.1


@dataclass(frozen=True)
class Prediction:
    """What a model says of an input: the most probable class, and the explained one, where that is another."""

    name: str
    probability: float
    explained: str = ""

    def text(self, letters: int = 400) -> str:
        """Return it in words, with at most so many letters of each name: a probability is never cut."""
        said = f", explained: {sanitise(self.explained, letters)}" if self.explained else ""
        chance = "" if math.isnan(self.probability) else f" · {self.probability:.1%}"
        return f"{sanitise(self.name, letters)}{chance}{said}"

    def lines(self, inches: float, size: float = TICK, *, most: int = 1) -> list[str]:
        """Return it on at most ``most`` lines of this width, with as many letters of the names as there is room for."""
        low, high = 1, max(len(self.name), len(self.explained))
        while low < high:
            middle = (low + high + 1) // 2
            text = self.text(middle)
            fits = " ".join(wrapped(text, inches, size, most=most)) == text
            low, high = (middle, high) if fits else (low, middle - 1)
        return wrapped(self.text(low), inches, size, most=most)


@dataclass(frozen=True)
class Sheet:
    """The free area of a figure or of a part of one, in inches from its upper left corner."""

    figure: Panel
    left: float
    top: float
    width: float
    height: float

    def add_axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Return new axes whose upper left corner is at ``left`` and ``top`` of the free area."""
        across, down = _size(self.figure)
        bottom = down - self.top - top - height
        box = ((self.left + left) / across, bottom / down, width / across, height / down)
        return self.figure.add_axes(box)

    def at(self, left: float, top: float) -> tuple[float, float]:
        """Return this point of the free area in fractions of the figure, from its lower left corner."""
        across, down = _size(self.figure)
        return (self.left + left) / across, 1 - (self.top + top) / down

    def write(self, left: float, top: float, text: str, style: Style) -> Text:
        """Write lines of text whose upper left corner is there, unless the style aligns it otherwise."""
        drawn: Style = {"va": "top", **style}
        return self.figure.text(*self.at(left, top), text, **drawn)


def open_sheet(
    width: float, height: float, *, title: str = "", caption: Sequence[str] = (), ax: Canvas | None = None
) -> Sheet:
    """Return a sheet with ``width`` x ``height`` free inches between a title and the sentences of a caption, each of
    which begins a line. With ``ax`` the sheet is drawn there, and takes its size."""
    figure = new_figure(width + 2 * MARGIN, height + 2 * MARGIN) if ax is None else part_of(ax)
    across = max(_size(figure)[0] - 2 * MARGIN, _SMALLEST)
    heading = wrapped(title, across, TITLE, most=3, bold=True)
    lines = [line for sentence in caption for line in wrapped(sentence, across)]
    above = _TITLE + _MORE * (len(heading) - 1) if heading else 0.0
    below = _GAP + LINE * len(lines) if lines else 0.0
    if isinstance(figure, Figure) and ax is None:
        figure.set_figheight(height + above + below + 2 * MARGIN)
    down = _size(figure)[1]
    sheet = Sheet(figure, MARGIN, MARGIN + above, across, max(down - above - below - 2 * MARGIN, _SMALLEST))
    if heading:
        style = text_style(TITLE, ha="left", va="top", fontweight="bold")
        figure.suptitle("\n".join(heading), x=MARGIN / _size(figure)[0], y=1 - MARGIN / down, **style)
    if lines:
        sheet.write(0, sheet.height + _GAP, "\n".join(lines), text_style(TICK, MUTED, linespacing=1.45, gid="caption"))
    return sheet


def part_of(ax: Canvas) -> Panel:
    """Return the figure, or the part of one, that a picture of several axes is drawn on.

    Axes of a grid are emptied, and a part of the figure takes their place.

    Raises:
        ValueError: For axes that belong to no grid.
    """
    if isinstance(ax, (Figure, SubFigure)):
        return ax
    spec = ax.get_subplotspec()
    if spec is None:
        raise ValueError("ax: got Axes outside a grid, expected a SubFigure, or Axes of subplots or add_subplot")
    ax.set_axis_off()
    return parent(ax).add_subfigure(spec)


def parent(ax: Axes) -> Panel:
    """Return the figure, or the part of one, that holds axes."""
    figure = ax.get_figure()
    assert figure is not None
    return figure


def root(ax: Canvas) -> Figure:
    """Return the whole figure that a picture belongs to."""
    figure = ax if isinstance(ax, (Figure, SubFigure)) else parent(ax)
    while isinstance(figure, SubFigure):
        figure = figure._parent  # pyright: ignore[reportAttributeAccessIssue] - the public way needs matplotlib 3.10
    assert isinstance(figure, Figure)
    return figure


def caption_below(ax: Axes, sentences: Sequence[str]) -> None:
    """Write a picture's title and caption as those of the axes that a reader gave."""
    box = ax.get_window_extent()
    lines = [line for sentence in sentences for line in wrapped(sentence, max(box.width / root(ax).dpi, 1.0))]
    label = ax.set_xlabel("\n".join(lines), loc="left", labelpad=5, **text_style(TICK, MUTED, linespacing=1.45))
    label.set_gid("caption")


def text_width(text: str, size: float = TICK, *, bold: bool = False) -> float:
    """Return the inches that a line of text takes at most."""
    weight = "bold" if bold else "normal"
    font = get_font([findfont(FontProperties(family=family, weight=weight)) for family in font_families()])
    font.set_size(size, 72)
    font.set_text(text)
    return (_HINTED_BOLD if bold else _HINTED) * font.get_width_height()[0] / 64 / 72


def fitted(text: str, inches: float, size: float = TICK, *, bold: bool = False) -> str:
    """Return ``text`` on one line, cut with an ellipsis where it is wider than ``inches``."""
    line = sanitise(text, 400)
    if text_width(line, size, bold=bold) <= inches:
        return line
    cuts = [line[:letters].rstrip() + "…" for letters in range(len(line) + 1)]
    fitting = bisect_right(cuts, inches, lo=1, key=lambda cut: text_width(cut, size, bold=bold))
    return cuts[fitting - 1]


def wrapped(text: str, inches: float, size: float = TICK, *, most: int = 9, bold: bool = False) -> list[str]:
    """Return ``text`` on at most ``most`` lines of this width; the last one is cut with an ellipsis where it must."""
    lines: list[str] = []
    words = sanitise(text, 1000).split()
    while words:
        count = len(words)
        if len(lines) + 1 < most:
            while count > 1 and text_width(" ".join(words[:count]), size, bold=bold) > inches:
                count -= 1
        lines.append(fitted(" ".join(words[:count]), inches, size, bold=bold))
        words = words[count:]
    return lines


def _size(figure: Panel) -> tuple[float, float]:
    """Return width and height of a figure or a part of one, in inches."""
    dpi = root(figure).dpi
    return max(figure.bbox.width / dpi, _SMALLEST), max(figure.bbox.height / dpi, _SMALLEST)
