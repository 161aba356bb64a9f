"""Scenes of a detector: two objects in noise, and it is known whether the class of a box is in the box."""

from abc import abstractmethod
from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from fringe._numbers.rng import KeyedGenerator
from fringe.bench.scenes._base import Example, Gate, Images, Networks
from fringe.bench.scenes._training import TrainedScene, Training, first, share
from fringe.detection import Detector, overlap
from fringe.models import LoadedModel, Preprocessing
from fringe.settings import Doc, Positive, PositiveInt

#: Sides of an image, and places along a side.
SIDE, PLACES = 64, 8
#: Sides of objects and of the lamp.
LEAST, MOST, LAMP = 12, 20, 8
#: Grey of the ground, and the sizes of the noise on it, on objects and on the lamp.
GROUND, ROUGH, SMOOTH, SHINY = 0.45, 0.12, 0.06, 0.04
KINDS = ("circle", "square", "triangle", "cross")
LAMPS = ("lamp on", "lamp off")
RED = torch.tensor([0.95, 0.1, 0.1])
#: A box is found by a place with at least this overlap and this probability of its class.
FOUND = 0.5
#: Photographs that gates are measured on, and of an epoch.
PHOTOGRAPHS, EPOCH = 128, 3840


@dataclass(frozen=True)
class Drawn:
    """N photographs as they are drawn: two ``boxes`` (N, 2, 4) of objects with their ``kinds`` (N, 2) and ``colours``
    (N, 2, 3), the top left corner ``lamps`` (N, 2) of a lamp, whether it is ``on`` (N,), and the noise (N, 3, H, W)."""

    boxes: Tensor
    kinds: Tensor
    colours: Tensor
    lamps: Tensor
    on: Tensor
    noise: Tensor

    @classmethod
    def of(cls, count: int, generator: torch.Generator, coloured: bool) -> "Drawn":
        """Draw photographs whose objects and lamp do not touch; objects are ``coloured`` or grey."""
        places = torch.empty(0, 8)
        while len(places) < count:
            places = torch.cat([places, _free(torch.rand(4 * count, 8, generator=generator))])
        boxes = places[:count, :6].reshape(-1, 2, 3)
        corners = boxes[..., :2]
        colours = torch.rand(count, 2, 3, generator=generator)
        strong = torch.rand(count, 2, 1, generator=generator)  # far from the ground
        strong = torch.where(strong < 0.5, 0.3 * strong, 0.5 + 0.5 * strong)
        if coloured:
            channel = torch.randint(3, (count, 2, 1), generator=generator)
            colours = colours.scatter(2, channel, strong)
        else:
            colours = strong.expand(-1, -1, 3)
        return cls(
            torch.cat([corners, corners + boxes[..., 2:]], -1),
            torch.randint(len(KINDS), (count, 2), generator=generator),
            colours,
            places[:count, 6:],
            torch.rand(count, generator=generator) < 0.5,
            torch.randn(count, 3, SIDE, SIDE, generator=generator),
        )

    def objects(self) -> Tensor:
        """Return the pixels (N, 2, H, W) of the objects."""
        u, v = (
            (2 * (torch.arange(SIDE) + 0.5 - low[..., None]) / (high - low)[..., None] - 1)
            for low, high in ((self.boxes[..., k], self.boxes[..., k + 2]) for k in (0, 1))
        )
        u, v = u[:, :, None, :], v[:, :, :, None]
        shapes = (u**2 + v**2 <= 1, u.abs() + 0 * v <= 1, v >= 2 * u.abs() - 1, (u.abs() < 0.34) | (v.abs() < 0.34))
        kinds = self.kinds[..., None, None]
        inside = (u.abs() <= 1) & (v.abs() <= 1)
        return inside & torch.stack([(kinds == k) & shape for k, shape in enumerate(shapes)]).any(0)

    def lamp(self) -> Tensor:
        """Return the pixels (N, H, W) of the lamps."""
        rows, columns = (
            (torch.arange(SIDE) >= at[:, None]) & (torch.arange(SIDE) < at[:, None] + LAMP)
            for at in (self.lamps[:, 1], self.lamps[:, 0])
        )
        return rows[:, :, None] & columns[:, None, :]

    def image(self, *, lit: bool, without: int | None = None) -> Tensor:
        """Return the photographs (N, 3, H, W) in [0, 1], with the lamps that are on if they are ``lit``, ``without`` an
        object. Where a lamp is off there is the ground."""
        x = GROUND + ROUGH * self.noise
        objects = self.objects()
        for k in (k for k in (0, 1) if k != without):
            x = torch.where(objects[:, k, None], self.colours[:, k, :, None, None] + SMOOTH * self.noise, x)
        if lit:
            shines = self.lamp() & self.on[:, None, None]
            x = torch.where(shines[:, None], RED[:, None, None] + SHINY * self.noise, x)
        return x.clamp(0, 1)


