"""The study of equal budgets: which settings take part, on which images they are priced, and what its table says."""

import math

import numpy as np
import pytest
from typer.testing import CliRunner

from fringe import FRInGe, InputError
from fringe.bench.experiments import Store, read_results, resolve
from fringe.bench.paper import StudySpec, _budget, equal_budgets, paper_study
from fringe.bench.paper._budget import Entry, _cell, _curves, _entries
from fringe.bench.paper._timing import Timing
from fringe.cli import app
from fringe.evaluation import paired

FACTORS = ("ig.steps=4,8,20", "smooth_ig.of.steps=4,8", "fringe.tau=1e-2,1e-3")
METHODS = ["ig", "smooth_ig=smooth(2):ig", "fringe", "preview=fringe:preview", "dear=fringe:paper"]


def study(**given):
    known = {"model": "embedded:digits", "data": "embedded:digits", "methods": METHODS, "factor": FACTORS, "n": 3}
    return paper_study("budget", StudySpec(**{**known, **given}))


def timing(method, passes, *, seconds=math.nan, memory=math.nan):
    return Timing("digits", method, "single", seconds, math.nan, 2, passes / 2, 0.0, passes / 2, "CPU", memory)


PASSES = {
    **{"ig.steps=4": 10, "ig.steps=8": 18, "ig.steps=20": 42, "smooth_ig.of.steps=4": 10, "smooth_ig.of.steps=8": 18},
    **{"fringe.tau=1e-2": 30, "fringe.tau=1e-3": 12.5, "preview": 3, "dear": 300},
}


def test_a_method_stands_at_a_budget_in_the_setting_that_is_nearest_if_it_is_near():
    found = study(budgets=(1, 2, 5))
    timings = [timing(name, passes) for name, passes in PASSES.items()]
    entries = list(_entries(found, found.base.models[0], timings))
    assert [(e.name, e.setting, e.budget, e.price) for e in entries] == [
        ("ig_x1", "steps=4", 1, 1.0),
        ("ig_x2", "steps=8", 2, 1.8),
        ("ig_x5", "steps=20", 5, 4.2),
        ("smooth_ig_x1", "of.steps=4", 1, 1.0),
        ("smooth_ig_x2", "of.steps=8", 2, 1.8),  # none is near five units
        ("fringe_x1", "tau=1e-3", 1, 1.25),  # the last that is near
        ("preview", "its own", None, 0.3),  # "dear" is beyond the largest budget
    ]
    assert entries[0].method.steps == 4
    assert entries[3].method.of.steps == 4
    assert entries[5].method == FRInGe(tau=1e-3)


@pytest.mark.parametrize("price", ["seconds", "memory"])
def test_the_price_is_what_was_asked_for(price):
    found = study(budgets=(1, 3), price=price, factor=("ig.steps=4,8",), methods=["ig"])
    timings = [timing("ig.steps=4", 1, **{price: 2.0}), timing("ig.steps=8", 1, **{price: 6.0})]
    assert [(e.name, e.price) for e in _entries(found, found.base.models[0], timings)] == [("ig_x1", 1), ("ig_x3", 3)]


@pytest.mark.parametrize("price", ["seconds", "memory"])
def test_what_only_a_gpu_measures_is_refused_elsewhere(tmp_path, price):
    with pytest.raises(InputError, match=f"price: '{price}' is measured on a GPU, and the device is 'cpu'; use price="):
        equal_budgets(study(price=price), tmp_path / "prices.json", device="cpu")


def test_prices_are_of_images_that_are_not_scored(tmp_path, monkeypatch):
    asked = {}

    def stored(plan, path, **kwargs):
        resolve(plan)  # as it does
        asked.update(plan=plan, **kwargs)
        return [timing(name, passes) for name, passes in PASSES.items()]

    monkeypatch.setattr(_budget, "stored_timings", stored)
    found = study(choosing=4)
    plan, entries = equal_budgets(found, tmp_path / "prices.json", device="cpu")
    priced, scored = ({image["digest"] for image in resolve(p).manifest.images} for p in (asked["plan"], plan))
    assert (len(priced), len(scored), priced & scored) == (4, 3, set())
    assert [*asked["plan"].models[0].methods] == [*PASSES]
    assert (asked["modes"], asked["measuring"]) == (("single",), True)
    assert (asked["plan"].controls, plan.controls) == (False, True)
    assert [*plan.models[0].methods] == [entry.name for entry in entries["digits"]]
    equal_budgets(study(choosing=4, n=9), tmp_path / "prices.json", device="cpu")
    assert {image["digest"] for image in resolve(asked["plan"]).manifest.images} == priced  # prices stay those of these
    few = study(data=tuple(f"embedded:digits:{i}" for i in range(4)), choosing=5)
    with pytest.raises(InputError, match="n: got 5, but there are 1 different images"):
        equal_budgets(few, tmp_path / "prices.json", device="cpu")


