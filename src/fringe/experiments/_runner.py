"""One unit after the other: maps and scores of some images by one method, as rows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from fringe._rng import KeyedGenerator
from fringe.baselines import InputSpace
from fringe.classifier import Classifier
from fringe.errors import FringeError, TargetError, TransientError, is_device_error, is_transient
from fringe.experiments._evaluator import Candidate, Contest, MethodResult
from fringe.experiments._images import open_picture, open_references
from fringe.experiments._manifest import Resolved, describe, digest, first_logits, load, versions
from fringe.experiments._plan import Arm
from fringe.experiments._records import ScoreRecord, Status, StoredMap
from fringe.experiments._tasks import Task
from fringe.metrics import EvaluationContext, Scores
from fringe.models import LoadedModel
from fringe.paths import Problem, verify


@dataclass(frozen=True)
class TaskResult:
    """What a unit came to: its rows, the maps that were made for it by image digest, and the images that are ``left``
    for another time by the reason, which is none of theirs."""

    rows: list[ScoreRecord]
    maps: dict[str, StoredMap]
    left: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class _Judged:
    """A group's scores by metric, and by image why it has none and what is true of it under every metric. ``maps``
    are those that were made."""

    scores: Mapping[str, Scores]
    faults: tuple[str, ...]
    facts: Sequence[Mapping[str, Any]]
    maps: Tensor | None = None


@dataclass(frozen=True)
class _Bench:
    """A model ready to work, and what is known of its inputs' space."""

    label: str
    loaded: LoadedModel
    classifier: Classifier
    bounds: tuple[Tensor, Tensor]
    references: Mapping[tuple[int, ...], Tensor]

    def space(self, x: Tensor) -> InputSpace:
        return InputSpace(*self.bounds, self.references.get(tuple(x.shape[1:])))


@dataclass(frozen=True)
class _Group:
    """Images of one size that are explained together. ``subject`` keeps what all methods share."""

    images: list[str]
    subject: EvaluationContext
    confidence: list[float]


@dataclass(frozen=True)
class _Broken:
    """An image without a score, and why; ``status`` None where that may pass, so that it is no result."""

    image: str
    status: Status | None
    error: str


