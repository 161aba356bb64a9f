"""What Quantus asks of an explanation function, and, where Quantus is installed, Quantus itself."""

import copy
import inspect
import warnings

import numpy as np
import pytest
import torch
from adapters_toys import filled, inputs, smooth
from torch import nn

import fringe
from fringe import InputError, IntegratedGradients
from fringe._numbers.rng import KeyedGenerator
from fringe.errors import is_installed
from fringe.metrics import MPRT, EfficientMPRT, EvaluationContext, evaluate
from fringe.metrics._imputation import impute
from fringe.metrics._quantus import KNOWN, _import_quantus
from fringe.metrics._without_passes import _gini
from fringe.paths import Problem
from fringe.quantus import explain_func
from fringe.testing import METRIC_CHECKS, check_metric


@pytest.fixture(autouse=True, scope="module")
def quantus_imported():
    """Quantus imports zennit where it is installed, which imports torchvision, and it may be of another build."""
    if is_installed("quantus"):
        _import_quantus()


def test_it_is_called_with_arrays_and_gives_an_array():
    """As Quantus calls it: model, inputs and targets by keyword, the rest from ``explain_func_kwargs`` and a device."""
    x, targets = inputs(3), np.array([2, 0, 1])
    found = explain_func(
        model=smooth(), inputs=x.numpy(), targets=targets, **{"method": "ig", "steps": 7, "device": "cpu"}
    )
    expected = fringe.attribute(smooth(), x, method=IntegratedGradients(steps=7), target=[2, 0, 1]).values
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, expected.numpy())
    assert list(inspect.signature(explain_func).parameters)[:3] == ["model", "inputs", "targets"]


def test_the_network_is_left_in_evaluation_mode():
    """As after the explanations of Quantus: its metrics then run the network as it is."""
    for model in (smooth().train(), fringe.Classifier(smooth().train())):
        explain_func(model, inputs(2), 1, method="ig", steps=2)
        network = model.model if isinstance(model, fringe.Classifier) else model
        assert not any(module.training for module in network.modules())


def test_inputs_follow_the_weights():
    x = inputs(2)
    found = explain_func(smooth().float(), x.numpy(), np.array([0, 1]), method="ig")
    assert found.dtype == np.float32
    expected = fringe.attribute(smooth().float(), x.float(), method="ig", target=[0, 1]).values
    np.testing.assert_array_equal(found, expected.numpy())
    whole = explain_func(lambda x: smooth().float()(x), np.ones((1, 2, 6, 6), dtype=np.uint8), method="ig")
    assert whole.dtype == np.float32


@pytest.mark.parametrize("targets", [np.array([1.0, 3.0]), np.array([1, 3], dtype=np.uint8), torch.tensor([1, 3])])
def test_labels_of_any_kind(targets):
    found = explain_func(smooth(), inputs(2).numpy(), targets, method="ig")
    np.testing.assert_array_equal(found, explain_func(smooth(), inputs(2), np.array([1, 3]), method="ig"))


def test_without_targets_the_predicted_classes():
    x = inputs(3)
    predicted = smooth()(x).argmax(1).numpy()
    np.testing.assert_array_equal(
        explain_func(smooth(), x, method="ig"), explain_func(smooth(), x, predicted, method="ig")
    )


def test_the_callers_arrays_are_left_alone():
    x = inputs(2).numpy()
    before = x.copy()
    x.setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # PyTorch warns once of an array that it shares and must not write into
        explain_func(smooth(), x, np.array([0, 1]), method="ig")
    np.testing.assert_array_equal(x, before)


def test_settings_reach_the_method():
    x = inputs(2).numpy()
    method = IntegratedGradients(steps=3, rule="left")
    np.testing.assert_array_equal(
        explain_func(smooth(), x, 1, method="ig", steps=3, rule="left"), explain_func(smooth(), x, 1, method=method)
    )
    probability = explain_func(smooth(), x, 1, method="ig", score="probability", baseline=0.5)
    expected = fringe.attribute(smooth(), inputs(2), method="ig", target=1, score="probability", baseline=0.5).values
    np.testing.assert_array_equal(probability, expected.numpy())


