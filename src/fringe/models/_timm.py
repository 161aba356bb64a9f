"""``timm:NAME[@WEIGHTS]``: the networks of timm with the data configuration of their weights."""

import math
from typing import Any

from torch import nn

from fringe.errors import ModelError, did_you_mean, is_installed
from fringe.models._base import LoadedParts, LoadOptions, WeightSource, import_extra, load_into, seeded, split_weights
from fringe.models._preprocessing import Preprocessing
from fringe.models._torchvision import import_torchvision


def load_timm(options: LoadOptions) -> LoadedParts:
    """Build a network; WEIGHTS is a pretrained tag such as ``a1_in1k``, ``random[:SEED]`` or a safetensors file.

    Class names are known for the subsets of ImageNet, and None with random weights.
    """
    name, source = split_weights(options.target)
    timm = _import_timm()
    base = name.partition(".")[0]
    if not timm.is_model(base):
        raise ModelError(f"timm has no model {name!r}", hint=did_you_mean(base, timm.list_models(), n=3))
    module = _with_weights(timm, name, source)
    return LoadedParts(
        module,
        architecture=base,
        preprocessing=options.preprocessing or preprocessing_of(timm.data.resolve_model_data_config(module)),
        class_names=None if source.seed is not None else _class_names(timm, module),
    )


def _import_timm() -> Any:
    if is_installed("timm"):  # if it is not, timm is the package to name
        import_torchvision("timm")  # timm imports it
    return import_extra("timm", "timm")


def _with_weights(timm: Any, name: str, source: WeightSource) -> nn.Module:
    tagged = f"{name}.{source.name}" if source.name else name
    with seeded(source.seed or 0):
        try:
            module: nn.Module = timm.create_model(tagged, pretrained=source.is_pretrained)
        except (OSError, RuntimeError) as error:  # an unknown tag, no network, or unreadable weights
            tags = timm.list_pretrained(f"{name.partition('.')[0]}.*")
            raise ModelError(
                f"timm could not load {tagged!r} ({type(error).__name__}: {str(error)[:200]}); its weights: "
                f"{', '.join(tags) or 'none'}",
                hint=f"without a network use timm:{name}@FILE.safetensors or timm:{name}@random",
            ) from error
    if source.path is not None:
        load_into(module, source.path)
    return module


def preprocessing_of(config: dict[str, Any]) -> Preprocessing:
    """Return the preprocessing that timm evaluates with, from its resolved data configuration.

    The image is enlarged to ``1 / crop_pct`` of the input and cropped; ``crop_mode`` decides whether the
    aspect ratio stays (``center``) or not (``squash``). Other modes are refused.
    """
    channels, height, width = config["input_size"]
    scaled = (math.floor(height / config["crop_pct"]), math.floor(width / config["crop_pct"]))
    mode = config["crop_mode"]
    if mode != "squash" and (mode != "center" or scaled[0] != scaled[1]):
        raise ModelError(f"timm's crop mode {mode!r} for {height}x{width} is not supported", hint="pass preprocessing=")
    return Preprocessing(
        resize=scaled if mode == "squash" else scaled[:1],
        crop=(height, width),
        mean=tuple(config["mean"])[:channels],
        std=tuple(config["std"])[:channels],
        channels=channels,
        interpolation=config["interpolation"],
    )


def _class_names(timm: Any, module: nn.Module) -> tuple[str, ...] | None:
    subset: str | None = timm.data.infer_imagenet_subset(module)
    return tuple(timm.data.ImageNetInfo(subset).label_descriptions()) if subset else None
