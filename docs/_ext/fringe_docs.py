"""What this site needs beside Sphinx.

The reference is written from the packages' own lists of names, tables of results from their CSV files, formulas become
MathML, and the pages of the repository's root (changelog, contributing, security) appear among the others.
"""

import csv
import dataclasses
import html
import importlib
import importlib.util
import inspect
import json
import re
import sys
import weakref
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib.pyplot as plt
from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from matplotlib.figure import Figure
from sphinx.util import logging
from sphinx_gallery.scrapers import figure_rst

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent

#: Packages: title, and what a reader looks for there. The names are those of the package's ``__all__``, and the further
#: ones given here; a package without ``__all__`` shows what it gathers.
PACKAGES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "fringe": ("fringe", "What most programs need.", ()),
    "fringe.attribution": (
        "fringe.attribution",
        "The methods, what they return, and the parts that a method is built from.",
        ("get_method",),
    ),
    "fringe.metrics": ("fringe.metrics", "How well a map predicts what the model does.", ("get_metric",)),
    "fringe.bench.scenes": (
        "fringe.bench.scenes",
        "Networks and images whose used pixels are known.",
        (),
    ),
    "fringe.explanations": ("fringe.explanations", "Images in, a folder of explanations out.", ()),
    "fringe.evaluation": ("fringe.evaluation", "Scores of maps on a batch, with intervals and paired tests.", ()),
    "fringe.bench.experiments": (
        "fringe.bench.experiments",
        "Methods on many images: stored, resumed, summarised.",
        (),
    ),
    "fringe.bench.report": ("fringe.bench.report", "Tables and pages from a run folder.", ()),
    "fringe.bench.cards": (
        "fringe.bench.cards",
        "Any attribution method on tests with a known answer, and its page.",
        (),
    ),
    "fringe.page": ("fringe.page", "Explanations as self-contained pages.", ()),
    "fringe.app": ("fringe.app", "The app that `fringe app` starts.", ()),
    "fringe.models": ("fringe.models", "One string names a model; it brings its preprocessing and class names.", ()),
    "fringe.data": ("fringe.data", "Images from files and folders, and the digits of this package.", ()),
    "fringe.text": ("fringe.text", "Words and tokens as inputs.", ()),
    "fringe.baselines": ("fringe.baselines", "Which inputs are valid, and where baseline methods begin.", ()),
    "fringe.classifier": ("fringe.classifier", "A network as values, gradients and counted passes.", ()),
    "fringe.plots": ("fringe.plots", "Arrays in, matplotlib figures out.", ()),
    "fringe.paths": (
        "fringe.paths",
        "Paths through input space, for authors of methods.",
        ("verify",),
    ),
    "fringe.geometry": ("fringe.geometry", "The probability simplex with its Fisher-Rao metric.", ()),
    "fringe.linalg": ("fringe.linalg", "Operators known by their products, and conjugate gradients.", ()),
    "fringe.bench.tuning": ("fringe.bench.tuning", "Search of a method's settings.", ()),
    "fringe.testing": ("fringe.testing", "What every method and every metric must keep.", ()),
    "fringe.captum": ("fringe.captum", "The methods in the terms of Captum.", ()),
    "fringe.quantus": ("fringe.quantus", "The methods in the terms of Quantus.", ()),
    "fringe.integrations": ("fringe.integrations", "Explanations in trackers of training runs.", ()),
    "fringe.settings": ("fringe.settings", "How a method or a metric declares its settings.", ()),
    "fringe.errors": ("fringe.errors", "What goes wrong, by type.", ()),
}

#: What is no class or function says nothing of itself.
DATA = {
    "METHODS": "The registered methods: name to class. A new method is one more entry.",
    "METRICS": "The registered metrics: name to class. A new metric is one more entry.",
    "SCENES": "The registered scenes: name to class. A new scene is one more entry.",
    "Baseline": "A setting that is a baseline by name, with its number if it has one: ``zero``, ``blur:0.1``.",
    "Verdict": "Whether the sum of a map is right: one of the words of :doc:`/trust`.",
    "Direction": "Whether a higher or a lower score is better: ``higher``, ``lower``, or ``none``.",
    "Explainer": "``explain(x, rows)``: maps of other inputs of the same images, for metrics that need them.",
    "ATTRIBUTOR_CHECKS": "The checks of methods: name to function.",
    "METRIC_CHECKS": "The checks of metrics: name to function.",
}

#: Functions of ``fringe.errors`` and ``fringe.settings`` that this package itself uses.
HELPERS = {
    *("did_you_mean", "require", "require_positive", "require_integer"),
    *("require_choice", "first_line", "is_transient", "is_out_of_memory", "is_device_error", "is_machine_error"),
    *("is_misread", "wrong_value", "odd", "canonical_name", "tuples_of"),
}

