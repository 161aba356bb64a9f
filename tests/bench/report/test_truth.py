"""The chapter of tests with a known answer: chance, controls, gates, and the mean over networks."""

import csv
import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from small_scenes import TwoNetworks

from fringe import IntegratedGradients
from fringe.bench.experiments import ExperimentSpec, read_results, run_experiment
from fringe.bench.report import build_table, write_report
from fringe.bench.report._table import legend

#: The first cell of the method ig, with its title.
IG = "ig (Integrated Gradients)"
pytestmark = pytest.mark.usefixtures("small_figures")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("truth")
    spec = ExperimentSpec(
        scene=[("valid", TwoNetworks(most=2.0)), ("broken", TwoNetworks(most=0.1)), ("half", TwoNetworks())],
        methods="ig",
        set={"ig.steps": 4},
        n=4,
    )
    run_experiment(spec, folder / "run")
    write_report(folder / "run")
    return folder / "run"


def rows(run, title):
    """The rows of a table by their first cell."""
    text = (run / "report" / "report.md").read_text().replace("\\", "")  # "0\\." is no list
    part = text.split(f"### {title}")[1].split("###")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in cells}


def test_chance_and_controls_stand_beside_every_score(run):
    table = rows(run, "Two networks (valid)")
    assert table["chance"][:4] == ["0.047"] * 4
    assert table[IG][0].startswith("1.000")
    # both networks; 9 passes of a map, and those of the probe of the colour that is not read
    assert table[IG][-2:] == ["8", "13"]
    assert table["uniform (control)"][0].startswith("0.047")
    assert {"zero (control)", "random (control)", "edge (control)"} <= set(table)


def test_the_control_that_runs_the_network_has_its_passes(tmp_path):
    spec = ExperimentSpec(scene=[("valid", TwoNetworks(most=2.0))], methods="fringe", set={"fringe.steps": 2}, n=4)
    results = run_experiment(spec, tmp_path / "run")
    write_report(tmp_path / "run")
    table, maps = rows(tmp_path / "run", "Two networks (valid)"), results.map_frame("valid-0", "diffusion")
    passes = (maps["forward"] + maps["jvp"] + maps["vjp"]).mean()
    assert passes > 0
    assert table["diffusion (control)"][-1] == f"{passes:.0f}"
    assert table["edge (control)"][-1] == "0"


@dataclass(frozen=True)
class Odd(IntegratedGradients):
    """Maps of which ``how`` says what is wrong; of two networks the heavy one is the second."""

    how: str = "none"

    def attribute(self, problem):
        result, heavy = super().attribute(problem), float(problem.model.module.head.weight.max()) > 0.75
        values, first = result.values, torch.tensor([0])
        values = {
            "none": values * torch.nan,
            "no_first": values.index_fill(0, first, torch.nan),
            "negative_first": values.index_fill(0, first, -1.0),
            "smeared": values + heavy * 1e-5 * values.max(),
            "flat": torch.ones_like(values) if heavy else values,
            "blind": torch.ones_like(values),
        }[self.how]
        return replace(result, values=values)


def test_a_score_is_marked_if_it_could_be_shown_to_be_better_than_every_control_and_is_not(tmp_path):
    """Pairs of examples share pixels, and all are shown to both networks: of n / 2 clusters 2 / 2**(n / 2) sign
    assignments are as extreme, and eight scores are tested. Six clusters are too few for p < .05: nothing is said."""
    methods = [("ig", IntegratedGradients()), ("blind", Odd(how="blind"))]
    for n, mark in ((12, ""), (18, "<sup>‡</sup>")):
        spec = ExperimentSpec(scene=[("valid", TwoNetworks(most=2.0))], methods=methods, n=n)
        run_experiment(spec, tmp_path / f"{n}")
        write_report(tmp_path / f"{n}")
        table = rows(tmp_path / f"{n}", "Two networks (valid)")
        assert table[IG][0] == ("**<ins>1.000 [1.000, 1.000]</ins>**" if mark else "1.000 [1.000, 1.000]")
        assert table["blind"][0] == f"0.047 [0.047, 0.047]{mark}"
        assert "‡" not in "".join(table["uniform (control)"])
        assert (8 * 2 / 2 ** (n // 2) < 0.05) == bool(mark)


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """The results of methods with odd maps, and their table; of each scene two networks, each with four examples."""
    folder = tmp_path_factory.mktemp("odd")
    methods = [(how, Odd(steps=4, how=how)) for how in ("none", "no_first", "negative_first", "smeared", "flat")]
    results = run_experiment(
        ExperimentSpec(scene=[("valid", TwoNetworks(most=2.0))], methods=methods, n=4), folder / "run"
    )
    write_report(folder / "run")
    return results, rows(folder / "run", "Two networks (valid)")


def test_maps_that_failed_hide_no_chance(odd):
    _, table = odd
    assert table["none"][:5] == ["–"] * 4 + ["0"]
    assert table["no_first"][-2] == "6"  # of both networks, 3 of 4 each
    assert [float(cell) for cell in table["chance"][:4]] == pytest.approx([12 / 16**2] * 4, abs=5e-4)


def test_a_small_spread_is_printed_with_the_decimals_that_show_it(odd):
    """Of two networks an interval reaches from one to the other."""
    results, table = odd
    light, heavy = (results.scores(f"valid-{i}", "smeared", "mass_inside").mean() for i in range(2))
    shown = table["smeared"][0].removesuffix("<sup>‡</sup>")
    assert shown == f"{(light + heavy) / 2:.4f} [{heavy:.4f}, {light:.4f}]"
    assert [table["chance"][0], table["chance"][2]] == ["0.0469", "0.047"]


def test_n_of_a_row_is_that_of_its_columns(odd):
    """The first map has no positive mass, and so a rank accuracy alone."""
    results, table = odd
    both = ("mass_inside", "rank_accuracy")
    known = {m: sum(np.isfinite(results.scores(f"valid-{i}", "negative_first", m)).sum() for i in (0, 1)) for m in both}
    assert known == {"mass_inside": 6, "rank_accuracy": 8}
    assert table["negative_first"][-2] == "6–8"
    assert table["zero (control)"][-2] == "8"  # it has no mass inside, which a dash says


def test_the_spread_resamples_networks(odd):
    """A quarter of the resamples of two networks hold one of them only; all examples of one network score the same."""
    results, table = odd
    light, heavy = (results.scores(f"valid-{i}", "flat", "mass_inside") for i in range(2))
    assert (light == light[0]).all()
    assert (heavy == heavy[0]).all()
    cell = table["flat"][0].removesuffix("<sup>‡</sup>")
    assert cell == f"{(light[0] + heavy[0]) / 2:.4f} [{heavy[0]:.4f}, {light[0]:.4f}]"


def test_networks_whose_gate_failed_are_named_and_in_no_mean(run):
    text = (run / "report" / "report.md").read_text()
    assert "half-1: gate failed (largest weight: 1 (at most 0.6): fails)" in text
    assert "Gate failed: no network of this scene" in text.split("### Two networks (broken)")[1].split("###")[0]
    assert rows(run, "Two networks (half)")[IG][-2] == "4"


def test_a_table_for_a_paper_says_that_the_gate_of_its_network_failed(run):
    text = (run / "report" / "tables.tex").read_text()
    captions = {line.split("on ")[1].split(".")[0] for line in text.splitlines() if "caption{Methods on" in line}
    failed = ", whose gate failed: these scores are not to be read"
    assert captions == {"valid-0", "valid-1", "half-0", *(f"{n}{failed}" for n in ("half-1", "broken-0", "broken-1"))}


def test_every_line_of_the_summary_says_whether_the_gates_of_its_network_hold(run):
    with (run / "report" / "summary.csv").open(newline="") as file:
        holds = {row["model"]: row["gates_hold"] for row in csv.DictReader(file)}
    valid = dict.fromkeys(("valid-0", "valid-1", "half-0"), "yes")
    assert holds == {**valid, **dict.fromkeys(("half-1", "broken-0", "broken-1"), "no")}


def test_a_command_prints_the_table_of_each_scene(run, tmp_path):
    tables = write_report(run, out=tmp_path / "report").tables
    assert [table.title for table in tables] == ["Two networks (valid)", "Two networks (half)"]
    assert [row[0].value for row in tables[0].rows[1:2]] == ["ig"]


def test_networks_of_one_scene_have_no_chapters_of_their_own(run):
    text = (run / "report" / "report.md").read_text()
    assert not re.search(r"^## (valid|broken|half)-", text, re.MULTILINE)
    assert "scores.csv has each of them" in text
    with (run / "report" / "scores.csv").open(newline="") as file:
        assert {"half-0", "half-1"} <= {row["model"] for row in csv.DictReader(file)}


def test_the_mean_is_over_all_networks_and_their_clusters(run):
    """A quarter of the resamples of two clusters hold one of them only, so their means are the ends of the interval.
    The control gives both networks the same maps; resampled one by one, its four images would reach further."""
    results, cells = read_results(run), rows(run, "Two networks (valid)")["edge (control)"]
    for metric, cell in zip(
        ("mass_inside", "mass_inside:smooth", "rank_accuracy", "expected_hit"), cells, strict=False
    ):
        scores, others = (results.scores(model, "edge", metric) for model in ("valid-0", "valid-1"))
        assert (scores == others).all()
        low, high = sorted((scores[:2].mean(), scores[2:].mean()))
        assert cell == f"{scores.mean():.3f} [{low:.3f}, {high:.3f}]"


def test_every_gate_of_every_network_stands_in_the_first_table(run):
    text = (run / "report" / "report.md").read_text().replace("\\", "")
    gates, reading, first, *_ = text.split("## Tests with a known answer")[1].split("### ")[1:]
    lines = [line.strip("| ").split(" | ") for line in gates.splitlines() if line.startswith("|")][2:]
    assert lines == [
        [scene, f"{scene}-{i}", text]
        for scene, most in (("valid", 2), ("broken", 0.1), ("half", 0.6))
        for i, weight in enumerate((0.5, 1))
        for text in (
            "classes: 2 (at least 2): holds",
            f"largest weight: {weight} (at most {most}): {'holds' if weight <= most else 'fails'}",
        )
    ]
    assert reading.startswith("How to read the tables")
    assert first.startswith("Two networks (valid)\n")


def test_a_table_says_that_its_intervals_draw_clusters_and_without_scenes_they_draw_images(run, tmp_path):
    table = build_table(read_results(run), "valid-0")
    assert all(of["clusters"] is not None for of in table.scores.groups.values())
    assert "bootstrap interval over clusters of images that share pixels" in legend(table)[0]
    spec = ExperimentSpec(data="embedded:digits", methods=[IntegratedGradients(steps=2)], metrics="sparseness", n=2)
    results = run_experiment(spec, tmp_path)
    assert "known answer" not in write_report(tmp_path, grid=False).page.read_text()
    alone = build_table(results, results.models[0])
    assert all(of["clusters"] is None for of in alone.scores.groups.values())
    assert "bootstrap interval over images" in legend(alone)[0]
