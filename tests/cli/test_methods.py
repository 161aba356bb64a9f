"""``fringe explain`` with every method, and the listings of methods and metrics."""

import importlib.util
import json

import pytest

from command_line import run
from fringe import METHODS, METRICS
from fringe.bench.experiments import ExperimentSpec, build_plan, configured
from fringe.explanations import ExplainSpec
from fringe.explanations._base import configured_method

pytestmark = pytest.mark.usefixtures("small_figures")

INSTALLED = {
    name: kind
    for name, kind in METHODS.items()
    if kind.form.endswith(":METHOD") or kind.package is None or importlib.util.find_spec(kind.package) is not None
}
"""The methods without those of packages that are absent."""


#: One of each kind: a path, noise, several paths, references, layers, a modifier, and another package.
EXPLAINED = ("ig", "smoothgrad", "agi", "ig2", "gradcam", "straight", "captum")


@pytest.mark.parametrize("name", sorted(INSTALLED.keys() & {*EXPLAINED}))
def test_explain_knows_methods_of_every_kind(tmp_path, name):
    counts = [f for f in METHODS[name].describe() if type(f["default"]) is int and f["low"]]
    settings = [part for f in counts for part in ("--set", f"{f['name']}={f['low']}")]
    arguments = ("embedded:digits:0", "--method", name, "--out", tmp_path, "--references", "embedded:digits:20:26")
    is_drawn = name in ("ig", "smoothgrad", "agi")  # with a path, without one, and with several
    result = run("explain", *arguments, *settings, "--json", *(() if is_drawn else ("--no-figures",)))
    assert result.exit_code == 0, result.output
    (entry,) = json.loads(result.stdout)["inputs"]
    assert entry["verdict"] in ("ok", "coarse", "stalled", "unchecked")
    assert (entry["completeness_gap"] is None) == (entry["verdict"] == "unchecked")
    record = json.loads((tmp_path / "digits-0000" / "explanation.json").read_text(encoding="utf-8"))
    assert {f["name"]: record["settings"][f["name"]] for f in counts} == {f["name"]: f["low"] for f in counts}
    assert record["references"]["source"] == "embedded:digits:20:26"
    assert sorted(record["references"]["images"]) == [f"digits-00{i}" for i in range(20, 26)]
    drawn = {file.name for file in (tmp_path / "digits-0000").glob("*.png")}
    assert (drawn >= {"overlay.png", "signed.png"}) == is_drawn
    assert ("profile.png" in drawn) == ("trajectory.png" in drawn)


