"""Comparisons: every number is the one that methods and metrics give by themselves."""

import json

import pytest
import torch
from compare_networks import Breaking, Noisy, Picky, Refusing
from torch import nn
from torch.utils.checkpoint import checkpoint

import fringe
from fringe import FRInGe, InputError, InputSpace, IntegratedGradients, NotDifferentiableError
from fringe._numbers.rng import KeyedGenerator
from fringe.bench.experiments import ExperimentSpec, run_experiment
from fringe.errors import TransientError
from fringe.evaluation import CONTROLS, TidyScores, compare, tidy
from fringe.metrics import Insertion, MaxSensitivity, Scores, Sparseness, evaluate
from fringe.models import load_model
from toys import TanhMLP, context_of, normal

QUICK = FRInGe(steps=3)
METRICS = ["insertion", "mas_deletion", "infidelity", "sparseness", "completeness_residual"]
IDS = ["a", "b", "c", "d"]
MODEL, X = TanhMLP(162), normal(4, 2, 9, 9)


OF_MAP = ("power(1.5):fringe", "centre_prior:fringe")


def by_label(found):
    return {row.label: row for row in found.rows}


def test_scores_are_those_of_evaluate_on_the_maps_of_attribute():
    found = compare(MODEL, X, [QUICK, "ig", ("black", IntegratedGradients(baseline="black"))], METRICS, ids=IDS)
    assert [row.label for row in found.rows] == ["fringe", "ig", "black", *CONTROLS, "diffusion", *OF_MAP]
    assert torch.equal(found.target, MODEL(X).argmax(1))
    for label, method in (("fringe", QUICK), ("ig", "ig"), ("black", IntegratedGradients(baseline="black"))):
        row, alone = by_label(found)[label], fringe.attribute(MODEL, X, method=method, ids=IDS)
        assert torch.equal(row.maps, alone.values)
        assert row.settings == alone.settings
        assert row.faults == ("",) * 4
        expected = evaluate(context_of(MODEL, X, ids=IDS), alone, METRICS)
        for metric in METRICS:
            assert torch.equal(row.scores[metric].values, expected[metric].values)
    for name, control in CONTROLS.items():
        maps = control(context_of(MODEL, X, ids=IDS).problem)
        row = by_label(found)[name]
        assert row.control
        assert torch.equal(row.maps, maps)
        expected = evaluate(context_of(MODEL, X, ids=IDS), maps, ["insertion", "sparseness"])
        for metric, scores in expected.items():
            assert torch.equal(row.scores[metric].values, scores.values)


def test_targets_space_and_seed_reach_every_method():
    space = InputSpace(low=-3.0, high=3.0)
    black, targets = IntegratedGradients(baseline="black"), [0, 1, 2, 3]
    found = compare(MODEL, X, [black, Noisy()], ["infidelity"], target=targets, space=space, ids=IDS, seed=5)
    alone = fringe.attribute(MODEL, X, method=black, target=targets, space=space, ids=IDS, seed=5)
    assert torch.equal(by_label(found)["ig"].maps, alone.values)
    expected = evaluate(context_of(MODEL, X, targets, ids=IDS, seed=5), alone, ["infidelity"])["infidelity"].values
    assert torch.equal(by_label(found)["ig"].scores["infidelity"].values, expected)
    assert torch.equal(by_label(found)["noisy"].maps[1], KeyedGenerator(5).normal("noisy b", X[0]))
    assert found.seed == 5


def test_the_space_of_several_tensors_reaches_every_method():
    network = TanhMLP(27)

    def model(pair, one):
        return network(torch.cat([pair, one], 1))

    inputs = {"pair": normal(4, 2, 9), "one": normal(4, 1, 9, seed=3)}
    references = {"pair": normal(6, 2, 9, seed=4).numpy(), "one": normal(6, 1, 9, seed=5)}
    space = InputSpace({"pair": -3.0, "one": -2.0}, {"pair": 3.0, "one": 2.0}, references)
    for method in ("expected_gradients", "agi", IntegratedGradients(baseline="black")):
        found = compare(model, inputs, [method], ["sparseness"], space=space, ids=IDS, controls=False).rows[0]
        alone = fringe.attribute(model, inputs, method=method, space=space, ids=IDS)
        assert torch.equal(found.maps, alone.values)


