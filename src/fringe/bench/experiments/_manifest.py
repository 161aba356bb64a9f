"""Manifests: the weights, images and settings that a plan stands for, as they are stored beside the results, and the
keys made of them."""

import hashlib
import json
import math
import platform
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

import fringe
from fringe._files.records import digest
from fringe._network.arguments import ForwardArguments
from fringe.bench.experiments._plan import Plan, refuse_lookalikes, written_code
from fringe.bench.experiments._spec import options_of
from fringe.bench.scenes import Example, Scene
from fringe.classifier import Classifier
from fringe.data import ImageError, ImageRef, find_inputs
from fringe.detection import Detector, as_detector, read_boxes
from fringe.errors import FringeError, InputError, TargetError, TransientError, first_line, is_misread, is_transient
from fringe.inputs import (
    ImageEntry,
    ImageSample,
    choose_references,
    content_digest,
    find_images,
    given_images,
    in_order,
    open_image_entry,
    predicted_boxes,
    sample_images,
)
from fringe.models import Answers, LoadedModel, rounding_of

#: Increase this number when a change of the library changes numbers that are stored under the same keys.
SCHEMA = 1


def map_setting(
    model: Mapping[str, Any],
    method: Mapping[str, Any],
    target: str | int,
    score: str,
    seed: int,
    references: tuple[str, ...] | None = None,
    code: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Everything but the image that shapes a method's map, as plain JSON data; its :func:`digest` is the key. Neither
    the batch size, the device nor the engine is in it: they move a number by rounding alone.

    ``model`` holds its architecture, the digests of weights and structure, and the preprocessing with the rule for
    turned photos; ``method`` its record; ``references`` the digests of the reference images, for a method that uses
    them; ``code`` the digest of a method of the user's own; ``more`` further options that change maps and have not
    their defaults.
    """
    setting = {"model": model, "method": method, "target": target, "score": score, "seed": seed}
    setting |= {"code": code} if code else {}
    setting |= {"references": references, "dtype": "float32", "schema": SCHEMA, **more}
    return json.loads(json.dumps(setting, default=_as_plain))


def _as_plain(value: Any) -> Any:
    """An array as lists. Raises InputError for another setting that JSON does not hold."""
    if hasattr(value, "tolist"):
        return value.tolist()
    hint = "its record must be plain data: numbers, texts, lists and tables of them"
    raise InputError(f"a setting of type {type(value).__name__} cannot be stored", argument="methods", hint=hint)


#: Parts of a plan that may gain entries, and at how many levels.
_GROWS = {"models": 1, "preprocessing": 1, "model_output": 1, "metrics": 1, "scenes": 1, "methods": 2}


def without_growth(previous: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """``new`` without all that a plan may gain in its folder: images, models, methods and metrics. The run may go on if
    this is ``previous``."""
    parts = [part for part in _GROWS if part in previous and part in new]
    shared = {part: _known(previous[part], new[part], _GROWS[part]) for part in parts}
    limits = {
        part: _not_raised(previous, new, part, of) for part, of in (("limits", "metrics"), ("examples", "scenes"))
    }
    plain = {name: value for name, value in new.items() if name not in limits}
    some = {part: known for part, known in limits.items() if known or part in previous}
    return {**plain, **shared, **some, "n": min(previous["n"], new["n"])}


def _known(previous: Mapping[str, Any], new: Mapping[str, Any], levels: int) -> Any:
    """``new`` without entries that ``previous`` has not."""
    return {name: _known(previous[name], new[name], levels - 1) for name in new if name in previous} if levels else new


def _not_raised(previous: Mapping[str, Any], new: Mapping[str, Any], part: str, of: str) -> dict[str, int]:
    """The numbers of images to which metrics or scenes are limited: those of ``previous``, but the smaller ones."""
    result = dict[str, int]()
    for name in previous.get(of, ()):
        before, now = (min(plan.get(part, {}).get(name, plan["n"]), plan["n"]) for plan in (previous, new))
        limiting = (previous if now >= before else new).get(part, {})
        result |= {name: limiting[name]} if name in limiting else {}
    return result


#: Images whose logits are stored for each model.
IMAGES_WITH_LOGITS = 4


def first_logits(
    model: LoadedModel,
    pictures: Iterable[ImageEntry],
    exif: Literal["transpose", "ignore"],
    device: str | torch.device = "cpu",
) -> Answers:
    """Compute the logits of the first images that can be opened; one NaN where the model does not take an image.
    Raises TransientError if memory or the device fails."""
    classifier, logits = Classifier(model.module, output=model.output), dict[str, Tensor]()
    for picture in pictures:
        if len(logits) == IMAGES_WITH_LOGITS:
            break
        try:
            x, _ = open_entry(picture, model, exif)
        except FringeError:  # its row will say why it has no score
            continue
        try:
            answer = classifier.logits(x[None].to(device), forward_arguments([picture], device))
            logits[picture.digest] = answer[0].float().cpu()
        except Exception as error:  # a model may raise nearly anything; the rows will say what
            if is_misread(error):
                raise
            if is_transient(error):
                raise TransientError(f"model {model.spec!r}: {first_line(error)}") from error
            logits[picture.digest] = torch.full((1,), math.nan)
    return Answers(logits, rounding_of(model.module))


@dataclass(frozen=True, kw_only=True)
class ExampleEntry(ImageEntry):
    """An ``example`` that a ``scene`` makes, and the digests of the images it is made of (``parts``)."""

    scene: Scene
    example: Example
    parts: tuple[str, ...]


def sample_examples(
    scenes: Mapping[str, Scene],
    networks: Mapping[str, Sequence[LoadedModel]],
    images: Sequence[ImageRef],
    counts: Mapping[str, int],
    seed: int,
    exclude: Iterable[str],
    digest: Callable[[Any], str],
) -> ImageSample:
    """Draw the examples of each scene: ``counts[label]`` of them, for all of its ``networks``, made of ``images`` in
    their order without those whose digests are in ``exclude``.

    The name of an example is the ``digest`` of the settings of its scene, the example, and the content of
    its images. Raises InputError if a scene has fewer examples.
    """
    excluded, contents, entries = set(exclude), dict[str, str](), list[ExampleEntry]()
    if excluded:
        images = [ref for ref in images if content_digest(ref) not in excluded]
    for label, scene in scenes.items():
        for example in scene.examples(networks[label], images, counts[label], seed):
            for source in example.images:
                if source not in contents:
                    contents[source] = content_digest(next(find_inputs([source])))
            parts = tuple(contents[source] for source in example.images)
            what = {**asdict(example), "images": parts, "settings": scene.record()}  # not where the images lie
            ref = ImageRef(f"{label}-{example.id}", f"scene {label}: {example.id}", None, -1)
            made: dict[str, Any] = {"scene": scene, "example": example, "parts": parts}
            made |= {"place": example.values["place"]} if scene.has_boxes else {}
            entries.append(ExampleEntry(ref, digest(what), label, example.cluster, example.target, **made))
    return ImageSample(tuple(entries), ())


def open_entry(
    picture: ImageEntry, model: LoadedModel, exif: Literal["transpose", "ignore"]
) -> tuple[Tensor, Tensor | None]:
    """The model's input (C, H, W), and for an example of a scene the pixels (H, W) that the model uses (other kinds:
    :meth:`fringe.bench.scenes.Scene.make`). Raises as :func:`open_image_entry` does."""
    if not isinstance(picture, ExampleEntry):
        return open_image_entry(picture, model.preprocessing, exif), None
    try:
        x, truth = picture.scene.make(picture.example, model)
        now = tuple(content_digest(next(find_inputs([source]))) for source in picture.example.images)
    except (ImageError, OSError) as error:
        raise TransientError(f"{picture.ref.source}: {error}") from error
    if now != picture.parts:
        raise TransientError(f"{picture.ref.source}: an image changed since the run began; run it again")
    return x, truth


def forward_arguments(pictures: Sequence[ImageEntry], device: torch.device | str) -> ForwardArguments:
    """Further arguments of the network for images: for boxes of a detector, their places."""
    places = [torch.tensor(one.place, device=device) for one in pictures if one.place is not None]
    return ForwardArguments.of(len(places), None, {"place": torch.stack(places)} if places else None)


@dataclass(frozen=True)
class Manifest:
    """What a plan stands for, as stored in the run folder; it is read without a model or an image.

    Attributes:
        plan: Record of the plan.
        images: Digest, id, source and label of each image, in the order of the sample.
        missing: Reasons for sampled images that could not be read.
        settings: What shapes the maps, by model and method.
        metrics: Metadata of each metric by label.
        models: Metadata of each model by label.
        versions: Library versions.
        scenes: By label, the title, source, answer and settings of each scene, and its networks: by label of the model,
            the given model, the number, and the gates.
    """

    plan: Mapping[str, Any]
    images: tuple[Mapping[str, Any], ...]
    missing: tuple[str, ...]
    settings: Mapping[str, Mapping[str, Any]]
    metrics: Mapping[str, Mapping[str, Any]]
    models: Mapping[str, Mapping[str, Any]]
    versions: Mapping[str, str]
    scenes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])

    @property
    def name(self) -> str:
        return self.plan["name"]

    def setting_key(self, model: str, method: str) -> str:
        return digest(self.settings[model][method])

    def model_key(self, model: str) -> str:
        """Name of a model in the settings: weights, structure and preprocessing, not its source."""
        return digest(_facts(self.models[model]))

    def scene_of(self, model: str) -> str | None:
        """Label of the scene that a model belongs to; None for one that was given."""
        return next((label for label, scene in self.scenes.items() if model in scene["networks"]), None)

    def positions(self, model: str, metric: str | None = None) -> Sequence[int]:
        """Where among the images those are that a model is explained on, or that a metric is computed on."""
        limit, scene = None if metric is None else self.metrics[metric]["limit"], self.scene_of(model)
        if scene is None:
            return range(len(self.images))[:limit]
        return [index for index, image in enumerate(self.images) if image["scene"] == scene][:limit]

    def images_of(self, model: str, metric: str | None = None) -> tuple[Mapping[str, Any], ...]:
        """The images that a model is explained on, or that a metric is computed on."""
        at = self.positions(model, metric)
        return self.images[: len(at)] if isinstance(at, range) else tuple(self.images[index] for index in at)

    def gates(self, model: str) -> tuple[Mapping[str, Any], ...]:
        """The gates of a model of a scene, with whether each ``holds``, and a ``text`` that says so."""
        scene = self.scene_of(model)
        return () if scene is None else tuple(self.scenes[scene]["networks"][model]["gates"])

    def failed_gates(self, model: str) -> list[str]:
        """A text for each gate of a model that does not hold."""
        return [gate["text"] for gate in self.gates(model) if not gate["holds"]]

    def record(self) -> dict[str, Any]:
        """As plain JSON data. Raises InputError for a setting that is none."""
        known = {name: value for name, value in vars(self).items() if value or name != "scenes"}
        return json.loads(json.dumps(known, default=_as_plain))

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Manifest":
        known: dict[str, Any] = {**record, "images": tuple(record["images"]), "missing": tuple(record["missing"])}
        return cls(**known)


@dataclass(frozen=True)
class Resolved:
    """A plan with its manifest and images; ``logits`` are those of a few images by model, if required."""

    plan: Plan
    manifest: Manifest
    pictures: Mapping[str, ImageEntry]
    references: tuple[ImageEntry, ...]
    logits: Mapping[str, Answers] = field(default_factory=dict[str, Answers])


#: Draws images: from the plan, the given images and the models by label, to the images of the plan and the references.
Draw = Callable[[Plan, Sequence[ImageRef], Mapping[str, LoadedModel]], tuple[ImageSample, tuple[ImageEntry, ...]]]


def resolve(plan: Plan, *, logits: bool = False, known: Collection[str] = (), draw: Draw | None = None) -> Resolved:
    """Load the models and sample the images of a plan; with ``logits``, compute those of the first few images on the
    CPU, and of those that are ``known`` before the others. ``draw`` samples in another way. Raises FringeError for a
    model or data that cannot be used."""
    refuse_lookalikes("metrics", plan.metrics)
    for model in plan.models:
        refuse_lookalikes("methods", model.methods)
    refs = list[ImageRef]()
    if plan.data or not plan.scenes:  # once: a folder may hold very many
        given = partial(find_inputs, on_error=lambda argument, error: None)  # a comparison reports such inputs itself
        refs = find_images(plan.data) if plan.sample else list(given(plan.data))
    loaded = {model.label: model.load(images=refs) for model in plan.models} if plan.scenes else {}
    drawn, references = (draw or _drawn)(plan, refs, loaded)
    loaded = loaded or {model.label: model.load() for model in plan.models}
    plan, drawn, loaded = _with_boxes(plan, drawn, loaded)
    metrics = dict[str, dict[str, Any]]()
    for label, metric in plan.metrics.items():
        described = {name: getattr(metric, name) for name in ("title", "direction", "unit", "space", "source")}
        used, code = metric.record(), written_code(metric)
        described |= {"summary": metric.aggregate, "settings": used, "key": digest([used, code] if code else used)}
        metrics[label] = {**described, "limit": plan.limit(label)}
    models = {label: {**_of_people(one), **describe(one, plan.exif)} for label, one in loaded.items()}
    manifest = Manifest(
        plan=plan.record(),
        images=tuple(picture.record() for picture in drawn.pictures),
        missing=drawn.missing,
        settings=_settings(plan, models, references),
        metrics=metrics,
        models=models,
        versions=versions(),
        scenes=_scenes(plan, refs, loaded),
    )
    ordered = sorted(drawn.pictures, key=lambda picture: picture.digest not in known)
    pictures = {model.label: [one for one in ordered if one.label == model.scene] for model in plan.models}
    first = {name: first_logits(one, pictures[name], plan.exif) for name, one in loaded.items()} if logits else {}
    for label, answers in first.items():  # refuse it now: every score would fail later
        classes = {len(values) for values in answers.values.values() if bool(values.isfinite().all())}
        if isinstance(plan.target, int) and classes and plan.target >= max(classes):
            message = f"class {plan.target} does not exist; the model {label} has classes 0 to {max(classes) - 1}"
            raise TargetError(message, argument="target")
    return Resolved(plan, manifest, {picture.digest: picture for picture in drawn.pictures}, references, first)


def _drawn(
    plan: Plan, refs: Sequence[ImageRef], loaded: Mapping[str, LoadedModel]
) -> tuple[ImageSample, tuple[ImageEntry, ...]]:
    """The images of a plan, sampled of ``refs`` or made by its scenes, and the references."""
    given = refs if plan.references is None else find_images([plan.references], "references")
    if not plan.sample and given == refs and len(refs) == 1:  # a single given image is no reference for itself
        given = []
    references = choose_references(given, plan.seed)
    if not plan.sample:
        return given_images(refs, plan.n, plan.exclude), references
    if not plan.scenes:
        how = {"holdout": plan.holdout, "labels": plan.target == "label"}
        return sample_images(plan.data, plan.n, plan.seed, plan.exclude, refs=refs, **how), references
    networks = {label: [loaded[model.label] for model in plan.models if model.scene == label] for label in plan.scenes}
    counts = {label: plan.limit(label) for label in plan.scenes}
    images = in_order(refs if any(scene.requires_images for scene in plan.scenes.values()) else [], plan.seed)
    return sample_examples(plan.scenes, networks, images, counts, plan.seed, plan.exclude, digest), references


def _with_boxes(
    plan: Plan, drawn: ImageSample, loaded: Mapping[str, LoadedModel]
) -> tuple[Plan, ImageSample, Mapping[str, LoadedModel]]:
    """Replace the photographs of a given detector by its boxes, of each of them; other plans are as they were. A
    photograph without such a box is missing. Raises InputError where there are several models, whose boxes differ."""
    detectors = [label for label, one in loaded.items() if isinstance(one.module, Detector)]
    if plan.scenes or not (detectors or plan.boxes):
        if plan.boxes:
            raise InputError("got boxes with a scene, which chooses its own", argument="boxes", hint="leave it out")
        return plan, drawn, loaded
    if len(loaded) > 1:
        hint = "run each detector alone, in a folder of its own"
        raise InputError("the boxes of one model are not those of another", argument="model", hint=hint)
    plan = replace(plan, boxes=plan.boxes or "predicted")
    ((label, model),) = loaded.items()
    model, asked = replace(model, module=as_detector(model.module, required=True)), read_boxes(plan.boxes or "")
    if isinstance(asked, Tensor) and len(drawn.pictures) > 1:
        message = f"got boxes for {len(drawn.pictures)} images"
        raise InputError(message, argument="boxes", hint="give one image at a time, or how many boxes of each")
    entries, missing = list[ImageEntry](), list(drawn.missing)
    for picture in drawn.pictures:
        try:
            boxes, model = predicted_boxes(model, picture.ref, asked, plan.exif)
        except (ImageError, InputError) as error:
            missing.append(f"{picture.ref.source}: {error}")
            continue
        for box in boxes:
            at = box.place.tolist()
            name = f"{picture.digest}-box:{digest(at)[:16]}"  # whatever else is explained
            entries.append(ImageEntry(replace(picture.ref, id=box.name), name, "", box.photograph, box.label, at))
    return replace(plan, n=max(1, len(entries))), ImageSample(tuple(entries), tuple(missing)), {label: model}


def _scenes(plan: Plan, refs: Sequence[ImageRef], loaded: Mapping[str, LoadedModel]) -> dict[str, dict[str, Any]]:
    """What is stored of the scenes; their gates are measured here."""
    result: dict[str, dict[str, Any]] = {}
    for label, scene in plan.scenes.items():
        images = refs if scene.requires_images else []
        networks = dict[str, dict[str, Any]]()
        for model in (model for model in plan.models if model.scene == label):
            gates = [
                {**asdict(gate), "holds": gate.holds, "text": str(gate)}
                for gate in scene.gates(loaded[model.label], model.load_given(), images)
            ]
            networks[model.label] = {"given": model.given, "number": model.number, "gates": gates}
        texts = {name: getattr(scene, name) for name in ("title", "source", "answer")}
        result[label] = {**texts, "settings": scene.record(), "networks": networks}
    return result


def with_methods(resolved: Resolved, plan: Plan) -> Resolved:
    """Resolve a plan that differs from a resolved one in its methods alone; no model is loaded and no image read."""
    settings = _settings(plan, resolved.manifest.models, resolved.references)
    return replace(resolved, plan=plan, manifest=replace(resolved.manifest, plan=plan.record(), settings=settings))


def versions() -> dict[str, str]:
    """Versions of what shapes the numbers: this library, PyTorch, NumPy, Python, and loaded libraries of models and
    methods."""
    known = {"fringe": fringe.__version__, "torch": str(torch.__version__), "numpy": np.__version__}
    optional = ("torchvision", "timm", "transformers", "captum", "zennit", "lxt")
    loaded = {name: sys.modules[name] for name in optional if name in sys.modules}
    more = {name: str(getattr(module, "__version__", "unknown")) for name, module in loaded.items()}
    return {**known, "python": platform.python_version(), **more}


def _of_people(model: LoadedModel) -> dict[str, Any]:
    """The facts about a model that change no number."""
    return {"spec": model.spec, **({"class_names": list(model.class_names)} if model.class_names else {})}


def _facts(model: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`describe` says of a stored model."""
    return {name: value for name, value in model.items() if name not in ("spec", "class_names")}


