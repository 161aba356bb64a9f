"""The table: rows of values that are printed as text, Markdown, HTML and LaTeX; frames; and which score is better."""

import importlib
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fringe._strings.formats import escape_latex, escape_markdown, percent, printable, with_interval
from fringe.errors import InputError, install_hint, require_choice

#: Letters in a line where no terminal says how many it shows.
WIDTH = 400

#: What a cell is: the best of its column, near to it, or as good as a verdict says.
Style = Literal["", "best", "near", "checked", "fair", "bad", "plain"]
_COLOURS: Mapping[Style, str] = {
    "best": "bold underline",
    "near": "bold",
    "checked": "cyan",
    "fair": "yellow",
    "bad": "red",
}


@dataclass(frozen=True)
class Cell:
    """A value of a table with what stands around it.

    Attributes:
        value: A text, a number, a yes or no, or None for nothing.
        decimals: Decimals of a number; None for three significant digits.
        share: Whether the number is a share, which is printed in percent.
        ends: The ends of its interval.
        style: What it is among the others.
        mark: Signs that are raised behind it.
        note: Small words after it.
        hint: What a page says of the mark to those who point at it.
    """

    value: str | float | bool | None
    decimals: int | None = None
    share: bool = False
    ends: tuple[float | None, float | None] = (None, None)
    style: Style = ""
    mark: str = ""
    note: str = ""
    hint: str = ""

    @property
    def is_number(self) -> bool:
        return isinstance(self.value, int | float) and not isinstance(self.value, bool)

    @property
    def text(self) -> str:
        """The value in letters."""
        if isinstance(self.value, bool):
            return "yes" if self.value else "no"
        if isinstance(self.value, str):
            return self.value
        if self.share:
            return percent(self.value, 1 if self.decimals is None else self.decimals)
        return with_interval(self.value, *self.ends, self.decimals)

    @property
    def is_long(self) -> bool:
        return len(self.text) > 40


Row = Sequence[Cell | str | float | bool | None]


