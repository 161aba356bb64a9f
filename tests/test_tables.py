"""The table in each of its forms: every value, mark and note where it belongs, and names that do no harm."""

import html
import re
import shutil
import subprocess

import pytest

from fringe._strings.formats import escape_latex, escape_markdown
from fringe._strings.html import fragment
from fringe._strings.tables import Cell, Table

EVIL = r'50%_of & all $x^2$ #1 {a}\b~<script>|`*[c](d) "ü»'
TABLE = Table(
    ("method", "n", "MAS insertion ↑", "Infidelity (score^2) ↓"),
    [
        (Cell("fringe", note="reference"), 64, Cell(0.5971, 3, ends=(0.582, 0.612), style="best", note="n=64"), 0.25),
        (EVIL, 6, Cell(0.59, 3, ends=(0.57, 0.61), style="near", mark="*‡", note="n=6 of 64", hint="<hint>"), None),
        (
            Cell("random", note="control"),
            64,
            Cell(-0.2, 3, ends=(-0.21, -0.19)),
            Cell(4060.0, 3, ends=(3928.0, 4192.0)),
        ),
    ],
    "Scores & more",
    rules=(1,),
    groups=(("Count", 1), ("Calibration & focus", 2)),
    notes=(f"{EVIL}: a name",),
)


def test_a_table_prints_its_cells_in_columns():
    head, _, first, second, rule, last, note = [line.rstrip() for line in str(TABLE).splitlines()]
    assert re.split(r" {2,}", head) == ["method", "n", "MAS insertion ↑", "Infidelity (score^2) ↓"]
    assert re.split(r" {2,}", first) == ["fringe (reference)", "64", "0.597 [0.582, 0.612] (n=64)", "0.25"]
    assert second.endswith("6   0.590 [0.570, 0.610]*‡ (n=6 of 64)   –")
    assert second.index("6   0.590") == first.index("4   0.597")  # numbers end in one column
    assert set(rule.strip()) == {"─"}
    assert last.endswith("−0.200 [−0.210, −0.190]              4.06×10³ [3.93×10³, 4.19×10³]")
    assert note == f"{EVIL}: a name"


def test_control_characters_are_shown_as_escapes_and_long_lines_stay_whole():
    text = str(Table(("path",), [["a\x1b[2Jb" + "x" * 150]]))
    assert "\x1b" not in text
    assert "a\\x1b[2Jb" + "x" * 150 in text


def test_a_table_without_rows_has_its_head_in_every_form():
    bare = Table(("a", "b"), ())
    assert str(bare).split()[:2] == ["a", "b"]
    assert bare.markdown() == "| a | b |\n| --- | --- |"
    assert "<tbody>" not in fragment("table", "show_table", bare)


def test_values_are_read_as_what_they_are():
    texts = [Cell(value).text for value in ("text", 3, 0.25, True, False, None)]
    assert texts == ["text", "3", "0.25", "yes", "no", "–"]
    assert Cell(0.1115, 2, share=True).text == "11.15%"
    assert Cell(0.325, 3, ends=(0.301, 0.35)).text == "0.325 [0.301, 0.350]"


def test_markdown_holds_every_cell():
    head, rule, *rows, _, note = TABLE.markdown().splitlines()
    assert head == "| method | n | MAS insertion ↑ | Infidelity (score^2) ↓ |"
    assert rule == "| --- | ---: | ---: | ---: |"
    assert rows[0] == "| fringe (reference) | 64 | **<ins>0.597 [0.582, 0.612]</ins>** <sub>n=64</sub> | 0.25 |"
    assert rows[1] == (
        f"| {escape_markdown(EVIL)} | 6 | **0.590 [0.570, 0.610]**<sup>\\*‡</sup> <sub>n=6 of 64</sub> | – |"
    )
    assert rows[2] == "| random (control) | 64 | −0.200 [−0.210, −0.190] | 4.06×10³ [3.93×10³, 4.19×10³] |"
    assert note == f"- {escape_markdown(f'{EVIL}: a name')}"


