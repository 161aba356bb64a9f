"""Object detectors: the boxes that they predict, and one of them as a classifier.

A detector predicts classes at many places at once: anchors, cells of a grid, queries or proposals. Most find nothing,
and several find the same object, of which all but one are removed (non-maximum suppression). What is explained are the
class logits of one place, before that step: the place is chosen once, at the input, and does not change along a path.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fringe._network.isolation import isolated
from fringe._network.outputs import _describe  # pyright: ignore[reportPrivateUsage]
from fringe.errors import InputError, ModelOutputError, warn_caller

#: Boxes (B, N, 4), left, top, right and bottom in pixels of the input, and class logits (B, N, K) of N places; and,
#: for some detectors, a factor (B, N) of all probabilities of a place by which it ranks them, which is not explained.
Predictions = tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]
#: What is explained: so many boxes, those with a probability of at least one half, or those that match given ones.
Boxes = int | Literal["predicted"] | Sequence[Sequence[float]] | Tensor
#: The probability of a predicted box, and how many of them are explained; the overlap of two boxes of one object.
LEAST, MOST, SAME = 0.5, 10, 0.5
#: The overlap of a given box with the prediction that is explained for it, below which there is none.
NEAR = 0.1
_EXPECTED = "give a number from 1 on, 'predicted', or boxes (n, 4): left, top, right, bottom"
#: The name of the class of a place that has found nothing.
NOTHING = "no object"
#: What lists of labels call it.
_BACKGROUND = ("background", "n/a", "none")


class Places(Protocol):
    """How the predictions of a detector are read, for one whose places are no fixed list: windows or proposals.

    ``background`` is the column of "no object" of logits whose softmax is the prediction; None if the labels are
    independent, with a sigmoid each.
    """

    @property
    def background(self) -> int | None: ...

    def find(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the places (N, ...) of an input (1, C, H, W): with boxes (N, 4), logits (N, K) and factors (N)."""
        ...

    def at(self, x: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return the boxes (B, 4) and logits (B, K) of one place for each input (B, C, H, W)."""
        ...


@dataclass
class Dense:
    """Predictions of a fixed number of places: a place is its number."""

    model: Callable[..., Any]
    read: Callable[[Any, Tensor], Predictions]
    background: int | None = None

    def all(self, x: Tensor) -> Predictions:
        return self.read(self.model, x)

    def find(self, x: Tensor) -> tuple[Tensor, ...]:
        parts = [part[0] for part in self.all(x)]
        return torch.arange(len(parts[0]), device=x.device), *parts

    def at(self, x: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        boxes, logits = self.all(x)[:2]
        rows = torch.arange(len(x), device=x.device)
        return boxes[rows, places], logits[rows, places]


class FasterRCNN:
    """Two stages: a place is a proposal (4,) of the first one, in pixels; the second one alone is explained there."""

    background = 0

    def __init__(self, model: Any):
        self.model = model

    def find(self, x: Tensor) -> tuple[Tensor, ...]:
        images, _ = self.model.transform(list(x))
        proposals = self.model.rpn(images, self.model.backbone(images.tensors))[0][0]
        places = proposals / _scale(images, x)
        return places, *self.at(x.expand(len(places), *x.shape[1:]), places, shared=True)

    def at(self, x: Tensor, places: Tensor, shared: bool = False) -> tuple[Tensor, Tensor]:
        heads, (images, _) = self.model.roi_heads, self.model.transform(list(x[:1] if shared else x))
        features = self.model.backbone(images.tensors)
        features = {"0": features} if isinstance(features, Tensor) else features
        scaled = places * _scale(images, x)
        rows = [scaled] if shared else list(scaled[:, None])
        logits, codes = heads.box_predictor(heads.box_head(heads.box_roi_pool(features, rows, images.image_sizes)))
        boxes = heads.box_coder.decode(codes, [scaled])  # one for each class
        best = logits[:, 1:].argmax(1) + 1
        return boxes[torch.arange(len(x), device=x.device), best] / _scale(images, x), logits


@contextlib.contextmanager
def _suppression() -> Generator[None]:
    """Non-maximum suppression in Python, for a torchvision whose compiled operators do not load."""
    boxes: Any = sys.modules.get("torchvision.ops.boxes")
    if boxes is None or sys.modules["torchvision.extension"]._has_ops():  # pyright: ignore[reportPrivateUsage]
        yield
        return
    compiled, boxes.nms = boxes.nms, _distinct
    try:
        yield
    finally:
        boxes.nms = compiled


def _distinct(boxes: Tensor, scores: Tensor, limit: float) -> Tensor:
    """Numbers of boxes, the largest score first, of which no two overlap by more than ``limit``."""
    left, kept = scores.argsort(descending=True, stable=True), list[Tensor]()
    while len(left):
        kept.append(left[0])
        left = left[1:][overlap(boxes[left[1:]], boxes[left[0]]) <= limit]
    return torch.stack(kept) if kept else left


def _torchvision(model: Any, x: Tensor) -> Predictions:
    """SSD, SSDlite, RetinaNet and FCOS of torchvision, which resize and normalise by themselves."""
    images, _ = model.transform(list(x))
    features = model.backbone(images.tensors)
    features = [features] if isinstance(features, Tensor) else list(features.values())
    heads, anchors = model.head(features), torch.stack(model.anchor_generator(images, features))
    codes, coder = heads["bbox_regression"], model.box_coder
    if hasattr(coder, "decode_single"):
        boxes = coder.decode_single(codes.flatten(0, 1), anchors.flatten(0, 1)).view_as(codes)
    else:  # FCOS
        boxes = coder.decode(codes, anchors)
    boxes, logits = boxes / _scale(images, x), heads["cls_logits"]
    return (boxes, logits, heads["bbox_ctrness"].sigmoid()[..., 0]) if "bbox_ctrness" in heads else (boxes, logits)


def _transformers(model: Any, x: Tensor) -> Predictions:
    """DETR and its relatives in the transformers library: centre, width and height in shares of the image."""
    output = model(pixel_values=x)
    return _corners(output.pred_boxes) * x.new_tensor([x.shape[-1], x.shape[-2]]).repeat(2), output.logits


def _yolo(model: Any, x: Tensor) -> Predictions:
    """Centre, width, height in pixels and probabilities: (B, N, 4 + C), or (B, 4 + C, N) as of YOLOv8 and later."""
    output = model(x)
    values = output[0] if isinstance(output, (tuple, list)) else output
    if not isinstance(values, Tensor) or values.dim() != 3 or min(values.shape[1:]) < 5:
        message = f"its output is {_describe(values)}, expected boxes and classes (B, N, 4 + C) or (B, 4 + C, N)"
        raise ModelOutputError(message, argument="model", hint="give fringe.Detector(model, read=function)")
    values = values.movedim(1, 2) if values.shape[1] < values.shape[2] else values
    return _corners(values[..., :4]), torch.logit(values[..., 4:], torch.finfo(values.dtype).eps)


def _corners(boxes: Tensor) -> Tensor:
    return torch.cat([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], -1)


def _clipped(boxes: Tensor, x: Tensor) -> Tensor:
    """The parts of boxes (..., 4) within the image."""
    return boxes.clamp_min(0).minimum(boxes.new_tensor([x.shape[-1], x.shape[-2]]).repeat(2))


def _scale(images: Any, x: Tensor) -> Tensor:
    """How much larger torchvision has made the images, along x, y, x and y."""
    height, width = images.image_sizes[0]
    return x.new_tensor([width / x.shape[-1], height / x.shape[-2]]).repeat(2)


def is_detector(model: Any) -> bool:
    """Tell whether a model is a detector of a known kind, or a :class:`Detector`. Raises InputError as that does."""
    return isinstance(model, Detector) or places_of(model) is not None


def as_detector(model: Any, required: bool = False) -> Any:
    """Return a detector of a known kind as a :class:`Detector`, and any other model as it is.

    Args:
        model: A model.
        required: Whether boxes are asked for: a model that is no detector of a known kind is an error then.

    Returns:
        The model.

    Raises:
        InputError: If it is required, and is none.
    """
    is_plain = isinstance(model, Detector) or not (required or is_detector(model))
    return model if is_plain else Detector(model)


def places_of(model: Any) -> Places | None:
    """Return how the predictions of a known kind of detector are read; None for any other model."""

    def has(*names: str) -> bool:
        return all(hasattr(model, name) for name in names)

    if has("transform", "backbone", "rpn", "roi_heads"):
        return FasterRCNN(model)
    if has("transform", "backbone", "head", "anchor_generator", "box_coder"):
        return Dense(model, _torchvision, 0 if type(model).__name__ == "SSD" else None)
    if type(model).__module__.startswith("ultralytics."):
        return Dense(model, _yolo, None)
    if any("ForObjectDetection" in kind.__name__ for kind in type(model).__mro__):
        config = model.config  # the second is RT-DETR's and its relatives'
        if getattr(config, "two_stage", False) or hasattr(config, "encoder_hidden_dim"):
            message = f"{type(model).__name__} chooses its queries anew for each input"
            hint = "a query is then another object at each point of a path; explain a detector with fixed queries"
            raise InputError(message, argument="model", hint=hint)
        # as their losses: a softmax with one column more than there are labels, or a sigmoid for each label
        labels, last = model.config.num_labels, _last_linear(model)
        return Dense(model, _transformers, labels if last == labels + 1 else None)
    return None


def _last_linear(model: nn.Module) -> int:
    """How many numbers the class head of a detector of transformers has."""
    heads = [m for n, m in model.named_modules() if "class_embed" in n or "class_labels_classifier" in n]
    layers: list[Any] = [m for head in reversed(heads) for m in reversed(list(head.modules()))]
    return next(int(layer.out_features) for layer in layers if isinstance(layer, nn.Linear))


def overlap(one: Tensor, other: Tensor) -> Tensor:
    """Intersection over union of boxes (..., 4), which broadcast."""
    corner = torch.minimum(one[..., 2:], other[..., 2:]) - torch.maximum(one[..., :2], other[..., :2])
    shared = corner.clamp_min(0).prod(-1)
    area, area_of_other = ((b[..., 2:] - b[..., :2]).clamp_min(0).prod(-1) for b in (one, other))
    return shared / (area + area_of_other - shared).clamp_min(torch.finfo(shared.dtype).tiny)


def read_boxes(text: str) -> Boxes:
    """Read boxes as they are typed: ``predicted``, ``3``, or ``X0,Y0,X1,Y1;X0,...``."""
    if text == "predicted":
        return "predicted"
    try:
        boxes = [[float(side) for side in box.split(",")] for box in text.split(";")]
        return int(text) if text.isdecimal() else torch.tensor(boxes).reshape(-1, 4)
    except (ValueError, RuntimeError) as error:
        message = f"got {text!r}, expected 'predicted', a number or X0,Y0,X1,Y1"
        raise InputError(message, argument="boxes") from error


@dataclass(frozen=True)
class Found:
    """The explained boxes of an image: their places (n, ...), the predicted boxes (n, 4), the best label (n,), its
    score (n,) by which the detector ranks boxes, and its probability (n,) among all labels and "no object", which is
    what is explained; and how many ``classes`` there are, "no object" among them."""

    places: Tensor
    boxes: Tensor
    labels: Tensor
    scores: Tensor
    probabilities: Tensor
    classes: int


def as_boxes(boxes: Any) -> Tensor:
    """Read boxes (n, 4), or one of them, from anything that reads as an array. Raises InputError."""
    try:
        read = torch.as_tensor(boxes, dtype=torch.float32).cpu().reshape(-1, 4)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"got {boxes!r}", argument="boxes", hint=_EXPECTED) from error
    if not len(read) or bool((~(read[:, 2:] > read[:, :2])).any() | ~read.isfinite().all()):
        raise InputError(f"got {read.tolist()}, with a box that has no area", argument="boxes", hint=_EXPECTED)
    return read


def _count(boxes: int | str) -> tuple[int, float]:
    """How many predictions are explained, and the least probability of each."""
    if boxes == "predicted":
        return MOST, LEAST
    if isinstance(boxes, (bool, str)) or boxes < 1:
        raise InputError(f"got {boxes!r}", argument="boxes", hint=_EXPECTED)
    return boxes, 0.0


def _matching(number: int, asked: Tensor, predicted: Tensor, scores: Tensor) -> int:
    """The prediction with the largest product of overlap with the given box of this number, and probability."""
    shared = overlap(predicted, asked)
    row = int((shared * scores).argmax())
    if not shared[row] >= NEAR:
        hint = "boxes are left, top, right and bottom in pixels; boxes=3 takes the three most certain predictions"
        message = f"no prediction overlaps with given box {number} by {NEAR:.0%} or more"
        raise InputError(message, argument="boxes", hint=hint)
    if shared[row] < SAME:
        best = f"{float(shared[row]):.0%}"
        warn_caller(f"the prediction that matches given box {number} best overlaps with it by {best} only")
    return row


def _most_certain(predicted: Tensor, scores: Tensor, count: int, least: float) -> list[int]:
    """Distinct predictions, the most certain first."""
    rows = list[int]()
    for row in scores.argsort(descending=True, stable=True).tolist():
        if len(rows) == count or scores[row] < least:
            break
        if not rows or float(overlap(predicted[row], predicted[rows]).max()) <= SAME:
            rows.append(row)
    if not rows:
        message = (
            f"no predicted box has a probability of {LEAST} or more; the most certain one has {float(scores.max()):.2f}"
        )
        raise InputError(message, argument="boxes", hint="boxes=1 explains the most certain one")
    return rows


class Detector(nn.Module):
    """An object detector as a classifier of one place for each input: its logits (B, K) with a class "no object".

    Detectors of torchvision and of the transformers library, and MTCNN of facenet-pytorch, are known. Labels that are
    independent, with a sigmoid each, get a class "no object" of the logit 0: softmax then gives what the sigmoids say
    if at most one label is true, and the logit of a label is what it was.

    Args:
        model: The detector.
        read: How its output is read: ``"yolo"`` for (B, N, 4 + C) or (B, 4 + C, N) of centres, widths, heights and
            probabilities; or a function of the output that returns boxes (B, N, 4), left, top, right and bottom in
            pixels of the input, and class logits (B, N, K), with the same N for all inputs; or an object with the
            methods of :class:`Places`. None: the model is of a known kind.
        background: The column of "no object" of logits that ``read`` returns; None for independent labels.

    Raises:
        InputError: If the kind of detector is not known, or its places change with the input.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        read: Literal["yolo"] | Callable[[Any], Predictions] | Places | None = None,
        background: int | None = None,
    ):
        super().__init__()
        self.model = model
        self.training = getattr(model, "training", False)
        if read is None or isinstance(read, str):
            places = places_of(model) if read is None else Dense(model, _yolo, None)
        else:
            places = Dense(model, lambda net, x: read(net(x)), background) if callable(read) else read
        if places is None or (isinstance(read, str) and read != "yolo"):
            what = f"{type(model).__name__} is no detector of a known kind" if read is None else f"got {read!r}"
            hint = "say how its output is read: Detector(model, read='yolo'), or read=f; f(output) -> boxes, logits"
            raise InputError(what, argument="model" if read is None else "read", hint=hint)
        self.places = places

    @property
    def queries(self) -> tuple[nn.Module, ...]:
        """Modules whose positions are queries and not places of the image: the decoder of DETR and its relatives."""
        decoder = getattr(getattr(self.model, "model", None), "decoder", None)
        is_known = isinstance(self.places, Dense) and self.places.read is _transformers
        return tuple(decoder.modules()) if is_known and isinstance(decoder, nn.Module) else ()

    def forward(self, x: Tensor, *, place: Tensor | None = None) -> Tensor:
        """Compute the class logits (B, K) of a place for each input.

        Args:
            x: Inputs (B, C, H, W).
            place: Places (B, ...) as of :meth:`find`.

        Returns:
            Logits with a class "no object".

        Raises:
            InputError: If no place is given.
        """
        if place is None:
            hint = "fringe.explain finds the boxes; else give forward_kwargs={'place': detector.find(x).places}"
            raise InputError("a detector explains one place of each input", argument="place", hint=hint)
        return self._with_nothing(self.places.at(x, place)[1])

    def box(self, x: Tensor, place: Tensor) -> Tensor:
        """Compute the boxes of a place for each input.

        Args:
            x: Inputs (B, C, H, W).
            place: Places (B, ...) as of :meth:`find`.

        Returns:
            Boxes (B, 4): left, top, right and bottom in pixels of the inputs, within them.
        """
        return _clipped(self.places.at(x, place)[0], x)

    def names(self, labels: tuple[str, ...] | None, count: int) -> tuple[str, ...]:
        """Return the names of the classes, with that of the class "no object".

        Args:
            labels: Names of the labels, with or without one for the background; None: their numbers.
            count: How many classes there are, "no object" among them.

        Returns:
            A name for each column of the logits. Labels of another number are as they were.
        """
        at = (count - 1 if self.places.background is None else self.places.background) % count
        labels = tuple(f"class {k}" for k in range(count) if k != at) if labels is None else labels
        if NOTHING in labels or len(labels) not in (count - 1, count):
            return labels
        if len(labels) == count and labels[at].strip("_").lower() not in _BACKGROUND:
            return labels
        return (*labels[:at], NOTHING, *labels[at + (len(labels) == count) :])

    def _with_nothing(self, logits: Tensor) -> Tensor:
        return logits if self.places.background is not None else F.pad(logits, (0, 1))

    def _chances(self, logits: Tensor) -> Tensor:
        """The probabilities by which the detector itself ranks, zero for "no object"."""
        column = self.places.background
        if column is None:
            return logits.sigmoid()
        return logits.softmax(-1).index_fill(-1, torch.tensor(column % logits.shape[-1], device=logits.device), 0)

    def find(self, x: Tensor, boxes: Boxes = "predicted") -> Found:
        """Choose places of an image.

        Args:
            x: The input (1, C, H, W).
            boxes: A number, for so many distinct predictions; ``"predicted"``, for those with a probability of one half
                or more; or boxes (n, 4), of which each takes the prediction with the largest product of overlap
                (intersection over union) and probability.

        Returns:
            The places, and what is predicted there.

        Raises:
            InputError: If nothing is predicted, or nothing overlaps with a given box.
        """
        count = _count(boxes) if isinstance(boxes, (int, str)) else None
        asked = [] if isinstance(boxes, (int, str)) else as_boxes(boxes).to(x)
        with isolated([self], x.device, "eval"), torch.no_grad(), _suppression():
            places, predicted, logits, *factor = self.places.find(x)
            predicted = _clipped(predicted, x)
        if not len(places):
            raise InputError("the detector predicts no box at all", argument="boxes", hint="give another image")
        scores, labels = self._chances(logits).max(-1)
        scores = (scores * factor[0]).sqrt() if factor else scores
        rows = (
            [_matching(number, one, predicted, scores) for number, one in enumerate(asked, 1)]
            if count is None
            else _most_certain(predicted, scores, *count)
        )
        logits = self._with_nothing(logits)
        chances = logits.softmax(-1).gather(1, labels[:, None])[:, 0]
        each = (value[rows].detach() for value in (places, predicted, labels, scores, chances))
        return Found(*each, classes=logits.shape[-1])

    def follow(self, snapshots: Tensor, place: Tensor, target: int) -> tuple[Tensor, Tensor]:
        """Say what becomes of a box along a path.

        Args:
            snapshots: Points (M, C, H, W) of the path, the input first.
            place: The place (...) of the box.
            target: The explained class.

        Returns:
            The box (M, 4) of the place at these points; and the largest probability (M,) of the class among all places
            whose boxes overlap with that at the input by half or more: whether the detector still sees it there. NaN
            if the places are not fixed.
        """
        dense = self.places if isinstance(self.places, Dense) else None
        moved, seen = list[Tensor](), list[Tensor]()
        with isolated([self], snapshots.device, "eval"), torch.no_grad():
            for x in snapshots.split(1):
                if dense is None:
                    moved.append(self.box(x, place[None]))
                    continue
                boxes, logits = dense.all(x)[:2]
                boxes, chances = _clipped(boxes[0], x), self._chances(logits[0])
                moved.append(boxes[place][None])
                if target < chances.shape[1]:  # else "no object", which no place sees
                    seen.append(torch.where(overlap(boxes, moved[0]) >= SAME, chances[:, target], 0.0).amax()[None])
        return torch.cat(moved), torch.cat(seen) if seen else torch.full((len(snapshots),), torch.nan)
