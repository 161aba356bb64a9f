"""Run the tests with every Python version of the metadata that is on this machine, each in an environment of its own.

python scripts/matrix.py                                # the tests of `make test`, in build/matrix/VERSION
python scripts/matrix.py --only 3.12 --tests tests/test_numbers.py
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=versions(), action="append", help="a version; may be repeated")
    parser.add_argument("--tests", default="", help="files of tests (default: all)")
    options = parser.parse_args()
    results = {version: test(version, options.tests) for version in options.only or versions()}
    print("\n".join(f"Python {version}: {result}" for version, result in results.items()))
    if "failed" in results.values() or "passed" not in results.values():
        sys.exit(1)


def versions() -> list[str]:
    """The versions that the metadata name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [found[1] for text in project["classifiers"] if (found := re.search(r"Python :: (3\.\d+)$", text))]


def find_python(version: str) -> str | None:
    """The program of a version: one that the shell finds and that works, else one that pyenv installed."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = shutil.which(f"python{version}")
    candidates = [*([found] if found else []), *map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))]
    for candidate in candidates:  # a shim of pyenv for a version that is not chosen ends with an error
        done = subprocess.run([candidate, "--version"], capture_output=True, text=True)
        if done.returncode == 0 and done.stdout.startswith(f"Python {version}."):
            return candidate
    return None


def test(version: str, tests: str) -> str:
    """``passed``, ``failed`` or ``absent``."""
    python = find_python(version)
    if python is None:
        return "absent"
    command = ["make", "test", f"PYTHON={python}", f"VENV=build/matrix/{version}", f"TESTS={tests}"]
    return "passed" if subprocess.run(command, cwd=ROOT).returncode == 0 else "failed"


if __name__ == "__main__":
    main()
