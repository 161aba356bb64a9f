"""The documentation is true: its Python runs, its links lead somewhere, and every public name is in the reference."""

import ast
import doctest
import importlib
import importlib.util
import inspect
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fringe
from fringe.models import has_efficientnet

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
KINDS = sorted((DOCS / "kinds").glob("*.md"))
SKILL = ROOT / ".agents" / "skills" / "fringe" / "SKILL.md"
SNIPPETS = [
    page for page in (ROOT / "README.md", SKILL, *PAGES, *KINDS) if "\n```python\n" in page.read_text(encoding="utf-8")
]
MARKDOWN = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "SECURITY.md",
    SKILL,
    *PAGES,
    *KINDS,
]
MARKDOWN += sorted((*(DOCS / "how-to").glob("*.md"), *(DOCS / "results").glob("*.md")))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
#: The first pages of the gallery.
TUTORIALS = ("photograph", "trust", "text", "tabular", "benchmark")
#: Packages and modules with a list of public names; those of the command line are its commands.
FACES = sorted(
    path.parent.name if path.stem == "__init__" else path.stem
    for path in (*(ROOT / "src" / "fringe").glob("*.py"), *(ROOT / "src" / "fringe").glob("*/__init__.py"))
    if re.search(r"^__all__ = ", path.read_text(encoding="utf-8"), re.MULTILINE) and path.parent.name != "cli"
)
PLAN = """
model = { rn50 = "embedded:digits" }
data = "embedded:digits"
methods = ["short=ig"]
metrics = ["insertion"]
n = 2
controls = false
set = { "short.steps" = 3 }
"""


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


# -- what is written ---------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("page", SNIPPETS, ids=lambda page: page.stem)
def test_the_python_of_a_page_runs_as_one_session(page, tmp_path, monkeypatch):
    if page.stem == "README" and not has_efficientnet():
        pytest.skip("the packages of the extra photo are not installed")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.toml").write_text(PLAN, encoding="utf-8")  # what docs/benchmark.md shows, in small
    session: dict[str, object] = {"__name__": "page"}
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), session)
    if page.stem == "README":
        assert session["result"].verdict == ("ok",)
        assert session["figure"].axes


def test_pages_with_python_are_run():
    known = {page.stem for page in SNIPPETS}
    assert {"README", "SKILL", "start", "python", "trust", "compare", "costs", "coming-from", "benchmark"} <= known


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: page.stem)
def test_links_lead_to_files(page):
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    paths = [target.partition("#")[0] for target in targets if not re.match(r"[a-z]+:", target)]
    generated = re.compile(r"^(gallery|reference)/")
    missing = [path for path in paths if path and not generated.match(path) and not (page.parent / path).exists()]
    assert missing == []


def test_the_plan_shown_is_one(tmp_path):
    from fringe.bench.experiments import ExperimentSpec

    (block,) = blocks(DOCS / "benchmark.md", "toml")
    path = tmp_path / "plan.toml"
    path.write_text(block, encoding="utf-8")
    spec = ExperimentSpec.from_file(path)
    assert spec.model == {"rn50": "torchvision:resnet50"}
    assert spec.limits == {"max_sensitivity": 64}
    assert spec.set == {"short": {"steps": "20"}}


# -- docstrings --------------------------------------------------------------------------------------------------------

