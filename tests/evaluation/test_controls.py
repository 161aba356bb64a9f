"""Control maps: closed forms, and numbers that belong to an image."""

import dataclasses
import math

import numpy as np
import pytest
import torch

import fringe
from fringe._numbers.rng import KeyedGenerator, content_hash
from fringe.classifier import Classifier
from fringe.evaluation import (
    CONTROLS,
    Candidate,
    Evaluator,
    ScoreTable,
    TidyScores,
    compare,
    compare_with_controls,
    control_candidates,
    estimate,
    holm,
    map_controls,
    tidy,
    with_controls,
)
from fringe.metrics import EvaluationContext, get_metric
from fringe.paths import Problem
from toys import build, images, normal, problem_of


def control(name, x, ids=None, seed=0):
    return CONTROLS[name](problem_of(lambda x: torch.zeros(len(x), 3), x, ids=ids, seed=seed))


def test_zero_and_uniform_are_constants_of_the_inputs_shape_and_dtype():
    for dtype in (torch.float32, torch.float64):
        x = torch.randn(2, 3, 4, 5, dtype=dtype)
        assert torch.equal(control("zero", x), torch.zeros(2, 3, 4, 5, dtype=dtype))
        assert torch.equal(control("uniform", x), torch.ones(2, 3, 4, 5, dtype=dtype))


def test_random_belongs_to_the_images_name_and_not_to_its_numbers_or_neighbours():
    x = torch.randn(3, 2, 4, 4, dtype=torch.float64)
    found = control("random", x, ("a", "b", "c"))
    assert torch.equal(found[1], KeyedGenerator(0).normal("control random b", x[0]))
    assert torch.equal(control("random", 7 + x[[2, 1]], ("c", "b")), found[[2, 1]])
    assert not torch.equal(control("random", x, ("a", "b", "c"), seed=1), found)
    assert torch.equal(control("random", x)[0], KeyedGenerator(0).normal(f"control random {content_hash(x[0])}", x[0]))


def test_edges_against_a_naive_loop():
    x = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def slope(line, k):
        low, high = max(k - 1, 0), min(k + 1, len(line) - 1)
        return (line[high] - line[low]) / (high - low)

    found = control("edge", x)
    for b in range(2):
        for i in range(4):
            for j in range(5):
                squares = [slope(x[b, c, :, j], i) ** 2 + slope(x[b, c, i, :], j) ** 2 for c in range(3)]
                for c in range(3):
                    assert found[b, c, i, j] == pytest.approx(math.sqrt(sum(squares)), rel=1e-14)


def test_edges_of_sequences_tables_and_single_pixels():
    ramp = torch.arange(6.0).double()
    assert torch.equal(control("edge", torch.stack([3 * ramp, 4 * ramp])[None]), torch.full((1, 2, 6), 5.0).double())
    assert torch.equal(control("edge", 2 * ramp[None]), torch.full((1, 6), 2.0).double())
    assert torch.equal(control("edge", torch.ones(2, 3, 1, 1)), torch.zeros(2, 3, 1, 1))
    assert torch.equal(control("edge", ramp.view(1, 1, 6, 1)), torch.ones(1, 1, 6, 1).double())


IG = fringe.IntegratedGradients(steps=6)
OF_MAP = ["power(1.5):ig", "centre_prior:ig"]


