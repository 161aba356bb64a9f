"""The same numbers whatever surrounds the call: gradient modes, autocast, wrappers, compilation, half precision."""

import contextlib
import copy
import subprocess
import sys
import warnings

import pytest
import torch
from classifier_networks import CLASSES, network, normal
from torch import nn

import fringe
from fringe import Classifier, InputError
from fringe.captum import CaptumAttributor
from fringe.quantus import explain_func

NAME = "convolutions with batch normalisation"
TARGET = torch.tensor([0, 3])


def answers(model, dtype=torch.float64, x=None):
    """Logits, score gradient, both products: each called on its own, as a user would."""
    x = normal(2, 3, 8, 8, dtype=dtype) if x is None else x
    classifier = Classifier(model)
    u, v = normal(2, CLASSES, seed=1, dtype=dtype), normal(2, 3, 8, 8, seed=2, dtype=dtype)
    point = classifier.linearise(x)
    return classifier.logits(x), classifier.score_gradient(x, TARGET)[1], point.value, point.vjp(u), point.jvp(v)


def largest_difference(found, expected):
    return max((a - b).abs().max().item() for a, b in zip(found, expected, strict=True))


CONTEXTS = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "detect_anomaly": lambda: torch.autograd.set_detect_anomaly(True),
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
class TestModes:
    @pytest.mark.parametrize(
        "name",
        [
            "no_grad",
            "detect_anomaly",
            "inference_mode",
            "autocast",
        ],
    )
    @pytest.mark.parametrize("kind", [NAME, "transformer"])
    def test_do_not_reach_single_calls(self, name, kind):
        model = network(kind, torch.float32)
        x = normal(2, *((3, 8, 8) if kind == NAME else (4, 8)), dtype=torch.float32)
        u, v = normal(2, CLASSES, seed=1, dtype=torch.float32), normal(*x.shape, seed=2, dtype=torch.float32)

        def calls():
            classifier = Classifier(model)
            point = classifier.linearise(x)
            return classifier.logits(x), classifier.score_gradient(x, TARGET)[1], point.vjp(u), point.jvp(v)

        expected = calls()
        with CONTEXTS[name]():
            found = calls()
        assert largest_difference(found, expected) == 0

    @pytest.mark.parametrize("name", CONTEXTS)
    def test_do_not_reach_a_session(self, name):
        model, x = network(NAME, torch.float32), normal(2, 3, 8, 8, dtype=torch.float32)
        expected = answers(model, torch.float32)
        with CONTEXTS[name](), Classifier(model).session(x.device):
            found = answers(model, torch.float32)
        assert largest_difference(found, expected) == 0

    def test_inputs_made_in_inference_mode(self):
        model = network(NAME)
        expected = answers(model)
        with torch.inference_mode():
            x = normal(2, 3, 8, 8) + 0
        assert x.is_inference()
        assert largest_difference(answers(model, x=x), expected) == 0
        assert x.is_inference()

    def test_cotangents_made_in_inference_mode(self):
        point = Classifier(network(NAME)).linearise(normal(2, 3, 8, 8))
        with torch.inference_mode():
            u = normal(2, CLASSES) + 0
        assert torch.allclose(point.vjp(u), point.vjp(normal(2, CLASSES)), rtol=1e-12, atol=1e-15)

    def test_a_model_built_in_inference_mode_is_told_why_not(self):
        with torch.inference_mode():
            model = nn.Linear(4, 3)
        with pytest.raises(InputError, match=r"built under torch\.inference_mode.*build it outside"):
            Classifier(model)


