"""The forms of a report: HTML, Markdown and LaTeX, each a template over the same content.

Every text that is put into a template is escaped for its format, unless it is :class:`Markup`: a label, a class or a
file may be called anything.
"""

import base64
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jinja2
from markupsafe import Markup

from fringe._text import counted, printable
from fringe.bench.report._table import LARGE, UNFIT, Table, TableCell, half_width
from fringe.evaluation import LEVEL, NOT_BETTER, NOT_BETTER_MEANS, RESAMPLES, Estimate

#: Marks cells with images that were not computed.
INCOMPLETE = "†"
#: Pixels of a browser's inch.
INCH = 96
#: Pixels of an inch of a figure that comes as a file.
DRAWN = 150


@dataclass(frozen=True)
class SimpleTable:
    """A table of words and numbers; columns whose indices are in ``numeric`` are aligned right."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Image:
    """A figure as PNG under a ``name`` for its file."""

    name: str
    caption: str
    png: bytes

    @property
    def width(self) -> int:
        """Its natural width in pixels of a browser: the header of a PNG file says how many it has."""
        return round(int.from_bytes(self.png[16:20], "big") * INCH / DRAWN)

    @property
    def data(self) -> str:
        return base64.b64encode(self.png).decode("ascii")


@dataclass(frozen=True)
class Section:
    """Sentences, a table, lines and images under a title, as far as there are any."""

    title: str
    text: tuple[str, ...] = ()
    table: Table | None = None
    simple: SimpleTable | None = None
    lines: tuple[str, ...] = ()
    images: tuple[Image, ...] = ()


@dataclass(frozen=True)
class Chapter:
    """Sections under one headline."""

    title: str
    sections: tuple[Section, ...]


@dataclass(frozen=True)
class Report:
    """What a report says, before it has a form; ``header`` holds its first lines, ``commands`` can be copied."""

    title: str
    header: Mapping[str, str]
    protocol: tuple[str, ...]
    chapters: tuple[Chapter, ...]
    versions: SimpleTable
    how_to_rerun: str
    commands: tuple[str, ...]

    @property
    def images(self) -> tuple[Image, ...]:
        return tuple(image for c in self.chapters for section in c.sections for image in section.images)


def html_page(report: Report) -> str:
    """Return the report as one HTML file: no script, no request, images inside."""
    return _environment().get_template("report.html.j2").render(report=report)


def markdown_report(report: Report) -> str:
    """Return the report as Markdown; its images are in ``figures`` beside it."""
    return _environment(escape_markdown).get_template("report.md.j2").render(report=report)


def latex_document(tables: Sequence[Table]) -> str:
    """Return tables as LaTeX that a paper reads with ``\\input``, in the layout of the paper's tables of one model:
    metrics as rows in groups, methods as columns."""
    marks = {"block_start_string": "<%", "block_end_string": "%>", "comment_start_string": "<#"}
    marks |= {"comment_end_string": "#>", "variable_start_string": "<<", "variable_end_string": ">>"}
    return _environment(escape_latex, **marks).get_template("tables.tex.j2").render(tables=tables)


def _environment(escape: Callable[[str], str] | None = None, **marks: str) -> jinja2.Environment:
    """Return templates that escape what is put into them, and in which a missing name is an error."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fringe.bench.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=None if escape is None else partial(_finalize, escape),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **marks,  # pyright: ignore[reportArgumentType]
    )
    environment.filters.update({"slug": _slug, "tex": _tex_number})
    functions: dict[str, Any] = {"value": with_spread, "marks": _marks, "one_line": _one_line}
    functions |= {"notes": table_notes, "legend": legend, "flag_lines": flag_lines}
    environment.globals.update(functions)
    return environment


def _finalize(escape: Callable[[str], str], value: Any) -> Any:
    return value if hasattr(value, "__html__") else Markup(escape(str(value)))


# Numbers and sentences


def is_scientific(value: float, decimals: int) -> bool:
    """Return whether a number is printed as a power of ten: a large one, or one that would be printed as zero and is
    not."""
    return abs(value) >= LARGE or (value != 0 and round(value, decimals) == 0)


def format_number(value: float, decimals: int, *, scientific: bool | None = None) -> str:
    """Return ``0.597``, ``3.81×10³``, or a dash for NaN; ``scientific`` overrides the number's own size."""
    if not math.isfinite(value):
        return "—"
    if (is_scientific(value, decimals) if scientific is None else scientific) and value != 0:
        mantissa, exponent = f"{value:.2e}".split("e")
        text = f"{mantissa}×10{str(int(exponent)).translate(_SUPERSCRIPT)}"
    else:
        text = f"{value:.{decimals}f}"
    return text.replace("-", "−")


