"""Our numbers beside the paper's, cell by cell."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fringe.benchmark import Arm, Plan, Results
from fringe.benchmark.intervals import estimate
from fringe.metrics import resolve_metric
from fringe.studies.plans import ablation, cap_study, centre, sweep_plan
from fringe.studies.published import METRICS, MODELS, Published, published
from fringe.studies.runtime import Timing

STUDIES = ("comparison", "ablation", "cap", "max_sensitivity", "sweep", "runtime")
SMALL = 64
"""Images of the paper's studies of sensitivity and run time; we take as many for the sweep and the cap, where it does
not say."""
SPECS = {name: f"torchvision:{name}@IMAGENET1K_V1" for name in MODELS}
"""The paper's networks; V1 weights are the only ones that all six have."""


@dataclass(frozen=True)
class Against:
    """A cell of the paper beside ours: ``ours`` over ``n`` images with half its interval. ``overlap`` tells whether the
    two intervals meet; None where one is missing."""

    paper: Published
    ours: float
    half: float
    n: int

    @property
    def overlap(self) -> bool | None:
        numbers = (self.paper.value, self.paper.half, self.ours, self.half)
        if not all(math.isfinite(number) for number in numbers):
            return None
        return abs(self.ours - self.paper.value) <= self.half + self.paper.half


def plans(base: Plan, studies: Sequence[str] = STUDIES) -> dict[str, Plan]:
    """The plans of the studies by name, but for ``runtime``, which is timed and not stored. ``base`` has the models,
    the paper's methods with FRInGe first, and the data."""
    metrics = {name: resolve_metric(name) for name in METRICS.values()}
    whole = replace(base, name="comparison", metrics=metrics, limits={})
    small = replace(whole, n=min(base.n, SMALL), controls=False)
    only = tuple(_only(arm, ("fringe", "ig")) for arm in base.arms)
    sensitivity = {"max_sensitivity": resolve_metric("max_sensitivity")}
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
    clock = {(t.model, t.method): t for t in timings if t.mode == "sequential"}
    for cell in published():
        if cell.study == "runtime" and (cell.model, cell.method) in clock:
            ours = clock[cell.model, cell.method]
            found.append(Against(cell, ours.seconds, ours.half, ours.n))
        elif cell.study in results:
            ours = _ours(cell, results[cell.study])
            found += [] if ours is None else [ours]
    return found


def markdown(rows: Sequence[Against]) -> str:
    """A table a study, and how many cells agree."""
    lines: list[str] = []
    for study in dict.fromkeys(row.paper.study for row in rows):
        mine = [row for row in rows if row.paper.study == study]
        both = [row for row in mine if row.overlap is not None]
        agree = sum(bool(row.overlap) for row in both)
        lines += [
            f"## {study}",
            "",
            f"{agree} of {len(both)} cells have intervals that overlap the paper's.",
            "",
            "| network | metric | method | paper | ours | n | overlap |",
            "|---|---|---|---:|---:|---:|---|",
            *(_line(row) for row in mine),
            "",
        ]
    return "\n".join(lines)


def to_csv(rows: Sequence[Against]) -> str:
    """One line a cell."""
    text = io.StringIO()
    fields = (*asdict(rows[0].paper), "ours", "ours_half", "n", "overlap") if rows else ()
    writer = csv.DictWriter(text, fields, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        ours: dict[str, Any] = {"ours": row.ours, "ours_half": row.half, "n": row.n, "overlap": row.overlap}
        writer.writerow({**asdict(row.paper), **ours})
    return text.getvalue()


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
    """The plan with the models whose setting has a cap: the paper's study has none for Inception-v3, either."""
    return replace(plan, arms=tuple(arm for arm in plan.arms if centre(arm).delta_euc is not None) or plan.arms)


def _line(row: Against) -> str:
    paper, verdict = row.paper, {True: "yes", False: "no", None: ""}[row.overlap]
    shown = f"{_number(paper.value, paper.half)} | {_number(row.ours, row.half)}"
    return f"| {paper.model} | {paper.metric} | {paper.method} | {shown} | {row.n} | {verdict} |"


def _number(value: float, half: float) -> str:
    if not math.isfinite(value):
        return "—"
    form = ".2e" if abs(value) >= 1000 else ".3f"
    return f"{value:{form}} ± {half:{form}}" if math.isfinite(half) else f"{value:{form}}"