def _free(draws: Tensor) -> Tensor:
    """Left, top and side of two objects, and left and top of a lamp (M, 8), of those draws (N, 8) in [0, 1) in which
    they do not touch: the lamp lies two pixels away at least."""
    sides = LEAST + (draws[:, [2, 5]] * (MOST - LEAST + 1)).floor()
    corners = (draws[:, [0, 1, 3, 4]].view(-1, 2, 2) * (SIDE - sides + 1)[..., None]).floor()
    lamps = (draws[:, 6:] * (SIDE - LAMP + 1)).floor()
    boxes = torch.cat([corners, corners + sides[..., None]], -1)
    around = torch.cat([lamps - 2, lamps + LAMP + 2], -1)
    touch = torch.stack([overlap(boxes[:, 0], boxes[:, 1]), *(overlap(boxes[:, k], around) for k in (0, 1))])
    rows = torch.cat([corners[:, 0], sides[:, :1], corners[:, 1], sides[:, 1:], lamps], -1)
    return rows[(touch == 0).all(0)]


class OneStage(nn.Module):
    """A small detector of one stage: for each of 8 by 8 places the box and the logits of its classes.

    Maps inputs (B, 3, 64, 64) in [0, 1] to (B, 64, 4 + K + 1): centre, width and height in pixels, and logits, the last
    one that of "no object". With ``wide`` those of the other classes are read from the largest value of each feature in
    the image, and are the same at all places: a place itself says only whether there is an object, and where.
    """

    def __init__(self, classes: int, wide: bool) -> None:
        super().__init__()
        widths = ((3, 12, 2, 1), (12, 24, 2, 1), (24, 48, 2, 1), (48, 48, 1, 2), (48, 48, 1, 3), (48, 48, 1, 1))
        layers = list[nn.Module]()
        for before, after, stride, spread in widths:
            convolution = nn.Conv2d(before, after, 3, stride, spread, spread, bias=False)
            layers += [convolution, nn.BatchNorm2d(after), nn.ReLU()]
        self.body, self.head = nn.Sequential(*layers), nn.Linear(48, 4 + classes + 1)
        self.wide = nn.Linear(48, classes) if wide else None

    def forward(self, x: Tensor) -> Tensor:
        features = self.body(2 * x - 1)
        y = self.head(features.flatten(2).transpose(1, 2))
        if self.wide is not None:
            labels = self.wide(features.amax((2, 3)))[:, None].expand(-1, y.shape[1], -1)
            y = torch.cat([y[..., :4], labels, y[..., -1:]], -1)
        centres, sizes = _centres().to(y) + 8 * y[..., :2], 16 * y[..., 2:4].exp()
        return torch.cat([centres, sizes, y[..., 4:]], -1)


def _centres() -> Tensor:
    """The centres (64, 2) of the places."""
    along = (torch.arange(PLACES) + 0.5) * SIDE / PLACES
    return torch.stack(torch.meshgrid(along, along, indexing="xy"), -1).reshape(-1, 2)


def _read(output: Tensor) -> tuple[Tensor, Tensor]:
    """The boxes (B, 64, 4) and logits (B, 64, K + 1) of an output."""
    middle, half, logits = output[..., :2], output[..., 2:4] / 2, output[..., 4:]
    return torch.cat([middle - half, middle + half], -1), logits


def _loss(output: Tensor, target: Tensor) -> Tensor:
    """The loss of the places; the target (B, 2, 5) has boxes and labels. A place is to see an object if it lies in its
    inner quarter, or is the nearest one."""
    boxes, labels = target[..., :4], target[..., 4].long()
    middle, half = (boxes[..., :2] + boxes[..., 2:]) / 2, (boxes[..., 2:] - boxes[..., :2]) / 2
    away = (_centres().to(output)[None, :, None] - middle[:, None]).abs()
    near = (away <= (half[:, None] / 2).clamp_min(SIDE / PLACES / 2 + 0.01)).all(-1)  # (B, places, 2)
    which, sees = near.float().argmax(-1), near.any(-1)
    found, logits = _read(output)
    nothing = torch.full_like(which, logits.shape[-1] - 1)
    label = torch.where(sees, labels.gather(1, which), nothing)
    wanted = boxes.gather(1, which[..., None].expand(-1, -1, 4))[sees]
    classes = functional.cross_entropy(logits.flatten(0, 1), label.flatten())
    classes = classes + 0.1 * functional.cross_entropy(logits[sees], label[sees])
    corners = functional.smooth_l1_loss(found[sees] / 8, wanted / 8)
    return 5 * classes + 2 * corners + (1 - overlap(found[sees], wanted)).mean()


