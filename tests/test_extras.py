"""Without the packages of the extras: each is named with the extra that brings it, before anything is written."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fringe.cli import app
from fringe.models import ModelError, load_model

ABSENT = (
    *(
        "zennit",
        "lxt",
        "captum",
        "gradio",
        "quantus",
        "torchvision",
        "timm",
        "transformers",
        "sklearn",
        "optuna",
        "matplotlib",
    ),
    *("filelock", "pebble", "polars", "pyarrow", "yaml"),
)
BENCH = ("benchmark", "reproduce ablation", "reproduce runtime", "reproduce tuning", "tune", "reproduce all")
DIGIT = ("explain", "embedded:digits:0")
COMPARE = ("compare", "embedded:digits:0", "--out", "OUT", "--methods", "ig")
PLAIN = (*DIGIT, "--no-figures", "--out", "OUT")
COMMANDS = {
    **{name: (*name.split(), "--out", "OUT", *(("--data", "x") if "all" in name else ())) for name in BENCH},
    "app": ("app", "--port", "0"),
    "status": ("status", "OUT"),
    "report": ("report", "OUT"),
    "torchvision": (*PLAIN, "--model", "torchvision:resnet18"),
    "timm": (*PLAIN, "--model", "timm:resnet18"),
    "hf": (*PLAIN, "--model", "hf:microsoft/resnet-18"),
    "graph": (*PLAIN, "--method", "geoig_knn", "--references", "embedded:digits:5:9"),
    "graph of compare": ("compare", "embedded:digits:0", "--out", "OUT", "--methods", "ig,geoig_knn"),
    "quantus": (*COMPARE, "--metrics", "quantus:sparseness"),
    "method of captum": (*PLAIN, "--method", "smooth(2):captum:grad_cam"),
    "method of captum in compare": ("compare", "embedded:digits:0", "--out", "OUT", "--methods", "ig,captum:grad_cam"),
    "method of zennit": (*PLAIN, "--method", "zennit:epsilon_plus"),
    "method of lxt": (*PLAIN, "--method", "lxt:attnlrp"),
    "listing": ("methods",),
    "figures": (*DIGIT, "--out", "OUT"),
    "figures of compare": COMPARE,
    "no figures": (*DIGIT, "--out", "PLAIN", "--no-figures", "--method", "ig", "--set", "steps=2"),
}
SCRIPT = """
import json, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import fringe.quantus
from fringe.models import ModelError, load_model
from typer.testing import CliRunner
from fringe.cli import app

found = {}
try:
    import fringe.captum
except ModuleNotFoundError as error:
    found["captum"] = [error.name, str(error)]
for name, arguments in COMMANDS.items():
    result = CliRunner().invoke(app, list(arguments))
    found[name] = [int(result.exit_code), result.stderr or repr(result.exception)]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """What each command says where all these packages are absent, and the folder in which they ran."""
    folder = tmp_path_factory.mktemp("bare")
    script = f"ABSENT = {ABSENT!r}\nCOMMANDS = {COMMANDS!r}\n{SCRIPT}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), folder


def test_the_adapter_of_captum_names_its_extra_and_that_of_quantus_needs_none(bare):
    assert bare[0]["captum"] == [
        "captum",
        "fringe.captum needs captum, which is not installed; install fringe[captum]",
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torchvision", "torchvision is not installed; install fringe[vision]"),
        ("timm", "timm is not installed; install fringe[timm]"),
        ("hf", "transformers is not installed; install fringe[hf]"),
        ("graph", "this command needs sklearn, which is not installed; install fringe[graph]"),
        ("graph of compare", "this command needs sklearn, which is not installed; install fringe[graph]"),
        ("quantus", "--metrics: quantus:sparseness needs Quantus; install fringe[quantus]"),
        ("method of captum", "captum:grad_cam needs captum, which is not installed; install fringe[captum]"),
        ("method of captum in compare", "needs captum, which is not installed; install fringe[captum]"),
        ("method of zennit", "zennit:epsilon_plus needs zennit, which is not installed; install fringe[zennit]"),
        ("method of lxt", "lxt:attnlrp needs lxt, which is not installed; install fringe[lxt]"),
        ("app", "this command needs gradio, which is not installed; install fringe[app]"),
        ("figures", "this command needs matplotlib, which is not installed; it belongs to fringe itself"),
        ("figures of compare", "this command needs matplotlib, which is not installed; it belongs to fringe itself"),
        *((name, "which is not installed; install fringe[bench]") for name in (*BENCH, "status", "report")),
    ],
)
def test_a_missing_package_is_one_line_with_its_extra(bare, name, message):
    code, said = bare[0][name]
    assert code == 2
    assert len(said.splitlines()) == 1, said
    assert message in said


def test_nothing_was_written_and_what_needs_none_of_them_works(bare):
    found, folder = bare
    assert found["no figures"] == found["listing"] == [0, "None"]
    assert [path.name for path in Path(folder).iterdir()] == ["PLAIN"]


def without(monkeypatch, *packages):
    """Forgets what was imported of these packages; afterwards they are what they were before."""
    for name in [*packages, *(name for name in sys.modules if name.partition(".")[0] in packages)]:
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize(
    ("imports", "absent", "message"),
    [
        ("os", "torchvision", "torchvision is not installed; install fringe[timm]"),
        (
            "surely_absent",
            "surely_absent",
            "timm needs surely_absent, which is not installed; install fringe[timm]",
        ),
    ],
)
def test_what_a_package_needs_itself_comes_with_the_same_extra(imports, absent, message, tmp_path, monkeypatch):
    (tmp_path / "timm.py").write_text(f"import {imports}\n")
    (tmp_path / "torchvision.py").touch()
    without(monkeypatch, "timm", "torchvision")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(ModelError) as caught:
        load_model("timm:resnet18")
    assert str(caught.value) == message


def test_a_package_that_does_not_fit_the_others_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "transformers.py").write_text("from torch import surely_absent\n")
    without(monkeypatch, "transformers")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModelError, match=r"transformers cannot be imported \(cannot import name 'surely_absent'"):
        load_model("hf:microsoft/resnet-18")


def test_a_search_names_the_extra_tune_before_its_folder_is_made(tmp_path, monkeypatch):
    without(monkeypatch, "optuna")
    monkeypatch.setitem(sys.modules, "optuna", None)
    result = CliRunner().invoke(app, ["tune", "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert result.stderr == "error: this command needs optuna, which is not installed; install fringe[tune]\n"
    assert not (tmp_path / "out").exists()
