"""Our numbers beside the paper's, cell by cell."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace

from fringe._text import to_csv
from fringe.attribution import FRInGe
from fringe.experiments import Arm, Plan, Results, estimate
from fringe.metrics import Metric, get_metric
from fringe.paper.plans import ablation, cap_study, centre, sweep_plan
from fringe.paper.published import METRICS, MODELS, READINGS, SECONDS, Published, published
from fringe.paper.runtime import Timing, slowdowns
from fringe.report import ComparisonRow, ComparisonTable

STUDIES = ("comparison", "ablation", "cap", "max_sensitivity", "sweep", "runtime")
SMALL = 64
"""Images of the paper's studies of sensitivity and run time; we take as many for the sweep and the cap, where it does
not say."""
SPECS = {name: f"torchvision:{name}@IMAGENET1K_V1" for name in MODELS}
"""The paper's networks; V1 weights are the only ones that all six have."""
DEFAULT = "fringe_default"
"""The label of ``FRInGe()`` in the studies beside the paper's setting."""
WITH_DEFAULT = ("comparison", "max_sensitivity", "runtime")
"""The studies that have it."""


@dataclass(frozen=True)
class Measured:
    """A number over ``n`` images with half its interval."""

    value: float
    half: float
    n: int


@dataclass(frozen=True)
class Against:
    """A cell of the paper beside ours: ``ours`` over ``n`` images with half its interval. ``overlap`` tells whether the
    two intervals meet; None where one is missing, and for seconds, which are those of another machine. ``default`` is
    the number of ``FRInGe()``; None where there is none, and for any other method."""

    paper: Published
    ours: float
    half: float
    n: int
    default: Measured | None = None

    @property
    def overlap(self) -> bool | None:
        numbers = (self.paper.value, self.paper.half, self.ours, self.half)
        if self.paper.metric == SECONDS or not all(math.isfinite(number) for number in numbers):
            return None
        return abs(self.ours - self.paper.value) <= self.half + self.paper.half


def plans(base: Plan, studies: Sequence[str] = STUDIES) -> dict[str, Plan]:
    """The plans of the studies by name, but for ``runtime``, which is timed and not stored. ``base`` has the models,
    the paper's methods with FRInGe first, and the data; its metrics count where they have the paper's names. The
    studies of :data:`WITH_DEFAULT` get ``FRInGe()`` as well."""

    def metrics_of(names: Iterable[str]) -> dict[str, Metric]:
        return {name: base.metrics.get(name) or get_metric(name) for name in names}

    metrics = metrics_of(METRICS.values())
    whole = replace(base, name="comparison", metrics=metrics, limits={})
    small = replace(whole, n=min(base.n, SMALL), metrics=base.metrics, controls=False)
    arms = tuple(map(_with_default, base.arms))
    only = tuple(_only(arm, ("fringe", "ig", DEFAULT)) for arm in arms)
    sensitivity = metrics_of(["max_sensitivity"])
    makers = {
        "comparison": lambda: replace(whole, arms=arms),
        "ablation": lambda: replace(ablation(whole), controls=False),
        "cap": lambda: cap_study(_capped(small)),
        "max_sensitivity": lambda: replace(small, name="max_sensitivity", arms=only, metrics=sensitivity),
        "sweep": lambda: sweep_plan(small, None),
    }
    return {name: make() for name, make in makers.items() if name in studies}


def runtime_base(base: Plan, methods: Sequence[str] = ("fringe", "ig")) -> Plan:
    """FRInGe and IG, or other methods of the plan or :data:`DEFAULT`, on the paper's number of images."""
    arms = tuple(_only(_with_default(arm), methods) for arm in base.arms)
    return replace(base, name="runtime", n=min(base.n, SMALL), arms=arms, controls=False)


def beside(results: Mapping[str, Results], timings: Iterable[Timing] = ()) -> list[Against]:
    """Every cell of the paper that there is one of ours for, in the paper's order."""
    found: list[Against] = []
    one_by_one = [t for t in timings if t.mode == "sequential"]
    clock = {(t.model, t.method): t for t in one_by_one}
    ratios = {method: slowdowns(one_by_one, method, "ig") for method in ("fringe", DEFAULT)}
    for cell in published():

        def measured(method: str, cell: Published = cell) -> Measured | None:
            if cell.study != "runtime":
                return _measured(cell, method, results[cell.study]) if cell.study in results else None
            timing, ratio = clock.get((cell.model, method)), ratios.get(method, {}).get((cell.model, "sequential"))
            if timing is not None and cell.metric == SECONDS:
                return Measured(timing.seconds, timing.half, timing.n)
            return None if timing is None or ratio is None else Measured(ratio, math.nan, timing.n)

        ours = measured(cell.method)
        beyond = measured(DEFAULT) if cell.method == "fringe" and cell.study in WITH_DEFAULT else None
        found += [] if ours is None else [Against(cell, ours.value, ours.half, ours.n, beyond)]
    return found


