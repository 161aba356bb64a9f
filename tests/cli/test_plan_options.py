"""What is typed and what a file says become one plan, or a line that helps."""

import dataclasses
import importlib.util
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from fringe import FRInGe, FringeError, InputError, IntegratedGradients
from fringe.cli import plan_models
from fringe.cli.app import app
from fringe.cli.plan_flags import HowOptions, clock_options, how_options, plan_options
from fringe.cli.plan_models import read_specs
from fringe.cli.plan_options import PlanOptions
from fringe.cli.planning import Defaults, overlooked, read_plan
from fringe.cli.takes import takes
from fringe.tuning import FORMAT

NOTHING = Defaults("plan", methods=("ig",), metrics=("sparseness",))


def typed(*arguments):
    """The options that these arguments come to, through a real command."""
    seen = []

    @takes(plan=plan_options, how=how_options)
    def command(plan: PlanOptions, how: HowOptions, figures: int = 2) -> None:
        seen.append((plan, how, figures))

    small = typer.Typer()
    small.command()(command)
    result = CliRunner().invoke(small, ["--out", "here", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return seen[0]


def plan_of(*arguments):
    return read_plan(typed(*arguments)[0], NOTHING)


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


TYPED = (
    *("--model", "a=embedded:digits", "--model", "b=embedded:digits", "--data", "embedded:digits:3:30"),
    *("--methods", "ig,wide=fringe,ig:paper", "--metrics", "insertion,max_sensitivity", "--limit", "max_sensitivity=2"),
    *("--set", "ig.steps=7", "--set", "ig.baseline=black", "--set", "wide.delta_euc=none", "--set", "wide.steps=2"),
    *("--set", "insertion.steps=4", "--set", "ig:paper.steps=9", "--n", "5", "--seed", "6", "--target", "3"),
    *("--score", "probability", "--exif", "transpose", "--references", "embedded:digits:0:3", "--no-controls"),
    *("--preprocessing", "channels=1,mean=0.3,std=0.35"),
)
TOML = """
data = ["embedded:digits:3:30"]
methods = ["ig", "wide=fringe", "ig:paper"]
metrics = "insertion, max_sensitivity"
limits = { max_sensitivity = 2 }
n = 5
seed = 6
target = 3
score = "probability"
exif = "transpose"
references = "embedded:digits:0:3"
controls = false
preprocessing = "channels=1,mean=0.3,std=0.35"

[model]
a = "embedded:digits"
b = "embedded:digits"

[set]
ig = { steps = 7, baseline = "black" }
"wide.delta_euc" = "none"
wide.steps = 2
"insertion.steps" = 4
"ig:paper" = { steps = 9 }
"""
YAML = """
model: [a=embedded:digits, b=embedded:digits]
data: embedded:digits:3:30
methods: ig, wide=fringe, ig:paper
metrics: [insertion, max_sensitivity]
limits: {max_sensitivity: 2}
n: 5
seed: 6
target: "3"
score: probability
exif: transpose
references: embedded:digits:0:3
controls: false
preprocessing: channels=1,mean=0.3,std=0.35
set:
  ig: {steps: 7, baseline: black}
  wide: {delta_euc: null, steps: 2}
  insertion.steps: 4
  ig:paper.steps: 9
"""


@pytest.mark.parametrize(("name", "text"), [("plan.toml", TOML), ("plan.yaml", YAML), ("plan.YML", YAML)])
def test_a_file_gives_the_plan_of_the_flags(tmp_path, name, text):
    flags = plan_of(*TYPED)
    assert plan_of("--config", write(tmp_path / name, text)) == flags
    assert flags.arms[1].methods == {
        "ig": IntegratedGradients(steps=7, baseline="black"),
        "wide": FRInGe(delta_euc=None, steps=2),
        "ig:paper": dataclasses.replace(IntegratedGradients.preset("paper"), steps=9),
    }
    assert (flags.n, flags.seed, flags.target, flags.limits, flags.controls) == (5, 6, 3, {"max_sensitivity": 2}, False)
    assert (flags.metrics["insertion"].steps, flags.score, flags.exif) == (4, "probability", "transpose")
    assert [arm.model.preprocessing for arm in flags.arms] == ["channels=1,mean=0.3,std=0.35"] * 2


def test_what_is_typed_counts_more_than_the_file(tmp_path):
    file = write(tmp_path / "plan.toml", TOML)
    plan = plan_of("--config", file, "--n", 2, "--methods", "ig", "--controls", "--set", "ig.steps=8")
    assert (plan.n, plan.seed, plan.controls, plan.limits) == (2, 6, True, {"max_sensitivity": 2})
    # the label ``wide`` is gone with its settings, those of ig are there but for the one that was typed
    assert plan.arms[0].methods == {"ig": IntegratedGradients(steps=8, baseline="black")}
    assert plan_of("--config", file, "--metrics", "sparseness", "--limit", "sparseness=1").limits == {"sparseness": 1}
    with pytest.raises(InputError, match="'wide' is not compared here"):  # typed, it is a mistake
        plan_of("--config", file, "--methods", "ig", "--set", "wide.steps=2")
    wrong = write(tmp_path / "wrong.toml", 'methods = "ig"\nset.igg = { steps = 2 }')
    with pytest.raises(InputError, match="'igg' is not compared here"):
        plan_of("--config", wrong)


def test_nothing_given_is_the_commands_own_default():
    plan = read_plan(PlanOptions(), Defaults("benchmark"))
    assert (plan.data, plan.n, plan.seed, plan.target) == (("embedded:digits",), 100, 0, "predicted")
    assert [*plan.arms[0].methods] == ["fringe", "ig", "smoothgrad", "guided_ig", "agi", "ig2", "ggig", "geoig_svi"]
    assert (len(plan.metrics), plan.limit("max_sensitivity"), plan.limit("insertion")) == (11, 8, 100)
    assert (plan.controls, plan.score, plan.exif, plan.exclude) == (True, "logit", "ignore", frozenset())
    assert "max_sensitivity" not in plan_of("--metrics", "insertion").limits  # a default limit of what is not asked for


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", 'method = "ig"', "unknown key 'method'; did you mean 'methods'? The keys: model, data"),
        ("a.toml", "limit = {}", "unknown key 'limit'; did you mean 'limits'?"),
        ("a.yaml", "1: 2", "unknown key '1'."),
        ("a.toml", "trust_code = true", "a file cannot trust code; that is for a person to type: --trust-code"),
        ("a.toml", 'out = "x"', "unknown key 'out'"),
        ("a.toml", 'n = "three"', "n: got 'three', expected a whole number"),
        ("a.toml", "n = 2.5", "n: got 2.5, expected a whole number"),
        ("a.yaml", "n: true", "n: got True, expected a whole number"),
        ("a.toml", "n = 0", "n: got 0, expected at least 1"),
        ("a.toml", 'controls = "yes"', "controls: got 'yes', expected true or false"),
        ("a.toml", "model = 3", "model: got 3, expected a spec, a list of specs, or a table of specs by label"),
        ("a.toml", 'model = {"my net" = "embedded:digits"}', "the label 'my net' holds more than letters"),
        ("a.toml", 'set = ["ig.steps=2"]', "set: got ['ig.steps=2'], expected a table of settings"),
        ("a.toml", "limits = { sparseness = 1.5 }", "limits: got 1.5, expected a table of whole numbers by metric"),
        ("a.toml", "limits = { sparseness = -1 }", "--limit: got 'sparseness=-1'"),
        ("a.toml", "methods = []", "--methods: none given"),
        ("a.toml", "data = []", "--data: none given"),
        ("a.toml", "set = { ig = { stepss = 2 } }", "ig has no setting 'stepss'; did you mean 'steps'?"),
        ("a.yaml", "set: {ig: {steps: 2020-01-01}}", "--set steps: got '\"2020-01-01\"', expected a whole number"),
        ("a.toml", "n = [", "is no valid TOML or YAML"),
        ("a.yaml", "n: 2\n x: [1", "is no valid TOML or YAML"),
        ("a.yaml", "- ig", "holds list, expected keys with values"),
        ("a.yaml", "n: !!python/object:os.system 2", "is no valid TOML or YAML"),
        (None, "", "cannot read"),
    ],
)
def test_a_file_that_cannot_be_meant_is_one_line_and_exit_code_2(tmp_path, name, text, message):
    path = tmp_path / "absent.toml" if name is None else write(tmp_path / name, text)
    out = tmp_path / "out"
    arguments = ["--config", str(path), "--out", str(out)]
    defaults = [] if "methods" in text else ["--methods", "ig"]
    result = CliRunner().invoke(app, ["benchmark", "--metrics", "sparseness", *defaults, *arguments])
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not out.exists()


