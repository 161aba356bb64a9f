"""Write ``llms.txt`` beside the built site: one line for each page, for readers that are programs (llmstxt.org)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
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
    """What the site is, and its pages in the order of the tables of contents: under the caption of their table, or
    under the title of their first page."""
    env, root = app.env, app.config.root_doc
    text = [f"# {app.config.project} {app.config.release}", "", f"> {_about(env, root, 400)}", ""]
    for table in env.get_doctree(root).findall(addnodes.toctree):
        caption, tops = table.get("caption"), table["includefiles"]
        for name, group in [(caption, tops)] if caption else [(env.titles[top].astext(), [top]) for top in tops]:
            text += [f"## {name}", "", *(_line(app, page) for top in group for page in _below(env, top)), ""]
    return text


def _line(app: Any, page: str) -> str:
    """The title of a page with its address, and what it says first."""
    link = f"- [{app.env.titles[page].astext()}]({app.builder.get_target_uri(page)})"
    return f"{link}: {_about(app.env, page)}".rstrip(": ")


def _below(env: BuildEnvironment, page: str) -> Iterator[str]:
    """A page, and those that its tables of contents lead to."""
    yield page
    if not page.startswith(CLOSED) or page == f"{CLOSED}index":
        for child in env.toctree_includes.get(page, ()):
            yield from _below(env, child)


def _about(env: BuildEnvironment, page: str, most: int = LONGEST) -> str:
    """The first paragraph of a page that is no part of a list or a table, and no note on files or links (whose titles
    are not known here), cut after a sentence or a word."""
    for paragraph in env.get_doctree(page).findall(nodes.paragraph):
        said = " ".join(paragraph.astext().split())
        is_note = said.startswith("(") or " yours" in said or ": ." in said or ": )" in said
        if isinstance(paragraph.parent, nodes.section) and said and not is_note:
            if len(said) <= most:
                return said
            whole = said[:most].rpartition(". ")[0]
            return f"{whole}." if whole else f"{said[:most].rpartition(' ')[0]} ..."
    return ""
