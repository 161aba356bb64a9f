"""BlockDigits: a digit above or below a block that means nothing; it needs neither a model nor images."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fringe._numbers.rng import KeyedGenerator
from fringe.bench.scenes._base import Example, Gate, Images, Networks
from fringe.bench.scenes._training import TrainedScene, Training, input_of, inputs_of, predicted, share, shuffled
from fringe.data import ImageRef, digits_samples, find_inputs
from fringe.models import DIGIT_NAMES, DIGIT_PREPROCESSING, DigitNet, LoadedModel
from fringe.settings import Doc, Positive, PositiveInt


@dataclass(frozen=True)
class BlockDigits(TrainedScene):
    """Embedded digits on top of, or below, a square outline, in random order; the class is the digit."""

    name: ClassVar[str] = "blockdigits"
    title: ClassVar[str] = "BlockDigits"
    source: ClassVar[str] = (
        "after Shah, Jain and Netrapalli 2021 (BlockMNIST; Do input gradients highlight discriminative features?), "
        "arXiv 2102.12781"
    )
    answer: ClassVar[str] = "the block without a digit is the same in every image, so only the digit tells the class"

    epochs: Annotated[PositiveInt, Doc("times that each digit is trained with")] = 12
    rate: Annotated[Positive, Doc("largest learning rate")] = 1e-2

    def training(self, model: LoadedModel | None, images: Images) -> Training:
        """Say how a network is trained; see :meth:`TrainedScene.training`."""
        samples = digits_samples("train")
        x = torch.stack([DIGIT_PREPROCESSING.normalise(DIGIT_PREPROCESSING.pixels(s.image)) for s in samples])
        labels = torch.tensor([s.label for s in samples])

        def draw(numbers: Tensor, generator: torch.Generator, progress: float) -> tuple[Tensor, Tensor]:
            return stacked(x[numbers], torch.rand(len(numbers), generator=generator) < 0.5), labels[numbers]

        return Training(DigitNet, draw, len(x), (), "digits", DIGIT_PREPROCESSING, DIGIT_NAMES)

    def examples(self, networks: Networks, images: Images, count: int, seed: int) -> tuple[Example, ...]:
        """Select test digits that every network classifies correctly; see :meth:`Scene.examples`."""
        refs, labels = _test_digits()
        above = KeyedGenerator(seed).integers("above", 2, len(refs))
        candidates = (
            Example(refs[i].id, int(labels[i]), refs[i].id, (refs[i].source,), {"above": bool(above[i])})
            for i in shuffled(range(len(refs)), seed)
        )
        return self.agreed(networks, candidates, count)

    def make(self, example: Example, model: LoadedModel) -> tuple[Tensor, Tensor]:
        """Stack the digit of an example and the null block; see :meth:`Scene.make`."""
        digit, above = input_of(example, model.preprocessing), torch.tensor([example.values["above"]])
        height, width = digit.shape[2:]
        is_lower = (torch.arange(2 * height) >= height)[:, None].expand(-1, width)
        return stacked(digit, above)[0], is_lower ^ above

    def gates(self, network: LoadedModel, model: LoadedModel | None, images: Images) -> tuple[Gate, ...]:
        """Measure the accuracy on test digits, at either place; see :meth:`Scene.gates`."""
        refs, labels = _test_digits()
        digits = inputs_of(refs, DIGIT_PREPROCESSING)
        right = [
            predicted(network, stacked(digits, torch.full((len(digits),), above))) == labels for above in (True, False)
        ]
        return (Gate("accuracy on unseen digits", share(torch.cat(right)), least=0.95),)


def null_block() -> Tensor:
    """Return the block without a digit: the outline of a square, (1, 32, 32), normalised."""
    pixels = torch.zeros(1, 32, 32)
    pixels[:, 6:26, 6:26] = 1
    pixels[:, 10:22, 10:22] = 0
    return DIGIT_PREPROCESSING.normalise(pixels)


def stacked(digits: Tensor, above: Tensor) -> Tensor:
    """Put digits (B, 1, 32, 32) above the null block where ``above`` (B,) is true, else below it: (B, 1, 64, 32)."""
    null = null_block().expand_as(digits)
    first = above[:, None, None, None]
    return torch.cat([torch.where(first, digits, null), torch.where(first, null, digits)], 2)


def _test_digits() -> tuple[list[ImageRef], Tensor]:
    refs = list(find_inputs(["embedded:digits"]))
    return refs, torch.tensor([ref.label for ref in refs])
