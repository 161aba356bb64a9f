"""Our numbers beside the paper's: number by number, as tables, and as a page with the figures of the studies."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fringe._files.disk import write_files
from fringe._strings.formats import number, to_csv
from fringe._strings.tables import Cell, Row, Table
from fringe.bench.experiments import Plan, Resolved, Results, Store, manifests, read_results, versions
from fringe.bench.paper._studies import DEFAULT, SPECS, STUDIES, WITH_DEFAULT, PaperStudy, study_plans, timed_plan
from fringe.bench.paper._tables import READINGS, SECONDS, PaperValue, paper_tables
from fringe.bench.paper._timing import BatchSize, Timing, slowdowns, stored_timings
from fringe.bench.paper._trajectories import draw_study
from fringe.bench.report import Image, Report, Section, html_page, markdown_report, versions_chapter
from fringe.evaluation import estimate

PAGE = "reproduction"
#: What the figures of the studies show, by the first word of their file names.
_CAPTIONS = {
    "profiles": "How far prediction and input move in each step, and the entropy of the prediction",
    "trajectories": "Paths of the variants: entropy, inputs on the path, their change, and the attribution",
    "sensitivity": "The objective against each setting, one setting varied at a time",
}
TITLE = "Our numbers beside the paper's (arXiv 2605.06404)"


@dataclass(frozen=True)
class Measurement:
    """A number over ``n`` images with half its interval."""

    value: float
    half: float
    n: int


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


def compare_with_paper(results: Mapping[str, Results], timings: Iterable[Timing] = ()) -> list[ComparedValue]:
    """List every number of the paper for which there is one of ours, from results by study and from run times."""
    one_by_one = [t for t in timings if t.mode == "sequential"]
    by_method = {(t.model, t.method): t for t in one_by_one}
    ratios = {method: slowdowns(one_by_one, method) for method in ("fringe", DEFAULT)}

    def measurement(value: PaperValue, method: str) -> Measurement | None:
        if value.study != "runtime":
            known, cell = results.get(value.study), (value.model, method, value.metric)
            if known is None or cell not in known.cells:
                return None
            summary, seed = known.manifest.metrics[value.metric]["summary"], int(known.manifest.plan["seed"])
            result = estimate(known.scores(*cell), seed, summary)
            return Measurement(result.value, result.half, result.n)
        timing = by_method.get((value.model, method))
        ratio = ratios.get(method, {}).get((value.model, "sequential"))
        if timing is not None and value.metric == SECONDS:
            return Measurement(timing.seconds, timing.half, timing.n)
        return None if timing is None or ratio is None else Measurement(ratio, math.nan, timing.n)

    rows: list[ComparedValue] = []
    for value in paper_tables():
        ours = measurement(value, value.method)
        if ours is not None:
            has_default = value.method == "fringe" and value.study in WITH_DEFAULT
            rows.append(ComparedValue(value, ours, measurement(value, DEFAULT) if has_default else None))
    return rows


def reproduction_report(notes: Sequence[str], rows: Sequence[ComparedValue], images: Sequence[Image] = ()) -> Report:
    """Return our numbers beside the paper's, a table for each study, with what the paper leaves open."""
    readings = Section("What the paper leaves open, and what we do", lines=tuple(one.text for one in READINGS))
    studies = dict.fromkeys(row.paper.study for row in rows)
    sections = tuple(_section(study, [row for row in rows if row.paper.study == study]) for study in studies)
    figures = Section("Of the studies", images=tuple(images))
    parts = {"Readings of the paper": (readings,), "Numbers": sections, "Figures": (figures,) if images else ()}
    chapters = (Section(title, sections=part) for title, part in parts.items() if part)
    header = {"Numbers": str(len(rows))}
    return Report(TITLE, header, (Section("Protocol", tuple(notes)), *chapters, versions_chapter(versions())))


def comparison_csv(rows: Sequence[ComparedValue]) -> str:
    """Return CSV with one line per number."""
    ours, default = ("ours", "ours_half", "n", "overlap"), [field.name for field in fields(Measurement)]
    lines = [
        {
            **asdict(row.paper),
            **dict(zip(ours, (row.ours.value, row.ours.half, row.ours.n, row.overlap), strict=True)),
            **{f"default_{name}": getattr(row.default, name, None) for name in default},
        }
        for row in rows
    ]
    names = [field.name for field in fields(PaperValue)]
    return to_csv(lines, (*names, *ours, *(f"default_{name}" for name in default)))


