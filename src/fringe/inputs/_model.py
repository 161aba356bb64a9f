"""A model in any form that a caller may give it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fringe._class_names import class_names
from fringe.classifier import Classifier
from fringe.data import SOURCE
from fringe.errors import InputError
from fringe.inputs._request import Request
from fringe.models import LoadedModel, Preprocessing, load_model, resolve_device, stated_preprocessing


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
    """Return the embedded model where all ``data`` are embedded images: it calls any other photo a digit."""
    if all(text.startswith("embedded:") for text in data):  # one that does not exist is named where images are
        return SOURCE
    raise InputError(
        "none given",
        argument="model",
        hint="name the network that these images are for, such as model='torchvision:resnet50', "
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
