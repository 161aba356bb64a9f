"""One specification from Python, a file and texts; files are read safely; names become configured objects."""

import dataclasses
import importlib.util
import json
import pickle

import pytest
import torch
from torch import nn

from fringe import METRICS, FRInGe, FringeError, InputError, Insertion, IntegratedGradients
from fringe.attribution import PRESET_FORMAT, PaperFRInGe, get_method
from fringe.bench.experiments import ExperimentSpec, _plan, build_plan, run_experiment
from fringe.bench.experiments import resolve as look
from fringe.data import find_inputs
from fringe.inputs import content_digest
from fringe.metrics import DEFAULT_METRICS

SMALL = {"methods": ("ig",), "metrics": ("sparseness",)}


def plan_of(spec=None, **fields):
    return build_plan((spec or ExperimentSpec(**fields)).over(ExperimentSpec(name="plan", limits={}, **SMALL)))


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


TEXTS = ExperimentSpec(
    model=["a=embedded:digits", "b=embedded:digits"],
    data=["embedded:digits:3:30"],
    methods="ig,wide=fringe,ig:paper",
    metrics="insertion,max_sensitivity",
    limits=["max_sensitivity=2"],
    set=[
        *("ig.steps=7", "ig.baseline=black", "wide.delta_euc=none", "wide.steps=2"),
        *("insertion.steps=4", "ig:paper.steps=9"),
    ],
    n=5,
    seed=6,
    target="3",
    score="probability",
    exif="transpose",
    references="embedded:digits:0:3",
    controls=False,
    preprocessing="channels=1,mean=0.3,std=0.35",
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


def test_a_file_gives_the_plan_of_the_texts(tmp_path):
    spec = ExperimentSpec.from_file(write(tmp_path / "plan.toml", TOML))
    assert spec == TEXTS
    assert pickle.loads(pickle.dumps(spec)) == spec
    plan = build_plan(spec)
    assert plan.models[1].methods == {
        "ig": IntegratedGradients(steps=7, baseline="black"),
        "wide": FRInGe(delta_euc=None, steps=2),
        "ig:paper": dataclasses.replace(IntegratedGradients.preset("paper"), steps=9),
    }
    assert (plan.n, plan.seed, plan.target, plan.limits, plan.controls) == (5, 6, 3, {"max_sensitivity": 2}, False)
    assert (plan.metrics["insertion"].steps, plan.score, plan.exif) == (4, "probability", "transpose")
    assert [model.preprocessing for model in plan.models] == ["channels=1,mean=0.3,std=0.35"] * 2


def test_configured_objects_are_what_their_names_are():
    texts = build_plan(ExperimentSpec(methods="ig,wide=fringe", metrics="insertion", set={"wide": {"tau": 0.01}}))
    objects = ExperimentSpec(
        methods=[IntegratedGradients(), ("wide", FRInGe(tau=0.01))], metrics={"insertion": Insertion()}
    )
    assert build_plan(objects) == texts
    assert build_plan(ExperimentSpec(methods={"ig": "ig", "wide": FRInGe(tau=0.01)}, metrics=["insertion"])) == texts


def test_a_method_without_a_label_has_its_name():
    assert dict(ExperimentSpec(methods="=ig, mine=ig, smoothgrad").methods) == {
        "ig": "ig",
        "mine": "ig",
        "smoothgrad": "smoothgrad",
    }


def test_a_model_in_memory_is_copied_and_named_by_its_weights():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(32 * 32, 3)).train()
    spec = ExperimentSpec(
        model={"net": net}, data="embedded:digits", n=2, preprocessing="resize=32,channels=1", **SMALL
    )
    resolved = look(build_plan(spec))
    assert resolved.manifest.models["net"]["architecture"] == "Sequential"
    with torch.no_grad():
        net[1].weight += 1.0
    assert look(build_plan(spec)).manifest.model_key("net") != resolved.manifest.model_key("net")
    assert net.training
    assert net[1].weight.requires_grad
    with pytest.raises(InputError, match="preprocessing: none given for a model in memory"):
        build_plan(ExperimentSpec(model=net, data="embedded:digits", **SMALL)).models[0].load()
    net.preprocessing = "resize=32,channels=1"
    stated = build_plan(ExperimentSpec(model={"net": net}, data="embedded:digits", n=2, **SMALL))
    assert look(stated).manifest.model_key("net") == look(build_plan(spec)).manifest.model_key("net")


