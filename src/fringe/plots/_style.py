"""The style and the layout that all figures share.

The style is set on each artist, not through ``rcParams``: those belong to the process, so figures drawn in two threads
of a server would take each other's style, and a user's own settings would change.
"""

import io
import math
from collections.abc import Sequence
from functools import cache
from textwrap import wrap
from typing import Any, Literal

from matplotlib import rcParams
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.text import Text

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
#: Font sizes in points.
TITLE, LABEL, TICK = 10.5, 9.0, 8.0
#: Titles of methods in a figure, by the name under which they are computed.
METHODS = {
    "fringe": "FRInGe",
    "ig": "Integrated Gradients",
    "blur_ig": "Blur IG",
    "guided_ig": "Guided IG",
    "smoothgrad": "SmoothGrad",
    "expected_gradients": "Expected Gradients",
    "idg": "Integrated Decision Gradients",
    "ig2": "IG²",
    "agi": "Adversarial Gradients (AGI)",
    "ggig": "Geometrically guided IG",
    "geoig_knn": "Geodesic IG (neighbours)",
    "geoig_svi": "Geodesic IG (fitted path)",
    "rise": "RISE",
    "spectral_ig": "Spectral IG",
    "captum": "Grad-CAM (Captum)",
    "captum:grad_cam": "Grad-CAM",
    "captum:occlusion": "Occlusion",
    "captum:gradient_shap": "GradientSHAP",
    "captum:deep_lift": "DeepLIFT",
    "captum:guided_backprop": "Guided backpropagation",
    "captum:kernel_shap": "KernelSHAP",
    "captum:input_x_gradient": "Input × gradient",
    "zennit": "LRP",
    "zennit:epsilon_plus_flat": "LRP (ε, +, flat)",
    "zennit:epsilon_plus": "LRP (ε, +)",
    "zennit:epsilon_gamma_box": "LRP (ε, γ, box)",
    "zennit:epsilon_alpha2_beta1": "LRP (ε, α2β1)",
    "zennit:epsilon_alpha2_beta1_flat": "LRP (ε, α2β1, flat)",
    "zennit:excitation_backprop": "Excitation backpropagation",
    "lxt": "AttnLRP (lxt)",
    "lxt:attnlrp": "AttnLRP",
    "straight": "Straight line",
    "smooth": "Smoothed",
}
#: Words for a modifier, before the title of the method.
_MODIFIED = {"straight": "Straight", "smooth": "Smoothed"}
#: Inches that a letter of size ``TICK`` and a line of it take, and the margin around a figure.
LETTER, LINE, MARGIN = 0.066, 0.17, 0.1


class _Figure(Figure):
    """A figure that a notebook shows as a picture, also where pyplot was never imported."""

    def _repr_png_(self) -> bytes:
        return png_of(self)


def new_figure(width: float, height: float, *, dpi: float = DPI, layout: Any = None) -> Figure:
    """Return a white figure of this size in inches with its own canvas, without pyplot or a window system."""
    figure = _Figure(figsize=(width, height), dpi=dpi, facecolor="white", layout=layout)
    FigureCanvasAgg(figure)
    return figure


def png_of(figure: Figure, *, dpi: float | Literal["figure"] = "figure") -> bytes:
    """Return a figure as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def titled_figure(
    width: float,
    height: float,
    *,
    title: str = "",
    caption: Sequence[str] = (),
    handles: Sequence[Artist] = (),
) -> Figure:
    """Return a figure with ``width`` x ``height`` inches for its axes, plus room for the title above them and for
    captions and the legend of ``handles`` below; matplotlib's layout engine places everything."""
    lines = [line for text in caption for line in wrap(text, int((width - 2 * MARGIN) / (0.92 * LETTER)))]
    longest = max((len(str(handle.get_label())) for handle in handles), default=0)
    columns = max(1, min(len(handles), int((width - 2 * MARGIN) / (LETTER * longest + 0.55))))
    below = LINE * (len(lines) + math.ceil(len(handles) / columns))
    total = height + (0.3 if title else 0.0) + (below + 2 * MARGIN if below else 0.0)
    figure = new_figure(width, total, layout="constrained")
    set_padding(figure, w_pad=MARGIN, h_pad=0.06, rect=(0, 0, 1, 1))
    if title:
        style = text_style(TITLE, ha="left", fontweight="bold")
        figure.suptitle(sanitise(title, int(width * 10)), x=MARGIN / width, **style)
    if below:
        spacing: Style = {"handlelength": 2.2, "columnspacing": 1.6, "labelspacing": 0.4, "borderaxespad": 1}
        draw_legend(figure, handles, "\n".join(lines), loc="outside lower left", ncols=columns, **spacing)
    return figure