def test_an_empty_file_says_nothing(tmp_path):
    for name in ("a.toml", "a.yaml"):
        assert plan_of("--config", write(tmp_path / name, "")) == plan_of()


def test_code_is_trusted_on_the_command_line_alone(tmp_path):
    file = write(tmp_path / "plan.toml", 'model = "embedded:digits"\nn = 3')
    assert typed("--config", file)[0].trust_code is False
    assert typed("--config", file, "--trust-code")[0].trust_code is True
    assert plan_of("--config", file, "--trust-code").arms[0].model.trust_code is True


@pytest.mark.parametrize(
    ("text", "label", "spec"),
    [
        ("embedded:digits", None, "embedded:digits"),
        ("rn50=torchvision:resnet50@IMAGENET1K_V1", "rn50", "torchvision:resnet50@IMAGENET1K_V1"),
        ("torchvision:resnet50@w=1.safetensors", None, "torchvision:resnet50@w=1.safetensors"),
        (r"C:\models\net.py:make@w=1.safetensors", None, r"C:\models\net.py:make@w=1.safetensors"),
        (r"mine=C:\models\net.py:make@w=1.safetensors", "mine", r"C:\models\net.py:make@w=1.safetensors"),
        ("../models/a=b.pt2", None, "../models/a=b.pt2"),
        ("v1.2-b=pkg.nets:make", "v1.2-b", "pkg.nets:make"),
        ("timm:vit@tag=a", None, "timm:vit@tag=a"),
        ("=embedded:digits", None, "=embedded:digits"),
    ],
)
def test_a_label_is_told_from_an_equals_sign_in_a_spec(text, label, spec):
    assert read_specs([text]) == [(label, spec)]


