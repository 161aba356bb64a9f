"""Numbers as people read them, and names in Markdown and LaTeX that are shown and do nothing else."""

import math

import pytest

from fringe._strings.formats import (
    decimals_for,
    escape_latex,
    escape_markdown,
    number,
    percent,
    with_interval,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.59712, "0.597"),
        (-0.0712, "−0.0712"),
        (12.34, "12.3"),
        (999.4, "999"),
        (3814.2, "3.81×10³"),
        (0.00012, "0.00012"),
        (1.5e-7, "1.50×10⁻⁷"),
        (0.0, "0"),
        (12345, "12345"),
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "–"),
    ],
)
def test_a_number_that_stands_alone_has_three_significant_digits(value, text):
    assert number(value) == text


def test_a_number_has_the_digits_and_the_sign_that_are_asked_for():
    assert (number(1234.5, digits=5), number(12345.0, digits=4)) == ("1234.5", "1.234×10⁴")
    assert [number(value, signed=True) for value in (0.5, -0.5, 0.0)] == ["+0.5", "−0.5", "0"]
    assert (number(999.999, 3), number(1000.0, 3)) == ("999.999", "1.00×10³")


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (0.325, 0.301, 0.3501, "0.325 [0.301, 0.350]"),
        (-0.5, -1.0, 0.25, "−0.500 [−1.000, 0.250]"),
        (0.325, None, None, "0.325"),
        (0.325, math.nan, math.nan, "0.325"),
        (None, None, None, "–"),
    ],
)
def test_an_interval_stands_in_brackets_if_there_is_one(value, low, high, text):
    assert with_interval(value, low, high, 3) == text


@pytest.mark.parametrize(
    ("share", "decimals", "text"),
    [
        (0.6231, 1, "62.3%"),
        (0.0005, 1, "< 0.1%"),
        (0.00005, 2, "< 0.01%"),
        (0.0, 1, "0.0%"),
        (1.0, 0, "100%"),
        (-0.25, 0, "−25%"),
        (None, 1, "–"),
        (math.nan, 1, "–"),
    ],
)
def test_a_share_that_is_not_zero_is_not_printed_as_zero(share, decimals, text):
    assert percent(share, decimals) == text


@pytest.mark.parametrize(
    ("halves", "decimals"),
    [
        ([0.015], 3),
        ([0.0006], 3),
        ([0.0004], 4),
        ([0.015, 0.00004], 5),
        ([1e-6], 6),
        ([1e-9], 3),
        ([0.0, math.nan], 3),
        ([], 3),
    ],
)
def test_decimals_let_every_spread_be_seen(halves, decimals):
    assert decimals_for((0.5, half) for half in halves) == decimals
    assert decimals_for([(5000.0, 0.00001), (0.5, 0.01)]) == 3  # a power of ten asks for none


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
        ("3.81×10⁻³", r"3.81$\times$10\textsuperscript{$-$}\textsuperscript{3}"),
    ],
)
def test_latex_prints_names_and_does_nothing_else(text, escaped):
    assert escape_latex(text) == escaped


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
