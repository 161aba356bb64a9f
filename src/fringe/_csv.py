"""Tables as CSV that a program reads exactly and a spreadsheet does not compute."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet would compute a text that begins with one of these; it gets an apostrophe in front."""


def to_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """``columns`` of the rows as text, under their names; by default those of the first row."""
    names = columns or (list(rows[0]) if rows else [])
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if names:
        writer.writerow(names)
    writer.writerows([cell(row[name]) for name in names] for row in rows)
    return out.getvalue()


def cell(value: Any) -> str:
    """A value as a cell: numbers exactly, nothing for None and what is not finite, and no text that is a formula."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return repr(value)
    text = str(value)
    return f"'{text}" if text.startswith(FORMULA) else text