def test_max_sensitivity_asks_the_method_for_maps_of_moved_inputs_with_the_target_and_noise_of_the_image():
    metric = MaxSensitivity(samples=3)
    found = compare(MODEL, X, ["ig", Noisy()], [metric], ids=IDS, target=2)
    alone = fringe.attribute(MODEL, X, method="ig", ids=IDS, target=2)

    def explain(problem):
        return fringe.attribute(MODEL, problem.inputs, method="ig", target=2, ids=problem.ids).values

    expected = evaluate(context_of(MODEL, X, 2, ids=IDS), alone, [metric], explain)["max_sensitivity"].values
    torch.testing.assert_close(by_label(found)["ig"].scores["max_sensitivity"].values, expected, rtol=1e-12, atol=0)
    for label in ("noisy", "random", "uniform", "zero"):  # the same map whatever the input
        assert by_label(found)[label].scores["max_sensitivity"].values.tolist() == [0.0] * 4
    assert by_label(found)["edge"].scores["max_sensitivity"].values.min() > 0


def test_a_reference_for_each_image_is_known_when_inputs_are_moved():
    reference = tuple(tuple(row) for row in torch.eye(4).add(0.5).div(3).tolist())
    method = FRInGe(steps=2, reference=reference)
    found = compare(MODEL, X, [method], [MaxSensitivity(samples=1)], controls=False)
    assert found.rows[0].error is None
    assert found.rows[0].scores["max_sensitivity"].values.isfinite().all()


def test_a_method_that_refuses_is_a_row_with_its_error_and_the_others_go_on():
    found = compare(MODEL, X, [Refusing(), "ig"], METRICS, ids=IDS)
    refusing, ig = found.rows[:2]
    assert refusing.errors == ("refusing: no reference images",) * 4
    assert (refusing.maps, refusing.attribution, refusing.faults) == (None, None, ("failed",) * 4)
    assert all(refusing.scores[metric].values.isnan().all() for metric in METRICS)
    alone = compare(MODEL, X, ["ig"], METRICS, ids=IDS, controls=False).rows[0]
    assert all(torch.equal(ig.scores[m].values, alone.scores[m].values) for m in METRICS)


def test_a_metric_that_does_not_fit_is_a_column_of_reasons_and_the_others_stand():
    table = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).eval()
    found = compare(model, table, ["ig"], ["insertion", "sparseness", "road"], controls=False)
    alone = compare(model, table, ["ig"], ["sparseness"], controls=False)
    scores = found.rows[0].scores
    assert torch.equal(scores["sparseness"].values, alone.rows[0].scores["sparseness"].values)
    assert bool(scores["road"].values.isnan().all())
    reason = "metric road: imputation needs neighbours, and inputs of shape (3, 6) have none"
    assert scores["road"].refusals == (reason,) * 3
    flags = {row["metric"]: row["flags"] for row in tidy(found)}
    assert flags == {"insertion": ["metric_refused"], "sparseness": [], "road": ["metric_refused"]}
    assert (found.rows[0].errors, found.rows[0].faults) == ((), ("",) * 3)
    for text in (repr(found), found._repr_html_()):
        assert text.count(reason) == 1
        assert "metric insertion: the blur " in text


def test_a_metric_that_needs_what_is_missing_takes_nothing_from_the_others():
    found = compare(MODEL, X, ["ig", Refusing()], ["mass_inside", "sparseness"], ids=IDS, controls=False)
    assert found.rows[0].scores["sparseness"].values.isfinite().all()
    assert found.reasons() == [
        "refusing: refusing: no reference images",
        "metric mass_inside: it needs images of a scene, of which it is known what the model uses",
    ]


