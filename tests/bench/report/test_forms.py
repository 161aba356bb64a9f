"""Tables as LaTeX and Markdown, read back: every number, mark and n where it belongs, and names that do no harm."""

import re
import shutil
import subprocess

import numpy as np
import pytest
import report_toys as runs

from fringe.bench.report import build_table
from fringe.bench.report._render import (
    Chapter,
    Report,
    Section,
    SimpleTable,
    escape_latex,
    escape_markdown,
    flag_lines,
    latex_document,
    legend,
    markdown_report,
)
from fringe.evaluation import NOT_BETTER_MEANS

EVIL = r'50%_of & all $x^2$ #1 {a}\b~<script>|`*[c](d) "ü»'
METHODS = ("fringe", "near", "far", EVIL, "random")
METRICS = ("mas_insertion", "insertion", "infidelity", "max_sensitivity", "steps")
N = 6


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(1)
    about = runs.manifest(METHODS, METRICS, N, limits={"max_sensitivity": 4})
    offset = {"fringe": 0.0, "near": 0.001, "far": 0.3, EVIL: 0.35, "random": -0.2}
    base = rng.normal(0.6, 0.05, N)
    scores = {}
    for method in METHODS:
        for metric in METRICS:
            column = base + (-1 if metric in ("mas_insertion", "insertion") else 1) * offset[method]
            scores["net_1", method, metric] = list(column[: about.metrics[metric]["limit"]])
    scores["net_1", "far", "infidelity"] = list(4000 + 100 * base)
    scores["net_1", "far", "insertion"][0] = "missing"
    scores["net_1", "near", "insertion"][1] = None
    about = runs.manifest(METHODS, METRICS, N, limits={"max_sensitivity": 4}, models=("net_1",))

    def flags(method, metric, place):
        return ("zero_map",) if method == "far" and place == 1 else ()

    return build_table(runs.results(about, scores, flags=flags), "net_1")


def numbers(text):
    """Value and spread of a cell as LaTeX, by what its macros mean."""
    found = []
    for part in text.split(r"$\pm$"):
        match = re.fullmatch(r"(\$-\$)?(?:\\sci\{([\d.]+)\}\{(-?\d+)\}|([\d.]+))", part)
        size = float(match[4]) if match[4] else float(match[2]) * 10 ** int(match[3])
        found.append(-size if match[1] else size)
    return found


def body(text):
    """The cells of a LaTeX table by metric's title, the methods' first."""
    lines = [line.strip().removesuffix(r" \\") for line in text.splitlines() if " & " in line and "Metric" not in line]
    found = {}
    for line in lines:
        title, *cells = re.split(r"(?<!\\) & ", line)
        found.setdefault(title, []).extend(cells)
    return found


def test_latex_holds_every_number_mark_and_n(table):
    found = body(latex_document([table]))
    assert list(found) == [
        r"MAS insertion $\uparrow$",
        r"Insertion AUC $\uparrow$",
        r"Infidelity (score\textasciicircum{}2) $\downarrow$",
        r"Max sensitivity (1 / input unit) $\downarrow$",
        "Steps",
    ]
    for texts, place in zip(found.values(), range(5), strict=True):
        for text, row in zip(texts, table.rows, strict=True):
            cell, column = row.cells[place], table.columns[place]
            inner, marks, n, wanted = re.fullmatch(
                r"(.*?)\$(?:\^\{([^}]*)\})?_\{n=(\d+)(?:\\,\\mathrm\{of\}\\,(\d+))?\}\$", text
            ).groups()
            plain = re.sub(r"^\\textbf\{\\underline\{(.*)\}\}$|^\\textbf\{(.*)\}$", r"\1\2", inner)
            half = (
                cell.estimate.half_iqr if column.summary == "median" else (cell.estimate.high - cell.estimate.low) / 2
            )
            tolerance = 0.5000001 * 10.0**-column.decimals if cell.estimate.value < 1000 else 50
            assert numbers(plain) == pytest.approx([cell.estimate.value, half], abs=tolerance)
            assert inner.startswith(r"\textbf{\underline{") == cell.best
            assert inner.startswith(r"\textbf{") == (cell.best or cell.near_tie)
            assert (marks or "").replace(r"\dagger", "").replace(r"\ddagger", "") == cell.mark
            assert (r"\dagger" in (marks or "")) == (cell.missing > 0)
            assert (r"\ddagger" in (marks or "")) == (cell.control is not None and not cell.control.better)
            assert int(n) == cell.n
            assert int(wanted or n) == cell.required


def test_the_paper_s_cell_is_printed_as_the_paper_prints_it(table):
    """Infidelity of 4060 beside 0.6: the appendix writes such a number as a power of ten."""
    far = body(latex_document([table]))[r"Infidelity (score\textasciicircum{}2) $\downarrow$"][2]
    assert re.match(r"\\sci\{4\.06\}\{3\}\$\\pm\$\\sci\{\d\.\d\d\}\{0\}\$", far)


def test_latex_has_the_groups_of_the_paper_in_both_blocks_and_one_rule_at_the_end_of_each(table):
    text = latex_document([table])
    for group in (
        "Attribution calibration",
        "Causal faithfulness (normalized, blur)",
        "Map focus and local robustness",
    ):
        assert text.count(rf"}}{{l}}{{\textit{{{group}}}}} \\") == 2
    assert text.count(r"\bottomrule") == text.count(r"\toprule") == 2
    assert not re.search(r"\\midrule\s*\\bottomrule", text)
    assert r"\textbf{Metric} & \makecell{\textbf{fringe}\\(reference)} & \textbf{near}" in text
    assert r"\makecell{\textbf{random}\\(control)}" in text
    assert r"\begin{tabular}{lcccc}" in text  # four methods
    assert r"\begin{tabular}{lc}" in text  # one control
    assert r"\label{tab:net-1}" in text
    assert "Flagged scores of the methods: zero\\_map 5" in text


