"""Two sets of numbers beside each other, as one HTML file."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from fringe.report.page import environment


@dataclass(frozen=True)
class BesideRow:
    """A number of ``theirs`` and of ``ours`` as text, and whether the intervals ``agree``; None where one has none.
    ``more`` are further numbers of ours."""

    names: tuple[str, ...]
    theirs: str
    ours: str
    n: int
    agree: bool | None
    more: tuple[str, ...] = ()


@dataclass(frozen=True)
class BesidePart:
    """A table of rows under a ``title``; ``columns`` head the rows' names, ``more`` their further numbers."""

    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[BesideRow, ...]
    more: tuple[str, ...] = ()


@dataclass(frozen=True)
class BesidePicture:
    """A PNG with its caption."""

    caption: str
    png: bytes

    @property
    def source(self) -> str:
        return "data:image/png;base64," + base64.b64encode(self.png).decode()


def beside_page(
    title: str,
    notes: Sequence[str],
    parts: Sequence[BesidePart],
    pictures: Sequence[BesidePicture] = (),
    readings: Sequence[str] = (),
) -> str:
    """The page: no script, no request, pictures inside, every name escaped. ``readings`` are sentences on what
    ``theirs`` leaves open."""
    page = environment().get_template("beside.html")
    return page.render(title=title, notes=notes, parts=parts, pictures=pictures, readings=readings)