class Choosy(Sparseness):
    """Refuses image b."""

    name = "choosy"

    def score(self, maps):
        if "b" in maps.context.problem.keys:
            raise InputError("does not like b")
        found = super().score(maps)
        return Scores(found.values, {"odd": torch.ones(len(found.values), dtype=torch.bool)}, found.details)


def test_an_image_that_a_metric_refuses_costs_the_others_no_score():
    found = compare(MODEL, X, ["ig"], [Choosy(), "insertion"], ids=IDS, controls=False)
    usual = compare(MODEL, X, ["ig"], ["sparseness", "insertion"], ids=IDS, controls=False).rows[0].scores
    scores = found.rows[0].scores
    torch.testing.assert_close(scores["insertion"].values, usual["insertion"].values, rtol=1e-9, atol=1e-12)
    assert scores["choosy"].refusals == ("", "metric choosy: does not like b", "", "")
    torch.testing.assert_close(scores["choosy"].values[[0, 2, 3]], usual["sparseness"].values[[0, 2, 3]])
    assert scores["choosy"].values.isnan().tolist() == scores["choosy"].details["spatial"].isnan().tolist()
    assert scores["choosy"].flags["odd"].tolist() == [True, False, True, True]
    assert {row["image"]: row["flags"] for row in tidy(found) if row["metric"] == "choosy"} == {
        **{image: ["odd"] for image in "acd"},
        "b": ["metric_refused"],
    }
    half = compare(MODEL, X, [Picky()], [Choosy()], ids=["a", "bad-b", "b", "d"], controls=False).rows[0]
    assert half.scores["choosy"].refusals == ("", "", "metric choosy: does not like b", "")
    assert half.scores["choosy"].values.isfinite().tolist() == [True, False, False, True]
    none = compare(MODEL, X[1:2], ["ig"], [Choosy()], ids=["b"], controls=False).rows[0].scores["choosy"]
    assert (none.values.isnan().tolist(), none.refusals) == ([True], ("metric choosy: does not like b",))


def test_what_may_pass_is_no_refusal_of_a_metric(monkeypatch):
    def busy(self, maps):
        raise TransientError("the disk is away")

    monkeypatch.setattr(Sparseness, "score", busy)
    row = compare(MODEL, X, ["ig"], ["sparseness"], ids=IDS, controls=False).rows[0]
    assert (row.transient, row.scores["sparseness"].refusals) == (True, ())


def test_an_image_that_a_method_refuses_fails_alone():
    ids, good, told = ["a", "bad-b", "c", "bad-d"], [0, 2], []
    found = compare(MODEL, X, [Picky(), "ig"], METRICS, ids=ids, progress=lambda *done: told.append(done))
    row = found.rows[0]
    assert row.errors == ("", "picky: does not like bad-b", "", "picky: does not like bad-d")
    assert (row.error, row.faults) == (row.errors[1], ("", "failed", "", "failed"))
    alone = compare(MODEL, X[good], [Picky()], METRICS, ids=["a", "c"], controls=False).rows[0]
    torch.testing.assert_close(row.maps[good], alone.maps, rtol=1e-12, atol=1e-12)
    assert row.maps[[1, 3]].isnan().all()
    assert row.passes == alone.passes
    for metric in METRICS:
        one, other = row.scores[metric], alone.scores[metric]
        torch.testing.assert_close(one.values[good], other.values, rtol=1e-9, atol=1e-12, equal_nan=True)
        assert one.values[[1, 3]].isnan().all()
        for kind in ("flags", "details", "curves"):
            mine, theirs = getattr(one, kind), getattr(other, kind)
            assert mine.keys() == theirs.keys()
            for name, column in mine.items():
                torch.testing.assert_close(column[good], theirs[name], rtol=1e-9, atol=1e-12, equal_nan=True)
    assert found.rows[1].errors == ()
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    flags = {r["image"]: r["flags"] for r in tidy(found) if (r["method"], r["metric"]) == ("picky", "sparseness")}
    assert flags == {"a": [], "bad-b": ["failed"], "c": [], "bad-d": ["failed"]}


