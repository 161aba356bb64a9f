"""XAI-TRIS: two tetrominoes in noise, in four scenarios of rising difficulty; everything is generated."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, MultipleOf
from torch import Tensor, nn

from fringe._numbers.filters import gaussian_blur
from fringe._numbers.rng import KeyedGenerator
from fringe.bench.scenes._base import Example, Gate, Images, Networks
from fringe.bench.scenes._training import TrainedScene, Training, predicted, share, shuffled
from fringe.models import LoadedModel, Preprocessing
from fringe.settings import Doc, Positive, PositiveInt

Scenario = Literal["linear", "multiplicative", "translations_rotations", "xor"]
Background = Literal["white", "correlated"]

SIDE = 8
#: Inputs lie in [-1, 1].
PREPROCESSING = Preprocessing(resize=(SIDE, SIDE), crop=None, mean=(0.5,), std=(0.5,), channels=1)
#: The tetrominoes T and L, and the row and column of their fixed places.
PATTERNS = (((1, 0), (1, 1), (1, 0)), ((1, 0), (1, 0), (1, 1)))
PLACES = ((1, 1), (4, 5))
#: Share of the pattern, against a white and a correlated background.
ALPHA: Mapping[Scenario, Mapping[Background, float]] = {
    "linear": {"white": 0.18, "correlated": 0.0125},
    "multiplicative": {"white": 0.7, "correlated": 0.1},
    "translations_rotations": {"white": 0.65, "correlated": 0.2},
    "xor": {"white": 0.35, "correlated": 0.15},
}
#: Signs of T and L in the four kinds of XOR samples; the class of the first two is 0.
SIGNS = ((1, 1), (-1, -1), (1, -1), (-1, 1))
NOISE = 0.5
SMOOTHING = 3.0


@dataclass(frozen=True)
class XAITris(TrainedScene):
    """Images of 8 x 8 pixels with the tetromino T (class 0) or L (class 1) in a noisy background.

    ``linear`` adds a pattern at a fixed place, ``multiplicative`` weakens the background there,
    ``translations_rotations`` adds it anywhere, and ``xor`` adds both, with equal or opposite signs. Of the samples,
    eight of ten train the networks, the ninth is not used, and examples are of the last.
    """

    name: ClassVar[str] = "xai_tris"
    title: ClassVar[str] = "XAI-TRIS"
    source: ClassVar[str] = (
        "Clark, Wilming and Haufe 2023 (XAI-TRIS: non-linear image benchmarks to quantify false positive post-hoc "
        "attribution of feature importance), arXiv 2306.12816"
    )
    answer: ClassVar[str] = "the classes differ only in the pattern that was put into the background"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        f"{scenario}_{background}": {"scenario": scenario, "background": background}
        for scenario in ALPHA
        for background in ALPHA[scenario]
    }

    scenario: Annotated[Scenario, Doc("how the pattern enters an image")] = "linear"
    background: Annotated[Background, Doc("independent noise, or noise blurred by a Gaussian of 3 pixels")] = "white"
    architecture: Annotated[
        Literal["linear", "mlp", "cnn"], Doc("linear, four layers with ReLU, or a small convolutional network")
    ] = "mlp"
    samples: Annotated[int, Ge(40), MultipleOf(40), Doc("samples that are generated")] = 10_000
    epochs: Annotated[PositiveInt, Doc("times that each sample is trained with")] = 40
    rate: Annotated[Positive, Doc("largest learning rate")] = 5e-3

    def training(self, model: LoadedModel | None, images: Images) -> Training:
        """Say how a network is trained; see :meth:`TrainedScene.training`."""
        data = self.data()

        def draw(numbers: Tensor, generator: torch.Generator, progress: float) -> tuple[Tensor, Tensor]:
            return data.x[numbers], data.labels[numbers]

        build = {"linear": _linear, "mlp": _mlp, "cnn": _cnn}[self.architecture]
        size = self.samples * 8 // 10
        return Training(build, draw, size, (), self.architecture, PREPROCESSING, ("T", "L"), batch=128)

    def examples(self, networks: Networks, images: Images, count: int, seed: int) -> tuple[Example, ...]:
        """Select test samples that every network classifies correctly; see :meth:`Scene.examples`."""
        data = self.data()
        candidates = (
            Example(name := f"sample-{number}", int(data.labels[number]), name, (), {"sample": number})
            for number in shuffled(range(self.samples * 9 // 10, self.samples), seed)
        )
        return self.agreed(networks, candidates, count)

    def make(self, example: Example, model: LoadedModel) -> tuple[Tensor, Tensor]:
        """Generate the sample of an example; see :meth:`Scene.make`."""
        data, number = self.data(), example.values["sample"]
        return data.x[number], data.truth[number]

    def gates(self, network: LoadedModel, model: LoadedModel | None, images: Images) -> tuple[Gate, ...]:
        """Measure the accuracy on test samples; see :meth:`Scene.gates`."""
        data, start = self.data(), self.samples * 9 // 10
        right = predicted(network, data.x[start:]) == data.labels[start:]
        return (Gate("accuracy on test samples", share(right), least=0.8),)

    def data(self) -> "Samples":
        """Generate all samples: norms and the largest value are those of the whole set."""
        return _generate(self.scenario, self.background, self.samples)


@dataclass(frozen=True)
class Samples:
    """Inputs ``x`` (N, 1, 8, 8) in [-1, 1], ``labels`` (N,), and the pixels ``truth`` (N, 8, 8) that tell the class.

    At fixed places the truth is that of both patterns: that one is absent tells as much as that the other is there.
    """

    x: Tensor
    labels: Tensor
    truth: Tensor


@cache
def _generate(scenario: Scenario, background: Background, count: int) -> Samples:
    keys = KeyedGenerator(0)
    b = NOISE * keys.normal("backgrounds", torch.zeros(count, SIDE, SIDE, dtype=torch.float64))
    if background == "correlated":
        b = gaussian_blur(b[:, None], SMOOTHING, "mirror")[:, 0]  # at the edges as SciPy does
    kinds = torch.arange(count) % 4
    labels = kinds // 2 if scenario == "xor" else kinds % 2
    p, truth = _patterns(scenario, labels, kinds)
    alpha = ALPHA[scenario][background]
    if scenario == "multiplicative":
        p = 1 - alpha * p
        x = (p / p.norm()) * (b / b.norm())
    else:
        x = alpha * p / p.norm() + (1 - alpha) * b / b.norm()
    return Samples((x / x.abs().max()).float()[:, None], labels, truth)


def _patterns(scenario: Scenario, labels: Tensor, kinds: Tensor) -> tuple[Tensor, Tensor]:
    """The patterns (N, 8, 8) of samples, and the pixels (N, 8, 8) that tell the classes."""
    shapes = [torch.tensor(pattern, dtype=torch.float64) for pattern in PATTERNS]
    if scenario == "translations_rotations":
        table = torch.stack([_anywhere(shape.rot90(turns)) for shape in shapes for turns in range(4)])
        keys = KeyedGenerator(0)
        turns = torch.tensor(keys.integers("rotations", 4, len(labels)))
        p = table[4 * labels + turns, keys.integers("places", table.shape[1], len(labels))]
        return p, p > 0
    fixed = torch.stack([_placed(shape, *corner) for shape, corner in zip(shapes, PLACES, strict=True)])
    truth = (fixed.sum(0) > 0).expand(len(labels), SIDE, SIDE)
    if scenario == "xor":
        return torch.einsum("nk,kij->nij", torch.tensor(SIGNS, dtype=torch.float64)[kinds], fixed), truth
    return fixed[labels], truth


def _placed(shape: Tensor, top: int, left: int) -> Tensor:
    canvas = torch.zeros(SIDE, SIDE, dtype=shape.dtype)
    canvas[top : top + shape.shape[0], left : left + shape.shape[1]] = shape
    return canvas


def _anywhere(shape: Tensor) -> Tensor:
    """A shape at each of the places where it fits: (42, 8, 8) for three pixels by two."""
    tops, lefts = (range(SIDE - length + 1) for length in shape.shape)
    return torch.stack([_placed(shape, top, left) for top in tops for left in lefts])


def _linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 2))


def _mlp() -> nn.Module:
    widths = (SIDE * SIDE, 32, 16, 8)
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(widths[-1], 2))


def _cnn() -> nn.Module:
    layers = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * (SIDE // 2) ** 2, 2))
