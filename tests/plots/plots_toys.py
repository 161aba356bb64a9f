"""What the tests of figures share: the words of a figure, and the law of where they stand."""

from matplotlib.axes import Axes
from matplotlib.text import Text


def written(figure):
    """The texts of a figure that is not drawn for it."""
    return [text.get_text() for text in figure.findobj(Text) if text.get_visible() and text.get_text()]


def words(figure):
    """Every text that is drawn, but for the numbers of axes."""
    figure.draw_without_rendering()
    numbers = {tick for axes in figure.findobj(Axes) for tick in ticks(axes)}
    drawn = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text() and text not in numbers]
    return [text for text in drawn if text.get_window_extent().width > 1]


def named_lines(axes):
    """The lines of axes by name."""
    return {line.get_gid(): line for line in axes.lines}


def ticks(axes):
    """The numbers at the axes, and what stands at their ends."""
    for axis in (axes.xaxis, axes.yaxis):
        yield axis.get_offset_text()
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            yield from (tick.label1, tick.label2)


def shown_ticks(axes):
    """The numbers at the axes that are drawn."""
    drawn = [t for axis in (axes.xaxis, axes.yaxis) for t in axis._update_ticks()] if axes.axison else []
    labels = [label for tick in drawn for label in (tick.label1, tick.label2) if label.get_visible()]
    return [text for text in (*labels, axes.yaxis.get_offset_text()) if text.get_text()]


def caption(figure):
    """The caption on one line."""
    found = [text for text in figure.findobj(Text) if text.get_gid() == "caption"]
    return " ".join(" ".join(text.get_text().split()) for text in found)


def assert_legible(figure):
    """No text leaves the figure, none stands on another one, and titles and legends stand on no axes."""
    texts = [*words(figure), *(text for axes in figure.findobj(Axes) for text in shown_ticks(axes))]
    texts = [text for text in texts if text.get_rotation() % 90 == 0]  # the box of one at 45 degrees is mostly empty
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    for index, (words_, box) in enumerate(boxes):
        assert box.x0 >= -0.5, words_
        assert box.y0 >= -0.5, words_
        assert box.x1 <= figure.bbox.width + 0.5, words_
        assert box.y1 <= figure.bbox.height + 0.5, words_
        for other, place in boxes[:index]:
            assert not box.padded(-0.5).overlaps(place), (words_, other)
    places = [axes.get_window_extent().padded(-1) for axes in figure.findobj(Axes) if axes.axison or axes.images]
    inside = {text for axes in figure.findobj(Axes) for text in axes.texts}
    for text in texts:
        assert text in inside or not any(text.get_window_extent().overlaps(place) for place in places), text