def test_what_is_set_counts_more_than_the_file(tmp_path):
    file = ExperimentSpec.from_file(write(tmp_path / "plan.toml", TOML))
    plan = plan_of(ExperimentSpec(n=2, methods="ig", controls=True, set="ig.steps=8").over(file))
    assert (plan.n, plan.seed, plan.controls, plan.limits) == (2, 6, True, {"max_sensitivity": 2})
    # the label ``wide`` is gone with its settings, those of ig are there but for the one that was set
    assert plan.models[0].methods == {"ig": IntegratedGradients(steps=8, baseline="black")}
    assert plan_of(ExperimentSpec(metrics="sparseness", limits="sparseness=1").over(file)).limits == {"sparseness": 1}
    with pytest.raises(InputError, match="'wide' is not compared here"):  # set here, it is a mistake
        plan_of(ExperimentSpec(methods="ig", set="wide.steps=2").over(file))
    wrong = ExperimentSpec.from_file(write(tmp_path / "wrong.toml", 'methods = "ig"\nset.igg = { steps = 2 }'))
    with pytest.raises(InputError, match="'igg' is not compared here"):
        plan_of(wrong)


def test_a_python_file_beside_a_configuration_is_found_from_any_folder(tmp_path, monkeypatch):
    (tmp_path / "plans").mkdir()
    file = write(tmp_path / "plans" / "net.py", "")
    config = write(tmp_path / "plans" / "a.toml", 'model = { a = "net.py:make@w.safetensors", b = "embedded:digits" }')
    monkeypatch.delenv("FRINGE_SHARED", raising=False)
    monkeypatch.chdir(tmp_path)
    assert ExperimentSpec.from_file(config).model == {"a": f"{file}:make@w.safetensors", "b": "embedded:digits"}
    alone = write(tmp_path / "plans" / "b.toml", 'model = "net.py:make"')
    assert ExperimentSpec.from_file(alone).model == {f"{file}:make": f"{file}:make"}  # it has no label of its own
    write(tmp_path / "net.py", "")  # the current folder comes first
    assert ExperimentSpec.from_file(config).model["a"] == "net.py:make@w.safetensors"
    file.unlink()
    (tmp_path / "net.py").unlink()
    assert ExperimentSpec.from_file(config).model["a"] == "net.py:make@w.safetensors"  # named by the error


