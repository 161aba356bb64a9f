"""Every command of the README and of docs/ runs in a checkout: as it is printed, but for what would take hours.

The reader's own files, and the folder of trained networks, have small stand-ins; a page that needs one says so.
"""

import glob
import re
import shlex
import shutil
import tomllib
from importlib import resources
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from fringe.cli import app
from fringe.errors import is_installed
from fringe.models import Preprocessing, has_efficientnet

ROOT = Path(__file__).parents[1]
SKILL = ROOT / ".agents" / "skills" / "fringe" / "SKILL.md"
# test_how_to follows the pages of docs/how-to
PAGES = [
    ROOT / "README.md",
    SKILL,
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "results").glob("*.md")),
]
#: Files that a reader has: a page that names one says whose it is, in words with its name.
READERS = (
    "photo.jpg",
    "photos/",
    "net.py",
    "names.txt",
    "mine.py",
    "my_methods",
    "imagenet/val",
    "plan.toml",
    "zoo.py",
)
#: What a command has in place of parts that take long, or that load weights from a network.
SHORT = {
    r"torchvision:resnet50": "efficientnet_lite0",
    r"--model vgg19 ": "--model vgg19=efficientnet_lite0 ",
    r"embedded:digits:0:\d+": "embedded:digits:0:2",
    r"explain photos/": "explain photos/0_thing_000.jpg",
    r"--scene copying,lookup ": "--scene copying ",
    r"--n \d+": "--n 2",
    r"--trials \d+": "--trials 1",
    r"until=arrival": "steps=2",
    r"(?<= --methods )fringe,ig,smoothgrad,blur_ig,guided_ig:quick": "fringe,ig",
    r"--set road\.\S+ ": "",  # whose metric is left out below
    r"\b(mprt,efficient_mprt|quantus:pixel_flipping|infidelity|road|cpd,cpp|sparseness),": "",
}
#: Scenes of trained networks, a real preset.
TRAINED = ("--config experiments/truth.toml", "--config experiments/truth_boxes.toml", "--preset out/")
#: Settings that shorten the path of FRInGe and the curves of scores.
QUICK = {"explain": ["--set", "steps=2", "--set", "halvings=0"]}
NETWORK = """
import torch

PREPROCESSING = "resize=32,crop=32,mean=0.5,std=0.5"

class Small(torch.nn.Module):
    def __init__(self, classes):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Softplus())
        self.head = torch.nn.Linear(4, classes)

    def forward(self, x):
        return self.head(self.layers(x).mean((2, 3)))

def make():
    return Small(10)

make_model = mobilenet_v2 = cifar_resnet20 = make
"""
METHOD = """
import torch

def saliency(model, inputs, target):
    return torch.autograd.grad(model(inputs.requires_grad_()).gather(1, target[:, None]).sum(), inputs)[0]
"""
PLAN = 'model = "embedded:digits"\ndata = "embedded:digits"\nmethods = ["ig"]\nmetrics = ["sparseness"]\nn = 2\n'


def commands(page: Path) -> list[str]:
    """The commands of a page, each as one line without its comment."""
    text = page.read_text(encoding="utf-8")
    shown = re.findall(r"^ *```console\n(.*?)^ *```", text, flags=re.DOTALL | re.MULTILINE)
    lines = "".join(shown).replace("\\\n", " ").splitlines()
    return [joined for line in lines if (joined := shlex.join(shlex.split(line, comments=True)))]


