"""``torchvision:NAME[@WEIGHTS]``: its classification networks with the transforms their weights came with."""

from typing import Any

from torch import nn

from fringe.models.errors import ModelError, did_you_mean
from fringe.models.preprocessing import Preprocessing
from fringe.models.request import Built, Request
from fringe.models.tensor_file import load_into
from fringe.models.vision_import import import_torchvision
from fringe.models.weights import (
    FileWeights,
    NamedWeights,
    RandomWeights,
    WeightSource,
    seeded,
    split_weights,
)

#: The first published ImageNet weights are those the literature reports on, also where better ones exist.
PREFERRED = "IMAGENET1K_V1"

#: Their ImageNet weights expect the input rescaled inside the network; the constructors do so only when they
#: load those weights themselves. Without ``init_weights`` the slow initialisation is not announced.
_STRUCTURE: dict[str, dict[str, bool]] = {
    "googlenet": {"transform_input": True, "init_weights": True},
    "inception_v3": {"transform_input": True, "init_weights": True},
}


def load_torchvision(request: Request) -> Built:
    """Build a network; class names are those of its ImageNet weights, and None with random weights."""
    name, source = split_weights(request.target)
    models = import_torchvision().models
    known: list[str] = models.list_models(module=models)
    if name not in known:
        raise ModelError(f"torchvision has no classifier {name!r}{did_you_mean(name, known)}")
    members: dict[str, Any] = dict(models.get_model_weights(name).__members__)
    member = _member(name, members, source.name if isinstance(source, NamedWeights) else None)
    return Built(
        _with_weights(models, name, member, source),
        architecture=name,
        preprocessing=request.preprocessing or _preprocessing(member),
        class_names=None if isinstance(source, RandomWeights) else tuple(member.meta["categories"]),
    )


def _member(name: str, members: dict[str, Any], asked: str | None) -> Any:
    asked = asked or (PREFERRED if PREFERRED in members else "DEFAULT")
    if asked not in members:
        raise ModelError(
            f"torchvision has no weights {asked!r} for {name}{did_you_mean(asked, members)}; known: "
            f"{', '.join(members)}, random[:SEED], or a path ending in .safetensors"
        )
    return members[asked]


def _with_weights(models: Any, name: str, member: Any, source: WeightSource) -> nn.Module:
    with seeded(source.seed if isinstance(source, RandomWeights) else 0):
        module: nn.Module = models.get_model(name, weights=None, **_STRUCTURE.get(name, {}))
    if isinstance(source, FileWeights):
        load_into(module, source.path)
    elif isinstance(source, NamedWeights):
        module.load_state_dict(_download(name, member))
    return module


def _download(name: str, member: Any) -> Any:
    try:
        # weights_only: what arrives is a pickle, and a hash in its file name is no reason to run it
        return member.get_state_dict(progress=False, check_hash=True, weights_only=True)
    except (OSError, RuntimeError) as error:  # no network, no disk, or a hash that differs
        raise ModelError(
            f"could not fetch {member} ({type(error).__name__}: {error}); without a network, save the "
            f"state_dict as safetensors on another machine and use torchvision:{name}@FILE.safetensors, or "
            f"torchvision:{name}@random to try things out"
        ) from error


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
