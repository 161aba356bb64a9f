"""The app without its web server: models, methods, samples, and the two computations."""

import contextlib
import io
import logging
import re
import secrets
import shutil
import warnings
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fringe._files import write_atomic
from fringe._text import to_csv
from fringe.app._worker import Job, Limits, StoppedError, Worker
from fringe.attribution import METHODS, Attribution, Context, get_method
from fringe.classifier import Classifier
from fringe.data import SOURCE, ImageRef, find_inputs, open_image
from fringe.errors import FringeError, ImageError, InputError, is_machine_error
from fringe.evaluation import Comparison, compare, tidy
from fringe.explanations import explain
from fringe.models import LoadedModel, load_model, resolve_device
from fringe.page import page_document, render_page
from fringe.plots import overlay, png_of

#: Scores of a comparison.
METRICS = ("mas_insertion", "mas_deletion", "insertion", "deletion")
#: Number of offered samples.
MAX_SAMPLES = 24
#: Number of classes to switch between in a page, if one path serves all classes.
CLASSES = 5
#: Methods that need more than an image: reference images, another method, or another package.
_NEEDS_MORE = ("captum", "expected_gradients", "geoig_knn", "ig2", "lxt", "smooth", "straight", "zennit")
_SAFE = re.compile(r"[^\w.-]+")
_NAMED = re.compile(r"([\w .-]+)=(.+)")


@dataclass(frozen=True)
class Sample:
    """An image that the app offers: its ``title``, the ``name`` of its file, and the ``png``."""

    title: str
    name: str
    png: bytes


@dataclass(frozen=True)
class Explained:
    """An explained image: its page, and the files to download."""

    name: str
    page: str
    files: tuple[Path, ...]


@dataclass(frozen=True)
class Compared:
    """An image that two methods explained: their titles, and the PNG of each one's map, by label; None where it failed.
    ``target`` is the name of the explained class, ``files`` are those to download."""

    name: str
    target: str
    titles: Mapping[str, str]
    pictures: Mapping[str, bytes | None]
    comparison: Comparison
    files: tuple[Path, ...]