def describe(model: LoadedModel, exif: str) -> dict[str, Any]:
    """The facts about a model that change numbers; with how its output is read, where that was given."""
    return {
        "architecture": model.architecture,
        "weights": model.digest[:32],
        "structure": hashlib.sha256(str(model.module).encode()).hexdigest()[:32],
        "preprocessing": {**model.preprocessing.record(), "exif": exif},
        **({} if model.output == "auto" else {"output": model.output}),
    }


def _settings(
    plan: Plan, models: Mapping[str, Mapping[str, Any]], references: tuple[ImageEntry, ...]
) -> dict[str, dict[str, dict[str, Any]]]:
    """What shapes the maps, by model and method."""
    digests, defaults = tuple(picture.digest for picture in references), options_of("maps")
    more = {name: plan.more[name] for name, default in defaults.items() if plan.more.get(name, default) != default}
    return {
        model.label: {
            candidate.label: map_setting(
                model=_facts(models[model.label]),
                method=candidate.record(),
                target="example" if model.scene else plan.target,
                score=plan.score,
                seed=plan.seed,
                references=digests if candidate.method is not None and candidate.method.uses_references else None,
                code=written_code(candidate.method),
                **more,
            )
            for candidate in plan.candidates(model)
        }
        for model in plan.models
    }
