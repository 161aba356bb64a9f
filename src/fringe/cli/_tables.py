"""Tables on the terminal: explained images, comparisons, cards, and the status of a run."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fringe._text import printable
from fringe.cli._console import say
from fringe.experiments import describe_failures, mixed
from fringe.metrics import ARROW, best_of

if TYPE_CHECKING:
    from fringe.cards import Card

#: Letters in a line where no terminal says how many it shows.
WIDTH = 400
#: Rows of the table of explained images; the rest is in the summary.
SHOWN_IMAGES = 40
#: Reasons of one kind that the status shows.
SHOWN_REASONS = 10

_STYLE = {
    **dict.fromkeys(("short", "coarse", "inaccurate", "stalled"), "yellow"),
    **{"ok": "green", "diverged": "red", "failed": "red", "at_reference": "cyan", "unchecked": "dim"},
}
Rows = Iterable[Sequence[str | Text]]


def show_table(columns: Sequence[str], rows: Rows, numbers: Sequence[str] = (), *, rules: Sequence[int] = ()) -> None:
    """Print a table; where no terminal limits a line, it is not wrapped.

    Args:
        columns: Headers; that of a column that is wrapped in a narrow terminal ends with "~".
        rows: Cells; control characters are escaped.
        numbers: Headers of columns of numbers, among ``columns`` or after them: they stand on the right.
        rules: Numbers of rows, from 0, that a rule follows.
    """
    rows = list(rows)
    if not rows:
        return
    table = Table(box=box.HORIZONTALS, show_edge=False, pad_edge=False, header_style="bold")
    for name in dict.fromkeys((*columns, *numbers)):
        is_number, wraps = name in numbers, name.endswith("~")
        justify = "right" if is_number else "left"
        table.add_column(name.rstrip("~"), justify=justify, no_wrap=not wraps, overflow="fold")
    for number, row in enumerate(rows):
        cells = (cell if isinstance(cell, Text) else Text(printable(cell)) for cell in row)
        table.add_row(*cells, end_section=number in rules)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = console.measure(table, options=console.options.update(max_width=WIDTH)).maximum
    console.print(table)


def show_explanations(document: Mapping[str, Any]) -> None:
    """Print one row per image of ``summary.json``."""
    entries, reused = document["inputs"], document["counts"]["reused"]
    names = ("id~", "prediction~", "verdict~")
    show_table(names, map(_image_row, entries[:SHOWN_IMAGES]), ("p", "residual", "steps", "seconds"))
    if len(entries) > SHOWN_IMAGES:
        say(f"… and {len(entries) - SHOWN_IMAGES} more, in summary.json")
    if reused:
        say(f"{reused} results of an earlier run were reused")


def _image_row(entry: Mapping[str, Any]) -> list[str | Text]:
    if "error" in entry:
        return [entry["id"] or entry["source"], "", Text("failed", _STYLE["failed"]), "", "", "", ""]
    best, residual, verdict = entry["prediction"], entry["completeness_residual"], entry["verdict"]
    return [
        *(entry["id"], best["name"] or f"class {best['class']}", Text(verdict, _STYLE.get(verdict, ""))),
        f"{best['probability']:.3f}",
        "—" if residual is None or not math.isfinite(residual) else f"{residual:.2%}",
        "" if entry["steps"] is None else str(entry["steps"]),
        f"{entry['seconds']:.2f}",
    ]


def show_comparison(document: Mapping[str, Any], metrics: Mapping[str, Any]) -> None:
    """Print methods by metrics: means or medians with their intervals, the best in bold, controls below a rule; then
    what is known of the metrics."""
    cells = {(entry["method"], entry["metric"]): entry for entry in document["table"]}
    methods = document["methods"]
    names = [method["label"] for method in methods if not method["control"]]
    best = {label: best_of([_value(cells[n, label]) for n in names], m.direction) for label, m in metrics.items()}
    rows: list[list[str | Text]] = []
    for method in methods:
        entries = {label: cells[method["label"], label] for label in metrics}
        scores = [_score(entry, None if method["control"] else best[label]) for label, entry in entries.items()]
        rows.append([method["label"], *scores, *_costs(method, list(entries.values()))])
    titles = [f"{label.replace('_', ' ')} {ARROW[metric.direction]}".strip() for label, metric in metrics.items()]
    rules = (len(names) - 1,) if len(names) < len(methods) else ()
    head = ("method", *(f"{title}~" for title in titles))
    show_table(head, rows, ("n", "flagged", "passes", "seconds"), rules=rules)
    say(_legend(document))
    if "validity" in document:
        say("")
        _show_validity(document["validity"]["metrics"])


def _show_validity(entries: Sequence[Mapping[str, Any]]) -> None:
    """Print how each metric did on degraded maps and against blind ones."""
    rows: list[list[str | Text]] = []
    for entry in entries:
        words = entry["verdict"] + (f": {entry['reason']}" if entry["reason"] else "")
        style = "bold red" if entry["verdict"] == "does not pass" else ""
        sizes = ["—" if entry[name] is None else _number(entry[name]) for name in ("power", "gap")]
        rows.append(
            [entry["metric"].replace("_", " "), _score(entry["validity"], None), *sizes, Text(printable(words), style)]
        )
    numbers = ("validity", "power", "gap")
    show_table(("metric", *numbers, "verdict~"), rows, numbers)
    words = "validity: order of degraded maps, from -1 to 1; power and gap: effect sizes, of moving 40 % of the pixels"
    say(f"{words} and of the best method over the best control")


def _value(entry: Mapping[str, Any]) -> float | None:
    return entry[entry["summary"]]


def _score(entry: Mapping[str, Any], best: float | None) -> Text:
    value = _value(entry)
    if value is None:
        return Text("—")
    interval = "" if entry["low"] is None else f" [{_number(entry['low'])}…{_number(entry['high'])}]"
    return Text(_number(value), style="bold" if value == best else "").append(interval, style="not bold dim")


def _costs(method: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """How many images have a score, how many scores are flagged, and the passes and seconds of one map."""
    counts = sorted({entry["n"] for entry in entries if entry["n"]}) or [0]
    flagged, passes = sum(entry["flagged"] for entry in entries), sum(method["passes"].values())
    images = max(method["images"], 1)
    cost = (f"{passes / images:.0f}", f"{method['seconds'] / images:.2f}") if passes else ("", "")
    return "–".join(map(str, counts[:: max(len(counts) - 1, 1)])), str(flagged or ""), *cost


def _number(value: float) -> str:
    return f"{value:.3f}" if value == 0 or 1e-3 <= abs(value) < 1e3 else f"{value:.2g}"


def _legend(document: Mapping[str, Any]) -> str:
    flags = Counter[str]()
    for entry in document["table"]:
        flags.update(entry["flags"])
    medians = sorted({e["metric"].replace("_", " ") for e in document["table"] if e["summary"] == "median"})
    summary = f"mean (median for {', '.join(medians)})" if medians else "mean"
    costs = "n: images with a score; passes and seconds: of one image's map"
    counts = f"\nflagged scores: {', '.join(f'{name} {count}' for name, count in flags.items())}" if flags else ""
    return f"{summary} [95 % bootstrap interval over images]; {costs}{counts}"


def show_card(card: "Card") -> None:
    """Print the scores of a card with those of blind maps, and where the method fails."""
    from fringe.cards import describe_card, number, summarise_measurement, with_interval  # of the extra bench

    lines = [summarise_measurement(measurement, card.seed) for measurement in card.measurements]
    parts = [line.measurement.part for line in lines]
    rows = (
        (
            line.measurement.subject,
            f"{line.title} {ARROW[line.kind.direction]}".strip(),
            Text(with_interval(line.score), {True: "green", False: "yellow", None: ""}[line.beats_controls]),
            str(line.score.n),
            "" if line.rival is None else f"{line.rival} {number(line.controls[line.rival].value)}",
        )
        for line in lines
    )
    rules = [i for i, (part, following) in enumerate(pairwise(parts)) if part != following]
    show_table(("on", "metric"), rows, ("score", "n", "best blind map"), rules=rules)
    say("\n".join(describe_card(card, lines)))


def show_status(document: Mapping[str, Any]) -> None:
    """Print what a run folder holds."""
    if not document["plans"]:
        say("no plan yet: nothing was asked for in this folder")
    for name, plan in document["plans"].items():
        say(f"{name}: {plan['images']} images")
        show_table(("model", "method"), _status_rows(plan["cells"]), ("scores", "failed", "missing", "done"))
        lines = describe_failures(plan["failures"], (), SHOWN_REASONS)
        lines += [f"not read: {reason}" for reason in plan["not_read"][:SHOWN_REASONS]]
        lines += [f"results of several versions are mixed: {line}" for line in mixed(plan["versions"])]
        for line in lines:
            say(f"  {line}")
    for path, problem in list(document["damaged"].items())[:SHOWN_REASONS]:
        say(f"damaged: {path} {problem}; the next run sets it aside and makes it again")
    for line in describe_failures((), document["set_aside"], SHOWN_REASONS):
        say(f"{line} (--retry-failed computes it again)")
    reasons = Counter((task["method"], task["model"], task["reason"]) for task in document["invalidated"])
    for (method, model, reason), tasks in reasons.most_common(SHOWN_REASONS):
        say(f"no longer asked for: {method} on {model}, {tasks} tasks: {reason}")
    if document["trials"]:
        say(f"stored from the trials of a search: {document['trials']} tasks")


def _status_rows(cells: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, ...]]:
    """One row per model and method, metrics together."""
    totals: dict[tuple[str, str], Counter[str]] = {}
    for cell in cells:
        numbers = {name: cell[name] for name in ("wanted", "scored", "failed", "missing")}
        totals.setdefault((cell["model"], cell["method"]), Counter()).update(numbers)
    for (model, method), total in totals.items():
        share = (total["scored"] + total["failed"]) / max(total["wanted"], 1)
        counts = (str(total[name]) if total[name] else "" for name in ("failed", "missing"))
        yield model, method, f"{total['scored']}/{total['wanted']}", *counts, f"{share:.0%}"
