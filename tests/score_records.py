"""A score and all that is stored of it as one record, and tasks made of records and read as records."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fringe.bench.experiments import Results
from fringe.bench.experiments._records import MAP, NO_TARGET, STATUSES, StoredTask, _ragged, read_ragged

EMPTY = {"setting": {}, "metrics": {}, "versions": {}, "map_versions": []}


@dataclass(frozen=True)
class ScoreRecord:
    """``setting``, ``metric_key`` and ``image`` are the digests that name a score; the other names are for people."""

    setting: str
    metric_key: str
    image: str
    model: str
    method: str
    metric: str
    image_id: str
    label: int | None
    target: int | None
    confidence: float | None
    score: float | None
    status: str
    error: str | None = None
    verdict: str | None = None
    flags: Sequence[str] = ()
    diagnostics: Sequence[tuple[str, float]] = ()
    extras: Sequence[tuple[str, float]] = ()
    curves: Sequence[tuple[str, Sequence[float]]] = ()
    forward: float = 0.0
    jvp: float = 0.0
    vjp: float = 0.0
    seconds: float = 0.0
    batch: int = 1

    @property
    def key(self):
        return self.setting, self.metric_key, self.image


def task_of(rows, shared=EMPTY):
    """A task of records of one setting; a score without a record is missing."""
    metrics = {key: i for i, key in enumerate(dict.fromkeys(row.metric_key for row in rows))}
    images = {image: i for i, image in enumerate(dict.fromkeys(row.image for row in rows))}
    shape, first = (len(metrics), len(images)), {row.image: row for row in reversed(rows)}
    scores, status = np.full(shape, np.nan), np.zeros(shape, np.uint8)
    notes, columns = {}, {}
    for row in rows:
        m, i = metrics[row.metric_key], images[row.image]
        scores[m, i] = np.nan if row.score is None else row.score
        status[m, i] = STATUSES.index(row.status)
        if row.flags or row.error is not None:
            notes.setdefault((tuple(row.flags), row.error), []).append(m * shape[1] + i)
        named = [(f"curve/{row.metric_key}/{name}", values) for name, values in row.curves]
        named += [(f"extra/{row.metric_key}/{name}", (value,)) for name, value in row.extras]
        if first[row.image] is row:
            named += [(f"diagnostic//{name}", (value,)) for name, value in row.diagnostics]
        for name, values in named:
            columns.setdefault(name, [None] * shape[1])[i] = values
    verdicts = list(dict.fromkeys(row.verdict for row in first.values() if row.verdict is not None))
    maps = np.empty(shape[1], MAP)
    for image, i in images.items():
        row = first[image]
        target, confidence = NO_TARGET if row.target is None else row.target, row.confidence
        verdict = [None, *verdicts].index(row.verdict)
        passes = row.forward, row.jvp, row.vjp, row.seconds
        maps[i] = (target, row.batch, verdict, np.nan if confidence is None else confidence, *passes)
    labels = {row.metric_key: row.metric for row in rows}
    names = {"model": rows[0].model, "method": rows[0].method, "labels": [labels[key] for key in metrics]}
    return StoredTask(
        rows[0].setting,
        tuple(metrics),
        tuple(images),
        scores,
        status,
        maps,
        {"verdicts": verdicts, "scores": [[list(flags), why, at] for (flags, why), at in notes.items()]},
        {**shared, **names, "details": list(columns)},
        {key: one for name, column in columns.items() for key, one in _ragged(name, column).items()},
    )


def tasks_of(records):
    """Tasks of records, one for each setting."""
    settings = {}
    for record in records:
        settings.setdefault(record.setting, []).append(record)
    return [task_of(rows) for rows in settings.values()]


def results_from(manifest, records):
    """Results of records by key."""
    return Results(manifest, None, tasks_of(records.values()))


def records_of(task, details=None, known=()):
    """The records of a task; ``known`` are the images of the plan by digest."""
    details, known = task.details if details is None else details, dict(known)
    noted = {at: (flags, error) for flags, error, positions in task.notes["scores"] for at in positions}
    columns = {name: list(read_ragged(details, name, len(task.images))) for name in task.shared["details"]}
    for m, i in zip(*map(np.ndarray.tolist, np.nonzero(task.status)), strict=True):
        made, image = task.maps[i], task.images[i]
        flags, error = noted.get(m * len(task.images) + i, ((), None))
        named = {"curve": [], "extra": [], "diagnostic": []}
        for name, column in columns.items():
            kind, key, label = name.split("/", 2)
            if key in ("", task.metrics[m]) and (values := column[i]) is not None:
                named[kind].append((label, values.tolist() if kind == "curve" else float(values[0])))
        score, confidence = float(task.scores[m, i]), float(made["confidence"])
        yield ScoreRecord(
            setting=task.setting,
            metric_key=task.metrics[m],
            image=image,
            model=task.shared["model"],
            method=task.shared["method"],
            metric=task.shared["labels"][m],
            image_id=known[image]["id"] if image in known else "",
            label=known[image]["label"] if image in known else None,
            target=None if made["target"] == NO_TARGET else int(made["target"]),
            confidence=None if np.isnan(confidence) else confidence,
            score=None if np.isnan(score) else score,
            status=STATUSES[task.status[m, i]],
            error=error,
            verdict=[None, *task.notes["verdicts"]][made["verdict"]],
            flags=list(flags),
            diagnostics=named["diagnostic"],
            extras=named["extra"],
            curves=named["curve"],
            **{name: float(made[name]) for name in ("forward", "jvp", "vjp", "seconds")},
            batch=int(made["batch"]),
        )


def records_in(store):
    """Every committed record, the names of its image left out."""
    return [row for task, details in store.details(store.tasks()) for row in records_of(task, details)]


def records_of_cell(cell):
    """The records of a method under a metric (n), None where an image was not computed."""
    results, found = cell._results, {}
    at, key = cell.column("map_index"), results.manifest.metrics[cell.metric]["key"]
    images = results.manifest.images_of(cell.model, cell.metric)
    known = {image["digest"]: image for image in images}
    for number, task, details in results._details(at):
        found |= {(number, row.image): row for row in records_of(task, details, known) if row.metric_key == key}
    numbers = results.arrays.tasks_at(at).tolist()
    return tuple(found.get((n, image["digest"])) for n, image in zip(numbers, images, strict=True))