ALL = {str(page.relative_to(ROOT)): commands(page) for page in PAGES if commands(page)}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with stand-ins, in which photographs are small for every network."""
    (tmp_path / "checkout").mkdir()
    monkeypatch.chdir(tmp_path / "checkout")
    monkeypatch.syspath_prepend(tmp_path / "checkout")
    monkeypatch.setenv("FRINGE_SHARED", "../shared")
    Path("../shared/models").mkdir(parents=True)
    for name in ("net.py", "../shared/models/zoo.py"):
        Path(name).write_text(NETWORK, encoding="utf-8")
    for name in ("mine.py", "my_methods.py"):
        Path(name).write_text(METHOD, encoding="utf-8")
    Path("plan.toml").write_text(PLAN, encoding="utf-8")
    for name in ("names.txt",):
        Path(name).write_text("\n".join("abcdefghij"), encoding="utf-8")
    Path("experiments").symlink_to(ROOT / "experiments")
    photos = [resources.files("fringe.data").joinpath(f"{name}.jpg") for name in ("coffee", "cat")]
    for place in ("photos", "imagenet/val", "../shared/images/cifar10", "../shared/images/imagenet"):
        Path(place).mkdir(parents=True)
        for number in range(4):
            image = Image.open(str(photos[number % 2])).resize((40 + number, 40))
            image.save(Path(place, f"{number}_thing_00{number}.jpg"))
    for name in ("photo.jpg", "../shared/images/imagenet/0000_tench.jpg"):
        shutil.copy(str(photos[0]), name)
    small = Preprocessing.parse("resize=32,crop=32,mean=0.5,std=0.5")
    monkeypatch.setattr("fringe.models._efficientnet._PREPROCESSING", small)
    monkeypatch.setattr("fringe.app.launch", lambda spec: served(spec))
    return tmp_path / "checkout"


def served(spec) -> None:
    """The app of a specification, without its server."""
    from fringe.app._service import load_models

    assert load_models(spec)


def run(command: str) -> None:
    """Run a command, a long one in small; the shell's patterns are those of files."""
    for long, short in SHORT.items():
        command = re.sub(long, short, command)
    _, name, *words = shlex.split(command)
    words = [file for word in words for file in (sorted(glob.glob(word)) if "*" in word else [word])]
    if name == "benchmark" and "--dry-run" not in words:
        words.append("--dry-run")
    if name in ("status", "report") and not Path(words[0]).exists():  # of a run that was only planned
        run_small(words[0])
    if name == "report" and "--validity" in words and not Path(words[-1]).exists():
        pytest.fail(f"{command}: no earlier command of the page writes it")
    if "--preset" in words and not Path(words[words.index("--preset") + 1]).is_file():
        pytest.fail(f"{command}: no earlier command of the page writes the preset")
    result = CliRunner().invoke(app, [name, *words, *QUICK.get(name, [])])
    if "quantus:" in command and not is_installed("quantus"):  # needs an environment of its own
        assert 'run pip install -c constraints.txt -e ".[quantus]"' in result.output
        return
    assert result.exit_code == 0, f"{command}\n{result.output[-2000:]}{result.exception!r}"


def run_small(out: str) -> None:
    arguments = ["--methods", "ig", "--metrics", "sparseness,insertion", "--n", "2", "--out", out]
    assert CliRunner().invoke(app, ["benchmark", *arguments]).exit_code == 0


@pytest.mark.thorough
@pytest.mark.parametrize("page", [name for name, lines in ALL.items() if any(c.startswith("fringe ") for c in lines)])
def test_the_commands_of_a_page_run_in_their_order(page, folder):
    if not has_efficientnet():
        pytest.skip("the packages of the extra photo are not installed")
    torch.set_num_threads(1)
    for command in ALL[page]:
        if command.startswith("fringe ") and not any(part in command for part in TRAINED):
            run(command)


def test_every_command_is_of_a_kind_that_is_checked():
    kinds = {command.split()[0] for lines in ALL.values() for command in lines}
    assert kinds == {"fringe", "make", "python", "pip"}
    assert sum(command.startswith("fringe ") for lines in ALL.values() for command in lines) > 30


def test_every_option_shown_exists():
    known: dict[str, str] = {}
    for command in (command for lines in ALL.values() for command in lines if command.startswith("fringe ")):
        name = command.split()[1]
        known.setdefault(name, CliRunner().invoke(app, [name, "--help"]).output)
        assert [word for word in re.findall(r"(?<= )--[a-z-]+", command) if word not in known[name]] == [], command
    assert {"explain", "compare", "benchmark", "status", "report", "tune", "app", "verify"} <= set(known)


def test_what_make_is_asked_for_is_a_target_and_what_pip_installs_an_extra():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for command in (command for lines in ALL.values() for command in lines):
        program, *words = shlex.split(command)
        if program == "make":
            assert set(words) <= targets, command
        if program == "pip":
            asked = re.fullmatch(r"install \.\[(.*)\]", " ".join(words))
            assert asked is not None, command
            assert set(asked[1].split(",")) <= set(project["optional-dependencies"]), command


@pytest.mark.parametrize(
    "command", sorted({c for lines in ALL.values() for c in lines if c.startswith("python ")}), ids=lambda c: c[7:60]
)
def test_a_program_of_the_checkout_has_the_options_that_are_shown(command):
    _, program, *words = shlex.split(command)
    source = (ROOT / program).read_text(encoding="utf-8")
    assert [word for word in words if word.startswith("--") and f'"{word}"' not in source] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_says_whose_files_it_needs(page):
    needed = {name for command in commands(page) for name in READERS if name in command}
    words = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    sentences = re.split(r"(?<=[.:)])\s+", words)
    owned = " ".join(one for one in sentences if re.search(r"\byours?\b|FRINGE_SHARED", one))
    assert [name for name in sorted(needed) if name.rstrip("/") not in owned] == []
