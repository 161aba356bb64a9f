"""Which images the grids show, and why these."""

from collections.abc import Mapping
from dataclasses import dataclass

from fringe.errors import InputError
from fringe.experiments import WEIGHTS, Results, dominance, pick
from fringe.metrics import Direction
from fringe.report.tables import Column, Table

EACH = 3
"""Images of a kind."""


@dataclass(frozen=True)
class Choice:
    """Images (digests) under a ``title``; ``name`` is for a file."""

    name: str
    title: str
    images: tuple[str, ...]


@dataclass(frozen=True)
class Chosen:
    """What the grids show, and a sentence on how it was chosen."""

    choices: tuple[Choice, ...]
    reason: str


def choose(results: Results, table: Table, each: int = EACH) -> Chosen:
    """Strong, typical and failing images of the reference method by dominance; the first of the draw where that needs
    metrics or rivals that the run does not have."""
    columns = ranking(table)
    digests = [image["digest"] for image in results.manifest.images]
    size = min((results.manifest.metrics[column.label]["limit"] for column in columns.values()), default=0)
    methods = [row.method for row in table.competing]
    scores = {
        name: {method: results.scores(table.model, method, column.label)[:size] for method in methods}
        for name, column in columns.items()
    }
    weights = {name: WEIGHTS[name] for name in columns}
    directions: dict[str, Direction] = {name: column.direction for name, column in columns.items()}
    try:
        found = dominance(scores, table.reference, directions, weights)
    except InputError as error:
        first = Choice("first", "First images of the draw", tuple(digests[:each]))
        return Chosen((first,), f"Images were not chosen by how the methods do on them ({error}).")
    picks = pick(found, each, each, each)
    kinds = {
        "strong": (f"Strong: {table.reference} furthest ahead", picks.strong),
        "typical": (f"Typical: {table.reference} near its median", picks.typical),
        "failures": (f"Failures: {table.reference} furthest behind", picks.failures),
    }
    choices = tuple(
        Choice(name, title, tuple(digests[place] for place in places))
        for name, (title, places) in kinds.items()
        if places
    )
    return Chosen(choices, _reason(columns, weights, table.reference, size))


def ranking(table: Table) -> Mapping[str, Column]:
    """The table's columns that images are ranked by, by the metric's name; of two settings of a metric the first."""
    found: dict[str, Column] = {}
    for column in table.columns:
        name = column.settings["metric"]
        if name in WEIGHTS:
            found.setdefault(name, column)
    return found


def _reason(columns: Mapping[str, Column], weights: Mapping[str, float], reference: str, size: int) -> str:
    terms = ", ".join(f"{column.title} (weight {weights[name]:g})" for name, column in columns.items())
    return (
        f"Images are ranked by how far {reference} is ahead of its rivals on them, by the mean over {terms}. Of {size} "
        "images, strong ones are the highest among those where it beats more than half of its rivals on both MAS "
        "metrics, failures the lowest of all, typical ones the nearest to the median of the rest."
    )