class TestControlsOfAMap:
    """The map of a method, sharper and moved to the centre: made of the map that is there, for this method alone."""

    def test_those_of_the_first_fringe_or_else_of_the_first_method(self):
        def names(**methods):
            return [one.label for one in control_candidates(methods) if one.of]

        quick = fringe.FRInGe(tau=3e-2)
        assert names(ig=IG, mine=quick, other=quick) == ["power(1.5):mine", "centre_prior:mine"]
        assert names(ig=IG, rise=fringe.RISE()) == OF_MAP
        assert names(**{"ig": IG, "power(1.5):ig": fringe.Power(IG)}) == ["centre_prior:ig"]  # a method has the name
        assert names(power=fringe.Power(IG)) == []
        cached = {
            one.label: one.cached for one in with_controls([Candidate("ig", IG), Candidate("rise", fringe.RISE())])
        }
        assert [label for label, is_cached in cached.items() if is_cached] == ["ig"]

    def test_they_take_no_pass_and_are_what_the_modifiers_make(self):
        found = {row.label: row for row in compare(build(), images(4), [("ig", IG)], ["insertion"]).rows}
        assert list(found) == ["ig", *CONTROLS, *OF_MAP]
        for label, method in zip(OF_MAP, (fringe.Power(IG), fringe.CentrePrior(IG)), strict=True):
            row = found[label]
            assert row.control
            assert (row.passes.forward, row.passes.vjp, row.passes.jvp) == (0, 0, 0)
            expected = fringe.attribute(build(), images(4), method=method, ids=["0", "1", "2", "3"])
            torch.testing.assert_close(row.maps, expected.values, rtol=1e-9, atol=1e-12)
        assert found["ig"].passes.forward == 4 * 7

    def test_one_alone_makes_the_map_itself(self):
        """As a task of a run does where another process made the method's maps."""
        context = EvaluationContext(Problem.of(Classifier(build()), images(2)))
        (control, _) = map_controls("ig", IG)
        with context.problem.model.session(torch.device("cpu")):
            row = Evaluator(context, [control], {}, None).row(control)
        assert context.problem.model.passes.forward == 2 + 2 * 7  # with those of the predictions
        assert row.passes.forward == 0  # those of the method are no cost of the control, whoever made the map
        expected = fringe.attribute(build(), images(2), method=fringe.Power(IG))
        torch.testing.assert_close(row.maps, expected.values, rtol=1e-9, atol=1e-12)

    def test_metrics_of_paths_and_of_further_maps_leave_them_out(self):
        metrics = ["insertion", "completeness_residual", "max_sensitivity"]
        found = {row.label: row for row in compare(build(), images(2), [("ig", IG)], metrics).rows}
        for label in OF_MAP:
            scores = found[label].scores
            assert bool(scores["insertion"].values.isfinite().all())
            assert all(bool(scores[name].values.isnan().all()) for name in metrics[1:])
        assert bool(found["ig"].scores["max_sensitivity"].values.isfinite().all())

    def test_inputs_without_a_centre_have_no_centre_prior(self):
        model = torch.nn.Linear(6, 3).double().eval()
        rows = compare(model, normal(3, 6), [("ig", IG)], ["insertion:zero"]).rows
        assert [row.label for row in rows if ":" in row.label] == ["power(1.5):ig"]

    def test_they_concern_the_method_of_their_name_alone(self):
        """The control of ig's map reaches it; that of the other method is left out, although it is far ahead."""
        base = np.linspace(0.1, 0.4, 12)
        scores = {"ig": base + 0.5, "other": base + 0.4, "edge": base, "power(1.5):ig": base + 0.6}
        tests = compare_with_controls(scores, ["edge", "power(1.5):ig"], "higher", "mean", 0)
        assert (tests["ig"].control, tests["other"].control) == ("power(1.5):ig", "edge")
        named, words = {(method, ""): column for method, column in scores.items()}, {"": ("higher", "mean")}
        found = ScoreTable(named, ["edge", "power(1.5):ig"], words).cells
        better = {method: one.test and one.test.better for (method, _), one in found.items()}
        assert better == {"ig": False, "other": True, "edge": None, "power(1.5):ig": None}
        nested = {"smooth(3):ig": base, "power(1.5):smooth(3):ig": base + 1}
        assert compare_with_controls(nested, ["power(1.5):smooth(3):ig"], "higher", "mean", 0)["smooth(3):ig"].p == 1

    def test_a_summary_has_the_estimate_of_each_metric_with_its_own_groups(self):
        rng = np.random.default_rng(4)
        scores = {(method, metric): rng.normal(size=12) for method in ("ig", "edge") for metric in ("a", "b", "c")}
        words = {"a": ("higher", "mean"), "b": ("lower", "median"), "c": ("higher", "mean")}
        pairs, nets = [f"{i // 2}" for i in range(12)], [f"n{i % 3}" for i in range(12)]
        groups = {"b": {"clusters": pairs}, "c": {"clusters": pairs, "networks": nets}}
        found = ScoreTable(scores, ["edge"], words, 3, groups).cells
        assert list(found) == list(scores)
        for key, column in scores.items():
            alone = estimate(column, 3, words[key[1]][1], **groups.get(key[1], {}))
            together = dataclasses.astuple(found[key].estimate)
            assert together[:-1] == pytest.approx(dataclasses.astuple(alone)[:-1], rel=1e-12)
        tests = {metric: found["ig", metric].test for metric in words}
        assert [test.adjusted for test in tests.values()] == holm([test.p for test in tests.values()])

    def test_a_score_of_the_ranking_is_not_marked_for_a_sharper_map(self):
        """Which has the same one: of the scores of most images nothing moves, so it is no rival."""
        base, edge = np.linspace(0.5, 0.8, 12), np.linspace(0.1, 0.4, 12)
        same = base.copy()
        same[0] += 0.3  # equal entries in another order
        for sharper in (base, same):
            scores = {"ig": base, "edge": edge, "power(1.5):ig": sharper}
            found = compare_with_controls(scores, ["edge", "power(1.5):ig"], "higher", "mean", 0)["ig"]
            assert (found.control, found.p < 0.05) == ("edge", True)
        table = compare(build(), images(8), [("ig", IG)], ["insertion"])
        rows = {row.label: row.scores["insertion"].values for row in table.rows}
        torch.testing.assert_close(rows["ig"], rows["power(1.5):ig"], rtol=0, atol=1e-9)

    def test_a_score_that_such_a_control_reaches_is_marked(self):
        """Sparseness rises with sharpness alone: the mark says that the method gained nothing over that."""
        found = compare(build(), images(8), [("ig", IG)], ["sparseness"])
        table = {entry["method"]: entry for entry in found.tidy_scores.entries()}
        assert table["ig"]["mean"] < table["power(1.5):ig"]["mean"]
        assert table["ig"]["better_than_controls"] is False
        blind = [row for row in tidy(found) if ":" not in row["method"]]
        entries = [entry for entry in TidyScores(blind, found.metrics).entries() if entry["control"]]
        assert max(entry["mean"] for entry in entries) < table["power(1.5):ig"]["mean"]
        assert get_metric("sparseness").direction == "higher"