def test_models_need_labels_where_their_architecture_is_one():
    twice = ("--model", "embedded:digits", "--model", "embedded:digits")
    with pytest.raises(InputError, match="--model: digits given twice; tell them apart with LABEL=SPEC"):
        plan_of(*twice)
    plan = plan_of("--model", "embedded:digits", "--model", "other=embedded:digits")
    assert [arm.label for arm in plan.arms] == ["digits", "other"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--methods", ""), "--methods: none given"),
        (("--methods", " , "), "--methods: none given"),
        (("--metrics", ""), "--metrics: none given"),
        (("--methods", "igg"), "did you mean 'ig'"),
        (("--methods", "ig,ig"), "--methods: ig given twice"),
        (("--metrics", "sparsness"), "did you mean 'sparseness'"),
        (("--limit", "sparsness=2"), r"'sparsness' is no metric of this run; did you mean 'sparseness'\? Its metrics"),
        (("--limit", "sparseness"), "expected METRIC=N"),
        (("--limit", "sparseness=0"), "expected METRIC=N"),
        (("--target", "cat"), "--target: got 'cat', expected 'predicted', 'label' or the number of a class"),
        (("--target", "-1"), "--target: got '-1'"),
        (("--score", "logits"), "--score: got 'logits', expected one of logit"),
        (("--exif", "turn"), "--exif: got 'turn', expected one of transpose, ignore"),
        (("--references", "/nowhere"), "--references: '/nowhere' is neither a file, a folder"),
        (("--model", "torchvision:resnet18"), "--data: none given; name a folder of images"),
        (("--model", "embedded:digit", "--data", "x"), "did you mean 'digits'"),
        (("--preset", "/nowhere.json"), "preset: /nowhere.json cannot be read"),
        (("--methods", "mine=ig", "--set", "ig.steps=2"), "'ig' is not compared here; did you mean 'mine'|mine"),
    ],
)
def test_what_cannot_be_meant_is_named_before_anything_is_loaded(monkeypatch, arguments, message):
    if arguments[0] != "--model" or arguments[1] == "torchvision:resnet18":
        monkeypatch.setattr(plan_models, "load", lambda arm: pytest.fail("a model was loaded"))
    with pytest.raises(FringeError, match=message):
        plan_of(*arguments)


