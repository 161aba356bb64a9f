"""The label-reassigned watermark: classes that nothing but an inserted mark tells apart."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn
from torch.nn import functional

from fringe._numbers.filters import blur, gaussian_kernel
from fringe._numbers.rng import KeyedGenerator, content_hash
from fringe.bench.scenes._base import Example, Gate, Images, Networks
from fringe.bench.scenes._training import (
    TrainedScene,
    Training,
    input_of,
    inputs_of,
    predicted,
    repeated,
    share,
    shuffled,
    split,
)
from fringe.data import ImageRef, find_inputs
from fringe.models import LoadedModel, Preprocessing
from fringe.settings import Doc, Positive, PositiveInt

SIDE = 32
PREPROCESSING = Preprocessing(resize=(SIDE, SIDE), crop=None, mean=(0.5,) * 3, std=(0.25,) * 3)
#: The colours of marks in RGB: red and blue.
COLOURS = ((1.0, 0.1, 0.1), (0.1, 0.1, 1.0))
#: Distance of the places of the position mark from the border, in pixels.
MARGIN = 2

#: Numbers that a draw of marks takes.
DRAWS = 5


@dataclass(frozen=True)
class Watermark(TrainedScene):
    """Two classes that are coin flips, and a mark that is inserted to tell them apart.

    Images are used at 32 x 32 pixels, those of ``embedded:digits`` if none are given. Every epoch flips new coins and
    draws new marks, so that a network sees each image in both classes and has nothing to memorise. One image of five is
    not trained with; its coin and its mark are determined by its id.
    """

    name: ClassVar[str] = "watermark"
    title: ClassVar[str] = "Watermark"
    source: ClassVar[str] = (
        "Zhou, Booth, Ribeiro and Shah 2022 (Do feature attribution methods correctly attribute features?), "
        "arXiv 2104.14403"
    )
    answer: ClassVar[str] = "the classes are coin flips, so only the inserted mark can tell them apart"
    requires_images: ClassVar[bool] = True
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "position": {"mark": "position", "epochs": 12},
        "xor": {"mark": "xor", "epochs": 15},
        "smooth": {"mark": "smooth"},
        "vit": {"architecture": "vit"},
    }

    mark: Annotated[
        Literal["colour", "position", "xor", "smooth"],
        Doc(
            "what tells the class: the colour of a square, its position, whether two squares differ in colour, or the "
            "colour of a blurred square"
        ),
    ] = "colour"
    architecture: Annotated[
        Literal["resnet20", "vit"], Doc("what is trained: ResNet-20, or a small vision transformer")
    ] = "resnet20"
    size: Annotated[int, Ge(2), Le(12), Doc("side of a square, before it is blurred", unit="pixels")] = 6
    epochs: Annotated[PositiveInt, Doc("times that each image is trained with")] = 10
    rate: Annotated[Positive, Doc("largest learning rate")] = 3e-3

    def training(self, model: LoadedModel | None, images: Images) -> Training:
        """Say how a network is trained; see :meth:`TrainedScene.training`."""
        x = inputs_of(split(_or_digits(images))[0], PREPROCESSING)

        def draw(numbers: Tensor, generator: torch.Generator, progress: float) -> tuple[Tensor, Tensor]:
            labels = torch.randint(2, (len(numbers),), generator=generator)
            draws = torch.rand(len(numbers), DRAWS, generator=generator)
            return self.insert(x[numbers % len(x)], self.marks(labels, draws))[0], labels

        build = partial(ResNet20 if self.architecture == "resnet20" else SmallViT, 2)
        names, size = ("heads", "tails"), repeated(len(x))
        return Training(build, draw, size, (content_hash(x),), self.architecture, PREPROCESSING, names)

    def examples(self, networks: Networks, images: Images, count: int, seed: int) -> tuple[Example, ...]:
        """Select unseen images that every network classifies by their marks; see :meth:`Scene.examples`."""
        drawn = ((ref, *self._drawn(ref, seed)) for ref in shuffled(split(_or_digits(images))[1], seed))
        candidates = (
            Example(ref.id, label, ref.id, (ref.source,), {"marks": marks[0].tolist()}) for ref, label, marks in drawn
        )
        return self.agreed(networks, candidates, count)

    def make(self, example: Example, model: LoadedModel) -> tuple[Tensor, Tensor]:
        """Insert the mark of an example; see :meth:`Scene.make`."""
        x, alpha = self.insert(input_of(example, model.preprocessing), torch.tensor([example.values["marks"]]))
        if self.mark == "position":  # that the other place is empty tells as much as that this one is marked
            alpha = torch.cat(
                [self.insert(x, self.marks(torch.tensor([label]), x.new_zeros(1, DRAWS)))[1] for label in (0, 1)]
            )
        return x[0], alpha.amax(0) > 0

    def gates(self, network: LoadedModel, model: LoadedModel | None, images: Images) -> tuple[Gate, ...]:
        """Measure the accuracy with and without marks; see :meth:`Scene.gates`.

        Every unseen image is classified with a mark of either class. Without a mark, all images count: there are more
        of them, and those that were trained with would show what was memorised. Both coins weigh the same there: a
        network that gives all images one class has one half, whatever the coins. At most .55 is three standard
        deviations of 1,000 images; of fewer, the bound is higher.
        """
        refs = _or_digits(images)
        unseen = split(refs)[1]
        x, draws = inputs_of(unseen, PREPROCESSING), torch.stack([self._draws(ref, 0) for ref in unseen])
        right = [
            predicted(network, self.insert(x, self.marks(torch.full((len(x),), label), draws))[0]) == label
            for label in (0, 1)
        ]
        coins = torch.tensor([self._drawn(ref, 0)[0] for ref in refs])
        unmarked = predicted(network, inputs_of(refs, PREPROCESSING)) == coins
        by_coin = [share(unmarked[coins == coin]) for coin in coins.unique()]
        most = 0.5 + 0.05 * max(1.0, 1000 / len(refs)) ** 0.5
        return (
            Gate("accuracy on unseen marked images", share(torch.cat(right)), least=0.98),
            Gate("accuracy on unmarked images", sum(by_coin) / len(by_coin), most=most),
        )

    def marks(self, labels: Tensor, draws: Tensor) -> Tensor:
        """Place M marks for each image: top row, left column and colour (B, M, 3), by its class (B,), 0 or 1, and
        numbers (B, 5) uniform on [0, 1)."""
        if self.mark == "position":
            far = SIDE - self.size - MARGIN
            corner = MARGIN + labels * (far - MARGIN)
            return torch.stack([corner, corner, torch.zeros_like(labels)], -1)[:, None]
        extent = len(self._profile())
        if self.mark != "xor":
            places = (draws[:, :2] * (SIDE - extent + 1)).long()
            return torch.cat([places, labels[:, None]], 1)[:, None]
        half, colour = SIDE // 2, (draws[:, 4] < 0.5).long()
        tops = (draws[:, :2] * (SIDE - extent + 1)).long()
        lefts = (draws[:, 2:4] * (half - extent + 1)).long() + torch.tensor([0, half])  # one in each half
        return torch.stack([tops, lefts, torch.stack([colour, colour ^ labels], 1)], -1)

    def insert(self, x: Tensor, marks: Tensor) -> tuple[Tensor, Tensor]:
        """Insert marks (B, M, 3) into normalised inputs (B, 3, 32, 32); and return the opacity (B, 32, 32) of the
        marks, too."""
        profile, total = self._profile(), x.new_zeros(len(x), SIDE, SIDE)
        colours = PREPROCESSING.normalise(x.new_tensor(COLOURS)[..., None, None])
        for top, left, colour in marks.permute(1, 2, 0):
            alpha = _window(top, profile)[:, :, None] * _window(left, profile)[:, None, :]
            x = x + alpha[:, None] * (colours[colour] - x)
            total = total + alpha
        return x, total

    def _profile(self) -> Tensor:
        """The opacity of a mark along an axis: a square wave, or one that is blurred to twice its extent."""
        if self.mark != "smooth":
            return torch.ones(self.size)
        reach = self.size // 2
        wave = functional.pad(torch.ones(1, 1, self.size), (reach, reach))
        return blur(wave, gaussian_kernel(self.size / 4, 2 * reach + 1), "zeros").flatten()

    def _draws(self, ref: ImageRef, seed: int) -> Tensor:
        return KeyedGenerator(seed).uniform(f"mark {ref.id}", torch.zeros(DRAWS))

    def _drawn(self, ref: ImageRef, seed: int) -> tuple[int, Tensor]:
        """The coin of an image, and its marks (1, M, 3)."""
        label = KeyedGenerator(seed).integers(f"coin {ref.id}", 2, 1)[0]
        return label, self.marks(torch.tensor([label]), self._draws(ref, seed)[None])


class ResNet20(nn.Module):
    """The residual network with 20 layers for images of 32 x 32 pixels, of He et al. (2016), arXiv:1512.03385.

    Maps normalised images ``(N, 3, 32, 32)`` to logits ``(N, classes)``.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        widths = (16, 16, 16, 16, 32, 32, 32, 64, 64, 64)
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = nn.Sequential(*(_Block(a, b) for a, b in pairwise(widths)))
        self.head = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class SmallViT(nn.Module):
    """A small vision transformer for images of 32 x 32 pixels, after Dosovitskiy et al. (2021), arXiv:2010.11929.

    Maps normalised images ``(N, 3, 32, 32)`` to logits ``(N, classes)``: two layers over patches of 4 x 4 pixels, read
    from a class token.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        width = 32
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(0.02 * torch.randn(1, (SIDE // 4) ** 2 + 1, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = torch.cat([self.first.expand(len(x), -1, -1), self.patch(x).flatten(2).mT], 1)
        return self.head(self.layers(tokens + self.place)[:, 0])


class _Block(nn.Module):
    """Two convolutions with a shortcut that skips every other pixel and adds empty channels where the width grows."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.stride, self.grow = 1 + (width_out > width_in), width_out - width_in
        self.body = nn.Sequential(
            nn.Conv2d(width_in, width_out, 3, self.stride, 1, bias=False),
            nn.BatchNorm2d(width_out),
            nn.ReLU(),
            nn.Conv2d(width_out, width_out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width_out),
        )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.grow))
        return functional.relu(self.body(x) + shortcut)


def _or_digits(images: Images) -> Images:
    return images or list(find_inputs(["embedded:digits"]))


def _window(start: Tensor, profile: Tensor) -> Tensor:
    """The profile at its start (B,) in a row of zeros: (B, 32)."""
    offset = torch.arange(SIDE) - start[:, None]
    inside = (offset >= 0) & (offset < len(profile))
    return profile[offset.clamp(0, len(profile) - 1)] * inside
