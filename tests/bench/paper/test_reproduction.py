"""Our numbers beside the paper's: the plans behind them, and what overlaps."""

import csv
import io
import math
from dataclasses import fields, replace

import numpy as np
import pytest

from fringe import FRInGe, IntegratedGradients, SmoothGrad
from fringe.bench.experiments import ExperimentSpec, ModelSource, Plan, PlanModel, run_experiment
from fringe.bench.paper import estimate_reproduction, paper_study, write_reproduction
from fringe.bench.paper._reproduction import (
    ComparedValue,
    Measurement,
    _write_page,
    compare_with_paper,
    comparison_csv,
    reproduction_report,
)
from fringe.bench.paper._studies import (
    DEFAULT,
    DIAGNOSTICS,
    OBJECTIVE,
    SPECS,
    STUDIES,
    VARIANTS,
    study_plans,
    timed_plan,
)
from fringe.bench.paper._tables import METRICS as NAMES
from fringe.bench.paper._tables import MODELS, READINGS, PaperValue
from fringe.bench.paper._timing import Timing
from fringe.bench.report import html_page, markdown_report
from fringe.evaluation import estimate
from fringe.metrics import METRICS, Infidelity, MaxSensitivity, get_metric
from toys import results_of_scores


def base(n=1000, **metrics):
    known = {name: get_metric(name) for name in METRICS} | metrics
    models = tuple(
        PlanModel(
            name,
            ModelSource(spec),
            {"fringe": FRInGe.preset(name), "ig": IntegratedGradients(steps=7), "smoothgrad": SmoothGrad()},
        )
        for name, spec in SPECS.items()
    )
    return Plan("comparison", ("imagenet",), models, known, n=n, seed=4)


def test_the_plans_are_the_papers_studies_of_its_six_networks():
    found = study_plans(base())
    assert tuple(found) == tuple(name for name in STUDIES if name != "runtime")
    assert {name: plan.name for name, plan in found.items()} == {name: name for name in found}
    assert {name: plan.n for name, plan in found.items()} == {
        "comparison": 1000,
        "ablation": 1000,
        "cap": 64,
        "max_sensitivity": 64,
        "sweep": 64,
    }
    assert {name: tuple(plan.metrics) for name, plan in found.items()} == {
        "comparison": tuple(NAMES.values()),
        "ablation": tuple(NAMES.values()),
        "cap": DIAGNOSTICS,
        "max_sensitivity": ("max_sensitivity",),
        "sweep": OBJECTIVE,
    }
    for plan in found.values():
        assert tuple(model.label for model in plan.models) == MODELS
        assert (plan.seed, plan.data, plan.limits, plan.target) == (4, ("imagenet",), {}, "predicted")
    assert [plan.controls for plan in found.values()] == [True, False, False, False, False]
    by_method = {name: tuple(plan.models[0].methods) for name, plan in found.items()}
    assert by_method["comparison"] == ("fringe", "ig", "smoothgrad", DEFAULT)
    assert by_method["ablation"] == VARIANTS
    assert by_method["cap"] == ("cap", "no_cap", "ig")
    assert by_method["max_sensitivity"] == ("fringe", "ig", DEFAULT)
    for name in ("comparison", "max_sensitivity"):
        assert all(model.methods[DEFAULT] == FRInGe() for model in found[name].models)
    assert by_method["sweep"][0] == "centre"
    assert found["ablation"].models[0].methods["euclidean"] == FRInGe.preset("resnet18", "euclidean")
    assert found["cap"].models[0].methods["ig"] == IntegratedGradients(steps=7)


def test_some_studies_of_fewer_images_with_metrics_of_ones_own():
    found = study_plans(
        base(5, infidelity=Infidelity(samples=3), max_sensitivity=MaxSensitivity(samples=2)), ["cap", "sweep"]
    )
    assert [(name, plan.n) for name, plan in found.items()] == [("cap", 5), ("sweep", 5)]
    assert found["sweep"].metrics["infidelity"] == Infidelity(samples=3)
    other = study_plans(base(5, max_sensitivity=MaxSensitivity(samples=2)), ["max_sensitivity"])
    assert other["max_sensitivity"].metrics == {"max_sensitivity": MaxSensitivity(samples=2)}


def test_a_network_without_a_cap_is_left_out_of_its_study():
    whole = base()
    first, second, *_ = whole.models
    bare = replace(first, methods={**first.methods, "fringe": FRInGe(delta_euc=None)})
    found = study_plans(replace(whole, models=(bare, second)), ["cap", "comparison"])
    assert [model.label for model in found["cap"].models] == [second.label]
    assert [model.label for model in found["comparison"].models] == [first.label, second.label]


