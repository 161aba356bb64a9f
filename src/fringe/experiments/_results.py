"""Results: the scores that a plan requires, as one table."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fringe.errors import InputError
from fringe.experiments._evaluator import CONTROLS
from fringe.experiments._formats import ScoreRecord, to_table
from fringe.experiments._manifest import Manifest
from fringe.experiments._statistics import estimate
from fringe.experiments._store import Store
from fringe.experiments._tasks import Key, manifests, versions_of

if TYPE_CHECKING:
    import polars as pl  # of the extra bench, which :func:`fringe.compare` does without

Column = NDArray[np.float64]

_CELL = ["model", "method", "metric"]
_KEY = ["setting", "metric_key", "image"]
#: Columns of a score that are read with the table; diagnostics and curves are large, and read when they are asked for.
_SCORE = ["target", "confidence", "score", "status", "error", "verdict", "flags", "forward", "jvp", "vjp", "seconds"]
_WORDS = ["setting", "metric_key", "image", "status", "verdict"]
_MISSING = "missing"


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
    """One method under one metric on n images.

    Attributes:
        frame: The rows of :attr:`Results.frame` for these images, in their order.
    """

    frame: "pl.DataFrame"
    _records: Callable[[], Mapping[Key, ScoreRecord]] = field(default=dict[Key, ScoreRecord], repr=False)

    @property
    def scores(self) -> Column:
        """Scores (n,), NaN where there is none."""
        return self.frame["score"].fill_null(np.nan).to_numpy()

    @property
    def missing(self) -> int:
        """Number of images that were not computed."""
        return int((self.frame["status"] == _MISSING).sum())

    @property
    def failed(self) -> int:
        """Number of images that were computed and have no score."""
        return int((~self.frame["status"].is_in(["ok", _MISSING])).sum())

    @property
    def rows(self) -> tuple[ScoreRecord | None, ...]:
        """All that is stored of each score (n), None where an image was not computed."""
        records = self._records()
        return tuple(records.get(key) for key in self.frame.select(_KEY).iter_rows())  # pyright: ignore[reportArgumentType]

    def flags(self) -> dict[str, int]:
        """Count how often each flag of the metric is set."""
        return dict(Counter(self.frame["flags"].explode().drop_nulls().to_list()))


class Results:
    """The scores of a plan.

    Attributes:
        manifest: The images, settings and metrics that the scores belong to.
        frame: A polars table with one row for each score that the plan requires, in the order of models, methods,
            metrics and images: ``model``, ``method``, ``metric``, ``control``, ``image`` (digest), ``image_id``,
            ``label``, ``target``, ``confidence``, ``score`` (null where there is none), ``status`` ("ok", a reason, or
            "missing" where nothing was computed), ``error``, ``verdict``, ``flags``, and the image's share of what its
            map took: ``forward``, ``jvp``, ``vjp`` (passes) and ``seconds``.
    """

    def __init__(
        self,
        manifest: Manifest,
        frame: "pl.DataFrame",
        records: Callable[[], Mapping[Key, ScoreRecord]] = dict,
        versions: Callable[[], Mapping[str, Mapping[str, int]]] = dict,
    ):
        self.manifest, self.frame = manifest, frame
        self._read_records, self._read_versions = records, versions

    @cached_property
    def versions(self) -> Mapping[str, Mapping[str, int]]:
        """By library, how many tasks each of its versions computed."""
        return self._read_versions()

    @cached_property
    def _records(self) -> Mapping[Key, ScoreRecord]:
        return self._read_records()

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
        return method in CONTROLS and all("control" in s[method]["method"] for s in self.manifest.settings.values())

    @cached_property
    def cells(self) -> Mapping[tuple[str, str, str], Cell]:
        """The table in parts, by model, method and metric."""
        parts = self.frame.partition_by(_CELL, as_dict=True, maintain_order=True)
        return {(str(a), str(b), str(c)): Cell(part, lambda: self._records) for (a, b, c), part in parts.items()}

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
            Scores (n,) in the order of the images, NaN where there is none.
        """
        return self.cells[model, method, metric].scores

    def coverage(self) -> list[CellStatus]:
        """Count the scores of every model, method and metric.

        Returns:
            The counts, in the order of the plan.
        """
        import polars as pl

        status = pl.col("status").cast(pl.String)
        counts = self.frame.group_by(_CELL, maintain_order=True).agg(
            pl.len().alias("required"),
            (status == "ok").sum().alias("scored"),
            (~status.is_in(["ok", _MISSING])).sum().alias("failed"),
        )
        return [CellStatus(**row) for row in counts.iter_rows(named=True)]

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

        status = pl.col("status").cast(pl.String)
        failed = self.frame.filter(~status.is_in(["ok", _MISSING]))
        groups = failed.with_columns(reason=pl.coalesce("error", status)).group_by(
            ["model", "method", "reason"], maintain_order=True
        )
        counts = groups.agg(pl.len().alias("scores"), pl.col("image").n_unique().alias("images"))
        order = {(model, method): i for i, (model, method, *_) in enumerate(self.cells)}
        positions = [order[model, method] for model, method in counts.select("model", "method").iter_rows()]
        counts = counts.with_columns(pl.Series("order", positions, dtype=pl.Int64))
        return counts.sort("order", "scores", descending=[False, True], maintain_order=True).drop("order")

    def summary(self, seed: int = 0) -> "pl.DataFrame":
        """Summarise each method under each metric.

        Args:
            seed: Keys the bootstrap.

        Returns:
            One row for each model, method and metric: the fields of :class:`fringe.experiments.Estimate` over the
            images with a score, and the counts ``images``, ``missing`` and ``failed``.
        """
        import polars as pl

        rows: list[dict[str, Any]] = []
        for (model, method, metric), cell in self.cells.items():
            numbers = asdict(estimate(cell.scores, seed, self.manifest.metrics[metric]["summary"]))
            counts = {"images": len(cell.frame), "missing": cell.missing, "failed": cell.failed}
            rows.append({"model": model, "method": method, "metric": metric, **numbers, **counts})
        return pl.DataFrame(rows)

    def to_pandas(self) -> Any:
        """Convert the table for pandas, which must be installed.

        Returns:
            :attr:`frame` as a ``pandas.DataFrame``.
        """
        return self.frame.to_pandas()


