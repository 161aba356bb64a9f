"""Argument and result of a converter of inputs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fringe._class_names import ClassNames
from fringe.attribution import Context, InputKind
from fringe.baselines import InputSpace
from fringe.classifier import Classifier
from fringe.errors import InputError
from fringe.models import Preprocessing


@dataclass(frozen=True)
class Request:
    """The arguments of the caller: a model and inputs in any form that the converter takes.

    ``preprocessing`` and ``classes`` are for a model that does not define them; ``options`` are further arguments for
    one kind of input.
    """

    model: Any
    inputs: Any
    preprocessing: Preprocessing | str | None = None
    classes: ClassNames | None = None
    device: str = "auto"
    trust_code: bool = False
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class ModelInputs:
    """A model and its inputs (B, *S), ready to be explained, on the device of the model.

    ``keys`` (B) are those of the inputs' random numbers; None: hashes of their contents. ``mean`` and ``std`` are those
    of the channels of pictures, ``features`` the names of the features of each input, and ``arguments`` further ones of
    :func:`fringe.attribute`, such as ``forward_kwargs``.
    """

    model: Callable[..., Any] | Classifier
    label: str
    class_names: tuple[str, ...] | None
    inputs: Tensor
    ids: tuple[str, ...]
    keys: tuple[str, ...] | None = None
    space: InputSpace = field(default_factory=InputSpace)
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    features: tuple[tuple[str, ...], ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def named(self, count: int) -> tuple[str, ...] | None:
        """Return the names of ``count`` classes, if known; raise InputError if their number differs."""
        names = self.class_names if count > 1 else ("score",)  # one number is that of a score function
        if names is not None and len(names) != count:
            message, hint = f"got {len(names)} names for a model of {count} classes", "give one name for each class"
            raise InputError(message, argument="classes", hint=hint)
        return names

    def context(self, kind: InputKind, logits: Tensor, ids: Sequence[str] | None = None) -> Context:
        """Build the context of figures from the logits (B, C) of the inputs; one number has no probability."""
        probabilities = logits.double().softmax(-1) if logits.shape[1] > 1 else torch.full_like(logits, torch.nan)
        return Context(
            kind=kind,
            inputs=self.inputs.detach().cpu(),
            probabilities=probabilities.float().cpu(),
            ids=self.ids if ids is None else tuple(ids),
            model=self.label,
            mean=self.mean,
            std=self.std,
            class_names=self.named(logits.shape[1]),
            features=self.features,
        )


#: Converts the arguments of the caller to inputs of the model.
Converter = Callable[[Request], ModelInputs]
