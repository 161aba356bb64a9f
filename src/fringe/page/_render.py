"""Documents as HTML: the page of one explanation, and the index of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from fringe._files import write_atomic
from fringe._html import html_page
from fringe._tables import Cell, Table
from fringe._text import number, printable_json
from fringe.attribution import Attribution, Tone, tone_of
from fringe.page._build import SMALL, page_document
from fringe.page._document import Document

#: What a script inside HTML must not contain: the end of the script, a comment, and two ends of lines of JavaScript.
_JSON_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


@dataclass(frozen=True)
class IndexEntry:
    """An explained image in the index of a run: the name of its ``folder``, its picture as WebP in base64, what the
    model predicts, and the verdict. Without a folder there is no page: ``prediction`` then says why."""

    name: str
    folder: str
    thumbnail: str
    prediction: str
    verdict: str

    @property
    def link(self) -> str:
        return f"{quote(self.folder)}/explanation.html" if self.folder else ""

    @property
    def tone(self) -> Tone:
        return tone_of(self.verdict)


def render_page(document: Mapping[str, Any]) -> str:
    """Render an explanation as one HTML file, which loads nothing.

    Args:
        document: JSON data, as :func:`page_document` returns them.

    Returns:
        The page.

    Raises:
        InputError: If the document does not follow the schema.
    """
    checked = Document.of(document)
    text = json.dumps(checked.json_data(), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text = printable_json(text)
    for character, escape in _JSON_ESCAPES.items():
        text = text.replace(character, escape)
    images = checked.details.get("images of the batch")
    images = images if isinstance(images, int) and images > 1 else 1
    passes = {name: f"{n} ({number(n / images)} per image)" if images > 1 else n for name, n in checked.passes.items()}
    facts = {**checked.details, **{f"passes: {name}": count for name, count in passes.items()}}
    facts |= {**checked.settings, **{f"{name} version": version for name, version in checked.versions.items()}}
    return html_page(
        "page",
        script="page.js",
        page=checked,
        first=checked.classes[0],
        tables=list(_tables(checked)),
        facts=[(name, _fact(value)) for name, value in facts.items()],
        smooth=max(checked.width, checked.height) > SMALL,
        data=Markup(text),
    )


def _tables(page: Document) -> Iterator[Table]:
    """The numbers of the explained classes, and those along the path."""
    classes = [
        (
            *(one.label, Cell(one.probability, share=True), one.score, one.endpoint_score),
            *(Cell(one.residual, share=True), one.verdict.replace("_", " ")),
        )
        for one in page.classes
    ]
    names = ("class", "probability", "score of the input", "score at the end", "missed share", "verdict")
    yield Table(names, classes, "Explained classes")
    if page.path is not None:
        along = [
            (str(point.step), point.entropy, *(Cell(share, share=True) for share in point.probabilities))
            for point in page.snapshots
        ]
        title = f"Prediction along the path (entropy in nats, at most {number(page.path.largest_entropy)})"
        yield Table(("step", "entropy", *(label.label for label in page.predictions)), along, title)


def write_page(result: Attribution, path: str | Path, row: int = 0) -> Path:
    """Write the page of an explanation: one HTML file that works without a network.

    Args:
        result: An attribution of images with context, as :func:`fringe.explain` returns it.
        path: The file.
        row: Number of the input.

    Returns:
        The file.

    Raises:
        InputError: If the attribution has no such input, no context, or is not of images.
        OSError: If the file cannot be written.
    """
    target = Path(path)
    write_atomic(target, render_page(page_document(result, row)).encode())
    return target


def render_index(title: str, entries: Sequence[IndexEntry]) -> str:
    """Return the index of a run as one HTML file: pictures, predictions and verdicts, with links to the pages."""
    verdicts = list(dict.fromkeys(entry.verdict for entry in entries))
    counts = [(verdict, sum(entry.verdict == verdict for entry in entries)) for verdict in verdicts]
    return html_page("index", script="index.js", title=title, entries=entries, counts=counts)


def _fact(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.6g}"  # a setting, as it is typed
    return json.dumps(value, ensure_ascii=False)
