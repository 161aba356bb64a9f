"""``fringe verify`` and ``fringe card``: exit codes, files, and code that runs only if it is trusted."""

import errno
import json
import os

import pytest

import fringe.bench.cards
from command_line import run
from fringe._files import disk as _files
from fringe.bench.experiments import ExperimentSpec, run_experiment

pytestmark = pytest.mark.usefixtures("small_figures")

SHORT = ("--n", "2", "--scenes", "patch_and")
CODE = '''
import torch


def saliency(model, inputs, target):
    """The plain gradient."""
    inputs.requires_grad_()
    return torch.autograd.grad(model(inputs).gather(1, target[:, None]).sum(), inputs)[0]


def leaking(model, inputs, target):
    """The input, whatever the model."""
    return inputs
'''


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    path = tmp_path_factory.mktemp("code") / "methods.py"
    path.write_text(CODE)
    return path


@pytest.fixture(scope="module")
def cards():
    return {}


@pytest.fixture
def measured_once(cards, monkeypatch):
    """The same method with the same options is measured by the first test that asks for it."""

    def verify(target, *, progress, **options):
        asked = repr((target, options))
        if asked not in cards:
            cards[asked] = measure(target, **options, progress=progress)
        return cards[asked]

    measure = fringe.bench.cards.verify
    monkeypatch.setattr("fringe.bench.cards.verify", verify)


def test_a_file_without_its_function_hears_how_one_is_named(code, tmp_path):
    result = run("verify", str(code), "--trust-code", "--out", tmp_path)
    assert (result.exit_code, "names no function; name one, as in " in result.stderr) == (2, True), result.output


def test_a_method_that_keeps_all_checks_exits_with_zero(code, tmp_path, measured_once):
    result = run("verify", f"{code}:saliency", "--trust-code", *SHORT, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "checks: 22 of 22 hold; 2 more do not apply" in result.stdout  # no steps, no baseline
    assert "cost of a map: 1 forward + 1 vjp" in result.stdout
    assert "AND of two patches" in result.stdout
    assert "Completeness: the method claims no sum" in result.stdout
    page = (tmp_path / "card.html").read_text()
    assert "Card of saliency" in page
    assert "0 of 22 fail" in page
    assert "--trust-code" in page
    assert {path.name for path in tmp_path.iterdir()} == {"card.html", "card.md", "card.json", "figures"}


def test_a_theorem_that_may_fail_is_said_and_is_no_error(code, tmp_path, measured_once):
    arguments = ("verify", f"{code}:leaking", "--trust-code", *SHORT, "--out", tmp_path)
    result = run(*arguments, "--allow", "constant_model,unread_inputs,explained_class")
    assert (result.exit_code, "checks: 19 of 22 hold" in result.stdout) == (0, True), result.output
    assert (tmp_path / "card.html").is_file()
    (tmp_path / "card.html").unlink()
    unknown = run(*arguments, "--allow", "constant")
    assert (unknown.exit_code, (tmp_path / "card.html").is_file()) == (2, True)  # what was measured is not lost
    assert "--allow: no check is called constant" in unknown.stderr


def test_maps_of_a_wrong_shape_are_said_once_with_the_shapes_that_are_taken(tmp_path):
    (tmp_path / "wrong.py").write_text("import torch\ndef wrong(model, inputs, target):\n    return torch.zeros(3)\n")
    result = run("verify", f"{tmp_path / 'wrong.py'}:wrong", "--trust-code", *SHORT, "--out", tmp_path / "card")
    assert result.exit_code == 1
    assert "check tabular_inputs fails: method: wrong returned shape (3,), expected that of the input" in result.stderr
    shapes = "wrong returned shape (3,), expected that of the input, (1, C, H, W), or (1, 1, H, W), (1, H, W) or (H, W)"
    assert result.stderr.count(shapes) == 1
    assert result.stdout.count(shapes) == 2  # where it fails, and what was not measured


@pytest.mark.parametrize("as_json", [False, True])
def test_a_card_that_cannot_be_written_is_shown(code, tmp_path, monkeypatch, measured_once, as_json):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(_files, "write_atomic", full)
    arguments = ("verify", f"{code}:saliency", "--trust-code", *SHORT, "--out", tmp_path, *["--json"] * as_json)
    result = run(*arguments)
    assert (result.exit_code, "(No space left on device)" in result.stderr) == (2, True)
    assert ("checks" in json.loads(result.stdout)) if as_json else ("checks: 22 of 22 hold" in result.stdout)


ENDING = """
import sys

import torch


class Net(torch.nn.Module):
    preprocessing = "resize=32,channels=1,mean=0,std=1"

    def forward(self, x):
        sys.exit()


def method(model, inputs, target):
    sys.exit(0)


def built():
    sys.exit("no weights")
"""


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("verify", "{}:method", *SHORT), 0),
        (("explain", "embedded:digits:0", "--model", "{}:Net"), None),
        (("explain", "embedded:digits:0", "--model", "{}:built"), "no weights"),
        (("benchmark", "--data", "embedded:digits", "--n", "1", "--model", "{}:Net"), None),
    ],
)
def test_code_that_ends_the_program_is_no_success(tmp_path, command, code):
    (tmp_path / "ending.py").write_text(ENDING)
    arguments = [part.format(tmp_path / "ending.py") for part in command]
    result = run(*arguments, "--trust-code", "--out", tmp_path / "out")
    assert (result.exit_code, f"a model or a method ended the program, by exit({code!r})" in result.stderr) == (2, True)


def test_a_card_of_one_of_the_plans_of_a_run(tmp_path):
    card = ("--from", tmp_path / "run", "--out", tmp_path / "card")
    for name, n in (("first", 3), ("second", 2)):
        given = {"data": "embedded:digits", "n": n, "methods": "ig", "metrics": "saco,insertion", "set": "ig.steps=3"}
        run_experiment(ExperimentSpec(name=name, **given), tmp_path / "run")
    unnamed = run("card", "ig", *card)
    assert (unnamed.exit_code, "--plan: none named; " in unnamed.stderr) == (2, True)
    assert "first, second" in unnamed.stderr
    assert "SaCo" in run("card", "ig", *card, "--plan", "first").stdout
    made = run("card", "ig", *card, "--plan", "second", "--json")
    assert made.exit_code == 0, made.stderr
    assert json.loads(made.stdout)["n"] == 2
    written = (tmp_path / "card" / "card.md").read_text()
    assert "--plan second" in written
    assert "Insertion AUC" in written
    missing = run("card", "fringe", *card, "--plan", "first")
    assert (missing.exit_code, "method: got 'fringe'" in missing.stderr.lower()) == (2, True)
    without = run("card", "ig", "--plan", "second", "--out", tmp_path / "card")
    assert (without.exit_code, "only a run has plans" in without.stderr) == (2, True)


def test_an_interruption_is_said(tmp_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("fringe.bench.cards.verify", stop)
    result = run("verify", "ig", "--out", tmp_path)
    assert (result.exit_code, result.stderr) == (130, "interrupted: run the command again\n")


@pytest.mark.parametrize("command", ["verify", "card"])
def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_measured(command, tmp_path, monkeypatch):
    monkeypatch.setattr("fringe.bench.cards.verify", lambda *_, **__: pytest.fail("measured"))
    (tmp_path / "file").write_text("")
    result = run(command, "ig", "--out", tmp_path / "file")
    assert (result.exit_code, "--out: cannot write in" in result.stderr) == (2, True)
    url = run(command, "ig", "--out", "s3://bucket/card")
    assert (url.exit_code, "s3:// is not supported" in url.stderr) == (2, True)
