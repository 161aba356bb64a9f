"""``torchvision:NAME[@WEIGHTS]``: its classification networks with the transforms their weights came with."""

import functools
import re
from typing import Any

import torch
from torch import nn

from fringe.errors import ModelError, did_you_mean
from fringe.models._base import (
    LoadedParts,
    LoadOptions,
    WeightSource,
    import_extra,
    read_tensors,
    split_weights,
)
from fringe.models._preprocessing import Preprocessing

#: The first published ImageNet weights are those the literature reports on, also where better ones exist.
PREFERRED = "IMAGENET1K_V1"

#: Files of DenseNets were written when names of modules had dots: ``norm.1`` is ``norm1`` today.
_DOTTED = re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12]\.)")

#: What torchvision's own extension declares; classification never calls either.
_SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


def load_torchvision(options: LoadOptions) -> LoadedParts:
    """Build a classifier or a detector; class names are those of its weights, and None with random weights."""
    name, source = split_weights(options.target)
    models, known = import_torchvision().models, torchvision_names()
    if name not in known:
        raise ModelError(f"torchvision has no classifier or detector {name!r}", hint=did_you_mean(name, known, n=3))
    members: dict[str, Any] = dict(models.get_model_weights(name).__members__)
    requested = source.name or (PREFERRED if PREFERRED in members else "DEFAULT")
    if requested not in members:
        text = f"known: {', '.join(members)}, random[:SEED], or a path ending in .safetensors"
        hint = did_you_mean(requested, members, text)
        raise ModelError(f"torchvision has no weights {requested!r} for {name}", hint=hint)
    member = members[requested]
    module = source.network(
        lambda: models.get_model(name, weights=None, **_structure(name, member, source)),
        lambda: _download(name, member),
    )
    return LoadedParts(
        module,
        architecture=name,
        preprocessing=options.preprocessing or detector_preprocessing(module) or _preprocessing(member),
        class_names=None if source.seed is not None else tuple(member.meta["categories"]),
    )


def _structure(name: str, member: Any, source: WeightSource) -> dict[str, Any]:
    """The arguments that the constructors choose only where they load weights themselves."""
    if name in _detectors():  # the number of classes follows from the weights, which are not given here
        return {"weights_backbone": None, "num_classes": len(member.meta["categories"])}
    if name.startswith("vit_"):  # the size of images, which differs between its weights
        return {"image_size": member.transforms().crop_size[0]}
    if name not in ("googlenet", "inception_v3"):
        return {}
    # Without init_weights the slow initialisation is not announced.
    structure = {"transform_input": True, "init_weights": True}
    if name == "googlenet" and source.path is not None:  # it is given without its auxiliary heads
        structure["aux_logits"] = "aux1.fc1.weight" in read_tensors(source.path)
    return structure


def _download(name: str, member: Any) -> Any:
    try:
        # weights_only: what arrives is a pickle, and a hash in its file name is no reason to run it
        state = member.get_state_dict(progress=False, check_hash=True, weights_only=True)
    except (OSError, RuntimeError) as error:  # no network, no disk, or a hash that differs
        raise ModelError(
            f"could not fetch {member} ({type(error).__name__}: {error})",
            hint="without a network, save the state_dict as safetensors on another machine and use "
            f"torchvision:{name}@FILE.safetensors, or torchvision:{name}@random to try things out",
        ) from error
    for key in list(state):
        state[_DOTTED.sub(r"\1\2", key)] = state.pop(key)
    return state


def _preprocessing(member: Any) -> Preprocessing:
    preset = member.transforms()
    resize, crop = tuple(preset.resize_size), tuple(preset.crop_size)
    return Preprocessing(
        resize=resize,
        crop=crop * 2 if len(crop) == 1 else (crop[0], crop[1]),
        mean=tuple(preset.mean),
        std=tuple(preset.std),
        interpolation=preset.interpolation.value,
    )


def detector_preprocessing(module: nn.Module) -> Preprocessing | None:
    """Return the size of the images that a detector of torchvision sees; it normalises them by itself. None for any
    other network."""
    own: Any = getattr(module, "transform", None)
    if not type(module).__module__.startswith("torchvision.models.detection") or not hasattr(own, "fixed_size"):
        return None
    if own.fixed_size is not None:
        return Preprocessing.parse(f"resize={own.fixed_size[1]}x{own.fixed_size[0]}")
    return Preprocessing.parse(f"resize={own.min_size[-1]},longest={own.max_size}")


def torchvision_names() -> list[str]:
    """Return the names of all its classifiers and detectors of boxes. Raises ModelError if it is not installed."""
    models = import_torchvision().models
    return [*models.list_models(module=models), *_detectors()]


def _detectors() -> list[str]:
    models = import_torchvision().models
    return [name for name in models.list_models(module=models.detection) if not name.startswith(("keypoint", "mask"))]


def import_torchvision(extra: str = "vision") -> Any:
    """Import torchvision, also where its compiled operators do not fit the installed PyTorch.

    Beside a PyTorch built for another accelerator the extension does not load, and the package then fails to
    import because it describes two undeclared operators. Declaring them is enough for every classifier.
    """
    try:
        return import_extra("torchvision", extra)
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
    _declare_operators()
    return import_extra("torchvision", extra)


@functools.cache  # the declarations last as long as the Library object, which this keeps for the process
def _declare_operators() -> torch.library.Library:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name, schema in _SCHEMAS.items():
        if getattr(torch.ops.torchvision, name, None) is None:
            library.define(schema)  # pyright: ignore[reportUnknownMemberType] - untyped in torch
    return library
