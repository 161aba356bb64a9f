"""The model that a command runs."""

from typing import Any, Literal, cast

import torch
from torch import Tensor

from fringe.classifier import Classifier
from fringe.cli.options import ModelOptions, ModelOutput, Score, read_class_names
from fringe.errors import InputError
from fringe.models import LoadedModel, Preprocessing, load_model


def open_model(options: ModelOptions) -> tuple[LoadedModel, torch.device]:
    """The model, and the device that it is on."""
    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    recipe = None if options.preprocessing is None else Preprocessing.parse(options.preprocessing)
    loaded = load_model(
        options.model,
        trust_code=options.trust_code,
        preprocessing=recipe,
        class_names=read_class_names(options.classes),
        device=device,
    )
    return loaded, torch.device(device)


def open_classifier(
    loaded: LoadedModel, score: Score, output: ModelOutput, batch_size: int | Literal["auto"]
) -> Classifier:
    """The seam to the model; it remembers from chunk to chunk what fits in memory."""
    kinds = {"score": cast(Any, score.value), "output": cast(Any, output.value)}
    return Classifier(loaded.module, **kinds, batch_size=batch_size)


def check_class_names(loaded: LoadedModel, logits: Tensor) -> None:
    """Raise InputError where names were given for another number of classes."""
    names = loaded.class_names
    if names is not None and len(names) != logits.shape[1]:
        raise InputError(f"class names: got {len(names)} for a model of {logits.shape[1]} classes (--classes)")


def unfit(x: Tensor, error: RuntimeError) -> str:
    """That the model cannot take inputs like ``x`` (B, *S), and the first line of why."""
    return f"the model cannot take an input of shape {tuple(x.shape[1:])}: {str(error).splitlines()[0]}"
