"""``timm:NAME[@WEIGHTS]``: the networks of timm with the data configuration of their weights.

``hf:NAME[@REVISION]``: image and text classifiers of the transformers library, from its hub or a local folder.
"""

import functools
import importlib
import math
import os
import time
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor, nn

from fringe._network.outputs import refuse_independent_labels
from fringe.errors import InputError, ModelError, did_you_mean, first_line, is_installed
from fringe.models._base import (
    LoadedParts,
    LoadOptions,
    WeightSource,
    import_extra,
    some,
    split_weights,
)
from fringe.models._preprocessing import RESAMPLING, Preprocessing
from fringe.models._torchvision import import_torchvision


def load_timm(options: LoadOptions) -> LoadedParts:
    """Build a network; WEIGHTS is a pretrained tag such as ``a1_in1k``, ``random[:SEED]`` or a safetensors file.

    Class names are known for the subsets of ImageNet, and None with random weights.
    """
    name, source = split_weights(options.target)
    if is_installed("timm"):  # if it is not, timm is the package to name
        import_torchvision("timm")  # timm imports it
    timm = import_extra("timm", "timm")
    base = name.partition(".")[0]
    if not timm.is_model(base):
        raise ModelError(f"timm has no model {name!r}", hint=did_you_mean(base, timm.list_models(), n=3))
    module = source.network(lambda: _timm_network(timm, name, source))
    subset: str | None = None if source.seed is not None else timm.data.infer_imagenet_subset(module)
    return LoadedParts(
        module,
        architecture=base,
        preprocessing=options.preprocessing or _timm_preprocessing(timm.data.resolve_model_data_config(module)),
        class_names=tuple(timm.data.ImageNetInfo(subset).label_descriptions()) if subset else None,
    )


def _timm_network(timm: Any, name: str, source: WeightSource) -> nn.Module:
    tagged = f"{name}.{source.name}" if source.name else name
    try:
        return timm.create_model(tagged, pretrained=source.is_pretrained)
    except (OSError, RuntimeError) as error:  # an unknown tag, no network, or unreadable weights
        tags = timm.list_pretrained(f"{name.partition('.')[0]}.*")
        raise ModelError(
            f"timm could not load {tagged!r} ({type(error).__name__}: {str(error)[:200]}); its weights: "
            f"{', '.join(tags) or 'none'}",
            hint=f"without a network use timm:{name}@FILE.safetensors or timm:{name}@random",
        ) from error


def _timm_preprocessing(config: dict[str, Any]) -> Preprocessing:
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


class LogitsOf(nn.Module):
    """Return the logits ``(N, K)`` of a model that returns a record."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.model(pixel_values).logits


class BlueFirst(nn.Module):
    """Turn the order of the channels round, for a model that was trained with blue as the first one."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flip(1)


def load_transformers(options: LoadOptions) -> LoadedParts:
    """Fetch or read a model; its repository's own code is never run, and only safetensors are read."""
    transformers, kind = import_transformers(), "an image classifier or a detector"
    is_detector = _architecture(options.spec, kind, "ForObjectDetection")
    automatic = (
        transformers.AutoModelForObjectDetection if is_detector else transformers.AutoModelForImageClassification
    )
    model = _pretrained(options.spec, kind, automatic)
    refuse_independent_labels(model)
    processor = None
    try:
        processor = _read(options.spec, kind, transformers.AutoImageProcessor)
    except ModelError:
        if options.preprocessing is None:
            raise
    recipe = options.preprocessing or preprocessing_of(processor)
    module = model if is_detector else LogitsOf(model)
    if getattr(processor, "do_flip_channel_order", False):  # which a preprocessing of the caller cannot say
        module = nn.Sequential(BlueFirst(), module)
    names: dict[int, str] = model.config.id2label
    return LoadedParts(module, model.config.model_type, recipe, tuple(names[k] for k in sorted(names)))


def load_text_model(spec: str, device: str) -> tuple[nn.Module, Any]:
    """Load a classifier of texts or a language model ``hf:NAME[@REVISION]`` with its tokenizer; code of its repository
    is never run.

    The name may be a local folder. The module is in evaluation mode and has no parameter gradients. Raises ModelError
    if it cannot be loaded, or lacks weights.
    """
    transformers = import_transformers()
    continues = any(_architecture(spec, _READS_TEXT, task) for task in _LANGUAGE_MODELS)
    automatic = transformers.AutoModelForCausalLM if continues else transformers.AutoModelForSequenceClassification
    model = _pretrained(spec, _READS_TEXT, automatic)
    tokenizer = _read(spec, _READS_TEXT, transformers.AutoTokenizer)
    if model.config.pad_token_id is None:  # the decoders among them refuse batches then; none of these is padded
        model.config.pad_token_id = -1
    return model.eval().requires_grad_(False).to(device), tokenizer


