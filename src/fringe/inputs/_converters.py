"""Pictures, files, tensors, tables, series, volumes and texts as inputs of a model in any form that is given."""

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from fringe._network.arguments import integers_hint
from fringe._numbers.float64 import float64_on
from fringe._strings.class_names import ClassNames, class_names
from fringe.attribution import Context, InputKind, to_input, to_photograph
from fringe.baselines import InputSpace
from fringe.classifier import Classifier
from fringe.data import find_inputs, is_picture, to_images
from fringe.detection import Boxes, Detector, as_boxes, as_detector, is_detector
from fringe.errors import InputError, require_order, warn_caller
from fringe.models import (
    BlueFirst,
    LoadedModel,
    Preprocessing,
    load_model,
    load_text_model,
    of_pipeline,
    preprocessing_of,
    resolve_device,
    stated_names,
    stated_preprocessing,
)
from fringe.text import NextToken, TextClassifier, is_language_model


@dataclass(frozen=True)
class Request:
    """The arguments of the caller: a model and inputs in any form that the converter takes.

    ``preprocessing`` and ``classes`` are for a model that does not define them; ``options`` are further arguments for
    one kind of input. ``target`` and ``contrast`` are the explained classes, which some converters find the numbers of.
    """

    model: Any
    inputs: Any
    preprocessing: Preprocessing | str | None = None
    classes: ClassNames | None = None
    device: str = "auto"
    trust_code: bool = False
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    target: Any = "predicted"
    contrast: Any = None


