"""The app without its web server: models, methods, samples, and the two computations."""

import io
import logging
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from fringe._files.disk import write_atomic
from fringe._strings.names import split_label
from fringe.app._fragments import comparison_html, page_frame
from fringe.app._jobs import Job, Jobs, Show, StoppedError
from fringe.app._spec import AppSpec
from fringe.attribution import METHODS, Attribution, Attributor, Context, get_method
from fringe.classifier import Classifier
from fringe.data import PHOTOS, SOURCE, find_inputs, open_image
from fringe.detection import LEAST, Detector, as_detector
from fringe.errors import FringeError, ImageError, InputError, is_machine_error, warn_caller
from fringe.evaluation import Comparison, compare
from fringe.explanations import explain
from fringe.metrics import ROAD, Insertion, Metric, OcclusionAgreement, SignedInsertion
from fringe.models import EFFICIENTNET, LoadedModel, load_model, resolve_device
from fringe.page import page_text

#: The metrics of a comparison of one image, with few steps; the page says what each can tell (app.html.j2), docs/app.md
#: which of them pass our test.
METRICS: Mapping[str, Metric] = {
    "road": ROAD(shares=(0.1, 0.3, 0.5)),
    "signed_insertion": SignedInsertion(steps=16),
    "signed_insertion:zero": SignedInsertion(reference="zeros", steps=16),
    "insertion": Insertion(steps=16),
    "insertion:zero": Insertion(reference="zeros", steps=16),
    "occlusion_agreement": OcclusionAgreement(),
}
#: Pixels of a model's input, after its preprocessing.
MAX_INPUT_PIXELS = 1_500_000
#: Number of offered samples.
MAX_SAMPLES = 24
#: Number of classes to switch between in a page, if one path serves all classes.
CLASSES = 5
#: Presets of the methods that are offered, too.
_VERSIONS = ("fast", "focused", "quick")
_SAFE = re.compile(r"[^\w.-]+")


@dataclass(frozen=True)
class Sample:
    """An image that the app offers: its ``title``, the ``name`` of its file, and the ``png``."""

    title: str
    name: str
    png: bytes


class Result(NamedTuple):
    """What the page shows of a computation, the files to download, and what comes next, if this is not the last one."""

    html: str
    files: tuple[Path, ...]
    next: str = ""


def _needs_more(method: Attributor) -> bool:
    """Whether a method needs more than an image: reference images, another method, or another package."""
    return method.uses_references or method.package is not None or method.innermost is not method


