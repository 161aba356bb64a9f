"""The table of a comparison, for people."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fringe.metrics import Metric
from fringe.metrics.base import Direction

ARROW: Mapping[Direction, str] = {"higher": "↑", "lower": "↓", "none": ""}

WIDEST = 400
"""Letters in a line where no terminal says how many it shows."""


def show_standings(document: Mapping[str, Any], metrics: Mapping[str, Metric]) -> None:
    """Methods by metrics: means with their intervals, the best mean in bold, controls below a rule."""
    cells = {(entry["method"], entry["metric"]): entry for entry in document["table"]}
    table = Table(box=box.HORIZONTALS, show_edge=False, pad_edge=False, header_style="bold")
    table.add_column("method", no_wrap=True)
    for label, metric in metrics.items():
        table.add_column(f"{label.replace('_', ' ')} {ARROW[metric.direction]}".strip(), overflow="fold")
    for name in ("n", "flagged", "passes", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    best = {label: _best(document["table"], label, metric.direction) for label, metric in metrics.items()}
    methods = document["methods"]
    for place, method in enumerate(methods):
        mine = [cells[method["label"], label] for label in metrics]
        scores = [
            _score(entry, best[label], bold=not method["control"]) for label, entry in zip(metrics, mine, strict=True)
        ]
        last = not method["control"] and place + 1 < len(methods) and methods[place + 1]["control"]
        table.add_row(Text(method["label"]), *scores, *_account(method, mine), end_section=last)
    console = Console(highlight=False)
    if not console.is_terminal:  # nobody's lines are too long for a file
        console.width = console.measure(table, options=console.options.update(max_width=WIDEST)).maximum
    console.print(table)
    console.print(_legend(document), soft_wrap=True)


def best_of(values: Sequence[float | None], direction: Direction) -> float | None:
    """The best of the finite ``values``; None where there is none, or no better and worse."""
    finite = [v for v in values if v is not None and math.isfinite(v)]
    if direction == "none" or not finite:
        return None
    return max(finite) if direction == "higher" else min(finite)


def _best(table: Sequence[Mapping[str, Any]], label: str, direction: Direction) -> float | None:
    return best_of([e["mean"] for e in table if e["metric"] == label and not e["control"]], direction)


def _score(entry: Mapping[str, Any], best: float | None, *, bold: bool) -> Text:
    if entry["mean"] is None:
        return Text("—")
    interval = "" if entry["low"] is None else f" [{_number(entry['low'])}…{_number(entry['high'])}]"
    text = Text(_number(entry["mean"]), style="bold" if bold and entry["mean"] == best else "")
    return text.append(interval, style="not bold dim")


def _account(method: Mapping[str, Any], mine: Sequence[Mapping[str, Any]]) -> list[Text]:
    """How many images have a score, how many scores are flagged, and the cost of an image's map."""
    counts = sorted({entry["n"] for entry in mine if entry["n"]}) or [0]
    flagged = sum(entry["flagged"] for entry in mine)
    passes, images = sum(method["passes"].values()), max(method["images"], 1)
    return [
        Text("–".join(map(str, counts[:: max(len(counts) - 1, 1)]))),
        Text(str(flagged) if flagged else ""),
        Text(f"{passes / images:.0f}" if passes else ""),
        Text(f"{method['seconds'] / images:.2f}" if passes else ""),
    ]


def _number(value: float) -> str:
    return f"{value:.3f}" if value == 0 or 1e-3 <= abs(value) < 1e3 else f"{value:.2g}"


def _legend(document: Mapping[str, Any]) -> Text:
    flags: dict[str, int] = {}
    for entry in document["table"]:
        for name, count in entry["flags"].items():
            flags[name] = flags.get(name, 0) + count
    raised = ", ".join(f"{name} {count}" for name, count in flags.items())
    lines = [
        "mean [95 % bootstrap interval over images]; n: images with a score; passes and seconds: of one image's map",
        *([f"flagged scores: {raised}"] if raised else []),
    ]
    return Text("\n".join(lines), style="dim")
