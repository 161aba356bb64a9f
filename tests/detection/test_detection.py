"""Boxes of detectors: which place is explained, in which pixels, and what becomes of it along a path."""

import re

import numpy as np
import pytest
import torch
from detection_toys import NAMES, Grid, explained, image
from PIL import Image
from torch import nn

import fringe
from fringe import Detector, InputError
from fringe.detection import NOTHING, overlap
from fringe.models import Preprocessing

# -- which place ------------------------------------------------------------------------------------------------------


def test_the_map_of_a_linear_place_is_the_weight_times_the_pixels():
    """Integrated Gradients of a linear score, in closed form; nothing outside of the square counts."""
    net, x = Grid(), image()
    result = explained(net, x, boxes=2, baseline=0.0)
    for row, box in enumerate(result.context.boxes.int().tolist()):
        left, top, right, bottom = box
        expected = torch.zeros_like(x[0])
        weight = net.layer.weight[result.target[row]]
        expected[:, top:bottom, left:right] = weight * x[0, :, top:bottom, left:right]
        torch.testing.assert_close(result.values[row], expected, rtol=0, atol=1e-12)


def test_boxes_are_the_most_probable_ones_that_are_distinct():
    net, x = Grid(), image()
    output = net(x)[0]
    chances = output[:, 4:].amax(1)
    best = chances.argsort(descending=True)[:3]
    result = explained(net, x, boxes=3)
    assert result.target.tolist() == output[best, 4:].argmax(1).tolist()
    corners = torch.cat([output[best, :2] - 4, output[best, :2] + 4], 1)
    torch.testing.assert_close(result.context.boxes, corners.float())
    odds = output[best, 4:] / (1 - output[best, 4:])  # one label at most is true: a softmax with the logit 0
    torch.testing.assert_close(result.context.probabilities[:, :3], (odds / (1 + odds.sum(1, keepdim=True))).float())


def test_a_sigmoid_is_a_softmax_with_no_object_where_one_label_is_possible():
    net, x = Grid(labels=1), image()
    result = explained(net, x, boxes=2, classes=["cup"])
    output = net(x)[0, :, 4]
    torch.testing.assert_close(result.context.probabilities[:, 0].double(), output.topk(2).values, rtol=1e-6, atol=0)
    assert result.context.class_names == ("cup", NOTHING)


def test_classes_without_names_have_numbers_and_no_object_is_named():
    result = explained(boxes=1, classes=None)
    assert result.context.class_names == ("class 0", "class 1", "class 2", NOTHING)


def test_the_probability_of_a_box_is_that_among_all_classes():
    found = Detector(Grid(), read="yolo").find(image(), 3)
    result = explained(boxes=3)
    expected = result.context.probabilities.gather(1, result.target[:, None])[:, 0]
    torch.testing.assert_close(found.probabilities.float(), expected)
    assert (found.scores > found.probabilities).all()  # a sigmoid, which other labels do not lower


def test_overlapping_predictions_are_one_box():
    class Twice(Grid):
        def forward(self, x):
            output = super().forward(x)
            return torch.cat([output, output + torch.tensor([0.5, 0.5, 0, 0, 0, 0, 0], dtype=x.dtype)], 1)

    boxes = explained(Twice(), boxes=4).context.boxes
    assert all(overlap(boxes[i], boxes[j]) <= 0.5 for i in range(4) for j in range(i))


def test_no_object_is_never_the_class_that_is_explained():
    result = explained(Grid(decisive=0.1), boxes=2)
    assert (result.context.probabilities.argmax(1) == 3).all()
    assert (result.target < 3).all()
    torch.testing.assert_close(explained(Grid(decisive=0.1), boxes=2, target=NOTHING).target, torch.tensor([3, 3]))


@pytest.mark.parametrize("method", ["ig", "fringe"])
def test_a_box_alone_is_as_in_a_batch(method):
    three = explained(boxes=3, method=method)
    alone = explained(boxes=three.context.boxes[1:2], method=method)
    torch.testing.assert_close(alone.values[0], three.values[1], rtol=0, atol=1e-9)
    assert alone.target.tolist() == three.target[1:2].tolist()


def test_both_orders_of_axes_are_read():
    one, other = (explained(Grid(turned=turned), boxes=2) for turned in (False, True))
    torch.testing.assert_close(one.values, other.values, rtol=0, atol=1e-12)


def test_a_function_reads_any_output_and_a_background_is_no_label():
    def read(output):
        boxes = torch.cat([output[..., :2] - 4, output[..., :2] + 4], -1)
        return boxes, torch.cat([torch.zeros_like(output[..., :1]), output[..., 4:].logit()], -1)

    detector = Detector(Grid(), read=read, background=0)
    result = fringe.explain(detector, image(), boxes=2, method="ig", classes=["background", *NAMES])
    assert result.context.class_names == (NOTHING, *NAMES)
    assert (result.target > 0).all()


