"""The app without its web server: models, methods, samples, and the two computations."""

import contextlib
import io
import logging
import re
import secrets
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fringe._files import write_atomic
from fringe._text import to_csv
from fringe.app._spec import AppSpec
from fringe.attribution import METHODS, Attribution, Context, get_method
from fringe.classifier import Classifier
from fringe.data import SOURCE, ImageRef, find_inputs, open_image
from fringe.errors import (
    FringeError,
    ImageError,
    InputError,
    ModelOutputError,
    NotDifferentiableError,
    is_machine_error,
    is_out_of_memory,
)
from fringe.evaluation import Comparison, compare, tidy
from fringe.explanations import explain
from fringe.models import LoadedModel, load_model, resolve_device
from fringe.page import page_document, render_page
from fringe.plots import overlay, png_of

#: Scores of a comparison.
METRICS = ("mas_insertion", "mas_deletion", "insertion", "deletion")
#: Pixels of a model's input, after its preprocessing.
MAX_INPUT_PIXELS = 1_500_000
#: Number of offered samples.
MAX_SAMPLES = 24
#: Number of classes to switch between in a page, if one path serves all classes.
CLASSES = 5
#: Methods that need more than an image: reference images, another method, or another package.
_NEEDS_MORE = ("captum", "expected_gradients", "geoig_knn", "ig2", "lxt", "smooth", "straight", "zennit")
_SAFE = re.compile(r"[^\w.-]+")
_NAMED = re.compile(r"([\w .-]+)=(.+)")
#: Field of the page for each argument of the library.
_FIELDS = {
    **dict.fromkeys(("model", "output", "layer"), "model"),
    **dict.fromkeys(("inputs", "image", "images", "x"), "image"),
    **dict.fromkeys(("method", "space", "space.references"), "method"),
}
#: What people read of errors whose own words are for those who wrote the model.
_SAID = {
    ModelOutputError: "The output of this model cannot be read as one score for each class",
    NotDifferentiableError: "This model has no gradients that the method can use",
}

#: Gets the share that is done, and what is being computed.
Show = Callable[[float, str], Any]


class StoppedError(Exception):
    """Ends a computation that was stopped or took too long (``is_late``); its message is for people.

    It is not a FringeError, which a comparison would take for the failure of one method, and continue."""

    def __init__(self, message: str, is_late: bool = False):
        super().__init__(message)
        self.is_late = is_late


