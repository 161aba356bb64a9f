"""The how-to pages are followed to the letter: files written, lines added, Python and commands run, in a copy."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(page for page in (ROOT / "docs" / "how-to").glob("*.md") if page.stem != "cluster")  # needs machines


@dataclass(frozen=True)
class Block:
    language: str
    title: str
    text: str


def blocks(page: Path) -> list[Block]:
    found = re.findall(r'```(\w+)(?: title="([^"]+)")?\n(.*?)```', page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [Block(*parts) for parts in found]


def runs(block: Block) -> str:
    """A block as a part of one Python program, in the page's order."""
    if block.language == "python":
        return block.text
    return "\n".join(
        f"assert app({shlex.split(line)[1:]!r}, standalone_mode=False) in (None, 0)" for line in block.text.splitlines()
    )


def followed(page: Path, folder: Path) -> str:
    """Writes the page's files into a copy of the package; the rest of the page as one program."""
    program = ["from fringe.cli import app"]
    for block in blocks(page):
        path = folder / block.title
        if not block.title.startswith("src/"):
            program.append(runs(block))
        elif path.exists():
            path.write_text(path.read_text(encoding="utf-8") + block.text, encoding="utf-8")
        else:
            path.write_text(block.text, encoding="utf-8")
    return "\n\n".join(program)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("copy")


@pytest.fixture(scope="module")
def said(folder) -> dict[str, str]:
    """What following each page prints. All in one process, which takes seconds to start."""
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    programs = {page.stem: followed(page, folder) for page in PAGES}
    script = folder / "follow.py"
    script.write_text(
        f"for page, program in {programs!r}.items():\n    print('#' * 9, page)\n    exec(program, {{}})\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    parts = done.stdout.split("#" * 9 + " ")[1:]
    return {part.splitlines()[0]: part for part in parts}


@pytest.mark.thorough
def test_add_a_method(said, folder):
    page = said["add-a-method"]
    assert "standard deviation of the blur" in page  # the listing
    assert re.search(r"affine_score +map and w \(x - x'\) agree within", page)
    assert re.search(r"refinement +from", page)
    assert (folder / "out/midway").is_dir()
    assert (folder / "out/both").is_dir()


@pytest.mark.thorough
def test_add_a_metric(said, folder):
    page = said["add-a-metric"]
    assert "side of a patch" in page
    assert re.search(r"ranking +perfect, random, inverted contributions", page)
    assert (folder / "out/patches").is_dir()


#: Tests that try every method or metric, or look for what each of them has.
OF_ALL = (
    *("contract/test_methods_contract.py", "contract/test_metrics_contract.py", "contract/test_golden_outputs.py"),
    *("attribution/test_attribute_problem.py", "test_docs.py", "test_public_names.py", "plots/test_layout.py"),
)


@pytest.mark.thorough
@pytest.mark.parametrize(("page", "room"), [("add-a-method", "attribution"), ("add-a-metric", "metrics")])
def test_a_method_or_metric_is_two_files(page, room):
    titles = [block.title for block in blocks(ROOT / "docs" / "how-to" / f"{page}.md") if block.title]
    assert [title.startswith(f"src/fringe/{room}/_") for title in titles] == [True, True]
    assert titles[1].endswith("/_registry.py")


@pytest.mark.thorough
def test_what_is_new_passes_the_tests_of_all_and_its_missing_record_is_named(said, folder):
    """The library with the method and the metric of the pages; no test, page or table of names is told of them."""
    chosen = "midway or patch_correlation or titles or title_in_words or row_for_each or star_imports or is_tried"
    chosen += " or what_it_was and (records or listings or default_keys) or has_a_record"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-rA", "--tb=line"]
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1"}
    files = [f"tests/{name}" for name in OF_ALL]
    done = subprocess.run([*command, *files, "-k", chosen], cwd=ROOT, env=environment, capture_output=True, text=True)
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    leaves = ("to_itself", "nothing_is_to_be_explained")  # the example's path leaves the image and returns
    failed = [line for line in failed if not any(test in line for test in leaves)]
    assert len(failed) == 1, done.stdout[-3000:]
    assert "has_a_record" in failed[0]
    assert "no record yet of midway, patch_correlation; this writes it: python tests/contract/" in done.stdout
    for test in (
        "test_it_keeps_the_contract[midway-0]",
        "whatever_the_batch_size[midway]",
        "contract[patch_correlation]",
    ):
        assert re.search(rf"^PASSED .*{re.escape(test)}", done.stdout, re.MULTILINE), done.stdout[-3000:]


@pytest.mark.thorough
def test_verify_a_method(said, folder):
    page = said["verify-a-method"]
    assert "checks: 22 of 22 hold; 2 more do not apply" in page
    assert re.search(r"constant_model: the largest entry is", page)
    for card in ("saliency", "brightness", "card"):
        assert {"card.html", "card.md", "card.json"} <= {path.name for path in (folder / "out" / card).iterdir()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_is_followed_and_its_links_lead_to_files(page):
    assert f"def test_{page.stem.replace('-', '_')}(" in Path(__file__).read_text(encoding="utf-8")
    targets = [t for t in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")) if not t.startswith("http")]
    assert [t for t in targets if not (page.parent / t).is_file()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_shown_are_in_house_style(page, tmp_path):
    for block in blocks(page):
        if block.language == "python" and not block.title.startswith("tests/"):
            file = tmp_path / "shown.py"
            file.write_text(block.text, encoding="utf-8")
            config = str(ROOT / "pyproject.toml")
            ruff = [sys.executable, "-m", "ruff", "format", "--diff", "--config", config, str(file)]
            assert subprocess.run(ruff, capture_output=True, text=True).stdout == ""