class TaskRunner:
    """Performs units of one plan: holds one model and the images of one shard at a time."""

    def __init__(self, resolved: Resolved, *, device: str = "cpu", batch_size: int | Literal["auto"] = "auto"):
        self._resolved, self._device = resolved, torch.device(device)
        self._batch_size: int | Literal["auto"] = batch_size
        self._bench: _Bench | None = None
        self._shard: tuple[Any, list[_Group], list[_Broken]] | None = None

    def perform(self, unit: Task, kept: Mapping[str, StoredMap] | None = None) -> TaskResult:
        """Rows of every image and metric of the unit, whatever went wrong with some, but for images that trouble of the
        moment leaves to a later run. Raises FringeError where the model itself cannot be used, TransientError where the
        model or the reference images cannot be read now or the device fails. Maps of the unit's setting that are
        ``kept`` are scored, not made again."""
        bench = self._open(unit.model)
        groups, broken = self._images(bench, unit.images)
        rows = [
            self._row(unit, one.image, metric, status=one.status, error=one.error)
            for one in broken
            if one.status is not None
            for metric in unit.metrics
        ]
        maps, mine = dict[str, StoredMap](), versions()
        left = {one.image: one.error for one in broken if one.status is None}
        for group in groups:
            try:
                judged = self._judge(bench, unit, group, kept or {})
            except Exception as error:
                _stop_at_device_error(error, f"{unit.method} on {unit.model}")
                if not is_transient(error):
                    raise
                left |= dict.fromkeys(group.images, _first_line(error))
                continue
            rows += self._rows(unit, group, judged)
            if judged.maps is not None:
                made = zip(group.images, judged.maps, judged.facts, strict=True)
                maps |= {image: StoredMap(values, facts, mine) for image, values, facts in made}
        return TaskResult(rows, maps, left)

    def subject(self, model: str, images: Sequence[str]) -> EvaluationContext:
        """The images (digests, all of one size) of a model, ready to be explained. Raises FringeError where one cannot
        be."""
        groups, broken = self._images(self._open(model), images)
        if broken or len(groups) != 1:
            reason = broken[0].error if broken else "they are of several sizes"
            raise FringeError(f"images: {reason}")
        return groups[0].subject

    def _judge(self, bench: _Bench, unit: Task, group: _Group, kept: Mapping[str, StoredMap]) -> _Judged:
        plan = self._resolved.plan
        arm = next(arm for arm in plan.arms if arm.label == unit.model)
        entrant = next(entrant for entrant in plan.entrants(arm) if entrant.label == unit.method)
        metrics = {label: plan.metrics[label] for label in unit.metrics}
        try:
            with bench.classifier.session(group.subject.problem.inputs.device):
                contest = Contest(group.subject, [entrant], metrics, unit.metrics, None)
                mine = _of_group(group, kept)
                if mine is not None:
                    return _judge_kept(contest, mine)
                row = contest.rows(keep_maps=True)[0]
            if row.transient:
                raise TransientError(str(row.error))
        except Exception as error:  # a method's bug on some images must not cost the others theirs
            if is_transient(error):
                raise
            row = _failed(entrant, unit, len(group.images), error)
        facts = [_image_facts(group, row, place) for place in range(len(group.images))]
        return _Judged(row.scores, row.faults, facts, row.maps)

    def _open(self, label: str) -> _Bench:
        if self._bench is None or self._bench.label != label:
            self._bench = self._shard = None
            plan = self._resolved.plan
            arm = next(arm for arm in plan.arms if arm.label == label)
            loaded = self._load(arm)
            low, high = loaded.preprocessing.bounds()
            required = any(method.uses_references for method in arm.methods.values())
            references = open_references(self._resolved.references, loaded.preprocessing, plan.exif, required=required)
            self._bench = _Bench(
                label,
                loaded,
                Classifier(loaded.module, score=plan.score, batch_size=self._batch_size),
                (low.to(self._device), high.to(self._device)),
                {shape: stacked.to(self._device) for shape, stacked in references.items()},
            )
        return self._bench

    def _load(self, arm: Arm) -> LoadedModel:
        """The model of an arm. Raises FringeError where it is not the one that the run began with."""
        exif, first = self._resolved.plan.exif, self._resolved.logits.get(arm.label)
        try:
            loaded = load(arm, self._device)
        except Exception as error:
            if not is_transient(error):
                raise
            raise TransientError(f"model {arm.label!r}: {_first_line(error)}") from error
        if digest(describe(loaded, exif)) != self._resolved.manifest.model_key(arm.label):
            raise FringeError(f"model {arm.label!r}: its weights changed since the run began; run it again")
        if first is not None:
            pictures = [self._resolved.pictures[image] for image in first.values if image in self._resolved.pictures]
            now = first_logits(loaded, pictures, exif, self._device)
            if first.differing(now.values, same_device=self._device.type == "cpu"):
                raise FringeError(f"model {arm.label!r}: what it computes changed since the run began; run it again")
        return loaded

    def _images(self, bench: _Bench, images: Sequence[str]) -> tuple[list[_Group], list[_Broken]]:
        """The images of a unit, opened; kept for the next unit, which is likely to be of the same ones."""
        name = (bench.label, tuple(images))
        if self._shard is None or self._shard[0] != name:
            opened: dict[tuple[int, ...], list[tuple[str, Tensor]]] = {}
            broken: list[_Broken] = []
            for image in images:
                try:
                    x = self._prepare(bench, image)
                    opened.setdefault(tuple(x.shape), []).append((image, x))
                except FringeError as error:
                    status = None if is_transient(error) else "unreadable"
                    broken.append(_Broken(image, status, str(error)))
            groups = [self._group(bench, group, broken) for group in opened.values()]
            shard = (name, [group for group in groups if group is not None], broken)
            if any(one.status is None for one in broken):  # the next unit looks again
                self._shard = None
                return shard[1], broken
            self._shard = shard
        return self._shard[1], self._shard[2]

    def _prepare(self, bench: _Bench, image: str) -> Tensor:
        return open_picture(self._resolved.pictures[image], bench.loaded.preprocessing, self._resolved.plan.exif)

    def _group(self, bench: _Bench, group: list[tuple[str, Tensor]], broken: list[_Broken]) -> _Group | None:
        classifier, noise = bench.classifier, KeyedGenerator(self._resolved.plan.seed)
        images, x = [image for image, _ in group], torch.stack([x for _, x in group]).to(self._device)
        try:
            with classifier.session(x.device):
                logits = classifier.logits(x)
                faults = [self._fault(bench, image, row) for image, row in zip(images, logits, strict=True)]
                broken += [_Broken(i, "failed", fault) for i, fault in zip(images, faults, strict=True) if fault]
                sound = [i for i, fault in enumerate(faults) if not fault]
                if not sound:
                    return None
                x, logits, images = x[sound], logits[sound], [images[i] for i in sound]
                target = classifier.resolve_target(self._target(images), logits)
                space = bench.space(x)
                problem = Problem(classifier, x, logits, target, ids=tuple(images), rng=noise, domain=space)
                arm = next(arm for arm in self._resolved.plan.arms if arm.label == bench.label)
                classes = logits.shape[1]
                verify(problem, needs_jvp=any(method.needs_jvp(classes) for method in arm.methods.values()))
        except TargetError as error:
            broken += [_Broken(image, "failed", str(error)) for image in images]
            return None
        except Exception as error:  # a size that the model cannot take, an output that is no logits
            _stop_at_device_error(error, f"model {bench.label!r}")
            if is_transient(error):
                broken += [_Broken(image, None, _first_line(error)) for image in images]
                return None
            if not isinstance(error, (FringeError, RuntimeError)):
                raise
            reason = f"the model cannot take these inputs of shape {tuple(x.shape[1:])}: {str(error).splitlines()[0]}"
            broken += [_Broken(image, "failed", reason) for image in images]
            return None
        confidence = logits.double().softmax(1).gather(1, target[:, None])[:, 0].tolist()
        return _Group(images, EvaluationContext(problem), confidence)

    def _fault(self, bench: _Bench, image: str, logits: Tensor) -> str | None:
        """Why an image cannot be explained, if so."""
        if not logits.isfinite().all():
            return "the model's logits for this image are NaN or infinite"
        if self._resolved.plan.target != "label":
            return None
        label = self._resolved.pictures[image].ref.label
        if label is None:
            return "target 'label': the file name gives no label, such as 284 in 0284_cat.jpg"
        return None if label < len(logits) else f"label {label} does not fit a model of {len(logits)} classes"

    def _target(self, images: Sequence[str]) -> Any:
        if self._resolved.plan.target != "label":
            return self._resolved.plan.target
        return torch.tensor([self._resolved.pictures[image].ref.label for image in images], device=self._device)

    def _rows(self, unit: Task, group: _Group, found: _Judged) -> list[ScoreRecord]:
        """One row an image and metric of a group."""
        return [
            self._row(
                unit, image, metric, **found.facts[place], **_score(found.scores[metric], place, found.faults[place])
            )
            for metric in unit.metrics
            for place, image in enumerate(group.images)
        ]

    def _row(self, unit: Task, image: str, metric: str, **known: Any) -> ScoreRecord:
        about = next(i for i in self._resolved.manifest.images if i["digest"] == image)
        empty: dict[str, Any] = {"target": None, "confidence": None, "score": None}
        return ScoreRecord(
            setting=unit.setting,
            metric_key=unit.metric_keys[unit.metrics.index(metric)],
            image=image,
            model=unit.model,
            method=unit.method,
            metric=metric,
            image_id=about["id"],
            label=about["label"],
            **{**empty, **known},
        )