def test_braces_and_dollars_are_balanced_whatever_the_names(table):
    text = latex_document([table])
    bare = re.sub(r"\\[\\{}$%#&_]", "", text)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    depth = 0
    for letter in bare:
        depth += (letter == "{") - (letter == "}")
        assert depth >= 0
    assert escape_latex(EVIL) in text
    assert "<script>" not in text


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a_b & 5% #1 $x$", r"a\_b \& 5\% \#1 \$x\$"),
        ("{x}", r"\{x\}"),
        ("\\input{/etc/passwd}", r"\textbackslash{}input\{/etc/passwd\}"),
        ("x^2~y", r"x\textasciicircum{}2\textasciitilde{}y"),
        ("two\nlines\t", "two lines"),
        ("Zürich σ »", "Zürich ? ?"),
        ('"', r"\char34{}"),
    ],
)
def test_latex_prints_names_and_does_nothing_else(text, escaped):
    assert escape_latex(text) == escaped


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex")
def test_latex_compiles_with_three_packages(table, tmp_path):
    tables = latex_document([table])
    frame = (
        "\\documentclass{article}\n\\usepackage{booktabs,makecell,graphicx}\n\\begin{document}\n%s\n\\end{document}\n"
    )
    (tmp_path / "page.tex").write_text(frame % tables, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "page.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout


def markdown_table(table):
    chapter = Chapter("net", (Section("Scores", table=table),))
    report = Report("title", {}, (), (chapter,), SimpleTable("Versions", ("what", "version"), ()), "", ())
    return markdown_report(report).partition("## Versions")[0]


def markdown_cells(text):
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_markdown_holds_every_number_mark_and_n(table):
    head, rule, *lines = markdown_cells(markdown_table(table))
    assert head[1:] == [
        "MAS insertion ↑",
        "Insertion AUC ↑",
        "Infidelity (score^2) ↓",
        "Max sensitivity (1 / input unit) ↓",
        "Steps",
    ]
    assert rule[1:] == ["---:"] * 5
    assert [line[0] for line in lines[:3]] == ["fringe (reference)", "near", "far"]
    assert lines[-1][0] == "random (control)"
    for line, row in zip(lines, table.rows, strict=True):
        for text, cell, column in zip(line[1:], row.cells, table.columns, strict=True):
            bold, under, value, marks, n, wanted = re.fullmatch(
                r"(\*\*)?(<ins>)?(.*?)(?:</ins>)?(?:\*\*)?(?:<sup>(.*)</sup>)? <sub>n=(\d+)(?: of (\d+))?</sub>", text
            ).groups()
            assert bool(under) == cell.best
            assert bool(bold) == (cell.best or cell.near_tie)
            not_better = cell.control is not None and not cell.control.better
            wanted_marks = cell.mark + ("‡" if not_better else "") + ("†" if cell.missing else "")
            assert (marks or "").replace("\\", "") == wanted_marks
            assert (int(n), int(wanted or n)) == (cell.n, cell.required)
            if cell.estimate.value < 1000:
                shown = float(value.split(" ± ")[0].replace("−", "-"))
                assert shown == pytest.approx(cell.estimate.value, abs=0.5000001 * 10.0**-column.decimals)


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("<script>alert(1)</script>", "&lt;script>alert(1)&lt;/script>"),
        ("a|b", r"a\|b"),
        ("[x](javascript:y)", r"\[x\](javascript:y)"),
        ("*a* _b_ `c` ~d~ $e$", r"\*a\* \_b\_ \`c\` \~d\~ \$e\$"),
        ("# head", r"\# head"),
        ("- item", r"\- item"),
        ("12. item", r"12\. item"),
        ("one\n\n# two", "one # two"),
        ("@everyone &lt;", "&#64;everyone &amp;lt;"),
        ("digits-0150", "digits-0150"),
    ],
)
def test_markdown_shows_names_and_does_nothing_else(text, escaped):
    assert escape_markdown(text) == escaped


def test_notes_say_what_is_there_and_nothing_else(table):
    text = " ".join(legend(table))
    assert "for Max sensitivity: median ± half-IQR" in text
    assert "95% bootstrap interval over images (1000 resamples, seed 0)" in text
    assert f"Holm for the {3 * 4} comparisons" in text
    assert "†: incomplete" in text
    assert f"{NOT_BETTER_MEANS}." in text
    assert "adjusted after Holm for 16 scores." in text
    assert flag_lines(table) == [
        "Flagged scores of the methods: zero_map 5 (MAS insertion 1, Insertion AUC 1, Infidelity 1, Max sensitivity 1, "
        "Steps 1)."
    ]
    alone = runs.manifest(("fringe",), ("insertion",), 2)
    lonely = build_table(runs.results(alone, {("net", "fringe", "insertion"): [0.1, 0.2]}), "net")
    text = " ".join(legend(lonely))
    assert "median" not in text
    assert "Holm" not in text
    assert "†" not in text
    assert "‡" not in text
    assert flag_lines(lonely) == ["No score is flagged."]
