"""The mutation script, on a package of one function with a test that reaches only part of it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "mutants.py"
MODULE = '''"""A docstring with 1 number."""

LIMIT = 10  # pragma: no mutate


def clipped(x: int = 3) -> int:
    """At most 10."""
    if x is None:
        raise ValueError("1 text of " + "an error")
    return min(x, LIMIT)


class Toy:
    def __repr__(self) -> str:
        return "toy" * 2
'''
TEST = """from toy import clipped


def test_clipped():
    assert clipped(11) == 10
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "src/toy/__init__.py", *arguments]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # starts faster
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.thorough
def test_tells_killed_mutants_from_survivors(tmp_path):
    (tmp_path / "src" / "toy").mkdir(parents=True)
    (tmp_path / "src" / "toy" / "__init__.py").write_text(MODULE)
    (tmp_path / "test_toy.py").write_text(TEST)
    (tmp_path / "test_other.py").write_text("def test_nothing():\n    pass\n")

    listed = run(tmp_path, "--list")
    assert listed.returncode == 0, listed.stderr
    found = re.findall(r"^listed +src/toy/__init__.py:(\d+) \[(.*)\]", listed.stdout, flags=re.MULTILINE)
    assert found == [
        ("6", "constant"),  # the default of x: 2 and 4
        ("6", "constant"),
        ("8", "comparison"),
        ("9", "statement dropped"),
        ("10", "return"),
        ("10", "call"),
    ]

    tried = run(tmp_path, "--only", "call|dropped", "--tests", "test_toy.py", "--", "-k", "clipped")
    assert tried.returncode == 1, tried.stderr
    assert "survived src/toy/__init__.py:9 [statement dropped]" in tried.stdout
    assert (
        "killed   src/toy/__init__.py:10 [call]\n    - return min(x, LIMIT)\n    + return max(x, LIMIT)" in tried.stdout
    )
    assert tried.stdout.endswith("1 survived, 1 killed\n")
    assert (tmp_path / "src" / "toy" / "__init__.py").read_text() == MODULE

    assert run(tmp_path, "--only", "call", "--tests", "test_toy.py").returncode == 0
    unrelated = run(tmp_path, "--tests", "test_other.py")
    assert unrelated.returncode == 2
    assert "they do not import it" in unrelated.stderr
