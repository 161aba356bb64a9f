"""``timm:NAME[@WEIGHTS]``: the networks of timm with the data configuration of their weights."""

import math
from typing import Any

from torch import nn

from fringe.models.errors import ModelError, did_you_mean
from fringe.models.preprocessing import Preprocessing
from fringe.models.request import Built, Request
from fringe.models.tensor_file import load_into
from fringe.models.vision_import import import_extra, import_torchvision, is_installed
from fringe.models.weights import (
    FileWeights,
    NamedWeights,
    RandomWeights,
    WeightSource,
    seeded,
    split_weights,
)


def load_timm(request: Request) -> Built:
    """Build a network; WEIGHTS is a pretrained tag such as ``a1_in1k``, ``random[:SEED]`` or a tensor file.

    Class names are known for the subsets of ImageNet, and None with random weights.
    """
    name, source = split_weights(request.target)
    timm = _import_timm()
    base = name.partition(".")[0]
    if not timm.is_model(base):
        raise ModelError(f"timm has no model {name!r}{did_you_mean(base, timm.list_models())}")
    module = _with_weights(timm, name, source)
    return Built(
        module,
        architecture=base,
        preprocessing=request.preprocessing or preprocessing_of(timm.data.resolve_model_data_config(module)),
        class_names=None if isinstance(source, RandomWeights) else _class_names(timm, module),
    )


def _import_timm() -> Any:
    if is_installed("timm"):  # where it is not, it is what has to be named
        import_torchvision("timm")  # timm imports it
    return import_extra("timm", "timm")


def _with_weights(timm: Any, name: str, source: WeightSource) -> nn.Module:
    tagged = f"{name}.{source.name}" if isinstance(source, NamedWeights) and source.name else name
    with seeded(source.seed if isinstance(source, RandomWeights) else 0):
        try:
            module: nn.Module = timm.create_model(tagged, pretrained=isinstance(source, NamedWeights))
        except (OSError, RuntimeError) as error:  # an unknown tag, no network, or unreadable weights
            tags = timm.list_pretrained(f"{name.partition('.')[0]}.*")
            raise ModelError(
                f"timm could not load {tagged!r} ({type(error).__name__}: {str(error)[:200]}); its weights: "
                f"{', '.join(tags) or 'none'}; without a network use timm:{name}@FILE.safetensors or "
                f"timm:{name}@random"
            ) from error
    if isinstance(source, FileWeights):
        load_into(module, source.path)
    return module


def preprocessing_of(config: dict[str, Any]) -> Preprocessing:
    """The recipe timm evaluates with, from its resolved data configuration.

    The image is enlarged to ``1 / crop_pct`` of the input and cropped; ``crop_mode`` decides whether the
    aspect ratio stays (``center``) or not (``squash``). Raises ``ModelError`` on the other modes.
    """
    channels, height, width = config["input_size"]
    scaled = (math.floor(height / config["crop_pct"]), math.floor(width / config["crop_pct"]))
    mode = config["crop_mode"]
    if mode == "squash":
        resize = scaled
    elif mode == "center" and scaled[0] == scaled[1]:
        resize = scaled[:1]
    else:
        raise ModelError(f"timm's crop mode {mode!r} for {height}x{width} is not supported; pass preprocessing=")
    return Preprocessing(
        resize=resize,
        crop=(height, width),
        mean=tuple(config["mean"])[:channels],
        std=tuple(config["std"])[:channels],
        channels=channels,
        interpolation=config["interpolation"],
    )


def _class_names(timm: Any, module: nn.Module) -> tuple[str, ...] | None:
    subset: str | None = timm.data.infer_imagenet_subset(module)
    return tuple(timm.data.ImageNetInfo(subset).label_descriptions()) if subset else None