def test_metrics_of_ones_own_replace_those_of_the_file():
    found = study(metrics=["sparseness"], controls=False)
    assert (tuple(found.plan.metrics), found.plan.controls) == (("sparseness",), False)


@pytest.mark.parametrize(
    ("factor", "message"),
    [
        (("fringe.tau=1e-2",), "factor: none of ig, whose first value sets the unit of a price; add ig.steps="),
        (("ig.step=3",), "ig has no setting 'step'"),
        (("ig.steps=few",), "steps: got 'few'"),
        (("other.steps=3",), "method: got 'other', expected one of ig, smooth_ig"),
        (("ig.steps=3", "ig.rule=right"), "factor: .*the values of a method are those of one setting"),
    ],
)
def test_a_factor_that_cannot_be_varied_is_refused_before_anything_is_measured(factor, message):
    with pytest.raises(InputError, match=message):
        study(factor=factor)


def test_the_study_runs_goes_on_and_its_table_has_the_differences_at_one_budget(tmp_path):
    given = ["choosing=1", "budgets=[1, 2]", "controls=false", "insertion_zero.steps=4"]
    given += ['metrics={insertion_zero = "insertion:zero"}', 'factor=["ig.steps=4,8", "smooth_ig.of.steps=4,8"]']
    given += ['methods=["ig", "smooth_ig=smooth(2):ig", "preview=fringe:preview"]']
    arguments = ["reproduce", "budget", "--model", "embedded:digits", "--device", "cpu", "--n", "3", "--json", "--yes"]
    arguments += ["--out", str(tmp_path), *(part for text in given for part in ("--set", text))]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    folder = tmp_path / "report" / "budget"
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert "## Quality at equal price" in text
    assert "the others differences to ig at the same budget" in text
    assert (folder / "figures" / "budget-1.png").stat().st_size > 10_000
    assert "FRInGe, preset preview of" in text  # the settings of the report name each

    results = read_results(Store(tmp_path, create=False), "budget")
    assert results.methods("digits") == ("ig_x1", "ig_x2", "smooth_ig_x1", "smooth_ig_x2", "preview")  # no control
    line = next(line for line in text.splitlines() if line.startswith("| smooth\\_ig\\_x2 | of.steps=8 |"))
    columns = (results.scores("digits", name, "insertion_zero") for name in ("smooth_ig_x2", "ig_x2"))
    gap = paired(*columns)
    assert f"{gap.value:.3f} [{gap.low:.3f}, {gap.high:.3f}]".replace("-", "−") in line
    before = (folder / "prices.json").stat().st_mtime_ns
    again = CliRunner().invoke(app, arguments)
    assert '"done": 0' in again.stdout
    assert (folder / "prices.json").stat().st_mtime_ns == before


class Toy:
    """Results of two methods and two controls under one metric."""

    metrics = ("insertion",)

    def __init__(self, direction):
        self.known = {"ig_x1": [0.2, 0.4], "m": [0.5, 0.6], "edge": [0.3, 0.3], "zero": [0.1, 0.9]}
        self.known["diffusion"] = [0.9, 0.9]
        self.manifest = type("M", (), {"metrics": {"insertion": {"direction": direction}}})

    def methods(self, model):
        return tuple(self.known)

    def is_control(self, label):
        return label in ("edge", "zero", "diffusion")

    def scores(self, model, label, metric):
        return np.array(self.known[label])


@pytest.mark.parametrize(("direction", "best"), [("higher", 0.5), ("lower", 0.3), ("none", None)])
def test_a_figure_has_a_line_for_each_method_and_the_best_map_without_the_model(direction, best):
    entries = [Entry("ig_x1", "ig", "steps=4", None, 1.0, 1), Entry("m", "m", "its own", None, 0.5)]
    curves = _curves("net", entries, Toy(direction), "insertion")
    assert [(c.name, [*c.values], [*c.objective]) for c in curves] == [
        ("m", [0.5], [pytest.approx(0.55)]),
        ("Integrated Gradients", [1.0], [pytest.approx(0.3)]),
        *([] if best is None else [("best blind map", [0.5, 1.0], [pytest.approx(best)] * 2)]),
    ]


def test_a_cell_is_the_score_of_ig_or_the_difference_to_it():
    ig, other = Entry("ig_x1", "ig", "", None, 1.0, 1), Entry("m", "m", "", None, 0.5)
    assert _cell(Toy("higher"), "net", ig, [], "insertion", 0).value == pytest.approx(0.3)
    cell = _cell(Toy("higher"), "net", other, [ig], "insertion", 0)
    assert (cell.value, cell.mark) == (pytest.approx(0.25), "*")  # both images gain: 0.3 and 0.2
    assert cell.ends == (pytest.approx(0.2), pytest.approx(0.3))
