"""What runs on image files share: their images, references, model and method, and the summary of the run."""

import importlib
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

import torch
from safetensors.torch import load
from torch import Tensor

import fringe
from fringe._files.disk import MAPS_BYTES, read_regular
from fringe._files.urls import RemoteFile
from fringe._network.arguments import ForwardArguments
from fringe._strings.class_names import class_names, resolve_class_name
from fringe._strings.formats import to_json
from fringe._strings.names import read_pair
from fringe._strings.tables import Table
from fringe.attribution import (
    Attributor,
    Context,
    PaperFRInGe,
    get_method,
    innermost_reference,
    read_preset,
    require_package,
)
from fringe.baselines import InputSpace
from fringe.classifier import Classifier
from fringe.data import ImageError, ImageRef, file_sha256, find_inputs
from fringe.detection import Boxes, Detector, as_detector, read_boxes
from fringe.errors import FringeError, InputError, is_transient, model_error, warn_caller
from fringe.explanations._folder import MAP, SUMMARY, ResultFolder
from fringe.explanations._spec import ExplainSpec, ImageOptions
from fringe.inputs import PredictedBox, choose_references, default_model, predicted_boxes, prepare
from fringe.models import LoadedModel, ModelError, Preprocessing, load_model, resolve_device
from fringe.settings import with_settings

Progress = Callable[..., None]
Spec = TypeVar("Spec", bound=ImageOptions)


@dataclass(frozen=True)
class Failure:
    """One input that could not be explained.

    Attributes:
        id: Id of the image; None if the input leads to no image.
        source: The input.
        label: Label in the file name, if any.
        reason: Why it failed.
    """

    id: str | None
    source: str
    label: int | None
    reason: str

    @staticmethod
    def of(ref: ImageRef, reason: object) -> "Failure":
        return Failure(ref.id, ref.source, ref.label, str(reason))

    @property
    def reason_to_share(self) -> str:
        """The reason for a page, whose readers need not know the folders of an absolute path."""
        source = Path(self.source)
        return self.reason.replace(self.source, source.name) if source.is_absolute() else self.reason

    def entry(self) -> dict[str, Any]:
        """The failure as an entry of ``summary.json``."""
        return {"id": self.id, "source": self.source, "label": self.label, "error": self.reason}


@dataclass(frozen=True)
class Explanation:
    """One explained image.

    Attributes:
        folder: Folder of its files.
        record: Content of its ``explanation.json``.
        reused: Whether it was computed by an earlier run.
    """

    folder: Path
    record: Mapping[str, Any] = field(repr=False)
    reused: bool

    def load(self) -> dict[str, Tensor]:
        """Read the attribution ``values`` and the model's ``input``, each (C, H, W); with a focus also ``region``, its
        weights (1, H, W)."""
        return load(read_regular(self.folder / MAP, MAPS_BYTES))


class References:
    """The input space of each shape: the valid range, and the reference images of that shape, which are ``default``
    where the options name none. Raises InputError if the given images lead to none that can be opened."""

    def __init__(
        self, spec: ImageOptions, recipe: Preprocessing, device: torch.device, default: Iterable[ImageRef] = ()
    ):
        self._source, self.ids, self.digests = spec.references or "inputs", list[str](), list[str]()
        self._bounds = [bound.to(device) for bound in recipe.bounds()]
        images: dict[tuple[int, ...], list[Tensor]] = {}
        refs, missing = (list(default), []) if spec.references is None else find_images([spec.references])
        if spec.references is not None and not refs:
            raise InputError(missing[0].reason, argument="references")
        for failure in missing:
            warn_caller(f"references left out: {failure.reason}")
        chosen = choose_references(refs, spec.seed)  # those of a benchmark
        for picture in chosen:
            try:
                x = prepare(picture.ref, recipe, spec.exif)
            except (ImageError, ModelError, OSError) as error:
                if spec.references is not None:
                    warn_caller(f"reference left out: {error}")
                continue
            self.ids.append(picture.ref.id)
            self.digests.append(picture.digest)
            images.setdefault(tuple(x.shape), []).append(x)
        if spec.references is not None and not self.ids:
            message = f"none of the {len(refs)} images behind {spec.references!r} can be opened"
            raise InputError(message, argument="references")
        self._images = {shape: torch.stack(group).to(device) for shape, group in images.items()}

    def space(self, inputs: Tensor) -> InputSpace:
        low, high = self._bounds
        return InputSpace(low, high, self._images.get(tuple(inputs.shape[1:])))

    def record(self) -> dict[str, Any] | None:
        return {"source": self._source, "images": self.ids} if self.ids else None


