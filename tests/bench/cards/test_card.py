"""The files of a card, and cards of benchmark runs."""

import json
import re
from dataclasses import replace

import pytest

from fringe import InputError, IntegratedGradients
from fringe.attribution import get_method
from fringe.bench.cards import Card, Measurement, card_of_run, write_card
from fringe.bench.cards._card import failures, summarise_card
from fringe.bench.experiments import ExperimentSpec, Plan, PlanModel, run_experiment
from fringe.bench.scenes import Gate
from fringe.data import digits_samples
from fringe.evaluation import estimate, paired
from fringe.metrics import get_metric
from fringe.testing import CheckResult

pytestmark = pytest.mark.usefixtures("small_figures")

EVIL = "<script>alert(1)</script>|*"
SCORES = (0.9, 0.8, float("nan"), 0.85)
BLIND = {"edge": (0.2, 0.3, 0.2, 0.1), "uniform": (0.25,) * 4}


def card(label: str = "mine") -> Card:
    measurement = Measurement("Localisation", "Scene", "mass_inside", SCORES, BLIND, 0.25, {"metric": "mass_inside"})
    return Card(
        label,
        "What it is.",
        "Somebody 2026",
        {"method": label, "steps": 3},
        ("It promises no sum of the map.",),
        (CheckResult("finite", True, "fine"), CheckResult("order", False, EVIL)),
        {"Scene": (Gate("accuracy", 0.97, least=0.95), Gate("without the mark", 0.4, most=0.2))},
        (measurement,),
        {"Completeness": "the method claims no sum of its map"},
        {"ok": 4},
        {"forward": 51.0, "jvp": 0.0, "vjp": 50.0},
        0.25,
        4,
        0,
        "2026-01-02",
    )


def test_a_card_is_a_page_a_text_and_data(tmp_path):
    files = write_card(card(), tmp_path / "new" / "folder", "fringe verify mine")
    assert [path.name for path in files] == ["card.html", "card.md", "card.json", "controls.png"]
    page, text = re.sub("</?span>", "", files[0].read_text()), files[1].read_text()
    for said in ("0.85 [0.8, 0.9]", "forward passes", "Scene", "It promises no sum", "fringe verify mine", "≤ 0.2"):
        assert said in page
        assert said in text
    assert "Scene: without the mark is 0.4, so its numbers prove nothing." in page
    assert page.count("http") == page.count("http-equiv")  # nothing is fetched
    titled = write_card(replace(card(), settings=get_method("released").record()), tmp_path)[1].read_text()
    assert "FRInGe, released code, any network" in titled
    data = json.loads(files[2].read_text())
    assert data["measurements"][0]["scores"] == [0.9, 0.8, None, 0.85]
    assert data["command"] == "fringe verify mine"


def test_names_are_shown_and_do_nothing(tmp_path):
    page, text, *_ = (path.read_bytes().decode(errors="replace") for path in write_card(card(EVIL), tmp_path))
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "<script>" not in text


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"out: cannot write in .*file"):
        write_card(card(), tmp_path / "file")


METHODS = "ig,smoothgrad,fringe"
STEPS = ("ig.steps=4",)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    given = {"data": "embedded:digits", "n": 4, "methods": METHODS, "metrics": "insertion,saco,sparseness,endpoint_kl"}
    settings = ("ig.steps=4", "smoothgrad.samples=2", "fringe.steps=2")
    spec = ExperimentSpec(**given, set=settings, controls=True)
    results = run_experiment(spec, out=folder)
    return folder, results


def test_a_card_of_a_run_has_its_numbers(run, tmp_path):
    folder, results = run
    made = card_of_run(folder, "ig")
    (model,) = results.models
    assert [m.metric for m in made.measurements] == list(results.metrics)
    for measurement in made.measurements:
        assert measurement.scores == pytest.approx(tuple(results.scores(model, "ig", measurement.metric)), nan_ok=True)
        assert measurement.subject == model
        assert {"edge", "random", "uniform"} <= set(measurement.controls)
    assert {m.metric: m.part for m in made.measurements} == {
        "insertion": "Interventions",
        "saco": "Interventions",
        "sparseness": "Path and sparseness",
        "endpoint_kl": "Path and sparseness",
    }
    assert made.passes == {"forward": pytest.approx(5.0, abs=1), "jvp": 0.0, "vjp": 4.0}
    assert made.n == 4
    assert "insertion" in write_card(made, tmp_path)[2].read_text()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", made.made)