#: Pages of the repository's root, shown under these names.
ROOT_PAGES = {"changelog": "CHANGELOG.md", "contributing": "CONTRIBUTING.md", "security": "SECURITY.md"}


# -- the reference ----------------------------------------------------------------------------------------------------


def public_names(package: ModuleType) -> list[str]:
    """The names that a package shows."""
    declared = getattr(package, "__all__", None)
    if declared is not None:
        return sorted(declared, key=str.lower)
    inside = package.__name__
    own = (name for name, value in vars(package).items() if getattr(value, "__module__", "").startswith(inside))
    return sorted((name for name in own if not name.startswith("_") and name not in HELPERS), key=str.lower)


def gathered() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """For each package of this environment: its names, each with the path that the reference gives it.

    A name of several packages has one path, that of the first package in ``PACKAGES``.
    """
    paths: dict[int, str] = {}
    for package, (_, _, further) in PACKAGES.items():
        try:
            if importlib.util.find_spec(package) is None:
                continue
            module = importlib.import_module(package)
        except ModuleNotFoundError:  # an optional package is absent
            continue
        rows: list[tuple[str, str]] = []
        for name in [*public_names(module), *further]:
            value = getattr(module, name)
            path = f"{package}.{name}"
            if inspect.isclass(value) or inspect.isroutine(value):
                path = paths.setdefault(id(value), path)
            elif f"fringe.{name}" in paths.values():
                path = f"fringe.{name}"
            else:
                paths[id(value)] = path
            rows.append((name, path))
        if rows:
            yield package, rows


def _find(path: str) -> Any:
    package, _, name = path.rpartition(".")
    return getattr(importlib.import_module(package), name)


def _kind(value: Any) -> str:
    if inspect.isclass(value):
        return "exception" if issubclass(value, BaseException) else "class"
    return "function" if inspect.isroutine(value) else "data"


def _summary(name: str, value: Any) -> str:
    """The first sentence about a name."""
    if _kind(value) == "data":
        return DATA.get(name, "A type or a table of this package.")
    text = " ".join(re.split(r"\n\s*\n", inspect.getdoc(value) or "", maxsplit=1)[0].split())
    match = re.match(r"(.*?(?<![A-Z])(?<! vs)(?<!e\.g)[.:])(?:\s|$)", text)
    return _escaped(match[1].rstrip(":") if match else text)


def write_reference(folder: Path) -> None:
    """Write the pages of the reference; those that would not change keep their time, so that a rebuild is quick."""
    pages: dict[str, str] = {}
    index = ["Reference", "=========", "", "Every public name, by package.", ""]
    index += [".. list-table::", "   :widths: 25 75", ""]
    packages: list[str] = []
    for package, rows in gathered():
        title, about, _ = PACKAGES[package]
        about = about.replace("`", "``")
        packages.append(package)
        index += [f"   * - :doc:`{package}`", f"     - {about}"]
        page = [title, "=" * len(title), "", about, "", ".. list-table::", "   :widths: 30 70", ""]
        own = [(name, path) for name, path in rows if path.rpartition(".")[0] == package]
        for name, path in rows:
            page += [f"   * - :py:obj:`{name} <{path}>`", f"     - {_summary(name, _find(path))}"]
        if not hasattr(importlib.import_module(package), "__all__"):  # many small things: all of them on one page
            page += ["", *(line for _, path in own for line in (_described(path), ""))]
        elif own:
            page += ["", ".. toctree::", "   :hidden:", "", *(f"   {path}" for _, path in own)]
            for name, path in own:
                pages[path] = "\n".join([name, "=" * len(name), "", _described(path), ""])
        pages[package] = "\n".join([":html_theme.sidebar_secondary.remove: true", "", *page, ""])
    index += ["", ".. toctree::", "   :hidden:", "", *(f"   {package}" for package in packages), ""]
    pages["index"] = "\n".join(index)
    folder.mkdir(exist_ok=True)
    for stale in set(folder.glob("*.rst")) - {folder / f"{name}.rst" for name in pages}:
        stale.unlink()
    for name, text in pages.items():
        file = folder / f"{name}.rst"
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


def _described(path: str) -> str:
    """The directive that describes a name."""
    name, value = path.rpartition(".")[2], _find(path)
    if _kind(value) == "data":
        return f".. py:data:: {path}\n\n   {DATA.get(name, 'A type or a table of this package.')}"
    return f".. auto{_kind(value)}:: {path}"