def find_images(inputs: Sequence[str]) -> tuple[list[ImageRef], list[Failure]]:
    """The images behind the inputs, and the inputs that lead to none."""
    errors: list[tuple[str, ImageError]] = []
    refs = list(find_inputs(inputs, on_error=lambda source, error: errors.append((source, error))))
    return refs, [Failure(None, source, None, str(error)) for source, error in errors]


def file_digest(origin: Path | RemoteFile | int) -> str | None:
    """SHA-256 of an image file; None for an embedded image and, with a warning, for a file that cannot be read."""
    if isinstance(origin, int):
        return None
    try:
        return file_sha256(origin)
    except OSError as error:
        if isinstance(origin, Path) and origin.is_file():
            warn_caller(f"the SHA-256 of {str(origin)!r} is not recorded ({error.strerror})")
        return None


def configured_method(spec: ExplainSpec, architecture: str | None = None) -> Attributor:
    """The method of a spec; a tuned preset file must be of the ``architecture``, if given.

    Raises InputError for an unknown name or setting, or a value that is not taken.
    """
    texts = dict(read_pair(text, "set", "KEY=VALUE, such as tau=1e-3") for text in spec.set)
    named = innermost_reference(spec.method).rest
    if spec.preset is not None and named:
        message = f"got {spec.preset!r}, but {spec.method!r} names a preset, too"
        raise InputError(message, argument="preset", hint="give one of them")
    method = get_method(spec.method)
    chosen, preset = method.innermost, spec.preset or named
    if chosen.name == "geoig_knn":
        importlib.import_module("sklearn")  # a missing package is reported before anything is computed
    if spec.preset is not None and spec.preset.endswith(".json"):
        chosen, preset = read_preset(Path(spec.preset), architecture)[0], None
    elif spec.preset is not None:
        chosen = type(chosen).preset(spec.preset)
    if spec.variant == "diffusion":
        message, hint = "'diffusion' is a method of its own", "write method='diffusion'"
        raise InputError(message, argument="variant", hint=hint)
    if spec.variant is not None:
        if not isinstance(chosen, PaperFRInGe):
            raise InputError(f"belongs to the methods paper and released, not to {spec.method!r}", argument="variant")
        variant = cast(Any, spec.variant)
        chosen = type(chosen).preset(preset, variant) if preset else chosen.variant(variant)
    require_package(chosen)
    return with_settings(method.around(chosen) if method.innermost is not method else chosen, texts)


@dataclass(frozen=True)
class Prepared:
    """An image with the SHA-256 of its file, as the model takes it: ``x`` (C, H, W); and its result, where an earlier
    run has ``stored`` one."""

    ref: ImageRef
    sha256: str | None
    x: Tensor
    stored: Explanation | None = None


