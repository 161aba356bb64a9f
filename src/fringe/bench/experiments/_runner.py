"""Compute tasks: maps and scores of some images by one method, as they are stored."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from fringe._files.records import digest
from fringe._numbers.float64 import float64_on
from fringe._numbers.rng import KeyedGenerator
from fringe.baselines import InputSpace
from fringe.bench.experiments._manifest import (
    Manifest,
    Resolved,
    describe,
    first_logits,
    forward_arguments,
    open_entry,
    versions,
)
from fringe.bench.experiments._plan import PlanModel
from fringe.bench.experiments._records import Result, Status, StoredMap, results_of
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
from fringe.paths import Problem, token_length_of, verify

IMAGES_IN_MEMORY = 1024  # between the trials of a search: some 600 MB of 224 by 224 pixels


@dataclass(frozen=True)
class TaskResult:
    """The results of a task, one for each image but those that are ``left`` to a later run, by reason: the system
    failed, not the image. ``about`` is what the results share; ``reused`` is how many stored maps were scored."""

    about: Mapping[str, Any]
    results: list[Result]
    left: Mapping[str, str] = field(default_factory=dict[str, str])
    reused: int = 0

    @classmethod
    def failed(cls, task: Task, manifest: Manifest, reason: str) -> "TaskResult":
        """The result of a task whose process ends again and again."""
        made = {image: {"status": "failed", "error": reason} for image in task.images}
        return cls(task.about(manifest, versions(), ()), results_of(task.metric_keys, made, ()))


#: Images of one size that are explained together, by digest, and what all methods share of them.
_Batch = tuple[list[str], EvaluationContext]
#: Images of one size, by digest, with their truth where it is known.
_Opened = list[tuple[str, Tensor, Tensor | None]]
#: Images without a score, by digest: a status and why; no status where the reason may pass, and nothing is recorded.
_Failed = dict[str, tuple[Status | None, str]]


class TaskRunner:
    """Compute tasks of one plan; holds one model and the images of one task at a time. Before its first task it can be
    sent to another process. A result has its map if that is to be stored: of all with ``save_maps``, else of tasks that
    say so and of the images that the plan shows; ``device`` and ``batch_size`` shape no number."""

    def __init__(
        self,
        resolved: Resolved,
        *,
        device: str = "cpu",
        batch_size: int | Literal["auto"] = "auto",
        save_maps: bool = False,
    ):
        self.resolved, self.device, self._save_maps = resolved, torch.device(device), save_maps
        self.progress: Progress | None = None  # called as maps are made
        self._batch_size: int | Literal["auto"] = batch_size
        self._label = ""  # of the open model
        self._shard: tuple[Any, list[_Batch], _Failed] | None = None  # of the last images
        self._opened: dict[tuple[str, str], tuple[Tensor, Tensor | None]] | None = None

    def use(self, resolved: Resolved) -> None:
        """Compute tasks of a plan with other settings of the same methods; model and images stay in memory from now."""
        self.resolved, self._shard, self._opened = resolved, None, self._opened or {}

    def perform(self, task: Task, stored: Mapping[str, StoredMap] | None = None) -> TaskResult:
        """Compute a task: each image has a score or a reason under every metric, whatever failed, but for images that
        are left to a later run. Maps of its setting that are ``stored``, by image, are scored and not made again.

        Raises:
            FringeError: If the model cannot be used.
            TransientError: If the model or the reference images cannot be read now, or the device fails.
        """
        stored, current, saved = stored or {}, versions(), self._saved(task)
        groups, failed = self._images(task.model, task.images)
        left = {image: why for image, (status, why) in failed.items() if status is None}
        known = {image: {"status": status, "error": why} for image, (status, why) in failed.items() if status}
        scored, maps, reused = list[tuple[list[str], list[Scores]]](), dict[str, StoredMap](), list[str]()

        def evaluate(batch: _Batch) -> MethodResult:
            return self._evaluate(task, *batch, stored)

        def alone(batch: _Batch) -> list[_Batch]:
            return [([image], batch[1].select([i])) for i, image in enumerate(batch[0])]

        for (images, subject), row in one_by_one(groups, evaluate, lambda row: row.error, alone):
            if row.transient:
                left |= dict.fromkeys(images, str(row.error))
                continue
            scored.append((images, [row.scores[metric] for metric in task.metrics]))
            if row.maps is None and not row.errors:
                known |= {image: dict(stored[image].metadata) for image in images}
                reused += images
                continue
            metadata = _metadata(subject, row)
            known |= dict(zip(images, metadata, strict=True))
            if row.maps is not None:
                made = zip(images, row.maps, metadata, strict=True)
                maps |= {one: StoredMap(values, facts, current) for one, values, facts in made if one in saved}
        before = [dict(stored[image].versions) for image in sorted(reused)]
        before = [one for index, one in enumerate(before) if one not in before[:index]]
        known = {image: known[image] for image in task.images if image in known}
        about = task.about(self.resolved.manifest, current, before)
        count = sum(known[image]["status"] == "ok" for image in reused)
        return TaskResult(about, results_of(task.metric_keys, known, scored, maps), left, count)

    def _saved(self, task: Task) -> frozenset[str]:
        """The images of a task whose maps are stored if they are made."""
        plan, manifest = self.resolved.plan, self.resolved.manifest
        if self._save_maps or task.save:
            return frozenset(task.images)
        if not plan.shown or "control" in manifest.settings[task.model][task.method]["method"]:
            return frozenset()
        return frozenset(image["digest"] for image in manifest.images[: plan.shown])

    def subjects(self, model: str, images: Sequence[str]) -> list[EvaluationContext]:
        """Prepare those images (digests) that can be explained by a model, by size."""
        return [subject for _, subject in self._images(model, images)[0]]

    def first_explainable(self, model: str, images: Iterable[str]) -> tuple[str, EvaluationContext]:
        """The first image (digest) that can be explained by a model, prepared alone. Raises FringeError if there is
        none, with the reason of the last."""
        reason = "none of those that were drawn can be read"
        for image in images:
            batches, failed = self._images(model, (image,))
            if batches:
                return image, batches[0][1]
            reason = failed[image][1]
        raise FringeError(f"images: {reason}")

    def _evaluate(
        self, task: Task, images: list[str], subject: EvaluationContext, stored: Mapping[str, StoredMap]
    ) -> MethodResult:
        """The result of a batch, without maps where those that are stored were scored; of one that failed by an error
        that may pass, nothing is recorded."""
        plan, model = self.resolved.plan, self.resolved.plan.model(task.model)
        candidate = next(candidate for candidate in plan.candidates(model) if candidate.label == task.method)
        metrics = {label: plan.metrics[label] for label in task.metrics}
        try:
            with self._classifier.session(subject.problem.inputs.device):
                evaluator = Evaluator(subject, [candidate], metrics, self.progress)
                return _evaluate_stored(evaluator, images, stored) or evaluator.row(candidate)
        except Exception as error:
            _stop_at_device_error(error, f"{task.method} on {task.model}")
            size, passes_by = len(images), is_transient(error)
            text = first_line(error) if passes_by else f"{type(error).__name__}: {first_line(error)}"
            empty = Scores(torch.full((size,), torch.nan, dtype=torch.float64))
            scores, failed = dict.fromkeys(task.metrics, empty), ("failed",) * size
            return MethodResult(
                candidate.label, candidate.control, {}, scores, failed, errors=(text,) * size, transient=passes_by
            )

    def _open(self, label: str) -> None:
        """Load a model, with what all of its images share."""
        if self._label == label:
            return
        self._label, self._shard, plan = "", None, self.resolved.plan
        model = plan.model(label)
        loaded = self._loaded = self._load(model)
        low, high = loaded.preprocessing.bounds()
        required = any(method.uses_references for method in model.methods.values())
        references = open_references(
            self.resolved.references, lambda entry: open_entry(entry, loaded, plan.exif)[0], required=required
        )
        self._classifier = Classifier(
            loaded.module, score=plan.score, output=loaded.output, batch_size=self._batch_size
        )
        self._bounds = low.to(self.device), high.to(self.device)
        self._references = {shape: stacked.to(self.device) for shape, stacked in references.items()}
        self._label = label

    def _load(self, model: PlanModel) -> LoadedModel:
        """Load a model of the plan. Raises FringeError if it is not the one that the run began with."""
        exif, first = self.resolved.plan.exif, self.resolved.logits.get(model.label)
        try:
            loaded = model.load(self.device)
        except Exception as error:
            if not is_transient(error):
                raise
            raise TransientError(f"model {model.label!r}: {first_line(error)}") from error
        if digest(describe(loaded, exif)) != self.resolved.manifest.model_key(model.label):
            raise FringeError(f"model {model.label!r}: its weights changed since the run began; run it again")
        if first is not None:
            pictures = [self.resolved.pictures[image] for image in first.values if image in self.resolved.pictures]
            now = first_logits(loaded, pictures, exif, self.device)
            if first.differing(now.values, same_device=self.device.type == "cpu"):
                raise FringeError(f"model {model.label!r}: what it computes changed since the run began; run it again")
        return loaded

    def _images(self, model: str, images: Sequence[str]) -> tuple[list[_Batch], _Failed]:
        """Open the images of a task; they are cached for the next task, which usually has the same ones."""
        self._open(model)
        name, opened, failed = (model, tuple(images)), dict[tuple[int, ...], _Opened](), _Failed()
        if self._shard is not None and self._shard[0] == name:
            return self._shard[1:]
        for image in images:
            try:
                x, truth = self._image(image)
                opened.setdefault(tuple(x.shape), []).append((image, x, truth))
            except FringeError as error:
                failed[image] = None if is_transient(error) else "unreadable", str(error)
        batches = list[_Batch]()
        # an image that the model refuses must not cost the others theirs
        parts = one_by_one(
            opened.values(), self._batch, lambda made: made[0] is None, lambda group: [[i] for i in group]
        )
        for _, (batch, reasons) in parts:
            batches += [] if batch is None else [batch]
            failed |= reasons
        passing = any(status is None for status, _ in failed.values())  # the next task looks again
        self._shard = None if passing else (name, batches, failed)
        return batches, failed

    def _image(self, image: str) -> tuple[Tensor, Tensor | None]:
        name, opened = (self._label, image), self._opened or {}
        picture, exif = self.resolved.pictures[image], self.resolved.plan.exif
        result = opened[name] if name in opened else open_entry(picture, self._loaded, exif)
        if self._opened is not None and len(self._opened) < IMAGES_IN_MEMORY:
            self._opened[name] = result
        return result

    def _batch(self, group: _Opened) -> tuple[_Batch | None, _Failed]:
        """Images of one size with what all methods share of them, and why some of them or all cannot be explained."""
        classifier, plan = self._classifier, self.resolved.plan
        images, x = [image for image, _, _ in group], torch.stack([x for _, x, _ in group]).to(self.device)
        masks, failed = {image: truth for image, _, truth in group if truth is not None}, _Failed()
        try:
            with classifier.session(x.device):
                arguments = forward_arguments([self.resolved.pictures[image] for image in images], self.device)
                logits = classifier.logits(x, arguments, as_given=True)
                faults = [self._fault(image, row) for image, row in zip(images, logits, strict=True)]
                failed |= {i: ("failed", fault) for i, fault in zip(images, faults, strict=True) if fault}
                valid = [i for i, fault in enumerate(faults) if not fault]
                if not valid:
                    return None, failed
                x, logits, images = x[valid], logits[valid], [images[i] for i in valid]
                bounds = self._bounds if x.dim() == 4 else (None, None)
                problem = Problem(
                    *(classifier, x, logits, classifier.resolve_target(self._target(images), logits)),
                    ids=tuple(self.resolved.pictures[image].key for image in images),
                    rng=KeyedGenerator(plan.seed),
                    domain=InputSpace(*bounds, self._references.get(tuple(x.shape[1:]))),
                    forward_args=arguments.select(torch.tensor(valid, device=self.device)),
                    token_length=token_length_of(classifier),
                )
                candidates = plan.candidates(plan.model(self._label))
                methods = [one.method for one in candidates if one.method is not None and one.method.uses_gradients]
                has_sum = all(method.is_complete or method.innermost.is_complete for method in methods)
                verify(problem, {method.jvp_use(problem) for method in methods}, has_sum=has_sum)
        except Exception as error:  # a size that the model cannot take, an output that is no logits
            if is_misread(error):
                raise
            status, reason = None if is_transient(error) else "failed", str(error)
            if not isinstance(error, TargetError):
                _stop_at_device_error(error, f"model {self._label!r}")
                shape = f"the model cannot take an input of shape {tuple(x.shape[1:])}: " if status else ""
                reason = f"{shape}{model_error(error)}"
            return None, failed | dict.fromkeys(images, (status, reason))
        truth = torch.stack([masks[image] for image in images]).to(x.device) if masks else None
        return (images, EvaluationContext(problem, truth)), failed

    def _fault(self, image: str, logits: Tensor) -> str | None:
        """Why an image cannot be explained, or None."""
        if not logits.isfinite().all():
            return "the model's logits for this image are NaN or infinite"
        if self.resolved.plan.target != "label":
            return None
        if (label := self.resolved.pictures[image].ref.label) is None:
            return "target 'label': the file name gives no label, such as 284 in 0284_cat.jpg"
        return None if label < len(logits) else f"label {label} does not fit a model of {len(logits)} classes"

    def _target(self, images: Sequence[str]) -> Any:
        entries, target = [self.resolved.pictures[image] for image in images], self.resolved.plan.target
        known = [entry.target for entry in entries if entry.label or target == "predicted"]  # "no object" is no answer
        if target == "label" and not known:
            known = [entry.ref.label for entry in entries]
        return torch.tensor(known, device=self.device) if known and None not in known else target


def _evaluate_stored(evaluator: Evaluator, images: list[str], stored: Mapping[str, StoredMap]) -> MethodResult | None:
    """Score the stored maps of a batch; None where one is missing, of another class, or with an error: all are made."""
    known = [stored[image] for image in images if image in stored and not stored[image].metadata.get("error")]
    metadata = [one.metadata for one in known]
    if [one["target"] for one in metadata] != evaluator.subject.problem.target.tolist():
        return None
    faults = tuple("" if one["status"] == "ok" else str(one["status"]) for one in metadata)
    columns = [dict(one.get("diagnostics", ())) for one in metadata]
    names = columns[0].keys()  # of one method, so the same for all
    diagnostics = {name: torch.tensor([one[name] for one in columns], dtype=torch.float64) for name in names}
    values = torch.stack([one.values for one in known]).to(evaluator.subject.problem.inputs.device)
    candidate = evaluator.candidates[0]
    scores = evaluator.score_maps(candidate, values, diagnostics, faults)
    return MethodResult(candidate.label, candidate.control, {}, scores, faults)


def _metadata(subject: EvaluationContext, row: MethodResult) -> list[dict[str, Any]]:
    """What holds for each image under a method, whatever the metric."""
    target, logits, made = subject.problem.target, subject.problem.logits, row.attribution
    with float64_on(logits.device):
        confidence = logits.double().softmax(1).gather(1, target[:, None])[:, 0].tolist()
    size = len(target)
    shared = {name: getattr(row.passes, name) / size for name in ("forward", "jvp", "vjp")}
    shared |= {"error": row.error, "seconds": row.seconds / size, "batch": size}
    metadata: list[dict[str, Any]] = [
        {"target": label, "confidence": probability, "status": fault or "ok", **shared}
        for label, probability, fault in zip(target.tolist(), confidence, row.faults, strict=True)
    ]
    if made is not None:
        residual, ends = made.completeness_residual, {"endpoint_score": made.endpoint_score, "input_score": made.score}
        of_maps = {**made.diagnostics, "completeness_residual": residual, **ends}
        columns = zip(*(map(float, column.tolist()) for column in of_maps.values()), strict=True)
        for of_image, verdict, values in zip(metadata, made.verdict, columns, strict=True):
            of_image |= {"verdict": verdict, "diagnostics": list(zip(of_maps, values, strict=True))}
    return metadata


def _stop_at_device_error(error: Exception, where: str) -> None:
    """Raise TransientError if the device failed: everything it is asked for next would fail, too."""
    cause: BaseException | None = error
    while cause is not None:
        if is_device_error(cause):
            raise TransientError(f"{where}: the device failed ({first_line(cause)})") from error
        cause = cause.__cause__
