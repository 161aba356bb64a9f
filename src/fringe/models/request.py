"""What every loader is given and what it gives back."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from fringe.models.errors import ModelError
from fringe.models.preprocessing import Preprocessing


@dataclass(frozen=True)
class Request:
    """What the caller asked for; ``target`` is the spec without its family, such as ``resnet18@random:3``."""

    spec: str
    target: str
    trust_code: bool
    preprocessing: Preprocessing | None


@dataclass(frozen=True)
class Built:
    """A module in any mode on any device, with what its source knows about it."""

    module: nn.Module
    architecture: str
    preprocessing: Preprocessing
    class_names: tuple[str, ...] | None


@dataclass(frozen=True)
class Loader:
    """One family of specs: how they are written, what they mean, and the function that builds them."""

    form: str
    summary: str
    build: Callable[[Request], Built]


def stated_preprocessing(request: Request) -> Preprocessing:
    """The caller's recipe, for sources that carry none; asked for before any code runs."""
    if request.preprocessing is None:
        raise ModelError(
            f"{request.spec!r} does not say how images are prepared; pass preprocessing=, for instance "
            "Preprocessing.parse('imagenet') or Preprocessing.parse('resize=256,crop=224,mean=0.5,std=0.5')"
        )
    return request.preprocessing


def require_trust(request: Request, why: str) -> None:
    """Refuse a source that can run code of its author's choice unless the caller trusts it."""
    if not request.trust_code:
        raise ModelError(f"{request.spec!r} {why}; pass trust_code=True only if you trust its author")