def _signature(app: Any, what: str, name: str, value: Any, options: Any, signature: str | None, returned: str | None):
    """The settings of a method or metric with their defaults; their types and meaning are in the table below."""
    from fringe.settings import Settings, settings_of

    if what != "class" or not (inspect.isclass(value) and issubclass(value, Settings)):
        return None
    if not dataclasses.is_dataclass(value) or inspect.isabstract(value):
        return "", None
    return f"({', '.join(f'{s.name}={s.default!r}' for s in settings_of(value).values())})", None


def _docstring(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Make a docstring safe for reStructuredText, and give methods, metrics and options the table of their fields."""
    lines[:] = _escaped("\n".join(lines)).split("\n")
    from fringe.settings import Options, Settings, settings_of

    if what == "class" and inspect.isclass(value) and issubclass(value, Options) and value.model_fields:
        lines += ["", ".. list-table:: Fields", "   :header-rows: 1", "   :widths: 22 16 62", ""]
        lines += ["   * - field", "     - default", "     - meaning"]
        for field, known in settings_of(value).items():
            default = "required" if known.default is dataclasses.MISSING else f"``{known.default!r}``"
            lines += [f"   * - ``{field}``", f"     - {default}", f"     - {_escaped(known.doc.text)}"]
        lines.append("")
    if what == "class" and inspect.isclass(value) and issubclass(value, Settings) and dataclasses.is_dataclass(value):
        settings = settings_of(value)
        if not settings or inspect.isabstract(value):
            return
        lines += ["", ".. list-table:: Settings", "   :header-rows: 1", "   :widths: 22 16 62", ""]
        lines += ["   * - setting", "     - default", "     - meaning"]
        for setting in settings.values():
            unit = f" ({setting.doc.unit})" if setting.doc.unit else ""
            lines += [f"   * - ``{setting.name}``", f"     - ``{setting.default!r}``"]
            lines += [f"     - {_escaped(setting.doc.text)}{unit}"]
        presets = getattr(value, "presets", None)
        if presets:
            lines += ["", f"Presets: {', '.join(f'``{preset}``' for preset in presets)}."]
        lines.append("")


_LITERAL = re.compile(r"(``.+?``|:[\w:]+:`[^`]+`|`[^`]+`_{0,2})", flags=re.DOTALL)


def _escaped(text: str) -> str:
    """Text in which ``(B, *S)``, ``|v|`` and ``x_`` are themselves, outside of literals, formulas and code."""
    blocks = re.split(r"(\.\. math::(?:.*?)(?=\n\S|\Z))", text, flags=re.DOTALL)
    for i in range(0, len(blocks), 2):
        parts = _LITERAL.split(blocks[i])
        for j in range(0, len(parts), 2):
            parts[j] = re.sub(r"(?<![\\*])\*(?=[A-Za-z])(?![^\s*]+\*(?:\W|$))", r"\\*", parts[j])
            parts[j] = re.sub(r"(?<!\\)\|", r"\\|", parts[j])
            parts[j] = re.sub(r"(?<=\w)_(?=[\s.,;:)]|$)", r"\\_", parts[j])
        blocks[i] = "".join(parts)
    return "".join(blocks)


def _resolve(app: Any, env: Any, node: Any, content: Any) -> Any:
    """A Python name that no page has by this path: by its last part, if one page has that."""
    if node.get("refdomain") != "py" or not node.get("reftarget"):
        return None
    domain = env.get_domain("py")
    last = node["reftarget"].rpartition(".")[2]
    found = [path for path in domain.objects if path == last or path.endswith(f".{last}")]
    tops = [path for path in found if path.rpartition(".")[0] in PACKAGES]
    if len(tops) != 1:
        return None
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", tops[0], node, content)


# -- formulas ---------------------------------------------------------------------------------------------------------


#: Commands that the converter of docutils does not know, in those that it knows.
_COMMANDS = {
    "dots": "ldots",
    "tfrac": "frac",
    "dfrac": "frac",
    "lVert": "Vert",
    "rVert": "Vert",
    "le": "leq",
    "ge": "geq",
}


def _mathml(node: Any, as_block: bool) -> str:
    """A formula as MathML; one that cannot be converted is a warning, and shown as it was written."""
    text = re.sub(r"\\([A-Za-z]+)", lambda match: "\\" + _COMMANDS.get(match[1], match[1]), node.astext())
    text = re.sub(r"\\frac(\w)(\w)", r"\\frac{\1}{\2}", text)  # it reads \\frac12 as the number twelve
    try:
        return str(tex2mathml(_aligned(text) if as_block else text, as_block=as_block))
    except MathError as error:
        logging.getLogger(__name__).warning("formula %r: %s", node.astext(), error, location=node)
        return f"<code>{html.escape(node.astext())}</code>"


def _inline_math(self: Any, node: Any) -> None:
    self.body.append(_mathml(node, as_block=False))
    raise nodes.SkipNode


def _block_math(self: Any, node: Any) -> None:
    self.body.append(self.starttag(node, "div", CLASS="math"))
    if node.get("number"):
        self.body.append(f'<span class="eqno">({node["number"]})</span>')
    self.body.append(_mathml(node, as_block=True))
    self.body.append("</div>\n")
    raise nodes.SkipNode


def _aligned(text: str) -> str:
    r"""A formula of several lines is one environment for MathML."""
    return rf"\begin{{aligned}}{text}\end{{aligned}}" if r"\\" in text and r"\begin" not in text else text


# -- the gallery ------------------------------------------------------------------------------------------------------

_DRAWN: weakref.WeakSet[Figure] = weakref.WeakSet()


def returned_figure(block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """Show the figure that the last line of a block returned: ``result.plot()`` registers none with pyplot."""
    figure = block_vars["example_globals"].get("___")
    if not isinstance(figure, Figure) or figure in _DRAWN or plt.fignum_exists(getattr(figure, "number", None)):
        return ""
    _DRAWN.add(figure)
    path = next(block_vars["image_path_iterator"])
    figure.savefig(path, dpi=100)
    return figure_rst([path], gallery_conf["src_dir"])


# -- pages of the root, and links out of docs/ ------------------------------------------------------------------------


def results_tables(name: str) -> str:
    """The tables of docs/results/tables/NAME.csv, each behind its title; one that is short or alone is open; then what
    follows from the scores by rule, and what made them."""
    path = DOCS / "results" / "tables" / f"{name}.csv"
    if not path.is_file():
        return f"*(This table is not made yet: `python scripts/results.py --only {name}` writes it.)*"
    made = json.loads((path.parent / "made.json").read_text(encoding="utf-8"))[name]
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    parts: list[str] = []
    for title, table in groupby(rows, itemgetter("table")):
        found = list(table)
        shown = [column for column in found[0] if column != "table" and any(row[column] for row in found)]
        lines = [shown, ["---"] * len(shown), *([row[column] for column in shown] for row in found)]
        is_open = len(found) * len(shown) < 120 or len(found) == len(rows)
        tag = "details open" if is_open else "details"
        parts += [f"<{tag}><summary>{html.escape(title)}</summary>", ""]
        parts += [*(f"| {' | '.join(line)} |" for line in lines), "", "</details>", ""]
    parts += [*(f"- {sentence}" for sentence in made.get("conclusions", ())), ""]
    link = f"[data](/results/tables/{name}.csv)"
    parts += [f"*({link}; fringe {made['fringe']} of commit {made['commit']}, PyTorch {made['torch']})*", ""]
    return "\n".join(parts)


def registered(kind: str) -> str:
    """The table of all ``methods`` or ``metrics``: what a class says of itself. Modifiers have a table of their own."""
    from fringe import METHODS, METRICS
    from fringe.settings import settings_of

    rows = [["name", kind.removesuffix("s"), "source", "presets"], ["---"] * 4]
    for name, one in (METHODS if kind == "methods" else METRICS).items():
        if "of" not in settings_of(one):
            form = f"`{getattr(one, 'form', '') or name}`"
            rows.append([form, one.title or name, one.source or "", ", ".join(f"`{preset}`" for preset in one.presets)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _read(app: Any, docname: str, source: list[str]) -> None:
    source[0] = re.sub(r"^<!-- (methods|metrics) -->$", lambda m: registered(m[1]), source[0], flags=re.MULTILINE)
    source[0] = re.sub(r"^<!-- table: (\w+) -->$", lambda m: results_tables(m[1]), source[0], flags=re.MULTILINE)
    if docname in ROOT_PAGES:
        source[0] = (ROOT / ROOT_PAGES[docname]).read_text(encoding="utf-8").replace("](docs/", "](")
    if docname == "paper":
        sys.path.insert(0, str(ROOT / "experiments" / "paper"))
        readings = importlib.import_module("paper_tables").READINGS
        source[0] = source[0].replace("<!-- readings -->", "\n".join(f"- {text}" for text in readings))
    for name, file in ROOT_PAGES.items():
        source[0] = re.sub(rf"\]\((?:\.\./)*{re.escape(file)}", f"](/{name}.md", source[0])


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    write_reference(DOCS / "reference")
    app.add_html_math_renderer("mathml", (_inline_math, None), (_block_math, None))
    app.connect("source-read", _read)
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-process-docstring", _docstring)
    app.connect("missing-reference", _resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