def test_a_detector_whose_places_are_no_list():
    """Windows: an object with ``find`` and ``at`` reads them."""

    class Windows:
        background = None

        def find(self, x):
            places = torch.tensor([[0, 0], [8, 16]])
            return places, *self.at(x.expand(2, *x.shape[1:]), places)

        def at(self, x, places):
            crops = torch.stack([one[:, y : y + 8, z : z + 8] for one, (y, z) in zip(x, places.tolist(), strict=True)])
            corners = places.flip(1).to(x)
            return torch.cat([corners, corners + 8], 1), Grid().layer(crops).flatten(1)

    result = fringe.explain(Detector(Grid(), read=Windows()), image(), boxes=2, method="ig", telemetry=5)
    assert sorted(result.context.boxes.int().tolist()) == [[0, 0, 8, 8], [16, 8, 24, 16]]
    assert result.diagnostics["box_seen"].isnan().all() if "box_seen" in result.diagnostics else True


class Pyramid(nn.Module):
    """A detector whose head is shared by a fine and a coarse grid; all weights are positive."""

    def __init__(self):
        super().__init__()
        self.body, self.down, self.head = nn.Conv2d(3, 4, 4, 4), nn.Conv2d(4, 4, 2, 2), nn.Conv2d(4, 2, 1)
        for parameter in self.parameters():
            parameter.data = torch.rand(parameter.shape, generator=torch.Generator().manual_seed(1)).double()
        self.eval()

    def forward(self, x):
        fine = self.body(x)
        outputs = list[torch.Tensor]()
        for features, side in ((fine, 4.0), (self.down(fine), 8.0)):
            logits = self.head(features)
            rows, columns = (torch.arange(size, dtype=x.dtype) * side for size in logits.shape[-2:])
            corners = torch.stack(torch.meshgrid(columns, rows, indexing="xy")).flatten(1).expand(len(x), -1, -1)
            outputs.append(torch.cat([corners, corners + side, logits.flatten(2)], 1))
        return torch.cat(outputs, 2).movedim(1, 2)


@pytest.mark.parametrize(("box", "layer"), [((8, 4, 12, 8), "model.body"), ((8, 16, 16, 24), "model.down")])
def test_a_head_that_several_grids_share_is_no_layer_of_a_class_activation_map(box, layer):
    """Which grid it is of is not said; the layer before it has one, where the place has its own square alone."""
    detector = Detector(Pyramid(), read=lambda y: (y[..., :4], y[..., 4:]))
    x = torch.rand(1, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    result = fringe.explain(detector, x, boxes=[box], method="hirescam")
    assert f"the layer is {layer}" in result.advice[0]
    left, top, right, bottom = box
    rows, columns = (result.values[0].sum(0) == result.values[0].sum(0).max()).nonzero().double().mean(0)
    assert left <= columns <= right
    assert top <= rows <= bottom


class OneGrid(nn.Module):
    """A detector of one grid of 8 by 8 places, whose logits are negative; its head is a convolution, or a linear layer
    of tokens."""

    def __init__(self, is_tokens):
        super().__init__()
        self.body, self.is_tokens = nn.Sequential(nn.Conv2d(3, 6, 8, 8), nn.ReLU()), is_tokens
        self.head = nn.Linear(6, 3) if is_tokens else nn.Conv2d(6, 3, 1)
        for parameter in self.parameters():
            parameter.data = torch.rand(parameter.shape, generator=torch.Generator().manual_seed(1)).double() - 0.3
        self.head.bias.data -= 9
        self.eval()

    def forward(self, x):
        features = self.body(x)
        logits = self.head(features.flatten(2).mT) if self.is_tokens else self.head(features).flatten(2).mT
        rows, columns = (torch.arange(8, dtype=x.dtype) * 8 for _ in "ab")
        corners = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1).reshape(-1, 2).expand(len(x), -1, -1)
        return torch.cat([corners, corners + 8, logits], -1)


