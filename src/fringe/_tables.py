"""Tables as text, on a terminal or as lines, and as frames of pandas or polars; and which of two scores is better."""

import importlib
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fringe._text import printable
from fringe.errors import InputError, install_hint, require_choice

#: Letters in a line where no terminal says how many it shows.
WIDTH = 400


class Styled(str):
    """A cell with a style of rich, such as "bold red"."""

    style: str

    def __new__(cls, text: str, style: str = "") -> "Styled":
        cell = super().__new__(cls, text)
        cell.style = style
        return cell


@dataclass(frozen=True)
class TextTable:
    """A table of words and numbers; ``print(table)`` shows its lines.

    Attributes:
        columns: Headers; that of a column that a narrow terminal wraps ends with "~".
        rows: Cells of each row; control characters are shown as escapes.
        numbers: Those of the headers whose columns stand on the right.
        rules: Numbers of rows, from 0, that a rule follows.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[str] = ()
    rules: Sequence[int] = ()

    def show(self, file: Any = None) -> None:
        """Print the table; where no terminal limits a line, it is not wrapped."""
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.HORIZONTALS, show_edge=False, pad_edge=False, header_style="bold")
        for name in self.columns:
            justify, wraps = "right" if name in self.numbers else "left", name.endswith("~")
            table.add_column(name.rstrip("~"), justify=justify, no_wrap=not wraps, overflow="fold")
        for number, row in enumerate(self.rows):
            cells = (Text(printable(cell), getattr(cell, "style", "")) for cell in row)
            table.add_row(*cells, end_section=number in self.rules)
        console = Console(highlight=False, file=file)
        if not console.is_terminal:
            console.width = console.measure(table, options=console.options.update(max_width=WIDTH)).maximum
        console.print(table)

    def __str__(self) -> str:
        text = io.StringIO()
        self.show(text)
        return text.getvalue()


FrameLibrary = Literal["pandas", "polars"]
_EXTRAS = {"pandas": "notebook", "polars": "bench"}


def make_frame(rows: Sequence[Mapping[str, Any]], library: FrameLibrary) -> Any:
    """Make a table of rows that have the same names.

    Raises:
        InputError: If the library is unknown or not installed.
    """
    require_choice("library", library, tuple(_EXTRAS))
    try:
        module = importlib.import_module(library)
    except ModuleNotFoundError as error:
        other = "polars" if library == "pandas" else "pandas"
        hint = f"{install_hint(_EXTRAS[library])}, or pass library={other!r}"
        raise InputError(f"{library} is not installed", argument="library", hint=hint) from error
    return module.DataFrame({name: [row[name] for row in rows] for name in (rows[0] if rows else ())})


#: Which values are better; "none" for a number that describes without a better or worse.
Direction = Literal["higher", "lower", "none"]
#: How a table marks the direction.
ARROW: Mapping[Direction, str] = {"higher": "↑", "lower": "↓", "none": ""}


def best_of(values: Sequence[float | None], direction: Direction) -> float | None:
    """Return the best of the finite ``values``; None if no value is finite, or no direction is better."""
    finite = [v for v in values if v is not None and math.isfinite(v)]
    if direction == "none" or not finite:
        return None
    return max(finite) if direction == "higher" else min(finite)
