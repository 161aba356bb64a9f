"""What a run on image files shows at its end: tables and lines, from the content of its summary."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fringe._tables import Styled, TextTable
from fringe.attribution import tone_of
from fringe.evaluation import NOT_BETTER
from fringe.metrics import ARROW, Metric, best_of

#: Rows of the table of explained images; the rest is in the summary.
SHOWN_IMAGES = 40
_STYLE = {"checked": "cyan", "fair": "yellow", "bad": "red", "plain": ""}


def describe_explanations(document: Mapping[str, Any]) -> list[str | TextTable]:
    """A table with one row per image."""
    entries, reused = document["inputs"], document["counts"]["reused"]
    others = any("error" not in e and e["target"]["class"] != e["prediction"]["class"] for e in entries)
    chance = "p(prediction)" if others else "p"  # whatever is explained
    numbers = (chance, "residual", "steps", "seconds")
    rows = [_image_row(entry) for entry in entries[:SHOWN_IMAGES]]
    names = ("id~", "prediction~", "verdict~", *numbers)
    if others:
        explained = ["" if "error" in entry else _class(entry["target"]) for entry in entries]
        rows = [[*row[:2], name, *row[2:]] for row, name in zip(rows, explained, strict=False)]
        names = (*names[:2], "explained~", *names[2:])
    parts: list[str | TextTable] = [TextTable(names, rows, numbers)]
    if len(entries) > SHOWN_IMAGES:
        parts.append(f"… and {len(entries) - SHOWN_IMAGES} more, in summary.json")
    parts.append("verdict: of the sum of a map; whether the map marks the right parts of the input is not checked")
    return [*parts, *([f"reused from an earlier run: {reused}"] if reused else [])]


def _image_row(entry: Mapping[str, Any]) -> list[str]:
    if "error" in entry:
        return [entry["id"] or entry["source"], "", Styled("failed", "red"), "", "", "", ""]
    best, residual, verdict = entry["prediction"], entry["completeness_residual"], entry["verdict"]
    return [
        *(entry["id"], _class(best), Styled(verdict, _STYLE[tone_of(verdict)])),
        f"{best['probability']:.3f}",
        "—" if residual is None or not math.isfinite(residual) else f"{residual:.2%}",
        "" if entry["steps"] is None else str(entry["steps"]),
        f"{entry['seconds']:.2f}",
    ]


def _class(entry: Mapping[str, Any]) -> str:
    return entry["name"] or f"class {entry['class']}"


def describe_comparison(document: Mapping[str, Any], metrics: Mapping[str, Metric]) -> list[str | TextTable]:
    """A table of methods by metrics: means or medians with their intervals, controls below a rule; the best is in
    bold unless a test does not tell it from the controls; then what is known of the metrics."""
    cells = {(entry["method"], entry["metric"]): entry for entry in document["table"]}
    methods = document["methods"]
    names = [method["label"] for method in methods if not method["control"]]
    best = {label: best_of([_value(cells[n, label]) for n in names], m.direction) for label, m in metrics.items()}
    rows: list[list[str]] = []
    for method in methods:
        entries = {label: cells[method["label"], label] for label in metrics}
        scores = [_score(entry, None if method["control"] else best[label]) for label, entry in entries.items()]
        rows.append([method["label"], *scores, *_costs(method, list(entries.values()))])
    titles = [f"{label.replace('_', ' ')} {ARROW[metric.direction]}".strip() for label, metric in metrics.items()]
    numbers = ("n", "flagged", "passes", "seconds")
    rules = (len(names) - 1,) if len(names) < len(methods) else ()
    parts = [
        TextTable(("method", *(f"{title}~" for title in titles), *numbers), rows, numbers, rules),
        _legend(document),
    ]
    return parts + (_describe_validity(document["validity"]["metrics"]) if "validity" in document else [])


def _describe_validity(entries: Sequence[Mapping[str, Any]]) -> list[str | TextTable]:
    """How each metric did on degraded maps and against blind ones."""
    rows: list[list[str]] = []
    for entry in entries:
        words = entry["verdict"] + (f": {entry['reason']}" if entry["reason"] else "")
        verdict = Styled(words, "bold red" if entry["verdict"] == "does not pass" else "")
        sizes = ["—" if entry[name] is None else _number(entry[name]) for name in ("power", "gap")]
        rows.append([entry["metric"].replace("_", " "), _score(entry["validity"], None), *sizes, verdict])
    numbers = ("validity", "power", "gap")
    words = "validity: order of degraded maps, from -1 to 1; power and gap: effect sizes, of moving 40 % of the pixels"
    table = TextTable(("metric", *numbers, "verdict~"), rows, numbers)
    return ["", table, f"{words} and of the best method over the best control"]


def _value(entry: Mapping[str, Any]) -> float | None:
    return entry[entry["summary"]]


def _score(entry: Mapping[str, Any], best: float | None) -> str:
    value = _value(entry)
    if value is None:
        return "—"
    interval = "" if entry["low"] is None else f" [{_number(entry['low'])}…{_number(entry['high'])}]"
    beaten = entry.get("better_than_controls") is not False
    mark = "" if beaten else NOT_BETTER
    return Styled(_number(value) + mark + interval, "bold" if value == best and beaten else "")


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
    marked = any(entry["better_than_controls"] is False for entry in document["table"])
    tested = (
        f"\n{NOT_BETTER}: not shown to be better than every control, the maps below the line: such a score tells "
        "nothing of the method (sign-flip tests over images, adjusted after Holm)" * marked
    )
    return f"{summary} [95 % bootstrap interval over images]; {costs}{tested}{counts}"
