"""The probability that a map is right, from a benchmark on scenes to the verdict of an image, by commands."""

import json

import numpy as np
import pytest
import verdict_worlds as worlds
from typer.testing import CliRunner

import fringe
from fringe._text import to_json
from fringe.cli import app
from fringe.experiments import judge_verdicts, read_reliability

QUICK = fringe.FRInGe(tau=0.03, cg_iterations=4)
SETTINGS = ("--set", "tau=0.03", "--set", "cg_iterations=4")


def run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    path = tmp_path_factory.mktemp("record") / "reliability.json"
    path.write_text(to_json(judge_verdicts(worlds.results(worlds.world(method=QUICK))).record()))
    return path


def explain(out, *more):
    return run("explain", "embedded:digits:3:5", "--out", out, *SETTINGS, *more)


def test_a_benchmark_on_cheap_scenes_judges_the_verdict(tmp_path):
    """All maps of the designed scenes are right, so that there is nothing to tell; DiFull does not count."""
    scenes = ("--scene", "difull,patch_and,colour_counter", "--n", 3)
    arguments = (*scenes, "--methods", "fringe", "--out", tmp_path / "run")
    result = run("benchmark", *arguments, *(f"--set=fringe.{text}" for text in SETTINGS[1::2]))
    assert result.exit_code == 0, result.output
    text = (tmp_path / "run" / "report" / "report.md").read_text(encoding="utf-8").replace("\\", "")
    assert "### What the verdict of fringe is worth" in text
    assert "| any | 1.00 | 6 |" in text
    assert "There is no such probability" in text
    path = tmp_path / "run" / "report" / "reliability.json"
    assert read(path)["scenes"] == {"patch_and": [3, 3], "colour_counter": [3, 3]}
    assert read(path)["method"] == json.loads(to_json(QUICK.record()))
    refused = explain(tmp_path / "out", "--reliability", path)
    assert refused.exit_code == 2
    assert "--reliability" in refused.stderr
    assert "does not hold on scenes that it was not fitted on" in refused.stderr
    assert "6 maps of patch_and, colour_counter" in refused.stderr
    assert not (tmp_path / "out").exists()


def test_explain_prints_the_probability_with_the_verdict(record, tmp_path):
    result = explain(tmp_path / "out", "--reliability", record)
    assert result.exit_code == 0, result.output
    assert "P(right)" in result.stdout
    reliability = read_reliability(record)
    for entry in read(tmp_path / "out" / "summary.json")["inputs"]:
        share = entry["probability_right"]
        assert f"{share:.0%}" in result.stdout
        residual = np.log10(max(entry["completeness_residual"], 1e-6))
        assert share == pytest.approx(worlds.sigmoid(-worlds.SLOPE * residual + worlds.OFFSET), abs=0.12)
        words = f"; of maps like this {share:.0%} are right, by {len(reliability.scenes)} scenes with a known answer"
        assert entry["advice"].endswith(words)
        folder = tmp_path / "out" / entry["folder"]
        assert words[2:] in (folder / "explanation.html").read_text(encoding="utf-8")
        assert read(folder / "explanation.json")["probability_right"] == share


def test_nothing_is_printed_without_a_record(record, tmp_path):
    result = explain(tmp_path / "out", "--no-figures")
    assert result.exit_code == 0
    assert "P(right)" not in result.stdout
    for entry in read(tmp_path / "out" / "summary.json")["inputs"]:
        assert "probability_right" not in entry
        assert "are right" not in entry["advice"]
    again = explain(tmp_path / "out", "--no-figures", "--reliability", record)
    assert again.exit_code == 2  # results without it are not the ones that are asked for
    assert "reliability" in again.stderr
    assert explain(tmp_path / "out", "--no-figures", "--reliability", record, "--overwrite").exit_code == 0
    reused = explain(tmp_path / "out", "--no-figures", "--reliability", record)
    assert "reused from an earlier run: 2" in reused.stdout
    assert "P(right)" in reused.stdout


def test_a_record_of_other_settings_is_refused(record, tmp_path):
    other = run("explain", "embedded:digits:3", "--out", tmp_path / "out", "--reliability", record)
    assert other.exit_code == 2
    assert "is of other settings: tau 0.03, not 0.04, cg_iterations 4, not 20" in " ".join(other.stderr.split())
    method = run("explain", "embedded:digits:3", "--out", tmp_path / "o", "--method", "ig", "--reliability", record)
    assert "method fringe, not ig" in " ".join(method.stderr.split())
