"""The report as one HTML file that needs nothing beside it: no script, no request, pictures inside."""

import jinja2

from fringe.benchmark import Estimate
from fringe.report.content import Content
from fringe.report.notes import INCOMPLETE, count, flag_lines, incomplete, reading
from fringe.report.numbers import with_spread
from fringe.report.tables import Table, TableCell


def html_page(content: Content) -> str:
    """The page. Every name is escaped: a label, a class or a file may be called anything."""
    return _environment().get_template("report.html").render(content=content)


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fringe.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"value": _value, "marks": _marks, "count": count, "notes": _notes}
    return environment


def _notes(table: Table) -> list[str]:
    return [*reading(table), *flag_lines(table)]


def _value(found: Estimate, decimals: int) -> str:
    return with_spread(found, decimals)


def _marks(cell: TableCell) -> str:
    return cell.mark + (INCOMPLETE if incomplete(cell) else "")