def test_run_times_are_of_fringe_and_ig():
    found = timed_plan(base())
    assert (found.name, found.n, found.controls) == ("runtime", 64, False)
    assert [tuple(model.methods) for model in found.models] == [("fringe", "ig")] * 6
    alone = timed_plan(base(), (DEFAULT,))
    assert [dict(model.methods) for model in alone.models] == [{DEFAULT: FRInGe()}] * 6


def compared(timings=(), **studies):
    """These scores of each study, by network, method and metric, beside the paper's."""
    return compare_with_paper({name: results_of_scores(scores) for name, scores in studies.items()}, timings)


def _numbers(found):
    """The sections of the numbers, one for each study."""
    return reproduction_report([], found).chapters[2].sections


def _plain(markdown):
    """Markdown as it is shown, without its escapes."""
    return markdown.replace("\\", "")


def test_ours_is_the_mean_with_half_its_interval_beside_the_papers_cell():
    spread = np.array([0.58, 0.59, 0.6, 0.61, 0.62, np.nan])
    found = compared(
        comparison={("resnet18", "fringe", "mas_insertion"): spread},
        ablation={("resnet18", "euclidean", "mas_insertion"): np.full(4, 0.75)},
    )
    assert [(row.paper.study, row.paper.method) for row in found] == [
        ("comparison", "fringe"),
        ("ablation", "euclidean"),
    ]
    ours, other = found
    assert (ours.paper.value, ours.paper.half) == (0.597, 0.015)
    assert (ours.ours.value, ours.ours.n) == (pytest.approx(0.6), 5)
    finite = spread[:5]
    means = finite[np.random.default_rng(1).integers(0, 5, (20000, 5))].mean(1)
    low, high = np.quantile(means, [0.025, 0.975])
    assert ours.ours.half == pytest.approx((high - low) / 2, abs=1e-3)
    assert ours.overlap is True
    assert (other.ours, other.overlap) == (Measurement(0.75, 0.0, 4), False)  # 0.414 ± 0.017 in the paper


def test_an_interval_is_drawn_by_the_seed_of_the_plan_as_in_every_other_table():
    scores = np.random.default_rng(0).normal(size=12)
    halves = list[float]()
    for seed in (0, 7):
        results = results_of_scores({("resnet18", "fringe", "mas_insertion"): scores}, seed)
        (found,), expected = compare_with_paper({"comparison": results}), estimate(scores, seed)
        assert found.ours.half == (expected.high - expected.low) / 2
        halves.append(found.ours.half)
    assert halves[0] != halves[1]


def test_a_median_has_half_its_quartiles_range():
    scores = np.array([0.05, 0.07, 0.08, 0.09, 0.5])
    (found,) = compared(max_sensitivity={("resnet18", "ig", "max_sensitivity"): scores})
    assert (found.ours.value, found.ours.half) == (pytest.approx(0.08), pytest.approx((0.09 - 0.07) / 2))
    assert found.overlap is True  # 0.0833 ± 0.0171 in the paper


def test_a_network_or_method_that_the_paper_has_not_is_not_beside_it():
    scores = {("resnet34", "fringe", "insertion"): np.ones(2), ("resnet18", "blur_ig", "insertion"): np.ones(2)}
    assert compared(comparison=scores, ablation={("resnet18", "ig", "insertion"): np.ones(2)}) == []
    assert comparison_csv([]) == (
        "study,model,method,metric,value,half,ours,ours_half,n,overlap,default_value,default_half,default_n\n"
    )
    assert [chapter.title for chapter in reproduction_report([], []).chapters][1:] == [
        "Readings of the paper",
        "Versions",
    ]


@pytest.mark.parametrize(
    ("paper", "ours", "verdict"),
    [
        ((0.5, 0.01), (0.53, 0.01), False),
        ((0.5, 0.02), (0.53, 0.01), True),  # they touch
        ((0.5, 0.02), (0.47, 0.0101), True),
        ((0.5, 0.02), (0.4699, 0.01), False),
        ((0.5, math.nan), (0.5, 0.1), None),
        ((0.5, 0.1), (math.nan, 0.1), None),
        ((0.5, 0.1), (0.5, math.nan), None),
    ],
)
def test_intervals_overlap_where_their_distance_is_no_more_than_both_halves(paper, ours, verdict):
    # in binary, 0.53 - 0.5 is a little more than 0.03: halves with room for it
    cell = PaperValue("comparison", "resnet18", "ig", "insertion", paper[0], paper[1] + 1e-12)
    number = Measurement(ours[0], ours[1] + 1e-12, 9)
    assert ComparedValue(cell, number).overlap is verdict
    seconds = replace(cell, study="runtime", metric="seconds")
    assert ComparedValue(seconds, number).overlap is None


