"""The README is true: its Python runs, its commands are commands."""

import re
from pathlib import Path

from typer.testing import CliRunner

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str, text: str = TEXT) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def test_the_three_lines_make_a_picture():
    session: dict[str, object] = {}
    (block,) = blocks("python")
    assert len([line for line in block.splitlines() if line]) == 3
    exec(compile(block, "README.md", "exec"), session)
    assert session["result"].verdict == ("ok",)
    assert session["figure"].axes


def test_the_command_for_digits_works_as_printed(tmp_path):
    from fringe.cli import app

    commands = [line for block in blocks("console") for line in block.splitlines() if "embedded:digits" in line]
    arguments = commands[0].split()[1:]
    arguments[arguments.index("--out") + 1] = str(tmp_path / "digits")
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert list((tmp_path / "digits").glob("*.png"))


def test_every_option_shown_exists():
    from fringe.cli import app

    pages = [TEXT, *(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md")))]
    lines = [line for page in pages for block in blocks("console", page) for line in block.splitlines()]
    for command in ("explain", "compare", "benchmark", "status", "report", "tune", "reproduce"):
        known = CliRunner().invoke(app, [command, "--help"]).output
        own = [line for line in lines if line.startswith(f"fringe {command}")]
        shown = {option for line in own for option in re.findall(r"--[a-z-]+", line)}
        assert own
        assert [option for option in sorted(shown) if option not in known] == []


def test_it_is_a_screen_or_two():
    assert len(TEXT.splitlines()) <= 90