def _of_group(group: _Group, kept: Mapping[str, StoredMap]) -> list[StoredMap] | None:
    """The kept maps of a group, or None where one is missing or explains another class: then all are made."""
    mine = [kept[image] for image in group.images if image in kept]
    same = [one.facts["target"] for one in mine] == group.subject.problem.target.tolist()
    return mine if same else None


def _judge_kept(contest: Contest, mine: Sequence[StoredMap]) -> _Judged:
    facts = [one.facts for one in mine]
    faults = tuple("" if about["status"] == "ok" else str(about["status"]) for about in facts)
    reported = [dict(about.get("diagnostics", ())) for about in facts]
    names = reported[0].keys()  # of one method, so the same for all
    diagnostics = {name: torch.tensor([about[name] for about in reported], dtype=torch.float64) for name in names}
    values = torch.stack([one.values for one in mine]).to(contest.subject.problem.inputs.device)
    scores = contest.judge(contest.entrants[0], values, diagnostics, faults)
    return _Judged(scores, faults, facts)


def _image_facts(group: _Group, row: MethodResult, place: int) -> dict[str, Any]:
    """What is true of an image under a method, whatever the metric."""
    size, found = len(group.images), row.attribution
    fault: str = row.faults[place]
    facts: dict[str, Any] = {
        "target": int(group.subject.problem.target[place]),
        "confidence": group.confidence[place],
        "status": fault or "ok",
        "error": row.error,
        **{name: getattr(row.passes, name) / size for name in ("forward", "jvp", "vjp")},
        "seconds": row.seconds / size,
        "batch": size,
    }
    if found is not None:
        own = {
            **found.diagnostics,
            "completeness_residual": found.completeness_residual,
            "endpoint_score": found.endpoint_score,
            "input_score": found.score,
        }
        facts["verdict"] = found.verdict[place]
        facts["diagnostics"] = [(name, float(column[place])) for name, column in own.items()]
    return facts


def _score(scores: Scores, place: int, fault: str) -> dict[str, Any]:
    if fault:
        return {"score": None}
    value = float(scores.values[place])
    return {
        "score": value if math.isfinite(value) else None,
        "flags": [name for name, flag in scores.flags.items() if bool(flag[place])],
        "extras": [(name, float(column[place])) for name, column in scores.extras.items()],
        "curves": [(name, column[place].float().tolist()) for name, column in scores.curves.items()],
    }


def _stop_at_device_error(error: Exception, where: str) -> None:
    """Raise TransientError for a device that failed: whatever is asked of it next would fail, too."""
    cause: BaseException | None = error
    while cause is not None:
        if is_device_error(cause):
            raise TransientError(f"{where}: the device failed ({_first_line(cause)})") from error
        cause = cause.__cause__


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _failed(entrant: Candidate, unit: Task, size: int, error: Exception) -> MethodResult:
    empty = Scores(torch.full((size,), torch.nan, dtype=torch.float64))
    return MethodResult(
        entrant.label,
        entrant.control,
        {},
        dict.fromkeys(unit.metrics, empty),
        ("failed",) * size,
        error=f"{type(error).__name__}: {_first_line(error)}",
    )