def preset(path, architecture="digits", images=("a", "b"), **settings):
    about = {"architecture": architecture, "weights": "w", "objective": 0.5, "images": list(images)}
    about |= {"trials": 1, "seed": 0, "version": "0"}
    write(path, json.dumps({"format": FORMAT, "method": "fringe", "settings": settings, "about": about}))
    return path


def test_a_tuned_preset_sets_its_method_and_what_is_typed_has_the_last_word(tmp_path):
    file = preset(tmp_path / "tuned.json", tau=0.007, steps=3)
    plan = plan_of("--preset", file, "--methods", "ig,fringe", "--set", "fringe.steps=5", "--set", "ig.steps=4")
    assert plan.arms[0].methods == {"ig": IntegratedGradients(steps=4), "fringe": FRInGe(tau=0.007, steps=5)}
    assert plan.exclude == {"a", "b"}
    with pytest.raises(InputError, match="sets fringe, which is not among the methods"):
        plan_of("--preset", file, "--methods", "ig")
    with pytest.raises(InputError, match=r"was tuned for 'resnet18'; the models here are digits"):
        plan_of("--preset", preset(tmp_path / "other.json", "resnet18"), "--methods", "fringe")


def test_auto_is_the_papers_setting_or_says_that_there_is_none(capsys):
    plan = plan_of("--methods", "fringe=fringe:auto", "--set", "fringe.steps=4")
    assert plan.arms[0].methods == {"fringe": FRInGe(steps=4)}
    assert "digits: the paper has no setting for digits; the default is used" in capsys.readouterr().err
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    arguments = ("--methods", "fringe:auto", "--data", "embedded:digits", "--model", "torchvision:resnet18@random")
    assert plan_of(*arguments).arms[0].methods == {"fringe:auto": FRInGe.preset("resnet18")}


def test_options_without_use_are_named(capsys):
    overlooked("it has its own", metrics=("insertion",), limit=None, controls=False)
    assert capsys.readouterr().err == "--metrics, --controls: not used; it has its own\n"
    overlooked("it has its own", metrics=None)
    assert capsys.readouterr().err == ""


def test_a_composed_command_shows_the_options_of_its_parts_with_types_and_defaults():
    plan, how, figures = typed(
        "--n", "3", "--workers", "2", "--timeout", "1.5", "--figures", "4", "--set", "ig.steps=1"
    )
    assert (plan.n, plan.settings, plan.models) == (3, ("ig.steps=1",), None)
    assert how == HowOptions(Path("here"), "auto", "auto", 2, 1.5, False, False, False, False, False, False)
    assert figures == 4

    @takes(how=clock_options)
    def command(how: HowOptions, own: float = 0.5) -> None:
        raise AssertionError

    parser = typer.Typer()
    parser.command()(command)
    found = {p.name: p for p in typer.main.get_command(parser).params}
    assert [*found][:6] == ["out", "device", "batch_size", "yes", "as_json", "own"]
    assert (found["own"].default, found["device"].default, found["out"].required) == (0.5, "auto", True)
    assert CliRunner().invoke(parser, ["--out", "x", "--own", "half"]).exit_code == 2
    names = {option for p in typer.main.get_command(app).commands["benchmark"].params for option in p.opts}
    assert {"--model", "--config", "--out", "--workers", "--json", "--report", "--reference"} <= names
