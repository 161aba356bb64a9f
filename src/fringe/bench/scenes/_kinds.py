"""Scenes of series, tables and texts, drawn at random: which samples, columns or words tell the class is known."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from fringe._numbers.rng import KeyedGenerator
from fringe.bench.scenes._base import Example, Gate, Images, Networks
from fringe.bench.scenes._training import TrainedScene, Training, predicted, share
from fringe.errors import require
from fringe.models import LoadedModel, Preprocessing
from fringe.settings import Doc, Positive, PositiveInt

CLASSES, BATCH, BATCHES, UNSEEN = 4, 128, 50, 1000
#: Samples of a series, columns of a table, words of a text, and words that there are; the first four are keywords.
SAMPLES, COLUMNS, WORDS, VOCABULARY = 128, 10, 20, 40
#: The embeddings of words, which are not trained: all networks read the same inputs.
EMBEDDINGS = torch.randn(VOCABULARY, 16, generator=torch.Generator().manual_seed(0))
#: Inputs are as they are.
AS_GIVEN = Preprocessing(resize=None, crop=None, mean=(0.0,), std=(1.0,), channels=1)


@dataclass(frozen=True)
class Drawn(TrainedScene):
    """What these scenes share: four classes, inputs that are drawn anew in each epoch, and the gates."""

    source: ClassVar[str] = "ours"
    has_pixels: ClassVar[bool] = False

    networks: Annotated[PositiveInt, Doc("networks that are trained, from different seeds")] = 2
    epochs: Annotated[PositiveInt, Doc("times that 6400 inputs are drawn")] = 10
    rate: Annotated[Positive, Doc("largest learning rate")] = 4e-3

    @abstractmethod
    def draw(self, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Draw inputs (N, *S), their classes (N,), and which entries tell the class, with 1 for the channels."""

    def sample(self, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw inputs and classes to train with."""
        return self.draw(count, rng)[:2]

    @abstractmethod
    def redrawn(self, x: Tensor, rng: torch.Generator) -> Tensor:
        """Draw entries in place of those of inputs (N, *S), without what tells their class."""

    @abstractmethod
    def build(self) -> nn.Module:
        """Make the network as it is before the training."""

    def training(self, model: LoadedModel | None, images: Images) -> Training:
        """Say how a network is trained; see :meth:`TrainedScene.training`."""

        def draw(numbers: Tensor, generator: torch.Generator, progress: float) -> tuple[Tensor, Tensor]:
            return self.sample(len(numbers), generator)

        return Training(self.build, draw, BATCH * BATCHES, (), self.name, AS_GIVEN, None, BATCH)

    def examples(self, networks: Networks, images: Images, count: int, seed: int) -> tuple[Example, ...]:
        """Draw inputs that every network classifies correctly; see :meth:`Scene.examples`."""
        candidates = (
            Example(name := f"{self.name}-{number:04d}", int(self._drawn(key)[1]), name, values={"drawn": key})
            for number, key in enumerate(KeyedGenerator(seed).integers(self.name, 2**53, 20 * count))
        )
        return self.agreed(networks, candidates, count)

    def make(self, example: Example, model: LoadedModel) -> tuple[Tensor, Tensor]:
        """Draw the input of an example; see :meth:`Scene.make`."""
        x, _, truth = self._drawn(int(example.values["drawn"]))
        return x[0], truth.flatten()

    def gates(self, network: LoadedModel, model: LoadedModel | None, images: Images) -> tuple[Gate, ...]:
        """Measure the accuracy, and that of inputs of which a part is drawn anew; see :meth:`Scene.gates`."""
        rng = torch.Generator().manual_seed(2**40)
        x, labels, truth = self.draw(UNSEEN, rng)
        other = self.redrawn(x, rng)
        right, alone, without = (
            share(predicted(network, one) == labels)
            for one in (x, torch.where(truth, x, other), torch.where(truth, other, x))
        )
        return (
            Gate("accuracy", right, least=0.95),
            Gate("accuracy with all but the truth drawn anew", alone, least=0.9),
            Gate("accuracy with the truth drawn anew", without, most=0.35),
        )

    def _drawn(self, key: int) -> tuple[Tensor, Tensor, Tensor]:
        return self.draw(1, torch.Generator().manual_seed(key))


@dataclass(frozen=True)
class Window(Drawn):
    """A series of noise in which a window has a wave; its frequency is the class."""

    name: ClassVar[str] = "window"
    title: ClassVar[str] = "Window of a series"
    answer: ClassVar[str] = "the classes differ only in the frequency of a wave, and outside of its window is noise"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "two": {"windows": 2, "length": 24, "loudness": 1.2},
        "tone": {"length": 48, "noise": 0.1},
    }

    windows: Annotated[PositiveInt, Doc("windows of a series, each of which tells the class")] = 1
    length: Annotated[PositiveInt, Doc("length of a window", "samples")] = 32
    noise: Annotated[Positive, Doc("standard deviation of the noise outside of windows")] = 1.0
    loudness: Annotated[Positive, Doc("amplitude of the wave, in noise of 0.3")] = 1.1

    def __post_init__(self) -> None:
        super().__post_init__()
        most = SAMPLES // self.windows - 1
        require(self.length <= most, "length", self.length, f"at most {most}, for {self.windows} windows")

    def draw(self, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        labels = torch.randint(CLASSES, (count, 1, 1), generator=rng)
        x, each = self.redrawn(torch.empty(count, 1, SAMPLES), rng), SAMPLES // self.windows
        truth = torch.zeros_like(x, dtype=torch.bool)
        for first in range(0, self.windows * each, each):
            start = first + torch.randint(each - self.length, (count, 1, 1), generator=rng)
            at, shift = torch.arange(SAMPLES) - start, torch.rand(count, 1, 1, generator=rng)
            waves = torch.tensor([2.0, 4.5, 7.0, 11.0])[labels] * at / 32 + shift
            wave = self.loudness * (2 * math.pi * waves).sin() + 0.3 * torch.randn(x.shape, generator=rng)
            inside = (at >= 0) & (at < self.length)
            x, truth = torch.where(inside, wave, x), truth | inside
        return x, labels.flatten(), truth

    def redrawn(self, x: Tensor, rng: torch.Generator) -> Tensor:
        return self.noise * torch.randn(x.shape, generator=rng)

    def build(self) -> nn.Module:
        convolutions = (nn.Conv1d(1, 24, 9, padding=4), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(24, 24, 9, padding=4))
        pool = nn.AdaptiveAvgPool1d(1) if self.windows == 1 else nn.AdaptiveMaxPool1d(1)
        return nn.Sequential(*convolutions, nn.ReLU(), pool, nn.Flatten(), nn.Linear(24, CLASSES))


@dataclass(frozen=True)
class SignGate(Drawn):
    """A table: the sign of the first column says which two others tell the class, by their signs."""

    has_space: ClassVar[bool] = False
    name: ClassVar[str] = "gate"
    title: ClassVar[str] = "Gate in a table"
    answer: ClassVar[str] = "the class is a function of three columns, and the first of them says which the others are"

    epochs: Annotated[PositiveInt, Doc("times that 6400 rows are drawn")] = 50

    def draw(self, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        x, truth = torch.randn(count, COLUMNS, generator=rng), torch.zeros(count, COLUMNS, dtype=torch.bool)
        first = x[:, :1] > 0
        signs = torch.where(first, x[:, 1:3], x[:, 5:7]) > 0
        truth[:, :1], truth[:, 1:3], truth[:, 5:7] = True, first, ~first
        return x, signs[:, 0] + 2 * signs[:, 1], truth

    def redrawn(self, x: Tensor, rng: torch.Generator) -> Tensor:
        return -x.sign() * torch.randn(x.shape, generator=rng).abs()  # with the same sign a column says the same

    def build(self) -> nn.Module:
        layers = [nn.Linear(COLUMNS, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, CLASSES)]
        return nn.Sequential(*layers)


@dataclass(frozen=True)
class Keyword(Drawn):
    """A text with a keyword, which is the class; or with two, of which the last one is."""

    has_words: ClassVar[bool] = True
    name: ClassVar[str] = "keyword"
    title: ClassVar[str] = "Keyword of a text"
    answer: ClassVar[str] = "the other words are drawn at random, whatever the class"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"last": {"last": True, "epochs": 30}}

    last: Annotated[
        bool, Doc("two keywords, of which the last tells the class; a recurrent network in place of a transformer")
    ] = False

    def draw(self, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        words, labels = self._others(count, rng), torch.randint(CLASSES, (count,), generator=rng)
        first, second = torch.rand(count, WORDS, generator=rng).argsort(1)[:, :2].sort(1).values.unbind(1)
        if self.last:
            words[torch.arange(count), first] = torch.randint(CLASSES, (count,), generator=rng)
        words[torch.arange(count), second] = labels
        return EMBEDDINGS[words], labels, (torch.arange(WORDS) == second[:, None])[..., None]

    def redrawn(self, x: Tensor, rng: torch.Generator) -> Tensor:
        return EMBEDDINGS[self._others(len(x), rng)]

    def _others(self, count: int, rng: torch.Generator) -> Tensor:
        return torch.randint(CLASSES, VOCABULARY, (count, WORDS), generator=rng)

    def build(self) -> nn.Module:
        return _TextNet(recurrent=self.last)


class EmbeddedWords(nn.Module):
    """A network of embeddings (N, L, D) of words."""

    def token_length(self) -> float:
        """Return the mean Euclidean length of the embeddings: by this the library knows a text."""
        return float(EMBEDDINGS.norm(dim=1).mean())


class _TextNet(EmbeddedWords):
    """Maps embeddings (N, L, D) to logits (N, 4): read to the end, or all of them at once."""

    def __init__(self, recurrent: bool) -> None:
        super().__init__()
        size = EMBEDDINGS.shape[1]
        self.place = nn.Parameter(0.1 * torch.randn(WORDS, size))
        self.recurrent = recurrent
        gru, layer = nn.GRU(size, 32, batch_first=True), nn.TransformerEncoderLayer(size, 2, 32, 0.0, batch_first=True)
        self.reader = gru if recurrent else layer
        self.head = nn.Linear(32 if recurrent else size, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.reader(x)[0][:, -1] if self.recurrent else self.reader(x + self.place).mean(1))
