"""Documents as HTML: the page of one explanation, and the index of a run.

All text is escaped by the templates. The scripts and styles of a page are named in its security policy by their hashes,
so that no other script runs, and nothing is loaded from anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from fringe._files import write_atomic
from fringe._text import printable, printable_json
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
    passes = {name: f"{n} ({n / images:.4g} per image)" if images > 1 else n for name, n in checked.passes.items()}
    facts = {**checked.details, **{f"passes: {name}": count for name, count in passes.items()}}
    facts |= {**checked.settings, **{f"{name} version": version for name, version in checked.versions.items()}}
    return _render(
        "page",
        page=checked,
        first=checked.classes[0],
        facts=[(name, _fact(value)) for name, value in facts.items()],
        smooth=max(checked.width, checked.height) > SMALL,
        data=Markup(text),
    )


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
    return _render("index", title=title, entries=entries, counts=counts)


def _render(name: str, **content: Any) -> str:
    css, script = _source("page.css"), _source(f"{name}.js")
    policy = (
        f"default-src 'none'; img-src data:; style-src {policy_hash(css)}; script-src {policy_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    template = _environment().get_template(f"{name}.html.j2")
    return template.render(css=Markup(css), script=Markup(script), policy=Markup(policy), **content)


def policy_hash(text: str) -> str:
    """Return how a security policy names a script or a style inside a page."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"


def _source(name: str) -> str:
    environment = _environment()
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


@cache
def _environment() -> jinja2.Environment:
    """Templates that escape what is put into them, and in which a missing name is an error."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fringe.page", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=_percent, number=_number, words=_words)
    return environment


def _visible(value: Any) -> Any:
    """Text without characters that hide or turn what is written."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _percent(share: float | None) -> str:
    if share is None:
        return "–"
    return "< 0.1 %" if 0 < share < 1e-3 else f"{share:.1%}".replace("%", " %")


def _words(name: str) -> str:
    return name.replace("_", " ")


def _number(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.4g}"


def _fact(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.6g}"
    return json.dumps(value, ensure_ascii=False)
