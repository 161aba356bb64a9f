"""Results: the scores that a plan requires, as one table."""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fringe.bench.experiments._manifest import Manifest
from fringe.bench.experiments._records import ScoreRecord, StoredTask
from fringe.bench.experiments._scores import PlanScores, Records, Source
from fringe.bench.experiments._store import Store
from fringe.bench.experiments._tasks import Key, manifests, versions_of
from fringe.errors import InputError
from fringe.evaluation import estimate

if TYPE_CHECKING:
    import polars as pl  # of the extra bench, which :func:`fringe.compare` does without

Column = NDArray[np.float64]


@dataclass(frozen=True)
class CellStatus:
    """Scores of one model, method and metric.

    Attributes:
        model, method, metric: Labels of the plan.
        required: Images that the plan asks for.
        scored: Images with a score, or of which the metric says that it is not defined.
        failed: Images that were computed and have no score, for a recorded reason.
    """

    model: str
    method: str
    metric: str
    required: int
    scored: int
    failed: int

    @property
    def missing(self) -> int:
        """Images that are not computed."""
        return self.required - self.scored - self.failed


@dataclass(frozen=True)
class Cell:
    """One method under one metric on n images."""

    _scores: PlanScores
    _name: tuple[str, str, str]

    @property
    def frame(self) -> "pl.DataFrame":
        """The rows of :attr:`Results.frame` for these images, in their order."""
        model, method, metric = self._name
        return self._scores.method_frame(model, method).filter(metric=metric)

    @property
    def scores(self) -> Column:
        """Scores (n,), NaN where there is none."""
        return self._scores.column("score", *self._name)

    @property
    def missing(self) -> int:
        """Number of images that were not computed."""
        required, scored, failed = self._scores.counts(*self._name)
        return required - scored - failed

    @property
    def failed(self) -> int:
        """Number of images that were computed and have no score."""
        return self._scores.counts(*self._name)[2]

    @property
    def rows(self) -> tuple[ScoreRecord | None, ...]:
        """All that is stored of each score (n), None where an image was not computed."""
        return self._scores.rows(*self._name)

    def flags(self) -> dict[str, int]:
        """Count how often each flag of the metric is set."""
        return self._scores.flags(*self._name)


