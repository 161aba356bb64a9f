"""Write ``llms.txt`` beside the built site: one line for each page, for readers that are programs (llmstxt.org)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.environment import BuildEnvironment

#: Pages below these have one line for all of them: a package's page names what it has.
CLOSED = "reference/"
#: Letters of what is said of a page.
LONGEST = 160


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def write(app: Any, failure: Exception | None) -> None:
    """Write the file into the root of the site."""
    if failure is None and app.builder.format == "html":
        Path(app.outdir, "llms.txt").write_text("\n".join(lines(app)), encoding="utf-8")


def lines(app: Any) -> list[str]:
    """What the site is, and its pages under the title of their first one, in the order of the tables of contents."""
    env, root = app.env, app.config.root_doc
    text = [f"# {app.config.project} {app.config.release}", "", f"> {_about(env, root, 400)}", ""]
    for top in env.toctree_includes[root]:
        text += [f"## {env.titles[top].astext()}", ""]
        text += [
            f"- [{env.titles[page].astext()}]({app.builder.get_target_uri(page)}): {_about(env, page)}".rstrip(": ")
            for page in _below(env, top)
        ]
        text.append("")
    return text


def _below(env: BuildEnvironment, page: str) -> Iterator[str]:
    """A page, and those that its tables of contents lead to."""
    yield page
    if not page.startswith(CLOSED) or page == f"{CLOSED}index":
        for child in env.toctree_includes.get(page, ()):
            yield from _below(env, child)


def _about(env: BuildEnvironment, page: str, most: int = LONGEST) -> str:
    """The first paragraph of a page that is no part of a list or a table, cut after a sentence or a word."""
    for paragraph in env.get_doctree(page).findall(nodes.paragraph):
        if isinstance(paragraph.parent, nodes.section) and (said := " ".join(paragraph.astext().split())):
            if len(said) <= most:
                return said
            whole = said[:most].rpartition(". ")[0]
            return f"{whole}." if whole else f"{said[:most].rpartition(' ')[0]} ..."
    return ""