@pytest.mark.parametrize("is_tokens", [True, False])
def test_what_a_place_answers_is_no_layer_of_a_class_activation_map(is_tokens):
    """A map of the answers would be zero, as they are negative; the layer before has evidence at the place."""
    detector = Detector(OneGrid(is_tokens), read=lambda y: (y[..., :4], y[..., 4:]))
    x = torch.rand(1, 3, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    result = fringe.explain(detector, x, boxes=[(8, 16, 16, 24)], method="hirescam")
    assert "the layer is model.body" in result.advice[0]
    rows, columns = (result.values[0].sum(0) == result.values[0].max() * 3).nonzero().double().mean(0)
    assert (8 <= columns <= 16, 16 <= rows <= 24) == (True, True)


def test_the_integral_of_a_place_is_that_of_captum_in_double_precision():
    captum = pytest.importorskip("captum.attr")

    class Curved(Grid):
        def forward(self, x):
            return super().forward(x.square() + 0.3 * x.roll(1, -1) * x)

    x, detector = image(), Detector(Curved(), read="yolo")
    found = detector.find(x, 1)
    own = captum.IntegratedGradients(lambda z: detector(z, place=found.places.expand(len(z))))
    expected = own.attribute(x, 0.0, target=int(found.labels), n_steps=9, method="gausslegendre")
    method = fringe.IntegratedGradients(steps=9, rule="gausslegendre")
    result = fringe.explain(detector, x, boxes=1, method=method, baseline=0.0)
    torch.testing.assert_close(result.values, expected, rtol=1e-6, atol=1e-9)  # its alphas have seven digits


# -- pixels of the photograph -----------------------------------------------------------------------------------------

RECIPES = [
    "unit",
    "resize=40",
    "resize=40x72",
    "resize=48,crop=40",
    "resize=30,crop=44x60",
    "crop=50x90",
    "crop=120x80",
    "resize=60,longest=64",
]


@pytest.mark.parametrize("size", [(96, 64), (64, 97), (80, 80)])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_box_of_the_photograph_is_found_on_the_input_to_one_pixel(recipe, size):
    """A white rectangle is drawn on a photograph and looked for on what the network sees."""
    width, height = size
    left, top, right, bottom = 28, 30, 44, 46
    photo = np.zeros((height, width, 3), np.uint8)
    photo[top:bottom, left:right] = 255
    prepared = Preprocessing.parse(f"{recipe},interpolation=bilinear").pixels(Image.fromarray(photo))[0]
    part = torch.tensor(Preprocessing.parse(recipe).shown_part(width, height))
    expected = fringe.attribution.to_input(torch.tensor([left, top, right, bottom]).float(), part, prepared.shape)
    rows, columns = (prepared > 0.5).nonzero().T
    seen = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    assert np.abs(np.subtract(seen, expected.tolist())).max() <= 1.0
    back = fringe.attribution.to_photograph(expected, part, prepared.shape)
    torch.testing.assert_close(back, torch.tensor([left, top, right, bottom]).float(), rtol=0, atol=1e-3)


def test_boxes_are_given_and_returned_in_pixels_of_the_photograph():
    pixels = np.random.default_rng(0).integers(0, 256, (120, 160, 3)).astype(np.uint8)
    detector = Detector(Grid().float(), read="yolo")
    options = {"preprocessing": "resize=60,crop=48x64", "method": "ig", "classes": NAMES}
    first = fringe.explain(detector, pixels, boxes=2, **options)
    inner = fringe.explain(detector, first.context.inputs[:1], boxes=2, method="ig")
    torch.testing.assert_close(first.context.boxes, 2 * inner.context.boxes + torch.tensor([16.0, 12.0, 16.0, 12.0]))
    again = fringe.explain(detector, pixels, boxes=first.context.boxes.tolist(), **options)
    torch.testing.assert_close(again.values, first.values)
    assert first.context.box_on_input(1) == pytest.approx(inner.context.boxes[1].tolist(), abs=1e-4)


def test_boxes_of_several_photographs_are_rows_with_names():
    x = torch.cat([image(0), image(1)])
    result = explained(x=x, boxes=2, ids=None)
    assert result.context.ids == ("image-0#1", "image-0#2", "image-1#1", "image-1#2")
    alone = explained(x=image(1), boxes=2)
    torch.testing.assert_close(result.values[2:], alone.values, rtol=0, atol=1e-12)


# -- along the path ---------------------------------------------------------------------------------------------------


def test_how_far_a_place_moves_on_the_way_is_said():
    """The box moves with the mean of the image by a known amount; the overlap of two squares then is known."""
    drift = 6.0
    result = explained(Grid(drift=drift), boxes=1, method="fringe", telemetry=True)
    ends = result.trajectory[0].snapshots[[0, -1]]
    moved = drift * float((ends[1].mean() - ends[0].mean()).abs())
    shared = max(8 - moved, 0.0) ** 2
    assert float(result.diagnostics["box_overlap"][0]) == pytest.approx(shared / (128 - shared), abs=1e-6)
    torch.testing.assert_close(result.trajectory[0].boxes[0], result.context.boxes[0].double(), rtol=0, atol=1e-4)
    points = len(result.trajectory[0].boxes)
    assert (
        result.passes.forward
        == explained(Grid(drift=drift), boxes=1, method="fringe", telemetry=False).passes.forward + points
    )


def test_whether_another_place_still_sees_the_object_is_said():
    """Of two equal places beside each other, a path explains one; both lose the object, or the other is not moved."""

    class Pair(Grid):
        """A second list of places with the same boxes that looks at the other half of the image."""

        def forward(self, x):
            output = super().forward(x)
            return torch.cat([output, torch.cat([output[..., :4], 0 * output[..., 4:] + 0.8], -1)], 1)

    lost, kept = (explained(net, boxes=1, method="fringe", telemetry=True) for net in (Grid(), Pair()))
    end = Grid()(lost.trajectory[0].snapshots[-1:])[0]
    row = int((end[:, :2] + torch.tensor([-4.0, -4.0]) - lost.context.boxes[0, :2]).abs().sum(1).argmin())
    assert float(lost.diagnostics["box_seen"][0]) == pytest.approx(end[row, 4 + lost.target[0]].item(), abs=1e-9)
    assert float(kept.diagnostics["box_seen"][0]) == pytest.approx(0.8, abs=1e-9)


def test_a_result_is_saved_and_loaded_with_its_boxes(tmp_path):
    result = explained(boxes=2, telemetry=3)
    result.save(tmp_path / "boxes.safetensors")
    loaded = fringe.load(tmp_path / "boxes.safetensors")
    torch.testing.assert_close(loaded.context.boxes, result.context.boxes, rtol=0, atol=0)
    torch.testing.assert_close(loaded[1].context.boxes, result.context.boxes[1:], rtol=0, atol=0)
    assert loaded.diagnostics.keys() == result.diagnostics.keys()


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("boxes", "words"),
    [
        (0, "got 0"),
        (True, "got True"),
        ("all", "got 'all'"),
        ([(4, 4, 4, 9)], "no area"),
        ([(0, 0, float("nan"), 9)], "no area"),
        ([(0, 0, 9)], r"got \[\(0, 0, 9\)\]"),
        ([(0, 0, 8, 8), (500, 500, 510, 510)], "no prediction overlaps with given box 2 by 10%"),
    ],
)
def test_boxes_that_cannot_be_explained_are_refused(boxes, words):
    with pytest.raises(InputError, match=f"boxes: .*{words}"):
        explained(boxes=boxes)


