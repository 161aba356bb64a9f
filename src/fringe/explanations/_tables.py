"""What a run on image files shows at its end: tables and lines, from the content of its summary."""

from collections.abc import Mapping
from typing import Any

from fringe._tables import Cell, Row, Table
from fringe.attribution import tone_of

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
