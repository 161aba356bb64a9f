"""The pages have a form that a reader can follow: short pages, short paragraphs, one number in a cell, no diary."""

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from fringe.attribution._base import Verdict

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TABLES = DOCS / "results" / "tables"
PAGES = [ROOT / "README.md", *sorted(page for page in DOCS.rglob("*.md") if page.parent.name != "_build")]
#: One line each, which shows a file of the root.
PAGES = [page for page in PAGES if page.stem not in ("changelog", "contributing", "security")]
#: Pages that explain our words, or are those words.
GLOSSARY = ("README", "questions")
#: Words of a diary: a page says what holds, and the changelog what was.
DIARY = (
    r"of that day|the day before|yesterday|(?:former|earlier|first|present|older|later) default|default changed|"
    r"changed last|last changed|measured once|had been seen|made before|mended after|tried, too|was then|"
    r"at (?:first|the time) we|we then|used to be|in the meantime|for the time being"
)
#: Code, tables of contents, formulas, and comments.
CODE = (
    r"^( *)(`{3,})[^\n]*\n.*?^ *\2`*$",
    r"^(:::+)\{toctree\}.*?^\1:*$",
    r"^\$\$.*?\$\$",
    r"<!--.*?-->",
)


def label(page: Path) -> str:
    return str(page.relative_to(ROOT))


