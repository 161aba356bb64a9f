"""Tables in LaTeX, in the layout of the paper's tables of one model: metrics as rows in groups, methods as columns."""

import math
import re
from collections.abc import Sequence

from fringe.report.groups import Group
from fringe.report.notes import count, flag_lines, incomplete, reading
from fringe.report.numbers import power, scientific, spread
from fringe.report.tables import Column, Table, TableCell, TableRow

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
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
    "—": "---",
    "–": "--",
}
_LACKING = "«»ÐÞðþ"
_ARROW = {"higher": r" $\uparrow$", "lower": r" $\downarrow$", "none": ""}

PREAMBLE = r"""% \usepackage{booktabs,makecell,graphicx}
\providecommand{\sci}[2]{\ensuremath{#1\times 10^{#2}}}
"""


def escape(text: str) -> str:
    """``text`` as LaTeX that prints it, on one line. What LaTeX's default fonts lack becomes a question mark: letters
    beyond Latin-1, and six of those."""
    line = " ".join(text.split())
    return "".join(_SPECIAL.get(c, c if c.isprintable() and ord(c) < 256 and c not in _LACKING else "?") for c in line)


def latex_document(tables: Sequence[Table]) -> str:
    """What a paper reads with ``\\input``."""
    return PREAMBLE + "".join(f"\n{latex_table(table)}" for table in tables)


def latex_table(table: Table) -> str:
    """One ``table*`` environment: the methods, the controls below them, and a line of flags. What is wider than the
    text is shrunk to it."""
    caption = " ".join(escape(sentence) for sentence in (f"{table.title}.", *reading(table)))
    blocks = _block(table, table.competing)
    if table.controls:
        blocks += [r"    \\\noalign{\vskip 6pt}", *_block(table, table.controls)]
    return "\n".join(
        [
            r"\begin{table*}[!htbp]",
            r"    \centering",
            r"    \scriptsize",
            r"    \setlength{\tabcolsep}{2.5pt}",
            r"    \renewcommand{\arraystretch}{1.2}",
            rf"    \caption{{{caption}}}",
            rf"    \label{{tab:{_slug(table.model)}}}",
            r"    \resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
            r"    \begin{tabular}{@{}c@{}}",
            *blocks,
            r"    \end{tabular}%",
            r"    }",
            r"    \par\smallskip",
            rf"    \parbox{{\textwidth}}{{{' '.join(escape(line) for line in flag_lines(table))}}}",
            r"\end{table*}",
            "",
        ]
    )


def _block(table: Table, rows: Sequence[TableRow]) -> list[str]:
    """An inner table of these methods or controls; all have one scale."""
    names = [_name(row, table) for row in rows]
    body = [line for group in table.groups for line in _group(group, table, rows)]
    return [
        rf"    \begin{{tabular}}{{l{'c' * len(rows)}}}",
        r"        \toprule",
        rf"        \textbf{{Metric}} & {' & '.join(names)} \\",
        r"        \midrule",
        *body[:-1],  # the rule below the last group is the table's own
        r"        \bottomrule",
        r"    \end{tabular}%",
    ]


def _name(row: TableRow, table: Table) -> str:
    bold = rf"\textbf{{{escape(row.method)}}}"
    if row.control:
        return rf"\makecell{{{bold}\\(control)}}"
    return rf"\makecell{{{bold}\\(reference)}}" if row.method == table.reference else bold


def _group(group: Group, table: Table, rows: Sequence[TableRow]) -> list[str]:
    span = len(rows) + 1
    lines = ["", rf"        \multicolumn{{{span}}}{{l}}{{\textit{{{escape(group.name)}}}}} \\", r"        \midrule"]
    for place in group.places:
        column = table.columns[place]
        cells = [latex_cell(row.cells[place], column) for row in rows]
        lines.append(rf"        {_title(column)} & {' & '.join(cells)} \\")
    return [*lines, r"        \midrule"]


def _title(column: Column) -> str:
    unit = f" ({column.unit})" if column.unit else ""
    return f"{escape(column.title + unit)}{_ARROW[column.direction]}"


def latex_cell(cell: TableCell, column: Column) -> str:
    """``\\textbf{\\underline{0.597$\\pm$0.015}}$^{**}_{n=64}$``."""
    text = _value(cell, column.decimals)
    if cell.best:
        text = rf"\textbf{{\underline{{{text}}}}}"
    elif cell.near_tie:
        text = rf"\textbf{{{text}}}"
    marks = cell.mark + (r"\dagger" if incomplete(cell) else "")
    number = count(cell).replace(" of ", r"\,\mathrm{of}\,")
    return f"{text}${f'^{{{marks}}}' if marks else ''}_{{{number}}}$"


def _value(cell: TableCell, decimals: int) -> str:
    found, width = cell.estimate, spread(cell.estimate)
    if not math.isfinite(found.value):
        return "---"
    as_power = scientific(found.value, decimals)
    text = _number(found.value, decimals, as_power)
    return rf"{text}$\pm${_number(width, decimals, as_power)}" if math.isfinite(width) else text


def _number(value: float, decimals: int, as_power: bool) -> str:
    sign = "$-$" if value < 0 else ""
    if as_power and value != 0:
        mantissa, exponent = power(abs(value))
        return rf"{sign}\sci{{{mantissa}}}{{{exponent}}}"
    return f"{sign}{abs(value):.{decimals}f}"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "model"
