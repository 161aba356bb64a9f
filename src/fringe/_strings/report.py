"""A report, and its forms: HTML, Markdown and LaTeX, each from the same content."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fringe._strings import html as _html
from fringe._strings.formats import escape_markdown, one_line
from fringe._strings.tables import Table

#: Pixels of a browser's inch.
INCH = 96
#: Pixels of an inch of a figure that comes as a file.
DRAWN = 150


@dataclass(frozen=True)
class Image:
    """A figure as PNG under a ``name`` for its file."""

    name: str
    caption: str
    png: bytes

    @property
    def width(self) -> int:
        """Its natural width in pixels of a browser: the header of a PNG file says how many it has."""
        return round(int.from_bytes(self.png[16:20], "big") * INCH / DRAWN)


@dataclass(frozen=True)
class Section:
    """Sentences, a table, lines, images, commands and further sections under a title, as far as there are any."""

    title: str
    text: tuple[str, ...] = ()
    table: Table | None = None
    lines: tuple[str, ...] = ()
    images: tuple[Image, ...] = ()
    commands: tuple[str, ...] = ()
    sections: tuple["Section", ...] = ()


@dataclass(frozen=True)
class Report:
    """What a report says, before it has a form; ``header`` holds its first lines."""

    title: str
    header: Mapping[str, str]
    chapters: tuple[Section, ...]

    @property
    def images(self) -> tuple[Image, ...]:
        return tuple(image for chapter in self.chapters for section in chapter.sections for image in section.images)


def versions_chapter(versions: Mapping[str, str], text: str = "", commands: Sequence[str] = ()) -> Section:
    """Return the last chapter of a report: the versions of libraries, and commands that can be copied."""
    table = Table(("what", "version"), tuple(versions.items()), "Versions")
    title = "Versions and commands" if commands else "Versions"
    return Section(title, (text,) if text else (), table, commands=tuple(commands))


def html_page(report: Report) -> str:
    """Return the report as one HTML file: no script, no request, images inside."""
    return _html.html_page("report", title=report.title, report=report)


def markdown_report(report: Report) -> str:
    """Return the report as Markdown; its images are in ``figures`` beside it."""
    header = "\n".join(
        f"- {escape_markdown(name)}: **{escape_markdown(text)}**" for name, text in report.header.items()
    )
    parts = [f"# {escape_markdown(report.title)}", *([header] if header else [])]
    for chapter in report.chapters:
        parts += [f"## {escape_markdown(chapter.title)}", *_markdown(chapter)]
        for section in chapter.sections:
            parts += [f"### {escape_markdown(section.title)}", *_markdown(section)]
    return "\n\n".join(parts) + "\n"


def _markdown(section: Section) -> Iterator[str]:
    if section.table is not None:
        yield section.table.markdown()
    if section.lines:
        yield "\n".join(f"- {escape_markdown(line)}" for line in section.lines)
    for image in section.images:
        yield f"![{escape_markdown(image.caption)}](figures/{image.name}.png)"
    yield from map(escape_markdown, section.text)
    if section.commands:
        yield "\n".join(f"    {one_line(command)}" for command in section.commands)


def latex_document(tables: Mapping[str, Table]) -> str:
    """Return tables of models as LaTeX that a paper reads with ``\\input``, in the layout of the paper's tables of one
    model: metrics as rows in groups, methods as columns."""
    packages = "% \\usepackage{booktabs,makecell,graphicx}\n"
    labels = {model: re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-") or "model" for model in tables}
    return packages + "".join(f"\n{table.latex(labels[model])}" for model, table in tables.items())