@dataclass(frozen=True)
class _Boxes(TrainedScene):
    """What the scenes of detectors share: photographs of two objects, each of which is a box to explain."""

    source: ClassVar[str] = "ours"
    has_boxes: ClassVar[bool] = True
    classes: ClassVar[tuple[str, ...]]
    lit: ClassVar[bool]

    networks: Annotated[PositiveInt, Doc("networks that are trained, from different seeds")] = 1
    epochs: Annotated[PositiveInt, Doc("times that so many photographs are drawn as an epoch has")] = 8
    rate: Annotated[Positive, Doc("largest learning rate")] = 4e-3

    @abstractmethod
    def _labels(self, drawn: Drawn) -> Tensor:
        """The labels (N, 2) of the objects."""

    @abstractmethod
    def _truth(self, drawn: Drawn, which: int) -> Tensor:
        """The pixels (N, H, W) that decide the class of an object."""

    @abstractmethod
    def _changed(self, drawn: Drawn, which: int) -> Tensor:
        """The photographs (N, 3, H, W) with other evidence: the class of the object must change there."""

    def training(self, model: LoadedModel | None, images: Images) -> Training:
        """Say how a network is trained; see :meth:`TrainedScene.training`."""

        def draw(numbers: Tensor, generator: torch.Generator, progress: float) -> tuple[Tensor, Tensor]:
            drawn = Drawn.of(len(numbers), generator, not self.lit)
            target = torch.cat([drawn.boxes, self._labels(drawn)[..., None].float()], -1)
            return drawn.image(lit=self.lit), target

        build, recipe = partial(OneStage, len(self.classes), self.lit), Preprocessing.parse("unit")
        return Training(build, draw, EPOCH, (), "one_stage", recipe, self.classes, 64, _loss)

    def network(self, number: int, model: LoadedModel | None, images: Images) -> LoadedModel:
        """Read a network from the cache folder, or train it, as a detector; see :meth:`Scene.network`."""
        loaded = super().network(number, model, images)
        detector = Detector(loaded.module, read=_read, background=len(self.classes)).eval()
        return replace(loaded, module=detector, class_names=detector.names(self.classes, len(self.classes) + 1))

    def examples(self, networks: Networks, images: Images, count: int, seed: int) -> tuple[Example, ...]:
        """Select boxes that every network finds at one place, and whose class the evidence decides in all of them; see
        :meth:`Scene.examples`."""

        def candidates() -> Generator[Example]:
            for number in range(20 * count):
                (key,) = KeyedGenerator(seed).integers(f"photograph {number}", 2**53, 1)
                drawn, name = self._drawn(key), f"photograph-{number:04d}"
                for which in (0, 1) if self._explained(drawn) else ():
                    places = {int(self._places(network, drawn, which)) for network in networks}
                    seen = [self._seen(network, drawn, which) for network in networks]
                    if len(places) == 1 and all(bool(found & changed) for found, changed, _ in seen):
                        values = {"drawn": key, "object": which, "place": places.pop()}
                        yield Example(f"{name}-{which}", int(self._labels(drawn)[0, which]), name, values=values)

        return first(candidates(), count)

    def make(self, example: Example, model: LoadedModel) -> tuple[Tensor, Tensor]:
        """Draw the photograph of an example; see :meth:`Scene.make`."""
        drawn = self._drawn(int(example.values["drawn"]))
        return drawn.image(lit=self.lit)[0], self._truth(drawn, int(example.values["object"]))[0]

    def gates(self, network: LoadedModel, model: LoadedModel | None, images: Images) -> tuple[Gate, ...]:
        """Measure whether boxes are found, and what their classes depend on; see :meth:`Scene.gates`."""
        drawn = Drawn.of(PHOTOGRAPHS, torch.Generator().manual_seed(2**40), not self.lit)
        found, changed, kept = (
            torch.stack(each) for each in zip(*(self._seen(network, drawn, k) for k in (0, 1)), strict=True)
        )
        gates = (
            Gate("boxes that are found with their class", share(found), least=0.9),
            Gate("found ones whose class changes with the evidence", share(changed[found]), least=0.95),
        )
        kept_ones = Gate("found ones whose class stays with another object in the box", share(kept[found]), least=0.95)
        return (*gates, kept_ones) if self.lit else gates

    def _seen(self, network: LoadedModel, drawn: Drawn, which: int) -> tuple[Tensor, Tensor, Tensor]:
        """Whether (N,) an object is found with its class, whether this changes with the evidence, and whether it holds
        with an object of another shape and colour in its box."""
        x, labels, places = (
            drawn.image(lit=self.lit),
            self._labels(drawn)[:, which],
            self._places(network, drawn, which),
        )
        other = replace(drawn, kinds=(drawn.kinds + 1) % len(KINDS), colours=drawn.colours.flip(0)).image(lit=self.lit)
        rows = torch.arange(len(x))
        boxes, logits = (part[rows, places] for part in _predict(network, x))
        is_close = overlap(boxes, drawn.boxes[:, which]) >= FOUND
        found = is_close & (logits.softmax(-1)[rows, labels] >= FOUND)
        now = [_predict(network, one)[1][rows, places].argmax(-1) for one in (self._changed(drawn, which), other)]
        return found, now[0] != labels, now[1] == labels

    def _explained(self, drawn: Drawn) -> bool:
        """Whether the boxes of a photograph are explained."""
        return True

    def _drawn(self, key: int) -> Drawn:
        return Drawn.of(1, torch.Generator().manual_seed(key), not self.lit)

    def _places(self, network: LoadedModel, drawn: Drawn, which: int) -> Tensor:
        """The places (N,) whose boxes match an object best, by overlap and probability."""
        boxes, logits = _predict(network, drawn.image(lit=self.lit))
        chances = 1 - logits.softmax(-1)[..., -1]
        return (overlap(boxes, drawn.boxes[:, which, None]) * chances).argmax(1)