class Service:
    """The models that the app offers, and the thread that computes.

    Args:
        models: The loaded models by the names shown to people.
        folder: Folder for samples and for files to download.
        limits: Limits for one person.
        samples: Offered images; the first digits by default if a model is the embedded one.
    """

    def __init__(
        self,
        models: Mapping[str, LoadedModel],
        folder: Path,
        limits: Limits | None = None,
        samples: Sequence[str] | None = None,
    ):
        if not models:
            raise InputError("got no model", argument="model", hint="name at least one, such as embedded:digits")
        self.models, self.limits = dict(models), limits or Limits()
        self.worker = Worker(self.limits)
        self.methods = _methods()
        self._folder = folder
        self._folders: dict[tuple[str, str], Path] = {}  # by owner and kind of result

        def check(*_: Any) -> None:  # a plain function: a copy of the module would copy the owner of a method
            self.worker.check()

        for loaded in self.models.values():  # a stopped job ends at the next pass through its model
            loaded.module.register_forward_pre_hook(check)
        self.samples = _samples(self._default_samples() if samples is None else samples)

    def _default_samples(self) -> tuple[str, ...]:
        embedded = any(loaded.spec == SOURCE for loaded in self.models.values())
        return (f"{SOURCE}:0:10",) if embedded else ()

    def sample_file(self, index: int) -> Path:
        """Return the file of a sample; write it again if the server has removed it as an old file."""
        sample = self.samples[index]
        file = self._folder / "samples" / f"{sample.name}.png"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(file, sample.png)
        return file

    def explain(self, owner: str, file: str | Path | None, model: str, method: str) -> Job:
        """Queue the explanation of an image file; the result of the job is :class:`Explained`.

        Raises:
            InputError: If a choice is missing or unknown, or too many jobs wait. What is wrong with the image is the
                error of the job, which decodes it.
        """
        loaded, _ = self._model(model), self._method(method)
        name = _name(file)

        def run(job: Job) -> Explained:
            image = self._open(file)
            classes = self._check_input(loaded, image)
            kind = get_method(method)
            target = f"top{min(CLASSES, classes)}" if kind.many_targets else "predicted"
            result = explain(loaded, image, method=kind, target=target, progress=job.report)
            result = result.with_context(_renamed(result.context, name, model))
            job.report(1, 1, "the page")
            with self._new_folder(job, "explain") as folder:
                return _write_explained(folder, result, name)

        return self.worker.submit(owner, run)

    def compare(self, owner: str, file: str | Path | None, model: str, methods: Sequence[str]) -> Job:
        """Queue the comparison of two methods on an image file; the result of the job is :class:`Compared`.

        Raises:
            InputError: As :meth:`explain`, and if both methods are the same.
        """
        loaded = self._model(model)
        titles = {method: self._method(method) for method in methods}
        if len(titles) != 2:
            raise InputError("both methods are the same", hint="choose two different ones")
        name = _name(file)

        def run(job: Job) -> Compared:
            image = self._open(file)
            self._check_input(loaded, image)
            comparison = compare(
                loaded,
                image,
                list(titles),
                METRICS,
                progress=lambda what, done, total: job.report(done, total, _in_words(what, titles)),
            )
            for row in comparison.rows:
                if row.error:  # its words are for programmers
                    logging.getLogger("fringe").error("%s failed in a comparison of the app: %s", row.label, row.error)
            comparison = replace(comparison, images=(name,), context=_renamed(comparison.context, name, model))
            job.report(1, 1, "the pictures")
            with self._new_folder(job, "compare") as folder:
                return _write_compared(folder, comparison, titles, name)

        return self.worker.submit(owner, run)

    def forget(self, owner: str) -> None:
        """Stop the job of an owner and remove the files of their last results."""
        self.worker.stop(owner)
        for kind in ("explain", "compare"):
            self._remove(owner, kind)

    def close(self) -> None:
        """End the thread."""
        self.worker.close()

    # Checks

    def _model(self, name: str) -> LoadedModel:
        """Return the offered model with this name; nothing else is loaded."""
        if name not in self.models:
            raise InputError("this model is not in the list", hint="choose one of the list")
        return self.models[name]

    def _method(self, name: str) -> str:
        if name not in self.methods:
            raise InputError("this method is not in the list", hint="choose one of the list")
        return self.methods[name]

    def _open(self, file: str | Path | None) -> Image.Image:
        """Decode an uploaded file within the limits; error messages do not contain its path."""
        try:
            return open_image(file or "", max_pixels=self.limits.max_pixels)
        except ImageError as error:  # its hint is for those who can raise the limit
            message = error.message.replace(repr(str(file)) + ": ", "this file: ")
            raise InputError(message, hint="choose another image") from error

    def _check_input(self, loaded: LoadedModel, image: Image.Image) -> int:
        """Run the model once on the image; return its number of classes."""
        parameter = next(loaded.module.parameters(), None)
        x = loaded.prepare([image]).to(None if parameter is None else parameter.device)
        height, width = x.shape[-2:]
        if height * width > self.limits.max_input_pixels:
            most = self.limits.max_input_pixels
            message = f"the model would get {width} x {height} pixels, more than {most}"
            raise InputError(message, hint="shrink the image")
        try:
            logits = Classifier(loaded.module, output=loaded.output).logits(x)
        except (FringeError, StoppedError):
            raise
        except Exception as error:  # a model may raise anything
            if is_machine_error(error):
                raise
            raise InputError(
                f"the model cannot take an image of {width} x {height} pixels", hint="try another image or model"
            ) from error
        if not bool(logits.isfinite().all()):
            raise InputError(
                "the model's scores for this image are no finite numbers", hint="try another image or model"
            )
        return logits.shape[1]

    # Results

    @contextlib.contextmanager
    def _new_folder(self, job: Job, kind: str) -> Generator[Path]:
        """Make a folder for the files of a result; it replaces the owner's last one of this kind.

        If the job is stopped while the files are written, it is removed, because its owner may be gone."""
        self._remove(job.owner, kind)
        folder = self._folders[job.owner, kind] = self._folder / secrets.token_hex(16)
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            if job.is_stopping:
                self._remove(job.owner, kind)
                shutil.rmtree(folder, ignore_errors=True)  # the owner may have been forgotten in the meantime
                raise StoppedError

    def _remove(self, owner: str, kind: str) -> None:
        folder = self._folders.pop((owner, kind), None)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _write_explained(folder: Path, result: Attribution, name: str) -> Explained:
    page = render_page(page_document(result, 0))
    (folder / f"{name}.html").write_text(page, encoding="utf-8")
    context = result.context
    assert context is not None
    arrays: dict[str, Any] = {
        "values": result.values[0],
        "target": result.target[0],
        "input": context.inputs[0],
        "probabilities": context.probabilities[0],
    }
    np.savez_compressed(folder / f"{name}.npz", **{key: value.cpu().numpy() for key, value in arrays.items()})
    result.plot(kind="overlay").savefig(folder / f"{name}.png")
    return Explained(name, page, tuple(folder / f"{name}{suffix}" for suffix in (".html", ".npz", ".png")))


