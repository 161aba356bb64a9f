"""Methods compared on the boxes of a detector: its controls in closed form, and photographs as clusters."""

import math

import pytest
import torch
from detection_toys import Grid, image

import fringe
from fringe import Detector
from fringe.evaluation import BOX_CONTROLS, CONTROLS, TidyScores, estimate, tidy

METHODS = [("ig", fringe.IntegratedGradients(steps=4))]


class Apart(Grid):
    """Boxes that are no squares, and do not end at whole pixels."""

    def forward(self, x):
        output = super().forward(x)
        return torch.cat(
            [output[..., :2], output[..., 2:4] * torch.tensor([0.825, 0.5], dtype=x.dtype), output[..., 4:]], -1
        )


def compared(x=None, net=None, **options):
    x = torch.cat([image(seed) for seed in range(3)]) if x is None else x
    return fringe.compare(Detector(net or Grid(), read="yolo"), x, METHODS, ["sparseness"], **{"boxes": 2, **options})


@pytest.fixture(scope="module")
def result():
    return compared()


def test_the_maps_of_the_controls_against_a_loop():
    found = compared(image(), Apart(), boxes=1)
    maps = {row.label: row.maps[0] for row in found.rows}
    left, top, right, bottom = found.context.boxes[0].tolist()
    assert (right - left, bottom - top) == (pytest.approx(6.6), pytest.approx(4.0))
    height, width = 48, 64
    for i in range(height):
        for j in range(width):
            covered = max(0, min(right, j + 1) - max(left, j)) * max(0, min(bottom, i + 1) - max(top, i))
            away = (j + 0.5 - (left + right) / 2) / (right - left), (i + 0.5 - (top + bottom) / 2) / (bottom - top)
            near = math.exp(-8 * (away[0] ** 2 + away[1] ** 2))
            for channel in range(3):
                assert maps["box"][channel, i, j].item() == pytest.approx(covered, abs=1e-5)
                assert maps["box_centre"][channel, i, j].item() == pytest.approx(near, abs=1e-5)
    torch.testing.assert_close(maps["box_edge"], maps["edge"] * maps["box"], rtol=1e-12, atol=0)


def test_the_controls_of_a_box_take_part_in_any_case(result):
    labels = [row.label for row in result.rows if row.control]
    assert labels[: len(CONTROLS) + 3] == [*CONTROLS, *BOX_CONTROLS]
    assert [row.label for row in compared(controls=False).rows if row.control] == [*BOX_CONTROLS]
    of_classifier = fringe.compare("embedded:digits", "embedded:digits:0:2", METHODS, ["sparseness"])
    assert not {row.label for row in of_classifier.rows} & {*BOX_CONTROLS}


def test_maps_and_classes_are_those_of_explain(result):
    x = torch.cat([image(seed) for seed in range(3)])
    own = fringe.explain(Detector(Grid(), read="yolo"), x, boxes=2, method=METHODS[0][1])
    torch.testing.assert_close(result.rows[0].maps, own.values, rtol=0, atol=1e-12)
    assert result.target.tolist() == own.target.tolist()
    assert result.images == own.context.ids


def test_boxes_of_one_photograph_are_one_cluster(result):
    """Their intervals are those of resampled photographs, and three photographs are too few for a test of six boxes."""
    assert result.clusters == tuple(f"image-{i}" for i in (0, 0, 1, 1, 2, 2))
    rows = tidy(result)
    scores = [row["score"] for row in rows if row["method"] == "ig"]
    (entry,) = (one for one in TidyScores(rows, result.metrics, 0, result.clusters).entries() if one["method"] == "ig")
    expected = estimate(scores, clusters=["a", "a", "b", "b", "c", "c"])
    assert (entry["low"], entry["high"]) == (expected.low, expected.high)
    assert (entry["low"], entry["high"]) != (estimate(scores).low, estimate(scores).high)
    assert entry["clusters"] == 3
    assert "6 boxes of 3 photographs" in repr(result)
    assert "3 photographs cannot show" in repr(result)


def test_as_many_photographs_as_images_are_needed_for_a_test():
    """Six images can show that one score is better, and six boxes of three photographs cannot."""

    def tested(count, boxes):
        found = compared(torch.cat([image(seed) for seed in range(count)]), boxes=boxes)
        (entry,) = (one for one in found.tidy_scores.entries() if not one["control"])
        return entry["better_than_controls"]

    assert tested(6, 1) is not None
    assert tested(3, 2) is None


def test_no_object_is_not_what_is_compared():
    """Its probability is the largest for every box of this network."""
    found = compared(image(), Grid(decisive=0.1), boxes=2)
    assert (found.context.probabilities.argmax(1) == 3).all()
    assert (found.target < 3).all()
