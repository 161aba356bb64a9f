"""How alike metrics rank methods: a matrix of rank correlations."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fringe._text import number
from fringe.plots import _style as styles

#: Letters of a name.
_NAME = 26
#: Inches of a cell.
_CELL = 0.62


def plot_agreement(
    names: Sequence[str],
    tau: Sequence[Sequence[float]],
    low: Sequence[Sequence[float]],
    high: Sequence[Sequence[float]],
    *,
    title: str = "",
) -> Figure:
    """Draw Kendall's tau (M, M) between metrics, NaN where it is not defined: blue for the same order and red for the
    opposite one. Below the diagonal each cell has the interval, too. Raises ValueError for no metrics, or another
    shape."""
    count = len(names)
    if not count or any(len(rows) != count or any(len(row) != count for row in rows) for rows in (tau, low, high)):
        raise ValueError(f"plot_agreement: got {count} names, expected matrices of as many rows and columns")
    shown = [styles.sanitise(name, _NAME) for name in names]
    room = 1.1 * styles.LETTER * max(map(len, shown))
    figure, (axes,) = styles.panels(
        1,
        (_CELL * count, _CELL * count + 0.8 * room),
        across=1,
        width=room,
        narrowest=3.4,
        title=title,
        caption=("Kendall's τ of the order of the methods; below the diagonal with its 95 % interval over images",),
    )
    values = [[float(value) for value in row] for row in tau]
    axes.imshow(values, cmap="RdBu", vmin=-1.25, vmax=1.25, aspect="equal", gid="agreement")
    for row in range(count):
        for column in range(count):
            _write(axes, row, column, values[row][column], (low[row][column], high[row][column]))
    axes.set_xticks(range(count), shown, rotation=45, ha="right", rotation_mode="anchor", parse_math=False)
    axes.set_yticks(range(count), shown, parse_math=False)
    axes.tick_params(length=0, labelcolor=styles.INK, labelsize=styles.TICK)
    axes.grid(visible=False)
    axes.set_xticks([edge - 0.5 for edge in range(1, count)], minor=True)
    axes.set_yticks([edge - 0.5 for edge in range(1, count)], minor=True)
    axes.grid(which="minor", color="white", linewidth=1.5)
    axes.tick_params(which="minor", length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure


def _write(axes: Axes, row: int, column: int, value: float, ends: tuple[float, float]) -> None:
    """Write a cell; below the diagonal with its interval."""
    colour = "white" if math.isfinite(value) and abs(value) > 0.8 else styles.INK
    style = styles.text_style(styles.TICK, colour, ha="center", va="center")
    with_interval = column < row and all(map(math.isfinite, ends))
    axes.text(column, row - (0.12 if with_interval else 0.0), number(value, 2), **style)
    if with_interval:
        words = "…".join(number(end, 1) for end in ends)
        muted = colour if colour == "white" or abs(value) > 0.4 else styles.MUTED
        axes.text(column, row + 0.22, words, **styles.text_style(styles.TICK - 2, muted, ha="center", va="center"))