def test_broken_maps_are_counted_and_the_images_beside_them_keep_their_scores():
    ids = ["a", "nan-b", "c", "nan-d"]
    found = compare(MODEL, X, [Breaking()], ["insertion", "sparseness"], ids=ids, controls=False)
    (row,) = found.rows
    assert row.faults == ("", "diverged", "", "diverged")
    sound = fringe.attribute(MODEL, X[[0, 2]], method=Breaking(), ids=["a", "c"])
    expected = evaluate(context_of(MODEL, X[[0, 2]], ids=["a", "c"]), sound, ["insertion", "sparseness"])
    for metric, scores in expected.items():
        assert row.scores[metric].values[[1, 3]].isnan().all()
        torch.testing.assert_close(row.scores[metric].values[[0, 2]], scores.values, rtol=1e-12, atol=0)
        assert row.scores[metric].flags.keys() == scores.flags.keys()
        assert all(len(column) == 4 for column in row.scores[metric].details.values())
    rows = tidy(found)
    assert [(r["image"], r["score"] is None, r["flags"]) for r in rows[4:]] == [
        ("a", False, []),
        ("nan-b", True, ["diverged"]),
        ("c", False, []),
        ("nan-d", True, ["diverged"]),
    ]
    entry = TidyScores(rows, found.metrics).entries()[1]
    assert (entry["n"], entry["images"], entry["flagged"], entry["flags"]) == (2, 4, 2, {"diverged": 2})
    assert entry["mean"] == pytest.approx(expected["sparseness"].values.mean().item(), rel=1e-12)


def test_tidy_rows_are_json_and_name_every_score():
    found = compare(MODEL, X, ["ig"], ["sparseness", "tracking_error_max"])
    rows = json.loads(json.dumps(tidy(found), allow_nan=False))
    assert len(rows) == 7 * 2 * 4
    assert rows[0] == {
        "method": "ig",
        "control": False,
        "metric": "sparseness",
        "image": "0",
        "score": float(found.rows[0].scores["sparseness"].values[0]),
        "flags": [],
    }
    undefined = [r for r in rows if r["method"] == "zero" and r["metric"] == "tracking_error_max"]
    assert [(r["score"], r["flags"]) for r in undefined] == [(None, ["undefined"])] * 4
    entry = next(
        e for e in TidyScores(rows, found.metrics).entries() if e["method"] == "zero" and e["metric"] == "sparseness"
    )
    assert (entry["control"], entry["mean"], entry["flags"]) == (True, 0.0, {"zero_map": 4})


def test_costs_are_those_of_the_maps_alone():
    found = compare(MODEL, X, [IntegratedGradients(steps=7)], ["insertion"], keep_maps=False)
    ig, zero = by_label(found)["ig"], by_label(found)["zero"]
    assert (ig.passes.forward, ig.passes.vjp, ig.passes.jvp) == (4 * 7 + 4, 4 * 7, 0)
    assert (zero.passes.forward, zero.passes.vjp) == (0, 0)
    assert ig.seconds > 0
    assert (ig.maps, ig.attribution) == (None, None)


