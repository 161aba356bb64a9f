"""Results: the scores that a plan requires, read from the store into arrays, and from arrays into tables."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fringe.bench.experiments._manifest import Manifest
from fringe.bench.experiments._records import MISSING, NO_TARGET, OK, PLAN, STATUSES, fingerprint
from fringe.bench.experiments._store import Block, Store
from fringe.errors import InputError, warn_caller
from fringe.evaluation import ScoreTable

if TYPE_CHECKING:
    import polars as pl  # of the extra bench, which :func:`fringe.compare` does without

#: What holds for a map whatever the metric, with its row: ``id`` in the store, ``block`` in :class:`Results`.
_COPIED = ("id", "target", "batch", "confidence", "forward", "jvp", "vjp", "seconds")
MAP = np.dtype(
    [("id", "<i8"), ("block", "<i4"), ("target", "<i4"), ("batch", "<i4"), ("verdict", "<i4")]
    + [(name, "<f8") for name in ("confidence", "forward", "jvp", "vjp", "seconds")]
)
Column = NDArray[np.float64]
#: What holds for a map whatever the metric, as the tables show it.
_OF_MAP = ("target", "confidence", "status", "verdict", "forward", "jvp", "vjp", "seconds")


#: The columns of the table of scores.
_COLUMNS = (
    *("model", "method", "control", "setting", "metric", "metric_key", "image", "image_id", "label", "target"),
    *("confidence", "score", "status", "error", "verdict", "flags", "forward", "jvp", "vjp", "seconds"),
)


@dataclass(frozen=True)
class MethodScores:
    """The scores of one method under one metric on the n images that the plan asks for."""

    _results: "Results"
    model: str
    method: str
    metric: str

    def column(self, name: str) -> NDArray[Any]:
        """A part (n,) of the array of a name."""
        results, limit = self._results, self._results.manifest.metrics[self.metric]["limit"]
        column = results._column(name, self.model, self.method, self.metric)  # pyright: ignore[reportPrivateUsage]
        return column[:limit]

    @cached_property
    def _counts(self) -> tuple[int, int, int]:
        status = self.column("status")
        return len(status), int((status == OK).sum()), int((status == MISSING).sum())

    @property
    def required(self) -> int:
        """Number of images that the plan asks for."""
        return self._counts[0]

    @property
    def scored(self) -> int:
        """Number of images with a score, or of which the metric says that it is not defined."""
        return self._counts[1]

    @property
    def missing(self) -> int:
        """Number of images that were not computed."""
        return self._counts[2]

    @property
    def failed(self) -> int:
        """Number of images that were computed and have no score."""
        return self.required - self.scored - self.missing

    @property
    def frame(self) -> "pl.DataFrame":
        """The rows of :attr:`Results.frame` for these images, in their order."""
        return self._results.method_frame(self.model, self.method, self.metric)

    @property
    def scores(self) -> Column:
        """Scores (n,), NaN where there is none."""
        return self.column("score")

    @property
    def maps(self) -> NDArray[Any]:
        """Records of the maps (n): target, confidence, passes and seconds; all 0 for one that was not computed."""
        return self._results.maps[self.column("map_index")]

    def reasons(self) -> list[tuple[int, str]]:
        """The positions of the images that were computed and have no score, each with the reason."""
        status, index, notes = self.column("status"), self.column("note_index"), self._results.notes
        at = np.flatnonzero(status > OK).tolist()
        return [(i, notes[index[i]][1] or STATUSES[status[i]]) for i in at]

    def flags(self) -> dict[str, int]:
        """Count how often each flag of the metric is set, the first that is met first."""
        result = Counter[str]()
        numbers, first, counts = np.unique(self.column("note_index"), return_index=True, return_counts=True)
        for index in np.argsort(first):
            for flag in self._results.notes[numbers[index]][0]:
                result[flag] += int(counts[index])
        return dict(result)


class Results:
    """The scores of a plan, as arrays (settings, metrics, images) and as tables. Of several rows with one score a valid
    one counts, and of those the last.

    Attributes:
        manifest: The images, settings and metrics that the scores belong to.
        required: Whether the plan asks for a score.
        score: Scores, NaN where there is none.
        status: Places in ``STATUSES``.
        note_index: Places in ``notes``.
        map_index: Places in ``maps``; 0, the place of the empty one, where the score is missing.
        notes: Flags and error of scores, each pair once.
        maps: Records of ``MAP``.
        verdicts: The verdicts on maps; None stands for none.
        blocks: Where the rows of the maps come from.
        frame: A polars table with one row for each score that the plan requires, in the order of models, methods,
            metrics and images: ``model``, ``method``, ``metric``, ``control``, ``image`` (digest), ``image_id``,
            ``label``, ``target``, ``confidence``, ``score`` (null if there is none), ``status`` ("ok", a reason, or
            "missing" if nothing was computed), ``error``, ``verdict``, ``flags``, and the image's share of the cost of
            its map: ``forward``, ``jvp``, ``vjp`` (passes) and ``seconds``.
    """

    def __init__(self, manifest: Manifest, source: Store, blocks: Iterable[Block] | None = None):
        self.manifest, self._source = manifest, source
        keys = [manifest.setting_key(model, method) for model, named in manifest.settings.items() for method in named]
        names = keys, [m["key"] for m in manifest.metrics.values()], [image["digest"] for image in manifest.images]
        self._places = tuple({name: i for i, name in enumerate(dict.fromkeys(one))} for one in names)
        shape = tuple(map(len, self._places))
        marks = np.array([fingerprint(image) for image in self._places[2]], np.int64)
        self._order = np.argsort(marks)
        self._marks = marks[self._order]
        self.required = np.zeros(shape, np.bool_)
        for model, named in manifest.settings.items():
            settings = [self._places[0][manifest.setting_key(model, method)] for method in named]
            for label, metric in manifest.metrics.items():
                at = np.asarray(manifest.positions(model, label), np.int64)
                self.required[np.array(settings)[:, None], self._places[1][metric["key"]], at] = True
        self.score, self.status = np.full(shape, np.nan), np.zeros(shape, np.uint8)
        self.note_index, self.map_index = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        self._rank = np.zeros(shape, np.int64)
        self._places_of_notes: dict[tuple[tuple[str, ...], str | None], int] = {((), None): 0}
        self._places_of_verdicts: dict[str | None, int] = {None: 0}
        self.blocks, parts, self._size = list[Block](), [np.zeros(1, MAP)], 1
        for block in source.blocks() if blocks is None else blocks:
            at = self.where(block)
            if not (is_used := at >= 0).any():
                continue
            rows, at = block.rows[is_used], at[is_used]
            notes = self._notes(block, rows)
            made = np.zeros(len(rows), MAP)
            for name in _COPIED:
                made[name] = rows[name]
            made["verdict"], made["block"] = notes[1], len(self.blocks)
            parts.append(made)
            left = np.arange(len(rows))
            while len(left):  # once, unless a block has an image twice
                _, first = np.unique(at[left], return_index=True)
                self._add(block, rows, at, notes[0], left[first])
                left = np.delete(left, first)
            self.blocks.append(block)
            self._size += len(rows)
        self.maps = np.concatenate(parts)
        del self._rank
        self.verdicts, self.notes = list(self._places_of_verdicts), list(self._places_of_notes)

    def where(self, block: Block) -> NDArray[np.int64]:
        """Find the images of rows.

        Args:
            block: Rows (n).

        Returns:
            Their third indices (n) of the arrays; -1 for a row that the plan does not ask for.
        """
        if block.setting not in self._places[0] or not len(self._marks):
            return np.full(len(block.rows), -1)
        marks, keys = block.rows["image"], block.about["metrics"]
        nearest = np.minimum(np.searchsorted(self._marks, marks), len(self._marks) - 1)
        at = self._order[nearest]
        known = [self._places[1][key] for key in keys if key in self._places[1]]
        required = self.required[self._places[0][block.setting]][known][:, at].any(0) | (not keys)
        return np.where((self._marks[nearest] == marks) & required, at, -1)

    def _notes(self, block: Block, rows: NDArray[Any]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The places of the notes of scores (metrics, rows), and of the verdicts (rows)."""
        index = np.zeros((len(block.about["metrics"]), len(rows)), np.int32)
        verdicts = np.zeros(len(rows), np.int32)
        numbers, inverse = np.unique(rows["notes"], return_inverse=True)
        for n, number in enumerate(numbers.tolist()):
            verdict, words = block.notes[number]
            chosen = np.flatnonzero(inverse == n) if len(numbers) > 1 else np.arange(len(rows))
            verdicts[chosen] = self._places_of_verdicts.setdefault(verdict, len(self._places_of_verdicts))
            for flags, error, metrics in words:
                of_note = self._places_of_notes.setdefault((tuple(flags), error), len(self._places_of_notes))
                index[np.ix_([m for m in metrics if m < len(index)], chosen)] = of_note
        return index, verdicts

    def _add(
        self,
        block: Block,
        rows: NDArray[Any],
        at: NDArray[Any],
        notes: NDArray[Any],
        chosen: NDArray[Any],
    ) -> None:
        """Take the scores of some rows, each of another image, where they are better than those that are there."""
        columns = [self._places[1].get(key, -1) for key in block.about["metrics"]]
        source = [m for m, column in enumerate(columns) if column >= 0]
        target = self._places[0][block.setting], np.array([columns[m] for m in source], int)[:, None], at[chosen]
        status = rows["status"][chosen].T[source]
        rank = rows["id"][chosen] + np.where(status == OK, 2**62, 0)
        is_better = (status != MISSING) & (status < len(STATUSES)) & (rank > self._rank[target])
        places = np.broadcast_to((self._size + chosen).astype(np.int32), status.shape)
        for array, values in (
            (self.score, rows["score"][chosen].T[source]),
            (self.status, status),
            (self.map_index, places),
            (self.note_index, notes[source][:, chosen]),
            (self._rank, rank),
        ):
            array[target] = values if is_better.all() else np.where(is_better, values, array[target])

    def index(self, setting: str, metric_key: str) -> tuple[int, int]:
        """Find the scores of a setting under a metric.

        Args:
            setting: Digest of the setting.
            metric_key: Digest of the metric.

        Returns:
            The first two indices of the arrays.
        """
        return self._places[0][setting], self._places[1][metric_key]

    @cached_property
    def _positions(self) -> Mapping[str, slice | NDArray[np.int64]]:
        places = {model: self.manifest.positions(model) for model in self.models}
        return {
            model: slice(len(at)) if isinstance(at, range) else np.array(at, np.int64) for model, at in places.items()
        }

    def _column(self, name: str, model: str, method: str, metric: str) -> NDArray[Any]:
        """A part of an array for the images of a model."""
        key = self.manifest.metrics[metric]["key"]
        index = self.index(self.manifest.setting_key(model, method), key)
        return getattr(self, name)[index][self._positions[model]]

    @cached_property
    def frame(self) -> "pl.DataFrame":
        """The whole table."""
        import polars as pl

        return pl.concat([self.method_frame(model, method) for model in self.models for method in self.methods(model)])

    @cached_property
    def _images(self) -> "Mapping[str, pl.DataFrame]":
        """The columns of the images by model, which every frame of the model begins with."""
        import polars as pl

        columns = {"image": ("digest", pl.Categorical), "image_id": ("id", pl.String), "label": ("label", pl.Int32)}
        known = {model: self.manifest.images_of(model) for model in self.models}
        return {
            model: pl.DataFrame(
                {to: pl.Series([one[name] for one in images], dtype=kind) for to, (name, kind) in columns.items()}
            )
            for model, images in known.items()
        }

    def method_frame(self, model: str, method: str, metric: str | None = None) -> "pl.DataFrame":
        """The rows of one method, made anew with each call: of a large run they take much memory.

        Args:
            model: Label of the model.
            method: Label of the method.
            metric: Label of the only metric; None for all.

        Returns:
            This part of :attr:`frame`.
        """
        import polars as pl

        manifest, word, errors = self.manifest, pl.Categorical, pl.Series([e for _, e in self.notes], dtype=pl.String)
        flags = pl.Series([*(list(named) for named, _ in self.notes), None], dtype=pl.List(pl.String))
        images, setting = self._images[model], manifest.setting_key(model, method)
        of_maps = dict[bytes, dict[str, pl.Series]]()  # by places: metrics of the same images share them

        def part(metric: str) -> pl.DataFrame:
            cell = self.cells[model, method, metric]
            status, index, at = cell.column("status"), cell.column("note_index"), cell.column("map_index")
            if (places := at.tobytes()) not in of_maps:
                of_maps[places] = self._of_map(at)
            names = {"model": model, "method": method, "metric": metric}
            names |= {"setting": setting, "metric_key": manifest.metrics[metric]["key"]}
            return images[: len(status)].with_columns(
                *(pl.lit(text).cast(word).alias(name) for name, text in names.items()),
                pl.lit("control" in manifest.settings[model][method]["method"]).alias("control"),
                score=pl.Series(cell.scores, nan_to_null=True),
                error=errors[index],
                flags=flags[np.where(status == MISSING, -1, index)],
                status=_words(STATUSES, status),
                **of_maps[places],
            )

        return pl.concat([part(one) for one in manifest.metrics if metric in (None, one)]).select(_COLUMNS)

    def _of_map(self, at: NDArray[Any]) -> "dict[str, pl.Series]":
        """Columns of the maps at some places, null where there is none (0)."""
        import polars as pl

        maps = self.maps[at]
        columns = {
            name: pl.Series(np.where(at == 0, np.nan, maps[name]), nan_to_null=True)
            for name in ("confidence", "forward", "jvp", "vjp", "seconds")
        }
        target = np.where((at == 0) | (maps["target"] == NO_TARGET), np.nan, maps["target"].astype(np.float64))
        columns["target"] = pl.Series(target, nan_to_null=True).cast(pl.Int32)
        columns["verdict"] = _words(self.verdicts, maps["verdict"])
        return columns

    def map_frame(self, model: str, method: str) -> "pl.DataFrame":
        """One row per computed image of a method, with values of its map that do not depend on a metric.

        Args:
            model: Label of the model.
            method: Label of the method.

        Returns:
            ``method``, ``image``, ``target``, ``confidence``, ``status``, ``verdict``, ``forward``, ``jvp``, ``vjp``
            and ``seconds`` of its first valid score, or else of its first score, in the order of the images.
        """
        import polars as pl

        metrics, limits = self.manifest.metrics, [[metric["limit"]] for metric in self.manifest.metrics.values()]
        status, at = (np.stack([self._column(n, model, method, m) for m in metrics]) for n in ("status", "map_index"))
        is_asked = np.arange(status.shape[1]) < np.array(limits)
        rank = np.where(is_asked, (status != MISSING).astype(np.int8) + (status == OK), 0)
        images = np.flatnonzero(rank.max(0) > 0)
        best = rank.argmax(0)[images]
        columns = {**self._of_map(at[best, images]), "status": _words(STATUSES, status[best, images])}
        known = self.manifest.images_of(model)
        digests = [known[index]["digest"] for index in images.tolist()]
        names = {"method": [method] * len(digests), "image": digests}
        texts = {name: pl.Series(text, dtype=pl.Categorical) for name, text in names.items()}  # 4 bytes, not 48
        return pl.DataFrame({**texts, **{name: columns[name] for name in _OF_MAP}})

    def details(self, model: str, method: str, names: Mapping[str, str]) -> dict[str, dict[int, NDArray[Any]]]:
        """Read details of the scores of a method.

        Args:
            model: Label of the model.
            method: Label of the method.
            names: By metric, kind and name of the detail: ``"curve/normalised"``, ``"extra/chance"``, or, of the map,
                ``"diagnostic/endpoint_score"``.

        Returns:
            By metric, the values of its images that have them, by position of the image: (N + 1,) of a curve, else
            (1,).
        """
        columns = {metric: self.cells[model, method, metric].column("map_index") for metric in names}
        result: dict[str, dict[int, Any]] = {metric: {} for metric in names}
        positions = {metric: {at: i for i, at in enumerate(of.tolist()) if at} for metric, of in columns.items()}
        known = np.unique([at for of_ids in positions.values() for at in of_ids]).astype(np.int64)
        of_block = self.maps["block"][known]
        for number in np.unique(of_block).tolist():
            of_ids = {int(self.maps["id"][at]): at for at in known[of_block == number].tolist()}
            for ids, details in self._source.details(self.blocks[number], of_ids):
                for metric, (kind, _, name) in ((metric, name.partition("/")) for metric, name in names.items()):
                    full = f"{kind}/{'' if kind == 'diagnostic' else self.manifest.metrics[metric]['key']}/{name}"
                    for row, values in zip(ids, details.get(full, ()), strict=False):
                        if (position := positions[metric].get(of_ids[row])) is not None:
                            result[metric][position] = values
        return {metric: {i: of[i] for i in sorted(of)} for metric, of in result.items()}

    @cached_property
    def versions(self) -> Mapping[str, Mapping[str, int]]:
        """By library, how many maps each of its versions made or scored."""
        result = dict[str, Counter[str]]()
        has_score = np.zeros(len(self.maps), np.bool_)
        has_score[self.map_index.ravel()] = True
        counts = np.bincount(self.maps["block"][1:][has_score[1:]], minlength=len(self.blocks)).tolist()
        for block, count in zip(self.blocks, counts, strict=True):
            each = (block.about["versions"], *block.about["map_versions"])
            for name, version in sorted({pair for one in each for pair in one.items()}):
                result.setdefault(name, Counter())[version] += count
        return {name: dict(sorted(counts.items())) for name, counts in sorted(result.items())}

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
    def cells(self) -> Mapping[tuple[str, str, str], MethodScores]:
        """The scores by model, method and metric, in the order of the plan."""
        names = [
            (model, method, metric)
            for model in self.models
            for method in self.methods(model)
            for metric in self.metrics
        ]
        return {name: MethodScores(self, *name) for name in names}

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
        images = self.manifest.images_of(model, metric)
        return tuple(image["cluster"] for image in images) if images and "cluster" in images[0] else None

    def missing(self) -> list[str]:
        """Describe every part of the table in which images were not computed.

        Returns:
            One line for each part.
        """
        return [
            f"{cell.model}, {cell.method}, {cell.metric}: {cell.missing} of {cell.required} images are not computed"
            for cell in self.cells.values()
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
                for position, reason in self.cells[model, method, metric].reasons():
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
            for text in self.manifest.failed_gates(model):
                warn_caller(f"{model}: gate failed, its scores are not to be read ({text})")
        rows = list[dict[str, Any]]()
        words = {label: (metric["direction"], metric["summary"]) for label, metric in self.manifest.metrics.items()}
        for model in self.models:
            cells = {(method, metric): cell for (of, method, metric), cell in self.cells.items() if of == model}
            groups = {metric: {"clusters": self.clusters(model, metric)} for metric in self.metrics}
            known = ScoreTable({key: cell.scores for key, cell in cells.items()}, (), words, seed, groups).cells
            for (method, metric), cell in cells.items():
                counts = {"images": len(cell.scores), "missing": cell.missing, "failed": cell.failed}
                numbers = asdict(known[method, metric].estimate)
                rows.append({"model": model, "method": method, "metric": metric, **numbers, **counts})
        return pl.DataFrame(rows)


def _words(words: Sequence[str | None], at: NDArray[Any]) -> "pl.Series":
    """Some of a few words, as a column."""
    import polars as pl

    return pl.Series(words, dtype=pl.Categorical)[at.astype(np.int64)]


def manifests(store: Store) -> dict[str, Manifest]:
    """The plans of a folder by name."""
    return {name: Manifest.from_record(record) for name, record in store.records(PLAN).items()}


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
    return Results(plans[chosen], store)
