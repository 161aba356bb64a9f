"""Tables as text: alignment, rules, and control characters."""

from fringe._tables import Styled, TextTable


def test_a_table_prints_its_cells_in_columns():
    table = TextTable(("name", "n"), [["a", "1"], [Styled("longer", "bold red"), "20"], ["c", "3"]], ("n",), (1,))
    head, _, first, second, rule, last = [line.rstrip() for line in str(table).splitlines()]
    assert head.split() == ["name", "n"]
    assert first.endswith(" 1")
    assert len(first) == len(second) == len(last)  # numbers end in one column
    assert second.split() == ["longer", "20"]
    assert set(rule.strip()) == {"─"}


def test_control_characters_are_shown_as_escapes_and_long_lines_stay_whole():
    text = str(TextTable(("path~",), [["a\x1b[2Jb" + "x" * 150]]))
    assert "\x1b" not in text
    assert "a\\x1b[2Jb" + "x" * 150 in text