def test_progress_runs_from_nothing_to_every_map():
    calls = []
    compare(MODEL, X, ["ig", QUICK], ["sparseness"], controls=False, progress=lambda *call: calls.append(call))
    done = [call[1] for call in calls]
    assert done == sorted(done)
    assert (done[0], done[-1], {call[2] for call in calls}) == (0, 8, {8})
    assert [call[0] for call in calls if call[1] in (4, 8)][-1] == "fringe: scores"
    assert any(0 < d < 4 for d in done)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["igg"], ["insertion"]), "did you mean 'ig'"),
        ((["ig"], ["insertions"]), "did you mean 'insertion'"),
        (("ig", ["insertion"]), r"expected a list such as \['ig'\]"),
        ((["ig"], "insertion"), r"expected a list such as \['insertion'\]"),
        ((IntegratedGradients(), ["insertion"]), r"expected a list such as \[IntegratedGradients\("),
        (
            ([normal], ["insertion"]),
            "method: got <function normal .*, expected a name .*; fringe.attribution.read_target",
        ),
        ((["ig"], Insertion()), r"expected a list such as \[Insertion\("),
        ((["ig"], [5]), "metric: got 5, expected a name or a configured metric"),
        ((["ig"], {"mine": 5}), "metric: got 5, expected a name or a configured metric"),
        ((["ig", IntegratedGradients(steps=9)], ["insertion"]), "ig given twice; tell them apart with pairs"),
        (({"edge": "ig"}, ["insertion"]), "methods: edge given twice"),
        ((["ig"], ["insertion", Insertion(steps=3)]), "metrics: insertion given twice"),
        (({"ig", "agi"}, ["insertion"]), "methods: got .*, expected a list: a set has no order"),
        (([], ["insertion"]), "methods: none given"),
        ((["ig"], []), "metrics: none given"),
    ],
)
def test_what_cannot_be_compared_is_said_before_anything_is_computed(arguments, message):
    with pytest.raises(InputError, match=message):
        compare(MODEL, X, *arguments)


def test_bad_inputs_are_named():
    broken = X.clone()
    broken[2, 0, 0, 0] = torch.nan
    for inputs, more, message in (
        (broken, {}, r"images \[2\] hold NaN"),
        (X[0, 0, 0], {}, r"got shape \(9,\)"),
        (X[:0], {}, "at least one image"),
        (X.tolist(), {}, "got list"),
        (X, {"ids": ["a"]}, "ids: got 1 for 4 images"),
        (X, {"target": 9}, "class 9 does not exist"),
    ):
        with pytest.raises(fringe.FringeError, match=message):
            compare(MODEL, inputs, ["ig"], ["sparseness"], **more)


def test_methods_and_metrics_are_known_by_class_and_title_and_scored_under_their_names():
    found = compare(MODEL, X[:1], [IntegratedGradients], ["Sparseness", "MAS Insertion"], controls=False)
    expected = compare(MODEL, X[:1], ["ig"], {"sparseness": "sparseness", "mas_insertion": "mas_insertion"})
    assert [row.label for row in found.rows] == ["ig"]
    for name in ("sparseness", "mas_insertion"):
        assert torch.equal(found.rows[0].scores[name].values, expected.rows[0].scores[name].values)


class Reentrant(nn.Module):
    """A network in a checkpoint that gives gradients and no Jacobian-vector products."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        return checkpoint(self.network, x, use_reentrant=True)


@pytest.mark.filterwarnings("ignore:None of the inputs", "ignore:the model's Jacobian-vector products")
def test_the_control_that_needs_jvps_is_refused_where_fringe_does_without_them():
    """On a model whose products are wrong, and not missing, its steps would have a wrong length in silence."""
    model = Reentrant(MODEL).eval()
    with pytest.raises(NotDifferentiableError, match=r"the control diffusion \(controls=False\)"):
        compare(model, X, ["fringe"], ["sparseness"])
    rows = compare(model, X, ["fringe"], ["sparseness"], controls=False).rows
    assert torch.equal(rows[0].maps, fringe.attribute(model, X).values)
    assert rows[0].passes.jvp == 0
    loaded = load_model("embedded:digits")
    source = {
        "model": {"net": Reentrant(loaded.module).eval()},
        "preprocessing": "resize=32,channels=1,mean=0.3,std=0.35",
    }
    spec = ExperimentSpec(**source, data="embedded:digits", methods="fringe", metrics="sparseness", n=1)
    assert set(run_experiment(spec).frame["status"]) == {"failed"}
    alone = run_experiment(spec.model_copy(update={"controls": False})).frame
    assert set(alone["status"]) == {"ok"}
    assert set(alone["jvp"]) == {0.0}