def test_an_image_without_a_prediction_is_refused_with_the_most_certain_one():
    with pytest.raises(InputError, match=r"the most certain one has 0\.2.*boxes=1"):
        explained(Grid(decisive=0.01))


def test_a_box_that_hardly_matches_is_said():
    box = explained(boxes=1).context.boxes[0]
    with pytest.warns(UserWarning, match=re.compile("overlaps with it by 3[0-9]% only")):
        explained(boxes=[(box + torch.tensor([4.0, 0.0, 4.0, 0.0])).tolist()])


def test_a_classifier_has_no_boxes():
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
    with pytest.raises(InputError, match="no detector of a known kind"):
        fringe.explain(net, torch.rand(1, 3, 4, 4), boxes=1)
    with pytest.raises(InputError, match="a Classifier has no boxes"):
        fringe.explain(fringe.Classifier(net), torch.rand(1, 3, 4, 4), boxes=1)


def test_given_boxes_belong_to_one_photograph():
    with pytest.raises(InputError, match="got boxes for 2 images"):
        explained(x=torch.cat([image(0), image(1)]), boxes=[(0, 0, 8, 8)])


def test_an_output_that_is_no_list_of_boxes_is_named():
    with pytest.raises(fringe.ModelOutputError, match=r"expected boxes and classes \(B, N, 4 \+ C\)"):
        fringe.explain(Detector(lambda x: x, read="yolo"), image(), boxes=1)


def test_a_place_is_needed():
    with pytest.raises(InputError, match=r"one place of each input.*detector\.find\(x\)\.places"):
        fringe.attribute(Detector(Grid(), read="yolo"), image(), method="ig")


def test_a_detector_states_what_its_model_states():
    net = Grid().float()
    net.preprocessing, net.class_names = "resize=48x64,mean=0,std=1", NAMES
    pixels = torch.randint(0, 256, (96, 128, 3), generator=torch.Generator().manual_seed(0)).byte().numpy()
    result = fringe.explain(Detector(net, read="yolo"), pixels, boxes=1, method="ig")
    assert result.values.shape == (1, 3, 48, 64)
    assert result.context.class_names == (*NAMES, NOTHING)


def test_a_detector_in_training_mode_is_put_back():
    net = Grid()
    net.train()
    with pytest.warns(UserWarning, match="the model is in training mode"):
        explained(net, boxes=1)
    assert net.training