class Results:
    """The scores of a plan.

    Attributes:
        manifest: The images, settings and metrics that the scores belong to.
        frame: A polars table with one row for each score that the plan requires, in the order of models, methods,
            metrics and images: ``model``, ``method``, ``metric``, ``control``, ``image`` (digest), ``image_id``,
            ``label``, ``target``, ``confidence``, ``score`` (null if there is none), ``status`` ("ok", a reason, or
            "missing" if nothing was computed), ``error``, ``verdict``, ``flags``, and the image's share of the cost of
            its map: ``forward``, ``jvp``, ``vjp`` (passes) and ``seconds``.
    """

    def __init__(self, manifest: Manifest, source: Source, tasks: Sequence[StoredTask] | None = None):
        self.manifest, self._tasks = manifest, tasks
        self._source = source
        self._scores = PlanScores(manifest, source, self._read)

    def _read(self) -> Sequence[StoredTask]:
        """The tasks, read once."""
        self._tasks = self._source.tasks() if self._tasks is None else self._tasks
        return self._tasks

    @cached_property
    def frame(self) -> "pl.DataFrame":
        """The whole table."""
        import polars as pl

        return pl.concat([self.method_frame(model, method) for model in self.models for method in self.methods(model)])

    def method_frame(self, model: str, method: str) -> "pl.DataFrame":
        """The rows of one method. Only a few methods are in memory at a time, unless they are small.

        Args:
            model: Label of the model.
            method: Label of the method.

        Returns:
            This part of :attr:`frame`.
        """
        return self._scores.method_frame(model, method)

    def map_frame(self, model: str, method: str) -> "pl.DataFrame":
        """One row per computed image of a method, with values of its map that do not depend on a metric.

        Args:
            model: Label of the model.
            method: Label of the method.

        Returns:
            ``method``, ``image``, ``target``, ``confidence``, ``status``, ``verdict``, ``forward``, ``jvp``, ``vjp``
            and ``seconds`` of its first valid score, or else of its first score, in the order of the images.
        """
        return self._scores.map_frame(model, method)

    def curves(self, model: str, method: str, names: Mapping[str, str]) -> dict[str, list[Column]]:
        """Read curves of a method.

        Args:
            model: Label of the model.
            method: Label of the method.
            names: By metric, the name of the curve, such as ``"raw"``.

        Returns:
            By metric, the curves of its images that have one, (N + 1,) each, in the order of the images.
        """
        return self._scores.curves(model, method, names)

    @cached_property
    def versions(self) -> Mapping[str, Mapping[str, int]]:
        """By library, how many tasks each of its versions computed."""
        return versions_of(self._read(), self.manifest)

    @property
    def models(self) -> tuple[str, ...]:
        """Labels of the models."""
        return tuple(self.manifest.settings)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Labels of the metrics."""
        return tuple(self.manifest.metrics)

    def methods(self, model: str, *, controls: bool = True) -> tuple[str, ...]:
        """List the methods of a model in their order, the controls last.

        Args:
            model: Label of the model.
            controls: Whether to include the controls.

        Returns:
            Labels of the methods.
        """
        return tuple(m for m in self.manifest.settings[model] if controls or not self.is_control(m))

    def is_control(self, method: str) -> bool:
        """Tell whether a method is a control map.

        Args:
            method: Label of the method.

        Returns:
            True for a control.
        """
        return all("control" in s[method]["method"] for s in self.manifest.settings.values() if method in s)

    @cached_property
    def cells(self) -> Mapping[tuple[str, str, str], Cell]:
        """The table in parts, by model, method and metric."""
        names = [
            (model, method, metric)
            for model in self.models
            for method in self.methods(model)
            for metric in self.metrics
        ]
        return {name: Cell(self._scores, name) for name in names}

    def cell(self, model: str, method: str, metric: str) -> Cell:
        """Select one method under one metric.

        Args:
            model: Label of the model.
            method: Label of the method.
            metric: Label of the metric.

        Returns:
            This part of the table.
        """
        return self.cells[model, method, metric]

    def scores(self, model: str, method: str, metric: str) -> Column:
        """Select the scores of one method under one metric.

        Args:
            model: Label of the model.
            method: Label of the method.
            metric: Label of the metric.

        Returns:
            Scores (n,) in the order of the images, NaN if an image has none.
        """
        return self.cells[model, method, metric].scores

    def clusters(self, model: str, metric: str | None = None) -> tuple[str, ...] | None:
        """Name the clusters of the images of a model: examples of one cluster share pixels.

        Args:
            model: Label of the model.
            metric: Label of the metric, if it is computed on the first images only.

        Returns:
            Labels (n,) of clusters in the order of the images; None if every image is independent.
        """
        if self.manifest.scene_of(model) is None:
            return None
        return tuple(image["cluster"] for image in self.manifest.images_of(model, metric))

    def coverage(self) -> list[CellStatus]:
        """Count the scores of every model, method and metric.

        Returns:
            The counts, in the order of the plan.
        """
        return [CellStatus(*name, *self._scores.counts(*name)) for name in self.cells]

    def missing(self) -> list[str]:
        """Describe every part of the table in which images were not computed.

        Returns:
            One line for each part.
        """
        return [
            f"{cell.model}, {cell.method}, {cell.metric}: {cell.missing} of {cell.required} images are not computed"
            for cell in self.coverage()
            if cell.missing
        ]

    def failures(self) -> "pl.DataFrame":
        """Count the scores that failed.

        Returns:
            ``model``, ``method``, ``reason``, ``scores`` and ``images``, the most frequent reason of a method first.
        """
        import polars as pl

        rows = list[dict[str, Any]]()
        for model, method in dict.fromkeys((model, method) for model, method, _ in self.cells):
            scores, images = Counter[str](), dict[str, set[int]]()
            for metric in self.metrics:
                for position, reason in self._scores.failed(model, method, metric):
                    scores[reason] += 1
                    images.setdefault(reason, set()).add(position)
            rows += [
                {"model": model, "method": method, "reason": reason, "scores": n, "images": len(images[reason])}
                for reason, n in scores.most_common()
            ]
        counts = dict.fromkeys(("scores", "images"), pl.UInt32)
        return pl.DataFrame(rows, schema={**dict.fromkeys(("model", "method", "reason"), pl.String), **counts})

    def summary(self, seed: int = 0) -> "pl.DataFrame":
        """Summarise each method under each metric.

        Args:
            seed: Keys the bootstrap.

        Returns:
            One row for each model, method and metric: the fields of :class:`fringe.evaluation.Estimate` over the
            images with a score, and the counts ``images``, ``missing`` and ``failed``. A warning names each model of a
            scene whose gate failed: its scores prove nothing.
        """
        import polars as pl

        for model in dict.fromkeys(model for model, _, _ in self.cells):
            for gate in self.manifest.gates(model):
                if not gate["holds"]:
                    text = f"{model}: gate failed, its scores are not to be read ({gate['text']})"
                    warnings.warn(text, stacklevel=2)
        rows: list[dict[str, Any]] = []
        for (model, method, metric), cell in self.cells.items():
            clusters = self.clusters(model, metric)
            numbers = asdict(estimate(cell.scores, seed, self.manifest.metrics[metric]["summary"], clusters=clusters))
            counts = {"images": len(cell.scores), "missing": cell.missing, "failed": cell.failed}
            rows.append({"model": model, "method": method, "metric": metric, **numbers, **counts})
        return pl.DataFrame(rows)


def read_results(run: Store | str | Path, name: str | None = None) -> Results:
    """Read the results of a plan.

    Args:
        run: A run folder.
        name: The plan; needed if the folder holds several.

    Returns:
        The results; scores that are not in the folder are missing.

    Raises:
        InputError: If there is no such folder or plan.
    """
    store = run if isinstance(run, Store) else Store(run, create=False)
    plans = manifests(store)
    chosen = name or (next(iter(plans)) if len(plans) == 1 else None)
    if chosen not in plans:
        known = ", ".join(plans) or "none"
        came = "none named" if name is None else f"got {name!r}"
        raise InputError(f"{came}; the plans in {str(store.root)!r}: {known}", argument="plan")
    return results_of(store, plans[chosen])


def results_of(store: Store, manifest: Manifest, tasks: Sequence[StoredTask] | None = None) -> Results:
    """Read the results of a manifest, which may no longer be the folder's. ``tasks`` are those of the store, if they
    were read."""
    return Results(manifest, store, tasks)


def results_from(manifest: Manifest, records: Mapping[Key, ScoreRecord]) -> Results:
    """Results of a manifest from records in memory."""
    return Results(manifest, Records(records.values()))
