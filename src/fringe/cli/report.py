"""The last lines of a run, for people."""

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fringe._text import printable
from fringe.cli.record import Explained, Failed, Run, steps_of, top_classes

SHOWN = 40
"""Rows of the table; the rest is in the summary."""

_STYLE = {
    "ok": "green",
    "short": "yellow",
    "coarse": "yellow",
    "stalled": "yellow",
    "diverged": "red",
    "at_reference": "cyan",
    "unchecked": "dim",
}


class Report:
    """Collects a row an input and prints them as one table."""

    def __init__(self) -> None:
        self._table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("id", "prediction", "verdict"):
            self._table.add_column(name, overflow="fold")
        for name in ("p", "residual", "steps", "seconds"):
            self._table.add_column(name, justify="right", no_wrap=True)
        self._rows = 0

    def add(self, items: Sequence[Explained | Failed], run: Run) -> None:
        for item in items:
            self._rows += 1
            if self._rows <= SHOWN:
                self._table.add_row(*(_failed_row(item) if isinstance(item, Failed) else _row(item, run)))

    def show(self) -> None:
        Console(highlight=False).print(self._table)
        if self._rows > SHOWN:
            Console(highlight=False).print(f"… and {self._rows - SHOWN} more, in summary.json")


def _row(item: Explained, run: Run) -> list[Text]:
    best, verdict = top_classes(item.logits, run, 1)[0], item.found.verdict[item.row]
    residual, steps = float(item.found.completeness_residual[item.row]), steps_of(item)
    return [
        Text(printable(item.ref.id)),
        Text(printable(run.class_label(best["class"]))),
        Text(verdict, _STYLE.get(verdict, "")),
        Text(f"{best['probability']:.3f}"),
        Text(f"{residual:.2%}" if math.isfinite(residual) else "—"),
        Text("" if steps is None else str(steps)),
        Text(f"{item.seconds:.2f}"),
    ]


def _failed_row(failure: Failed) -> list[Text]:
    return [Text(printable(failure.id or failure.source)), Text(""), Text("failed", "red"), *[Text("")] * 4]