COMPILED = """
import pytest, torch
from fringe import Classifier

model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.Tanh(), torch.nn.Linear(6, 5)).requires_grad_(False)
x, v = torch.randn(2, 8), torch.randn(2, 8)
classifier = Classifier(torch.compile(lambda z: model(z), backend="aot_eager"))
with pytest.warns(UserWarning, match="no second derivatives .*aot_autograd.*forward-mode"):
    found = classifier.linearise(x).jvp(v)
assert classifier.jvp_mode == "forward"
assert torch.allclose(found, torch.func.jvp(model, (x,), (v,))[1], rtol=1e-4, atol=1e-6)
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
class TestWrappers:
    def test_data_parallel_and_compiled_models_are_unwrapped(self):
        model = network(NAME)
        expected = answers(model)
        compiled = torch.compile(model, backend="eager")
        for wrapped in (nn.DataParallel(model), compiled, nn.DataParallel(compiled)):
            assert Classifier(wrapped).model is model
            assert largest_difference(answers(wrapped), expected) == 0

    def test_in_any_order(self):
        model = network(NAME)
        assert Classifier(torch.compile(nn.DataParallel(model), backend="eager")).model is model

    def test_a_compiled_function_without_second_derivatives_falls_back(self):
        # in a process of its own, because the compiler keeps graphs that other tests look for
        done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def test_traced_and_scripted_models(self):
        model = network(NAME)
        expected = answers(model)
        for exported in (torch.jit.trace(model, normal(2, 3, 8, 8)), torch.jit.script(model)):
            assert largest_difference(answers(exported), expected) <= 1e-12

    def test_plain_functions_and_bound_methods(self):
        model = network(NAME)
        expected = answers(model)
        for function in (lambda x: model(x), model.forward):
            assert largest_difference(answers(function), expected) <= 1e-12
        assert all(p.grad is None and p.requires_grad for p in model.parameters())


class TestParameters:
    def test_frozen_or_with_gradients_give_the_same_map(self):
        model = network(NAME)
        expected = answers(model)
        for p in model.parameters():
            p.grad = torch.full_like(p, 7.0)
        assert largest_difference(answers(model), expected) == 0
        assert all(bool((p.grad == 7).all()) for p in model.parameters())
        assert largest_difference(answers(model.requires_grad_(False)), expected) == 0

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_in_half_precision_are_explained_through_a_float32_copy(self, dtype):
        model = network(NAME, torch.float32).to(dtype)
        before = {name: (id(t), t.clone()) for name, t in model.state_dict(keep_vars=True).items()}
        expected = answers(copy.deepcopy(model).float(), torch.float32)
        found = answers(model, torch.float32)
        assert largest_difference(found, expected) == 0
        assert all(part.dtype == torch.float32 for part in found)
        for name, t in model.state_dict(keep_vars=True).items():
            assert (id(t), t.dtype) == (before[name][0], before[name][1].dtype)
            assert torch.equal(t, before[name][1])

    def test_an_update_between_calls_is_seen(self):
        model, x = network(NAME), normal(2, 3, 8, 8)
        classifier = Classifier(model)
        before = classifier.logits(x)
        with torch.no_grad():
            model[-1].bias += 1
        assert torch.allclose(classifier.logits(x), before + 1, rtol=1e-12)


class TestInputs:
    def test_are_not_written_to_by_a_model_that_works_in_place(self):
        model, x = (
            nn.Sequential(nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(192, CLASSES)).double().eval(),
            normal(2, 3, 8, 8),
        )
        pixels = x.clone()
        with contextlib.suppress(RuntimeError):
            Classifier(model).logits(x)
        assert torch.equal(x, pixels)

    def test_of_a_model_that_works_in_place_have_a_gradient(self):
        layers = nn.Flatten(), nn.Linear(192, CLASSES)
        in_place = nn.Sequential(nn.SiLU(inplace=True), *layers).double().eval()
        assert largest_difference(answers(in_place), answers(nn.Sequential(nn.SiLU(), *layers).eval())) == 0

    def test_may_themselves_be_the_logits(self):
        x, u = normal(2, CLASSES), normal(2, CLASSES, seed=1)
        point = Classifier(nn.Identity()).linearise(x)
        assert torch.equal(point.vjp(u), u)
        assert torch.equal(point.jvp(u), u)

    def test_that_the_model_refuses_are_described(self):
        with pytest.raises(RuntimeError) as refusal:
            Classifier(network(NAME)).logits(normal(2, 4, 8, 8))
        notes = refusal.value.__notes__
        (note,) = notes
        assert note.startswith("while running the model on inputs of shape (2, 4, 8, 8), torch.float64, on cpu")


def test_nothing_warns_in_ordinary_use():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answers(network(NAME))


def test_a_classifier_that_is_given_has_its_own_score_and_batch_size():
    """Neither is set aside in silence where a call asks for another."""
    linear = nn.Linear(3, 4)
    own = Classifier(linear, score="probability", batch_size=3)
    assert Classifier.of(own) is own
    assert Classifier.of(own, "probability", 3) is own
    made = Classifier.of(linear)
    assert (made.score_kind, made.batch_size.on(torch.device("cpu"))) == ("logit", 16)
    made = Classifier.of(linear, "log_probability", 5)
    assert (made.score_kind, made.batch_size.on(torch.device("cpu"))) == ("log_probability", 5)
    x, targets = torch.zeros(1, 3), [0]
    with pytest.raises(InputError, match="score: got 'logit' with a Classifier made with 'probability'"):
        fringe.attribute(own, x, method="ig", score="logit")
    with pytest.raises(InputError, match="score: got 'logit' with a Classifier"):
        CaptumAttributor(own, "ig", score="logit")
    with pytest.raises(InputError, match="score: got 'logit' with a Classifier"):
        explain_func(own, x, targets, method="ig", score="logit")
    with pytest.raises(InputError, match="batch_size: got 'auto' with a Classifier made with 3"):
        fringe.compare(own, x, ["ig"], ["sparseness"], batch_size="auto")
    with pytest.raises(InputError, match="batch_size: got 0, expected"):
        fringe.attribute(linear, x, method="ig", batch_size=0)
