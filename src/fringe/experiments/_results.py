"""The scores of a plan as arrays over its images, read from the store alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fringe.errors import InputError
from fringe.experiments._evaluator import CONTROLS
from fringe.experiments._manifest import Manifest
from fringe.experiments._records import ScoreRecord
from fringe.experiments._store import Store
from fringe.experiments._tasks import Key, manifests, versions_of, wanted

Column = NDArray[np.float64]


@dataclass(frozen=True)
class Cell:
    """One method under one metric on the n images that the metric is computed on: ``scores`` (n,), NaN where there is
    none, and ``rows`` (n) with all that is known of each, None where nothing was computed."""

    scores: Column
    rows: tuple[ScoreRecord | None, ...]

    @property
    def missing(self) -> int:
        """Images that were not computed."""
        return sum(row is None for row in self.rows)

    @property
    def failed(self) -> int:
        """Images that were, and have no score."""
        return sum(row is not None and row.status != "ok" for row in self.rows)

    def flags(self) -> dict[str, int]:
        """How often each flag is up."""
        found: dict[str, int] = {}
        for row in self.rows:
            for name in row.flags if row is not None else ():
                found[name] = found.get(name, 0) + 1
        return found

    def diagnostic(self, name: str) -> Column:
        """A diagnostic of the method (n,), NaN where it gave none."""
        return np.array([dict(row.diagnostics).get(name, np.nan) if row else np.nan for row in self.rows])

    def cost(self, name: Literal["forward", "jvp", "vjp", "seconds"]) -> Column:
        """An image's share of what its map took (n,)."""
        return np.array([getattr(row, name) if row else np.nan for row in self.rows])


@dataclass(frozen=True)
class Results:
    """A plan's ``cells`` by model, method and metric, with its ``manifest``, and by library how many units each of its
    ``versions`` computed."""

    manifest: Manifest
    cells: Mapping[tuple[str, str, str], Cell]
    versions: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self.manifest.settings)

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(self.manifest.metrics)

    def methods(self, model: str, *, controls: bool = True) -> tuple[str, ...]:
        """The methods of a model in their order, the controls last."""
        return tuple(m for m in self.manifest.settings[model] if controls or not self.is_control(m))

    def is_control(self, method: str) -> bool:
        return method in CONTROLS and all("control" in s[method]["method"] for s in self.manifest.settings.values())

    def cell(self, model: str, method: str, metric: str) -> Cell:
        return self.cells[model, method, metric]

    def scores(self, model: str, method: str, metric: str) -> Column:
        return self.cells[model, method, metric].scores

    def holes(self) -> list[str]:
        """A line for every cell with images that were not computed: what a table must not hide."""
        return [
            f"{model}, {method}, {metric}: {cell.missing} of {len(cell.rows)} images are not computed"
            for (model, method, metric), cell in self.cells.items()
            if cell.missing
        ]


def read_results(store: Store, name: str | None = None) -> Results:
    """The results of the plan ``name``, or of the only one. Raises InputError where there is no such plan."""
    plans = manifests(store)
    chosen = name or (next(iter(plans)) if len(plans) == 1 else None)
    if chosen not in plans:
        known = ", ".join(plans) or "none"
        raise InputError(f"plan: got {name!r}; the plans in {str(store.root)!r}: {known}")
    rows, abouts = _read_all(store)
    return replace(gather(plans[chosen], rows), versions=versions_of(abouts, plans[chosen]))


def all_rows(store: Store) -> dict[Key, ScoreRecord]:
    """Every committed row by name; of two with one name, the one with a score."""
    return _read_all(store)[0]


def _read_all(store: Store) -> tuple[dict[Key, ScoreRecord], list[dict[str, Any]]]:
    """The rows, and what is known of each unit."""
    found: dict[Key, ScoreRecord] = {}
    abouts: list[dict[str, Any]] = []
    for unit in store.units():
        rows, about = store.read(unit) or ((), None)
        abouts += [] if about is None else [about]
        for row in rows:
            if row.key not in found or found[row.key].status != "ok":
                found[row.key] = row
    return found, abouts


def gather(manifest: Manifest, rows: Mapping[Key, ScoreRecord]) -> Results:
    """The rows that a manifest asks for, as cells."""
    by_cell: dict[tuple[str, str, str], list[ScoreRecord | None]] = {}
    for model, method, metric, _, key in wanted(manifest):
        by_cell.setdefault((model, method, metric), []).append(rows.get(key))
    return Results(manifest, {cell: Cell(_scores(found), tuple(found)) for cell, found in by_cell.items()})


def _scores(rows: Sequence[ScoreRecord | None]) -> Column:
    values: list[Any] = [np.nan if row is None or row.score is None else row.score for row in rows]
    return np.array(values, dtype=np.float64)
