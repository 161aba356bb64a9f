"""The report as one HTML file that needs nothing beside it: no script, no request, pictures inside."""

import jinja2

from fringe.report.content import Content
from fringe.report.notes import INCOMPLETE, count, flag_lines, incomplete, reading
from fringe.report.numbers import with_spread
from fringe.report.tables import Table, TableCell


def html_page(content: Content) -> str:
    """The page. Every name is escaped: a label, a class or a file may be called anything."""
    page = environment().get_template("report.html")
    return page.render(content=content, value=with_spread, marks=_marks, count=count, notes=_notes)


def environment() -> jinja2.Environment:
    """Templates of this room: what is put into them is escaped, and a name that is missing is an error."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("fringe.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _notes(table: Table) -> list[str]:
    return [*reading(table), *flag_lines(table)]


def _marks(cell: TableCell) -> str:
    return cell.mark + (INCOMPLETE if incomplete(cell) else "")
