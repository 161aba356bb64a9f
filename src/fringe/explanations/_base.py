"""What runs on image files share: options, model, images in batches, and the summary of the run."""

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

import fringe
from fringe.classifier import Classifier
from fringe.data import ImageError, ImageRef
from fringe.errors import InputError
from fringe.experiments import default_model
from fringe.explanations._folder import SUMMARY, ResultFolder
from fringe.explanations._inputs import Failure, References, file_digest, find_images, open_image
from fringe.explanations._spec import ImageOptions, read_class_names
from fringe.models import LoadedModel, ModelError, Preprocessing, load_model, resolve_device

Progress = Callable[..., None]
Spec = TypeVar("Spec", bound=ImageOptions)


@dataclass(frozen=True)
class Prepared:
    """An image as the model takes it.

    Attributes:
        ref: The image.
        sha256: SHA-256 of its file.
        x: Model input (C, H, W).
    """

    ref: ImageRef
    sha256: str | None
    x: Tensor


class ImageRun(Generic[Spec]):
    """A run on image files that writes into a folder.

    The constructor reads options and finds images, and :meth:`open` loads the model and checks the folder.

    Args:
        inputs: Files, folders, or ``embedded:digits[:INDEX|:START:STOP]``.
        out: Folder of the results.
        spec: Options.
        overwrite: Write into a folder with other files.

    Attributes:
        command: Name of the run in its summary: a folder of another command is refused.
        refs: The images.
        missing: Inputs that lead to no image.
        loaded: The model, once it is open.
        document: Content of ``summary.json``.

    Raises:
        InputError: If an option makes no sense.
    """

    command: ClassVar[str]
    loaded: LoadedModel
    document: dict[str, Any]

    def __init__(self, inputs: Sequence[str], out: Path, spec: Spec, *, overwrite: bool = False):
        self.spec = spec
        self._out, self._overwrite = out, overwrite
        self.class_names = read_class_names(spec.classes)
        self._model = spec.model or default_model(inputs)
        self.refs, self.missing = find_images(inputs)

    @property
    def unwritten(self) -> Sequence[OSError]:
        """Errors of the files of the run itself that could not be written."""
        return list(self.folder.unwritten.values())

    def open(self, default_references: Iterable[ImageRef] = ()) -> None:
        """Load the model and the references, and check the folder.

        Raises:
            FringeError: If the model cannot be loaded, or the folder cannot be used.
        """
        spec = self.spec
        device = resolve_device(spec.device)
        recipe = None if spec.preprocessing is None else Preprocessing.parse(spec.preprocessing)
        names, trusted = self.class_names, spec.trust_code
        self.loaded = load_model(
            self._model, trust_code=trusted, preprocessing=recipe, class_names=names, device=device
        )
        self.device = torch.device(device)
        self.classifier = Classifier(
            self.loaded.module, score=spec.score, output=spec.model_output, batch_size=spec.batch_size
        )
        self.references = References(spec, self.loaded.preprocessing, self.device, default_references)
        self.folder = ResultFolder(self._out, overwrite=self._overwrite, command=self.command)

    def record(self) -> dict[str, Any]:
        """What all results of the run share, as JSON data."""
        loaded, spec = self.loaded, self.spec
        return {
            "fringe": fringe.__version__,
            "versions": {"fringe": fringe.__version__, "torch": torch.__version__, "python": platform.python_version()},
            "model": {"spec": loaded.spec, "architecture": loaded.architecture, "digest": loaded.digest},
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

    def prepare(self, ref: ImageRef) -> Prepared | Failure:
        """Open an image; its digest is taken first, so that a file that changes in between is known as changed."""
        sha256 = file_digest(ref.origin)
        try:
            return Prepared(ref, sha256, open_image(ref, self.loaded.preprocessing, self.spec.exif))
        except (ImageError, ModelError) as error:
            return Failure.of(ref, error)

    def logits(self, group: Sequence[Prepared]) -> tuple[Tensor, Tensor] | str:
        """The images (B, C, H, W) of a group on the device, with their logits (B, C) on the CPU; or why there are none.

        Raises:
            InputError: If class names were given for another number of classes.
        """
        x = torch.stack([item.x for item in group]).to(self.device)
        try:
            logits = self.classifier.logits(x).cpu()
        except RuntimeError as error:  # sizes may differ, and one that the model cannot take must not stop the others
            return f"the model cannot take an input of shape {tuple(x.shape[1:])}: {str(error).splitlines()[0]}"
        names = self.loaded.class_names
        if names is not None and len(names) != logits.shape[1]:
            raise InputError(f"got {len(names)} for a model of {logits.shape[1]} classes", argument="classes")
        return x, logits

    def top_classes(self, logits: Tensor, count: int = 5) -> list[dict[str, Any]]:
        """The most probable classes of logits (C,), as JSON data."""
        best = logits.double().softmax(-1).topk(min(count, logits.numel()))
        pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        return [{**self.class_entry(k), "probability": p} for p, k in pairs]

    def class_entry(self, index: int) -> dict[str, Any]:
        """A class and its name, as JSON data."""
        names = self.loaded.class_names
        return {"class": index, "name": names[index] if names is not None and index < len(names) else None}

    def write_summary(self, document: Mapping[str, Any]) -> None:
        """Write ``summary.json``, with the record of the run first."""
        self.document = {**self.record(), **document}
        self.folder.attempt_json(SUMMARY, self.document)


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
