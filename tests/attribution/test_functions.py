"""What is understood as an attribution method, and how somebody else's function is called."""

import sys
import types

import numpy as np
import pytest
import torch

from fringe import Classifier, InputError, IntegratedGradients
from fringe.attribution import attribute, read_target
from toys import TanhMLP, _CountingModel, build, images, problem_of

X = images(3)


def saliency(model, inputs, target):
    """The plain gradient of the logit."""
    inputs.requires_grad_()
    return torch.autograd.grad(model(inputs).gather(1, target[:, None]).sum(), inputs)[0]


def test_names_classes_and_instances_are_methods_of_this_library():
    assert read_target("ig:paper") == IntegratedGradients.preset("paper")
    assert read_target(IntegratedGradients) == IntegratedGradients()
    assert read_target(IntegratedGradients(steps=3)) == IntegratedGradients(steps=3)


def test_a_function_gives_its_own_maps_and_its_passes_are_counted():
    model = build()
    result = attribute(model, X, method=read_target(saliency))
    _, expected = Classifier(model).score_gradient(X, result.target)
    torch.testing.assert_close(result.values, expected, rtol=1e-12, atol=1e-12)
    assert result.verdict == ("unchecked",) * 3
    assert result.settings == {"method": "saliency"}
    problem = problem_of(model, X)
    with problem.model.session(X.device):
        read_target(saliency).attribute(problem)
    assert (problem.model.passes.forward, problem.model.passes.vjp) == (3, 3)


def test_a_function_explains_the_difference_from_a_contrast():
    model, target, contrast = build(), torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0])
    result = attribute(model, X, method=read_target(saliency), target=target, contrast=contrast)
    maps = [Classifier(model).score_gradient(X, classes)[1] for classes in (target, contrast)]
    torch.testing.assert_close(result.values, maps[0] - maps[1], rtol=1e-12, atol=1e-12)


def test_the_source_of_a_function_is_the_file_that_it_is_in(monkeypatch):
    assert read_target(saliency).source == "test_functions.py"
    typed = eval("lambda model, inputs, target: inputs", {"__name__": "typed_in"})
    assert read_target(typed).source == "typed_in"
    monkeypatch.setitem(sys.modules, "typed_in", types.ModuleType("typed_in"))  # as in a notebook: a module of no file
    assert read_target(typed).source == "typed_in"


def test_a_large_batch_inside_of_a_function_is_cut_to_the_batch_size():
    counting = _CountingModel(build())

    def many(model, inputs, target):
        with torch.no_grad():
            assert model(inputs.expand(9, *inputs.shape[1:])).shape == (9, 3)
        return inputs

    attribute(counting, X, method=read_target(many), batch_size=2)
    assert counting.largest <= 2


def test_one_channel_is_spread_over_all():
    expected = X.sum(1, keepdim=True).expand_as(X) / 2
    for shape in ((1, 1, 8, 8), (1, 8, 8), (8, 8)):

        def summed(model, inputs, target, shape=shape):
            return inputs.sum(1).reshape(shape).numpy()

        torch.testing.assert_close(attribute(build(), X, method=read_target(summed)).values, expected)
    with pytest.raises(InputError, match=r"returned shape \(3,\), expected that of the input, \(1, C, H, W\), or"):
        attribute(build(), X, method=read_target(lambda model, inputs, target: torch.zeros(3)))


def test_random_functions_are_repeated_and_leave_the_generators_alone():
    def noise(model, inputs, target):
        return torch.randn_like(inputs) + float(np.random.rand())  # noqa: NPY002

    method, before = read_target(noise), (torch.get_rng_state(), np.random.get_state()[1].tolist())  # noqa: NPY002
    together = attribute(build(), X, method=method, ids="abc").values
    assert attribute(build(), X[1:2], method=method, ids="b").values.equal(together[1:2])
    assert not together[0].equal(together[1])
    assert not attribute(build(), X, method=method, ids="abc", seed=1).values.equal(together)
    assert torch.get_rng_state().equal(before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002


def test_a_function_of_quantus_is_given_arrays():
    seen = {}

    def explain(model, inputs, targets, **kwargs):
        seen.update(inputs=inputs, targets=targets)
        return inputs * 2

    result = attribute(build(), X, method=read_target(explain), target=[2, 0, 1])
    assert isinstance(seen["inputs"], np.ndarray)
    assert seen["targets"].tolist() == [1]
    torch.testing.assert_close(result.values, 2 * X)


def test_a_class_of_captum_is_its_method():
    captum = pytest.importorskip("captum.attr")
    model = TanhMLP(128)
    result = attribute(model, X, method=read_target(captum.InputXGradient))
    expected = captum.InputXGradient(model).attribute(X.clone().requires_grad_(), target=result.target)
    torch.testing.assert_close(result.values, expected.detach())


def test_what_a_function_raises_is_said():
    def broken(model, inputs, target):
        raise ZeroDivisionError("by nothing")

    with pytest.raises(InputError, match=r"method: broken failed \(ZeroDivisionError: by nothing\)"):
        attribute(build(), X, method=read_target(broken))


@pytest.mark.parametrize(
    ("result", "message"),
    [(None, "given returned None, expected a map"), (["a"], r"given failed \(TypeError: can't convert")],
)
def test_what_a_function_returns_that_is_no_map_is_said(result, message):
    def given(model, inputs, target):
        return result

    with pytest.raises(InputError, match=f"method: {message}"):
        attribute(build(), X, method=read_target(given))


CODE = '''
import torch
from fringe import IntegratedGradients

ran = torch.ones(1)
Few = IntegratedGradients(steps=2)


def twice(model, inputs, target):
    """Twice the input."""
    return 2 * inputs
'''


def test_code_is_run_only_if_it_is_trusted(tmp_path, monkeypatch):
    path = tmp_path / "some_methods.py"
    path.write_text(CODE)
    monkeypatch.chdir(tmp_path)
    for spec in (f"{path}:twice", "some_methods:twice"):
        with pytest.raises(InputError, match=r"runs the Python code in .*only if you trust its author"):
            read_target(spec)
        torch.testing.assert_close(attribute(build(), X, method=read_target(spec, trust_code=True)).values, 2 * X)
    assert read_target("some_methods:Few", trust_code=True) == IntegratedGradients(steps=2)
    assert not (tmp_path / "__pycache__").exists()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("igg", "did you mean 'ig'"),
        ("nowhere_at_all:thing", "no method and no module is called 'nowhere_at_all'"),
        ("missing.py:thing", "'missing.py' does not exist"),
        ("fringe.data:digits_sample", "did you mean 'digits_samples'"),
        (torch.nn.Linear(2, 2), "no attribution method"),
        (3, "no attribution method"),
    ],
)
def test_what_is_no_method_is_refused(target, message):
    with pytest.raises(InputError, match=message):
        read_target(target, trust_code=True)


def test_functions_are_recorded_by_name():
    first, second = read_target(saliency), read_target(lambda model, inputs, target: inputs)
    assert first.label == "saliency"
    assert type(first) is not type(second)
    assert not first.is_complete
