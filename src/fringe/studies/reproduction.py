"""Our numbers beside the paper's, cell by cell."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace

from fringe._csv import to_csv
from fringe.benchmark import Arm, Plan, Results
from fringe.benchmark.intervals import estimate
from fringe.metrics import Metric, resolve_metric
from fringe.report import BesidePart, BesideRow
from fringe.studies.plans import ablation, cap_study, centre, sweep_plan
from fringe.studies.published import METRICS, MODELS, SECONDS, Published, published
from fringe.studies.runtime import Timing, slowdowns

STUDIES = ("comparison", "ablation", "cap", "max_sensitivity", "sweep", "runtime")
SMALL = 64
"""Images of the paper's studies of sensitivity and run time; we take as many for the sweep and the cap, where it does
not say."""
SPECS = {name: f"torchvision:{name}@IMAGENET1K_V1" for name in MODELS}
"""The paper's networks; V1 weights are the only ones that all six have."""


@dataclass(frozen=True)
class Against:
    """A cell of the paper beside ours: ``ours`` over ``n`` images with half its interval. ``overlap`` tells whether the
    two intervals meet; None where one is missing, and for seconds, which are those of another machine."""

    paper: Published
    ours: float
    half: float
    n: int

    @property
    def overlap(self) -> bool | None:
        numbers = (self.paper.value, self.paper.half, self.ours, self.half)
        if self.paper.metric == SECONDS or not all(math.isfinite(number) for number in numbers):
            return None
        return abs(self.ours - self.paper.value) <= self.half + self.paper.half


def plans(base: Plan, studies: Sequence[str] = STUDIES) -> dict[str, Plan]:
    """The plans of the studies by name, but for ``runtime``, which is timed and not stored. ``base`` has the models,
    the paper's methods with FRInGe first, and the data; its metrics count where they have the paper's names."""

    def metrics_of(names: Iterable[str]) -> dict[str, Metric]:
        return {name: base.metrics.get(name) or resolve_metric(name) for name in names}

    metrics = metrics_of(METRICS.values())
    whole = replace(base, name="comparison", metrics=metrics, limits={})
    small = replace(whole, n=min(base.n, SMALL), metrics=base.metrics, controls=False)
    only = tuple(_only(arm, ("fringe", "ig")) for arm in base.arms)
    sensitivity = metrics_of(["max_sensitivity"])
    makers = {
        "comparison": lambda: whole,
        "ablation": lambda: replace(ablation(whole), controls=False),
        "cap": lambda: cap_study(_capped(small)),
        "max_sensitivity": lambda: replace(small, name="max_sensitivity", arms=only, metrics=sensitivity),
        "sweep": lambda: sweep_plan(small, None),
    }
    return {name: make() for name, make in makers.items() if name in studies}


def runtime_base(base: Plan) -> Plan:
    """FRInGe and IG on the paper's number of images."""
    arms = tuple(_only(arm, ("fringe", "ig")) for arm in base.arms)
    return replace(base, name="runtime", n=min(base.n, SMALL), arms=arms, controls=False)


def beside(results: Mapping[str, Results], timings: Iterable[Timing] = ()) -> list[Against]:
    """Every cell of the paper that there is one of ours for, in the paper's order."""
    found: list[Against] = []
    one_by_one = [t for t in timings if t.mode == "sequential"]
    clock = {(t.model, t.method): t for t in one_by_one}
    ratios = slowdowns(one_by_one, "fringe", "ig")
    for cell in published():
        if cell.study == "runtime":
            ours = clock.get((cell.model, cell.method))
            if ours is not None and cell.metric == SECONDS:
                found.append(Against(cell, ours.seconds, ours.half, ours.n))
            elif ours is not None and (cell.model, "sequential") in ratios:
                found.append(Against(cell, ratios[cell.model, "sequential"], math.nan, ours.n))
        elif cell.study in results:
            ours = _ours(cell, results[cell.study])
            found += [] if ours is None else [ours]
    return found


def parts(rows: Sequence[Against]) -> list[BesidePart]:
    """A table a study, each with how many cells agree."""
    return [_part(study, [row for row in rows if row.paper.study == study]) for study in _studies(rows)]


def markdown(rows: Sequence[Against]) -> str:
    """The same as Markdown."""
    lines: list[str] = []
    for part in parts(rows):
        lines += [f"## {part.title}", "", part.note, ""]
        lines += ["| network | metric | method | paper | ours | n | overlap |", "|---|---|---|---:|---:|---:|---|"]
        for row in part.rows:
            verdict = {True: "yes", False: "no", None: ""}[row.agree]
            lines.append("| " + " | ".join((*row.names, row.theirs, row.ours, str(row.n), verdict)) + " |")
        lines.append("")
    return "\n".join(lines)


def cells_csv(rows: Sequence[Against]) -> str:
    """CSV with one line a cell."""
    names = (*(field.name for field in fields(Published)), "ours", "ours_half", "n", "overlap")
    ours = [{"ours": row.ours, "ours_half": row.half, "n": row.n, "overlap": row.overlap} for row in rows]
    lines = [{**asdict(row.paper), **mine} for row, mine in zip(rows, ours, strict=True)]
    return to_csv(lines, names)


def _ours(cell: Published, results: Results) -> Against | None:
    if (cell.model, cell.method, cell.metric) not in results.cells:
        return None
    summary = results.manifest.metrics[cell.metric]["summary"]
    found = estimate(list(results.scores(cell.model, cell.method, cell.metric)), summary=summary)
    half = found.half_iqr if summary == "median" else (found.high - found.low) / 2
    return Against(cell, found.value, half, found.n)


def _only(arm: Arm, methods: Sequence[str]) -> Arm:
    return replace(arm, methods={name: arm.methods[name] for name in methods})


def _capped(plan: Plan) -> Plan:
    """The plan with those of its models whose setting has a cap to take off."""
    return replace(plan, arms=tuple(arm for arm in plan.arms if centre(arm).delta_euc is not None) or plan.arms)


def _studies(rows: Sequence[Against]) -> list[str]:
    return list(dict.fromkeys(row.paper.study for row in rows))


def _part(study: str, rows: Sequence[Against]) -> BesidePart:
    both = [row for row in rows if row.overlap is not None]
    agree = sum(bool(row.overlap) for row in both)
    note = f"{agree} of {len(both)} cells have intervals that overlap the paper's."
    if study == "runtime":
        note = "No interval compares: seconds are those of another machine, and a slowdown has none."
    return BesidePart(study.replace("_", " "), note, ("network", "metric", "method"), tuple(map(_row, rows)))


def _row(row: Against) -> BesideRow:
    paper = row.paper
    numbers = _number(paper.value, paper.half), _number(row.ours, row.half)
    return BesideRow((paper.model, paper.metric, paper.method), *numbers, row.n, row.overlap)


def _number(value: float, half: float) -> str:
    if not math.isfinite(value):
        return "—"
    form = ".2e" if abs(value) >= 1000 else ".3f"
    return f"{value:{form}} ± {half:{form}}" if math.isfinite(half) else f"{value:{form}}"
