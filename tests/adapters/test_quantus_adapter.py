"""What Quantus asks of an explanation function, and, where Quantus is installed, Quantus itself."""

import inspect
import warnings

import numpy as np
import pytest
import torch
from adapters_toys import inputs, smooth

import fringe
from fringe import InputError, IntegratedGradients
from fringe._rng import KeyedGenerator
from fringe.metrics import EvaluationContext, evaluate
from fringe.metrics._sparseness import gini
from fringe.paths import Problem
from fringe.quantus import explain_func


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
    with pytest.raises(InputError, match="ig setting: got 'step'; did you mean 'steps'"):
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
    np.testing.assert_allclose(asked, gini(torch.from_numpy(maps)).numpy(), rtol=1e-4)


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
    found = evaluate(subject, before, ["max_sensitivity:quantus"], maps)["max_sensitivity:quantus"]
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
    with pytest.raises(fringe.FringeError, match=r"^device 'mps' cannot be used here: there is cpu"):
        explain_func(smooth(), inputs(1).numpy(), device="mps")