TIMINGS = [
    Timing("resnet18", "fringe", "sequential", 6.0, 0.5, 4, 1, 1, 1, "CPU"),
    Timing("resnet18", "ig", "sequential", 2.0, 0.1, 4, 1, 0, 1, "CPU"),
]


def test_run_times_stand_beside_the_papers_as_a_ratio_that_is_told_no_verdict():
    timings = [
        *TIMINGS,
        *(replace(timing, mode="batched", seconds=1.0, half=math.nan) for timing in TIMINGS),
    ]
    found = compare_with_paper({}, timings)
    assert [(row.paper.method, row.paper.metric, row.ours.value, row.ours.half) for row in found[:2]] == [
        ("fringe", "seconds", 6.0, 0.5),
        ("ig", "seconds", 2.0, 0.1),
    ]
    ratio = found[2]
    assert (ratio.paper.metric, ratio.paper.value, ratio.ours.value, ratio.overlap) == ("slowdown", 19.0, 3.0, None)
    assert len(found) == 3
    assert "seconds are those of another machine" in _numbers(found)[0].text[0]
    assert [row.paper.metric for row in compare_with_paper({}, timings[:1])] == ["seconds"]  # no ratio without ig


def test_the_tables_count_what_agrees_and_lose_no_cell():
    found = compared(
        comparison={
            ("resnet18", "fringe", "mas_insertion"): np.full(3, 0.6),
            ("resnet18", "ig", "mas_insertion"): np.full(3, 0.9),
            ("resnet18", "ig", "infidelity"): np.array([np.nan]),
        }
    )
    (part,) = _numbers(found)
    assert part.text == ("1 of 2 cells have intervals that overlap the paper's.",)
    assert [row[-1] for row in part.table.rows] == [True, False, "", ""]  # the last two without a score
    text = _plain(markdown_report(reproduction_report([], found)))
    assert "| resnet18 | mas_insertion | fringe | 0.597 ± 0.015 | 0.600 ± 0.000 | – | 3 | yes |" in text
    assert "| resnet18 | infidelity | ig | 0.104 ± 0.009 | – | – | 0 |  |" in text
    lines = list(csv.DictReader(io.StringIO(comparison_csv(found))))
    assert [(row["method"], row["value"], row["ours"], row["n"], row["overlap"]) for row in lines] == [
        ("fringe", "0.597", "0.6", "3", "yes"),
        ("ig", "0.443", "0.9", "3", "no"),
        ("fringe", "0.058", "", "0", ""),
        ("ig", "0.104", "", "0", ""),
    ]


def test_the_default_has_a_column_beside_the_papers_setting():
    found = compared(
        [*TIMINGS, replace(TIMINGS[0], method=DEFAULT, seconds=1.0, half=0.25)],
        comparison={
            ("resnet18", "fringe", "insertion"): np.full(3, 0.25),
            ("resnet18", "ig", "insertion"): np.full(3, 0.5),
            ("resnet18", DEFAULT, "insertion"): np.array([0.7, 0.8, 0.9, np.nan]),
            ("resnet50", "fringe", "insertion"): np.full(3, 0.25),  # an older folder, without the default
        },
        ablation={
            ("resnet18", "fringe", "insertion"): np.full(3, 0.25),
            ("resnet18", DEFAULT, "insertion"): np.full(3, 0.8),
        },
    )
    by_study = {part.title: part.table for part in _numbers(found)}
    assert {title: tuple(part.columns[5:-2]) for title, part in by_study.items()} == {
        "comparison": ("FRInGe()",),
        "ablation": (),
        "runtime": ("FRInGe()",),
    }
    means = np.array([0.7, 0.8, 0.9])[np.random.default_rng(1).integers(0, 3, (20000, 3))].mean(1)
    half = np.subtract(*np.quantile(means, [0.975, 0.025])) / 2
    rows = {(row[0], row[2]): [cell.text for cell in row[4:6]] for row in by_study["comparison"].rows}
    ours, default = rows["resnet18", "fringe"]
    assert ours == "0.250 ± 0.000"
    value, at_half = (float(number) for number in default.split(" ± "))
    assert (value, at_half) == (0.8, pytest.approx(half, abs=5e-3))
    assert rows["resnet18", "ig"][1] == rows["resnet50", "fringe"][1] == "–"
    assert [row[5].text for row in by_study["runtime"].rows] == ["1.000 ± 0.250", "–", "0.500"]

    text = _plain(markdown_report(reproduction_report([], found)))
    assert f"| resnet18 | insertion | fringe | 0.492 ± 0.016 | 0.250 ± 0.000 | {default} | 3 | no |" in text
    page = html_page(reproduction_report([], found))
    assert "<h2>Versions</h2>" in page
    assert "<pre>" not in page  # it has no commands
    assert '<th scope="col" class="number">ours</th><th scope="col" class="number">FRInGe()</th>' in page
    assert f'<td class="number">0.250 ± 0.000</td><td class="number">{default}</td><td class="number">3</td>' in page
    lines = list(csv.DictReader(io.StringIO(comparison_csv(found))))
    assert [float(row["default_value"]) for row in lines if row["default_value"]] == pytest.approx([0.8, 1.0, 0.5])
    assert [row["default_n"] for row in lines] == ["3", "", "", "", "4", "", "4"]


