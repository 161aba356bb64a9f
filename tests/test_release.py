"""What a release needs: one version everywhere, a workflow that publishes without a password, Python versions."""

import importlib.util
import re
import sys
import tomllib
from pathlib import Path

import pytest

import fringe

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture
def matrix():
    """The program of ``make matrix``."""
    spec = importlib.util.spec_from_file_location("matrix", ROOT / "scripts" / "matrix.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_version_is_one():
    assert PROJECT["version"] == fringe.__version__
    minor = ".".join(fringe.__version__.split(".")[:2])
    assert f"FRInGe, default of {minor} (" in (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")


def test_a_tag_is_built_tried_and_published_without_a_password():
    yaml = pytest.importorskip("yaml")
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    assert workflow[True] == {"push": {"tags": ["v*"]}, "workflow_dispatch": None}  # YAML reads `on` as true
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    assert workflow["permissions"] == {"contents": "read"}
    assert publish["permissions"] == {"id-token": "write"}
    assert "permissions" not in build
    assert publish["needs"] == "build"
    assert publish["if"] == "github.event_name == 'push' && vars.PUBLISH == 'yes'"
    assert [step["run"] for step in build["steps"] if "run" in step] == ["make dist"]
    stored, fetched = build["steps"][-1]["with"], publish["steps"][0]["with"]
    assert (stored["name"], stored["path"]) == (fetched["name"], fetched["path"])
    assert publish["steps"][1] == {"uses": "pypa/gh-action-pypi-publish@release/v1"}  # with its defaults
    assert not re.search(r"secrets\.|password|repository-url", text.partition("\n")[2])


def test_the_matrix_has_the_versions_of_the_metadata_and_names_those_that_are_absent(matrix, monkeypatch, tmp_path):
    assert matrix.versions() == ["3.11", "3.12", "3.13", "3.14"]
    shim = tmp_path / "bin" / "python3.12"  # as pyenv makes one for a version that is not chosen
    shim.parent.mkdir()
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    installed = tmp_path / "pyenv" / "versions" / "3.12.1" / "bin" / "python"
    installed.parent.mkdir(parents=True)
    installed.write_text("#!/bin/sh\necho Python 3.12.1\n")
    installed.chmod(0o755)
    monkeypatch.setenv("PATH", f"{shim.parent}:/bin:/usr/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert matrix.find_python("3.12") == str(installed)
    assert matrix.find_python("3.99") is None
    assert matrix.test("3.99", "") == "absent"


def test_the_matrix_fails_where_a_version_fails_or_none_is_there(matrix, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["matrix.py"])
    for found, code in (({"3.12": "failed"}, 1), (dict.fromkeys(matrix.versions(), "absent"), 1), ({}, None)):
        monkeypatch.setattr(matrix, "test", lambda version, tests, found=found: found.get(version, "passed"))
        try:
            matrix.main()
            ended = None
        except SystemExit as error:
            ended = error.code
        assert ended == code
    assert capsys.readouterr().out.splitlines()[:2] == ["Python 3.11: passed", "Python 3.12: failed"]


def test_the_checklist_names_what_there_is():
    section = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## A release")[2]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`make (\w+)`", section):
        assert f"\n{target}:" in makefile
    for path in re.findall(r"`([\w./]+\.(?:toml|py|cff|md|yml))`", section):
        assert any((ROOT / folder / path).is_file() for folder in ("", ".github/workflows")), path
