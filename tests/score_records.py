"""A score and all that is stored of it as one record, and rows made of records and read as records."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fringe.bench.experiments import Results, Store
from fringe.bench.experiments._records import NO_TARGET, STATUSES, Result, fingerprint


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


def about_of(rows, setting=None, versions=None):
    """What records of one setting and some metrics share."""
    keys = list(dict.fromkeys(row.metric_key for row in rows))
    labels = {row.metric_key: row.metric for row in rows}
    names = {"model": rows[0].model, "method": rows[0].method, "setting_key": rows[0].setting}
    metrics = {"labels": [labels[key] for key in keys], "metrics": keys, "metric_settings": {}}
    return {**names, "setting": setting or {}, **metrics, "versions": versions or {}, "map_versions": []}


def result_of(rows):
    """The result of records of one image."""
    first, named = rows[0], {}
    for row in rows:
        named |= {f"curve/{row.metric_key}/{name}": values for name, values in row.curves}
        named |= {f"extra/{row.metric_key}/{name}": [value] for name, value in row.extras}
    named |= {f"diagnostic//{name}": [value] for name, value in first.diagnostics}
    passes = {name: getattr(first, name) for name in ("forward", "jvp", "vjp", "seconds", "batch")}
    return Result(
        first.image,
        np.array([np.nan if row.score is None else row.score for row in rows]),
        np.array([STATUSES.index(row.status) for row in rows], np.uint8),
        [(tuple(row.flags), row.error) for row in rows],
        {"target": first.target, "confidence": first.confidence, "verdict": first.verdict, **passes},
        named,
    )


def commit(store, rows, setting=None, **more):
    """Store records, those of one setting and the same metrics together."""
    by_image, groups = {}, {}
    for row in rows:
        by_image.setdefault((row.setting, row.image), []).append(row)
    for of_image in by_image.values():
        groups.setdefault((of_image[0].setting, *(row.metric_key for row in of_image)), []).append(of_image)
    for group in groups.values():
        known = [row for of_image in group for row in of_image]
        store.commit(about_of(known, setting), [result_of(of_image) for of_image in group], **more)


def results_from(manifest, records):
    """Results of records by key."""
    store = Store(None)
    commit(store, records.values())
    return Results(manifest, store)


def records_of(store, block, known=()):
    """The records of a block; ``known`` are the images of the plan by digest."""
    return [record for _, record in numbered(store, block, known)]


def numbered(store, block, known=()):
    """The records of a block, each with the number of its row."""
    known = {fingerprint(digest): (digest, image) for digest, image in dict(known).items()}
    details = {
        row: {name: values[i] for name, values in columns.items()}
        for rows, columns in store.details(block, block.rows["id"].tolist())
        for i, row in enumerate(rows)
    }
    for row in block.rows:
        verdict, words = block.notes[int(row["notes"])]
        noted = {at: (flags, error) for flags, error, places in words for at in places}
        image, about = known.get(int(row["image"]), (str(row["image"]), None))
        of_row = details.get(int(row["id"]), {})
        for m in np.flatnonzero(row["status"]).tolist():
            flags, error = noted.get(m, ((), None))
            named = {"curve": [], "extra": [], "diagnostic": []}
            for name, values in of_row.items():
                kind, key, label = name.split("/", 2)
                if key in ("", block.about["metrics"][m]):
                    named[kind].append((label, values.tolist() if kind == "curve" else float(values[0])))
            score, confidence = float(row["score"][m]), float(row["confidence"])
            yield (
                int(row["id"]),
                ScoreRecord(
                    setting=block.setting,
                    metric_key=block.about["metrics"][m],
                    image=image,
                    model=block.about["model"],
                    method=block.about["method"],
                    metric=block.about["labels"][m],
                    image_id="" if about is None else about["id"],
                    label=None if about is None else about["label"],
                    target=None if row["target"] == NO_TARGET else int(row["target"]),
                    confidence=None if np.isnan(confidence) else confidence,
                    score=None if np.isnan(score) else score,
                    status=STATUSES[row["status"][m]],
                    error=error,
                    verdict=verdict,
                    flags=list(flags),
                    diagnostics=named["diagnostic"],
                    extras=named["extra"],
                    curves=named["curve"],
                    **{name: float(row[name]) for name in ("forward", "jvp", "vjp", "seconds")},
                    batch=int(row["batch"]),
                ),
            )


def images_of(store):
    """The images of all plans by digest."""
    return {image["digest"]: image for plan in store.records("plan").values() for image in plan["images"]}


def records_in(store, known=None):
    """Every committed record; the names of its image left out, unless they are ``known``."""
    known = dict.fromkeys(images_of(store)) if known is None else known
    return [row for block in store.blocks() for row in records_of(store, block, known)]


def records_of_cell(cell):
    """The records of a method under a metric (n), None where an image was not computed."""
    results = cell._results
    known = {image["digest"]: image for image in results.manifest.images_of(cell.model, cell.metric)}
    key = results.manifest.metrics[cell.metric]["key"]
    ids = results.maps["id"][cell.column("map_index")].tolist()
    setting = results.manifest.setting_key(cell.model, cell.method)
    blocks = [block for block in results.blocks if block.setting == setting]
    rows = {
        number: row
        for block in blocks
        for number, row in numbered(results._source, block, known)
        if row.metric_key == key
    }
    return tuple(rows.get(number) for number in ids)