def test_what_keys_and_surrounds_an_explanation_is_handed_on():
    seen, space = [], fringe.InputSpace(references=inputs(5, seed=8))

    def model(x):
        seen.append(len(x))
        return smooth()(x)

    found = explain_func(
        model, inputs(2).numpy(), 1, method="expected_gradients", samples=4, seed=3, space=space, batch_size=2
    )
    method = fringe.ExpectedGradients(samples=4)
    expected = fringe.attribute(smooth(), inputs(2), method=method, target=1, seed=3, space=space).values
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-12)
    assert max(seen) == 2


def test_channels_are_added_up_on_request():
    x = inputs(2).numpy()
    each = explain_func(smooth(), x, 1, method="ig")
    summed = explain_func(smooth(), x, 1, method="ig", channels="sum")
    np.testing.assert_allclose(summed, each.sum(1, keepdims=True), rtol=1e-12)
    assert summed.shape == (2, 1, 6, 6)


def test_what_cannot_be_meant_is_refused():
    with pytest.raises(InputError, match=r"ig setting: got 'step', expected .*; did you mean 'steps'"):
        explain_func(smooth(), inputs(1).numpy(), 1, method="ig", step=3)
    with pytest.raises(InputError, match=r"targets: got \[0.5\], expected whole numbers"):
        explain_func(smooth(), inputs(1).numpy(), np.array([0.5]), method="ig")
    with pytest.raises(InputError, match="channels: got 'mean', expected one of each, sum"):
        explain_func(smooth(), inputs(1).numpy(), 1, method="ig", channels="mean")


def test_quantus_takes_it():
    """Quantus' Gini index of maps that it asked for itself is that of maps made beforehand."""
    quantus = pytest.importorskip("quantus")
    x, targets, model = inputs(4).float().numpy(), np.array([0, 1, 2, 3]), smooth().float()
    settings = {"method": "ig", "steps": 9, "channels": "sum"}
    metric = quantus.Sparseness(disable_warnings=True, return_aggregate=False)
    asked = metric(
        model=model, x_batch=x, y_batch=targets, device="cpu", explain_func=explain_func, explain_func_kwargs=settings
    )
    maps = explain_func(model, x, targets, **settings)
    given = metric(model=model, x_batch=x, y_batch=targets, a_batch=maps, device="cpu")
    np.testing.assert_allclose(asked, given, rtol=1e-6)
    np.testing.assert_allclose(asked, _gini(torch.from_numpy(maps)).numpy(), rtol=1e-4)


def test_max_sensitivity_is_quantus_at_its_defaults():
    """The same 200 draws of +- 0.2 given to Quantus' metric and to the preset that is named after it."""
    quantus = pytest.importorskip("quantus")
    x, target = inputs(3), torch.tensor([2, 0, 1])
    classifier = fringe.Classifier(smooth())
    subject = EvaluationContext(Problem.of(classifier, x, target=target, ids=("a", "b", "c"), rng=KeyedGenerator(5)))
    drawn: list[np.ndarray] = []

    def maps(moved, rows):
        difference = moved - x[rows]
        drawn.extend(difference.numpy())
        return fringe.attribute(classifier, moved, method="ig", target=target[rows]).values

    before = maps(x, [0, 1, 2])
    drawn.clear()
    explain = lambda problem: maps(problem.inputs, list(problem.rows))  # noqa: E731
    found = evaluate(subject, before, ["max_sensitivity:quantus"], explain)["max_sensitivity:quantus"]
    moves = iter(np.stack(drawn).reshape(3, 200, -1).swapaxes(0, 1))  # ours go image by image, theirs draw by draw
    assert 0.199 < np.abs(drawn).max() <= 0.2
    metric = quantus.MaxSensitivity(perturb_func=lambda arr, **_: arr + next(moves), disable_warnings=True)
    theirs = metric(
        model=smooth(),
        x_batch=x.numpy(),
        y_batch=target.numpy(),
        a_batch=before.numpy(),
        device="cpu",
        explain_func=explain_func,
        explain_func_kwargs={"method": "ig"},
    )
    np.testing.assert_allclose(found.values.numpy(), theirs, rtol=1e-9)
    assert next(moves, None) is None


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="it is here")
def test_a_device_that_is_not_there_is_one_line():
    with pytest.raises(fringe.FringeError, match=r"^device: 'mps' cannot be used here: this machine has cpu"):
        explain_func(smooth(), inputs(1).numpy(), device="mps")