def _pretrained(spec: str, kind: str, automatic: Any) -> Any:
    """A network with all of its weights: the library draws those that are missing at random."""
    model, report = _read(spec, kind, automatic, use_safetensors=True, output_loading_info=True)
    missing = sorted(report["missing_keys"] & dict(model.named_parameters()).keys())
    if missing:
        raise ModelError(f"{spec!r} lacks the weights {some(missing)}", hint=f"name one that was trained as {kind}")
    return model


def _read(spec: str, kind: str, automatic: Any, **options: Any) -> Any:
    name, _, revision = spec.removeprefix("hf:").partition("@")
    if not spec.startswith("hf:") or not name:
        raise ModelError(f"model {spec!r} is not {kind}", hint="name one as in hf:NAME, or pass a module")
    if not os.path.isdir(name) and not _reaches_hub(int(time.monotonic() / 60)):
        options["local_files_only"] = True  # else the library tries for a minute before it looks at what is stored
    try:
        return automatic.from_pretrained(name, revision=revision or "main", trust_remote_code=False, **options)
    except Exception as error:  # its configurations and weights raise what they like where they are damaged
        away = "the hub is not reached, and what is stored of it was looked for; " * ("local_files_only" in options)
        raise ModelError(
            f"could not load {spec!r} ({type(error).__name__}: {str(error)[:300]})",
            hint=f"{away}the name must lead to {kind} with safetensors weights, an image processor or a tokenizer, "
            "and no code of its own",
        ) from error


@functools.lru_cache(maxsize=1)
def _reaches_hub(minute: int) -> bool:
    """Whether the hub answers; asked once, for 3 seconds at most, in each ``minute``."""
    try:
        hub: Any = importlib.import_module("huggingface_hub")
        hub.get_session().head(hub.constants.ENDPOINT, timeout=3)
    except Exception:  # of whatever the library of requests raises, or of its offline mode
        return False
    return True


def of_pipeline(model: Any, preprocessing: Any) -> tuple[Any, Any]:
    """Return the network of a pipeline of the transformers library, with its image processor or tokenizer where no
    other preprocessing is given. Any other model is returned as it is.

    Raises InputError for a pipeline of another task than to classify images or texts.
    """
    task, network = getattr(model, "task", None), getattr(model, "model", None)
    if isinstance(model, nn.Module) or not isinstance(task, str) or not isinstance(network, nn.Module):
        return model, preprocessing
    parts = {"image-classification": "image_processor", "text-classification": "tokenizer"}
    if task not in parts:
        message = f"got a pipeline of the task {task!r}, expected one of {', '.join(map(repr, parts))}"
        raise InputError(message, argument="model", hint="pass the network in it, pipeline.model, with tensors")
    return network, getattr(model, parts[task]) if preprocessing is None else preprocessing


def is_tokenizer(value: Any) -> bool:
    """Return whether a preprocessing is a tokenizer of the transformers library."""
    return callable(getattr(value, "convert_ids_to_tokens", None))


#: Parts of the names of networks of texts: a classifier, and language models.
_LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel")
_OF_TEXTS = ("ForSequenceClassification", *_LANGUAGE_MODELS)
_READS_TEXT = "a text classifier or a language model"


def is_text_model(spec: Any) -> bool:
    """Return whether a module, or a model ``hf:NAME``, says of itself that it is a classifier of texts or a language
    model; False where it cannot be asked."""
    if isinstance(spec, nn.Module):
        return any(task in kind.__name__ for kind in type(spec).__mro__ for task in _OF_TEXTS)
    if not isinstance(spec, str) or not spec.startswith("hf:"):
        return False
    try:
        return any(_architecture(spec, _READS_TEXT, task) for task in _OF_TEXTS)
    except ModelError:
        return False


def _architecture(spec: str, kind: str, task: str) -> bool:
    """Whether the configuration of a model ``hf:NAME`` says that it is for a task."""
    config = _read(spec, kind, import_transformers().AutoConfig)
    return any(task in name for name in config.architectures or ())


