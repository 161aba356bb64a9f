"""What holds of every metric: scores belong to images, passes are counted and shared, inputs come back untouched."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from metrics_toys import additive, doubtful

import fringe
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
)
from toys import Affine, TanhMLP, context_of, normal

X, MAPS = normal(5, 2, 7, 6), normal(5, 2, 7, 6, seed=2)
EVERY = sorted(name for name, kind in METRICS.items() if not (kind.requires_truth or kind.compares_models))
PERTURBATION = ["insertion", "deletion", "mas_insertion", "mas_deletion"]
SETTINGS_OF_INFILL = [*PERTURBATION, "signed_insertion", "cpd", "cpp", "saco"]
SPACE = ["road", "pic"]
"""Those that need neighbours."""
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


def test_a_benchmark_computes_the_papers_metrics_unless_it_is_asked_for_others():
    assert [name for name in EVERY if METRICS[name].by_default and not METRICS[name].requires_truth] == [
        "completeness_residual",
        "deletion",
        "endpoint_kl",
        "infidelity",
        "insertion",
        "mas_deletion",
        "mas_insertion",
        "max_sensitivity",
        "sparseness",
        "tracking_error_max",
        "tracking_error_mean",
    ]


@pytest.mark.parametrize("name", EVERY)
def test_a_metric_says_what_it_is(name):
    cls = METRICS[name]
    assert issubclass(cls, Metric)
    assert cls.direction in ("higher", "lower", "none")
    assert cls.title
    assert cls.space
    assert cls.source
    assert cls.preset("paper") == cls()
    assert cls(**{key: value for key, value in cls().record().items() if key != "metric"}) == cls()


def test_batch_of_n_is_n_batches_of_one():
    model = TanhMLP(84)
    targets = doubtful(model, X)
    together = scored(context_of(model, X, targets), MAPS)
    for i in range(len(X)):
        row = slice(i, i + 1)
        same(scored(context_of(model, X[row], targets[row]), MAPS[row]), together, row)


def test_order_changes_nothing():
    model, order = TanhMLP(84), [3, 0, 4, 1, 2]
    expected = scored(context_of(model, X), MAPS)
    same(scored(context_of(model, X[order]), MAPS[order]), expected, order)


@pytest.mark.parametrize("size", [1, 3, 16])
def test_batch_size_changes_nothing(size):
    model = TanhMLP(84)
    same(scored(context_of(model, X, batch_size=size), MAPS), scored(context_of(model, X, batch_size=64), MAPS))


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


def test_memory_does_not_grow_with_steps_or_draws():
    limited = Limited(8)
    context = context_of(limited, X, batch_size=8)
    evaluate(context, MAPS, [Insertion(steps=42), Infidelity(samples=100)])
    assert limited.largest == 8


def passes(context: EvaluationContext, metrics, values=MAPS) -> float:
    """Forward passes an image."""
    before = context.problem.model.passes.forward
    scored(context, values, metrics)
    return (context.problem.model.passes.forward - before) / len(X)


N = 7


def test_curves_share_their_ends_and_themselves():
    assert passes(context_of(TanhMLP(84), X), ["insertion"]) == N - 1 + 1
    assert passes(context_of(TanhMLP(84), X), ["insertion", "deletion"]) == 2 * (N - 1) + 1
    context = context_of(TanhMLP(84), X)
    assert passes(context, ["insertion", "insertion:raw", "deletion", "deletion:raw"]) == 2 * (N - 1) + 1
    assert passes(context, ["insertion", "deletion"], -MAPS + 1) == 2 * (N - 1)  # another method, known infill
    shared = Insertion(reference="gaussian", size=15, sigma=3.0, padding="reflect")
    assert passes(context_of(TanhMLP(84), X), ["mas_insertion", shared, "mas_insertion:text"]) == N - 1 + 1
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


#: Forward passes of a map of these (2, 7, 6) images, and those that all methods share.
COSTS = {
    **{"single_deletion": (0, 16), "saco": (10, 0), "road": (14, 0), "pic": (13, 1), "diffid": (18, 0)},
    **{"cpd": (8, 0), "cpp": (8, 0), "signed_insertion": (2 * (N - 1), 1)},
}


@pytest.mark.parametrize("name", COSTS)
def test_interventions_cost_what_they_say(name):
    context, (each, shared) = context_of(TanhMLP(84), X), COSTS[name]
    assert passes(context, [name]) == each + shared
    assert passes(context, [name], MAPS.flip(-1)) == each


@pytest.mark.parametrize("name", PRESETS)
def test_single_precision_agrees_with_double(name):
    x, maps = X.float(), MAPS.float()
    single, double = context_of(TanhMLP(84).float(), x, ids="abcde"), context_of(TanhMLP(84), x.double(), ids="abcde")
    result = evaluate(single, Reported(maps), [name], shifted)[name].values
    expected = evaluate(double, Reported(maps.double()), [name], shifted)[name].values
    assert result.dtype == torch.float64
    tolerance = 1e-2 if "sensitivity" in name else 1e-4
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=1e-5, equal_nan=True)


def test_nothing_of_the_caller_is_touched():
    model, x, maps = TanhMLP(84), X.clone().requires_grad_(), MAPS.clone().requires_grad_()
    context, state = context_of(model, x.detach()), torch.get_rng_state()
    result = scored(context, maps)
    assert torch.get_rng_state().equal(state)
    assert x.detach().equal(X)
    assert maps.detach().equal(MAPS)
    assert maps.grad is None
    assert not any(scores.values.requires_grad for scores in result.values())


AS_ROWS = {
    **{name: METRICS[name](padding="reflect") for name in (*PERTURBATION, "signed_insertion")},
    **{name: METRICS[name]() for name in EVERY if name not in (*PERTURBATION, "signed_insertion")},
}
"""Metrics of which a series is scored as an image of one row: a blur that counts zeros beyond the edge does not."""


def test_a_series_is_scored_as_an_image_of_one_row():
    x, maps = normal(3, 2, 30), normal(3, 2, 30, seed=2)
    steps = {name: replace(one, steps=12) if hasattr(one, "steps") else one for name, one in AS_ROWS.items()}
    ids = ("a", "b", "c")
    series, image = (
        evaluate(context_of(TanhMLP(60), x.view(shape), ids=ids), Reported(maps.view(shape)), steps, shifted)
        for shape in ((3, 2, 30), (3, 2, 1, 30))
    )
    same(series, image)


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


@pytest.mark.parametrize("shape", [(1, 12), (2, 2, 3, 2)])
def test_signed_insertion_of_a_linear_logit_is_the_sum_of_the_evidence(shape):
    model, x = Affine(torch.Size(shape).numel()), normal(1, *shape)
    context = context_of(model, x)
    maps = model.weight[context.problem.target].view_as(x) * x
    one = METRICS["signed_insertion"](reference="zeros", steps=12)
    found = evaluate(context, maps, {"signed": one})["signed"]
    pixels = maps.sum(1).flatten().sort(descending=True).values
    bias = context.problem.score(model(torch.zeros_like(x)))
    for name, order in (("positive_first", pixels), ("negative_first", pixels.flip(0))):
        curve = torch.cat([bias, bias + order.cumsum(0)])
        torch.testing.assert_close(found.curves[name][0], curve, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shape", [(6,), (3, 10), (2, 4, 3, 5)])
def test_other_inputs_than_images(shape):
    size = torch.Size(shape).numel()
    x, maps = normal(2, *shape), normal(2, *shape, seed=2)
    settings = {"reference": "mean"}
    chosen = [METRICS[name](**settings) if name in SETTINGS_OF_INFILL else name for name in EVERY if name not in SPACE]
    result = evaluate(context_of(TanhMLP(size), x), Reported(maps), chosen, shifted)
    assert all(bool(torch.isfinite(result[name].values).all()) for name in SETTINGS_OF_INFILL)
    steps = shape[0] if len(shape) == 1 else shape[1]
    for name in PERTURBATION:
        assert all(curve.shape == (2, steps + 1) for curve in result[name].curves.values())
        assert bool(torch.isfinite(result[name].values).all())
    order = maps.abs().sort(1, descending=True).indices[0] if len(shape) == 1 else None
    if order is not None:  # one feature after the other
        image, c = x.mean(1, keepdim=True).expand(2, 6)[0].clone(), []
        target = int(TanhMLP(6)(x)[0].argmax())
        for k in (None, *order.tolist()):
            image[slice(0) if k is None else k] = x[0][slice(0) if k is None else k]
            c.append(float(TanhMLP(6)(image[None]).softmax(1)[0, target]))
        assert result["insertion"].curves["raw"][0].tolist() == pytest.approx(c, rel=1e-12)


WEIGHT = torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0, 0.5, 0.3, 0.1, 0.05], dtype=torch.float64).view(1, 1, 3, 3)
TRUTH = WEIGHT / WEIGHT.sum()


@pytest.mark.parametrize("name", [*PERTURBATION, "infidelity"])
def test_the_truth_beats_chance_and_chance_its_inverse(name):
    """A probability that is the sum of known weights: the weights, maps at random, and the weights back to front."""
    metric = METRICS[name](reference="zeros") if name in PERTURBATION else Infidelity()
    context = context_of(additive(TRUTH), torch.ones(1, 1, 3, 3, dtype=torch.float64), 1, score="probability")
    inverted = -TRUTH if name == "infidelity" else TRUTH.flip((2, 3))
    truth, wrong = (float(evaluate(context, a, [metric])[name].values) for a in (TRUTH, inverted))
    draws = [normal(1, 1, 3, 3, seed=s) * TRUTH.norm() / 3 for s in range(30)]
    random = [float(evaluate(context, a, [metric])[name].values) for a in draws]
    chance = sum(random) / len(random)
    if metric.direction == "higher":
        assert truth > max(random)
        assert chance > wrong
    else:
        assert truth < min(random)
        assert chance < wrong


def test_a_stable_method_beats_a_wild_one():
    context = context_of(Affine(84), X)

    def at(speed):
        def explain(problem):
            return (speed * problem.inputs).sin()

        return evaluate(context, explain(context.problem), ["max_sensitivity"], explain)["max_sensitivity"].values

    assert bool((at(0.1) < at(10)).all())


@pytest.mark.parametrize(
    ("maps", "metrics", "message"),
    [
        (MAPS[:2], ["insertion"], r"maps: got shape \(2, 2, 7, 6\), expected \(5, 2, 7, 6\)"),
        (MAPS.log(), ["insertion"], r"maps: those of images \[0, 1, 2, 3, 4\] hold NaN or infinity"),
        (MAPS, ["insertions"], "metric: got 'insertions'; did you mean 'insertion'"),
        (MAPS, ["irof"], r"metric: got 'irof'; did you mean 'quantus:irof'\?"),
        (MAPS, ["MAS Insert"], "metric: got 'MAS Insert'; did you mean 'mas_insertion'"),
        (MAPS, ["insertion:walker"], r"metric: insertion has no 'walker'.* Known: paper, raw, fast, zero, rise"),
        (MAPS, ["insertion", Insertion(steps=3)], "metrics: insertion given twice"),
    ],
)
def test_what_cannot_be_scored_is_refused(maps, metrics, message):
    with pytest.raises(InputError, match=message):
        evaluate(context_of(TanhMLP(84), X), maps, metrics)


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


@pytest.mark.shared
@pytest.mark.usefixtures("shared")
def test_on_a_trained_network_gradients_beat_chance():
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    import shared_models

    model, x = shared_models.model("mobilenet_v1_025"), shared_models.images("mobilenet_v1_025", 4)
    context, chosen = context_of(model, x), [METRICS[name](steps=16) for name in PERTURBATION]
    good = fringe.attribute(model, x, method=fringe.IntegratedGradients(steps=10))
    ours, theirs = evaluate(context, good, chosen), evaluate(context, normal(*x.shape).float(), chosen)
    for metric in chosen:
        gain = (ours[metric.name].values - theirs[metric.name].values).mean()
        assert (gain > 0) == (metric.direction == "higher"), metric.name


STEPPED = (*PERTURBATION, "signed_insertion")
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
