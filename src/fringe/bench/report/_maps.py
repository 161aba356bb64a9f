"""Which images the grids of a report show, and why these; and their pixels and maps, as the run stored them.

A run's folder may be a stranger's: nothing that it names is imported, fetched or called.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fringe._strings.names import method_title
from fringe.bench.experiments import Manifest, Results, Store
from fringe.bench.report._table import Column, ModelTable, columns_of, reference_of
from fringe.data import EMBEDDED, find_inputs
from fringe.errors import FringeError, InputError
from fringe.inputs import ImageEntry, content_digest, content_of, prepare
from fringe.metrics import Direction
from fringe.models import Preprocessing
from fringe.plots import (
    Annotation,
    Figure,
    GridCell,
    GridRow,
    MetricLabel,
    Prediction,
    captions,
    class_title,
    comparison_grid,
    labels,
)

Array = NDArray[Any]


@dataclass(frozen=True)
class GridData:
    """What is drawn: ``images`` (H, W, C) in [0, 1] and ``maps`` (C, H, W) by method, both by digest, and the names of
    the classes if the model has them."""

    images: Mapping[str, Array]
    maps: Mapping[str, Mapping[str, Array]]
    class_names: tuple[str, ...] | None


def load_maps(results: Results, model: str, digests: Sequence[str], store: Store) -> GridData:
    """Read images, by digest, and the maps of them that are stored.

    Raises InputError if an image is not where it was or has changed, or no map is stored.
    """
    manifest = results.manifest
    about = manifest.models[model]
    stated = {name: value for name, value in about["preprocessing"].items() if name != "exif"}
    known: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in stated.items()}
    try:
        recipe, class_names = Preprocessing(**known), tuple(map(str, about.get("class_names") or ()))
    except (TypeError, ValueError) as error:
        raise InputError(f"the run does not say how images were prepared for {model} ({error})") from error
    images, maps = _images(manifest, find_images(manifest), recipe, digests), dict[str, dict[str, Array]]()
    for method in results.methods(model, controls=False):
        maps[method] = {}
        for digest, one in store.load_maps(manifest.setting_key(model, method), digests).items():
            values = one.values.cpu().numpy()
            if values.ndim == 3 and values.shape[1:] == images[digest].shape[:2]:  # a file may hold any numbers
                maps[method][digest] = values
    if not any(maps.values()):
        hint = "run the benchmark again with the same options: it makes the maps of these images, and writes the report"
        raise InputError("the run stored no maps of these images", hint=hint)
    return GridData(images, maps, class_names or None)


def find_images(manifest: Manifest) -> dict[str, ImageEntry]:
    """Return the images whose source still exists; whether its content is the same is for the reader to check. A source
    is one file, or a scan of this package: a folder would be searched."""
    entries: dict[str, ImageEntry] = {}
    for image in manifest.images:
        source = str(image["source"])
        if not source.startswith(EMBEDDED) and not Path(source).is_file():
            continue
        try:
            ref = next(iter(find_inputs([source])))
        except FringeError:
            continue
        entries[image["digest"]] = ImageEntry(replace(ref, id=image["id"]), image["digest"])
    return entries


def _images(
    manifest: Manifest, entries: Mapping[str, ImageEntry], recipe: Preprocessing, digests: Sequence[str]
) -> dict[str, Array]:
    """Return the images as the model sees them."""
    images = dict[str, Array]()
    names = {image["digest"]: image["id"] for image in manifest.images}
    for digest in digests:
        if digest not in entries:
            raise InputError(f"image {names.get(digest, digest)!r} is no longer there")
        ref = entries[digest].ref
        if content_digest(ref) != content_of(digest):
            raise InputError(f"image {ref.source!r} has changed since the run")
        x = prepare(ref, recipe, manifest.plan["exif"])
        images[digest] = recipe.denormalise(x).clamp(0, 1).permute(1, 2, 0).numpy()
    return images


#: Images of a kind.
EXAMPLES = 3


#: The metrics that an example of strength has to win.
MAS = ("mas_insertion", "mas_deletion")
WEIGHTS: Mapping[str, float] = {"mas_insertion": 2.0, "mas_deletion": 2.0, "insertion": 1.0, "deletion": 1.0}

#: ``scores[metric][method]`` (n,): a score an image, not finite where there is none.
Columns = Mapping[str, Mapping[str, NDArray[np.float64]]]


def dominance(
    scores: Columns, reference: str, directions: Mapping[str, Direction]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """How far ``reference`` is ahead on each of n images, over the metrics of :data:`WEIGHTS` that have ``scores``: the
    mean improvement (n,) in units of the metrics, NaN where it or all other methods have no score; and which images are
    eligible as examples of its strength (n,).

    .. math:: D = \\frac{\\sum_m w_m \\overline{\\Delta}_m}{\\sum_m w_m}

    where ``Delta_m`` is the improvement over another method under metric m, positive where the reference method is
    better, and the bar its mean over the other methods; one without a score on an image is left out of that image's
    mean. Eligible are images where the reference method beats more than half of the others on both MAS metrics; a
    method without a score is not beaten.

    The paper (appendix Additional Qualitative Results) ranks images by its four metrics, MAS with greater weight, and
    keeps those where FRInGe "outperforms most competing methods" on both MAS metrics. It prints no formula; this is
    ours. Raises InputError without both MAS metrics, and without another method.
    """
    for metric in MAS:
        if metric not in scores:
            raise InputError(f"{metric} was not computed, and images are chosen by both MAS metrics")
        if len(scores[metric]) < 2:
            raise InputError(f"scores: only {reference} has {metric}; it needs another method")
    gaps, weighted = dict[str, NDArray[np.float64]](), list[NDArray[np.float64]]()
    for metric, columns in scores.items():
        known = {label: np.where(np.isfinite(column), column, np.nan) for label, column in columns.items()}
        best, sign = known.pop(reference), 1.0 if directions[metric] == "higher" else -1.0
        gaps[metric] = gap = np.array([sign * (best - other) for other in known.values()])  # (rivals, n)
        count = (is_known := np.isfinite(gap)).sum(0)
        mean = np.where(count > 0, np.where(is_known, gap, 0.0).sum(0) / np.maximum(count, 1), np.nan)
        weighted.append(WEIGHTS[metric] * mean)
    score = np.sum(weighted, axis=0) / sum(WEIGHTS[metric] for metric in gaps)
    wins = [(gaps[metric] > 0).sum(0) > len(gaps[metric]) / 2 for metric in MAS]
    return score, np.isfinite(score) & wins[0] & wins[1]


def pick(score: NDArray[np.float64], eligible: NDArray[np.bool_], each: int = EXAMPLES) -> dict[str, tuple[int, ...]]:
    """At most ``each`` images of a kind by their :func:`dominance`: ``strong`` the highest scores among the eligible;
    ``failures`` the lowest of all that are left; ``typical``, of what is left then, the nearest to the median of all
    scores. The first of equals goes first, and images without a score are never picked."""
    left = [int(i) for i in np.flatnonzero(np.isfinite(score))]
    middle = float(np.median(score[left])) if left else 0.0
    best = sorted((i for i in left if eligible[i]), key=lambda i: -score[i])[:each]
    left = [i for i in left if i not in best]
    worst = sorted(left, key=lambda i: score[i])[:each]
    left = [i for i in left if i not in worst]
    usual = sorted(left, key=lambda i: abs(score[i] - middle))[:each]
    return {"strong": tuple(best), "typical": tuple(usual), "failures": tuple(worst)}


@dataclass(frozen=True)
class ExampleSet:
    """Images (digests) under a ``title``; ``name`` is for a file."""

    name: str
    title: str
    images: tuple[str, ...]


def examples_of(results: Results, reference: str | None = None) -> dict[str, tuple[str, ...]]:
    """The images (digests) whose maps a report shows, by model; those of scenes are not shown."""
    chosen = dict[str, tuple[str, ...]]()
    for model in (model for model in results.models if results.manifest.scene_of(model) is None):
        sets, _ = choose_examples(results, model, reference_of(results, model, reference))
        chosen[model] = tuple(dict.fromkeys(image for one in sets for image in one.images))
    return chosen


def choose_examples(
    results: Results, model: str, reference: str, each: int = EXAMPLES
) -> tuple[tuple[ExampleSet, ...], str]:
    """Choose strong, typical and failing images of the reference method by dominance, or the first images if the run
    lacks the metrics or the methods to compare with; and say in a sentence how they were chosen."""
    columns: dict[str, Column] = {}  # by the metric's name; of two settings of a metric the first
    for column in columns_of(results):
        if column.settings["metric"] in WEIGHTS:
            columns.setdefault(column.settings["metric"], column)
    digests = [image["digest"] for image in results.manifest.images_of(model)]
    size = min((results.manifest.metrics[column.label]["limit"] for column in columns.values()), default=0)
    scores = {
        name: {one: results.scores(model, one, column.label)[:size] for one in results.methods(model, controls=False)}
        for name, column in columns.items()
    }
    directions: dict[str, Direction] = {name: column.direction for name, column in columns.items()}
    try:
        score, eligible = dominance(scores, reference, directions)
    except InputError as error:
        first = ExampleSet("first", "First images of the draw", tuple(digests[:each]))
        return (first,), f"These are the first images, not chosen by their scores ({error})."
    name = method_title(reference)
    titles = {
        "strong": f"Strong: {name} furthest ahead",
        "typical": f"Typical: {name} near its median",
        "failures": f"Failures: {name} furthest behind",
    }
    sets = tuple(
        ExampleSet(kind, titles[kind], tuple(digests[index] for index in indices))
        for kind, indices in pick(score, eligible, each).items()
        if indices
    )
    terms = ", ".join(f"{column.title} (weight {WEIGHTS[name]:g})" for name, column in columns.items())
    return sets, (
        f"Images are ranked by how far {reference} is ahead of the other methods: the mean over {terms}. There "
        f"are {size} images. Strong: the highest of those where it beats more than half of the others on both MAS "
        "metrics. Failures: the lowest of all. Typical: the nearest to the median of the rest."
    )


def plot_examples(results: Results, table: ModelTable, examples: ExampleSet, data: GridData) -> Figure:
    """Draw one grid: a row per image, the input and a column per method, the reference first."""
    metrics = labels([MetricLabel(c.label, c.settings["metric"], c.title, c.direction) for c in table.columns])
    shown = pl.col("image").cast(pl.String).is_in(list(examples.images))
    maps = pl.concat([results.map_frame(table.model, method).filter(shown) for method in table.methods])
    places = {image["digest"]: i for i, image in enumerate(results.manifest.images_of(table.model))}
    return comparison_grid(
        [
            _grid_row(results, table, metrics, places[image], data, maps.filter(image=image))
            for image in examples.images
        ],
        table.methods,
        title=f"{table.model} · {examples.title}",
        caption=captions(metrics),
    )


def _grid_row(
    results: Results, table: ModelTable, metrics: Sequence[MetricLabel], place: int, data: GridData, found: pl.DataFrame
) -> GridRow:
    image = results.manifest.images_of(table.model)[place]
    maps, words = found.rows_by_key("method", named=True, unique=True), list[Sequence[Annotation]]()
    for metric in metrics:  # one that is computed on fewer images has no score here
        columns = [results.scores(table.model, method, metric.label) for method in table.methods]
        words.append(metric.annotations([float(one[place]) if place < len(one) else math.nan for one in columns]))
    cells = list[GridCell]()
    for method, *notes in zip(table.methods, *words, strict=True):
        status, values = maps[method]["status"] if method in maps else "ok", data.maps[method].get(image["digest"])
        remark = "not stored" * (values is None) if status == "ok" else status.replace("_", " ")
        cells.append(GridCell(values, tuple(notes), remark))
    name = image["id"] if image["label"] is None else f"{image['id']}, is {_class(data, image['label'])}"
    explained = (maps[method] for method in table.methods if method in maps)
    row = next((row for row in explained if row["target"] is not None and row["confidence"] is not None), None)
    prediction = None if row is None else Prediction(_class(data, row["target"]), row["confidence"])
    return GridRow(data.images[image["digest"]], name, prediction, tuple(cells))


def _class(data: GridData, number: int) -> str:
    names = data.class_names
    return class_title(names[number]) if names is not None and number < len(names) else f"class {number}"