def test_each_reading_names_settings_that_exist():
    owners = {"fringe": FRInGe, **METRICS}
    for reading in READINGS:
        assert reading.settings
        for setting in reading.settings:
            owner, name = setting.split(".")
            assert name in {field.name for field in fields(owners[owner])}, setting
    named = {setting for reading in READINGS for setting in reading.settings}
    for name in ("waypoint", "reorthogonalise", "boundary", "blur_sigma", "blur_size", "cg_rtol", "tau"):
        assert f"fringe.{name}" in named
    assert {"mas_insertion.rescale", "mas_deletion.rescale"} <= named
    page = html_page(reproduction_report([], []))
    for reading in READINGS:
        assert all(setting in reading.text for setting in reading.settings)
    assert page.count("To change it: ") == len(READINGS)


def test_the_readings_state_the_settings_that_the_papers_presets_have():
    for name in MODELS:
        preset = FRInGe.preset(name)
        assert (preset.waypoint, preset.reorthogonalise, preset.boundary) == ("next", True, "neumann")
        assert (preset.blur_sigma, preset.blur_size, preset.cg_rtol) == (1.0, 7, 1e-3)
        assert FRInGe.preset(name, "euclidean").tau == preset.tau
    for metric in ("mas_insertion", "mas_deletion"):
        assert get_metric(metric) != get_metric(f"{metric}:text")


def test_a_reproduction_is_estimated_run_and_written_from_python(tmp_path):
    settings = ["fringe.steps=2", "fringe.cg_iterations=2", "ig.steps=2", "max_sensitivity.samples=1"]
    spec = ExperimentSpec(
        model={"vgg19": "embedded:digits"}, data="embedded:digits", methods="fringe,ig", n=1, set=settings
    )
    base, run, studies = paper_study("all", spec).base, tmp_path / "run", ["max_sensitivity"]
    (before,) = estimate_reproduction(base, run, studies=studies, seconds=600)
    assert [(cost.method, cost.maps) for cost in before.costs] == [("fringe", 1), ("ig", 1), (DEFAULT, 1)]
    for name, plan in study_plans(base, studies).items():
        scores = run_experiment(plan, run).scores("vgg19", "ig", name)
    (after,) = estimate_reproduction(base, run, studies=studies)
    assert after.lines() == ["vgg19: nothing left to do"]
    pages, _ = write_reproduction(base, run, tmp_path / "page", studies=studies)
    assert [path.name for path in pages] == ["reproduction.html", "reproduction.md", "reproduction.csv"]
    text = _plain(pages[1].read_text(encoding="utf-8"))
    assert "Not the paper's networks, whatever they are called: vgg19." in text
    assert "None has the name of a network" not in text
    assert all(f"- {reading.text}\n" in text for reading in READINGS)
    assert "| vgg19 | max_sensitivity | ig | 0.068 ± 0.013 |" in text
    (row,) = [row for row in csv.DictReader(pages[2].open()) if row["method"] == "ig"]
    assert (row["value"], float(row["ours"])) == ("0.0678", pytest.approx(scores[0]))


def test_the_page_shows_no_study_of_another_network_of_the_same_name(tmp_path):
    """A folder that two reproductions share holds studies of both; the page says which networks it is about."""
    methods = {"fringe": FRInGe(steps=2, cg_iterations=2), "ig": IntegratedGradients(steps=2)}
    model, metrics = (
        PlanModel("vgg19", ModelSource("embedded:digits"), methods),
        {"sparseness": get_metric("sparseness")},
    )
    first = Plan("comparison", ("embedded:digits",), (model,), metrics, n=1, controls=False)
    study = replace(first, name="max_sensitivity", metrics={"max_sensitivity": MaxSensitivity(samples=1)})
    run_experiment(study, tmp_path / "run")
    shown = {"same": first, "more networks": replace(first, models=(model, replace(model, label="more")))}
    others = {
        "another network": replace(first, models=(replace(model, source=ModelSource("torchvision:vgg19")),)),
        "another score": replace(first, score="log_probability"),
        "another class": replace(first, target=3),
        "other images": replace(first, seed=1),
    }
    for name, base in {**shown, **others}.items():
        text = _plain(_write_page(base, tmp_path / "run", tmp_path / "page", [], [])[1].read_text(encoding="utf-8"))
        assert ("| vgg19 | max_sensitivity | ig |" in text) == (name in shown), name