def test_defaults_fill_what_is_unset_and_are_no_choice():
    plan = build_plan(ExperimentSpec())
    assert (plan.data, plan.n, plan.seed, plan.target) == (("embedded:digits",), 100, 0, "predicted")
    assert [*plan.models[0].methods] == ["fringe", "ig", "smoothgrad", "guided_ig", "agi", "ig2", "ggig", "geoig_svi"]
    assert [*plan.metrics] == [*DEFAULT_METRICS]
    named = [name for name, metric in METRICS.items() if metric.by_default]
    assert [name for name in plan.metrics if ":" not in name] == named
    curves = ["insertion", "deletion", "mas_insertion", "mas_deletion"]
    assert [name for name in plan.metrics if ":" in name] == [f"{name}:zero" for name in curves]
    assert (plan.limit("max_sensitivity"), plan.limit("insertion")) == (8, 100)
    assert (plan.controls, plan.score, plan.exif, plan.exclude) == (True, "logit", "ignore", frozenset())
    assert build_plan(ExperimentSpec(metrics="insertion")).limits == {}  # a default limit of what is not required


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", 'method = "ig"', "unknown key 'method' (in "),
        ("a.toml", "limit = {}", "; did you mean 'limits'? The keys: name, model, data"),
        ("a.toml", "1 = 2", "unknown key '1' (in "),
        ("a.toml", "workers = 2", "; workers, save_maps and other options that change no number are not read"),
        ("a.toml", "trust_code = true", "trust_code: a file cannot trust code"),
        ("a.toml", 'out = "x"', "unknown key 'out'"),
        ("a.toml", 'n = "three"', "n: got 'three', expected a whole number of at least 1 (in "),
        ("a.toml", "n = 2.5", "n: got 2.5, expected a whole number"),
        ("a.toml", "n = true", "n: got True, expected a whole number"),
        ("a.toml", "n = 0", "n: got 0, expected a whole number of at least 1"),
        ("a.toml", 'controls = "yes"', "controls: got 'yes', expected true or false"),
        ("a.toml", "model = 3", "model: got 3, expected a spec, a list of specs, or a table of specs by label"),
        ("a.toml", "model = { a = 3 }", "model: got {'a': 3}, expected a spec, a list of specs, or a table"),
        ("a.toml", 'model = {"my net" = "embedded:digits"}', "the label 'my net' holds more than letters"),
        ("a.toml", "set = { steps = 2 }", "set: got 'steps', expected a table of settings by method or metric"),
        (
            "a.toml",
            "limits = { sparseness = 1.5 }",
            "limits: got 'sparseness=1.5', expected METRIC=N with N",
        ),
        ("a.toml", "limits = { sparseness = -1 }", "limits: got 'sparseness=-1'"),
        ("a.toml", "methods = []", "methods: none given"),
        ("a.toml", "methods = 3", "methods: got 3, expected a name, a configured object"),
        ("a.toml", "data = []", "data: none given"),
        ("a.toml", "n = [", "is no valid TOML"),
        ("a.toml", "#" * (2**20 + 1), "at most 1048576 are read"),
        (None, "", "cannot read"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_by_name(tmp_path, name, text, message):
    path = tmp_path / "absent.toml" if name is None else write(tmp_path / name, text)
    with pytest.raises(InputError) as caught:
        ExperimentSpec.from_file(path)
    assert message in str(caught.value)
    assert "--" not in str(caught.value).replace(str(tmp_path), "")


def test_an_empty_file_sets_nothing(tmp_path):
    assert ExperimentSpec.from_file(write(tmp_path / "a.toml", "")).model_fields_set == set()


def test_models_need_labels_where_their_architecture_is_one():
    with pytest.raises(InputError, match="model: embedded:digits given twice; tell them apart with LABEL=SPEC"):
        ExperimentSpec(model=["embedded:digits"] * 2)
    with pytest.raises(InputError, match="model: digits given twice; tell them apart with LABEL=SPEC"):
        plan_of(model=["digits=embedded:digits", "embedded:digits"])
    plan = plan_of(model=["embedded:digits", "other=embedded:digits"])
    assert [model.label for model in plan.models] == ["digits", "other"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"methods": ""}, "methods: none given"),
        ({"methods": " , "}, "methods: none given"),
        ({"metrics": ""}, "metrics: none given"),
        ({"methods": "igg"}, "did you mean 'ig'"),
        ({"methods": "ig,ig"}, "methods: ig given twice"),
        ({"metrics": "sparsness"}, "did you mean 'sparseness'"),
        ({"limits": "sparsness=2"}, r"'sparsness' is no metric of this run; did you mean 'sparseness'\? Its metrics"),
        ({"limits": "sparseness"}, "expected METRIC=N"),
        ({"limits": "sparseness=0"}, "expected METRIC=N"),
        ({"target": "cat"}, "target: got 'cat', expected 'predicted', 'label' or the number of a class"),
        ({"target": "-1"}, "target: got '-1'"),
        ({"score": "logits"}, "score: got 'logits', expected one of logit"),
        ({"exif": "turn"}, "exif: got 'turn', expected one of transpose, ignore"),
        (
            {"references": "/nowhere"},
            "references: '/nowhere' was not found: there is no file or folder 'nowhere' in /",
        ),
        ({"model": "torchvision:resnet18"}, "data: none given; name a folder of images"),
        ({"data": "/"}, "model: none given; name the network that these images are for"),
        ({"preset": "/nowhere.json"}, "preset: /nowhere.json cannot be read"),
        ({"methods": "mine=ig", "set": "ig.steps=2"}, "'ig' is not compared here"),
        ({"set": "ig.stepss=2"}, "set: ig has no setting 'stepss'; did you mean 'steps'"),
        ({"set": "ig.steps=many"}, "set: steps: got 'many', expected a positive whole number"),
        ({"set": {"ig": {"steps": 2.5}}}, "set: steps: got '2.5', expected a positive whole number"),
        ({"name": "a/b"}, "name: got 'a/b', expected letters"),
    ],
)
def test_what_cannot_be_meant_is_named_before_anything_is_loaded(monkeypatch, fields, message):
    monkeypatch.setattr(_plan, "load_model", lambda *_, **__: pytest.fail("a model was loaded"))
    monkeypatch.setattr("fringe.inputs._sampling.has_efficientnet", lambda: False)
    with pytest.raises(FringeError, match=message) as caught:
        plan_of(**fields)
    assert "--" not in str(caught.value)


