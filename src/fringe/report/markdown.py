"""Tables in Markdown, as GitHub and most other readers show it."""

import re
from collections.abc import Sequence

from fringe._text import printable
from fringe.report.content import Content, Part, Plain, Section
from fringe.report.notes import INCOMPLETE, count, flag_lines, incomplete, reading
from fringe.report.numbers import with_spread
from fringe.report.tables import Column, Table, TableCell, TableRow

_ACTIVE = re.compile(r"([\\`*_\[\]~|$])")
_LEADING = re.compile(r"^(\d{0,9})([-+#>=.)])")


def escape(text: str) -> str:
    """``text`` as Markdown that shows it and does nothing else, on one line: no markup, no HTML, no list, no mention,
    no formula."""
    line = _ACTIVE.sub(r"\\\1", printable(" ".join(text.split())).replace("&", "&amp;").replace("<", "&lt;"))
    return _LEADING.sub(r"\1\\\2", line).replace("@", "&#64;")


def markdown_report(content: Content) -> str:
    """The whole report; its pictures lie in ``figures`` beside it."""
    facts = [f"- {name}: **{escape(value)}**" for name, value in content.facts.items()]
    blocks = [
        f"# {escape(content.title)}",
        "\n".join(facts),
        "## Protocol",
        *map(escape, content.protocol),
        *(block for part in content.parts for block in _part(part)),
        "## Versions and commands",
        _plain(content.versions),
        escape(content.again),
        "\n".join(f"    {' '.join(command.split())}" for command in content.commands),
    ]
    return "\n\n".join(blocks) + "\n"


def _part(part: Part) -> list[str]:
    return [f"## {escape(part.title)}", *(block for section in part.sections for block in _section(section))]


def _section(section: Section) -> list[str]:
    blocks = [f"### {escape(section.title)}"]
    if section.table is not None:
        blocks.append(markdown_table(section.table))
    if section.plain is not None:
        blocks.append(_plain(section.plain))
    if section.lines:
        blocks.append("\n".join(f"- {escape(line)}" for line in section.lines))
    blocks += [f"![{escape(picture.caption)}](figures/{picture.name}.png)" for picture in section.pictures]
    return [*blocks, *map(escape, section.text)]


def _plain(table: Plain) -> str:
    rule = ["---:" if place in table.numeric else "---" for place in range(len(table.head))]
    rows = [_line([escape(value) for value in row]) for row in table.rows]
    return "\n".join([_line([escape(name) for name in table.head]), _line(rule), *rows])


def markdown_table(table: Table) -> str:
    """The table with methods as rows and the controls below, and the notes that it needs."""
    head = ["method", *(_heading(column) for column in table.columns)]
    lines = [_line(head), _line(["---", *("---:" for _ in table.columns)])]
    lines += [_row(row, table) for row in table.rows]
    notes = [f"- {escape(sentence)}" for sentence in (*reading(table), *flag_lines(table))]
    return "\n".join([*lines, "", *notes])


def _heading(column: Column) -> str:
    unit = f" ({column.unit})" if column.unit else ""
    return f"{escape(column.title + unit)} {column.arrow}".strip()


def _row(row: TableRow, table: Table) -> str:
    name = escape(row.method)
    kind = " (control)" if row.control else " (reference)" if row.method == table.reference else ""
    cells = [_cell(cell, column) for cell, column in zip(row.cells, table.columns, strict=True)]
    return _line([f"{name}{kind}", *cells])


def _cell(cell: TableCell, column: Column) -> str:
    text = with_spread(cell.estimate, column.decimals)
    if cell.best:
        text = f"**<ins>{text}</ins>**"
    elif cell.near_tie:
        text = f"**{text}**"
    marks = cell.mark.replace("*", r"\*") + (INCOMPLETE if incomplete(cell) else "")
    return f"{text}{f'<sup>{marks}</sup>' if marks else ''} <sub>{count(cell)}</sub>"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
