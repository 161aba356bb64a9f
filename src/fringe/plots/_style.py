"""The style of all figures, and the parts that they are made of; matplotlib's constrained layout places everything.

The style is set on each artist, not through ``rcParams``: those belong to the process, so figures drawn in two threads
of a server would take each other's style, and a user's own settings would change.
"""

import io
import math
from collections.abc import Sequence
from functools import cache
from textwrap import fill, wrap
from typing import Any, Literal

from matplotlib import rcParams
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.text import Text

from fringe._strings.names import method_title

INK, MUTED, RULE = "#1f2328", "#5f6773", "#c9ced6"
# Okabe and Ito's palette, which differ for any colour vision.
BLUE, VERMILION, GREEN, ORANGE, SKY = "#0072b2", "#d55e00", "#009e73", "#e69f00", "#56b4e9"
PURPLE, BROWN = "#cc79a7", "#8c613c"
SERIES = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, BROWN, INK)
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.6)), (0, (1.2, 1.2)), (0, (5, 1.4, 1.2, 1.4)))
#: Number of series with different styles.
MAX_SERIES = len(SERIES) * len(DASHES)

FONT = "DejaVu Sans"  # distributed with matplotlib
DPI = 150
#: Keywords of an artist.
Style = dict[str, Any]
#: A figure or a part of one.
Panel = Figure | SubFigure
#: What a picture is drawn on.
Canvas = Axes | Panel
#: Font sizes in points.
TITLE, LABEL, TICK = 10.5, 9.0, 8.0
#: Inches that a letter of size ``TICK`` and a line of it take, and the margin around axes and figures.
LETTER, LINE, MARGIN = 0.062, 0.17, 0.07


class _Figure(Figure):
    """A figure that a notebook shows as a picture, also where pyplot was never imported."""

    def _repr_png_(self) -> bytes:
        return png_of(self)


