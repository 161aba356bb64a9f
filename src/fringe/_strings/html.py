"""HTML: one environment of templates, and pages that load nothing and run no script but their own.

All text is escaped by the templates. The scripts and styles of a page are named in its security policy by their hashes.
"""

import base64
import hashlib
from functools import cache
from operator import methodcaller
from typing import Any

import jinja2
from markupsafe import Markup

from fringe._strings.formats import number, percent, printable


def html_page(name: str, *, script: str = "", **content: Any) -> str:
    """Return a page as one HTML file.

    Args:
        name: Name of its template, which extends ``base.html.j2``.
        script: File of its script.
        content: What the template shows.
    """
    css, code = (Markup(_source(file)) if file else "" for file in ("style.css", script))
    hashes = [f"{kind}-src {policy_hash(text)}" for kind, text in (("style", css), ("script", code)) if text]
    policy = Markup("; ".join(("default-src 'none'; img-src data:", *hashes, "base-uri 'none'; form-action 'none'")))
    return render(name, css=css, script=code, policy=policy, **content)


def render(name: str, **content: Any) -> str:
    """Return a template filled with content."""
    return _environment().get_template(f"{name}.html.j2").render(**content)


def fragment(name: str, macro: str, *content: Any) -> str:
    """Return what a macro of a template makes of content."""
    return str(getattr(_environment().get_template(f"{name}.html.j2").module, macro)(*content)).strip()


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
        loader=jinja2.PackageLoader("fringe", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    words = methodcaller("replace", "_", " ")
    environment.filters.update(percent=percent, number=number, words=words, picture=_picture)
    return environment


def _visible(value: Any) -> Any:
    """Text without characters that hide or turn what is written."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _picture(png: bytes) -> str:
    """The address of a PNG file that is in the page."""
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"