def _predict(network: LoadedModel, x: Tensor) -> tuple[Tensor, Tensor]:
    """The boxes (N, 64, 4) and logits (N, 64, K + 1) of all places, on the CPU."""
    module: Any = network.module
    with torch.no_grad():
        boxes, logits = module.places.all(x.to(next(module.parameters()).device))
    return boxes.cpu(), logits.cpu()


@dataclass(frozen=True)
class Shapes(_Boxes):
    """A detector of shapes: the class of a box is the shape of the object in it.

    Photographs are drawn: two coloured objects in noise, each a circle, a square, a triangle or a cross. The evidence
    is the object, and a box that is predicted well holds it: the control ``box`` has nearly the best score.
    """

    name: ClassVar[str] = "shapes"
    title: ClassVar[str] = "Boxes of shapes"
    answer: ClassVar[str] = "without the object its place predicts another class or nothing"
    classes: ClassVar[tuple[str, ...]] = KINDS
    lit: ClassVar[bool] = False

    def _labels(self, drawn: Drawn) -> Tensor:
        return drawn.kinds

    def _truth(self, drawn: Drawn, which: int) -> Tensor:
        return drawn.objects()[:, which]

    def _changed(self, drawn: Drawn, which: int) -> Tensor:
        return drawn.image(lit=False, without=which)


@dataclass(frozen=True)
class Context(_Boxes):
    """A detector that reads the class of every box from a lamp elsewhere in the photograph.

    Photographs are drawn: two grey objects in noise, and a red lamp in every other one: the class of both boxes is
    whether it is on. The objects say nothing of the class, so the right map of a box lies outside of it, and the
    control ``box`` scores 0. Only photographs with the lamp on are explained: where it is off there is nothing to show.
    """

    name: ClassVar[str] = "context"
    title: ClassVar[str] = "Boxes whose class is elsewhere"
    answer: ClassVar[str] = "to switch the lamp changes the class of both boxes, and another object in a box does not"
    classes: ClassVar[tuple[str, ...]] = LAMPS
    lit: ClassVar[bool] = True

    def _labels(self, drawn: Drawn) -> Tensor:
        return (~drawn.on).long()[:, None].expand(-1, 2)

    def _truth(self, drawn: Drawn, which: int) -> Tensor:
        return drawn.lamp()

    def _changed(self, drawn: Drawn, which: int) -> Tensor:
        return replace(drawn, on=~drawn.on).image(lit=True)

    def _explained(self, drawn: Drawn) -> bool:
        return bool(drawn.on[0])
