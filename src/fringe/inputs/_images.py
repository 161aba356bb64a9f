"""Images: pictures in memory, files, folders and scans are preprocessed; tensors are preprocessed already."""

import os
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from fringe._arguments import integers_hint
from fringe.baselines import InputSpace
from fringe.data import find_inputs, is_picture, to_images
from fringe.errors import InputError
from fringe.inputs._request import ModelInputs, OpenModel, Request, open_model
from fringe.models import Preprocessing

_EXPECTED = "a PIL image, a path, an array (H, W, C), a tensor (C, H, W) or (B, C, H, W), or a list of them"


class _Paths(list[str]):
    """Consecutive names of files, folders and scans."""


def image_inputs(request: Request) -> ModelInputs:
    """Prepare images for a model.

    Raises InputError if the inputs are not images, if a model without preprocessing gets a picture, or if sizes differ;
    ImageError if an image cannot be read.
    """
    model = open_model(request)
    named: list[tuple[str | None, Tensor]] = []
    for item in _flat(request.inputs):
        named += _tensors(item, model)
    if not named:
        raise InputError(f"got no images, expected {_EXPECTED}", argument="inputs")
    ids = tuple(name or f"image-{i}" for i, (name, _) in enumerate(named))
    x = _stack([tensor for _, tensor in named], ids).to(model.device)
    mean, std = image_scale(x, model.preprocessing)
    return ModelInputs(
        model=model.model,
        label=model.label,
        class_names=model.class_names,
        inputs=x,
        ids=ids,
        keys=ids if all(name is not None for name, _ in named) else None,
        space=_space(model.preprocessing, x),
        mean=mean,
        std=std,
    )


def _flat(inputs: Any) -> list[Any]:
    """Flatten nested inputs; consecutive texts and paths become one item, so that their ids are unique."""
    if not isinstance(inputs, (list, tuple)):
        inputs = [inputs]
    items: list[Any] = []
    for item in cast(Sequence[Any], inputs):
        if isinstance(item, (str, os.PathLike)):
            text = os.fspath(cast("str | os.PathLike[str]", item))
            if not (items and isinstance(items[-1], _Paths)):
                items.append(_Paths())
            items[-1].append(text)
        else:
            items.append(item)
    return items


def _tensors(item: Any, model: OpenModel) -> list[tuple[str | None, Tensor]]:
    """The inputs (C, H, W) of an item, each with its name or None."""
    if isinstance(item, Tensor):
        return [(None, x) for x in _batch(item)]
    recipe = model.preprocessing
    if isinstance(item, _Paths):
        recipe = _required(recipe, "a path")
        samples = (ref.open(channels=recipe.channels) for ref in find_inputs(item))
        return [(sample.id, recipe.normalise(recipe.pixels(sample.image))) for sample in samples]
    if is_picture(item):
        recipe = _required(recipe, f"a picture ({type(item).__name__})")
        return [(None, recipe.normalise(recipe.pixels(image))) for image in to_images(item, channels=recipe.channels)]
    raise InputError(f"got {type(item).__name__}, expected {_EXPECTED}", argument="inputs")


def _required(recipe: Preprocessing | None, what: str) -> Preprocessing:
    if recipe is None:
        texts = "for a text give tokenizer=; for a picture " if what == "a path" else ""
        raise InputError(
            f"got {what} for a model that does not say how pictures are prepared",
            argument="inputs",
            hint=f"{texts}pass preprocessing='imagenet', or 'resize=256,crop=224,mean=0.5,std=0.5' or the like"
            ", or a tensor that is prepared already",
        )
    return recipe


def _batch(x: Tensor) -> Tensor:
    """Return a tensor (C, H, W) or (B, C, H, W) as a batch."""
    if x.dim() not in (3, 4) or x.numel() == 0:
        raise InputError(
            f"got a tensor of shape {tuple(x.shape)}, expected (C, H, W) or (B, C, H, W)",
            argument="inputs",
            hint="for volumes (B, C, D, H, W) give kind='volume'; fringe.attribute takes inputs of any shape"
            if x.is_floating_point()
            else integers_hint(x),
        )
    if not x.is_floating_point():
        raise InputError(
            f"got a tensor of {x.dtype}, expected floating point: a tensor is taken as prepared already",
            argument="inputs",
            hint="pass pixels as a NumPy array (H, W, C), as in x.permute(1, 2, 0).numpy()",
        )
    return x if x.dim() == 4 else x[None]


def _stack(tensors: Sequence[Tensor], ids: Sequence[str]) -> Tensor:
    shapes = [tuple(x.shape) for x in tensors]
    other = next((i for i, shape in enumerate(shapes) if shape != shapes[0]), None)
    if other is not None:
        raise InputError(
            f"{ids[0]} has shape {shapes[0]} and {ids[other]} {shapes[other]}; one call explains inputs of one shape",
            argument="inputs",
            hint="explain them one by one, or pass preprocessing= with a crop",
        )
    return torch.stack([x.to(tensors[0]) for x in tensors])


def _space(recipe: Preprocessing | None, x: Tensor) -> InputSpace:
    if recipe is None or recipe.channels != x.shape[1]:
        return InputSpace()
    low, high = recipe.bounds()
    return InputSpace(low.to(x), high.to(x))


def image_scale(x: Tensor, recipe: Preprocessing | None) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation that turn inputs into pixels; without a preprocessing, inputs in [0, 1] are pixels,
    and others are shown between their smallest and largest entry."""
    if recipe is not None and recipe.channels == x.shape[1]:
        return recipe.mean, recipe.std
    finite = x[x.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 1.0)
    if low >= 0 and high <= 1:
        return (0.0,), (1.0,)
    width = (high - low) or 1.0
    return (-low / width,), (1.0 / width,)
