"""The part of a spec after ``@``: random weights, a tensor file, or a name its library knows."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath

import torch

from fringe.models.errors import ModelError

TENSOR_SUFFIX = ".safetensors"

#: Formats that run code when they are read, or that no loader here reads.
REFUSED_SUFFIXES = (
    ".bin", ".ckpt", ".h5", ".joblib", ".jit", ".keras", ".mar", ".npy", ".npz", ".onnx", ".pb",
    ".pickle", ".pkl", ".pt", ".pth", ".tar", ".torchscript", ".ts",
)  # fmt: skip


@dataclass(frozen=True)
class RandomWeights:
    """Initial weights drawn from ``seed``."""

    seed: int


@dataclass(frozen=True)
class FileWeights:
    """A safetensors file."""

    path: Path


@dataclass(frozen=True)
class NamedWeights:
    """A set of weights its library downloads; None stands for the default."""

    name: str | None


WeightSource = RandomWeights | FileWeights | NamedWeights


def split_weights(target: str) -> tuple[str, WeightSource]:
    """``"resnet18@random:3"`` to ``("resnet18", RandomWeights(3))``; ``ModelError`` on unsafe files."""
    name, at, text = target.partition("@")
    if at and not text:
        raise ModelError(f"{target!r} names no weights after '@'")
    return name, _source(text)


def _source(text: str) -> WeightSource:
    if text == "random" or text.startswith("random:"):
        return RandomWeights(_seed(text))
    if PurePath(text).suffix.lower() == TENSOR_SUFFIX:
        return FileWeights(Path(text))
    refuse_unsafe(text)
    return NamedWeights(text or None)


def _seed(text: str) -> int:
    digits = text.partition(":")[2] if ":" in text else "0"
    if not (digits.isascii() and digits.isdigit() and int(digits) < 2**63):
        raise ModelError(f"weights {text!r}: the seed must be a whole number from 0 to 2**63 - 1")
    return int(digits)


def refuse_unsafe(path: str) -> None:
    """Raise ``ModelError`` for a file format that is not read here, with the way out."""
    suffix = PurePath(path).suffix.lower()
    if suffix in REFUSED_SUFFIXES:
        raise ModelError(
            f"{path!r}: {suffix} files are not read, because most of them can run code while loading; "
            "convert the state_dict with safetensors.torch.save_file and name it after '@', "
            "as in torchvision:resnet18@weights.safetensors"
        )


@contextmanager
def seeded(seed: int) -> Generator[None]:
    """Draw initial weights on the CPU from ``seed`` and put the caller's random state back afterwards.

    Only the CPU generator is touched: ``torch.manual_seed`` would reseed every accelerator as well.
    """
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        with torch.device("cpu"):
            yield
    finally:
        torch.set_rng_state(before)
