"""Texts for a sequence classifier of the transformers library."""

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

from torch import nn

from fringe._class_names import class_names
from fringe.errors import InputError
from fringe.inputs._request import ModelInputs, Request, open_model
from fringe.models import load_text_model, resolve_device
from fringe.text import TextClassifier


def text_inputs(request: Request) -> ModelInputs:
    """Convert texts to word embeddings (B, L, D); their masks become further arguments of the model.

    The model is ``"hf:NAME"``, a :class:`fringe.text.TextClassifier`, or a module with the option ``tokenizer``; the
    option ``special`` says whether special tokens are explained. Raises InputError if the inputs are not texts, or a
    module is given without its tokenizer; ModelError if a text names no model that can be loaded.
    """
    given = request.inputs
    texts = [given] if isinstance(given, str) else list(cast(Sequence[Any], given))
    if not texts or not all(isinstance(text, str) for text in texts):
        raise InputError("expected a text or a list of texts", argument="inputs")
    model, tokenizer = request.model, request.options.get("tokenizer")
    if isinstance(model, str):
        model, tokenizer = load_text_model(model, resolve_device(request.device))
    if not isinstance(model, TextClassifier):
        if not isinstance(model, nn.Module) or tokenizer is None:
            message = f"got {type(model).__name__} without its tokenizer" if tokenizer is None else "expected a module"
            hint = "pass tokenizer=, or name a model as 'hf:NAME'"
            raise InputError(message, argument="model" if tokenizer is not None else "tokenizer", hint=hint)
        model = TextClassifier(model, tokenizer, request.options.get("special", "fixed"))
    opened = open_model(dataclasses.replace(request, model=model, preprocessing=None))
    stated = getattr(getattr(model.model, "config", None), "id2label", None) or None
    encoded = model.encode(texts)
    return ModelInputs(
        model=model,
        label=type(model.model).__name__,  # not the spec, which may be a path of this machine
        class_names=class_names(request.classes) or class_names(stated),
        inputs=encoded.embeddings.to(opened.device),
        ids=tuple(f"text-{i}" for i in range(len(texts))),
        features=encoded.labels,
        arguments={"forward_kwargs": encoded.arguments},
    )