@dataclass(frozen=True)
class Table:
    """A table of words and numbers; ``print(table)`` shows its lines. Columns that hold a number stand on the right.

    Attributes:
        columns: Headers.
        rows: Values of each row; the first names it.
        title: What the table shows.
        rules: Numbers of rows, from 0, that a rule follows.
        groups: Headers above those of some columns each, after the first column; with how many columns each has.
        notes: Sentences below it.
    """

    columns: Sequence[str]
    rows: Sequence[Row]
    title: str = ""
    rules: Sequence[int] = ()
    groups: Sequence[tuple[str, int]] = ()
    notes: Sequence[str] = ()

    @property
    def cells(self) -> list[list[Cell]]:
        """The cells of each row."""
        return [[value if isinstance(value, Cell) else Cell(value) for value in row] for row in self.rows]

    @property
    def parts(self) -> list[list[list[Cell]]]:
        """The cells of each row, parted by the rules."""
        ends = [*(rule + 1 for rule in self.rules), len(self.rows)]
        return [self.cells[start:end] for start, end in zip([0, *ends], ends, strict=False) if end > start]

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers."""
        cells = self.cells
        return [any(row[index].is_number for row in cells) for index in range(len(self.columns))]

    def show(self, file: Any = None) -> None:
        """Print the table; where no terminal limits a line, it is not wrapped."""
        from rich import box
        from rich.console import Console
        from rich.table import Table as Grid
        from rich.text import Text

        grid = Grid(box=box.HORIZONTALS, show_edge=False, pad_edge=False, header_style="bold")
        cells, numeric = self.cells, self.numeric
        for index, name in enumerate(self.columns):
            column = [row[index] for row in cells]
            # marks and intervals stand at the end, so that decimals of one number each stand below each other
            more = any(cell.mark or "[" in cell.text for cell in column)
            short = numeric[index] and not more
            grid.add_column(name, justify="right" if short else "left", no_wrap=short, overflow="fold")
        for index, row in enumerate(cells):
            words = [f"{cell.text}{cell.mark}" + (f" ({cell.note})" if cell.note else "") for cell in row]
            looks = (_COLOURS.get(cell.style, "") for cell in row)
            letters = (Text(printable(text), look) for text, look in zip(words, looks, strict=True))
            grid.add_row(*letters, end_section=index in self.rules)
        console = Console(highlight=False, file=file, force_jupyter=False)  # a notebook shows the HTML
        if not console.is_terminal:
            console.width = console.measure(grid, options=console.options.update(max_width=WIDTH)).maximum
        console.print(grid)
        for note in self.notes:
            console.print(Text(printable(note)), soft_wrap=True)

    def __str__(self) -> str:
        text = io.StringIO()
        self.show(text)
        return text.getvalue()

    def markdown(self) -> str:
        """Return the table and its notes as Markdown, in which every text is shown and does nothing else."""
        rule = ["---:" if is_number else "---" for is_number in self.numeric]
        head = [escape_markdown(name) for name in self.columns]
        lines = [head, rule, *([_markdown(cell) for cell in row] for row in self.cells)]
        notes = "".join(f"\n- {escape_markdown(note)}" for note in self.notes)
        return "\n".join(f"| {' | '.join(line)} |" for line in lines) + (f"\n{notes}" if notes else "")

    def latex(self, label: str) -> str:
        """Return the table as LaTeX for the packages booktabs, makecell and graphicx, in the layout of the paper's
        tables: columns become rows, in their groups, and each part between two rules is a block of its own."""
        blocks = "\n    \\\\\\noalign{\\vskip 6pt}\n".join(map(self._latex_block, self.parts))
        notes = " ".join(map(escape_latex, self.notes))
        return (
            "\\begin{table*}[!htbp]\n    \\centering\n    \\scriptsize\n    \\setlength{\\tabcolsep}{2.5pt}\n"
            f"    \\renewcommand{{\\arraystretch}}{{1.2}}\n    \\caption{{{escape_latex(self.title)}.}}\n"
            f"    \\label{{tab:{label}}}\n"
            "    \\resizebox{\\ifdim\\width>\\textwidth\\textwidth\\else\\width\\fi}{!}{%\n"
            "    \\begin{tabular}{@{}c@{}}\n"
            f"{blocks}\n    \\end{{tabular}}%\n    }}\n    \\par\\smallskip\n    \\parbox{{\\textwidth}}{{{notes}}}\n"
            "\\end{table*}\n"
        )

    def _latex_block(self, rows: Sequence[Sequence[Cell]]) -> str:
        names = [_latex(Cell(cell.value, note=cell.note, style="near")) for cell in (row[0] for row in rows)]
        lines = ["\\toprule", " & ".join(["\\textbf{Metric}", *names]) + " \\\\"]
        first = 1
        for group, count in self.groups or (("", len(self.columns) - 1),):
            lines.append("\\midrule")
            if group:
                lines += [rf"\multicolumn{{{len(rows) + 1}}}{{l}}{{\textit{{{escape_latex(group)}}}}} \\", "\\midrule"]
            for index in range(first, first + count):
                cells = [escape_latex(self.columns[index]), *(_latex(row[index]) for row in rows)]
                lines.append(" & ".join(cells) + " \\\\")
            first += count
        content = "".join(f"        {line}\n" for line in [*lines, "\\bottomrule"])
        return f"    \\begin{{tabular}}{{l{'c' * len(rows)}}}\n{content}    \\end{{tabular}}%"


def _markdown(cell: Cell) -> str:
    text = cell.text if cell.is_number else escape_markdown(cell.text)
    text = {"best": f"**<ins>{text}</ins>**", "near": f"**{text}**"}.get(cell.style, text)
    text += f"<sup>{escape_markdown(cell.mark)}</sup>" if cell.mark else ""
    note = escape_markdown(cell.note)
    return text + (f" <sub>{note}</sub>" if note and cell.is_number else f" ({note})" if note else "")


def _latex(cell: Cell) -> str:
    value, bracket, ends = cell.text.partition(" [") if cell.is_number else (cell.text, "", "")
    text, mark, note = map(escape_latex, (value, cell.mark, cell.note))
    bold = {"best": rf"\textbf{{\underline{{{text}}}}}", "near": rf"\textbf{{{text}}}"}.get(cell.style, text)
    if not cell.is_number:
        return rf"\makecell{{{bold}\\({note})}}" if note else bold
    text = bold + (rf"\textsuperscript{{{mark}}}" if mark else "") + (rf"\textsubscript{{{note}}}" if note else "")
    return rf"\makecell{{{text}\\{{\tiny[{escape_latex(ends)}}}}}" if bracket else text  # below: columns are narrow


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
