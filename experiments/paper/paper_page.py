"""Our numbers beside the paper's: a Markdown page and a CSV with one line for each number."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from paper_studies import DEFAULT, SPECS
from paper_tables import READINGS, SECONDS, PaperValue, paper_tables
from paper_timing import Timing, slowdown

from fringe._strings.formats import with_interval
from fringe.bench.experiments import Results
from fringe.evaluation import estimate

TITLE = "Our numbers beside the paper's (arXiv 2605.06404)"


@dataclass(frozen=True)
class Measurement:
    """A number over ``n`` images with half its interval, NaN where there is none."""

    value: float
    half: float
    n: int

    def __str__(self) -> str:
        return with_interval(self.value, self.value - self.half, self.value + self.half, 3)


@dataclass(frozen=True)
class ComparedValue:
    """A number of the paper beside ours; ``default`` is that of ``FRInGe()``, None for other methods and studies."""

    paper: PaperValue
    ours: Measurement
    default: Measurement | None = None

    @property
    def overlap(self) -> bool | None:
        """Whether the two intervals overlap; None if one is missing, and for seconds, which are another machine's."""
        numbers = (self.paper.value, self.paper.half, self.ours.value, self.ours.half)
        if self.paper.metric == SECONDS or not all(math.isfinite(number) for number in numbers):
            return None
        return abs(self.ours.value - self.paper.value) <= self.ours.half + self.paper.half


def compare_with_paper(
    results: Mapping[tuple[str, str], Results], timings: Mapping[str, Sequence[Timing]], seed: int = 0
) -> list[ComparedValue]:
    """List every number of the paper for which there is one of ours.

    Args:
        results: Results by network and study.
        timings: Run times by network.
        seed: Seed of the resamples.

    Returns:
        The numbers, in the order of the paper's tables.
    """

    def measured(value: PaperValue, method: str) -> Measurement | None:
        if value.study == "runtime":
            known = [t for t in timings.get(value.model, ()) if t.mode == "sequential"]
            timing = next((t for t in known if t.method == method), None)
            ratio = slowdown(known, method, "sequential")
            if timing is None or value.metric == SECONDS:
                return timing and Measurement(timing.seconds, timing.half, timing.n)
            return None if ratio is None else Measurement(ratio, math.nan, timing.n)
        known = results.get((value.model, value.study))
        if known is None or method not in known.methods(value.model) or value.metric not in known.metrics:
            return None
        summary = "median" if value.metric == "max_sensitivity" else "mean"
        found = estimate(known.scores(value.model, method, value.metric), seed, summary)
        return Measurement(found.value, found.half_iqr if summary == "median" else found.half, found.n)

    rows = list[ComparedValue]()
    for value in paper_tables():
        if (ours := measured(value, value.method)) is not None:
            rows.append(ComparedValue(value, ours, measured(value, DEFAULT) if value.method == "fringe" else None))
    return rows


def page(rows: Sequence[ComparedValue], notes: Sequence[str], overridden: Sequence[str], figures: Sequence[str]) -> str:
    """The page as Markdown.

    Args:
        rows: The numbers.
        notes: What was run.
        overridden: Where settings are not those of the paper, a sentence each.
        figures: Paths of pictures, beside the page.

    Returns:
        The text.
    """
    lines = [f"# {TITLE}", "", "## Protocol", "", *(f"- {note}" for note in notes)]
    lines += ["", "## Settings that are not the paper's", ""]
    lines += [f"- {line}" for line in overridden] or ["None."]
    for study in dict.fromkeys(row.paper.study for row in rows):
        of_study = [row for row in rows if row.paper.study == study]
        both = [row for row in of_study if row.overlap is not None]
        alike = sum(bool(row.overlap) for row in both)
        note = f"{alike} of {len(both)} cells have intervals that overlap the paper's."
        if study == "runtime":
            note = "No interval compares: seconds are those of another machine, and a slowdown has none."
        head = ("network", "metric", "method", "paper", "ours", "FRInGe()", "n", "intervals overlap")
        lines += ["", f"## {study.replace('_', ' ')}", "", note, ""]
        lines += [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
        for row in of_study:
            value = Measurement(row.paper.value, row.paper.half, 0)
            overlap = {True: "yes", False: "no", None: ""}[row.overlap]
            names = row.paper.model, row.paper.metric, row.paper.method
            cells = map(str, (*names, value, row.ours, row.default or "", row.ours.n, overlap))
            lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "## What the paper leaves open, and what we do", "", *(f"- {text}" for text in READINGS)]
    if figures:
        lines += ["", "## Figures", "", *(f"![{name}]({name})" for name in figures)]
    return "\n".join(lines) + "\n"


def protocol(models: Mapping[str, str], n: int, data: Sequence[str], seed: int) -> list[str]:
    """The notes of a page: networks, images, and what its numbers are."""
    others = [label for label, spec in models.items() if SPECS.get(label) != spec]
    named = [label for label in models if label in SPECS]
    return [
        f"Networks: {', '.join(f'{label} = {spec}' for label, spec in models.items())}.",
        *([f"Not the paper's networks, whatever they are called: {', '.join(others)}."] if others else []),
        *([] if named else ["None has the name of a network of the paper (LABEL=SPEC): there is nothing to compare."]),
        f"Images: {n} of {', '.join(data)}, drawn by seed {seed}; the paper gives no list.",
        "The column FRInGe() is our default, in the rows of the paper's method.",
        "The paper does not give the settings of the other methods; ours are their presets `paper`.",
        "The paper prints half a 95% interval behind a ±, or half the interquartile range of the median of max "
        "sensitivity: an interval here reaches as far to either side.",
    ]


def comparison_csv(rows: Sequence[ComparedValue]) -> str:
    """CSV with one line for each number."""
    stream = io.StringIO()
    own = [field.name for field in fields(Measurement)]
    writer = csv.writer(stream, lineterminator="\n")
    heads = [f"{who}_{name}" for who in ("ours", "default") for name in own]
    writer.writerow([*(field.name for field in fields(PaperValue)), *heads, "overlap"])
    for row in rows:
        default = [*asdict(row.default).values()] if row.default else [""] * len(own)
        overlap = "" if row.overlap is None else row.overlap
        writer.writerow([*asdict(row.paper).values(), *asdict(row.ours).values(), *default, overlap])
    return stream.getvalue()


def write_page(folder: Path, text: str, rows: Sequence[ComparedValue]) -> Path:
    """Write ``reproduction.md`` and ``reproduction.csv`` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "reproduction.csv").write_text(comparison_csv(rows), encoding="utf-8")
    path = folder / "reproduction.md"
    path.write_text(text, encoding="utf-8")
    return path