def with_spread(value: Estimate, decimals: int) -> str:
    """Return ``0.597 ± 0.015``; without the second half if there is no interval."""
    width, scientific = half_width(value), is_scientific(value.value, decimals)
    text = format_number(value.value, decimals)
    if not math.isfinite(value.value) or not math.isfinite(width):
        return text
    return f"{text} ± {format_number(width, decimals, scientific=scientific)}"


def table_notes(table: Table) -> list[str]:
    """Return the sentences below a table."""
    return [*legend(table), *flag_lines(table)]


def legend(table: Table) -> list[str]:
    """Return how to read the numbers and marks of a table."""
    means = [column.title for column in table.columns if column.summary == "mean"]
    medians = [column.title for column in table.columns if column.summary == "median"]
    clustered = any(cell.clustered for row in table.rows for cell in row.cells)
    unit = "clusters of images that share pixels" if clustered else "images"
    interval = f"mean ± half the width of the {LEVEL:.0%} bootstrap interval over {unit}"
    interval = f"{interval} ({RESAMPLES} resamples, seed {table.seed})"
    spread = "median ± half-IQR, (Q3 − Q1) / 2"
    if means and medians:
        last = f"{', '.join(medians[:-1])} and {medians[-1]}" if len(medians) > 1 else medians[0]
        lines = [f"Values: {interval}; for {last}: {spread}."]
    else:
        lines = [f"Values: {interval if means else spread}."]
    lines.append("n: images with a score. ↑: higher is better, ↓: lower is better.")
    lines.append(
        "Bold and underlined: the best method of a metric. Bold: its interval overlaps that of the best, which is no "
        "test. Controls are never bold."
    )
    for verdict, what in UNFIT.items():
        titles = [column.title for column in table.columns if column.verdict == verdict]
        lines += [f"{what}: {', '.join(titles)}. No method wins there."] if titles else []
    if table.comparisons:
        lines.append(
            f"*, **, ***: differs from {table.reference} on the same images with p < .05, .01, .001 (sign-flip test of "
            f"the paired differences, adjusted after Holm for the {table.comparisons} comparisons of this table)."
        )
    if tests := table.control_tests:
        lines.append(
            f"{NOT_BETTER_MEANS}. The greatest p of the sign-flip test against "
            f"each control counts, adjusted after Holm for {counted(len(tests), 'score')}. Such a score is no "
            "evidence for the map."
        )
    if any(cell.missing for row in table.rows for cell in row.cells):
        lines.append(f"{INCOMPLETE}: incomplete, images of this cell were not computed.")
    return lines


def flag_lines(table: Table) -> list[str]:
    """Return how often each flag is up: one line for the methods' scores and one for the controls'."""
    counts = {"methods": table.flags(controls=False), "controls": table.flags(controls=True)}
    lines = [f"Flagged scores of the {who}: {_counted(flags)}." for who, flags in counts.items() if flags]
    return lines or ["No score is flagged."]


def _counted(flags: Counter[tuple[str, str]]) -> str:
    """Return ``zero_map 8 (Sparseness 4, Infidelity 4)``."""
    by_flag: dict[str, list[tuple[str, int]]] = {}
    for (flag, title), number in flags.items():
        by_flag.setdefault(flag, []).append((title, number))
    parts = [
        f"{flag} {sum(n for _, n in metrics)} ({', '.join(f'{title} {n}' for title, n in metrics)})"
        for flag, metrics in by_flag.items()
    ]
    return "; ".join(parts)


def _marks(cell: TableCell) -> str:
    not_better = cell.control is not None and not cell.control.better
    return cell.mark + NOT_BETTER * not_better + (INCOMPLETE if cell.missing else "")


# Escapes

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_NORMAL = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
_POWER = re.compile("([0-9.]+)×10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)")
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
    "−": "$-$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "†": r"\dag{}",
    "‡": r"\ddag{}",
    "—": "---",
    "–": "--",
    **dict.fromkeys("«»ÐÞðþ", "?"),  # LaTeX's default fonts lack these
}


def escape_markdown(text: str) -> str:
    """Return ``text`` as Markdown that shows it and does nothing else, on one line: no markup, no HTML, no list, no
    mention, no formula."""
    line = _MARKDOWN.sub(r"\\\1", printable(_one_line(text)).replace("&", "&amp;").replace("<", "&lt;"))
    return _MARKDOWN_START.sub(r"\1\\\2", line).replace("@", "&#64;")


def escape_latex(text: str) -> str:
    """Return ``text`` as LaTeX that prints it, on one line. What LaTeX's default fonts lack becomes a question mark."""
    return "".join(_LATEX.get(c, c if c.isprintable() and ord(c) < 256 else "?") for c in _one_line(text))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _tex_number(text: str) -> Markup:
    """Return a number with its spread in LaTeX."""
    text = _POWER.sub(lambda m: rf"\sci{{{m[1]}}}{{{m[2].translate(_NORMAL)}}}", text)
    return Markup(text.replace(" ± ", r"$\pm$").replace("−", "$-$").replace("—", "---"))


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "model"