@dataclass(frozen=True)
class ModelInputs:
    """A model and its inputs (B, *S), ready to be explained, on the device of the model.

    ``keys`` (B) are those of the inputs' random numbers; None: hashes of their contents. ``mean`` and ``std`` are those
    of the channels of pictures, ``features`` the names of the features of each input, and ``arguments`` further ones of
    :func:`fringe.attribute`, such as ``forward_kwargs``. Of a detector, ``boxes`` (B, 4) are in pixels of photographs,
    of which inputs show the ``parts`` (B, 4), ``predicted`` (B) are the best labels: "no object" is none of them, and
    ``clusters`` (B) the names of the photographs. Of a language model, ``classes`` (B) are the names of the candidates
    for the next token of each input, ``clusters`` the names of the prompts.
    """

    model: Callable[..., Any] | Classifier
    label: str
    class_names: tuple[str, ...] | None
    inputs: Tensor
    ids: tuple[str, ...]
    keys: tuple[str, ...] | None = None
    space: InputSpace = field(default_factory=InputSpace)
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    features: tuple[tuple[str, ...], ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    boxes: Tensor | None = None
    parts: Tensor | None = None
    predicted: tuple[int, ...] | None = None
    clusters: tuple[str, ...] | None = None
    classes: tuple[tuple[str, ...], ...] = ()

    def named(self, count: int) -> tuple[str, ...] | None:
        """Return the names of ``count`` classes, if known; raise InputError if their number differs."""
        names = self.class_names if count > 1 else ("score",)  # one number is that of a score function
        if names is not None and len(names) != count:
            message, hint = f"got {len(names)} names for a model of {count} classes", "give one name for each class"
            raise InputError(message, argument="classes", hint=hint)
        return names

    def numbered(self, features: Callable[[Any], Any]) -> Tensor:
        """Return the numbers of features that a function gives the inputs, or the words of each text. Raises InputError
        for another number of words."""
        if not self.classes and "words" not in self.arguments.get("forward_kwargs", {}):
            return torch.as_tensor(features(self.inputs))
        rows = torch.zeros(self.inputs.shape[:2], dtype=torch.long)
        for row, labels in zip(rows, self.features, strict=True):
            words = [label for label in labels if label]
            numbers = torch.as_tensor(features(words))
            if numbers.shape != (len(words),):
                message = f"its function gave shape {tuple(numbers.shape)} for {len(words)} words"
                raise InputError(message, argument="feature_mask", hint="give a number for each word")
            row.copy_(numbers[torch.tensor([bool(label) for label in labels]).cumsum(0) - 1])
        return rows[..., None].to(self.inputs.device)

    def joined(self, features: Tensor) -> "ModelInputs":
        """Return the texts with each run of words of one feature as one word: the feature's value is that of all."""
        if "words" not in (forward := self.arguments.get("forward_kwargs", {})):
            return self
        texts = list[tuple[str, ...]]()
        for labels, numbers, words in zip(self.features, features[..., 0], forward["words"], strict=True):
            row, start = list(labels), -1
            for k, word in enumerate(words.tolist()):
                if word < 0:  # special tokens and padding are in no feature
                    start = -1
                elif start >= 0 and numbers[k] == numbers[start]:
                    row[start] += f" {labels[k]}" if labels[k][:1].isalnum() else labels[k]
                    row[k] = ""
                elif labels[k]:
                    start = k
            texts.append(tuple(row))
        return dataclasses.replace(self, features=tuple(texts))

    def context(self, kind: InputKind, logits: Tensor, ids: Sequence[str] | None = None) -> Context:
        """Build the context of figures from the logits (B, C) of the inputs; numbers that are no classes have NaN."""
        has_classes = logits.shape[1] > 1 and getattr(self.model, "has_classes", True)
        with float64_on(logits.device):
            probabilities = logits.double().softmax(-1) if has_classes else torch.full_like(logits, torch.nan)
        return Context(
            kind=kind,
            inputs=self.inputs.detach().cpu(),
            probabilities=probabilities.float().cpu(),
            ids=self.ids if ids is None else tuple(ids),
            model=self.label,
            mean=self.mean,
            std=self.std,
            class_names=self.named(logits.shape[1]),
            features=self.features,
            boxes=self.boxes,
            parts=self.parts,
            classes=self.classes,
            prompts=(self.clusters or ()) if kind == "text" else (),
        )


#: Converts the arguments of the caller to inputs of the model.
Converter = Callable[[Request], ModelInputs]


@dataclass(frozen=True)
class OpenModel:
    """A model with its metadata: the preprocessing of its pictures and the names of its classes, if they are known, and
    the device of its inputs."""

    model: Callable[..., Any] | Classifier
    label: str
    preprocessing: Preprocessing | None
    class_names: tuple[str, ...] | None
    device: torch.device


def open_model(request: Request) -> OpenModel:
    """Load the model that a text names, or combine the given model with the caller's metadata.

    Raises ModelError if a text names no model that can be loaded; InputError if another object is not a model, or if
    ``device`` is not the device of the given module.
    """
    names, processor = class_names(request.classes), None
    model, recipe = of_pipeline(request.model, request.preprocessing)
    if isinstance(recipe, str):
        recipe = Preprocessing.parse(recipe)
    elif callable(recipe) and hasattr(recipe, "to_dict"):  # an image processor of the transformers library
        processor, recipe = recipe, preprocessing_of(recipe)
    elif not isinstance(recipe, (Preprocessing, type(None))):  # pyright: ignore[reportUnnecessaryIsInstance]
        message = f"got {type(recipe).__name__}, expected a Preprocessing, a text such as 'imagenet', or an image "
        hint = "for a transform of torchvision pass the tensors that it makes, as inputs" if callable(recipe) else None
        raise InputError(f"{message}processor of transformers", argument="preprocessing", hint=hint)
    if isinstance(model, (str, os.PathLike)):
        device = torch.device(resolve_device(request.device))
        model = load_model(
            os.fspath(model), trust_code=request.trust_code, preprocessing=recipe, class_names=names, device=device
        )
    if isinstance(model, LoadedModel):
        device = _device(model.module, request.device)
        network = model.module if model.output == "auto" else Classifier(model.module, output=model.output)
        # not the spec, which may contain a path of this machine: pages with this label are shared
        return OpenModel(network, model.label, recipe or model.preprocessing, names or model.class_names, device)
    if not (callable(model) or isinstance(model, Classifier)):
        message = f"got {type(model).__name__}, expected a text such as 'torchvision:resnet50', a module or a callable"
        raise InputError(message, argument="model", hint="give a module with its weights loaded, and then the inputs")
    given: Callable[..., Any] | Classifier = model
    inner: Any = given.model if isinstance(given, Classifier) else given
    label = type(inner).__name__ if isinstance(inner, nn.Module) else getattr(inner, "__name__", type(inner).__name__)
    if isinstance(inner, nn.Module):
        recipe, names = recipe or stated_preprocessing(inner), names or stated_names(inner)
    device = _device(inner, request.device)
    if getattr(processor, "do_flip_channel_order", False):
        if not isinstance(given, nn.Module):
            message = f"{type(processor).__name__} puts blue first, which needs a torch.nn.Module as the model"
            raise InputError(message, argument="preprocessing")
        given = nn.Sequential(BlueFirst(), given)
    return OpenModel(given, label, recipe, names, device)


def _device(model: Any, name: str) -> torch.device:
    """The device of a module's weights; for a model without weights, the device called ``name``."""
    weight = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    if weight is None:
        return torch.device(resolve_device(name))
    named = weight.device.type if name == "auto" else resolve_device(name)
    if torch.device(named).type != weight.device.type:
        hint = "leave it out, or move the module with .to(...)"
        raise InputError(f"got {name!r}, but the weights are on {weight.device}", argument="device", hint=hint)
    return weight.device


_EXPECTED = "a PIL image, a path, an array (H, W, C), a tensor (C, H, W) or (B, C, H, W), or a list of them"


class _Paths(list[str]):
    """Consecutive names of files, folders and scans."""


def image_inputs(request: Request) -> ModelInputs:
    """Prepare images for a model.

    Raises InputError if the inputs are not images, if a model without preprocessing gets a picture, or if sizes differ;
    ImageError if an image cannot be read.
    """
    model = open_model(request)
    named: list[_Image] = []
    for item in _flat(request.inputs):
        named += _tensors(item, model)
    if not named:
        raise InputError(f"got no images, expected {_EXPECTED}", argument="inputs")
    ids = tuple(one.name or f"image-{i}" for i, one in enumerate(named))
    x = _stack([one.x for one in named], ids).to(model.device)
    mean, std = image_scale(x, model.preprocessing)
    recipe, space = model.preprocessing, InputSpace()
    if recipe is not None and recipe.channels != x.shape[1] and recipe.channels == x.shape[-1]:
        message = f"got inputs (B, C, H, W) of shape {tuple(x.shape)}, whose channels seem to be the last axis"
        raise InputError(message, argument="inputs", hint="pass x.permute(0, 3, 1, 2), or of one image (2, 0, 1)")
    if recipe is not None and recipe.channels == x.shape[1]:
        low, high = recipe.bounds()
        smallest, largest = (float(extreme) for extreme in x.aminmax())
        if 0 <= smallest < 0.05 and 0.95 < largest <= 1 and float(low.max()) < -0.5:
            warn_caller(
                "inputs: the tensor has values from 0 to 1, as pixels that are not normalised have, and prepared ones "
                f"begin at {float(low.min()):.3g}: normalise it, or pass pixels as a NumPy array (H, W, C)"
            )
        if largest > 2 * float(high.max()) + 1:
            warn_caller(
                f"inputs: the tensor has values up to {largest:g}, and prepared pixels end at {float(high.max()):.3g}: "
                "a tensor is taken as prepared already; pass pixels as a NumPy array (H, W, C) of uint8"
            )
        space = InputSpace(low.to(x), high.to(x))
    ready = ModelInputs(
        model=model.model,
        label=model.label,
        class_names=model.class_names,
        inputs=x,
        ids=ids,
        keys=ids if all(one.name is not None for one in named) else None,
        space=space,
        mean=mean,
        std=std,
    )
    boxes = request.options.get("boxes")
    if boxes is None and not is_detector(model.model):
        return ready
    return _of_boxes(ready, "predicted" if boxes is None else boxes, torch.tensor([one.part for one in named]))


def _of_boxes(ready: ModelInputs, boxes: Boxes, parts: Tensor) -> ModelInputs:
    """A row for each of the boxes of each image. Raises InputError for a model that is no detector, and for given boxes
    with several images."""
    if isinstance(ready.model, Classifier):
        hint = "give the model itself, or a fringe.Detector"
        raise InputError("a Classifier has no boxes", argument="boxes", hint=hint)
    if len(ready.inputs) > 1 and not isinstance(boxes, (int, str)):
        raise InputError(f"got boxes for {len(ready.inputs)} images", argument="boxes", hint="give one image at a time")
    detector = as_detector(ready.model, required=True)
    size = ready.inputs.shape[-2:]
    if not isinstance(boxes, (int, str)):
        boxes = to_input(as_boxes(boxes), parts[0], size)
    found = [detector.find(x[None], boxes) for x in ready.inputs]
    rows = [i for i, one in enumerate(found) for _ in one.labels]
    numbers = [k + 1 for one in found for k in range(len(one.labels))]
    return dataclasses.replace(
        ready,
        model=detector,
        label=ready.label if ready.label != Detector.__name__ else type(detector.model).__name__,
        class_names=detector.names(ready.class_names, found[0].classes),
        inputs=ready.inputs[rows],
        ids=tuple(f"{ready.ids[i]}#{k}" for i, k in zip(rows, numbers, strict=True)),
        keys=None if ready.keys is None else tuple(f"{ready.keys[i]}#{k}" for i, k in zip(rows, numbers, strict=True)),
        arguments={"forward_kwargs": {"place": torch.cat([one.places for one in found])}},
        boxes=torch.cat([to_photograph(one.boxes.cpu().float(), parts[i], size) for i, one in enumerate(found)]),
        parts=parts[rows],
        predicted=tuple(int(label) for one in found for label in one.labels),
        clusters=tuple(ready.ids[i] for i in rows),
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


class _Image(NamedTuple):
    """An input (C, H, W), which part of its photograph it shows, in pixels, and its name."""

    x: Tensor
    part: tuple[float, float, float, float]
    name: str | None = None


def _tensors(item: Any, model: OpenModel) -> list[_Image]:
    """The inputs of an item."""
    if isinstance(item, Tensor):
        return [_Image(x, (0.0, 0.0, float(x.shape[-1]), float(x.shape[-2]))) for x in _batch(item)]
    recipe = model.preprocessing
    if isinstance(item, _Paths):
        recipe = _required(recipe, "a path")
        samples = (ref.open(channels=recipe.channels) for ref in find_inputs(item))
        return [_prepared(recipe, sample.image, sample.id) for sample in samples]
    if is_picture(item):
        recipe = _required(recipe, f"a picture ({type(item).__name__})")
        return [_prepared(recipe, image) for image in to_images(item, channels=recipe.channels)]
    hint = "texts are given with tokenizer=; a model of several tensors goes to fringe.attribute"
    hint = hint if isinstance(item, Mapping) else "a loader of batches goes to fringe.attribute"
    hint = hint if isinstance(item, Mapping) or hasattr(item, "dataset") else None
    raise InputError(f"got {type(item).__name__}, expected {_EXPECTED}", argument="inputs", hint=hint)


def _prepared(recipe: Preprocessing, image: Any, name: str | None = None) -> _Image:
    return _Image(recipe.normalise(recipe.pixels(image)), recipe.shown_part(*image.size), name)


def _required(recipe: Preprocessing | None, what: str) -> Preprocessing:
    if recipe is None:
        texts = "a text goes to fringe.explain with tokenizer=; for a picture " if what == "a path" else ""
        raise InputError(
            f"got {what} for a model that does not say how pictures are prepared",
            argument="inputs",
            hint=f"{texts}pass preprocessing='imagenet', or 'resize=256,crop=224,mean=0.5,std=0.5' or the like, or the "
            "image processor of a model of transformers, or a tensor that is prepared already",
        )
    return recipe


def _batch(x: Tensor) -> Tensor:
    """Return a tensor (C, H, W) or (B, C, H, W) as a batch."""
    if x.dim() not in (3, 4) or x.numel() == 0:
        raise InputError(
            f"got a tensor of shape {tuple(x.shape)}, expected (C, H, W) or (B, C, H, W)",
            argument="inputs",
            hint="for rows of a table (B, F) give kind='tabular'; for volumes (B, C, D, H, W) give kind='volume'"
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
        hint = "fill or drop missing values; turn categories into one-hot columns, or pass their codes beside the "
        hint += "numbers in a dictionary of inputs"
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
    require_order("features", given)
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


def text_inputs(request: Request) -> ModelInputs:
    """Convert texts to word embeddings (B, L, D); their masks become further arguments of the model.

    The model is ``"hf:NAME"``, a :class:`fringe.text.TextClassifier`, or a module with the option ``tokenizer``; the
    option ``special`` says whether special tokens are explained. Of a language model a row is a token of an answer.
    Raises InputError if the inputs are not texts, or a module is given without its tokenizer; ModelError if a text
    names no model that can be loaded.
    """
    given, options = request.inputs, request.options
    is_one = isinstance(given, str) or not isinstance(given, Iterable) or _is_chat(given)
    texts: list[Any] = [given] if is_one else list(cast(Iterable[Any], given))
    model, tokenizer = request.model, options.get("tokenizer")
    if isinstance(model, str):
        model, tokenizer = load_text_model(model, resolve_device(request.device))
    continues = isinstance(model, NextToken) or is_language_model(model)
    if not texts or not all(isinstance(text, str) or (continues and _is_chat(text)) for text in texts):
        hint = "a message of a chat is {'role': 'user', 'content': 'the text'}" if continues else None
        raise InputError(
            f"got {type(given).__name__}, expected a text or a list of texts", argument="inputs", hint=hint
        )
    if not isinstance(model, TextClassifier):
        if not isinstance(model, nn.Module) or tokenizer is None:
            message = f"got {type(model).__name__} without its tokenizer" if tokenizer is None else "expected a module"
            hint = "pass tokenizer=, or name a model as 'hf:NAME'"
            raise InputError(message, argument="model" if tokenizer is not None else "tokenizer", hint=hint)
        reader = NextToken if continues else TextClassifier
        settings = {name: options[name] for name in ("special", "candidates") if name in options}
        model = reader(model, tokenizer, **settings)
    opened = open_model(dataclasses.replace(request, model=model, preprocessing=None))
    ready = ModelInputs(
        model=model,
        label=type(model.model).__name__,  # not the spec, which may be a path of this machine
        class_names=opened.class_names or stated_names(model.model),
        inputs=torch.empty(0),
        ids=tuple(f"text-{i}" for i in range(len(texts))),
    )
    if isinstance(model, NextToken):
        encoded = model.encode(texts, request.target, request.contrast, options.get("generate", 1))
        numbers = [encoded.prompts[: k + 1].count(prompt) for k, prompt in enumerate(encoded.prompts)]
        prompts = tuple(ready.ids[i] for i in encoded.prompts)
        return dataclasses.replace(
            ready,
            inputs=encoded.embeddings.to(opened.device),
            class_names=None,
            ids=tuple(f"{prompt}#{k}" for prompt, k in zip(prompts, numbers, strict=True)),
            features=encoded.labels,
            classes=encoded.classes,
            clusters=prompts,
            arguments={
                "forward_kwargs": encoded.arguments,
                "target": encoded.target,
                "contrast": encoded.contrast,
                "baseline": model.neutral().to(opened.device),
                "score": "log_probability",  # a logit by itself says nothing: a constant may be added to all of them
            },
        )
    for name in ("generate", "candidates"):
        if name in options:
            hint = "leave it out, or give a causal language model"
            raise InputError("it is for models that continue a text", argument=name, hint=hint)
    encoded = model.encode(texts)
    return dataclasses.replace(
        ready,
        inputs=encoded.embeddings.to(opened.device),
        features=encoded.labels,
        arguments={"forward_kwargs": encoded.arguments},
    )


def _is_chat(given: Any) -> bool:
    """Whether this is a chat: messages with a role and a content."""
    messages = cast("Sequence[Any]", given) if isinstance(given, (list, tuple)) else ()
    return bool(messages) and all(isinstance(one, Mapping) and "role" in one for one in messages)