def test_html_holds_every_cell_and_obeys_no_name():
    text = fragment("table", "show_table", TABLE)
    cells = re.findall(r"<(t[hd])([^>]*)>(.*?)</\1>", text)
    assert [inner for _, _, inner in cells[:7]] == [
        *("", "<span>Count</span>", "<span>Calibration &amp; focus</span>"),
        *("method", "n", "MAS insertion&nbsp;↑", "Infidelity (score^2)&nbsp;↓"),
    ]
    bodies = [inner for _, _, inner in cells[7:]]
    assert bodies[:4] == [
        "fringe <small>reference</small>",
        "64",
        "<strong><u>0.597</u></strong> <span>[0.582, 0.612]</span> <small>n=64</small>",
        "0.25",
    ]
    assert html.unescape(bodies[4]) == EVIL
    assert '<strong>0.590</strong><sup title="&lt;hint&gt;">*‡</sup> <span>[0.570, 0.610]</span>' in bodies[6]
    assert text.count("<tbody>") == 2
    assert text.count('scope="row"') == 3
    assert text.count("number") == 3 + 9  # three columns stand on the right, with their headers
    assert "<script" not in text


def test_latex_holds_every_cell_with_columns_as_rows():
    text = TABLE.latex("net-1")
    rows = [re.split(r"(?<!\\) & ", line.strip().removesuffix(r" \\")) for line in text.splitlines() if " & " in line]
    name = rf"\textbf{{{escape_latex(EVIL)}}}"
    assert rows == [
        [r"\textbf{Metric}", r"\makecell{\textbf{fringe}\\(reference)}", name],
        ["n", "64", "6"],
        [
            r"MAS insertion $\uparrow$",
            r"\makecell{\textbf{\underline{0.597}}\textsubscript{n=64}\\{\tiny[0.582, 0.612]}}",
            r"\makecell{\textbf{0.590}\textsuperscript{*\ddag{}}\textsubscript{n=6 of 64}\\{\tiny[0.570, 0.610]}}",
        ],
        [r"Infidelity (score\textasciicircum{}2) $\downarrow$", "0.25", "--"],
        [r"\textbf{Metric}", r"\makecell{\textbf{random}\\(control)}"],
        ["n", "64"],
        [r"MAS insertion $\uparrow$", r"\makecell{$-$0.200\\{\tiny[$-$0.210, $-$0.190]}}"],
        [
            r"Infidelity (score\textasciicircum{}2) $\downarrow$",
            r"\makecell{4.06$\times$10\textsuperscript{3}\\{\tiny[3.93$\times$10\textsuperscript{3}, "
            r"4.19$\times$10\textsuperscript{3}]}}",
        ],
    ]
    assert text.count(r"\multicolumn{3}{l}{\textit{Calibration \& focus}} \\") == 1
    assert text.count(r"\bottomrule") == text.count(r"\toprule") == 2
    assert not re.search(r"\\midrule\s*\\bottomrule", text)
    assert r"\begin{tabular}{lcc}" in text  # two methods
    assert r"\caption{Scores \& more.}" in text
    assert r"\label{tab:net-1}" in text


def test_braces_and_dollars_of_latex_are_balanced_whatever_the_names():
    bare = re.sub(r"\\[\\{}$%#&_]", "", TABLE.latex("net"))
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    depth = 0
    for letter in bare:
        depth += (letter == "{") - (letter == "}")
        assert depth >= 0


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex")
def test_latex_compiles_with_three_packages(tmp_path):
    frame = (
        "\\documentclass{article}\n\\usepackage{booktabs,makecell,graphicx}\n\\begin{document}\n%s\n\\end{document}\n"
    )
    (tmp_path / "page.tex").write_text(frame % TABLE.latex("net"), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", "page.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout
