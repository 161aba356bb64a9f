"""The scripts of the paper's studies: which settings they run, and their numbers beside the paper's."""

import csv
import io
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import get_args

import numpy as np
import paper_budget as budget
import paper_figures as figures
import paper_page as page
import paper_studies as studies
import paper_tables as tables
import paper_timing as timing
import pytest
import reproduce
import torch
from matplotlib.figure import Figure
from PIL import Image

from fringe import FRInGe, InputError, Insertion, IntegratedGradients
from fringe.attribution import PaperFRInGe, ReleasedFRInGe, Variant, get_method
from fringe.bench.experiments import ExperimentSpec
from fringe.bench.tuning import OBJECTIVE
from fringe.plots import PathRecord

DIGITS = {"data": "embedded:digits", "model": {"digits": "embedded:digits"}}


def spec(**given):
    return studies.with_defaults(ExperimentSpec(**{**DIGITS, **given}))


# Which settings


def test_the_tables_are_of_the_papers_networks_and_methods_at_its_settings():
    found = studies.with_defaults(ExperimentSpec(data="x"))
    assert (dict(found.model), found.n, found.controls) == (studies.SPECS, 1000, False)
    assert found.methods == studies.COMPARED
    named = studies.with_defaults(ExperimentSpec(data="x", model=["vgg19", "own=embedded:digits"], n=3))
    assert (dict(named.model), named.n) == ({"vgg19": studies.SPECS["vgg19"], "own": "embedded:digits"}, 3)
    with pytest.raises(InputError, match="data: none given; name the folder of ImageNet's validation images"):
        studies.with_defaults(ExperimentSpec())


def test_the_paper_tuned_three_variants_of_a_network_and_the_rest_are_its_setting_reduced():
    for kind in (PaperFRInGe, ReleasedFRInGe):
        base = kind.preset("resnet18")
        found = studies.ablation(base)
        assert tuple(found) == get_args(Variant)
        for name in ("fringe", "fisher_rao_unregularized", "euclidean"):
            assert found[name] == kind.preset("resnet18", name)
        assert found["fisher_rao_unregularized"].eta_max == 1.98215  # its table's; the full setting has 13.6
        assert found["gamma_step_only"] == replace(base, gamma_prior=0.0)
        own = replace(base, tau=0.004)
        assert studies.ablation(own) == {name: own.variant(name) for name in get_args(Variant)}


@pytest.mark.filterwarnings("ignore:digits. the paper has no setting")
def test_each_study_has_its_methods_metrics_and_number_of_images():
    given = {"n": 100, "set": ["fringe.tau=0.04", "insertion.steps=5", "ig.steps=9"]}
    found = studies.studies(spec(**given), "digits", studies.SCORED)
    base, ig = PaperFRInGe(tau=0.04), IntegratedGradients(steps=9)
    assert tuple(found) == studies.SCORED
    assert {name: one.n for name, one in found.items()} == {
        **dict.fromkeys(("comparison", "ablation"), 100),
        **dict.fromkeys(("cap", "max_sensitivity", "sweep"), 64),
    }
    assert dict(found["comparison"].methods) == {
        **{label: get_method(name) for label, name in studies.COMPARED.items() if label not in ("fringe", "ig")},
        **{"fringe": base, "ig": ig, studies.DEFAULT: FRInGe()},
    }
    assert tuple(found["comparison"].metrics) == tuple(tables.METRICS.values())
    assert found["comparison"].metrics["insertion"] == Insertion(reference="box", padding="zeros", steps=5)
    assert dict(found["cap"].methods) == {"cap": base, "no_cap": replace(base, delta_euc=None), "ig": ig}
    assert tuple(found["cap"].metrics) == studies.DIAGNOSTICS
    assert list(found["max_sensitivity"].methods) == ["fringe", "ig", studies.DEFAULT]
    assert tuple(found["sweep"].metrics) == OBJECTIVE
    assert len(found["sweep"].methods) == 36  # five factors of seven values; none of these is the base's
    assert not any(one.controls or one.limits for one in found.values())


def test_a_study_needs_the_papers_method_and_the_cap_a_cap():
    with pytest.raises(InputError, match="the studies need the label fringe, of paper or released"):
        studies.studies(spec(methods="ig,fringe"), "digits", ("ablation",))
    with pytest.raises(InputError, match="the setting has no Euclidean cap to take off; set delta_euc"):
        studies.studies(spec(methods="fringe=paper:resnet18", set="fringe.delta_euc=none"), "digits", ("cap",))


def test_the_page_names_every_setting_that_is_not_the_papers():
    asked = ExperimentSpec(data="x", set=["fringe.tau=0.05"], n=3, methods="fringe=released:resnet18,ig", seed=0)
    lines = studies.overridden(studies.with_defaults(asked), asked)
    assert lines == ["fringe.tau = 0.05, by --set or a file.", "Methods: fringe=released:resnet18, ig=ig.", "n = 3."]
    plain = ExperimentSpec(data="x")
    assert studies.overridden(studies.with_defaults(plain), plain) == []
    assert "None." in page.page([], [], [], [])
    assert "- fringe.tau = 0.05, by --set or a file." in page.page([], [], lines, [])


# Beside the paper


class Known:
    """Results of one network, by method and metric."""

    def __init__(self, scores):
        self.known = scores
        self.metrics = tuple({metric for _, metric in scores})

    def methods(self, model):
        return tuple({method for method, _ in self.known})

    def scores(self, model, method, metric):
        return np.array(self.known[method, metric])


def timed(method, mode, seconds):
    return timing.Timing(method, mode, seconds, 0.25, 4, 1, 2, 3, "cpu")


def test_each_number_of_the_paper_stands_beside_ours_and_the_defaults():
    comparison = Known(
        {
            ("fringe", "insertion"): [0.25, 0.25, 0.25],
            ("ig", "insertion"): [0.4, 0.45, 0.5],
            (studies.DEFAULT, "insertion"): [0.7, 0.8, 0.9],
        }
    )
    times = {"resnet18": [timed("fringe", "sequential", 4.0), timed("ig", "sequential", 2.0)]}
    rows = page.compare_with_paper({("resnet18", "comparison"): comparison}, times)
    by_name = {(row.paper.study, row.paper.method, row.paper.metric): row for row in rows}
    fringe = by_name["comparison", "fringe", "insertion"]
    assert (fringe.ours.value, fringe.ours.half, fringe.ours.n) == (0.25, 0.0, 3)
    assert fringe.default.value == pytest.approx(0.8)
    assert by_name["comparison", "ig", "insertion"].default is None
    assert by_name["runtime", "fringe", tables.SECONDS].ours == page.Measurement(4.0, 0.25, 4)
    assert by_name["runtime", "fringe", tables.SECONDS].overlap is None  # another machine's
    assert by_name["runtime", "fringe", tables.SLOWDOWN].ours.value == 2.0
    value = tables.PaperValue("comparison", "resnet18", "fringe", "insertion", 0.3, 0.02)
    for ours, expected in ((0.32, True), (0.33, False)):
        assert page.ComparedValue(value, page.Measurement(ours, 0.005, 3)).overlap is expected
    text = page.page(rows, ["note"], [], ["a.png"])
    low, high = (fringe.paper.value + sign * fringe.paper.half for sign in (-1, 1))
    assert f"| resnet18 | insertion | fringe | {fringe.paper.value:.3f} [{low:.3f}, {high:.3f}] | " in text
    assert "![a.png](a.png)" in text
    assert all(f"- {reading}\n" in text for reading in tables.READINGS)
    lines = list(csv.DictReader(io.StringIO(page.comparison_csv(rows))))
    assert [float(line["ours_value"]) for line in lines] == [row.ours.value for row in rows]


def test_the_protocol_says_which_networks_are_not_the_papers():
    notes = page.protocol({"vgg19": "embedded:digits", "resnet18": studies.SPECS["resnet18"]}, 3, ["x"], 7)
    assert "Not the paper's networks, whatever they are called: vgg19." in notes
    assert "Images: 3 of x, drawn by seed 7; the paper gives no list." in notes


def test_the_papers_numbers_are_read():
    known = tables.paper_tables()
    assert {value.study for value in known} == {"comparison", "ablation", "cap", "max_sensitivity", "runtime"}
    assert {value.model for value in known} == set(tables.MODELS)


# Figures, run times, prices


def test_a_blur_change_is_the_mean_change_of_channels_under_a_gaussian():
    points = torch.zeros(2, 3, 9, 9, dtype=torch.float64)
    points[1, :, 4, 4] = torch.tensor([0.0, 1.0, -2.0])
    found = figures.blur_change(points, points[0])
    assert found.max() == found[1, 4, 4] == 1
    assert found[1, 4, 5].item() == pytest.approx(math.exp(-0.5), rel=1e-2)
    assert not figures.blur_change(points[:1], points[0]).any()


def test_the_sweep_leaves_out_images_without_a_score_and_settings_without_one():
    base = PaperFRInGe()
    labels = list(studies.one_at_a_time(base))
    scores = {(label, name): [0.5, 0.6, math.nan] for label in labels for name in OBJECTIVE}
    scores["tau=0.05", "insertion"] = [0.5, math.nan, math.nan]
    lines = figures.sweep(base, Known(scores), "digits")
    assert list(lines) == ["tau", "eta_max", "delta_euc", "damping", "gamma"]
    assert math.isnan(lines["tau"].objective[lines["tau"].values.index(0.05)])
    assert np.isfinite(lines["damping"].objective).all()


def test_the_setting_nearest_to_each_budget_takes_part():
    methods = {"ig": get_method("ig"), "fringe": get_method("fringe"), "blur_ig": get_method("blur_ig")}
    price = {"ig.steps=32": 64, "ig.steps=64": 128, "ig.steps=160": 320, "ig.steps=320": 640, "fringe": 40}
    price |= {f"blur_ig.steps={n}": 64 * n for n in (32, 64, 160, 320)}
    times = [timing.Timing(name, "single", 1.0, 0.0, 4, one / 2, 0, one / 2, "cpu") for name, one in price.items()]
    found = budget.choose(methods, times)
    assert [entry.name for entry in found] == ["ig_x1", "ig_x2", "ig_x5", "ig_x10", "fringe"]
    assert found[0].method == IntegratedGradients(steps=32)
    assert found[-1].price == 40 / 64


def test_run_times_are_read_again_only_for_the_same_settings(tmp_path):
    key = timing.key_of({"ig": get_method("ig")}, ["a"], "auto")
    timing.store(tmp_path / "t.json", key, [timed("ig", "batched", 1.0)])
    (found,) = timing.stored(tmp_path / "t.json", key)
    assert (found.seconds, math.isnan(found.memory), found.passes) == (1.0, True, 6)
    assert timing.stored(tmp_path / "t.json", timing.key_of({"ig": IntegratedGradients(steps=3)}, ["a"], "auto")) == []
    assert timing.stored(tmp_path / "absent.json", key) == []


# From the outside

TINY = ("--set", "fringe.tau=0.3", "--set", "ig.steps=2", "--set", "infidelity.samples=2", "--set", "insertion.steps=2")
ON_DIGITS = ("--data", "embedded:digits", "--model", "vgg19=embedded:digits", "--n", "1", "--device", "cpu")


@pytest.mark.thorough
def test_a_study_is_run_drawn_and_written(tmp_path, capsys):
    words = (*ON_DIGITS, *TINY, "--methods", "fringe=paper,ig=ig:paper", "--figures", "1", "--out", str(tmp_path))
    assert reproduce.main(["cap", *words]) == 0
    text = (tmp_path / "reproduction.md").read_text(encoding="utf-8")
    assert "| vgg19 | endpoint_kl | cap | " in text
    assert "fringe.tau = 0.3, by --set or a file." in text
    with Image.open(tmp_path / "figures" / "cap-vgg19-1.png") as picture:
        assert min(picture.size) > 200
    assert reproduce.main(["runtime", *words]) == 0
    rows = [line for line in (tmp_path / "reproduction.csv").read_text().splitlines() if ",slowdown," in line]
    assert len(rows) == 1
    assert "fringe sequential: " in capsys.readouterr().out


@pytest.mark.thorough
def test_methods_at_equal_prices_are_run_and_written(tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "FACTORS", {"ig": ("steps", "2,4"), "smoothgrad": ("samples", "2,4")})
    words = (*ON_DIGITS, "--methods", "ig,smoothgrad,fringe_own=fringe:fast", "--out", str(tmp_path))
    curves = ("--set", "insertion_blur.steps=2", "--set", "deletion_blur.steps=2")
    curves += ("--set", "insertion_zero.steps=2", "--set", "deletion_zero.steps=2")
    assert reproduce.main(["budget", *words, *curves]) == 0
    text = (tmp_path / "budget-vgg19.md").read_text(encoding="utf-8")
    assert "| ig_x1 | steps=2 | 1.00 | " in text
    assert "| smoothgrad_x1 | samples=2 | " in text


def test_wrong_usage_is_said_in_one_line(tmp_path, capsys):
    assert reproduce.main(["tables", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: data: none given")
    assert reproduce.main(["budget", "--dry-run", "--data", "embedded:digits", "--out", str(tmp_path)]) == 2
    assert not list(tmp_path.iterdir())
    options = SimpleNamespace(**vars(reproduce.arguments(["cap", *ON_DIGITS, "--seed", "3"])))
    assert reproduce.given(options).seed == 3


def test_paths_are_called_by_the_titles_of_their_studies(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(figures, "plot_profiles", lambda paths, title: shown.extend(paths) or Figure())
    records = [PathRecord(label, np.linspace(0, 1, 3)) for label in ("cap", "mine", "ig")]
    figures.draw_paths("cap", records, "cat", tmp_path / "paths.png")
    assert [path.title for path in shown] == ["IG", "FRInGe with cap"]
    assert (tmp_path / "paths.png").stat().st_size