def parts(rows: Sequence[Against]) -> list[ComparisonTable]:
    """A table a study, each with how many cells agree."""
    return [_part(study, [row for row in rows if row.paper.study == study]) for study in _studies(rows)]


def readings() -> list[str]:
    """What the paper leaves open and what we do, a text each."""
    return [reading.text for reading in READINGS]


def markdown(rows: Sequence[Against]) -> str:
    """The tables as Markdown."""
    lines: list[str] = []
    for part in parts(rows):
        lines += [f"## {part.title}", "", part.note, ""]
        heads = "".join(f" {name} |" for name in ("paper", "ours", *part.more, "n"))
        lines += [f"| network | metric | method |{heads} overlap |"]
        lines += ["|---|---|---|" + "---:|" * (3 + len(part.more)) + "---|"]
        for row in part.rows:
            verdict = {True: "yes", False: "no", None: ""}[row.agree]
            lines.append("| " + " | ".join((*row.names, row.theirs, row.ours, *row.more, str(row.n), verdict)) + " |")
        lines.append("")
    return "\n".join(lines)


def cells_csv(rows: Sequence[Against]) -> str:
    """CSV with one line a cell."""
    names = (*(field.name for field in fields(Published)), "ours", "ours_half", "n", "overlap")
    ours = [{"ours": row.ours, "ours_half": row.half, "n": row.n, "overlap": row.overlap} for row in rows]
    default = [{f"default_{f.name}": getattr(row.default, f.name, None) for f in fields(Measured)} for row in rows]
    lines = [{**asdict(row.paper), **mine, **more} for row, mine, more in zip(rows, ours, default, strict=True)]
    return to_csv(lines, (*names, *(f"default_{field.name}" for field in fields(Measured))))


def _measured(cell: Published, method: str, results: Results) -> Measured | None:
    """Our number of a cell for a method, the cell's own or another."""
    if (cell.model, method, cell.metric) not in results.cells:
        return None
    summary = results.manifest.metrics[cell.metric]["summary"]
    found = estimate(list(results.scores(cell.model, method, cell.metric)), summary=summary)
    half = found.half_iqr if summary == "median" else (found.high - found.low) / 2
    return Measured(found.value, half, found.n)


def _only(arm: Arm, methods: Sequence[str]) -> Arm:
    return replace(arm, methods={name: arm.methods[name] for name in methods})


def _with_default(arm: Arm) -> Arm:
    """Last: the first method is the one that the studies vary."""
    return replace(arm, methods={**arm.methods, DEFAULT: FRInGe()})


def _capped(plan: Plan) -> Plan:
    """The plan with those of its models whose setting has a cap to take off."""
    return replace(plan, arms=tuple(arm for arm in plan.arms if centre(arm).delta_euc is not None) or plan.arms)


def _studies(rows: Sequence[Against]) -> list[str]:
    return list(dict.fromkeys(row.paper.study for row in rows))


def _part(study: str, rows: Sequence[Against]) -> ComparisonTable:
    both = [row for row in rows if row.overlap is not None]
    agree = sum(bool(row.overlap) for row in both)
    note = f"{agree} of {len(both)} cells have intervals that overlap the paper's."
    if study == "runtime":
        note = "No interval compares: seconds are those of another machine, and a slowdown has none."
    more = ("FRInGe()",) if study in WITH_DEFAULT else ()
    return ComparisonTable(study.replace("_", " "), note, ("network", "metric", "method"), tuple(map(_row, rows)), more)


def _row(row: Against) -> ComparisonRow:
    paper = row.paper
    numbers = _number(paper.value, paper.half), _number(row.ours, row.half)
    beyond = row.default or Measured(math.nan, math.nan, 0)
    more = (_number(beyond.value, beyond.half),) if paper.study in WITH_DEFAULT else ()
    return ComparisonRow((paper.model, paper.metric, paper.method), *numbers, row.n, row.overlap, more)


def _number(value: float, half: float) -> str:
    if not math.isfinite(value):
        return "—"
    form = ".2e" if abs(value) >= 1000 else ".3f"
    return f"{value:{form}} ± {half:{form}}" if math.isfinite(half) else f"{value:{form}}"