def test_a_method_that_needs_references_says_which_option_gives_them(tmp_path):
    result = run("explain", "embedded:digits:0", "--method", "ig2", "--out", tmp_path)
    assert result.exit_code == 2
    assert "--references DIR" in result.stderr
    (tmp_path / "broken.png").write_bytes(b"no image")
    result = run("explain", "embedded:digits:0", "--references", tmp_path / "broken.png", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "none of the 1 images" in result.stderr


def test_presets_of_every_method_are_found_by_name():
    for name, kind in INSTALLED.items():
        for preset in kind.presets:
            assert configured(f"{name}:{preset}") == kind.preset(preset)
            assert configured_method(ExplainSpec(method=f"{name}:{preset}")) == kind.preset(preset)
            assert configured_method(ExplainSpec(method=name, preset=preset)) == kind.preset(preset)
    assert configured("ig:paper").steps == 200


def test_the_listing_says_how_modifiers_and_methods_of_other_packages_are_written():
    shown = run("methods").stdout
    assert "setting" not in shown.splitlines()[0]
    assert len(shown.splitlines()) < 2 * len(METHODS)
    assert all(run("methods", name).stdout.startswith(f"{name}: ") for name in ("fringe", "smooth", "captum"))
    assert "written: straight:METHOD\n" in shown
    methods, _, controls = shown.partition("control: a map to compare with")
    assert "\ndiffusion " in controls
    assert "\ndiffusion " not in methods
    assert "\nig " in methods
    assert "\nig " not in controls
    assert "written: smooth:METHOD, or smooth(NUMBER):METHOD for sigma\n" in shown
    (captum,) = [line for line in shown.splitlines() if "written: captum:occlusion, captum:gradient_shap" in line]
    assert captum.endswith("captum:input_x_gradient")
    (zennit,) = [line for line in shown.splitlines() if "written: zennit:epsilon_plus_flat" in line]
    installed = importlib.util.find_spec("zennit") is not None
    assert (
        zennit.endswith('(not installed: run pip install -c constraints.txt -e ".[zennit]" in the checkout)')
        != installed
    )
    assert json.loads(run("methods", "smooth(2):ig", "--json").stdout)["methods"][0]["name"] == "smooth"


@pytest.mark.parametrize(("command", "known"), [("methods", METHODS), ("metrics", METRICS)])
def test_listings_give_back_every_default(command, known):
    listed = json.loads(run(command, "--json").stdout)[command]
    assert [entry["name"] for entry in listed] == list(known)
    for entry in listed:
        kind = known[entry["name"]]
        assert kind.from_record({field["name"]: field["default"] for field in entry["settings"]}) == kind()
        assert entry["title"]
        assert entry["source"]
        assert entry["summary"]
        if entry["name"] != "fringe":
            assert entry["presets"] == {name: dict(settings) for name, settings in kind.presets.items()}
        alone = json.loads(run(command, entry["name"], "--json").stdout)[command]
        assert alone == [entry]
        shown = run(command, entry["name"]).stdout
        assert all(field["name"] in shown for field in entry["settings"])


def test_metrics_say_which_inputs_they_score():
    def names(*arguments):
        return {entry["name"] for entry in json.loads(run("metrics", *arguments, "--json").stdout)["metrics"]}

    listed = {entry["name"]: entry["inputs"] for entry in json.loads(run("metrics", "--json").stdout)["metrics"]}
    assert listed["road"]["paper"] == listed["road"]["accuracy"] == ["image", "series", "volume"]
    assert listed["insertion"]["zero"] == ["image", "series", "volume", "tabular"]
    assert "region_completeness" in names() - names("--kind", "series")
    assert {"mass_inside", "rank_accuracy", "expected_hit"} <= names("--kind", "tabular") & names("--kind", "series")
    assert {"road", "pic"} <= names("--kind", "volume") - names("--kind", "tabular")
    assert "inputs: image, series, volume; zero: image, series, volume, tabular\n" in run("metrics", "insertion").stdout
    refused = run("metrics", "--kind", "video")
    assert (refused.exit_code, "expected one of image, series, volume, tabular" in refused.stderr) == (2, True)
    assert METRICS["random_logit"]().kinds == ("image",)


def test_the_listing_of_metrics_has_a_line_for_each():
    lines = run("metrics").stdout.splitlines()
    rows = [line.split()[0] for line in lines if "is better" in line]
    assert rows == list(METRICS)
    assert lines[-1] == "settings and presets of one: fringe metrics NAME"
    assert "sparseness" in run("metrics", "--kind", "tabular").stdout
    assert "region_completeness" not in run("metrics", "--kind", "tabular").stdout


def test_an_unknown_name_is_told_its_neighbour():
    for command, name, near in (("methods", "igg", "'ig'"), ("metrics", "sparsness", "'sparseness'")):
        result = run(command, name)
        assert result.exit_code == 2
        assert f"did you mean {near}" in result.stderr


def test_a_method_is_understood_by_every_name_it_goes_by_and_recorded_under_one(tmp_path):
    name = "Integrated Gradients"
    arguments = ("embedded:digits:0", "--method", name, "--set", "steps=3", "--no-figures", "--json")
    result = run("explain", *arguments, "--out", tmp_path)
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert (document["settings"]["method"], document["options"]["method"]) == ("ig", "ig")
    again = run("explain", *arguments[:2], "ig", *arguments[3:], "--out", tmp_path)  # the same setting: nothing new
    assert json.loads(again.stdout)["counts"]["reused"] == 1
    assert json.loads(run("methods", name, "--json").stdout)["methods"][0]["name"] == "ig"


def test_in_a_comparison_each_name_means_one_method_or_metric(tmp_path):
    chosen = ("--methods", "Paper:resnet18,Integrated_Gradients", "--metrics", "MASInsertion,end point kl")
    settings = ("--set", "integrated-gradients.steps=3", "--set", "IG.rule=left", "--set", "paper:resnet18.tau=0.02")
    result = run("compare", "embedded:digits:0", *chosen, *settings, "--no-controls", "--json", "--out", tmp_path)
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    methods = {entry["label"]: entry["settings"] for entry in document["methods"]}
    assert list(methods) == ["paper:resnet18", "ig"]
    assert (methods["ig"]["steps"], methods["ig"]["rule"]) == (3, "left")
    assert [entry["label"] for entry in document["metrics"]] == ["mas_insertion", "endpoint_kl"]
    twice = run("compare", "embedded:digits:0", "--methods", "ig,IG", "--out", tmp_path / "out")
    assert twice.exit_code == 2
    assert "ig given twice" in twice.stderr
    names = {"methods": "PaperFRInGe:auto,Guided IG", "metrics": "MaxSensitivity", "limits": {"max sensitivity": 2}}
    plan = build_plan(ExperimentSpec(**names, model="resnet18=embedded:digits"))
    assert (list(plan.models[0].methods), plan.limits) == (["paper:auto", "guided_ig"], {"max_sensitivity": 2})
