"""Tables on the terminal: explained images, comparisons, and the status of a run."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fringe._text import printable
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
    **{"ok": "green", "diverged": "red", "at_reference": "cyan", "unchecked": "dim"},
}


def show_explanations(entries: Sequence[Mapping[str, Any]]) -> None:
    """Print one row per image of ``summary.json``."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("id", "prediction", "verdict"):
        table.add_column(name, overflow="fold")
    has_probability = any("probability_right" in entry for entry in entries)
    for name in (*(("P(right)",) if has_probability else ()), "p", "residual", "steps", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for entry in entries[:SHOWN_IMAGES]:
        probability = [_share(entry.get("probability_right"))] if has_probability else []
        row = _image_row(entry)
        table.add_row(*row[:3], *probability, *row[3:])
    console = Console(highlight=False)
    console.print(table)
    if len(entries) > SHOWN_IMAGES:
        console.print(f"… and {len(entries) - SHOWN_IMAGES} more, in summary.json")


def _share(probability: float | None) -> Text:
    return Text("—" if probability is None else f"{probability:.0%}")


def _image_row(entry: Mapping[str, Any]) -> list[Text]:
    if "error" in entry:
        return [Text(printable(entry["id"] or entry["source"])), Text(""), Text("failed", "red"), *[Text("")] * 4]
    best, residual, verdict = entry["prediction"], entry["completeness_residual"], entry["verdict"]
    return [
        Text(printable(entry["id"])),
        Text(printable(best["name"] or f"class {best['class']}")),
        Text(verdict, _STYLE.get(verdict, "")),
        Text(f"{best['probability']:.3f}"),
        Text("—" if residual is None or not math.isfinite(residual) else f"{residual:.2%}"),
        Text("" if entry["steps"] is None else str(entry["steps"])),
        Text(f"{entry['seconds']:.2f}"),
    ]


def show_comparison(document: Mapping[str, Any], metrics: Mapping[str, Any]) -> None:
    """Print methods by metrics: means or medians with their intervals, the best in bold, controls below a rule."""
    cells = {(entry["method"], entry["metric"]): entry for entry in document["table"]}
    table = _ruled_table(("method",))
    for label, metric in metrics.items():
        table.add_column(f"{label.replace('_', ' ')} {ARROW[metric.direction]}".strip(), overflow="fold")
    for name in ("n", "flagged", "passes", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    methods = document["methods"]
    names = [method["label"] for method in methods if not method["control"]]
    best = {label: best_of([_value(cells[n, label]) for n in names], m.direction) for label, m in metrics.items()}
    for number, method in enumerate(methods, start=1):
        entries = {label: cells[method["label"], label] for label in metrics}
        scores = [_score(entry, None if method["control"] else best[label]) for label, entry in entries.items()]
        costs = map(Text, _costs(method, list(entries.values())))
        last = number == len(names) < len(methods)
        table.add_row(Text(printable(method["label"])), *scores, *costs, end_section=last)
    console = Console(highlight=False)
    _print_wide(console, table)
    console.print(Text(printable(_legend(document)), style="dim"), soft_wrap=True)


def show_card(card: "Card") -> None:
    """Print the scores of a card with those of blind maps, and where the method fails."""
    from fringe.cards import failures, not_measured, number, summarise_measurement, with_interval  # of the extra bench

    table = _ruled_table(("on", "metric"), ("score", "n", "best blind map"))
    lines = [summarise_measurement(measurement, card.seed) for measurement in card.measurements]
    for index, line in enumerate(lines):
        rival = "" if line.rival is None else f"{line.rival} {number(line.controls[line.rival].value)}"
        style = {True: "green", False: "yellow", None: ""}[line.beats_controls]
        following = lines[index + 1 : index + 2]
        table.add_row(
            Text(printable(line.measurement.subject)),
            Text(f"{line.title} {ARROW[line.kind.direction]}".strip()),
            Text(with_interval(line.score), style),
            Text(str(line.score.n)),
            Text(rival),
            end_section=any(other.measurement.part != line.measurement.part for other in following),
        )
    console = Console(highlight=False)
    _print_wide(console, table)
    passed = sum(check.passed for check in card.checks)
    if card.checks:
        console.print(f"checks: {passed} of {len(card.checks)} hold")
    counts = [f"{count:.0f} {name}" for name, count in card.passes.items() if count]
    console.print(f"cost of a map: {' + '.join(counts) or ('no passes' if card.passes else 'not measured')}")
    for title, sentences in (("where it fails:", failures(card, lines)), ("not measured:", not_measured(card))):
        console.print(Text(title if sentences else "", style="bold"), end="\n" if sentences else "")
        for sentence in sentences:
            _print_line(console, f"  {sentence}")


def show_validity(entries: Sequence[Mapping[str, Any]]) -> None:
    """Print how each metric did on degraded maps and against blind ones."""
    table = _ruled_table(("metric",))
    for name in ("validity", "power", "gap"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    for entry in entries:
        cells = [_score(entry["validity"], None)]
        cells += [Text("—" if entry[name] is None else _number(entry[name])) for name in ("power", "gap")]
        words = entry["verdict"] + (f": {entry['reason']}" if entry["reason"] else "")
        style = "bold red" if entry["verdict"] == "does not pass" else ""
        table.add_row(Text(printable(entry["metric"].replace("_", " "))), *cells, Text(printable(words), style=style))
    console = Console(highlight=False)
    _print_wide(console, table)
    words = "validity: order of degraded maps, from -1 to 1; power and gap: effect sizes, of moving 40 % of the pixels "
    console.print(Text(f"{words}and of the best method over the best control", style="dim"), soft_wrap=True)


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
    lines = [f"{summary} [95 % bootstrap interval over images]; {costs}"]
    if flags:
        lines.append(f"flagged scores: {', '.join(f'{name} {count}' for name, count in flags.items())}")
    return "\n".join(lines)


def show_status(document: Mapping[str, Any]) -> None:
    """Print what a run folder holds."""
    console = Console(highlight=False)
    if not document["plans"]:
        console.print("no plan yet: nothing was asked for in this folder")
    for name, plan in document["plans"].items():
        console.print(Text.assemble((printable(name), "bold"), f": {plan['images']} images"))
        table = _ruled_table(("model", "method"), ("scores", "failed", "missing", "done"))
        for row in _status_rows(plan["cells"]):
            table.add_row(*(Text(printable(cell)) for cell in row))
        _print_wide(console, table)
        lines = describe_failures(plan["failures"], (), SHOWN_REASONS)
        lines += [f"not read: {reason}" for reason in plan["not_read"][:SHOWN_REASONS]]
        lines += [f"results of several versions are mixed: {line}" for line in mixed(plan["versions"])]
        for line in lines:
            _print_line(console, f"  {line}")
    for path, problem in list(document["damaged"].items())[:SHOWN_REASONS]:
        _print_line(console, f"damaged: {path} {problem}; the next run sets it aside and makes it again")
    for line in describe_failures((), document["set_aside"], SHOWN_REASONS):
        _print_line(console, f"{line} (--retry-failed computes it again)")
    reasons = Counter((task["method"], task["model"], task["reason"]) for task in document["invalidated"])
    for (method, model, reason), units in reasons.most_common(SHOWN_REASONS):
        _print_line(console, f"no longer asked for: {method} on {model}, {units} units: {reason}")
    if document["trials"]:
        _print_line(console, f"kept from the trials of a search: {document['trials']} units")


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


def _ruled_table(names: Sequence[str], numbers: Sequence[str] = ()) -> Table:
    """A table with rules, columns of ``names`` on the left, and right-aligned ``numbers``."""
    table = Table(box=box.HORIZONTALS, show_edge=False, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _print_line(console: Console, text: str) -> None:
    """Print text that is not wrapped; control characters are escaped."""
    console.print(Text(printable(text)), soft_wrap=True)


def _print_wide(console: Console, table: Table) -> None:
    """Print a table; where no terminal limits a line, it is not wrapped."""
    if not console.is_terminal:
        console.width = console.measure(table, options=console.options.update(max_width=WIDTH)).maximum
    console.print(table)