def read_results(run: Store | str | Path, name: str | None = None) -> Results:
    """Read the results of a plan.

    Args:
        run: A run folder.
        name: The plan; needed where the folder holds several.

    Returns:
        The results; scores that are not in the folder are missing.

    Raises:
        InputError: If there is no such folder or plan.
    """
    store = run if isinstance(run, Store) else Store(Path(run), create=False)
    plans = manifests(store)
    chosen = name or (next(iter(plans)) if len(plans) == 1 else None)
    if chosen not in plans:
        known = ", ".join(plans) or "none"
        raise InputError(f"got {name!r}; the plans in {str(store.root)!r}: {known}", argument="plan")
    return results_of(store, plans[chosen])


def results_of(store: Store, manifest: Manifest) -> Results:
    """Read the results of a manifest, which may no longer be the folder's."""
    import polars as pl

    empty = pl.DataFrame(pl.from_arrow(to_table([])))
    paths = store.intact_files()
    options: dict[str, Any] = {"schema": empty.schema, "missing_columns": "insert", "extra_columns": "ignore"}
    scores = pl.scan_parquet(paths, **options) if paths else empty.lazy()
    return Results(
        manifest,
        _joined(manifest, scores),
        lambda: _best(row for unit in store.tasks() for row in (store.read(unit) or ((),))[0]),
        lambda: versions_of(store.metadata().values(), manifest),
    )


def results_from(manifest: Manifest, records: Mapping[Key, ScoreRecord]) -> Results:
    """Results of a manifest from records in memory."""
    import polars as pl

    scores = pl.DataFrame(pl.from_arrow(to_table(list(records.values()))))
    return Results(manifest, _joined(manifest, scores.lazy()), lambda: records)


def _best(records: Iterable[ScoreRecord]) -> dict[Key, ScoreRecord]:
    """Records by key; of two with one key, the one with a score."""
    result: dict[Key, ScoreRecord] = {}
    for record in records:
        if record.key not in result or result[record.key].status != "ok":
            result[record.key] = record
    return result


def _joined(manifest: Manifest, scores: "pl.LazyFrame") -> "pl.DataFrame":
    """The required scores with what is known of each."""
    import polars as pl

    known = scores.select(*_KEY, *_SCORE).with_columns(pl.col(name).cast(pl.Categorical) for name in _WORDS)
    best = known.sort(pl.col("status").cast(pl.String) != "ok", maintain_order=True).unique(_KEY, keep="first")
    joined = _required(manifest).join(best, on=_KEY, how="left", maintain_order="left")
    status = pl.col("status").cast(pl.String).fill_null(_MISSING).cast(pl.Categorical)
    return joined.with_columns(status=status).collect()


def _required(manifest: Manifest) -> "pl.LazyFrame":
    """Every score that a plan requires, in its order."""
    import polars as pl

    words = pl.Categorical
    methods = [(a, b, "control" in s["method"]) for a, named in manifest.settings.items() for b, s in named.items()]
    settings = pl.DataFrame(
        [(model, method, control, manifest.setting_key(model, method)) for model, method, control in methods],
        schema={"model": words, "method": words, "control": pl.Boolean, "setting": words},
        orient="row",
    )
    metrics = pl.DataFrame(
        [(label, metric["key"], metric["limit"]) for label, metric in manifest.metrics.items()],
        schema={"metric": words, "metric_key": words, "limit": pl.Int64},
        orient="row",
    )
    images = pl.DataFrame(
        [(i, image["digest"], image["id"], image["label"]) for i, image in enumerate(manifest.images)],
        schema={"position": pl.Int64, "image": words, "image_id": pl.String, "label": pl.Int32},
        orient="row",
    )
    every = settings.lazy().join(metrics.lazy(), how="cross", maintain_order="left_right")
    every = every.join(images.lazy(), how="cross", maintain_order="left_right")
    return every.filter(pl.col("position") < pl.col("limit")).drop("position", "limit")