def preset(path, architecture="digits", images=("a", "b"), **settings):
    metadata = {"architecture": architecture, "weights": "w", "objective": 0.5, "images": list(images)}
    metadata |= {"trials": 1, "seed": 0, "version": "0"}
    settings = {**FRInGe().record(), **settings}
    name = settings.pop("method")
    return write(path, json.dumps({"format": PRESET_FORMAT, "method": name, "settings": settings, "about": metadata}))


def test_a_tuned_preset_sets_its_method_and_explicit_settings_come_last(tmp_path):
    preset(tmp_path / "tuned.json", tau=0.007, steps=3)
    spec = ExperimentSpec(preset=str(tmp_path / "tuned.json"), methods="ig,fringe", metrics="sparseness")
    plan = build_plan(ExperimentSpec(set=["fringe.steps=5", "ig.steps=4"]).over(spec))
    assert plan.models[0].methods == {"ig": IntegratedGradients(steps=4), "fringe": FRInGe(tau=0.007, steps=5)}
    assert plan.exclude == {"a", "b"}
    with pytest.raises(InputError, match="sets fringe, which is not among the methods"):
        plan_of(ExperimentSpec(methods="ig").over(spec))
    preset(tmp_path / "other.json", "resnet18")
    with pytest.raises(InputError, match=r"was tuned for 'resnet18'; the models are digits"):
        plan_of(preset=str(tmp_path / "other.json"), methods="fringe")


def test_given_images_that_a_preset_was_tuned_on_are_left_out(tmp_path):
    digests = [content_digest(ref) for ref in find_inputs(["embedded:digits:0:3"])]
    path = str(preset(tmp_path / "tuned.json", images=digests[:1]))
    given = {"preset": path, "methods": "fringe", "data": "embedded:digits:0:3", "n": 1, "sample": False}
    (image,) = look(plan_of(**given)).manifest.images
    assert image["digest"].startswith(digests[1])
    preset(tmp_path / "tuned.json", images=digests)
    with pytest.raises(InputError, match="data: a setting was tuned on all of them; name other images"):
        look(plan_of(**given))


def test_auto_is_the_papers_setting_or_says_that_there_is_none():
    with pytest.warns(UserWarning, match="digits: the paper has no setting for digits; paper is used"):
        plan = plan_of(methods="fringe=paper:auto", set="fringe.cg_iterations=4")
    assert plan.models[0].methods == {"fringe": PaperFRInGe(cg_iterations=4)}
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    plan = plan_of(methods="paper:auto", data="embedded:digits", model="torchvision:resnet18@random")
    assert plan.models[0].methods == {"paper:auto": PaperFRInGe.preset("resnet18")}


def test_auto_in_a_modifier_fits_a_network_that_a_scene_makes():
    plan = plan_of(methods="straight:paper:auto", scene="colour_counter", n=2)
    assert plan.models[0].methods == {"straight:paper:auto": get_method("straight:paper")}


def test_every_field_has_a_short_help_text():
    for name, field in ExperimentSpec.model_fields.items():
        assert field.description, name
        assert len(field.description) < 100
        assert "--" not in field.description


@pytest.mark.parametrize(
    "fields",
    [{"seed": -1}, {"seed": 2**53}, {"limits": {"sparseness": 2**53}}, {"methods": {"half\udcff": "ig"}}],
)
def test_no_plan_is_begun_that_could_not_be_read_again(tmp_path, fields):
    with pytest.raises(
        InputError,
        match=r"below 9007199254740992|less than 9007199254740992|half of a character|could not be read again",
    ):
        run_experiment(ExperimentSpec(**{**SMALL, "n": 1, "limits": {}, **fields}), tmp_path / "run")
    assert not list(tmp_path.glob("run/plans/*"))
