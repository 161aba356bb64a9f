"""Text as a terminal, a JSON file and a spreadsheet may show it."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any


def printable(text: str) -> str:
    r"""Replace each character that is not printable, except line feeds, by its escape: ``\x1b`` for ESC.

    Terminals obey control characters: a file name could move the cursor, change the window's title or hide what is
    printed. Characters without a width, such as those that turn the direction of text, hide what is written.
    """
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def printable_json(text: str) -> str:
    r"""Return a JSON document with the same content, in which such characters are written ``\u009b``."""
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def escape_surrogates(text: str) -> str:
    r"""Replace each half of a character, which a byte of a file name that is no UTF-8 becomes, by its escape: tables
    and files of text cannot hold it."""
    return text.encode(errors="backslashreplace").decode()


def first_paragraph(doc: str | None) -> str:
    """The first paragraph of a docstring as one line; empty for None."""
    return " ".join((doc or "").strip().split("\n\n")[0].split())


def counted(number: int, noun: str) -> str:
    """A number of things, such as ``1 image`` or ``3 images``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def to_json(document: Mapping[str, Any]) -> str:
    """The document as indented JSON that a terminal may show."""
    return printable_json(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)) + "\n"


def plain(value: Any) -> Any:
    """JSON data of nested values; tensors become lists, and numbers that are not finite None, which is not zero."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


#: A spreadsheet would compute a text that begins with one of these; it gets an apostrophe in front.
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def to_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """Return ``columns`` of the rows as CSV under their names; by default those of the first row."""
    names = columns or (list(rows[0]) if rows else [])
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if names:
        writer.writerow(names)
    writer.writerows([cell(row[name]) for name in names] for row in rows)
    return out.getvalue()


def cell(value: Any) -> str:
    """Return a value as a cell: numbers exactly, nothing for None and non-finite numbers, and no text as a formula."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return repr(value)
    text = str(value)
    return f"'{text}" if text.startswith(FORMULA) else text
