"""What a run on image files shows at its end: tables and lines, from the content of its summary."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fringe._tables import Cell, Row, Table
from fringe.attribution import tone_of
from fringe.evaluation import score_table, validity_table
from fringe.metrics import Metric

#: Rows of the table of explained images; the rest is in the summary.
SHOWN_IMAGES = 40


def describe_explanations(document: Mapping[str, Any]) -> list[str | Table]:
    """A table with one row per image."""
    entries, reused = document["inputs"], document["counts"]["reused"]
    others = any("error" not in e and e["target"]["class"] != e["prediction"]["class"] for e in entries)
    chance = "p(prediction)" if others else "p"  # whatever is explained
    rows = [_image_row(entry) for entry in entries[:SHOWN_IMAGES]]
    names = ("id", "prediction", "verdict", chance, "residual", "steps", "seconds")
    if others:
        explained = ["" if "error" in entry else _class(entry["target"]) for entry in entries]
        rows = [[*row[:2], name, *row[2:]] for row, name in zip(rows, explained, strict=False)]
        names = (*names[:2], "explained", *names[2:])
    parts: list[str | Table] = [Table(names, rows)]
    if len(entries) > SHOWN_IMAGES:
        parts.append(f"… and {len(entries) - SHOWN_IMAGES} more, in summary.json")
    parts.append("verdict: of the sum of a map; whether the map marks the right parts of the input is not checked")
    return [*parts, *([f"reused from an earlier run: {reused}"] if reused else [])]


def _image_row(entry: Mapping[str, Any]) -> Row:
    if "error" in entry:
        return [entry["id"] or entry["source"], "", Cell("failed", style="bad"), "", "", "", ""]
    best, steps, verdict = entry["prediction"], entry["steps"], entry["verdict"]
    return [
        *(entry["id"], _class(best), Cell(verdict, style=tone_of(verdict)), Cell(best["probability"], 3)),
        *(Cell(entry["completeness_residual"], 2, share=True), "" if steps is None else steps),
        Cell(entry["seconds"], 2),
    ]


def _class(entry: Mapping[str, Any]) -> str:
    return entry["name"] or f"class {entry['class']}"


def describe_comparison(document: Mapping[str, Any], metrics: Mapping[str, Metric]) -> list[str | Table]:
    """A table of methods by metrics: means or medians with their intervals, the best in bold, controls below a rule;
    then what is known of the metrics."""
    entries: dict[str, list[Mapping[str, Any]]] = {}
    for entry in document["table"]:
        entries.setdefault(entry["method"], []).append(entry)
    costs = {method["label"]: _costs(method, entries[method["label"]]) for method in document["methods"]}
    table = score_table(document["table"], metrics, costs, ("n", "flagged", "passes", "seconds"))
    parts = [table, _legend(document)]
    return parts + ([validity_table(document["validity"]["metrics"])] if "validity" in document else [])


def _costs(method: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> Row:
    """How many images have a score, how many scores are flagged, and the passes and seconds of one map."""
    counts = sorted({entry["n"] for entry in entries if entry["n"]}) or [0]
    flagged, passes = sum(entry["flagged"] for entry in entries), sum(method["passes"].values())
    images = max(method["images"], 1)
    cost = (Cell(passes / images, 0), Cell(method["seconds"] / images, 2)) if passes else ("", "")
    n = counts[0] if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"
    return (n, flagged or "", *cost)


def _legend(document: Mapping[str, Any]) -> str:
    flags = Counter[str]()
    for entry in document["table"]:
        flags.update(entry["flags"])
    medians = sorted({e["metric"].replace("_", " ") for e in document["table"] if e["summary"] == "median"})
    summary = f"mean (median for {', '.join(medians)})" if medians else "mean"
    costs = "n: images with a score; passes and seconds: of one image's map"
    counts = f"\nflagged scores: {', '.join(f'{name} {count}' for name, count in flags.items())}" if flags else ""
    return f"{summary} [95 % bootstrap interval over images]; {costs}{counts}"
