"""Numbers as people read them, and text as a terminal, a JSON file, a spreadsheet, Markdown and LaTeX may show it."""

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

#: What stands where there is no number.
_NONE = "–"
#: From here on a number is printed as a power of ten, as in the paper's tables.
_LARGE = 1000.0
#: Fewest and most decimals of a column of numbers; the paper prints three.
_DECIMALS = (3, 6)
_RAISED = "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"
_SUPERSCRIPT = str.maketrans("-0123456789", _RAISED)


def number(
    value: float | None,
    decimals: int | None = None,
    *,
    digits: int = 3,
    signed: bool = False,
    scientific: bool | None = None,
) -> str:
    """Return ``0.597``, ``12``, ``3.81×10³``, or a dash for None and numbers that are not finite.

    Args:
        value: The number; a whole number of type int is printed in full.
        decimals: Digits behind the point, for numbers that stand in one column; None for ``digits`` significant ones.
        digits: Significant digits of a number that stands alone, or of a power of ten.
        signed: Whether a positive number has its sign.
        scientific: Whether it is printed as a power of ten; by default a large number, and one that would be printed as
            zero and is not.
    """
    if value is None or not math.isfinite(value):
        return _NONE
    if isinstance(value, int):
        return str(value).replace("-", "−")
    if scientific is None and decimals is None:
        scientific = not 1e-4 <= abs(value) < 10**digits
    elif scientific is None:
        scientific = abs(value) >= _LARGE or round(value, decimals) == 0
    if scientific and value != 0.0:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        text = f"{mantissa}×10{str(int(exponent)).translate(_SUPERSCRIPT)}"
    else:
        text = f"{value:.{digits}g}" if decimals is None else f"{value:.{decimals}f}"
    return ("+" * (signed and value > 0) + text).replace("-", "−")


def with_interval(value: float | None, low: float | None, high: float | None, decimals: int | None = None) -> str:
    """Return ``0.325 [0.301, 0.350]``; without the interval if there is none."""
    text = number(value, decimals)
    if value is None or not math.isfinite(value) or low is None or high is None or not math.isfinite(low):
        return text
    return f"{text} [{number(low, decimals)}, {number(high, decimals)}]"


def decimals_for(spreads: Iterable[tuple[float, float]]) -> int:
    """Return how many decimals a column of numbers needs.

    Args:
        spreads: Each number and half the width of its interval.

    Returns:
        The fewest decimals, of three to six, with which no half of a width is printed as zero, except those that six
        show as zero, too, such as rounding, or that belong to a number printed as a power of ten.
    """
    fewest, most = _DECIMALS
    widths = [half for value, half in spreads if math.isfinite(value) and abs(value) < _LARGE and math.isfinite(half)]
    smallest = min((width for width in widths if round(width, most) > 0), default=1.0)
    return next(places for places in range(fewest, most + 1) if round(smallest, places) > 0)


def percent(share: float | None, decimals: int = 1) -> str:
    """Return ``62.3%``; a share that is not zero is not printed as zero."""
    if share is None or not math.isfinite(share):
        return _NONE
    least = 10.0 ** -(decimals + 2)
    text = f"< {least:.{decimals}%}" if 0 < share < least else f"{share:.{decimals}%}"
    return text.replace("-", "−")


def printable(text: str) -> str:
    r"""Replace each character that is not printable, except line feeds, by its escape: ``\x1b`` for ESC.

    Terminals obey control characters: a file name could move the cursor, change the window's title or hide what is
    printed. Characters without a width, such as those that turn the direction of text, hide what is written.
    """
    if text.isprintable():
        return text
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
    """A number of things, such as ``1 image``, ``3 images`` or ``3 boxes``."""
    return f"{number} {noun}{'' if number == 1 else 'es' if noun.endswith('x') else 's'}"


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


_MARKDOWN = re.compile(r"([\\`*_\[\]~|$])")
_MARKDOWN_START = re.compile(r"^(\d{0,9})([-+#>=.)])")
_LATEX = {
    "\\": r"\textbackslash{}",
    **{letter: f"\\{letter}" for letter in "{}$&#%_"},
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\char34{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": "$-$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "†": r"\dag{}",
    "‡": r"\ddag{}",
    "—": "---",
    "–": "--",
    **{raised: rf"\textsuperscript{{{plain}}}" for raised, plain in zip(_RAISED, ("$-$", *"0123456789"), strict=True)},
    **dict.fromkeys("«»ÐÞðþ", "?"),  # LaTeX's default fonts lack these
}


def one_line(text: str) -> str:
    """Return ``text`` with single spaces in place of line feeds and tabs."""
    return " ".join(text.split())


def escape_markdown(text: str) -> str:
    """Return ``text`` as Markdown that shows it and does nothing else, on one line: no markup, no HTML, no list, no
    mention, no formula."""
    line = _MARKDOWN.sub(r"\\\1", printable(one_line(text)).replace("&", "&amp;").replace("<", "&lt;"))
    return _MARKDOWN_START.sub(r"\1\\\2", line).replace("@", "&#64;")


def escape_latex(text: str) -> str:
    """Return ``text`` as LaTeX that prints it, on one line. What LaTeX's default fonts lack becomes a question mark."""
    return "".join(_LATEX.get(c, c if c.isprintable() and ord(c) < 256 else "?") for c in one_line(text))


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
