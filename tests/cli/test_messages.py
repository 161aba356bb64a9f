"""Messages of the command line about what was typed: each names the flag or argument, and what to write instead."""

import pytest

from command_line import run
from fringe._strings.progress import NOTE, log
from fringe.cli._console import _short_warnings

ONE = "embedded:digits:0"
FAMILIES = "the forms are embedded:digits, torchvision:NAME"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("explain", ONE, "--method", "ig:nopreset"), "--method: ig has no 'nopreset'; did you mean 'released'?"),
        (("compare", ONE, "--metrics", "insertion:no"), "--metrics: insertion has no 'no'; known: paper"),
        (("benchmark", "--scene", "gridpg:no"), "--scene: gridpg has no 'no'; known: nine"),
        (("explain", ONE, "--method", "smooth(-1):ig"), "--method: sigma: got '-1', expected a positive number"),
        (("compare", ONE, "--methods", "smooth(-1):ig"), "--methods: sigma: got '-1', expected a positive number"),
        (("explain", ONE, "--method", "fringe:fast", "--preset", "vgg19"), "'fringe:fast' names a preset, too"),
        (("explain", ONE, "--method", "captom"), "did you mean 'captum'? Known methods: agi, blur_ig"),
        (("explain", ONE, "--model", "photo.jpg"), f"--model: 'photo.jpg' has no family; {FAMILIES}"),
        (("explain", ONE, "--model", "no.py:f"), "--model: Python file 'no.py' does not exist"),
        (("explain", ONE, "--preprocessing", "mean=0.5"), "--preprocessing: got mean without std; write std="),
        (("compare", ONE, "--rows", "0"), "--rows: got 0, expected a positive whole number"),
        (("compare", ONE, "--set", "steps=3"), "--set: got 'steps=3', expected LABEL.KEY=VALUE"),
        (("explain", ONE, "--batch-size", "none"), "--batch-size: got 'none'"),
        (("tune", "--search", "foo"), "--search: got 'foo', expected one of tau, eta_max"),
        (("benchmark", "--data", "nodir"), "--data: 'nodir' was not found: there is no file or folder 'nodir' in "),
        (("benchmark", "--config", "bad.toml"), "--config: unknown key 'x' (in 'bad.toml'); the keys: name, model"),
    ],
)
def test_a_wrong_value_is_exit_code_2_and_names_its_flag(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.toml").write_text("x = 1")
    result = run(*arguments, "--out", tmp_path / "out")
    assert (result.exit_code, message in result.stderr) == (2, True), result.stderr
    assert result.stderr.startswith("error: --")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nofile.jpg", "INPUT: 'nofile.jpg' was not found: there is no file or folder 'nofile.jpg' in "),
        ("embedded:digit", "; did you mean 'embedded:digits'?"),
        ("embedded:digits:5000", "INPUT: 'embedded:digits:5000' selects nothing of the 360 test images 0 to 359"),
        ("embedded:digits:x", "INPUT: 'embedded:digits:x' is not of the form embedded:digits, embedded:d"),
    ],
)
@pytest.mark.parametrize("command", ["explain", "compare"])
def test_inputs_that_lead_nowhere_are_named_before_a_model_is_asked_for(tmp_path, command, given, message):
    result = run(command, given, "--out", tmp_path / "out")
    assert (result.exit_code, message in result.stderr) == (1, True), result.stderr


def test_long_work_is_announced_on_standard_error(capsys):
    handlers, level = list(log.handlers), log.level
    with _short_warnings():
        log.log(NOTE, "a network is trained")
        log.info("what only a log shows")
    assert capsys.readouterr() == ("", "a network is trained\n")
    assert (list(log.handlers), log.level) == (handlers, level)