class Job:
    """A computation, which calls :meth:`check` or :meth:`report` often; it may run for so many ``seconds``."""

    def __init__(self, seconds: float, show: Show):
        self.seconds, self.show = seconds, show
        self.is_stopped = False
        self.begin = time.monotonic()

    def check(self) -> None:
        """Raise StoppedError if the job was stopped or has run out of time."""
        if self.is_stopped:
            raise StoppedError("Stopped. Nothing is computed any more.")
        if time.monotonic() - self.begin > self.seconds:
            limit = _duration(self.seconds)
            hint = "A quick method, or a smaller image or model, takes less time."
            raise StoppedError(f"Stopped at the limit of {limit}. {hint}", is_late=True)

    def report(self, done: float, total: float, what: str = "steps") -> None:
        """Show the steps done and planned, with an estimate of the time left; a progress callback of the library."""
        share = min(max(done / total, 0.0), 1.0) if total > 0 else 0.0
        spent = time.monotonic() - self.begin
        left = f", about {_duration(spent * (1 - share) / share)} left" if 0.05 <= share < 1 and spent > 0.5 else ""
        self.show(share, what + left)
        self.check()


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
    """The models that the app offers, computed with one at a time.

    Args:
        models: The loaded models by the names shown to people.
        folder: Folder for samples and for files to download.
        spec: Limits, and the offered images; the first digits by default if a model is the embedded one.
    """

    def __init__(self, models: Mapping[str, LoadedModel], folder: Path, spec: AppSpec):
        self.models, self.spec = dict(models), spec
        self.methods = _methods()
        self._folder = folder
        self._jobs: dict[str, Job] = {}  # by owner
        self._one = threading.Lock()  # gradio forgets a canceled computation that still runs
        self._here = threading.local()

        def check(*_: Any) -> None:  # a plain function: a copy of the module would copy the owner of a method
            if job := getattr(self._here, "job", None):
                job.check()

        for loaded in self.models.values():  # a stopped job ends at the next pass through its model
            loaded.module.register_forward_pre_hook(check)
        embedded = any(loaded.spec == SOURCE for loaded in self.models.values())
        self.samples = _samples(((f"{SOURCE}:0:10",) if embedded else ()) if spec.samples is None else spec.samples)

    def sample_file(self, index: int) -> Path:
        """Return the file of a sample; write it again if the server has removed it as an old file."""
        sample = self.samples[index]
        file = self._folder / "samples" / f"{sample.name}.png"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(file, sample.png)
        return file

    def explain(self, owner: str, show: Show, file: str | Path | None, model: str, method: str) -> Explained:
        """Explain an image file.

        Raises:
            StoppedError: If it was stopped, or took too long.
            FringeError: If a choice is missing or unknown, or something is wrong with the image or the model.
        """
        loaded, _ = self._model(model), self._method(method)
        name = _name(file)
        with self._job(owner, show) as job:
            image = self._open(file)
            classes = self._check_input(loaded, image)
            kind = get_method(method)
            target = f"top{min(CLASSES, classes)}" if kind.many_targets else "predicted"
            result = explain(loaded, image, method=kind, target=target, progress=job.report)
            result = result.with_context(_renamed(result.context, name, model))
            job.report(1, 1, "the page")
            with self._new_folder(owner, job, "explain") as folder:
                return _write_explained(folder, result, name)

    def compare(
        self, owner: str, show: Show, file: str | Path | None, model: str, methods: Sequence[str]
    ) -> Compared:
        """Compare two methods on an image file.

        Raises:
            StoppedError: As :meth:`explain`.
            FringeError: As :meth:`explain`, and if both methods are the same.
        """
        loaded = self._model(model)
        titles = {method: self._method(method) for method in methods}
        if len(titles) != 2:
            raise InputError("both methods are the same", hint="choose two different ones")
        name = _name(file)
        with self._job(owner, show) as job:
            image = self._open(file)
            self._check_input(loaded, image)

            def report(what: str, done: float, total: float) -> None:
                job.report(done, total, _in_words(what, titles))

            comparison = compare(loaded, image, list(titles), METRICS, progress=report)
            for row in comparison.rows:
                if row.error:  # its words are for programmers
                    logging.getLogger("fringe").error("%s failed in a comparison of the app: %s", row.label, row.error)
            comparison = replace(comparison, images=(name,), context=_renamed(comparison.context, name, model))
            job.report(1, 1, "the pictures")
            with self._new_folder(owner, job, "compare") as folder:
                return _write_compared(folder, comparison, titles, name)

    def stop(self, owner: str) -> None:
        """End the job of an owner at its next check."""
        if (job := self._jobs.get(owner)) is not None:
            job.is_stopped = True

    def forget(self, owner: str) -> None:
        """Stop the job of an owner and remove the files of their last results."""
        self.stop(owner)
        shutil.rmtree(self._folder_of(owner), ignore_errors=True)

    def close(self) -> None:
        """Stop all jobs."""
        for owner in list(self._jobs):
            self.stop(owner)

    @contextlib.contextmanager
    def _job(self, owner: str, show: Show) -> Generator[Job]:
        """Begin a job of an owner, which replaces the one before, once no other job runs; say why it failed."""
        self.stop(owner)
        job = self._jobs[owner] = Job(self.spec.time_limit, show)
        try:
            while not self._one.acquire(timeout=0.05):
                if job.is_stopped:
                    job.check()
            try:
                job.begin = time.monotonic()
                self._here.job = job
                job.report(0, 0, "Beginning")
                yield job
            finally:
                self._here.job = None
                self._one.release()
        except BaseException as error:
            if not isinstance(error, StoppedError):
                job.check()  # other code may have caught the stop and raised another error
                known = isinstance(error, FringeError)
                logging.getLogger("fringe").error("a computation of the app failed: %s", error, exc_info=not known)
            raise
        finally:
            if self._jobs.get(owner) is job:
                del self._jobs[owner]

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
            return open_image(file or "", max_pixels=self.spec.max_pixels)
        except ImageError as error:  # its hint is for those who can raise the limit
            message = error.message.replace(repr(str(file)) + ": ", "this file: ")
            raise InputError(message, hint="choose another image") from error

    def _check_input(self, loaded: LoadedModel, image: Image.Image) -> int:
        """Run the model once on the image; return its number of classes."""
        parameter = next(loaded.module.parameters(), None)
        x = loaded.prepare([image]).to(None if parameter is None else parameter.device)
        height, width = x.shape[-2:]
        if height * width > MAX_INPUT_PIXELS:
            message = f"the model would get {width} x {height} pixels, more than {MAX_INPUT_PIXELS}"
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

    def _folder_of(self, owner: str) -> Path:
        return self._folder / sha256(owner.encode()).hexdigest()

    @contextlib.contextmanager
    def _new_folder(self, owner: str, job: Job, kind: str) -> Generator[Path]:
        """Make a folder for the files of a result; it replaces the owner's last one of this kind.

        If the job is stopped while the files are written, it is removed, because its owner may be gone."""
        parent = self._folder_of(owner) / kind
        shutil.rmtree(parent, ignore_errors=True)
        folder = parent / secrets.token_hex(16)
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            if job.is_stopped:
                shutil.rmtree(parent, ignore_errors=True)
                job.check()


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


def load_models(spec: AppSpec, class_names: Sequence[str] | None = None) -> dict[str, LoadedModel]:
    """Load the models that the app offers, by the name shown to people: NAME of NAME=SPEC, or the architecture.

    The specification is not shown, because it may contain a path of this machine."""
    models: dict[str, LoadedModel] = {}
    for text in spec.model or (SOURCE,):
        named = _NAMED.fullmatch(text)
        loaded = load_model(
            named[2] if named else text,
            trust_code=spec.trust_code,
            preprocessing=spec.preprocessing,
            class_names=class_names,
            device=resolve_device(spec.device),
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


def _duration(seconds: float) -> str:
    return f"{max(round(seconds), 1)} s" if seconds < 90 else f"{round(seconds / 60)} min"


def reason(error: BaseException) -> str:
    """Return the text of an error for people: the message of a library error, and only the type of any other error,
    whose message may contain paths of this machine.

    Arguments are called by the fields of the page, and the advice to programmers is omitted.
    """
    said = next((text for kind, text in _SAID.items() if isinstance(error, kind)), None)
    if said is not None:
        return f"{said}; choose another model. The terminal of the app shows more."
    if isinstance(error, FringeError):
        text = error.message if error.hint is None else f"{error.message}; {error.hint}"
        if (field := _FIELDS.get(error.argument or "")) is not None:
            text = f"the {field}: {error.message.partition('. ')[0]}; choose another {field}"
        return f"{text[:1].upper()}{text[1:]}."
    if is_out_of_memory(error):
        return "There is not enough memory for this image, model and method."
    return f"The computation failed with {type(error).__name__}. The terminal of the app shows more."
