"""The table of a comparison, for people."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fringe._text import printable
from fringe.metrics import ARROW, Direction, Metric, best_of

WIDEST = 400
"""Letters in a line where no terminal says how many it shows."""


def show_standings(document: Mapping[str, Any], metrics: Mapping[str, Metric]) -> None:
    """Methods by metrics: means (or medians) with their intervals, the best in bold, controls below a rule."""
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
        table.add_row(Text(printable(method["label"])), *scores, *_account(method, mine), end_section=last)
    console = Console(highlight=False)
    if not console.is_terminal:  # nobody's lines are too long for a file
        console.width = console.measure(table, options=console.options.update(max_width=WIDEST)).maximum
    console.print(table)
    console.print(_legend(document), soft_wrap=True)


def _best(table: Sequence[Mapping[str, Any]], label: str, direction: Direction) -> float | None:
    return best_of([_middle(e) for e in table if e["metric"] == label and not e["control"]], direction)


def _middle(entry: Mapping[str, Any]) -> float | None:
    return entry[entry["summary"]]


def _score(entry: Mapping[str, Any], best: float | None, *, bold: bool) -> Text:
    middle = _middle(entry)
    if middle is None:
        return Text("—")
    interval = "" if entry["low"] is None else f" [{_number(entry['low'])}…{_number(entry['high'])}]"
    text = Text(_number(middle), style="bold" if bold and middle == best else "")
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
    medians = sorted({e["metric"].replace("_", " ") for e in document["table"] if e["summary"] == "median"})
    summary = f"mean (median for {', '.join(medians)})" if medians else "mean"
    counts = "n: images with a score; passes and seconds: of one image's map"
    lines = [
        f"{summary} [95 % bootstrap interval over images]; {counts}",
        *([f"flagged scores: {raised}"] if raised else []),
    ]
    return Text(printable("\n".join(lines)), style="dim")
