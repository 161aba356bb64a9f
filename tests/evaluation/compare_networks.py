"""Methods small enough that a comparison of them is known by heart."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fringe import InputError
from fringe.attribution import Attributor
from fringe.attribution._diagnostics import gradient_attribution


@dataclass(frozen=True)
class Refusing(Attributor):
    """Cannot explain anything."""

    name: ClassVar[str] = "refusing"

    def attribute(self, problem):
        raise InputError("refusing: no reference images")


@dataclass(frozen=True)
class Breaking(Attributor):
    """The gradient, but NaN for the images with a key that begins with ``nan``."""

    name: ClassVar[str] = "breaking"

    def attribute(self, problem):
        values = problem.logits_gradient(problem.inputs, problem.every_row)[1]
        bad = torch.tensor([key.startswith("nan") for key in problem.keys])
        values = torch.where(bad[:, None, None, None], torch.nan, values)
        return gradient_attribution(self, values, problem, {}, "a gradient")


@dataclass(frozen=True)
class Noisy(Attributor):
    """Random maps: the noise of the image's own key."""

    name: ClassVar[str] = "noisy"

    def attribute(self, problem):
        pairs = zip(problem.keys, problem.inputs, strict=True)
        values = torch.stack([problem.rng.normal(f"noisy {key}", x) for key, x in pairs])
        return gradient_attribution(self, values, problem, {}, "noise")


@dataclass(frozen=True)
class Picky(Attributor):
    """The gradient; refuses a batch with an image whose key begins with ``bad``."""

    name: ClassVar[str] = "picky"

    def attribute(self, problem):
        bad = [key for key in problem.keys if key.startswith("bad")]
        if bad:
            raise InputError(f"picky: does not like {bad[0]}")
        values = problem.logits_gradient(problem.inputs, problem.every_row)[1]
        return gradient_attribution(self, values, problem, {}, "a gradient")
