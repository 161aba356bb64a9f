"""What holds of every metric: scores belong to images, passes are counted and shared, inputs come back untouched."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from metrics_toys import additive, doubtful

from fringe import InputError
from fringe.metrics import (
    METRICS,
    EvaluationContext,
    Infidelity,
    Insertion,
    Metric,
    Scores,
    SingleDeletion,
    evaluate,
    get_metric,
    with_references,
)
from toys import TanhMLP, context_of, normal

X, MAPS = normal(5, 2, 7, 6), normal(5, 2, 7, 6, seed=2)
EVERY = sorted(name for name, kind in METRICS.items() if not (kind.requires_truth or kind.compares_models))
PERTURBATION = ["insertion", "deletion", "mas_insertion", "mas_deletion"]
PRESETS = [f"{name}:{preset}" for name in EVERY for preset in METRICS[name].presets]


class Reported:
    """Maps with diagnostics that differ between images."""

    def __init__(self, values):
        self.values = values
        names = ("endpoint_kl", "tracking_error_mean", "tracking_error_max")
        self.diagnostics = {name: values.flatten(1).sum(1).square() for name in names}
        self.completeness_residual = values.flatten(1)[:, 0].abs()


def shifted(problem):
    return (2 * problem.inputs).sin()


def scored(context: EvaluationContext, values, metrics=EVERY):
    return evaluate(context, Reported(values), metrics, shifted)


def same(result, expected, rows=slice(None)):
    for name, scores in result.items():
        torch.testing.assert_close(
            scores.values, expected[name].values[rows], rtol=1e-10, atol=1e-12, equal_nan=True, msg=name
        )
        for kind in ("flags", "details", "curves"):
            for key, values in getattr(scores, kind).items():
                value = getattr(expected[name], kind)[key][rows]
                torch.testing.assert_close(values, value, rtol=1e-10, atol=1e-12, equal_nan=True, msg=f"{name} {key}")


def test_flags_details_and_curves_belong_to_the_image_as_scores_do():
    """The contract says so of the scores; also of a class that the reference shows better than the image."""
    model = TanhMLP(84)
    targets = doubtful(model, X)
    together = scored(context_of(model, X, targets), MAPS)
    for rows in ([4], [3, 0]):
        part = context_of(model, X[rows], [targets[i] for i in rows], batch_size=3)
        same(scored(part, MAPS[rows]), together, rows)


class Limited(torch.nn.Module):
    """Runs out of memory above ``limit`` images, and remembers the largest call."""

    def __init__(self, limit: int):
        super().__init__()
        self.model, self.limit, self.largest = TanhMLP(84), limit, 0
        self.eval()

    def forward(self, x):
        if len(x) > self.limit:
            raise torch.OutOfMemoryError("simulated")
        self.largest = max(self.largest, len(x))
        return self.model(x)


def test_the_end_of_memory_halves_the_batch():
    expected = scored(context_of(TanhMLP(84), X), MAPS)
    limited = Limited(64)
    context = context_of(limited, X, batch_size=64)
    limited.limit, limited.largest = 3, 0
    same(scored(context, MAPS), expected)
    assert limited.largest <= 3
    assert context.problem.model.batch_size.on(X.device) == 2


def passes(context: EvaluationContext, metrics, values=MAPS) -> float:
    """Forward passes an image."""
    before = context.problem.model.passes.forward
    scored(context, values, metrics)
    return (context.problem.model.passes.forward - before) / len(X)


N = 7


def test_curves_share_their_ends_and_themselves():
    assert passes(context_of(TanhMLP(84), X), ["insertion"]) == N - 1 + 1
    for metrics in (["insertion", "deletion"], ["insertion", "deletion", "srg"]):
        assert passes(context_of(TanhMLP(84), X), metrics) == 2 * (N - 1) + 1
    context = context_of(TanhMLP(84), X)
    assert passes(context, ["insertion", "insertion:raw", "deletion", "deletion:raw"]) == 2 * (N - 1) + 1
    assert passes(context, ["insertion", "deletion"], -MAPS + 1) == 2 * (N - 1)  # another method, known infill
    four = ["insertion", "deletion", "mas_insertion", "mas_deletion"]
    assert passes(context_of(TanhMLP(84), X), four) == 2 * (N - 1) + 1
    assert passes(context_of(TanhMLP(84), X), [*with_references(four)]) == 4 * (N - 1) + 2
    shared = Insertion(size=15, sigma=3.0)
    assert passes(context_of(TanhMLP(84), X), ["mas_insertion:paper", shared, "mas_insertion:text"]) == N - 1 + 1
    assert passes(context_of(TanhMLP(84), X), ["deletion:rise", "mas_deletion:walker2024"]) == N - 1 + 1
    assert passes(context_of(TanhMLP(84), X), [Insertion(steps=1)]) == 1


@pytest.mark.parametrize("other", [{"reduction": "abs_sum"}, {"steps": 3}, {"reference": "mean"}])
def test_metrics_that_ask_for_something_else_share_nothing(other):
    """The curve of a deletion, with a MAS deletion that differs from it in one setting."""
    plain = {"reference": "zeros", "reduction": "max", "steps": 6}
    both = [METRICS["deletion"](**plain), METRICS["mas_deletion"](**{**plain, **other})]
    together = scored(context_of(TanhMLP(84), X), MAPS, both)
    for metric in both:
        same(scored(context_of(TanhMLP(84), X), MAPS, [metric]), together)


def test_draws_are_shared_by_all_methods():
    context = context_of(TanhMLP(84), X)
    assert passes(context, ["infidelity", "infidelity:scale_free"]) == 50
    assert passes(context, ["infidelity"], 2 * MAPS) == 0
    assert passes(context, [Infidelity(samples=5)]) == 5
    assert passes(context, [Infidelity(sigma=0.5)]) == 50


def test_what_looks_at_the_maps_alone_costs_nothing():
    rest = [name for name in EVERY if METRICS[name].by_default and not METRICS[name].requires_truth]
    rest = [name for name in rest if name not in (*PERTURBATION, "infidelity", "max_sensitivity")]
    assert passes(context_of(TanhMLP(84), X), rest) == 0


@pytest.mark.parametrize("name", PRESETS)
def test_single_precision_agrees_with_double(name):
    x, maps = X.float(), MAPS.float()
    single, double = context_of(TanhMLP(84).float(), x, ids="abcde"), context_of(TanhMLP(84), x.double(), ids="abcde")
    result = evaluate(single, Reported(maps), [name], shifted)[name].values
    expected = evaluate(double, Reported(maps.double()), [name], shifted)[name].values
    assert result.dtype == torch.float64
    tolerance = 1e-2 if "sensitivity" in name else 1e-4
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=1e-5, equal_nan=True)


STEPPED = (*PERTURBATION, "signed_insertion", "srg")
AS_ROWS = {
    **{name: METRICS[name](padding="reflect") for name in STEPPED},
    **{name: METRICS[name]() for name in EVERY if name not in (*STEPPED, "occlusion_agreement")},
    "pic": METRICS["pic"](least=0.0),
}
"""Metrics of which a series is scored as an image of one row: a blur that counts zeros beyond the edge does not, and
the parts of a series are other ones than those of an image."""


def test_whole_numbers_are_scored_as_the_same_real_ones():
    """An absolute value does not exist for true, and of -128 not in 8 bits."""
    context, names = context_of(TanhMLP(), normal(2, 2, 8, 8)), ["insertion", "sparseness", "cpd"]
    whole = torch.arange(-128, 128).view(2, 2, 8, 8).to(torch.int8)
    for maps in (whole, whole > 0):
        found, expected = evaluate(context, maps, names), evaluate(context, maps.double(), names)
        assert all(torch.equal(found[name].values, expected[name].values) for name in names)


def test_a_series_is_scored_as_an_image_of_one_row():
    x, maps = normal(3, 2, 30), normal(3, 2, 30, seed=2)
    steps = {name: replace(one, steps=12) if hasattr(one, "steps") else one for name, one in AS_ROWS.items()}
    ids = ("a", "b", "c")
    series, image = (
        evaluate(context_of(TanhMLP(60), x.view(shape), ids=ids), Reported(maps.view(shape)), steps, shifted)
        for shape in ((3, 2, 30), (3, 2, 1, 30))
    )
    same(series, image)


def test_a_table_is_shown_feature_by_feature():
    model, x, maps = TanhMLP(6), normal(1, 6), normal(1, 6, seed=2)
    image, target, curve = x.mean(1, keepdim=True).expand(1, 6).clone(), int(model(x).argmax()), []
    for shown in ([], *maps.abs().argsort(1, descending=True).T.tolist()):
        image[:, shown] = x[:, shown]
        curve.append(float(model(image).softmax(1)[0, target]))
    found = evaluate(context_of(model, x), maps, [Insertion(reference="mean")])["insertion"]
    assert found.curves["raw"][0].tolist() == pytest.approx(curve, rel=1e-12)


#: Metrics that see no more of a map than its order, or its size up to a factor.
BY_ORDER = ("insertion", "deletion", "srg", "road", "cpd", "cpp", "diffid")
WITHOUT_SCALE = (*BY_ORDER, "mas_insertion", "mas_deletion", "infidelity:scale_free", "single_deletion", "saco")
WITHOUT_SCALE += ("signed_insertion", "sparseness")


@pytest.mark.parametrize("name", WITHOUT_SCALE)
def test_a_scale_changes_no_score_nor_does_what_keeps_the_order_if_that_is_all_that_counts(name):
    context = context_of(TanhMLP(84), X)
    (expected,) = scored(context, MAPS, [name]).values()
    others = [1e-20 * MAPS, 1e10 * MAPS, *([-MAPS, MAPS**3] if name in BY_ORDER else [])]
    for other in others:
        (found,) = scored(context, other, [name]).values()
        torch.testing.assert_close(found.values, expected.values, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["insertion", "deletion", "diffid", "cpd", "cpp", "signed_insertion", "srg"])
def test_maps_without_an_order_are_flagged(name):
    maps = torch.stack([torch.zeros_like(X[0]), torch.ones_like(X[0]), *MAPS[2:]])
    (found,) = scored(context_of(TanhMLP(84), X), maps, [name]).values()
    assert found.flags["zero_map"].tolist() == [True, False, False, False, False]
    assert found.flags["constant_map"].tolist() == [True, True, False, False, False]


@pytest.mark.parametrize("shape", [(1, 12), (1, 2, 3, 2)])
def test_the_curves_of_an_additive_model_are_sums_on_series_and_volumes(shape):
    """Of 12 entries of 1 the shares are w: after s steps the probability is .05 + .9 of the largest s shares."""
    weight = torch.arange(1.0, 13.0, dtype=torch.float64)
    weight = (weight / weight.sum())[torch.randperm(12, generator=torch.Generator().manual_seed(0))]
    x, weight = torch.ones(1, *shape, dtype=torch.float64), weight.view(1, *shape)
    context = context_of(additive(weight), x, 1)
    metrics = {name: METRICS[name](reference="zeros", steps=12) for name in ("insertion", "deletion")}
    found = evaluate(context, weight, {**metrics, "pic": METRICS["pic"](), "road": METRICS["road"]()})
    shares = torch.cat([torch.zeros(1), weight.flatten().sort(descending=True).values.cumsum(0)]).double()
    torch.testing.assert_close(found["insertion"].curves["raw"][0], 0.05 + 0.9 * shares, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found["deletion"].curves["raw"][0], 0.95 - 0.9 * shares, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (["insertions"], "metric: got 'insertions'; did you mean 'insertion'"),
        (["irof"], r"metric: got 'irof'; did you mean 'quantus:irof'\?"),
        (["MAS Insert"], "metric: got 'MAS Insert'; did you mean 'mas_insertion'"),
        (["insertion:walker"], r"metric: insertion has no 'walker'.* Known: paper, released, raw, fast, zero, rise"),
        (["insertion", Insertion(steps=3)], "metrics: insertion given twice"),
    ],
)
def test_what_cannot_be_scored_is_refused(metrics, message):
    with pytest.raises(InputError, match=message):
        evaluate(context_of(TanhMLP(84), X), MAPS, metrics)


@dataclass(frozen=True)
class Given(Metric):
    """Scores that somebody else's metric returns."""

    name: ClassVar[str] = "given"
    scores: Any = None

    def score(self, maps):
        return self.scores