def new_figure(width: float, height: float, *, dpi: float = DPI) -> Figure:
    """Return a white figure of this size in inches with its own canvas, without pyplot or a window system."""
    figure = _Figure(figsize=(width, height), dpi=dpi, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def png_of(figure: Figure, *, dpi: float | Literal["figure"] = "figure") -> bytes:
    """Return a figure as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def open_panel(
    width: float,
    height: float,
    *,
    title: str = "",
    caption: Sequence[str] = (),
    handles: Sequence[Artist] = (),
    ax: Canvas | None = None,
) -> Panel:
    """Return a figure with ``width`` x ``height`` inches for its axes, plus room for the title above them and for the
    sentences of a caption and the legend of ``handles`` below; with ``ax`` all is drawn there, in the room it has."""
    panel = new_figure(width, height) if ax is None else _part_of(ax)
    across = panel.bbox.width / panel.dpi - 2 * MARGIN
    letters = max(int(across / LETTER), 20)
    lines = [line for text in caption for line in wrap(sanitise(text, 8 * letters), letters)]
    longest = max((len(str(handle.get_label())) for handle in handles), default=0)
    columns = max(1, min(len(handles), int(across / (LETTER * longest + 0.55))))
    if title:
        style = text_style(TITLE, ha="left", va="top", fontweight="bold")
        words, wrap_here = flowing(sanitise(title, 2 * letters), letters * 2 // 3)
        panel.suptitle(words, x=MARGIN / (across + 2 * MARGIN), wrap=wrap_here, **style)
    if lines or handles:  # a legend without a frame below a caption in muted letters, outside the axes
        small: Style = {"family": _font_families(), "size": TICK}
        look: Style = {"prop": small, "title_fontproperties": small, "labelcolor": INK, "frameon": False}
        look |= {"handlelength": 2.2, "columnspacing": 1.6, "labelspacing": 0.4, "borderpad": 0, "ncols": columns}
        look |= {"borderaxespad": 72 * MARGIN / TICK, "loc": "outside lower left", "alignment": "left"}
        legend = panel.legend(handles=list(handles), title="\n".join(lines) or None, **look)
        legend.get_title().set(color=MUTED, parse_math=False, linespacing=1.45, gid="caption")
        for text in legend.get_texts():
            text.set_parse_math(False)
    if isinstance(panel, Figure) and ax is None:
        below = LINE * (len(lines) + math.ceil(len(handles) / columns))
        above = 0.2 * math.ceil(1.5 * len(title) / letters)
        panel.set_figheight(height + above + below + 2 * MARGIN)
        panel.set_layout_engine("constrained", w_pad=MARGIN, h_pad=MARGIN, wspace=0, hspace=0)
    return panel


def open_axes(width: float, height: float, *, title: str, caption: Sequence[str], ax: Canvas | None) -> Axes:
    """Return the axes of a picture that needs one only, as :func:`open_panel`; axes that a reader gave get the title
    and the caption themselves."""
    if not isinstance(ax, Axes):
        return open_panel(width, height, title=title, caption=caption, ax=ax).subplots()
    letters = max(int(ax.get_window_extent().width / parent(ax).dpi / LETTER), 20)
    write(ax, title=sanitise(title), x="\n".join(fill(sentence, letters) for sentence in caption if sentence))
    ax.xaxis.label.set(linespacing=1.45, gid="caption", ha="left", x=0.0)
    return ax


def fit_height(axes: Axes, rows: float, highest: float = math.inf) -> None:
    """Change the height of a figure so that its images, ``rows`` of them below each other, are as wide as their
    columns, but at most ``highest`` inches high."""
    figure, shape = root(axes), axes.images[0].get_size()
    pictures = [one for one in figure.findobj(Axes) if one.images]
    for one in pictures:
        one.set_aspect("auto")  # words that stand where an image leaves room would not count
    lay_out(figure)
    box = axes.get_window_extent()
    for one in pictures:
        one.set_aspect("equal")
    height = min(box.width * clipped_aspect(*shape), highest * figure.dpi)
    figure.set_figheight(figure.get_figheight() + rows * (height - box.height) / figure.dpi)


def lay_out(figure: Figure) -> None:
    """Let the layout engine of a figure place its axes now."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)


def _part_of(ax: Canvas) -> Panel:
    """Return the figure, or the part of one, that a picture of several axes is drawn on; matplotlib's constrained
    layout places the parts of a figure that has no layout engine.

    Axes of a grid are emptied, and a part of the figure takes their place.

    Raises:
        ValueError: For axes that belong to no grid.
    """
    spec = ax.get_subplotspec() if isinstance(ax, Axes) else None
    if isinstance(ax, Axes) and spec is None:
        raise ValueError("ax: got Axes outside a grid, expected a SubFigure, or Axes of subplots or add_subplot")
    if root(ax).get_layout_engine() is None:
        root(ax).set_layout_engine("constrained")
    if not isinstance(ax, Axes):
        return ax
    assert spec is not None
    ax.set_axis_off()
    return parent(ax).add_subfigure(spec)


def parent(ax: Axes) -> Panel:
    """Return the figure, or the part of one, that holds axes."""
    figure = ax.get_figure()
    if figure is None:
        raise ValueError("ax: got Axes that were removed from their figure, expected Axes that are part of one")
    return figure


def root(ax: Canvas) -> Figure:
    """Return the whole figure that a picture belongs to."""
    figure = parent(ax) if isinstance(ax, Axes) else ax
    while isinstance(figure, SubFigure):
        figure = figure._parent  # pyright: ignore[reportAttributeAccessIssue] - the public way needs matplotlib 3.10
    assert isinstance(figure, Figure)
    return figure


def panels(
    count: int,
    size: tuple[float, float],
    *,
    across: int,
    width: float = 0.0,
    narrowest: float = 0.0,
    sharey: bool = False,
    **notes: Any,
) -> tuple[Figure, list[Axes]]:
    """Return a figure and its ``count`` axes, at most ``across`` in a row, which may share what stands at their left.

    Each takes ``size`` inches with its own words, and ``width`` more are shared; no figure is narrower than
    ``narrowest``. ``notes`` are the title, caption and handles of :func:`open_panel`.
    """
    rows = math.ceil(count / across)
    columns = math.ceil(count / rows)
    figure = root(open_panel(max(columns * size[0] + width, narrowest), rows * size[1], **notes))
    grid: list[Axes] = list(figure.subplots(rows, columns, sharey=sharey, squeeze=False).flat)
    for axes in grid[count:]:
        axes.remove()
    return figure, grid[:count]


def write(axes: Axes, *, title: str = "", note: str = "", x: str = "", y: str = "", bold: bool = True) -> None:
    """Write words around axes: a title above them on the left, a note on the right, and the names of both axes, which
    begin on the left below an image. A title is muted if it is not ``bold``."""
    head = text_style(LABEL, fontweight="bold") if bold else text_style(LABEL, MUTED)
    muted = text_style(TICK, MUTED)
    axes.set_title(title, loc="left", pad=5, **head)
    axes.set_title(note, loc="right", pad=5, **muted)
    axes.set_xlabel(x, loc="left" if axes.images else "center", labelpad=3, **muted)
    axes.set_ylabel(y, labelpad=4, **muted)


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows of a chart, the first on top, and leave the axis below alone."""
    despine(axes)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.tick_params(axis="y", length=0, labelsize=LABEL, labelcolor=INK)


def series_style(index: int) -> Style:
    """Return colour and dashes of this series among ``MAX_SERIES``; neighbours differ in both, also in grey."""
    turn = index // len(SERIES)
    return {"color": SERIES[index % len(SERIES)], "linestyle": DASHES[(index + turn) % len(DASHES)]}


def text_style(size: float = LABEL, colour: str = INK, **more: Any) -> Style:
    """Return keywords of a text; a dollar sign in it is a dollar sign."""
    return {"fontsize": size, "color": colour, "fontfamily": _font_families(), "parse_math": False, **more}


def _font_families() -> list[str]:
    """Return our font, and those of matplotlib's settings for letters that it lacks, such as Chinese ones."""
    return [FONT, *rcParams["font.family"]]


def despine(axes: Axes) -> None:
    """Leave thin axes on the left and below, small muted numbers, and a faint horizontal grid behind the data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(color=RULE, linewidth=0.8)
    style_ticks(axes)
    axes.grid(axis="y", color=RULE, linewidth=0.5, alpha=0.6)
    axes.set_axisbelow(True)


def style_ticks(axes: Axes) -> None:
    """Draw small muted tick labels."""
    axes.tick_params(color=RULE, labelcolor=MUTED, labelsize=TICK, width=0.8, length=3, labelfontfamily=FONT)
    axes.yaxis.get_offset_text().set_fontsize(TICK)


def image_frame(axes: Axes) -> None:
    """Draw a hairline around an image, without ticks, at the upper left of its room."""
    axes.set(xticks=[], yticks=[], anchor="NW")
    axes.spines[:].set(color=RULE, linewidth=0.6)


def annotate(axes: Axes, text: str) -> Text:
    """Write a sentence in the middle of axes that have nothing to show."""
    box: Style = {"boxstyle": "round,pad=0.4", "facecolor": "white", "edgecolor": RULE, "linewidth": 0.6, "alpha": 0.92}
    words, wrap_here = flowing(text, 20)
    style = text_style(TICK, MUTED, ha="center", va="center", bbox=box, wrap=wrap_here, in_layout=False)
    return axes.text(0.5, 0.5, words, transform=axes.transAxes, **style)


def flowing(text: str, letters: int) -> tuple[str, bool]:
    """Return a text of several lines, and whether matplotlib shall break them. It measures dollar signs as a
    formula, whatever ``parse_math`` says; such a one is broken here, after about so many ``letters``."""
    return (fill(text, letters), False) if "$" in text else (text, True)


def sanitise(text: str, length: int = 60) -> str:
    """Return ``text`` on one line, with a box for what the font cannot draw, cut with an ellipsis at ``length``."""
    known = _charmap(*_font_families())
    drawn = "".join(c if ord(c) in known else "\u25a1" for c in " ".join(text.split()))
    return drawn if len(drawn) <= length else drawn[: length - 1].rstrip() + "…"


def wrapped(text: str, letters: int, most: int = 2) -> str:
    """Return ``text`` on about ``most`` lines of so many letters, cut with an ellipsis where it must."""
    return fill(sanitise(text, letters * most - letters // 3), letters)


def clipped_aspect(height: float, width: float) -> float:
    """Return the ratio of two sides, within what fits on a page."""
    return min(max(height / width, 0.4), 2.5)


def heading(label: str, text: str, method: str) -> str:
    """Return the title of a picture of one class; a long name of the class is cut, so that the method is not."""
    return f"{sanitise(label, 30)}: {text} ({method_title(method)})"


def class_title(name: str) -> str:
    """Return the name of a class in words, ``bald eagle`` for ``bald_eagle``."""
    return " ".join(name.replace("_", " ").split()) or name


def quoted(label: str) -> str:
    """Return a class in quotation marks for a sentence; "the class" where it has no name."""
    return f"'{sanitise(class_title(label), 40)}'" if label else "the class"


@cache
def _charmap(*families: str) -> frozenset[int]:
    return frozenset[int]().union(
        *(get_font(findfont(FontProperties(family=[family]))).get_charmap() for family in families)
    )
