"""What starts fast, and the commands that only list."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fringe
from fringe.cli import _print_every_letter, app

SOURCE = Path(fringe.__file__).parents[1]
HEAVY = "{'torch', 'matplotlib', 'safetensors', 'PIL', 'numpy'}"
HELP = f"""
from typer.testing import CliRunner
from fringe.cli import app
for arguments in (["--help"], ["app", "--help"], ["explain", "--help"]):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0 and "--help" in result.stdout, result.output
print(sorted(set(sys.modules) & {HEAVY}))
"""
ROOMS_ONLY = "import types; sys.modules['fringe'] = types.ModuleType('fringe'); sys.modules['fringe'].__path__ = [{!r}]"


@pytest.mark.parametrize("before", [ROOMS_ONLY.format(str(SOURCE / "fringe")), "import fringe"], ids=["cli", "package"])
def test_help_loads_nothing_heavy(before):
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{before}\n{HELP}"], capture_output=True, text=True, env=environment
    )
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.skipif(os.name != "posix", reason="Windows sends no signal to one process")
def test_an_interrupt_while_python_ends_prints_no_traceback():
    strike = "import atexit, os, sys; atexit.register(lambda: os.kill(os.getpid(), 2)); "
    command = [sys.executable, "-c", f"{strike}from fringe.cli import main; main()", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(SOURCE)})
    assert (done.returncode, done.stdout, done.stderr) == (-2, f"fringe {fringe.__version__}\n", "")


LIGHT = """
import sys
from typer.testing import CliRunner
from fringe.cli import app
for arguments in (["methods"], ["metrics"], ["models"], ["explain", "embedded:digits:1", "--method", "ig", "--out"]):
    result = CliRunner().invoke(app, [*arguments, *(sys.argv[1:] if "--out" in arguments else [])])
    assert result.exit_code == 0, result.output
import fringe.app._service
print([name for name in sys.modules if name.startswith("fringe.bench")])
"""


def test_no_command_that_does_not_benchmark_loads_the_benchmark(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-W", "ignore", "-c", LIGHT, str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "[]", done.stderr


def test_no_summary_of_a_command_is_cut_in_a_narrow_terminal():
    result = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"})
    commands = result.stdout.partition("Commands:")[2].split("\n")[1:]
    summaries = [line for line in commands if line.strip()]
    assert len(summaries) == len(app.registered_commands)
    assert [line for line in summaries if not line.endswith(".") or line.endswith("...")] == []


def test_a_reader_that_is_gone_is_no_error_of_a_model():
    command = [sys.executable, "-c", "from fringe.cli import main; main()", "models"]  # a table of rich
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        process.stdout.close()
        assert process.stderr.read() == b""


def test_letters_that_the_code_page_lacks_are_printed():
    """Python encodes what goes to a pipe in the code page of Windows; the Japanese one has no ö, as in Hedström."""
    command = [sys.executable, "-c", "from fringe.cli import main; main()", "metrics", "mprt"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONIOENCODING": "cp932"}
    done = subprocess.run(command, capture_output=True, env=environment)
    assert (done.returncode, "Hedström et al. 2023" in done.stdout.decode("utf-8")) == (0, True), done.stderr


def test_a_terminal_shows_escapes_of_what_it_lacks(monkeypatch):
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", None)  # of a program without a console
    _print_every_letter()
    print("é 写", end="")
    terminal.flush()
    assert terminal.buffer.getvalue() == b"\xe9 \\u5199"


def test_models_lists_every_family():
    assert "timm:NAME[@WEIGHTS]" in CliRunner().invoke(app, ["models"]).stdout
    listed = json.loads(CliRunner().invoke(app, ["models", "--json"]).stdout)["models"]
    assert [row["family"] for row in listed][:2] == ["embedded", "torchvision"]


def test_version():
    assert CliRunner().invoke(app, ["--version"]).stdout == f"fringe {fringe.__version__}\n"
