"""CSV files, read back with Python's own reader."""

import csv
import io

import numpy as np
import pytest
import report_toys as runs

from fringe._strings.formats import cell as written
from fringe.bench.report import build_table
from fringe.bench.report._write import scores_csv, summary_csv

METHODS = ("fringe", "=cmd|' /C calc'!A0", "zero")
SCORES = {
    ("net", "fringe", "insertion"): [0.1, 1 / 3, -2e-17, 0.4],
    ("net", METHODS[1], "insertion"): [0.3, "missing", '=bad, "very" bad\nindeed', None],
    ("net", "zero", "insertion"): [0.5, 0.5, 0.5, 0.5],
}


@pytest.fixture(scope="module")
def found():
    about = runs.manifest(METHODS, ("insertion",), 4, data="@photos")
    return runs.results(about, SCORES, flags=lambda m, _, i: ("zero_map", "ties") if (m, i) == ("zero", 2) else ())


def read(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_every_score_comes_back_exactly(found):
    rows = read(b"".join(scores_csv(found)).decode())
    assert len(rows) == 12
    for row in rows:
        method, place = row["method"].removeprefix("'"), int(row["image"], 16)
        given = SCORES["net", method, "insertion"][place]
        assert (float(row["score"]) == given) if isinstance(given, float) else row["score"] == ""
        status = "missing" if given == "missing" else "failed" if isinstance(given, str) else "ok"
        assert row["status"] == status
        assert row["image_id"] == f"image-{place}"
        assert row["control"] == ("yes" if method == "zero" else "no")
    assert rows[10]["flags"] == "zero_map ties"


def test_no_cell_is_a_formula_and_numbers_stay_numbers(found):
    texts = [b"".join(scores_csv(found)).decode(), summary_csv([build_table(found, "net")])]
    for text in texts:
        for row in csv.reader(io.StringIO(text)):
            for cell in row:
                if cell.startswith(("=", "+", "@", "-", "\t", "\r")):
                    float(cell)
    rows = read(texts[0])
    assert rows[4]["method"] == "'" + METHODS[1]
    assert rows[6]["error"] == '\'=bad, "very" bad\nindeed'
    assert rows[2]["score"] == "-2e-17"


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("a=1", "a=1"),
        (-1.5, "-1.5"),
        (-3, "-3"),
        (0.1 + 0.2, "0.30000000000000004"),
        (float("nan"), ""),
        (None, ""),
        (True, "yes"),
    ],
)
def test_a_text_that_a_spreadsheet_would_compute_gets_an_apostrophe(value, cell):
    assert written(value) == cell


def test_the_summary_holds_what_numpy_says(found):
    fringe, other, zero = read(summary_csv([build_table(found, "net")]))
    column = np.array(SCORES["net", "fringe", "insertion"])
    assert float(fringe["mean"]) == pytest.approx(column.mean(), rel=1e-12)
    assert float(fringe["median"]) == pytest.approx(np.median(column), rel=1e-12)
    assert float(fringe["half_iqr"]) == pytest.approx((np.quantile(column, 0.75) - np.quantile(column, 0.25)) / 2)
    assert (other["n"], other["required"], other["missing"], other["failed"], other["undefined"]) == (
        "1",
        "4",
        "1",
        "1",
        "1",
    )
    assert float(other["difference_value"]) == pytest.approx(0.1 - 0.3)
    assert other["reference"] == "fringe"
    assert float(other["p_holm"]) == 1.0
    assert (fringe["difference_value"], zero["difference_value"], zero["p_holm"]) == ("", "", "")
    # fringe is behind zero in all four images, the other in its only one: no sign needs to be drawn
    assert (fringe["control_compared"], other["control_compared"], zero["control_compared"]) == ("zero", "zero", "")
    assert float(fringe["control_difference_value"]) == pytest.approx(np.mean(column - 0.5))
    assert float(other["control_difference_value"]) == pytest.approx(0.3 - 0.5)
    assert [one["control_difference_n"] for one in (fringe, other, zero)] == ["4", "1", ""]
    assert [one["control_p_holm"] for one in (fringe, other, zero)] == ["1.0", "1.0", ""]
    assert zero["flags"] == "zero_map:1 ties:1"
    assert (fringe["best"], other["best"]) == ("no", "yes")