def write_reproduction(
    base: Plan,
    run: Path,
    out: Path,
    *,
    studies: Sequence[str] = STUDIES,
    resolved: Mapping[str, Resolved] | None = None,
    images: int = 2,
    device: str = "cpu",
    batch_size: BatchSize = "auto",
    on_timings: Callable[[Sequence[Timing]], None] = lambda timings: None,
) -> tuple[tuple[Path, ...], list[Path]]:
    """Draw the figures of the studies, measure run times, and write the page into ``out``. Return the page as HTML,
    Markdown and CSV; and the figures, with the numbers of the sweep.

    The page is written before the run times are measured, which may take hours, and again after. It shows the studies
    of the same images and networks in the run folder, also those of an earlier call. With "runtime" among the
    ``studies``, run times that are not stored are measured; ``on_timings`` is called with them as they are read or
    measured. ``resolved`` are plans of the studies by name, if they were resolved before, and ``images`` is how many
    have their paths drawn.
    """
    figures, timings = list[Path](), list[Timing]()
    for name, plan in study_plans(base, studies).items():
        known = (resolved or {}).get(name)
        figures += draw_study(PaperStudy(plan, base), run, out / name, images=images, device=device, resolved=known)
    _write_page(base, run, out, timings, figures)
    for methods in (("fringe", "ig"), (DEFAULT,)):  # apart: run times of an older folder stay valid
        plan, path = timed_plan(base, methods), out / "runtime" / "kept.json"
        part = stored_timings(plan, path, device=device, batch_size=batch_size, measuring="runtime" in studies)
        on_timings(part)
        timings += part
    return _write_page(base, run, out, timings, figures), figures


def _write_page(
    base: Plan, run: Path, out: Path, timings: Sequence[Timing], figures: Sequence[Path]
) -> tuple[Path, ...]:
    """Write our numbers beside the paper's: as a page with figures, as Markdown, and as CSV."""
    store = Store(run, create=False)
    plans, record = manifests(store), base.record()

    def is_same(plan: Mapping[str, Any]) -> bool:  # the same images, and those networks under these names
        alike = all(plan[name] == record[name] for name in ("data", "seed", "target", "score", "exif"))
        return alike and all(record["models"].get(label, spec) == spec for label, spec in plan["models"].items())

    same = [name for name in STUDIES if name in plans and is_same(plans[name].plan)]
    rows = compare_with_paper({name: read_results(store, name) for name in same}, timings)
    ratios = [  # seconds of another machine are no reproduction
        f"{model}, {mode}: {name} takes {number(ratio)} times as long as IG on {timings[0].device}."
        for name, method in (("FRInGe", "fringe"), ("FRInGe()", DEFAULT))
        for (model, mode), ratio in slowdowns(timings, method).items()
    ]
    notes, images = [*_notes(base), *ratios], list[Image]()
    for path in figures:
        if path.suffix == ".png":
            kind, colon, which = path.stem.partition("-")
            caption = f"{_CAPTIONS[kind]}: {which}" if colon else _CAPTIONS[kind]
            images.append(Image("", caption, path.read_bytes()))
    contents = {
        ".html": html_page(reproduction_report(notes, rows, images)),
        ".md": markdown_report(reproduction_report(notes, rows)),
        ".csv": comparison_csv(rows),
    }
    return write_files(out, {f"{PAGE}{suffix}": content.encode() for suffix, content in contents.items()})


def _section(study: str, rows: Sequence[ComparedValue]) -> Section:
    both = [row for row in rows if row.overlap is not None]
    note = f"{sum(bool(row.overlap) for row in both)} of {len(both)} cells have intervals that overlap the paper's."
    if study == "runtime":
        note = "No interval compares: seconds are those of another machine, and a slowdown has none."
    title, more = study.replace("_", " "), ("FRInGe()",) if study in WITH_DEFAULT else ()
    head = ("network", "metric", "method", "paper", "ours", *more, "n", "intervals overlap")
    lines = list[Row]()
    for row in rows:
        numbers = (row.paper, row.ours, *([row.default or Measurement(math.nan, math.nan, 0)] if more else []))
        cells = (Cell(one.value, 3, half=one.half) for one in numbers)
        names = row.paper.model, row.paper.metric, row.paper.method
        lines.append((*names, *cells, row.ours.n, "" if row.overlap is None else row.overlap))
    return Section(title, (note,), Table(head, lines, title))


def _notes(base: Plan) -> list[str]:
    specs = ", ".join(f"{model.label} = {model.source.spec}" for model in base.models)
    named = [model.label for model in base.models if model.label in SPECS]
    others = [model.label for model in base.models if SPECS.get(model.label) != model.source.spec]
    return [
        f"Networks: {specs}.",
        *([f"Not the paper's networks, whatever they are called: {', '.join(others)}."] if others else []),
        *([] if named else ["None has the name of a network of the paper (LABEL=SPEC): there is nothing to compare."]),
        f"Images: {base.n} of {', '.join(base.data)}, drawn by seed {base.seed}, the paper gives no list.",
        "The column FRInGe() is our default setting, in the rows of fringe only, and timed on its own.",
        "The paper does not give the settings of the other methods; ours are in the reports of the studies.",
        "± is half a 95% bootstrap interval, for max sensitivity and its median half the interquartile range.",
    ]