def import_transformers() -> Any:
    """Import the transformers library, also beside a torchvision that was built for another torch.

    Raises ModelError if it is not installed; the message says how to install it.
    """
    if is_installed("transformers") and is_installed("torchvision"):
        import_torchvision("hf")  # transformers imports it where it is installed
    return import_extra("transformers", "hf")


def preprocessing_of(processor: Any) -> Preprocessing:
    """Return the preprocessing of an image processor, which is compared with what the processor makes of a picture.

    The order of the channels is left as it is: see :class:`BlueFirst`. Raises ModelError if the processor does
    something else than to resize, crop and normalise.
    """
    config: dict[str, Any] = processor.to_dict()
    refused = f"the steps of the image processor {type(processor).__name__} are not supported"
    try:
        recipe = _timm_preprocessing(config["data_config"]) if "data_config" in config else _recipe(config)
    except (KeyError, TypeError) as error:  # a value is absent or of another kind
        raise ModelError(f"{refused} ({first_line(error)})", hint="pass preprocessing=") from error
    if not _agree(processor, recipe):
        raise ModelError(refused, hint="pass preprocessing=")
    return recipe


def _recipe(config: dict[str, Any]) -> Preprocessing:
    resize, crop = _geometry(config)
    mean, std = (
        (value,) * 3 if isinstance(value, (int, float)) else tuple(value)
        for value in (config.get("image_mean") or 0.0, config.get("image_std") or 1.0)
    )
    again = std if config.get("include_top") else (1.0,) * len(std)  # EfficientNet divides by it a second time
    if not config.get("do_normalize"):  # MobileViT has a mean, and no such step
        mean, std = (0.0,) * len(mean), (1.0,) * len(std)
    white = 255 * float(config.get("rescale_factor", 1 / 255)) if config.get("do_rescale", True) else 255.0
    names = {code.value: name for name, code in RESAMPLING.items()}
    return Preprocessing(
        resize,
        crop,
        mean=tuple(value / white for value in mean),
        std=tuple(first * second / white for first, second in zip(std, again, strict=True)),
        channels=len(mean),  # pyright: ignore[reportArgumentType]  Preprocessing checks it
        interpolation=names.get(int(config.get("resample", 2)), str(config.get("resample"))),
        crop_margin="down" if crop else "even",
        longest=(config.get("size") or {}).get("longest_edge") if resize is not None and len(resize) == 1 else None,
    )


def _agree(processor: Any, recipe: Preprocessing) -> bool:
    """Whether both make the same of a ramp of colours, but for the small differences between two resizers."""
    y, x = np.mgrid[:311, :457]
    ramp = np.stack([x / 2, y / 2, (x + y) / 4], -1).astype(np.uint8)[..., : recipe.channels]
    try:
        expected = processor(ramp, return_tensors="pt")["pixel_values"][0]
    except (KeyError, TypeError, ValueError):  # it wants something else than pixels, or makes something else of them
        return False
    pixels = recipe.pixels(Image.fromarray(ramp if recipe.channels == 3 else ramp[..., 0]))
    if expected.shape != pixels.shape:
        return False
    expected = expected.flip(0) if getattr(processor, "do_flip_channel_order", False) else expected
    expected = recipe.denormalise(expected)
    return float((expected - pixels).abs().mean()) < 1 / 255


def _geometry(config: dict[str, Any]) -> tuple[tuple[int, ...] | None, tuple[int, int] | None]:
    resize = _size(config.get("size") or {}) if config.get("do_resize", True) else None
    if config.get("crop_pct") and resize is not None and len(resize) == 1:
        # ConvNeXt: small inputs are cut out of a larger image, inputs from 384 on are squeezed to a square
        side = resize[0]
        return ((int(side / config["crop_pct"]),), (side, side)) if side < 384 else ((side, side), None)
    if not config.get("do_center_crop"):
        return resize, None
    crop = _size(config["crop_size"])
    return resize, (crop[0], crop[-1])


def _size(size: dict[str, int | None]) -> tuple[int, ...]:
    given = {name: int(value) for name, value in size.items() if value is not None}
    if given.keys() == {"height", "width"}:
        return given["height"], given["width"]
    if given.keys() in ({"shortest_edge"}, {"shortest_edge", "longest_edge"}):
        return (given["shortest_edge"],)
    raise ModelError(f"image processor size {given} is not supported", hint="pass preprocessing=")