class Service:
    """The models that the app offers, and what it computes with them.

    Args:
        models: The loaded models by the names shown to people.
        folder: Folder for samples and for files to download.
        spec: Limits, and the offered images; the first digits by default if a model is the embedded one.
    """

    def __init__(self, models: Mapping[str, LoadedModel], folder: Path, spec: AppSpec):
        self.models = {name: replace(loaded, module=as_detector(loaded.module)) for name, loaded in models.items()}
        self.spec = spec
        self.methods = dict[str, str]()  # titles of those that need only the image, each with its other versions
        for method in sorted(METHODS, key=lambda name: (name != "fringe", METHODS[name].title)):
            kind = METHODS[method]
            if not _needs_more(kind()):
                others = {f"{method}:{p}": f"{kind.title}, {p}" for p in _VERSIONS if p in kind.presets}
                self.methods |= {method: kind.title, **others}
        self._folder = folder
        self.jobs = Jobs(spec.time_limit)

        def check(*_: Any) -> None:  # a plain function: a copy of the module would copy the owner of a method
            self.jobs.check()

        for loaded in self.models.values():  # a stopped job ends at the next pass through its model
            loaded.module.register_forward_pre_hook(check)
        offered = {SOURCE: f"{SOURCE}:0:10", EFFICIENTNET: PHOTOS}
        offered_images = [
            images for name, images in offered.items() if any(name == m.spec for m in self.models.values())
        ]
        self.samples = _samples(offered_images if spec.samples is None else spec.samples)

    def sample_file(self, index: int) -> Path:
        """Return the file of a sample; write it if it is not there."""
        sample = self.samples[index]
        file = self._folder / "samples" / f"{sample.name}.png"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(file, sample.png)
        return file

    def explain(self, owner: str, show: Show, file: str | None, model: str, method: str) -> Iterator[Result]:
        """Explain an image file for an owner: first its predicted class by the preset ``fast``, if the method has it.

        Raises:
            StoppedError: If it was stopped, or took too long.
            FringeError: If a choice is missing or unknown, or something is wrong with the image or the model.
        """
        loaded, title = self._model(model), self._method(method)
        name, fast = _name(file), f"{method}:fast"
        for chosen in (fast, method) if fast in self.methods else (method,):
            with self.jobs.run(owner, show) as job:  # a job of its own: between the two nothing is held
                image, classes, boxes = self._open(file, loaded)
                kind = get_method(chosen)
                several = kind.many_targets and not kind.path_of_targets  # else a map would depend on other classes
                several = several and not boxes and chosen == method
                target = f"top{min(CLASSES, classes)}" if several else "predicted"
                result = explain(loaded, image, method=kind, target=target, progress=job.report, **boxes)
                result = result.with_context(_renamed(result.context, name, model))
                job.report(1, 1, "the page")
                found = _write_explained(self._new_folder(owner, job, "explain"), result, name)
            yield found if chosen == method else found._replace(next=f"By {self.methods[fast]}. {title} comes next.")

    def compare(self, owner: str, show: Show, file: str | None, model: str, *methods: str) -> Iterator[Result]:
        """Compare two methods on an image file for an owner; there is one result.

        Raises:
            StoppedError: As :meth:`explain`.
            FringeError: As :meth:`explain`, and if both methods are the same.
        """
        loaded = self._model(model)
        titles = {method: self._method(method) for method in methods}
        if len(titles) != 2:
            raise InputError("both methods are the same", hint="choose two different ones")
        name = _name(file)
        with self.jobs.run(owner, show) as job:
            image, _, boxes = self._open(file, loaded)

            def report(what: str, done: float, total: float) -> None:
                label, _, rest = what.partition(": ")
                job.report(done, total, " ".join((titles.get(label, f"control map “{label}”"), rest)).strip())

            result = compare(loaded, image, list(titles), METRICS, progress=report, boxes=1 if boxes else None)
            for row in result.rows:
                if row.error:  # its words are for programmers
                    logging.getLogger("fringe").error("%s failed in a comparison of the app: %s", row.label, row.error)
            result = replace(result, images=(name,), context=_renamed(result.context, name, model))
            job.report(1, 1, "the pictures")
            found = _write_compared(self._new_folder(owner, job, "compare"), result, titles, name)
        yield found

    def forget(self, owner: str) -> None:
        """Stop the job of an owner and remove the files of their last results."""
        self.jobs.stop(owner)
        shutil.rmtree(self._folder_of(owner), ignore_errors=True)

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

    def _open(self, file: str | None, loaded: LoadedModel) -> tuple[Image.Image, int, dict[str, Any]]:
        """Decode an uploaded file within the limits and run the model once on it; return the number of its classes, and
        which boxes are explained: all that are predicted, or else the most certain one.

        Error messages do not contain the path of the file."""
        try:
            image = open_image(file or "", max_pixels=self.spec.max_pixels, check=self.jobs.check)
        except ImageError as error:  # its hint is for those who can raise the limit
            message = error.message.replace(repr(str(file)) + ": ", "this file: ")
            raise InputError(message, hint="choose another image") from error
        parameter = next(loaded.module.parameters(), None)
        x = loaded.prepare([image]).to(None if parameter is None else parameter.device)
        height, width = x.shape[-2:]
        if height * width > MAX_INPUT_PIXELS:
            message = f"the model would get {width} x {height} pixels, more than {MAX_INPUT_PIXELS}"
            raise InputError(message, hint="shrink the image")
        hint = "try another image or model"
        boxes = dict[str, Any]()
        try:
            if isinstance(loaded.module, Detector):
                found = loaded.module.find(x, 1)
                boxes = {"boxes": "predicted" if float(found.scores[0]) >= LEAST else 1}
                logits = loaded.module(x, place=found.places)
            else:
                logits = Classifier(loaded.module, output=loaded.output).logits(x)
        except (FringeError, StoppedError):
            raise
        except Exception as error:  # a model may raise anything
            if is_machine_error(error):
                raise
            message = f"the model cannot take an image of {width} x {height} pixels"
            raise InputError(message, hint=hint) from error
        if not bool(logits.isfinite().all()):
            raise InputError("the model's scores for this image are no finite numbers", hint=hint)
        return image, logits.shape[1], boxes

    # Results

    def _folder_of(self, owner: str) -> Path:
        return self._folder / sha256(owner.encode()).hexdigest()

    def _new_folder(self, owner: str, job: Job, kind: str) -> Path:
        """Make a folder for the files of a result; it replaces the owner's last one of this kind."""
        parent = self._folder_of(owner) / kind
        shutil.rmtree(parent, ignore_errors=True)
        folder = parent / secrets.token_hex(16)
        folder.mkdir(parents=True)
        job.check()  # an owner who leaves later removes the folder, so that nothing can be written
        return folder