@pytest.mark.parametrize(
    ("name", "kind", "settings"),
    [
        ("pixel_flipping", "PixelFlipping", {"features_in_step": 2, "return_auc_per_sample": True}),
        ("faithfulness_estimate", "FaithfulnessEstimate", {"features_in_step": 2}),
        ("monotonicity", "Monotonicity", {"features_in_step": 2}),
        ("complexity", "Complexity", {}),
        ("effective_complexity", "EffectiveComplexity", {}),
        ("sparseness", "Sparseness", {}),
    ],
)
def test_metrics_by_name_are_those_of_quantus(name, kind, settings, monkeypatch):
    """The metric of Quantus called as its users call it, image by image: a replacement is that of a whole batch."""
    quantus = pytest.importorskip("quantus")
    monkeypatch.setattr(np, "trapz", np.trapezoid, raising=False)  # NumPy 2.4 has no other name for it
    x, target = inputs(3).float(), torch.tensor([2, 0, 1])
    maps = fringe.attribute(smooth().float(), x, method="ig", target=target).values
    label = f"quantus:{name}"
    context = EvaluationContext(Problem.of(fringe.Classifier(smooth().float()), x, target=target))
    result = evaluate(context, maps, [label])[label]
    metric = getattr(quantus, kind)(disable_warnings=True, return_aggregate=False, **settings)
    images = zip(*(column.split(1) for column in (x, target, maps)), strict=True)
    theirs = [
        metric(model=smooth().float(), x_batch=a.numpy(), y_batch=b.numpy(), a_batch=c.numpy(), device="cpu")[0]
        for a, b, c in images
    ]
    np.testing.assert_allclose(result.values.numpy(), np.asarray(theirs, dtype=float), rtol=1e-4, atol=1e-6)
    assert result.values.isfinite().all()


@pytest.mark.parametrize("name", KNOWN)
def test_colour_images_have_scores(name):
    pytest.importorskip("quantus")
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(2, 3, 16, 16, generator=generator, dtype=torch.float64)
    model = filled(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softplus(), nn.AvgPool2d(7), nn.Flatten(), nn.Linear(16, 4)))
    context = EvaluationContext(Problem.of(fringe.Classifier(model), x))
    result = evaluate(context, torch.randn(x.shape, generator=generator, dtype=x.dtype), [f"quantus:{name}"])
    assert result[f"quantus:{name}"].values.isfinite().all()


def test_every_metric_by_name_has_the_direction_and_outputs_of_quantus():
    quantus = pytest.importorskip("quantus")
    for name, entry in KNOWN.items():
        kind = getattr(quantus, entry.kind)
        assert kind.score_direction.value == entry.direction, name
        asks = inspect.signature(kind.__call__).parameters["softmax"].default
        assert entry.softmax == asks or not entry.passes, name  # those without passes ask nothing


#: They give graded maps of a known model the same score: a count of entries, and a comparison of steps.
UNORDERED = ("monotonicity", "effective_complexity")


@pytest.mark.parametrize("name", ["faithfulness_correlation", "irof", "complexity", "sparseness", *UNORDERED])
def test_metrics_by_name_keep_the_contract(name):
    pytest.importorskip("quantus")
    expected = {"ranking": "all maps score alike"} if name in UNORDERED else {}
    checks = {"ranking", "batch_of_one", "repeatable", "random_generators", "caller_model", "passes"}
    check_metric(f"quantus:{name}", skip=set(METRIC_CHECKS) - checks, expected_failures=expected)


