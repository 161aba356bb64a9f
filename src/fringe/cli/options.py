"""What was asked on the command line, read into values that mean something."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

from fringe.errors import InputError


class Score(StrEnum):
    """The explained scalar of the target class."""

    LOGIT = "logit"
    LOG_PROBABILITY = "log_probability"
    PROBABILITY = "probability"


class ModelOutput(StrEnum):
    """How the model's output reads."""

    AUTO = "auto"
    LOGITS = "logits"
    PROBABILITIES = "probabilities"


class Exif(StrEnum):
    """Whether a photo is turned the way its camera was held."""

    TRANSPOSE = "transpose"
    IGNORE = "ignore"


@dataclass(frozen=True)
class MethodOptions:
    """Which method, and how it is set: ``settings`` are the ``KEY=VALUE`` texts."""

    method: str = "fringe"
    preset: str | None = None
    variant: str | None = None
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelOptions:
    """Which model, and how images are prepared for it."""

    model: str
    preprocessing: str | None = None
    classes: Path | None = None
    trust_code: bool = False
    device: str = "auto"
    output: ModelOutput = ModelOutput.AUTO


@dataclass(frozen=True)
class RunOptions:
    """What to explain and where to put it. ``references`` names images as ``inputs`` do."""

    inputs: tuple[str, ...]
    out: Path
    target: str = "predicted"
    score: Score = Score.LOGIT
    references: str | None = None
    batch_size: str = "auto"
    seed: int = 0
    exif: Exif = Exif.TRANSPOSE
    overwrite: bool = False
    yes: bool = False
    figures: bool = True
    json: bool = False


@dataclass(frozen=True)
class CompareOptions:
    """Who is compared, by what, and how the picture shows it: the first ``rows`` images, maps averaged over ``pool``
    pixels."""

    methods: str
    metrics: str
    settings: tuple[str, ...] = ()
    controls: bool = True
    rows: int = 8
    pool: str = "auto"


EMBEDDED = "embedded:digits"
"""The model that travels with this package, and the images that it was made for."""


def choose_model(given: str | None, inputs: Sequence[str]) -> str:
    """The given model, or the embedded one for the embedded images: it calls any other photo a digit. Raises
    InputError where a model has to be named."""
    if given is not None:
        return given
    if all(text == EMBEDDED or text.startswith(f"{EMBEDDED}:") for text in inputs):
        return EMBEDDED
    raise InputError(
        "--model: none given; name the network that these images are for, such as --model torchvision:resnet50, "
        "--model timm:resnet18.a1_in1k, --model hf:microsoft/resnet-18 or --model models.py:my_network. See 'fringe "
        f"models'; {EMBEDDED} reads handwritten digits and is the default for the images {EMBEDDED} alone"
    )


def read_target(text: str) -> int | Literal["predicted"]:
    """``predicted`` or the number of a class."""
    if text == "predicted":
        return text
    try:
        return int(text)
    except ValueError:
        raise InputError(f"--target: got {text!r}, expected 'predicted' or the number of a class") from None


def read_batch_size(text: str) -> int | Literal["auto"]:
    """``auto`` or a positive number of images."""
    if text == "auto":
        return text
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise InputError(f"--batch-size: got {text!r}, expected 'auto' or a positive whole number")
    return int(text)


def read_pool(text: str) -> int | None:
    """A positive number of pixels; None for ``auto``."""
    if text == "auto":
        return None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise InputError(f"--pool: got {text!r}, expected 'auto' or a positive whole number")
    return int(text)


def read_class_names(path: Path | None) -> tuple[str, ...] | None:
    """One name a line; the first is class 0. Empty lines at the end do not count.

    Where every line begins with its own number, as in ``284 n02123597 Siamese_cat``, the number and a WordNet
    identifier after it are left out.
    """
    if path is None:
        return None
    try:
        lines = path.read_text(encoding="utf-8").rstrip().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--classes: cannot read {str(path)!r} as text ({error})") from error
    if not lines:
        raise InputError(f"--classes: {str(path)!r} names no class")
    numbered = all(_own_number(line) == place for place, line in enumerate(lines))
    return tuple(_NUMBER.sub("", line).strip() if numbered else line.strip() for line in lines)


_NUMBER = re.compile(r"\s*(\d+)\s+(n\d{8}\s+)?(?=\S)")


def _own_number(line: str) -> int | None:
    found = _NUMBER.match(line)
    return int(found[1]) if found else None
