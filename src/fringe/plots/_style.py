"""The look that all figures share.

It is set on each artist, not through ``rcParams``: those belong to the process, so figures drawn in two threads of a
server would take each other's style, and a user's own settings would change under their hands.
"""

from functools import cache
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.text import Text

INK, MUTED, RULE = "#1f2328", "#5f6773", "#c9ced6"
# Okabe and Ito's palette, told apart with any colour vision.
BLUE, VERMILION, GREEN, ORANGE, SKY = "#0072b2", "#d55e00", "#009e73", "#e69f00", "#56b4e9"
PURPLE, BROWN = "#cc79a7", "#8c613c"
SERIES = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, BROWN, INK)
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.6)), (0, (1.2, 1.2)), (0, (5, 1.4, 1.2, 1.4)))
MOST_SERIES = len(SERIES) * len(DASHES)

FONT = "DejaVu Sans"  # travels with matplotlib
DPI = 150
TITLE, LABEL, TICK = 10.5, 9.0, 8.0
"""Font sizes in points."""


def new_figure(width: float, height: float, dpi: float = DPI) -> Figure:
    """A white figure of that many inches, with a canvas of its own: no window system, no pyplot."""
    figure = Figure(figsize=(width, height), dpi=dpi, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def series_style(place: int) -> dict[str, Any]:
    """Colour and dashes of the series at this place among ``MOST_SERIES``: neighbours differ in both, so that they are
    told apart in grey, too."""
    turn = place // len(SERIES)
    return {"color": SERIES[place % len(SERIES)], "linestyle": DASHES[(place + turn) % len(DASHES)]}


def text_style(size: float = LABEL, colour: str = INK, **more: Any) -> dict[str, Any]:
    """Keywords of a text; a dollar sign in it is a dollar sign."""
    return {"fontsize": size, "color": colour, "fontfamily": FONT, "parse_math": False, **more}


def tidy(axes: Axes) -> None:
    """Thin axes on the left and below, small quiet numbers, a faint horizontal grid behind the data."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(RULE)
        axes.spines[side].set_linewidth(0.8)
    axes.tick_params(color=RULE, labelcolor=MUTED, labelsize=TICK, width=0.8, length=3, labelfontfamily=FONT)
    axes.grid(axis="y", color=RULE, linewidth=0.5, alpha=0.6)
    axes.set_axisbelow(True)


def frame(axes: Axes) -> None:
    """A hairline around a picture, without ticks."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color(RULE)
        spine.set_linewidth(0.6)


def note(axes: Axes, text: str) -> Text:
    """A sentence in the middle of a picture that has nothing to show."""
    box = {"boxstyle": "round,pad=0.4", "facecolor": "white", "edgecolor": RULE, "linewidth": 0.6, "alpha": 0.92}
    style = text_style(TICK, MUTED, ha="center", va="center", bbox=box, wrap=True)
    return axes.text(0.5, 0.5, text, transform=axes.transAxes, **style)


def printable(text: str, length: int = 60) -> str:
    """``text`` on one line, with a box for what the font cannot draw, cut with an ellipsis at ``length``."""
    known = _charmap()
    drawn = "".join(c if ord(c) in known else "\u25a1" for c in " ".join(text.split()))
    return drawn if len(drawn) <= length else drawn[: length - 1].rstrip() + "…"


@cache
def _charmap() -> frozenset[int]:
    return frozenset(get_font(findfont(FONT)).get_charmap())
