"""What the tests of figures share."""

import numpy as np
from matplotlib.text import Text


def assert_apart(figure, boxes):
    """Every box lies within the figure, and no two overlap."""
    for i, box in enumerate(boxes):
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.width
        assert box.y1 <= figure.bbox.height
        assert not any(box.overlaps(other) for other in boxes[:i])


def words(figure):
    """Every text that is drawn, but for the numbers of axes."""
    figure.canvas.draw()
    numbers = {tick for axes in figure.findobj(lambda a: hasattr(a, "get_xticklabels")) for tick in ticks(axes)}
    drawn = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text() and text not in numbers]
    return [text for text in drawn if text.get_window_extent().width > 1]


def ticks(axes):
    """The numbers at the axes, and what stands at their ends."""
    for axis in (axes.xaxis, axes.yaxis):
        yield axis.get_offset_text()
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            yield from (tick.label1, tick.label2)


def caption(figure):
    """The caption on one line."""
    return " ".join(" ".join(text.get_text().split()) for text in words(figure) if text.get_gid() == "caption")


def blank_margins(figure):
    """Inches without ink above, below, left and right of a figure."""
    figure.canvas.draw()
    ink = (np.asarray(figure.canvas.buffer_rgba())[..., :3] < 250).any(-1)
    rows, columns = np.flatnonzero(ink.any(1)), np.flatnonzero(ink.any(0))
    edges = (rows[0], ink.shape[0] - 1 - rows[-1], columns[0], ink.shape[1] - 1 - columns[-1])
    return [edge / figure.dpi for edge in edges]
