"""What a converter of inputs takes and gives."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fringe._class_names import ClassNames
from fringe.attribution import Context, InputKind
from fringe.baselines import InputSpace
from fringe.classifier import Classifier
from fringe.errors import InputError
from fringe.models import Preprocessing


@dataclass(frozen=True)
class Request:
    """What the caller gave.

    Attributes:
        model: A spec, or a module, callable, Classifier or LoadedModel.
        inputs: The inputs in any form that the converter takes.
        preprocessing: How pictures are prepared, where the model does not say it.
        classes: Names of the classes, where the model has none.
        device: Name of a device, or "auto".
        trust_code: Whether code of the model's author may run.
        options: Further arguments, of one kind of input.
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
    """A model and its inputs, ready to be explained.

    Attributes:
        model: The module, callable or Classifier.
        label: Name of the model.
        class_names: Names of its classes.
        inputs: Inputs (B, *S) on the device of the model.
        ids: Names (B) of the inputs.
        keys: Names (B) that key the random numbers of the inputs; None: their contents do.
        space: Range of valid inputs.
        mean: Mean of each channel, for pictures.
        std: Standard deviation of each channel, for pictures.
        features: Names of the features of each input.
        arguments: Further keyword arguments of :func:`fringe.attribute`, such as ``forward_kwargs``.
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
        """The names of ``count`` classes, if they are known; raises InputError if there are more or fewer."""
        names = self.class_names
        if names is not None and len(names) != count:
            raise InputError(f"got {len(names)} names for a model of {count} classes", argument="classes")
        return names

    def context(self, kind: InputKind, logits: Tensor, ids: Sequence[str] | None = None) -> Context:
        """What pictures need, given the logits (B, C) of the inputs."""
        return Context(
            kind=kind,
            inputs=self.inputs.detach().cpu(),
            probabilities=logits.double().softmax(-1).float().cpu(),
            ids=self.ids if ids is None else tuple(ids),
            model=self.label,
            mean=self.mean,
            std=self.std,
            class_names=self.named(logits.shape[1]),
            features=self.features,
        )


#: From what the caller gave to what the model takes.
Converter = Callable[[Request], ModelInputs]
