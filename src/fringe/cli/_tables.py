"""Tables on the terminal."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fringe._text import printable

#: Letters in a line where no terminal says how many it shows.
WIDTH = 400


def new_console() -> Console:
    """A console without automatic highlighting."""
    return Console(highlight=False)


def print_line(console: Console, text: str) -> None:
    """Print text that is not wrapped; control characters are escaped."""
    console.print(Text(printable(text)), soft_wrap=True)


def print_table(
    console: Console, names: Sequence[str], numbers: Sequence[str], rows: Iterable[Sequence[str | Text]]
) -> None:
    """Print a table with columns of ``names`` on the left and right-aligned ``numbers``."""
    table = Table(box=box.HORIZONTALS, show_edge=False, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(printable(cell)) for cell in row))
    print_wide(console, table)


def print_wide(console: Console, table: Table) -> None:
    """Print a table; where no terminal limits a line, it is not wrapped."""
    if not console.is_terminal:
        console.width = console.measure(table, options=console.options.update(max_width=WIDTH)).maximum
    console.print(table)
