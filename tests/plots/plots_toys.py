"""What the tests of figures share."""


def assert_apart(figure, boxes):
    """Every box lies within the figure, and no two overlap."""
    for i, box in enumerate(boxes):
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.width
        assert box.y1 <= figure.bbox.height
        assert not any(box.overlaps(other) for other in boxes[:i])