def _write_compared(folder: Path, comparison: Comparison, titles: Mapping[str, str], name: str) -> Compared:
    context, target = comparison.context, comparison.target[0]
    assert context is not None
    image = context.picture(context.inputs[0])
    maps = {row.label: row.maps[0].cpu().numpy() for row in comparison.rows if row.maps is not None}
    pictures = {label: png_of(overlay(image, maps[label])) if label in maps else None for label in titles}
    arrays: dict[str, Any] = {label.replace(":", "-"): values for label, values in maps.items()}
    np.savez_compressed(folder / f"{name}.npz", **arrays, input=context.inputs[0].numpy(), target=target.numpy())
    columns = ("method", "control", "metric", "image", "score", "flags")
    rows = [{**row, "flags": ";".join(row["flags"])} for row in tidy(comparison)]
    (folder / f"{name}.csv").write_text(to_csv(rows, columns), encoding="utf-8")
    comparison.plot().savefig(folder / f"{name}.png")
    files = tuple(folder / f"{name}{suffix}" for suffix in (".csv", ".npz", ".png"))
    return Compared(name, context.class_label(int(target)), titles, pictures, comparison, files)


def load_models(
    specs: Iterable[str],
    *,
    trust_code: bool = False,
    preprocessing: str | None = None,
    class_names: Sequence[str] | None = None,
    device: str = "auto",
) -> dict[str, LoadedModel]:
    """Load the models that the app offers.

    Args:
        specs: SPEC or NAME=SPEC each.
        trust_code: Whether code of the models' authors may be run.
        preprocessing: Replaces the preprocessing of all models, in the form of :meth:`Preprocessing.parse`.
        class_names: Replaces the class names of all models.
        device: Device of all models.

    Returns:
        The models by the name shown to people: NAME, or the architecture. The spec is not shown, because it may contain
        a path of this machine.

    Raises:
        FringeError: If a model cannot be loaded, or a name is given twice.
    """
    models: dict[str, LoadedModel] = {}
    for text in specs:
        named = _NAMED.fullmatch(text)
        loaded = load_model(
            named[2] if named else text,
            trust_code=trust_code,
            preprocessing=preprocessing,
            class_names=class_names,
            device=resolve_device(device),
        )
        name = named[1].strip() if named else loaded.label
        if name in models:
            raise InputError(f"two models are called {name!r}", argument="model", hint=f"write {name}-2={text}")
        models[name] = loaded
    return models


def _methods() -> dict[str, str]:
    """The titles of the methods that need only the image, FRInGe first, each followed by its quick version."""
    names = sorted(METHODS, key=lambda name: (name != "fringe", METHODS[name].title))
    result: dict[str, str] = {}
    for name in names:
        kind = METHODS[name]
        if name not in _NEEDS_MORE:
            result[name] = kind.title
            result |= {f"{name}:{p}": f"{kind.title}, {p}" for p in ("preview", "quick") if p in kind.presets}
    return result


def _samples(inputs: Sequence[str]) -> tuple[Sample, ...]:
    """The first images of the inputs, as PNG for the browser."""
    result: list[Sample] = []
    refs = list(find_inputs(inputs)) if inputs else []
    if len(refs) > MAX_SAMPLES:
        warnings.warn(f"of {len(refs)} samples the first {MAX_SAMPLES} are offered", stacklevel=2)
    for ref in refs[:MAX_SAMPLES]:
        file = io.BytesIO()
        try:
            ref.open().image.save(file, format="PNG")
        except ValueError as error:
            warnings.warn(f"sample left out: {error}", stacklevel=2)
            continue
        result.append(Sample(_title(ref), ref.id, file.getvalue()))
    return tuple(result)


def _title(ref: ImageRef) -> str:
    """The digit, or the file name without its class number."""
    name = f"digit {ref.label}" if isinstance(ref.origin, int) else re.sub(r"^[0-9]{1,5}_", "", ref.id)
    return name.replace("_", " ")


def _in_words(what: str, titles: Mapping[str, str]) -> str:
    """The current step of a comparison, with the titles of the methods."""
    label, _, rest = what.partition(": ")
    return " ".join((titles.get(label, f"control map “{label}”"), rest)).strip()


def _name(file: str | Path | None) -> str:
    """The stem of a file name, made safe for names of downloaded files. Raises InputError if there is no file."""
    if file is None:
        raise InputError("no image is chosen", hint="drop one into the field, or pick a sample")
    return _SAFE.sub("_", Path(file).stem).strip("._")[:60] or "image"


def _renamed(context: Context | None, name: str, model: str) -> Context:
    """The context with the names shown to people instead of specs, which may contain a path of this machine."""
    assert context is not None
    return replace(context, ids=(name,), model=model)