SUM = MAPS.flatten(1).sum(1)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (SUM, "metric given: it returned Tensor, expected Scores"),
        (None, "metric given: it returned NoneType, expected Scores"),
        (Scores(SUM[:2]), r"metric given: it returned values \(2,\), expected a tensor \(5,\)"),
        (Scores(MAPS), r"it returned values \(5, 2, 7, 6\), expected a tensor \(5,\)"),
        (Scores([1.0] * 5), r"it returned values list, expected a tensor \(5,\)"),  # pyright: ignore[reportArgumentType]
        (Scores(SUM, flags={"odd": SUM[:1] > 0}), r"it returned odd \(1,\), expected a tensor \(5,\)"),
        (Scores(SUM, details={"more": SUM[:1]}), r"it returned more \(1,\), expected a tensor \(5,\)"),
        (Scores(SUM, curves={"curve": MAPS[:1, 0, 0]}), r"it returned curve \(1,\), expected a tensor \(5,\)"),
        (Scores(SUM, details={"a": SUM[:1]}, curves={"a": MAPS[:, 0, 0]}), r"it returned a \(1,\), expected a tensor"),
    ],
)
def test_what_a_metric_returns_has_a_number_for_each_map(scores, message):
    with pytest.raises(InputError, match=message):
        evaluate(context_of(TanhMLP(84), X), MAPS, [Given(scores)])


PLANNED = {
    **{name: get_metric(name) for name in ("saco", "road", "diffid", "single_deletion", "infidelity")},
    **{name: replace(get_metric(name), steps=12) for name in ("cpd", "cpp")},
    "random cells": SingleDeletion(cells=3, deleted_as="random"),
    **{f"{name} of {steps}": replace(get_metric(name), steps=steps) for name in STEPPED for steps in (5, 40)},
}


@pytest.mark.parametrize("metric", PLANNED.values(), ids=PLANNED)
def test_a_score_takes_the_passes_that_its_settings_say(metric):
    """But for one, of an end of a curve."""
    x = normal(1, 2, 8, 8)
    context = context_of(TanhMLP(128), x)
    before = context.problem.model.passes.forward
    evaluate(context, normal(1, 2, 8, 8, seed=2), {"it": metric})
    counted = context.problem.model.passes.forward - before
    assert abs(counted - metric.planned_passes) <= 1
