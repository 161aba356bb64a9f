"""The HTML page, read with Python's own parser: it needs nothing beside it, harms nobody, and holds every number."""

import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import report_toys as runs
from matplotlib.image import imread

from fringe._strings.report import Image, Report, Section, html_page, markdown_report, versions_chapter
from fringe._strings.tables import Cell, Table
from fringe.bench.experiments import Store
from fringe.bench.report import build_table
from fringe.bench.report._build import build_report
from fringe.plots import signed_map

EVIL = '<script>alert("1")</script>'
METHODS = ("fringe", f"ig{EVIL}", "far", "zero")
METRICS = ("mas_insertion", "mas_deletion", "insertion", "steps")
N = 5


class Page(HTMLParser):
    """Tags with their attributes, the text of each table's rows, and all text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.tables, self.text, self._cell = [], [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self._cell = []

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.tables[-1][-1].append("".join(self._cell).strip())
            self._cell = None

    def handle_data(self, data):
        self.text.append(data)
        if self._cell is not None:
            self._cell.append(data)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    rng = np.random.default_rng(2)
    about = runs.manifest(METHODS, METRICS, N, models=("net", f"b{EVIL}"), limits={"steps": 3}, data=EVIL)
    about = type(about).from_record({**about.record(), "missing": [f"{EVIL}.png: no such file"]})
    scores = {
        (model, method, metric): list(rng.normal(0.5, 0.1, about.metrics[metric]["limit"]))
        for model in about.settings
        for method in METHODS
        for metric in METRICS
    }
    scores["net", "far", "insertion"] = [0.1, "missing", EVIL, None, 0.2]

    def curves(method, metric, place):
        return (("aligned" if metric.startswith("mas") else "normalised", np.linspace(0, 1, 5) ** (place + 1)),)

    def verdict(method, metric, place):
        return {"fringe": "ok", "far": "coarse"}.get(method)

    def flags(method, metric, place):
        return ("ties",) if (method, metric, place) == ("fringe", "insertion", 0) else ()

    store = runs.store_of(tmp_path_factory.mktemp("page") / "run", about, scores, verdict=verdict, flags=flags)
    found = runs.results(about, scores, curves=curves, verdict=verdict, flags=flags)
    tables = tuple(build_table(found, model) for model in found.models)
    report = build_report(Store(store.root), found, tables, False, {}, (f"fringe benchmark {EVIL}",))
    return tables, report, html_page(report)


def test_nothing_is_loaded_from_elsewhere(run):
    tags = Page(run[2]).tags
    assert {tag for tag, _ in tags}.isdisjoint({"script", "link", "iframe", "object", "embed", "base", "form"})
    for tag, attributes in tags:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("src", "href", "srcset", "action", "data", "poster", "background"):
                assert value.startswith("#" if tag == "a" else "data:image/png;base64,")
    assert "url(" not in run[2]
    assert "@import" not in run[2]
    policy = next(a["content"] for t, a in tags if a.get("http-equiv") == "Content-Security-Policy")
    assert re.fullmatch(
        r"default-src 'none'; img-src data:; style-src 'sha256-[^']+'; base-uri 'none'; form-action 'none'", policy
    )


def test_names_are_shown_and_not_obeyed(run):
    assert "<script" not in run[2]
    text = "".join(Page(run[2]).text)
    for place in (f"ig{EVIL}", f"b{EVIL}", f"{EVIL}.png: no such file", f"fringe benchmark {EVIL}"):
        assert place in text


def test_the_table_of_each_model_is_there(run):
    tables, _, html = run
    scored = [found for found in Page(html).tables if found[0][1:2] == ["Attribution calibration"]]
    for table, shown in zip(tables, scored, strict=True):
        assert [line[0].partition(" ")[0] for line in shown[2:]] == [method.partition(" ")[0] for method in METHODS]
        assert all(len(line) == 1 + len(table.columns) for line in shown[2:])
    assert "<strong><u>" not in html  # five images show nothing
    assert "not tested: " in html
    assert "n=2 of 5" in html


def test_links_of_the_contents_lead_somewhere_and_ids_are_unique(run):
    tags = Page(run[2]).tags
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [attributes["href"] for tag, attributes in tags if tag == "a"]
    assert len(links) > 15
    assert {link[1:] for link in links} <= set(ids)


def test_pictures_are_whole_and_say_what_they_are(run):
    pictures = [attributes for tag, attributes in Page(run[2]).tags if tag == "img"]
    assert len(pictures) == 6  # differences and two kinds of curves, for each model
    for picture in pictures:
        data = base64.b64decode(picture["src"].removeprefix("data:image/png;base64,"), validate=True)
        drawn = imread(io.BytesIO(data))
        assert drawn.std() > 0.01
        assert len(picture["alt"]) > 40
    assert [picture.name for picture in run[1].images[:3]] == ["1-differences", "1-curves", "1-mas-curves"]


def test_what_went_wrong_is_stated(run):
    text = "".join(Page(run[2]).text)
    assert "net, far, insertion: 1 of 5 images are not computed" in text
    assert f"drawn and not read: {EVIL}.png: no such file" in text
    flat = [line for table in Page(run[2]).tables for line in table]
    assert ["net", "Insertion AUC", "far 1"] in flat  # not defined
    assert ["net", "far", "1", EVIL] in flat
    assert ["ties", "Insertion AUC", "1", "·", "·", "·"] in flat
    assert ["method", "ok", "coarse"] in flat
    assert ["far", "·", "5"] in flat


def test_settings_versions_and_commands_are_there(run):
    flat = [line for table in Page(run[2]).tables for line in table]
    assert ["far", "far", f"net, b{EVIL}", "far: steps=7"] in flat
    assert ["torch (run)", "0.0"] in flat
    head, *metrics = next(t for t in Page(run[2]).tables if t[0][0] == "metric")
    assert dict(zip(head, metrics[3], strict=True))["images"] == "3"
    text = "".join(Page(run[2]).text)
    assert "fringe report run --plan benchmark" in text
    assert "Steps on the first 3" in text


def test_markdown_says_the_same(run):
    tables, report, _ = run
    text = markdown_report(report)
    prose, code = text.split("\n    ", 1)  # the commands, which stand as they are
    assert "<script" not in prose
    assert all(line.startswith("fringe ") for line in code.strip().split("\n    "))
    assert text.count("<sub>n=") == sum(len(table.rows) * len(table.columns) for table in tables)
    for picture in report.images:
        assert f"](figures/{picture.name}.png)" in text
    headlines = [line.lstrip("# ") for line in text.splitlines() if re.match(r"#{1,3} ", line)]
    assert headlines[:4] == ["Attribution methods on net, b" + EVIL.replace("<", "&lt;"), "Protocol", "net", "Scores"]
    assert headlines[-1] == "Versions and commands"


# In a browser


@pytest.fixture(scope="module")
def pages(run, tmp_path_factory):
    """A report with wide tables and long names, and one of a simple table, long lines and a figure."""
    folder = tmp_path_factory.mktemp("pages")
    names = ("a_network_with_a_very_long_name_" * 3, "integrated_gradients", "mas_insertion")
    rows = [
        (*names, Cell(0.597, 3, ends=(0.582, 0.612)), Cell(0.612, 3, ends=(0.581, 0.643)), 1000, agree)
        for agree in (True, False)
    ]
    head = ("model", "method", "metric", "paper", "ours", "n", "intervals overlap")
    png = io.BytesIO()
    signed_map(np.ones((9, 90)), title="a figure").savefig(png)
    path = "/a/very/long/path/without/any/blank" * 8
    table, image = Table(head, rows, "comparison"), Image("", "a figure", png.getvalue())
    section = Section("comparison", ("A note. " * 30,), table, lines=(f"reading {path}",), images=(image,))
    parts = (Section("Protocol", (f"run of {path}",)), Section("Numbers", sections=(section,)))
    other = html_page(Report("title", {}, (*parts, versions_chapter({"torch": "0.0"}))))
    files = {}
    for name, text in {"report": run[2], "simple": other}.items():
        files[name] = folder / f"{name}.html"
        files[name].write_text(text, encoding="utf-8")
    return files


LUMINANCE = """selector => {
  const style = getComputedStyle(document.querySelector(selector));
  const light = words => {
    const [r, g, b] = words.match(/[0-9.]+/g).map(n => n / 255).map(
      c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  return [light(style.color), light(style.backgroundColor)];
}"""


def contrast(one, other):
    """Contrast of two luminances as WCAG defines it."""
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1400, "light")])
@pytest.mark.parametrize("name", ["report", "simple"])
@pytest.mark.thorough
def test_nothing_is_cut_and_everything_can_be_read(browser, pages, name, width, scheme):
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.goto(pages[name].as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    outside = """() => [...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll')
        && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"""
    assert page.evaluate(outside) == []
    scrolls = """() => [...document.querySelectorAll('.scroll')].filter(
        e => e.scrollWidth > e.clientWidth && getComputedStyle(e).overflowX !== 'auto').length"""
    assert page.evaluate(scrolls) == 0
    ink, paper = page.evaluate(LUMINANCE, "body")
    assert contrast(ink, paper) > 7
    assert (paper < 0.05) == (scheme == "dark")
    for selector in (".notes", "a") if name == "report" else ("a",):
        assert contrast(page.evaluate(LUMINANCE, selector)[0], paper) > 4.5
    assert page.evaluate(LUMINANCE, "figure img")[1] == 1.0  # figures have black words
    assert page.evaluate("document.querySelector('figure img').getBoundingClientRect().width") > 300
    page.close()


@pytest.mark.parametrize("name", ["report", "simple"])
@pytest.mark.thorough
def test_it_is_printed_on_white_within_the_paper(browser, pages, name):
    page = browser.new_page(viewport={"width": 718, "height": 1000}, color_scheme="dark")  # A4 less 1 cm margins
    page.goto(pages[name].as_uri())
    page.emulate_media(media="print", color_scheme="dark")
    ink, paper = page.evaluate(LUMINANCE, "body")
    assert paper == 1.0
    assert contrast(ink, paper) > 7
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert page.evaluate(
        "[...document.querySelectorAll('img')].every(e => e.getBoundingClientRect().right <= innerWidth)"
    )
    page.close()