class ImageRun(Generic[Spec]):
    """A run on image files that writes into a folder: the constructor reads options and finds images, :meth:`open`
    loads the model and checks the folder, and ``results`` computes.

    Args:
        inputs: Files, folders, or ``embedded:digits[:INDEX|:START:STOP]``.
        out: Folder of the results.
        spec: Options.
        overwrite: Write into a folder with other files.

    Attributes:
        command: Name of the run in its summary: a folder of another command is refused.
        refs: The images.
        missing: Inputs that lead to no image.
        left: Whether something was left to the next run.
        loaded: The model, once it is open.
        boxes: Which boxes of a detector are explained, as that is typed, once it is open; None for another model.
        found: The explained boxes by the id of their results, which ``refs`` have, too.
        target: "predicted" or the number of the explained class, once it is open.
        document: Content of ``summary.json``.
        done: Number of images with a result.
        failures: Inputs without a result.

    Raises:
        InputError: If an option makes no sense.
    """

    command: ClassVar[str]
    left: bool = False
    loaded: LoadedModel
    boxes: str | None
    target: int | str
    document: dict[str, Any]

    def __init__(self, inputs: Sequence[str], out: Path, spec: Spec, *, overwrite: bool = False):
        self.spec = spec
        self._out, self._overwrite = out, overwrite
        self.class_names = class_names(spec.classes)
        inputs = [os.fspath(one) for one in ([inputs] if isinstance(inputs, (str, os.PathLike)) else inputs)]
        self.refs, self.missing = find_images(inputs)
        self._model = spec.model or (default_model(inputs) if self.refs else "")  # no image needs no model
        self._default_references: Sequence[ImageRef] = ()
        self.done, self.failures = 0, list[Failure]()
        self.found = dict[str, PredictedBox]()

    @property
    def errors(self) -> list[tuple[str, str]]:
        """Label and error of what failed, methods or scores, each once."""
        return []

    @property
    def any_map(self) -> bool:
        """Whether any method made a map."""
        return self.done > 0

    @property
    def files(self) -> Sequence[Path]:
        """The files of the run itself that were written; each explained image has a folder beside them."""
        return list(self.folder.written.values())

    def describe(self) -> Sequence[str | Table]:
        """Return what the run shows at its end, for people: tables and lines."""
        raise NotImplementedError

    @property
    def unwritten(self) -> Sequence[OSError]:
        """Errors of the files of the run itself that could not be written."""
        return list(self.folder.unwritten.values())

    def open(self) -> None:
        """Load the model and the references, and check the folder.

        Raises:
            FringeError: If the model cannot be loaded, or the folder holds something else.
            OSError: If the folder cannot be written.
        """
        spec = self.spec
        self.device = torch.device(resolve_device(spec.device))
        self.loaded = load_model(
            self._model,
            trust_code=spec.trust_code,
            preprocessing=spec.preprocessing,
            class_names=self.class_names,
            device=self.device,
            output=spec.model_output,
        )
        module = as_detector(self.loaded.module, required=spec.boxes is not None)
        self.loaded = replace(self.loaded, module=module)
        self.boxes = (spec.boxes or "predicted") if isinstance(module, Detector) else None
        if self.boxes is not None:
            self._find_boxes(read_boxes(self.boxes))
        named = isinstance(spec.target, str) and spec.target != "predicted"
        self.target = resolve_class_name(str(spec.target), self.loaded.class_names) if named else spec.target
        self.classifier = Classifier(
            self.loaded.module, score=spec.score, output=self.loaded.output, batch_size=spec.batch_size
        )
        self.references = References(spec, self.loaded.preprocessing, self.device, self._default_references)
        self.folder = ResultFolder(self._out, overwrite=self._overwrite, command=self.command)
        self._check()
        self._write_summary(complete=False)
        for error in self.unwritten:
            raise error  # before hours of work whose results cannot be written

    def _check(self) -> None:
        """Check what needs the model and the folder."""

    def _write_summary(self, *, complete: bool) -> None:
        """Write what is computed so far."""
        raise NotImplementedError

    def record(self) -> dict[str, Any]:
        """What all results of the run share, as JSON data."""
        loaded, spec = self.loaded, self.spec
        return {
            "fringe": fringe.__version__,
            "versions": {"fringe": fringe.__version__, "torch": torch.__version__, "python": platform.python_version()},
            "model": {name: getattr(loaded, name) for name in ("spec", "label", "architecture", "digest")},
            "preprocessing": loaded.preprocessing.record(),
            "exif": spec.exif,
            "command": self.command,
            "references": self.references.record(),
            "model_output": spec.model_output,
            "score_kind": spec.score,
            "seed": spec.seed,
            "device": str(self.device),
            "dtype": "float32",
            "options": spec.record(),
        }

    def sha256(self, ref: ImageRef) -> str | None:
        """The digest of an image's file."""
        return file_digest(ref.origin)

    def context(self, ids: Sequence[str], x: Tensor, logits: Tensor) -> Context:
        """What pictures and pages show of inputs (B, C, H, W) besides their maps."""
        return Context(
            kind="image",
            inputs=x.cpu(),
            probabilities=logits.double().softmax(-1).float(),
            ids=tuple(ids),
            model=self.loaded.label,
            mean=self.loaded.preprocessing.mean,
            std=self.loaded.preprocessing.std,
            class_names=self.loaded.class_names,
        )

    def prepare(self, ref: ImageRef) -> Prepared | Failure:
        """Open an image; its digest is taken first, so that a file that changes in between is known as changed."""
        sha256 = file_digest(ref.origin)
        try:
            return Prepared(ref, sha256, prepare(ref, self.loaded.preprocessing, self.spec.exif))
        except (ImageError, ModelError) as error:
            return Failure.of(ref, error)

    def _find_boxes(self, boxes: Boxes) -> None:
        """Replace the photographs by the boxes of a detector; one without such a box is missing."""
        refs = list[ImageRef]()
        for ref in self.refs:
            try:
                found, self.loaded = predicted_boxes(self.loaded, ref, boxes, self.spec.exif)
            except InputError as error:
                self.missing.append(Failure.of(ref, error))
                continue
            except (ImageError, ModelError):  # said where the image is explained
                found = []
            self.found |= {one.name: one for one in found}
            refs += [replace(ref, id=one.name) for one in found] or [ref]
        self.refs = refs

    def logits(self, group: Sequence[Prepared]) -> tuple[Tensor, Tensor] | str:
        """The images (B, C, H, W) of a group on the device, with their logits (B, C) on the CPU; or why there are none.

        Raises:
            InputError: If class names were given for another number of classes.
        """
        x = torch.stack([item.x for item in group]).to(self.device)
        try:
            logits = self.classifier.logits(x, ForwardArguments.of(len(x), None, self.arguments(group))).cpu()
        except Exception as error:  # an image that the model cannot take, whatever it raises, must not stop the others
            if isinstance(error, FringeError) or is_transient(error):
                raise
            return f"preprocessing: the model cannot take an input of shape {tuple(x.shape[1:])}: {model_error(error)}"
        names = self.loaded.class_names
        if names is not None and len(names) != logits.shape[1]:
            source = "the model's own list" if self.class_names is None else repr(str(self.spec.classes))
            message = f"{source} has {len(names)} names for a model of {logits.shape[1]} classes"
            raise InputError(message, argument="classes", hint="name every class, in a file with one name per line")
        return x, logits

    def arguments(self, group: Sequence[Prepared]) -> Mapping[str, Any]:
        """Further arguments of the model for the images of a group, by name."""
        return {"place": torch.stack([self.found[item.ref.id].place for item in group])} if self.found else {}

    def top_classes(self, logits: Tensor, count: int = 5) -> list[dict[str, Any]]:
        """The most probable classes of logits (C,), as JSON data."""
        best = logits.double().softmax(-1).topk(min(count, logits.numel()))
        pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        return [{**self.class_entry(k), "probability": p} for p, k in pairs]

    def class_entry(self, index: int) -> dict[str, Any]:
        """A class and its name, as JSON data."""
        names = self.loaded.class_names
        return {"class": index, "name": names[index] if names is not None and index < len(names) else None}

    def image_entry(self, ref: ImageRef, logits: Tensor, target: Tensor) -> dict[str, Any]:
        """An image, what the model says of it and the explained class, as JSON data."""
        best, explained = self.top_classes(logits, 1)[0], self.class_entry(int(target))
        return {"id": ref.id, "source": ref.source, "label": ref.label, "prediction": best, "target": explained}

    def write_document(self, document: Mapping[str, Any]) -> None:
        """Write ``summary.json``, with the record of the run first."""
        self.document = {**self.record(), **document}
        self.folder.attempt(SUMMARY, to_json(self.document))


Item = TypeVar("Item")


def iter_batches(items: Iterable[Item], images: int, numbers: int) -> Iterator[list[Item]]:
    """Items in their order, a bounded number of prepared ``images`` and ``numbers`` of their inputs at a time."""
    batch: list[Item] = []
    for item in items:
        batch.append(item)
        sizes = [member.x.numel() for member in batch if isinstance(member, Prepared)]
        if len(sizes) >= images or sum(sizes) >= numbers or (not sizes and len(batch) >= images):
            yield batch
            batch = []
    if batch:
        yield batch


def by_shape(items: Iterable[Any]) -> Iterator[list[Prepared]]:
    """The prepared images in groups of one shape."""
    groups: dict[tuple[int, ...], list[Prepared]] = {}
    for item in items:
        if isinstance(item, Prepared):
            groups.setdefault(tuple(item.x.shape), []).append(item)
    yield from groups.values()
