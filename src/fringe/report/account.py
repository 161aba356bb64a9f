"""What became of the images: costs, verdicts, and why some have no score."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from fringe.experiments import Results, ScoreRecord, Store, crashes


@dataclass(frozen=True)
class Cost:
    """What an image's map took by a method, means over the ``n`` images for which it was made."""

    method: str
    n: int
    forward: float
    jvp: float
    vjp: float
    seconds: float

    @property
    def passes(self) -> float:
        return self.forward + self.jvp + self.vjp


@dataclass(frozen=True)
class Failure:
    """How many ``images`` a method failed on, under some metric at least, and why."""

    model: str
    method: str
    images: int
    reason: str


def by_image(results: Results, model: str, method: str) -> dict[str, ScoreRecord]:
    """A row of each image that was computed, by digest, a sound one where there is one: what it says of the map holds
    for every metric."""
    found: dict[str, ScoreRecord] = {}
    for row in _rows(results, model, method):
        if row.image not in found or found[row.image].status != "ok":
            found[row.image] = row
    return found


def costs(results: Results, model: str) -> list[Cost]:
    """A line a method; images without a map are left out, and controls cost nothing."""
    lines: list[Cost] = []
    for method in results.methods(model, controls=False):
        rows = [row for row in by_image(results, model, method).values() if row.status not in ("failed", "unreadable")]
        spent = np.array([(row.forward, row.jvp, row.vjp, row.seconds) for row in rows]).reshape(-1, 4)
        mean = [float(column.mean()) if column.size else float("nan") for column in spent.T]
        lines.append(Cost(method, len(rows), *mean))
    return lines


def failures(results: Results) -> list[Failure]:
    """Why images have no score, the most frequent reason of a method first."""
    found: list[Failure] = []
    for model in results.models:
        for method in results.methods(model):
            pairs = {(_reason(row), row.image) for row in _rows(results, model, method) if row.status != "ok"}
            reasons = Counter(reason for reason, _ in sorted(pairs))
            found += [Failure(model, method, images, reason) for reason, images in reasons.most_common()]
    return found


def verdicts(results: Results, model: str) -> dict[str, Mapping[str, int]]:
    """How often a method gave each verdict about its maps; methods that give none are left out."""
    found = {
        method: Counter(row.verdict for row in by_image(results, model, method).values() if row.verdict is not None)
        for method in results.methods(model, controls=False)
    }
    return {method: counts for method, counts in found.items() if counts}


def set_aside(store: Store, results: Results) -> list[Failure]:
    """The units of this plan that ended their process again and again, and were given up."""
    known = results.manifest.settings
    return [
        Failure(crash["model"], crash["method"], len(crash["images"]), crash["reason"])
        for crash in crashes(store)
        if crash["setting"] == known.get(crash["model"], {}).get(crash["method"])
    ]


def _rows(results: Results, model: str, method: str) -> Iterator[ScoreRecord]:
    for metric in results.metrics:
        yield from (row for row in results.cell(model, method, metric).rows if row is not None)


def _reason(row: ScoreRecord) -> str:
    what = row.status.replace("_", " ")
    return f"{what}: {row.error}" if row.error else what
