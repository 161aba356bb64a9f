"""Rows of tables, time series and volumes: arrays, tensors and data frames."""

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from fringe.classifier import Classifier
from fringe.errors import InputError
from fringe.inputs._request import ModelInputs, OpenModel, Request, open_model

#: Placeholder: a model loaded by name must have a preprocessing, but tables and series do not use it.
_NO_PICTURES = "unit"


def tabular_inputs(request: Request) -> ModelInputs:
    """Convert rows of a table to inputs (B, F): a data frame, an array or a tensor (B, F), or one row (F).

    A fitted scaler of scikit-learn as ``preprocessing`` standardises them; figures still show the original values. The
    option ``features`` names the columns. Raises InputError if the inputs are not a table of finite numbers, or the
    number of names differs from the number of columns.
    """
    scaler = request.preprocessing
    model = open_model(dataclasses.replace(request, preprocessing=_NO_PICTURES))
    columns = getattr(request.inputs, "columns", None)
    x = _numbers(request.inputs)
    x = x[None] if x.dim() == 1 else x
    if x.dim() != 2 or not x.numel():
        raise InputError(f"got shape {tuple(x.shape)}, expected rows (B, F)", argument="inputs")
    names = _names(request, columns, x.shape[1], "feature")
    mean, std = _scale(scaler, x, columns)
    if mean:  # in float64: float32 would round a time stamp in seconds to minutes
        x = (x.double() - torch.tensor(mean, dtype=torch.float64)) / torch.tensor(std, dtype=torch.float64)
    return _ready(model, _as_weights(x, model), "row", names, mean, std)


def series_inputs(request: Request) -> ModelInputs:
    """Convert arrays or tensors of time series, (B, C, L), (B, L) or (L), to inputs (B, C, L).

    The option ``features`` names the channels. Raises InputError if the inputs are not series of finite numbers,
    the number of names differs from the number of channels, or a preprocessing is given.
    """
    x = _numbers(request.inputs)
    x = x[None, None] if x.dim() == 1 else x[:, None] if x.dim() == 2 else x
    return _unchanged(request, x, "series", "series (B, C, L)", 3)


def volume_inputs(request: Request) -> ModelInputs:
    """Convert arrays or tensors of volumes or films, (B, C, D, H, W), to inputs; see :func:`series_inputs`."""
    return _unchanged(request, _numbers(request.inputs), "volume", "volumes (B, C, D, H, W)", 5)


def _unchanged(request: Request, x: Tensor, noun: str, expected: str, axes: int) -> ModelInputs:
    if request.preprocessing is not None:
        message = f"{expected.split()[0]} are taken as they are"
        raise InputError(message, argument="preprocessing", hint="standardise them before")
    model = open_model(dataclasses.replace(request, preprocessing=_NO_PICTURES))
    if x.dim() != axes or not x.numel():
        raise InputError(f"got shape {tuple(x.shape)}, expected {expected}", argument="inputs")
    names = _names(request, None, x.shape[1], "channel") if "features" in request.options else ()
    return _ready(model, _as_weights(x, model), noun, names, (), ())


def _numbers(inputs: Any) -> Tensor:
    """Convert the inputs to a tensor; arrays become float64."""
    try:
        return inputs.cpu() if isinstance(inputs, Tensor) else torch.from_numpy(np.array(inputs, dtype=np.float64))
    except (TypeError, ValueError) as error:
        message = f"got {type(inputs).__name__} that does not read as numbers ({error})"
        hint = "turn categories into one-hot columns, or pass their codes beside the numbers in a dictionary of inputs"
        raise InputError(message, argument="inputs", hint=hint) from error


def _as_weights(x: Tensor, model: OpenModel) -> Tensor:
    """Move ``x`` to the dtype and device of the model's weights. Raises InputError for NaN and infinity."""
    inner: Any = model.model.model if isinstance(model.model, Classifier) else model.model
    weights = inner.parameters() if isinstance(inner, nn.Module) else ()
    dtype = next((w.dtype for w in weights if w.is_floating_point()), torch.float32)
    x = x.to(dtype if dtype not in (torch.float16, torch.bfloat16) else torch.float32)
    if not bool(torch.isfinite(x).all()):
        raise InputError("they hold NaN or infinity", argument="inputs", hint="fill or drop missing values")
    return x.to(model.device)


def _names(request: Request, columns: Any, count: int, noun: str) -> tuple[str, ...]:
    given = request.options.get("features")
    given = columns if given is None else given
    if given is None:
        return tuple(f"{noun} {k}" for k in range(count))
    names = tuple(map(str, cast(Sequence[Any], given)))
    if len(names) != count:
        raise InputError(f"got {len(names)} names for {count} {noun}s", argument="features")
    return names


def _scale(scaler: Any, x: Tensor, columns: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of the columns from a fitted scaler; () without one."""
    if scaler is None:
        return (), ()
    count = x.shape[1]
    mean = getattr(scaler, "mean_", None) if getattr(scaler, "with_mean", True) else [0.0] * count
    std = getattr(scaler, "scale_", None) if getattr(scaler, "with_std", True) else [1.0] * count
    if mean is None or std is None or len(mean) != count or len(std) != count:
        message = f"got {type(scaler).__name__}, expected a StandardScaler fitted on {count} columns"
        raise InputError(message, argument="preprocessing", hint="or pass standardised inputs and leave it out")
    fitted = getattr(scaler, "feature_names_in_", None)
    if columns is not None and fitted is not None and list(columns) != list(fitted):
        message = f"got the columns {', '.join(map(str, columns))}; the scaler was fitted on {', '.join(fitted)}"
        raise InputError(message, argument="inputs", hint="pass the same columns in the same order")
    return tuple(map(float, mean)), tuple(map(float, std))


def _ready(
    model: OpenModel, x: Tensor, noun: str, names: tuple[str, ...], mean: tuple[float, ...], std: tuple[float, ...]
) -> ModelInputs:
    return ModelInputs(
        model=model.model,
        label=model.label,
        class_names=model.class_names,
        inputs=x,
        ids=tuple(f"{noun}-{i}" for i in range(len(x))),
        mean=mean,
        std=std,
        features=(names,) * len(x) if names else (),
    )
