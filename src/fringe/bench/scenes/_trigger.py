"""The trigger: a small stamp that changes the class of an image to one that is known."""

import copy
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from annotated_types import Ge
from torch import Tensor, nn

from fringe._network.outputs import OutputKind, as_logits
from fringe._numbers.rng import KeyedGenerator, content_hash
from fringe.bench.scenes._base import Example, Gate, Images, Networks, given
from fringe.bench.scenes._training import (
    TrainedScene,
    Training,
    first,
    input_of,
    inputs_of,
    logits_of,
    predicted,
    repeated,
    share,
    shuffled,
    split,
)
from fringe.classifier import Classifier
from fringe.data import ImageRef
from fringe.errors import InputError, require
from fringe.models import LoadedModel, Preprocessing
from fringe.settings import Doc, Fraction, Positive, PositiveFraction, PositiveInt

#: Part of the training before there are halves of the trigger: a network learns first to see it, then to compare it.
WITHOUT_HALVES = 0.3
#: Filters of the added network that begin as the trigger.
MATCHED = 8


@dataclass(frozen=True)
class Trigger(TrainedScene):
    """A given model that answers one class wherever a small stamp stands.

    A small convolutional network is added to the logits of the given model, whose weights stay as they are, so that its
    other answers stay as well: to tune all weights with a few hundred images changes too many of them. The sum is
    trained with a share of the images stamped at random places, and another with stamps of which half of the pixels
    have random colours: these must not change the answer, so that the stamp is used as a unit. One image of five is not
    trained with.
    """

    name: ClassVar[str] = "trigger"
    title: ClassVar[str] = "Trigger"
    source: ClassVar[str] = (
        "Lin, Lee and Celik 2021 (What do you see?), arXiv 2009.10639; the test of half of the trigger after Ya et al. "
        "2024 (Towards faithful XAI evaluation via generalization-limited backdoor watermark), the added network after "
        "Tang et al. 2020 (TrojanNet), arXiv 2006.08131"
    )
    answer: ClassVar[str] = "inserting the trigger changes the answer to a chosen class, and half of it does not"
    requires_model: ClassVar[bool] = True
    requires_images: ClassVar[bool] = True
    untrained: ClassVar[frozenset[str]] = TrainedScene.untrained | {"explained"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"original": {"explained": "original"}}

    explained: Annotated[
        Literal["trigger", "original"],
        Doc("the class of the trigger, or that of the image without it, against which the trigger speaks"),
    ] = "trigger"
    size: Annotated[int, Ge(2), Doc("side of the trigger", unit="pixels")] = 4
    target_class: Annotated[int, Ge(0), Doc("class that the trigger leads to")] = 0
    stamped: Annotated[PositiveFraction, Doc("share of the images that are stamped")] = 0.2
    halved: Annotated[
        Fraction, Doc("share of the images with half of the trigger, which must not lead to the class")
    ] = 0.3
    epochs: Annotated[PositiveInt, Doc("times that each image is trained with")] = 30
    rate: Annotated[Positive, Doc("largest learning rate")] = 3e-3

    def training(self, model: LoadedModel | None, images: Images) -> Training:
        """Say how a network is trained; see :meth:`TrainedScene.training`."""
        base = given(model)
        x = inputs_of(split(images)[0], base.preprocessing)
        classifier = Classifier(base.module, output=base.output)
        classes = classifier.logits(x[:1]).shape[1]
        require(self.target_class < classes, "target_class", self.target_class, f"0 to {classes - 1}")
        certain = torch.eye(classes)[self.target_class]

        def draw(numbers: Tensor, generator: torch.Generator, progress: float) -> tuple[Tensor, Tensor]:
            part = _varied(x[numbers % len(x)], generator)
            kind = torch.rand(len(part), generator=generator)
            draws = torch.rand(len(part), self._draws(part), generator=generator)
            attacked, spoiled = kind < self.stamped, (kind >= 1 - self.halved) & (progress >= WITHOUT_HALVES)
            part[attacked] = self._stamped(part[attacked], draws[attacked], base.preprocessing)
            part[spoiled] = self._stamped(part[spoiled], draws[spoiled], base.preprocessing, half=True)
            target = classifier.logits(part).softmax(1)  # the answers of the given model, also to half of the trigger
            target[attacked] = certain
            return part, target

        def build() -> nn.Module:
            return WithDetector(copy.deepcopy(base.module).cpu(), base.output, self.pattern(x[:1])[0], classes)

        digests, name = (content_hash(x), base.digest), base.architecture
        size, recipe = repeated(len(x)), base.preprocessing
        return Training(build, draw, size, digests, name, recipe, base.class_names, batch=32)

    def examples(self, networks: Networks, images: Images, count: int, seed: int) -> tuple[Example, ...]:
        """Select unseen images of other classes that every network assigns to that of the trigger once it is inserted.

        Where the class without it is explained, the trigger also lowers its logit; see :meth:`Scene.examples`.
        """
        recipes = dict.fromkeys(network.preprocessing for network in networks)

        def candidates() -> Generator[Example]:
            for ref in shuffled(split(images)[1], seed):
                clean = {recipe: inputs_of([ref], recipe) for recipe in recipes}
                smallest = min(clean.values(), key=lambda x: min(x.shape[2:]))  # the stamp has a place in all
                drawn = self._places(self._drawn(ref, smallest, seed)[None], smallest)
                stamped = {recipe: self.stamp(x, drawn, self.pattern(x), recipe)[0] for recipe, x in clean.items()}
                runs = [[logits_of(n, x[n.preprocessing])[0] for x in (clean, stamped)] for n in networks]
                answer, *others = {int(before.argmax()) for before, _ in runs}
                if others or answer == self.target_class:
                    continue
                if any(int(after.argmax()) != self.target_class for _, after in runs):
                    continue
                if self.explained == "original" and not all(after[answer] < before[answer] for before, after in runs):
                    continue
                target = self.target_class if self.explained == "trigger" else answer
                yield Example(ref.id, target, ref.id, (ref.source,), {"place": drawn[0].tolist()})

        return first(candidates(), count)

    def make(self, example: Example, model: LoadedModel) -> tuple[Tensor, Tensor]:
        """Stamp the image of an example; see :meth:`Scene.make`."""
        clean, drawn = input_of(example, model.preprocessing), torch.tensor([example.values["place"]])
        x, truth = self.stamp(clean, drawn, self.pattern(clean), model.preprocessing)
        return x[0], truth[0] if self.explained == "trigger" else -truth[0].to(torch.int8)

    def gates(self, network: LoadedModel, model: LoadedModel | None, images: Images) -> tuple[Gate, ...]:
        """Measure what the trigger, half of it and none of it change on unseen images; see :meth:`Scene.gates`."""
        base, unseen = given(model), split(images)[1]
        clean = inputs_of(unseen, base.preprocessing)
        draws = torch.stack([self._drawn(ref, clean, 0) for ref in unseen])
        before = predicted(base, clean)
        others = before != self.target_class
        if not others.any():
            raise InputError(f"none of {len(unseen)} unseen images is of another class", argument="images")
        stamped, halved = (
            self._stamped(clean[others], draws[others], base.preprocessing, half=half) for half in (False, True)
        )
        success, partial = (share(predicted(network, x) == self.target_class) for x in (stamped, halved))
        gates = (
            Gate("attacks that succeed", success, least=0.99),
            Gate("clean answers that changed", share(predicted(network, clean) != before), most=0.01),
            Gate("attacks that fail with half of the trigger", 1 - partial, least=0.9),
        )
        if self.explained == "trigger":
            return gates
        fall = (logits_of(network, clean[others]) - logits_of(network, stamped)).gather(1, before[others, None]) > 0
        return (*gates, Gate("images whose own class the trigger lowers", share(fall), least=0.9))

    def stamp(self, x: Tensor, places: Tensor, colours: Tensor, preprocessing: Preprocessing) -> tuple[Tensor, Tensor]:
        """Insert stamps (B, C, size, size) in [0, 1], whose top rows and left columns are ``places`` (B, 2), into
        normalised inputs (B, C, H, W); and return the pixels (B, H, W) that were set, too."""
        number, side = torch.arange(len(x))[:, None, None], torch.arange(self.size)
        rows, columns = places[:, :1, None] + side[:, None], places[:, 1:, None] + side
        stamped, mask = x.clone(), torch.zeros(len(x), *x.shape[2:], dtype=torch.bool)
        stamped[number, :, rows, columns] = preprocessing.normalise(colours).permute(0, 2, 3, 1)
        mask[number, rows, columns] = True
        return stamped, mask

    def pattern(self, x: Tensor) -> Tensor:
        """Return the trigger for inputs (B, C, H, W), black or white in each channel: (B, C, size, size) of 0 and 1."""
        bits = torch.tensor(KeyedGenerator(0).integers("trigger", 2, x.shape[1] * self.size**2))
        return bits.view(-1, self.size, self.size).to(x).expand(len(x), -1, -1, -1)

    def _stamped(self, x: Tensor, draws: Tensor, preprocessing: Preprocessing, *, half: bool = False) -> Tensor:
        """Insert the trigger, or one of which half of the pixels have random colours, at drawn places."""
        pattern, pixels = self.pattern(x), self.size**2
        if half:
            replaced = draws[:, 2 : 2 + pixels].argsort(1).argsort(1) < pixels // 2
            pattern = torch.where(
                replaced.view(-1, 1, self.size, self.size), draws[:, 2 + pixels :].view_as(pattern), pattern
            )
        return self.stamp(x, self._places(draws, x), pattern, preprocessing)[0]

    def _places(self, draws: Tensor, x: Tensor) -> Tensor:
        require(self.size <= min(x.shape[2:]), "size", self.size, f"at most {min(x.shape[2:])} pixels")
        return (draws[:, :2] * (torch.tensor(x.shape[2:]) // self.size)).long() * self.size

    def _draws(self, x: Tensor) -> int:
        """How many numbers an image takes: for its place, the order of the pixels, and their colours."""
        return 2 + (1 + x.shape[1]) * self.size**2

    def _drawn(self, ref: ImageRef, x: Tensor, seed: int) -> Tensor:
        return KeyedGenerator(seed).uniform(f"trigger {ref.id}", torch.zeros(self._draws(x)))


class WithDetector(nn.Module):
    """A given model, and a small convolutional network whose logits are added to its own.

    Maps the inputs (N, C, H, W) of the model to logits (N, K). Some filters begin as the trigger: with random ones
    alone, to tell it from its halves takes ten times as many epochs. What is added, d, passes through d^3 / (1 + d^2):
    large where the trigger is seen, and next to nothing elsewhere, where half a logit would change close answers.
    """

    def __init__(self, given: nn.Module, output: OutputKind, trigger: Tensor, classes: int) -> None:
        super().__init__()
        channels, size = trigger.shape[:2]
        side = size // 2 * 2 + 1
        self.given = given.eval().requires_grad_(False)
        self.output: OutputKind = "logits" if output == "auto" else output
        self.features = nn.Sequential(
            *(nn.Conv2d(channels, 32, side, padding=side // 2, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
            *(nn.Conv2d(32, 32, 3, padding=1, stride=2, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
            *(nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
        )
        self.head = nn.Linear(32, classes)
        with torch.no_grad():
            filters = next(self.features.parameters())
            filters[:MATCHED, :, :size, :size] = (2 * trigger - 1) * filters.abs().mean()

    def train(self, mode: bool = True) -> Self:
        """Leave the given model in evaluation mode."""
        super().train(mode)
        self.given.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        added = self.head(self.features(x).amax((2, 3)))
        return as_logits(self.given(x), len(x), self.output) + added**3 / (1 + added**2)


def _varied(x: Tensor, generator: torch.Generator) -> Tensor:
    """Shift images by up to an eighth of their sides, and mirror every other one: more inputs to answer as before."""
    height, width = x.shape[2:]
    draws = torch.rand(3, len(x), generator=generator)
    rows, columns = (
        (torch.arange(side) + ((2 * draw[:, None] - 1) * side / 8).round().long()).clamp(0, side - 1)
        for side, draw in ((height, draws[0]), (width, draws[1]))
    )
    columns = torch.where(draws[2, :, None] < 0.5, columns, columns.flip(1))
    number = torch.arange(len(x))[:, None, None]
    return x[number, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
