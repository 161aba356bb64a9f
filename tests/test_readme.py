"""The README is true: its Python runs, and it is short (its commands: test_commands)."""

import re
from pathlib import Path

import pytest

from fringe.models import has_efficientnet

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.thorough
def test_the_three_lines_make_a_picture():
    if not has_efficientnet():
        pytest.skip("the packages of the extra photo are not installed")
    session: dict[str, object] = {}
    (block,) = blocks("python")
    assert len([line for line in block.splitlines() if line]) == 3
    exec(compile(block, "README.md", "exec"), session)
    assert session["result"].verdict == ("ok",)
    assert session["figure"].axes


def test_it_is_a_screen_or_two():
    assert len(TEXT.splitlines()) <= 120


def test_it_says_what_it_needs_words_for_only_after_it_explained_them():
    before = re.sub(r"^```.*?^```", "", TEXT.partition("## What is different")[0], flags=re.DOTALL | re.MULTILINE)
    assert [word for word in ("control", "scene", "trigger", "verdict") if re.search(rf"\b{word}s?\b", before)] == []
    limits = TEXT.partition("## Five limits")[2].partition("\n## ")[0]
    assert [int(number) for number in re.findall(r"^(\d)\. \*\*", limits, re.MULTILINE)] == [1, 2, 3, 4, 5]
    assert "`FRInGe()` is not the setting of the paper" in TEXT