MODULES_WITH_EXAMPLES = sorted(
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "src" / "fringe").rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", MODULES_WITH_EXAMPLES)
def test_the_examples_of_docstrings_say_what_is_computed(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0


def test_help_begins_with_a_signature_that_names_types_as_the_docs_do():
    functions = [value for value in (getattr(fringe, name) for name in fringe.__all__) if inspect.isfunction(value)]
    assert fringe.explain in functions
    for function in functions:
        signature = str(inspect.signature(function))
        assert "collections.abc." not in signature, signature
        assert "fringe." not in signature, signature


# -- the citation ------------------------------------------------------------------------------------------------------


def test_the_citation_is_of_this_version_and_of_the_paper():
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["version"] == fringe.__version__
    paper = citation["preferred-citation"]
    assert {"type", "title", "authors"} <= set(paper)
    assert [author["family-names"] for author in paper["authors"]] == ["Martino", "Tschiatschek"]
    assert "2605.06404" in paper["url"]


# -- the site ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site that ``make docs`` has built, in the folder FRINGE_SITE; without one that of a copy, built with warnings
    as errors and without running the examples."""
    if built := os.environ.get("FRINGE_SITE"):
        return (ROOT / built).resolve(strict=True)
    pytest.importorskip("sphinx_gallery")
    pytest.importorskip("pydata_sphinx_theme")
    folder = tmp_path_factory.mktemp("site")
    for path in ROOT.iterdir():
        if path.name not in ("docs", "examples") and not path.name.startswith("."):
            (folder / path.name).symlink_to(path)
    shutil.copytree(ROOT / "examples", folder / "examples")
    shutil.copytree(DOCS, folder / "docs", ignore=shutil.ignore_patterns("_build", "gallery", "reference"))
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-D", "plot_gallery=0", "-b", "html"]
    done = subprocess.run([*command, "docs", "html"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "html"


def public() -> set[tuple[str, str]]:
    """Every public name with the package that shows it."""
    shown = {("fringe", name) for name in fringe.__all__}
    for face in FACES:
        package = importlib.import_module(f"fringe.{face}")
        shown |= {(package.__name__, name) for name in package.__all__}
    return shown


@pytest.mark.thorough
def test_every_public_name_is_in_the_reference_with_its_page(site):
    missing = []
    for package, name in sorted(public()):
        page = (site / "reference" / f"{package}.html").read_text(encoding="utf-8")
        link = re.search(rf'href="([^"#]+)#([^"]+)"[^>]*><code[^>]*><span class="pre">{name}</span>', page)
        if link is None or f'id="{link[2]}"' not in (site / "reference" / link[1]).read_text(encoding="utf-8"):
            missing.append(f"{package}.{name}")
    assert missing == []


@pytest.mark.parametrize("kind", ["methods", "metrics"])
def test_the_page_of_all_methods_or_metrics_has_a_row_for_each(kind, monkeypatch):
    pytest.importorskip("sphinx_gallery")
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    registry = getattr(fringe, kind.upper())
    monkeypatch.setitem(registry, "mine", type("Mine", (registry["ig" if kind == "methods" else "road"],), {}))
    monkeypatch.setattr(registry["mine"], "title", "A class that is new")
    table = importlib.import_module("fringe_docs").registered(kind)
    assert re.search(r"^\| `mine` \| A class that is new \| .* \| `paper`", table, re.MULTILINE)
    rows = re.findall(r"^\| `([\w:]+)` \|", table, re.MULTILINE)
    modifiers = [name for name, one in registry.items() if "of" in one.__dataclass_fields__]
    assert [row.partition(":")[0] for row in rows] == [name for name in registry if name not in modifiers]
    assert f"\n<!-- {kind} -->\n" in (DOCS / f"{kind}.md").read_text(encoding="utf-8")


@pytest.mark.thorough
def test_a_method_is_documented_with_its_settings(site):
    from fringe.settings import settings_of

    page = (site / "reference" / "fringe.FRInGe.html").read_text(encoding="utf-8")
    for setting in settings_of(fringe.FRInGe).values():
        assert f'<span class="pre">{setting.name}</span>' in page
    assert "Raises" in (site / "reference" / "fringe.attribute.html").read_text(encoding="utf-8")


@pytest.mark.thorough
def test_options_are_documented_with_their_fields_and_help(site):
    page = (site / "reference" / "fringe.ExperimentSpec.html").read_text(encoding="utf-8")
    for name, field in fringe.ExperimentSpec.model_fields.items():
        assert f'<span class="pre">{name}</span>' in page
        assert re.split("['=]", field.description)[0] in page


@pytest.mark.thorough
def test_the_site_loads_nothing_from_a_network(site):
    outside = re.compile(
        r"<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=\"(?:https?:)?//[^\"]*", re.IGNORECASE
    )
    imports = re.compile(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^\"')]*")
    pages, sheets = sorted(site.rglob("*.html")), sorted(site.rglob("*.css"))
    assert len(pages) > 100
    assert [match[0] for page in pages for match in outside.finditer(page.read_text(encoding="utf-8"))] == []
    assert [match[0] for sheet in sheets for match in imports.finditer(sheet.read_text(encoding="utf-8"))] == []


@pytest.mark.thorough
def test_formulas_are_drawn_without_a_script(site):
    page = (site / "mathematics.html").read_text(encoding="utf-8")
    assert page.count("<math ") > 50
    assert not re.search(r"<script[^>]*mathjax", page, re.IGNORECASE)


@pytest.mark.thorough
def test_programs_find_every_page_in_one_file_and_people_see_the_version(site):
    lines = (site / "llms.txt").read_text(encoding="utf-8").splitlines()
    assert lines[0] == f"# fringe {fringe.__version__}"
    assert re.match(r"> \w.{80}", lines[2])
    entries = [line for line in lines if line.startswith("- ")]
    linked = [re.fullmatch(r"- \[.+?\]\((\S+\.html)\)(: .+)?", line)[1] for line in entries]
    assert [page for page in linked if not (site / page).is_file()] == []
    assert len(set(linked)) == len(linked)
    assert {path.with_suffix(".html").name for path in PAGES} - {"index.html"} <= set(linked)  # root pages, too
    assert {
        f"gallery/{example.stem}.html" for example in EXAMPLES if (site / f"gallery/{example.stem}.html").is_file()
    } <= set(linked)
    assert "reference/fringe.attribution.html" in linked
    assert "reference/fringe.FRInGe.html" not in linked  # one line for each package
    assert all(len(line) < 300 for line in entries)
    assert f"fringe {fringe.__version__}" in (site / "index.html").read_text(encoding="utf-8")


def test_tables_of_contents_with_captions_are_sections_of_the_file_for_programs(tmp_path):
    pytest.importorskip("myst_parser")
    trees = "```{toctree}\n:caption: Explain\n\na\nb\n```\n\n```{toctree}\n\nc\n```\n"
    pages = {
        "index": f"# Maps\n\nWhat it is.\n\n{trees}",
        "a": "# First\n\n- in a list\n\nWhat *a* says.\n",
        "c": "# Last\n",
    }
    pages["b"] = f"# Second\n\nShort. {'word ' * 60}\n"
    for name, text in pages.items():
        (tmp_path / f"{name}.md").write_text(text, encoding="utf-8")
    (tmp_path / "conf.py").write_text(
        f"import sys\nsys.path.insert(0, {str(DOCS / '_ext')!r})\nproject, release = 'maps', '1.2'\n"
        "extensions = ['myst_parser', 'llms']\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "html", tmp_path, tmp_path / "html"]
    subprocess.run(command, check=True, capture_output=True)
    assert (tmp_path / "html" / "llms.txt").read_text(encoding="utf-8").splitlines() == [
        *("# maps 1.2", "", "> What it is.", ""),
        *("## Explain", "", "- [First](a.html): What a says.", "- [Second](b.html): Short.", ""),
        *("## Last", "", "- [Last](c.html)"),
    ]


def test_the_workflow_publishes_what_make_docs_writes():
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "docs.yml").read_text(encoding="utf-8"))
    assert workflow[True] == {"push": {"tags": ["v*"]}, "workflow_dispatch": None}  # YAML reads `on` as true
    assert workflow["permissions"] == {"contents": "read", "pages": "write", "id-token": "write"}
    steps = workflow["jobs"]["docs"]["steps"]
    used = [step["uses"] for step in steps if "uses" in step]
    assert [action for action in used if not re.fullmatch(r"actions/[a-z-]+@v\d+", action)] == []
    assert [action.partition("@")[0] for action in used[-2:]] == [
        "actions/upload-pages-artifact",
        "actions/deploy-pages",
    ]
    (build,) = [step["run"] for step in steps if "run" in step]
    assert build == 'python scripts/site.py "${{ steps.pages.outputs.base_url }}"'
    assert steps[0]["with"] == {"fetch-depth": 0}  # without tags there would be one version
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "-b html docs docs/_build/html\n" in makefile.partition("\ndocs:")[2].partition("\n\n")[0] + "\n"
    (upload,) = [step["with"]["path"] for step in steps if "upload" in step.get("uses", "")]
    assert upload == "docs/_build/site"


@pytest.mark.parametrize("tags", [(), ("v0.1.0",), ("v0.9.0", "v0.10.0", "v0.2.0", "v0.10.0-rc", "other")])
def test_the_site_has_a_folder_for_each_release_and_a_list_of_them(tmp_path, tags):
    """In a repository whose `make docs` writes its version and the address of the list."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "site.py", tmp_path / "scripts")
    page = "docs/_build/html/index.html"
    recipe = f'docs:\n\tmkdir -p docs/_build/html\n\techo "$$(cat version) $$FRINGE_SWITCHER" > {page}\n'
    (tmp_path / "Makefile").write_text(recipe, encoding="utf-8")
    git = ("git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run([*git, "init", "-q"], check=True)
    for tag in (*tags, "now"):
        (tmp_path / "version").write_text(tag, encoding="utf-8")
        subprocess.run([*git, "add", "Makefile", "version"], check=True)
        subprocess.run([*git, "commit", "-qm", tag], check=True)
        if tag != "now":
            subprocess.run([*git, "tag", tag], check=True)
    command = [sys.executable, "scripts/site.py", "https://a.test/fringe/"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    site = tmp_path / "docs" / "_build" / "site"
    expected = {"v0.1.0": ["0.1.0"], "v0.9.0": ["0.10.0", "0.9.0", "0.2.0"]}.get(next(iter(tags), ""), ["latest"])
    listed = json.loads((site / "switcher.json").read_text(encoding="utf-8"))
    assert [entry["version"] for entry in listed] == expected
    assert [entry["url"] for entry in listed] == [f"https://a.test/fringe/{version}/" for version in expected]
    assert [entry.get("preferred", False) for entry in listed] == [True] + [False] * (len(expected) - 1)
    assert sorted(path.name for path in site.iterdir()) == sorted([*expected, "index.html", "switcher.json"])
    for version in expected:
        said = (site / version / "index.html").read_text(encoding="utf-8")
        assert said == f"{'now' if version == 'latest' else f'v{version}'} ../switcher.json\n"
    assert f'url={expected[0]}/"' in (site / "index.html").read_text(encoding="utf-8")
    assert subprocess.run([*git, "worktree", "list"], capture_output=True, text=True).stdout.count("\n") == 1


def test_the_skill_is_short():
    lines = SKILL.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 60
    assert lines[:2] == ["---", "name: fringe"]
    assert lines[2].startswith("description: ")


@pytest.mark.thorough
def test_the_tutorials_come_first(site):
    page = (site / "gallery" / "index.html").read_text(encoding="utf-8").partition("sphx-glr-thumbnails")[2]
    shown = list(dict.fromkeys(re.findall(r'href="plot_(\w+)\.html', page)))
    left = [name for name in TUTORIALS if (site / "gallery" / f"plot_{name}.html").is_file()]
    assert shown[: len(left)] == left
    assert len(shown) > len(left) > 2


@pytest.mark.thorough
def test_a_tutorial_runs_as_the_notebook_that_its_page_offers(site, tmp_path):
    """``make docs`` runs the program of each; here, the notebook of one is run as a reader runs it."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    page = site / "gallery" / "plot_tabular.html"
    if not page.is_file():
        pytest.skip("its packages are not installed")
    link = re.search(r'href="(\.\./_downloads/\w+/plot_\w+\.ipynb)"', page.read_text(encoding="utf-8"))
    notebook = nbformat.read(page.parent / link[1], as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs for cell in code)
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    shown = [output.get("data", {}) for cell in code for output in cell.outputs]
    assert sum("image/png" in data for data in shown) > 0


def test_a_figure_is_small_and_its_command_stands_before_it():
    page = (DOCS / "figures.md").read_text(encoding="utf-8")
    shown = re.findall(
        r"^python scripts/figures\.py (\w+).*?!\[[^]]+\]\(images/(\w+)\.webp\)", page, re.DOTALL | re.MULTILINE
    )
    assert [command for command, _ in shown] == [picture for _, picture in shown]
    assert len(shown) == page.count("](images/") == 4
    source = (ROOT / "scripts" / "figures.py").read_text(encoding="utf-8")
    assert [name for name, _ in shown if f'store(figure, "{name}")' not in source] == []
    assert [name for name, _ in shown if (DOCS / "images" / f"{name}.webp").stat().st_size > 120_000] == []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
@pytest.mark.thorough
def test_examples_have_a_title_and_are_shown(example, site):
    title, underline = (ast.get_docstring(ast.parse(example.read_text(encoding="utf-8"))) or "").splitlines()[:2]
    assert set(underline) == {"="}
    assert len(underline) == len(title)
    if example.name not in runpy.run_path(str(DOCS / "conf.py"))["SKIPPED"]:
        assert (site / "gallery" / f"{example.stem}.html").is_file()