def lines_of_text(page: Path) -> list[str]:
    """The lines of a page; those of code, of formulas and of directives are empty."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    for part in CODE:
        text = re.sub(part, lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE)
    return [line if not re.match(r" *(:::|:[a-z-]+:)", line) else "" for line in text.splitlines()]


def paragraphs(page: Path) -> Iterator[str]:
    """The paragraphs and items of a page, each as one line."""
    part: list[str] = []
    for line in [*lines_of_text(page), ""]:
        starts = re.match(r" *([-*] |\d+\. |#|\||!)", line)
        if part and (not line.strip() or starts):
            yield " ".join(part)
            part = []
        if line.strip() and not re.match(r" *[#|]", line):
            part.append(re.sub(r"^ *([-*]|\d+\.) ", "", line).strip())


def bare(text: str) -> str:
    """Text without code, formulas and the targets of links."""
    return re.sub(r"`[^`]*`|\$[^$]*\$|\]\([^)]*\)", "x", text)


def sentences(paragraph: str) -> int:
    words = re.sub(r"\b(?:e\.g|i\.e|cf|vs|et al|Holm et al|No)\.", "", bare(paragraph))
    return len(re.findall(r"[.!?](?=[\s)*\"]|$)", words)) or 1


def cells(page: Path) -> Iterator[tuple[str, str]]:
    """The cells of all tables, each with the title of its column."""
    titles: list[str] = []
    for line in lines_of_text(page):
        if not re.match(r" *\|", line):
            titles = []
            continue
        row = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        if not titles:
            titles = row
        elif not set("".join(row)) <= set("-: "):
            yield from zip(titles, row, strict=False)


def numbers(cell: str) -> list[str]:
    """The measured numbers of a cell: all of a cell of numbers, else fractions and percentages; no intervals."""
    cell = re.sub(r"\[[^\]]*,[^\]]*\]|± ?[\d.]+", "", bare(cell))
    cell = re.sub(r"(?<=\d),(?=\d{3}\b)|(?<=\d)e[+−-]?\d+", "", cell)
    words = re.search(r"[A-Za-zα-ωΑ-Ω]{2}", cell)
    return re.findall(r"\d*\.\d+%?|\d+%" if words else r"\d*\.?\d+", cell)


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_a_page_is_read_in_one_go(page):
    assert len(page.read_text(encoding="utf-8").splitlines()) <= 260


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_a_paragraph_has_at_most_five_sentences(page):
    assert [part for part in paragraphs(page) if sentences(part) > 5] == []


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_a_cell_has_one_number(page):
    found = [cell for _, cell in cells(page) if len(numbers(cell)) > 1]
    assert found == []


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_a_page_is_no_diary(page):
    text = " ".join(" ".join(lines_of_text(page)).split())
    assert re.findall(DIARY, text, re.IGNORECASE) == []


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_a_percentage_is_written_as_the_program_prints_it(page):
    assert re.findall(r"\d+ %", " ".join(map(bare, lines_of_text(page)))) == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem not in GLOSSARY], ids=label)
def test_words_of_ours_are_explained_or_linked(page):
    text = " ".join(map(bare, lines_of_text(page)))
    ours = set(re.findall(r"\b(triggers?|controls?|scenes?|verdicts?|references?)\b", text))
    whole = page.read_text(encoding="utf-8")
    assert not ours or re.search(r"questions\.md|trust\.md", whole), ours


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_a_link_into_a_page_leads_to_a_heading(page):
    text = " ".join(lines_of_text(page))
    for target, anchor in re.findall(r"\]\(([^):#\s]*\.md)?#([^)\s]+)\)", text):
        linked = (page.parent / target).read_text(encoding="utf-8") if target else page.read_text(encoding="utf-8")
        headings = re.findall(r"^#+ (.+)$", linked, re.MULTILINE)
        assert anchor in [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings], target


def test_the_readme_is_a_screen_or_two_and_explains_its_words_first():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    before = re.sub(r"^```.*?^```", "", text.partition("## What is different")[0], flags=re.DOTALL | re.MULTILINE)
    assert [word for word in ("control", "scene", "trigger", "verdict") if re.search(rf"\b{word}s?\b", before)] == []
    limits = text.partition("## Five limits")[2].partition("\n## ")[0]
    assert [int(number) for number in re.findall(r"^(\d)\. \*\*", limits, re.MULTILINE)] == [1, 2, 3, 4, 5]
    assert "`FRInGe()` is not the setting of the paper" in text


def test_the_form_is_seen():
    """The tests above find what they look for."""
    assert sentences("One (see `a.b`). Two. Three! [Four](x.md) is 0.5. Five? Six.") == 6
    assert numbers("0.335 (+0.006 [−0.013, +0.025])") == ["0.335", "0.006"]
    assert numbers("+.005 [−.012, +.023]") == [".005"]
    assert numbers("0.619 ± 0.049\\*") == ["0.619"]
    assert numbers("the class has at least .99, and 98% of all") == [".99", "98%"]
    assert numbers("2 by 2 images") == []
    assert re.findall(DIARY, "with the default of that day, an Earlier default", re.IGNORECASE)


# -- numbers stand once ------------------------------------------------------------------------------------------------


def rows_of(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((TABLES / f"{name}.csv").read_text(encoding="utf-8").splitlines()))


def test_every_table_has_a_place_and_every_place_a_table():
    places = [
        name
        for page in DOCS.rglob("*.md")
        for name in re.findall(r"^<!-- table: (\w+) -->$", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert len(set(places)) == len(places)
    assert {path.stem for path in TABLES.glob("*.csv")} <= set(places)  # one that is not made yet says how


def test_a_table_has_one_number_in_a_cell():
    for path in TABLES.glob("*.csv"):
        for row in rows_of(path.stem):
            cells = [cell for title, cell in row.items() if title not in ("table", "setting", "method", "reference")]
            assert [cell for cell in cells if len(numbers(cell)) > 1] == [], path.stem


def decimals(text: str) -> set[str]:
    """The numbers with three decimals, without their signs."""
    return {found.lstrip("0") for found in re.findall(r"(?<![\w.])0?\.\d{3}(?!\d)", text)}


@pytest.mark.parametrize("page", [DOCS / "results.md", *sorted((DOCS / "results").glob("*.md"))], ids=label)
def test_the_numbers_of_a_text_stand_in_a_table_of_its_page(page):
    """A table that is made anew, and a text that is not, differ."""
    text = page.read_text(encoding="utf-8")
    names = re.findall(r"^<!-- table: (\w+) -->$", text, re.MULTILINE)
    tables = [path.read_text(encoding="utf-8") for name in names if (path := TABLES / f"{name}.csv").is_file()]
    rows = re.findall(r"^\|.*$", text, re.MULTILINE)
    assert decimals(" ".join(paragraphs(page))) - decimals(" ".join([*tables, *rows])) == set()


def test_every_verdict_is_explained():
    page = (DOCS / "trust.md").read_text(encoding="utf-8")
    assert [verdict for verdict in get_args(Verdict) if f"`{verdict}`" not in page] == []
