"""Without the packages of the extras: each is named with the extra that brings it, before anything is written."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fringe import errors
from fringe.cli import app
from fringe.errors import DISTRIBUTION, install_hint
from fringe.models import ModelError, load_model

ROOT = Path(__file__).parents[1]
ABSENT = (
    *("zennit", "lxt", "captum", "gradio", "quantus", "torchvision", "efficientnet_lite_pytorch", "timm"),
    *("transformers", "sklearn", "optuna", "matplotlib"),
    *("polars", "pyarrow"),
)
BENCH = ("benchmark", "tune")
DIGIT = ("explain", "embedded:digits:0")
COMPARE = ("compare", "embedded:digits:0", "--out", "OUT", "--methods", "ig")
PLAIN = (*DIGIT, "--no-figures", "--out", "OUT")
COMMANDS = {
    **{name: (name, "--out", "OUT") for name in BENCH},
    "app": ("app", "--port", "0"),
    "status": ("status", "OUT"),
    "report": ("report", "OUT"),
    "torchvision": (*PLAIN, "--model", "torchvision:resnet18"),
    "photo": (*PLAIN, "--model", "efficientnet_lite0"),
    "photo without a model": ("explain", "embedded:photos", "--no-figures", "--out", "OUT"),
    "timm": (*PLAIN, "--model", "timm:resnet18"),
    "hf": (*PLAIN, "--model", "hf:microsoft/resnet-18"),
    "graph": (*PLAIN, "--method", "geoig_knn", "--references", "embedded:digits:5:9"),
    "graph of compare": ("compare", "embedded:digits:0", "--out", "OUT", "--methods", "ig,geoig_knn"),
    "quantus": (*COMPARE, "--metrics", "quantus:sparseness"),
    "method of captum": (*PLAIN, "--method", "smooth(2):captum:occlusion"),
    "method of captum in compare": ("compare", "embedded:digits:0", "--out", "OUT", "--methods", "ig,captum:occlusion"),
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
        "fringe.captum needs captum, which is not installed; "
        'run pip install -c constraints.txt -e ".[captum]" in the checkout',
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torchvision", 'torchvision is not installed; run pip install -c constraints.txt -e ".[vision]"'),
        ("photo", 'efficientnet_lite_pytorch is not installed; run pip install -c constraints.txt -e ".[photo]"'),
        (
            "photo without a model",
            'where it is installed: run pip install -c constraints.txt -e ".[photo]" in the checkout)',
        ),
        ("timm", 'timm is not installed; run pip install -c constraints.txt -e ".[timm]"'),
        ("hf", 'transformers is not installed; run pip install -c constraints.txt -e ".[hf]"'),
        (
            "graph",
            'this command needs sklearn, which is not installed; run pip install -c constraints.txt -e ".[graph]"',
        ),
        (
            "graph of compare",
            'this command needs sklearn, which is not installed; run pip install -c constraints.txt -e ".[graph]"',
        ),
        ("quantus", '--metrics: quantus:sparseness needs Quantus; run pip install -c constraints.txt -e ".[quantus]"'),
        (
            "method of captum",
            'captum:occlusion needs captum, which is not installed; run pip install -c constraints.txt -e ".[captum]"',
        ),
        (
            "method of captum in compare",
            'needs captum, which is not installed; run pip install -c constraints.txt -e ".[captum]"',
        ),
        (
            "method of zennit",
            "zennit:epsilon_plus needs zennit, which is not installed; "
            'run pip install -c constraints.txt -e ".[zennit]"',
        ),
        (
            "method of lxt",
            'lxt:attnlrp needs lxt, which is not installed; run pip install -c constraints.txt -e ".[lxt]"',
        ),
        ("app", 'this command needs gradio, which is not installed; run pip install -c constraints.txt -e ".[app]"'),
        (
            "figures",
            "this command needs matplotlib, which is not installed; it belongs to fringe itself: run pip install",
        ),
        (
            "figures of compare",
            "this command needs matplotlib, which is not installed; it belongs to fringe itself: run pip install",
        ),
        *(
            (name, 'which is not installed; run pip install -c constraints.txt -e ".[bench]" in the checkout')
            for name in (*BENCH, "status", "report")
        ),
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
        ("os", "torchvision", 'torchvision is not installed; run pip install -c constraints.txt -e ".[timm]"'),
        (
            "surely_absent",
            "surely_absent",
            "timm needs surely_absent, which is not installed; "
            'run pip install -c constraints.txt -e ".[timm]" in the checkout',
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
    assert message in str(caught.value)


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
    hint = 'run pip install -c constraints.txt -e ".[tune]" in the checkout'
    assert result.stderr == f"error: this command needs optuna, which is not installed; {hint}\n"
    assert not (tmp_path / "out").exists()


def installed(monkeypatch, folder, record):
    """This library as if it lay in ``folder``, installed with this record of where it came from."""
    monkeypatch.setattr(errors, "_CHECKOUT", folder)
    if record is not None:
        about = folder / "fringe_xai-0.1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {DISTRIBUTION}\nVersion: 0.1.0\n")
        if record:
            (about / "direct_url.json").write_text(json.dumps({"url": record, "dir_info": {}}))
        monkeypatch.syspath_prepend(folder)


@pytest.mark.parametrize(
    ("record", "hint"),
    [
        ("", 'run pip install -U "fringe-xai[timm]"'),
        ("file:///home/me/fringe", 'run pip install "fringe-xai[timm] @ file:///home/me/fringe"'),
    ],
)
def test_what_was_installed_is_installed_again_from_where_it_came(record, hint, tmp_path, monkeypatch):
    installed(monkeypatch, tmp_path, record)
    assert install_hint("timm") == hint
    assert install_hint() == hint.replace("[timm]", "")


def test_an_environment_under_the_old_name_gets_an_answer(tmp_path, monkeypatch):
    installed(monkeypatch, tmp_path, None)
    monkeypatch.setattr(importlib.metadata, "distribution", absent_distribution)
    assert install_hint("timm") == 'run pip install -U "fringe-xai[timm]"'


def absent_distribution(name):
    raise importlib.metadata.PackageNotFoundError(name)


def test_a_checkout_is_installed_again_as_it_is():
    assert install_hint("timm") == 'run pip install -c constraints.txt -e ".[timm]" in the checkout'
    assert install_hint() == 'run pip install -c constraints.txt -e "." in the checkout'


def test_no_text_suggests_the_package_that_others_have_under_this_name():
    """In the public index, ``fringe`` is another project: every message about an extra is that of ``install_hint``."""
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"] == DISTRIBUTION
    other = re.compile(r"pip install|fringe\[\{?[a-z_]+\}?\]|install fringe(?!-xai)")
    sources = [path for path in (ROOT / "src" / "fringe").rglob("*.py") if path.name != "errors.py"]
    assert not [str(path) for path in sources if other.search(path.read_text(encoding="utf-8"))]
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]
    named = re.compile(r"pip install[^`\n]* fringe\b(?!-xai)|(?<!\.)\bfringe\[[a-z,]+\]")
    assert not [str(path) for path in pages if named.search(path.read_text(encoding="utf-8"))]


def test_every_extra_that_a_message_names_exists():
    """Calls of ``install_hint`` and tables of extras in the source name extras of ``pyproject.toml``."""
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "src" / "fringe").rglob("*.py")]
    literal = {name for text in texts for name in re.findall(r"install_hint\([\"'](\w+)", text)}
    from fringe._files.urls import SCHEMES
    from fringe._strings.tables import _EXTRAS as libraries
    from fringe.attribution import METHODS
    from fringe.cli._console import _EXTRAS as commands

    tables = {*libraries.values(), *commands, *(extra for _, extra in SCHEMES.values())}
    plugins = {kind.package for kind in METHODS.values() if isinstance(kind.package, str)}
    assert len(literal) >= 6
    assert literal | tables | plugins <= extras
