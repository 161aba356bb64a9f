"""Compute tasks: maps and scores of some images by one method, as records."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from fringe._float64 import float64_on
from fringe._records import digest
from fringe._rng import KeyedGenerator
from fringe.baselines import InputSpace
from fringe.bench.experiments._manifest import ExampleEntry, Resolved, describe, first_logits, open_entry, versions
from fringe.bench.experiments._plan import PlanModel
from fringe.bench.experiments._records import ScoreRecord, Status, StoredMap
from fringe.bench.experiments._tasks import Task
from fringe.classifier import Classifier
from fringe.errors import (
    FringeError,
    TargetError,
    TransientError,
    first_line,
    is_device_error,
    is_misread,
    is_transient,
    model_error,
)
from fringe.evaluation import Evaluator, MethodResult, Progress, one_by_one
from fringe.inputs import open_references
from fringe.metrics import EvaluationContext, Scores
from fringe.models import LoadedModel
from fringe.paths import Problem, verify

IMAGES_IN_MEMORY = 1024  # between the trials of a search: some 600 MB of 224 by 224 pixels


@dataclass(frozen=True)
class TaskResult:
    """The result of a task: records of its scores; the maps that were made, by image digest; and reasons by image for
    those that are ``left`` to a later run: the system failed, not the image."""

    rows: list[ScoreRecord]
    maps: dict[str, StoredMap]
    left: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class _Evaluated:
    """Scores of a batch by metric; by image, why it has none and the metadata that holds for every metric; and the
    maps that were made."""

    scores: Mapping[str, Scores]
    faults: tuple[str, ...]
    metadata: Sequence[Mapping[str, Any]]
    maps: Tensor | None = None


@dataclass(frozen=True)
class _ModelContext:
    """A model ready to be used, with the bounds and references of its inputs."""

    label: str
    loaded: LoadedModel
    classifier: Classifier
    bounds: tuple[Tensor, Tensor]
    references: Mapping[tuple[int, ...], Tensor]


@dataclass(frozen=True)
class _ImageBatch:
    """Images of one size that are explained together; ``subject`` caches what all methods share."""

    images: list[str]
    subject: EvaluationContext
    confidence: list[float]

    def alone(self) -> list["_ImageBatch"]:
        """Each image in a batch of its own."""
        of_images = enumerate(zip(self.images, self.confidence, strict=True))
        return [_ImageBatch([image], self.subject.select([i]), [p]) for i, (image, p) in of_images]


@dataclass(frozen=True)
class _FailedImage:
    """An image without a score, and why; ``status`` is None where the reason may pass, so that nothing is recorded."""

    image: str
    status: Status | None
    error: str


class TaskRunner:
    """Compute tasks of one plan; holds one model and the images of one task at a time."""

    def __init__(self, resolved: Resolved, *, device: str = "cpu", batch_size: int | Literal["auto"] = "auto"):
        self._resolved, self._device = resolved, torch.device(device)
        self.progress: Progress | None = None  # called as maps are made
        self._batch_size: int | Literal["auto"] = batch_size
        self._records = {image["digest"]: image for image in resolved.manifest.images}
        self._context: _ModelContext | None = None
        self._shard: tuple[Any, list[_ImageBatch], list[_FailedImage]] | None = None
        self._opened: dict[tuple[str, str], tuple[Tensor, Tensor | None]] | None = None

    def use(self, resolved: Resolved) -> None:
        """Compute tasks of a plan with other settings of the same methods; model and images stay in memory from now."""
        self._resolved, self._shard, self._opened = resolved, None, self._opened or {}

    def perform(self, task: Task, stored: Mapping[str, StoredMap] | None = None) -> TaskResult:
        """Compute a task: a record for every image and metric, whatever failed, but for images that are left to a later
        run. Maps of its setting that are ``stored``, by image, are scored and not made again.

        Raises:
            FringeError: If the model cannot be used.
            TransientError: If the model or the reference images cannot be read now, or the device fails.
        """
        context = self._open(task.model)
        groups, failed = self._images(context, task.images)
        rows = [
            self._row(task, one.image, metric, status=one.status, error=one.error)
            for one in failed
            if one.status is not None
            for metric in task.metrics
        ]
        maps, current = dict[str, StoredMap](), versions()
        left = {one.image: one.error for one in failed if one.status is None}

        def evaluate(group: _ImageBatch) -> _Evaluated | str:
            return self._evaluate(context, task, group, stored or {})

        def failed_why(evaluated: _Evaluated | str) -> str | None:
            return evaluated if isinstance(evaluated, str) else evaluated.metadata[0].get("error")

        for group, evaluated in one_by_one(groups, evaluate, failed_why, _ImageBatch.alone):
            if isinstance(evaluated, str):
                left |= dict.fromkeys(group.images, evaluated)
            else:
                of_images = list(zip(group.images, evaluated.metadata, evaluated.faults, strict=True))
                rows += [
                    self._row(task, image, metric, **{**metadata, **_score(evaluated.scores[metric], at, fault)})
                    for metric in task.metrics
                    for at, (image, metadata, fault) in enumerate(of_images)
                ]
                if evaluated.maps is not None:
                    made = zip(group.images, evaluated.maps, evaluated.metadata, strict=True)
                    maps |= {image: StoredMap(values, metadata, current) for image, values, metadata in made}
        return TaskResult(rows, maps, left)

    def subject(self, model: str, images: Sequence[str]) -> EvaluationContext:
        """Prepare images (digests) of one size to be explained by a model. Raises FringeError where one cannot be."""
        groups, failed = self._images(self._open(model), images)
        if failed or len(groups) != 1:
            raise FringeError(f"images: {failed[0].error if failed else 'they are of several sizes'}")
        return groups[0].subject

    def subjects(self, model: str, images: Sequence[str]) -> list[EvaluationContext]:
        """Prepare those images (digests) that can be explained by a model, by size."""
        return [group.subject for group in self._images(self._open(model), images)[0]]

    def _evaluate(
        self, context: _ModelContext, task: Task, group: _ImageBatch, stored: Mapping[str, StoredMap]
    ) -> _Evaluated | str:
        """The scores of a batch, or why they are left to a later run."""
        plan, model = self._resolved.plan, self._resolved.plan.model(task.model)
        candidate = next(candidate for candidate in plan.candidates(model) if candidate.label == task.method)
        metrics = {label: plan.metrics[label] for label in task.metrics}
        try:
            with context.classifier.session(group.subject.problem.inputs.device):
                evaluator = Evaluator(group.subject, [candidate], metrics, self.progress)
                if (scored := _evaluate_stored(evaluator, group, stored)) is not None:
                    return scored
                row = evaluator.row(candidate)
            if row.transient:
                return str(row.error)
        except Exception as error:
            _stop_at_device_error(error, f"{task.method} on {task.model}")
            if is_transient(error):
                return first_line(error)
            size, text = len(group.images), f"{type(error).__name__}: {first_line(error)}"
            empty = Scores(torch.full((size,), torch.nan, dtype=torch.float64))
            scores, faults = dict.fromkeys(task.metrics, empty), ("failed",) * size
            row = MethodResult(candidate.label, candidate.control, {}, scores, faults, errors=(text,) * size)
        metadata = [_image_metadata(group, row, index) for index in range(len(group.images))]
        return _Evaluated(row.scores, row.faults, metadata, row.maps)

    def _open(self, label: str) -> _ModelContext:
        if self._context is None or self._context.label != label:
            self._context = self._shard = None
            plan = self._resolved.plan
            model = plan.model(label)
            loaded = self._load(model)
            low, high = loaded.preprocessing.bounds()
            required = any(method.uses_references for method in model.methods.values())
            references = open_references(
                self._resolved.references, lambda entry: open_entry(entry, loaded, plan.exif)[0], required=required
            )
            self._context = _ModelContext(
                label,
                loaded,
                Classifier(loaded.module, score=plan.score, output=loaded.output, batch_size=self._batch_size),
                (low.to(self._device), high.to(self._device)),
                {shape: stacked.to(self._device) for shape, stacked in references.items()},
            )
        return self._context

    def _load(self, model: PlanModel) -> LoadedModel:
        """Load a model of the plan. Raises FringeError if it is not the one that the run began with."""
        exif, first = self._resolved.plan.exif, self._resolved.logits.get(model.label)
        try:
            loaded = model.source.load(self._device)
        except Exception as error:
            if not is_transient(error):
                raise
            raise TransientError(f"model {model.label!r}: {first_line(error)}") from error
        if digest(describe(loaded, exif)) != self._resolved.manifest.model_key(model.label):
            raise FringeError(f"model {model.label!r}: its weights changed since the run began; run it again")
        if first is not None:
            pictures = [self._resolved.pictures[image] for image in first.values if image in self._resolved.pictures]
            now = first_logits(loaded, pictures, exif, self._device)
            if first.differing(now.values, same_device=self._device.type == "cpu"):
                raise FringeError(f"model {model.label!r}: what it computes changed since the run began; run it again")
        return loaded

    def _images(self, context: _ModelContext, images: Sequence[str]) -> tuple[list[_ImageBatch], list[_FailedImage]]:
        """Open the images of a task; they are cached for the next task, which usually has the same ones."""
        name = (context.label, tuple(images))
        if self._shard is None or self._shard[0] != name:
            opened: dict[tuple[int, ...], list[tuple[str, Tensor, Tensor | None]]] = {}
            failed: list[_FailedImage] = []
            for image in images:
                try:
                    x, truth = self._image(context, image)
                    opened.setdefault(tuple(x.shape), []).append((image, x, truth))
                except FringeError as error:
                    failed.append(_FailedImage(image, None if is_transient(error) else "unreadable", str(error)))
            groups = [self._group(context, group, failed) for group in opened.values()]
            shard = (name, [group for group in groups if group is not None], failed)
            self._shard = None if any(one.status is None for one in failed) else shard  # the next unit looks again
            return shard[1], failed
        return self._shard[1], self._shard[2]

    def _image(self, context: _ModelContext, image: str) -> tuple[Tensor, Tensor | None]:
        name, opened = (context.label, image), self._opened or {}
        picture, exif = self._resolved.pictures[image], self._resolved.plan.exif
        result = opened[name] if name in opened else open_entry(picture, context.loaded, exif)
        if self._opened is not None and len(self._opened) < IMAGES_IN_MEMORY:
            self._opened[name] = result
        return result

    def _group(
        self, context: _ModelContext, group: list[tuple[str, Tensor, Tensor | None]], failed: list[_FailedImage]
    ) -> _ImageBatch | None:
        classifier, noise = context.classifier, KeyedGenerator(self._resolved.plan.seed)
        images, x = [image for image, _, _ in group], torch.stack([x for _, x, _ in group]).to(self._device)
        masks = {image: truth for image, _, truth in group if truth is not None}
        try:
            with classifier.session(x.device):
                logits = classifier.logits(x)
                faults = [self._fault(context, image, row) for image, row in zip(images, logits, strict=True)]
                failed += [_FailedImage(i, "failed", fault) for i, fault in zip(images, faults, strict=True) if fault]
                valid = [i for i, fault in enumerate(faults) if not fault]
                if not valid:
                    return None
                x, logits, images = x[valid], logits[valid], [images[i] for i in valid]
                target = classifier.resolve_target(self._target(images), logits)
                space = InputSpace(*context.bounds, context.references.get(tuple(x.shape[1:])))
                keys = tuple(self._resolved.pictures[image].key for image in images)
                problem = Problem(classifier, x, logits, target, ids=keys, rng=noise, domain=space)
                candidates = self._resolved.plan.candidates(self._resolved.plan.model(context.label))
                verify(problem, {one.method.jvp_use(problem) for one in candidates if one.method is not None})
        except TargetError as error:
            failed += [_FailedImage(image, "failed", str(error)) for image in images]
            return None
        except Exception as error:  # a size that the model cannot take, an output that is no logits
            if is_misread(error):
                raise
            _stop_at_device_error(error, f"model {context.label!r}")
            status, reason = None, model_error(error)
            if not is_transient(error):
                rest = [one for one in group if one[0] in images]
                alone = [self._group(context, [one], failed) for one in rest] if len(rest) > 1 else []
                if None in alone:  # an image that the model refuses must not cost the others theirs
                    taken = [one for one, batch in zip(rest, alone, strict=True) if batch is not None]
                    return self._group(context, taken, failed) if taken else None
                status, reason = "failed", f"the model cannot take an input of shape {tuple(x.shape[1:])}: {reason}"
            failed += [_FailedImage(image, status, reason) for image in images]
            return None
        with float64_on(x.device):
            confidence = logits.double().softmax(1).gather(1, target[:, None])[:, 0].tolist()
        truth = torch.stack([masks[image] for image in images]).to(x.device) if masks else None
        return _ImageBatch(images, EvaluationContext(problem, truth), confidence)

    def _fault(self, context: _ModelContext, image: str, logits: Tensor) -> str | None:
        """Why an image cannot be explained, or None."""
        if not logits.isfinite().all():
            return "the model's logits for this image are NaN or infinite"
        if self._resolved.plan.target != "label":
            return None
        if (label := self._resolved.pictures[image].ref.label) is None:
            return "target 'label': the file name gives no label, such as 284 in 0284_cat.jpg"
        return None if label < len(logits) else f"label {label} does not fit a model of {len(logits)} classes"

    def _target(self, images: Sequence[str]) -> Any:
        entries = [self._resolved.pictures[image] for image in images]
        examples = [entry.example for entry in entries if isinstance(entry, ExampleEntry)]
        if len(examples) == len(entries):
            return torch.tensor([example.target for example in examples], device=self._device)
        if self._resolved.plan.target != "label":
            return self._resolved.plan.target
        return torch.tensor([entry.ref.label for entry in entries], device=self._device)

    def _row(self, task: Task, image: str, metric: str, **fields: Any) -> ScoreRecord:
        empty: dict[str, Any] = {"target": None, "confidence": None, "score": None}
        return ScoreRecord(
            setting=task.setting,
            metric_key=task.metric_keys[task.metrics.index(metric)],
            image=image,
            model=task.model,
            method=task.method,
            metric=metric,
            image_id=self._records[image]["id"],
            label=self._records[image]["label"],
            **{**empty, **fields},
        )


def _evaluate_stored(evaluator: Evaluator, group: _ImageBatch, stored: Mapping[str, StoredMap]) -> _Evaluated | None:
    """Score the stored maps of a batch; None where one is missing, of another class, or with an error: all are made."""
    known = [stored[image] for image in group.images if image in stored and not stored[image].metadata.get("error")]
    metadata = [one.metadata for one in known]
    if [one["target"] for one in metadata] != group.subject.problem.target.tolist():
        return None
    faults = tuple("" if one["status"] == "ok" else str(one["status"]) for one in metadata)
    columns = [dict(one.get("diagnostics", ())) for one in metadata]
    names = columns[0].keys()  # of one method, so the same for all
    diagnostics = {name: torch.tensor([one[name] for one in columns], dtype=torch.float64) for name in names}
    values = torch.stack([one.values for one in known]).to(evaluator.subject.problem.inputs.device)
    return _Evaluated(evaluator.score_maps(evaluator.candidates[0], values, diagnostics, faults), faults, metadata)


def _image_metadata(group: _ImageBatch, row: MethodResult, index: int) -> dict[str, Any]:
    """What holds for an image under a method, whatever the metric."""
    size, evaluated, fault = len(group.images), row.attribution, row.faults[index]
    metadata: dict[str, Any] = {
        "target": int(group.subject.problem.target[index]),
        "confidence": group.confidence[index],
        "status": fault or "ok",
        "error": row.error,
        **{name: getattr(row.passes, name) / size for name in ("forward", "jvp", "vjp")},
        "seconds": row.seconds / size,
        "batch": size,
    }
    if evaluated is not None:
        diagnostics = {
            **evaluated.diagnostics,
            "completeness_residual": evaluated.completeness_residual,
            "endpoint_score": evaluated.endpoint_score,
            "input_score": evaluated.score,
        }
        metadata["verdict"] = evaluated.verdict[index]
        metadata["diagnostics"] = [(name, float(column[index])) for name, column in diagnostics.items()]
    return metadata


def _score(scores: Scores, index: int, fault: str) -> dict[str, Any]:
    if fault:
        return {"score": None}
    if scores.refusals and (reason := scores.refusals[index]):
        return {"score": None, "status": "failed", "error": reason}
    value = float(scores.values[index])
    return {
        "score": value if math.isfinite(value) else None,
        "flags": [name for name, flag in scores.flags.items() if bool(flag[index])],
        "extras": [(name, float(column[index])) for name, column in scores.details.items()],
        "curves": [(name, column[index].float().tolist()) for name, column in scores.curves.items()],
    }


def _stop_at_device_error(error: Exception, where: str) -> None:
    """Raise TransientError if the device failed: everything it is asked for next would fail, too."""
    cause: BaseException | None = error
    while cause is not None:
        if is_device_error(cause):
            raise TransientError(f"{where}: the device failed ({first_line(cause)})") from error
        cause = cause.__cause__
