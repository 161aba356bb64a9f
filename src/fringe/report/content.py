"""What a report says, before it has a form: pages and texts are printed from this."""

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fringe.report.tables import Table

INCH = 96
"""Pixels of a browser's inch."""


class Drawing(Protocol):
    """A figure of the room that draws."""

    def savefig(self, fname: Any, *, format: str) -> None: ...
    def get_figwidth(self) -> float: ...


@dataclass(frozen=True)
class Plain:
    """A table of words and numbers; ``numeric`` are the places of columns that are set flush right."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Picture:
    """A figure as PNG under a ``name`` for its file; ``width`` is its natural one in pixels of a browser."""

    name: str
    caption: str
    png: bytes
    width: int

    @property
    def data(self) -> str:
        return base64.b64encode(self.png).decode("ascii")


@dataclass(frozen=True)
class Section:
    """Sentences, a table, lines and pictures under a title, as far as there are any."""

    title: str
    text: tuple[str, ...] = ()
    table: Table | None = None
    plain: Plain | None = None
    lines: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()


@dataclass(frozen=True)
class Part:
    """Sections under one headline."""

    title: str
    sections: tuple[Section, ...]


@dataclass(frozen=True)
class Content:
    """The whole report; ``facts`` are its first lines, ``commands`` can be copied."""

    title: str
    facts: Mapping[str, str]
    protocol: tuple[str, ...]
    parts: tuple[Part, ...]
    versions: Plain
    again: str
    commands: tuple[str, ...]

    @property
    def pictures(self) -> tuple[Picture, ...]:
        return tuple(p for part in self.parts for section in part.sections for p in section.pictures)


def as_picture(figure: Drawing, name: str, caption: str) -> Picture:
    """The figure as it is put into pages and files."""
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return Picture(name, caption, out.getvalue(), round(figure.get_figwidth() * INCH))