def test_maps_that_share_pixels_are_resampled_together_as_in_the_benchmark(tmp_path):
    spec = ExperimentSpec(data="embedded:digits", scene="gridpg", methods="ig", metrics="mass_inside", n=12, set=STEPS)
    results = run_experiment(spec, tmp_path)
    (model,), (measurement,) = results.models, card_of_run(tmp_path, "ig").measurements
    clusters = results.clusters(model)
    assert len(set(clusters)) == 3
    assert measurement.chance == 0.25
    (line,) = summarise_card(card_of_run(tmp_path, "ig"))
    assert line.score == estimate(measurement.scores, clusters=clusters)
    against = measurement.controls[line.test.control.removesuffix(":map")]
    assert line.test.difference == paired(measurement.scores, against, clusters=clusters)


def test_a_card_of_a_run_says_which_gates_fail_and_the_seed(tmp_path):
    settings = {"digits.epochs": 1, "digits.networks": 1, "ig.steps": 4}
    spec = ExperimentSpec(scene="digits=blockdigits", methods="ig", metrics="mass_inside", n=2, seed=3, set=settings)
    results = run_experiment(spec, tmp_path / "run")
    stored = results.manifest.gates("digits")
    assert not all(gate["holds"] for gate in stored)
    made = card_of_run(tmp_path / "run", "ig")
    assert [(gate.name, gate.value, gate.holds) for gate in made.gates["digits"]] == [
        (gate["name"], gate["value"], gate["holds"]) for gate in stored
    ]
    text = write_card(made, tmp_path)[1].read_text()
    assert "so its numbers prove nothing" in text
    assert "Examples are drawn by the seed 3." in text


def test_the_cost_in_a_card_of_a_run_is_that_of_the_maps_that_were_made(tmp_path):
    for index, sample in enumerate(digits_samples()[:2]):
        sample.image.save(tmp_path / f"{index}.png")
    (tmp_path / "2.png").write_text("no image")
    given = {"model": "embedded:digits", "data": str(tmp_path), "methods": "ig", "metrics": "saco,sparseness"}
    run_experiment(ExperimentSpec(**given, n=3, limits={"saco": 1}, set=STEPS), tmp_path / "run")
    assert card_of_run(tmp_path / "run", "ig").passes == {"forward": 5.0, "jvp": 0.0, "vjp": 4.0}


def test_diffusion_is_no_blind_map_and_path_and_sparseness_are_no_failures(run):
    folder, results = run
    assert "diffusion" in results.methods(results.models[0])
    made = card_of_run(folder, "smoothgrad")  # it has no path: its end point KL is undefined
    assert {name for m in made.measurements for name in m.controls} == {"edge", "random", "uniform"}
    sentences = failures(made, summarise_card(made))
    assert not [s for s in sentences if "Sparseness" in s or "End point KL" in s]


def test_a_method_that_a_run_lacks_is_named_with_those_it_has(run):
    with pytest.raises(InputError, match="'lrp', which the run does not have; it has ig, smoothgrad, fringe"):
        card_of_run(run[0], "lrp")


def test_a_setting_that_differs_between_models_is_not_that_of_the_first(tmp_path):
    models = tuple(
        PlanModel(label, "embedded:digits", {"ig": IntegratedGradients(steps=steps)})
        for label, steps in (("a", 2), ("b", 3))
    )
    plan = Plan("p", ("embedded:digits",), models, {"sparseness": get_metric("sparseness")}, n=1, controls=False)
    run_experiment(plan, tmp_path / "run")
    settings = card_of_run(tmp_path / "run", "ig").settings
    assert settings == {**IntegratedGradients().record(), "steps": "differs between the models"}