def draw_legend(figure: Figure | SubFigure, handles: Sequence[Artist], title: str, **layout: Any) -> None:
    """Draw a legend without a frame below a title in muted letters; ``layout`` says where and how wide."""
    small: Style = {"family": font_families(), "size": TICK}
    fonts: Style = {"prop": small, "title_fontproperties": small, "labelcolor": INK}
    legend = figure.legend(
        handles=list(handles), title=title or None, alignment="left", frameon=False, borderpad=0, **fonts, **layout
    )
    legend.get_title().set(color=MUTED, parse_math=False)
    for text in legend.get_texts():
        text.set_parse_math(False)


def set_padding(figure: Figure, **settings: Any) -> None:
    """Set the inches between axes, and other settings of the figure's layout engine."""
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.set(**settings)


def panels(
    count: int, size: tuple[float, float], *, across: int, width: float = 0.0, narrowest: float = 0.0, **notes: Any
) -> tuple[Figure, list[Axes]]:
    """Return a figure and its ``count`` axes, at most ``across`` in a row.

    Each takes ``size`` inches with its own words, and ``width`` more are shared; no figure is narrower than
    ``narrowest``. ``notes`` are the title, caption and handles of :func:`titled_figure`.
    """
    rows = math.ceil(count / across)
    columns = math.ceil(count / rows)
    figure = titled_figure(max(columns * size[0] + width, narrowest), rows * size[1], **notes)
    grid = figure.add_gridspec(rows, columns)
    return figure, [figure.add_subplot(grid[divmod(index, columns)]) for index in range(count)]


def is_leftmost(axes: Axes) -> bool:
    """Return whether axes stand in the first column of their figure."""
    position = axes.get_subplotspec()
    return position is not None and position.is_first_col()


def series_style(index: int) -> Style:
    """Return colour and dashes of this series among ``MAX_SERIES``; neighbours differ in both, also in grey."""
    turn = index // len(SERIES)
    return {"color": SERIES[index % len(SERIES)], "linestyle": DASHES[(index + turn) % len(DASHES)]}


def text_style(size: float = LABEL, colour: str = INK, **more: Any) -> Style:
    """Return keywords of a text; a dollar sign in it is a dollar sign."""
    return {"fontsize": size, "color": colour, "fontfamily": font_families(), "parse_math": False, **more}


def font_families() -> list[str]:
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
    """Draw a hairline around an image, without ticks."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set(color=RULE, linewidth=0.6)


def annotate(axes: Axes, text: str) -> Text:
    """Write a sentence in the middle of axes that have nothing to show."""
    box: Style = {"boxstyle": "round,pad=0.4", "facecolor": "white", "edgecolor": RULE, "linewidth": 0.6, "alpha": 0.92}
    style = text_style(TICK, MUTED, ha="center", va="center", bbox=box, wrap=True, in_layout=False)
    return axes.text(0.5, 0.5, text, transform=axes.transAxes, **style)


def sanitise(text: str, length: int = 60) -> str:
    """Return ``text`` on one line, with a box for what the font cannot draw, cut with an ellipsis at ``length``."""
    known = _charmap(*font_families())
    drawn = "".join(c if ord(c) in known else "\u25a1" for c in " ".join(text.split()))
    return drawn if len(drawn) <= length else drawn[: length - 1].rstrip() + "…"


def method_title(label: str) -> str:
    """Return a method's title in a figure, ``FRInGe (preview)`` for ``fringe:preview`` and ``Straight: FRInGe`` for
    ``straight:fringe``; other labels as they are."""
    name, _, rest = label.partition(":")
    kind, _, number = name.rstrip(")").partition("(")
    if label in METHODS:
        return METHODS[label]
    if kind in _MODIFIED and rest:
        return _MODIFIED[kind] + (f" ({number} px)" if number else "") + f": {method_title(rest)}"
    title = METHODS.get(name)
    return label if title is None else f"{title} ({rest})" if rest else title


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