def test_metrics_of_both_libraries_agree_on_the_same_maps(monkeypatch):
    quantus = pytest.importorskip("quantus")
    monkeypatch.setattr(np, "trapz", np.trapezoid, raising=False)
    model, target = smooth().float(), torch.tensor([2, 0, 1])
    x = inputs(3).float()
    maps = fringe.attribute(model, x, method="ig", target=target).values
    truth = torch.zeros(3, 6, 6)
    truth[:, 1:5, 2:4] = 1
    context = EvaluationContext(Problem.of(fringe.Classifier(model), x, target=target), truth=truth)
    positive = maps.sum(1, keepdim=True).clamp_min(0)  # whose largest eight are positive, below
    given = {"model": model, "x_batch": x.numpy(), "y_batch": target.numpy(), "s_batch": truth[:, None].bool().numpy()}
    for name, kind in (
        ("mass_inside", "RelevanceMassAccuracy"),
        ("rank_accuracy", "RelevanceRankAccuracy"),
        ("expected_hit", "PointingGame"),
    ):
        metric = getattr(quantus, kind)(abs=False, normalise=False, disable_warnings=True, return_aggregate=False)
        theirs = np.asarray(metric(a_batch=positive.numpy(), device="cpu", **given), dtype=float)
        ours = evaluate(context, maps, [name])[name].values.numpy()
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert ((positive > 0).flatten(1).sum(1) >= truth[0].sum()).all()


def test_imputation_is_that_of_quantus():
    functions = pytest.importorskip("quantus.functions.perturb_func")
    x, missing = inputs(2), torch.from_numpy(np.random.default_rng(0).random((2, 1, 6, 6)) < 0.5)
    ours, solved = impute(x, missing, 1e-6)
    assert solved.all()
    for one, hole, found in zip(x.numpy(), missing.flatten(1).numpy(), ours.numpy(), strict=True):
        theirs = functions.noisy_linear_imputation(arr=one, indices=np.flatnonzero(hole), noise=0.0)
        np.testing.assert_allclose(found, theirs, atol=1e-5)


def test_randomisation_is_that_of_quantus_with_the_same_weights(monkeypatch):
    """Quantus' MPRT and efficient MPRT are given the networks whose weights ours made random."""
    quantus = pytest.importorskip("quantus")
    wrapper = pytest.importorskip("quantus.helpers.model.pytorch_model").PyTorchModel
    x, target, model = inputs(3).float(), torch.tensor([2, 0, 1]), smooth().float()
    classifier, networks = fringe.Classifier(model), list[torch.nn.Module]()

    def explain(problem):
        networks.append(copy.deepcopy(problem.model.module))
        return fringe.attribute(problem.model, problem.inputs, method="ig", target=problem.target).values

    maps = fringe.attribute(classifier, x, method="ig", target=target).values
    context = EvaluationContext(Problem.of(classifier, x, target=target))
    ours = evaluate(context, maps, [MPRT(stages=None), EfficientMPRT()], explain)
    stages = networks[:2]  # of two layers
    generator = lambda self, *_, **__: iter((str(i), one) for i, one in enumerate(stages))  # noqa: E731
    monkeypatch.setattr(wrapper, "get_random_layer_generator", generator)
    monkeypatch.setattr(wrapper, "random_layer_generator_length", len(stages))
    given = {"x_batch": x.numpy(), "y_batch": target.numpy(), "a_batch": maps.numpy(), "device": "cpu"}
    asked = {"explain_func": explain_func, "explain_func_kwargs": {"method": "ig"}}
    theirs = quantus.MPRT(disable_warnings=True)(model=model, **given, **asked)
    for stage in range(2):
        np.testing.assert_allclose(
            ours["mprt"].curves["similarity"][:, stage + 1].numpy(), theirs[str(stage)], atol=1e-5
        )
    for seed in range(3):  # bins of single precision may differ by an entry at an edge
        entropies = [discrete_entropy(one[seed]) for one in (maps, explain_func(stages[1], x, target, method="ig"))]
        expected = (entropies[1] - entropies[0]) / entropies[0]
        assert float(ours["efficient_mprt"].values[seed]) == pytest.approx(expected, abs=0.02)


def discrete_entropy(one):
    """As Quantus computes it."""
    return pytest.importorskip("quantus.functions.complexity_func").discrete_entropy(np.asarray(one), None)