def _write_explained(folder: Path, result: Attribution, name: str) -> Result:
    page, context = page_text(result), result.context
    (folder / f"{name}.html").write_text(page, encoding="utf-8")
    assert context is not None
    arrays: dict[str, Any] = {"values": result.values, "target": result.target}
    arrays |= {"input": context.inputs, "probabilities": context.probabilities}
    if context.boxes is None:
        arrays = {key: value[0] for key, value in arrays.items()}
    else:  # a row for each box
        arrays["boxes"] = context.boxes
    np.savez_compressed(folder / f"{name}.npz", **{key: value.cpu().numpy() for key, value in arrays.items()})
    result.plot(kind="overlay").savefig(folder / f"{name}.png")
    return Result(page_frame(page, name), tuple(folder / f"{name}{suffix}" for suffix in (".html", ".npz", ".png")))


def _write_compared(folder: Path, comparison: Comparison, titles: Mapping[str, str], name: str) -> Result:
    context = comparison.context
    assert context is not None
    maps = {row.label: row.maps[0].cpu().numpy() for row in comparison.rows if row.maps is not None}
    arrays: dict[str, Any] = {label.replace(":", "-"): values for label, values in maps.items()}
    inputs, target = context.inputs[0].numpy(), comparison.target[0].numpy()
    np.savez_compressed(folder / f"{name}.npz", **arrays, input=inputs, target=target)
    (folder / f"{name}.csv").write_text(comparison.tidy_scores.csv(), encoding="utf-8")
    comparison.plot().savefig(folder / f"{name}.png")
    files = tuple(folder / f"{name}{suffix}" for suffix in (".csv", ".npz", ".png"))
    return Result(comparison_html(comparison, titles), files)


def load_models(spec: AppSpec, class_names: Sequence[str] | None = None) -> dict[str, LoadedModel]:
    """Load the models that the app offers, by the name shown to people: NAME of NAME=SPEC, or the architecture.

    The specification is not shown, because it may contain a path of this machine."""
    models: dict[str, LoadedModel] = {}
    for text in spec.model or (SOURCE,):
        name, spec_of_model = split_label(text, r"[\w .-]+")
        loaded = load_model(
            spec_of_model,
            trust_code=spec.trust_code,
            preprocessing=spec.preprocessing,
            class_names=class_names,
            device=resolve_device(spec.device),
        )
        name = name or loaded.label
        if name in models:
            raise InputError(f"two models are called {name!r}", argument="model", hint=f"write {name}-2={text}")
        models[name] = loaded
    return models


def _samples(inputs: Sequence[str]) -> tuple[Sample, ...]:
    """The first images of the inputs, as PNG for the browser."""
    result: list[Sample] = []
    refs = list(find_inputs(inputs)) if inputs else []
    if len(refs) > MAX_SAMPLES:
        warn_caller(f"of {len(refs)} samples the first {MAX_SAMPLES} are offered")
    for ref in refs[:MAX_SAMPLES]:
        file = io.BytesIO()
        try:
            ref.open().image.save(file, format="PNG")
        except ValueError as error:
            warn_caller(f"sample left out: {error}")
            continue
        # the digit, or the file name without its class number
        title = f"digit {ref.label}" if isinstance(ref.origin, int) else re.sub(r"^[0-9]{1,5}_", "", ref.id)
        result.append(Sample(title.replace("_", " "), ref.id, file.getvalue()))
    return tuple(result)


def _name(file: str | None) -> str:
    """The stem of a file name, made safe for names of downloaded files. Raises InputError if there is no file."""
    if file is None:
        raise InputError("no image is chosen", hint="drop one into the field, or pick a sample")
    return _SAFE.sub("_", Path(file).stem).strip("._")[:60] or "image"


def _renamed(context: Context | None, name: str, model: str) -> Context:
    """The context with the names shown to people instead of specs, which may contain a path of this machine."""
    assert context is not None
    return replace(context, ids=(name,) * len(context.ids), model=model)
