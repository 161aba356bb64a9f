"""A network gives the same numbers whatever surrounds the call and however the batch is split."""

import contextlib
import copy
import subprocess
import sys
import warnings

import pytest
import torch
from classifier_toys import CLASSES, network, normal
from torch import nn

import fringe
from fringe import Classifier, InputError, attribute
from fringe._network import passes as _network
from fringe._network.passes import BatchSize
from fringe.captum import CaptumAttributor
from fringe.quantus import explain_func

NAME = "convolutions with batch normalisation"
TARGET = torch.tensor([0, 3])


def answers(model, dtype=torch.float64, x=None):
    """Logits, score gradient, both products: each called on its own, as a user would."""
    x = normal(2, 3, 8, 8, dtype=dtype) if x is None else x
    classifier = Classifier(model)
    u, v = normal(2, CLASSES, seed=1, dtype=dtype), normal(*x.shape, seed=2, dtype=dtype)
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
    @pytest.mark.parametrize("name", CONTEXTS)
    @pytest.mark.parametrize(("kind", "session"), [(NAME, False), ("transformer", True)])
    def test_reach_neither_single_calls_nor_a_session(self, name, kind, session):
        model = network(kind, torch.float32)
        x = normal(2, *((3, 8, 8) if kind == NAME else (4, 8)), dtype=torch.float32)
        expected = answers(model, torch.float32, x)
        with CONTEXTS[name](), Classifier(model).session(x.device) if session else contextlib.nullcontext():
            found = answers(model, torch.float32, x)
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

    def test_lazy_layers_without_weights_are_told_what_to_do(self):
        with pytest.raises(InputError, match=r"model: its lazy layers have no weights yet; call the model once"):
            Classifier(nn.LazyLinear(3))


COMPILED = """
import torch, fringe

torch.manual_seed(0)
plain = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.Tanh(), torch.nn.Linear(6, 5)).eval()
function = torch.compile(lambda z: plain(z), backend="aot_eager")  # its backward pass runs once, and has no derivative
inside = torch.nn.Sequential(torch.compile(plain, backend="aot_eager"))
x = torch.randn(2, 8)
for method in ("ig", fringe.FRInGe(structure="none")):
    expected = fringe.attribute(plain, x, method=method)
    for model in (function, inside.eval()):
        assert torch.equal(fringe.attribute(model, x, method=method).values, expected.values)
function(x.requires_grad_()).sum().backward()  # afterwards it runs compiled again
try:
    torch.autograd.grad(function(x).sum(), x, create_graph=True)[0].sum().backward()
except RuntimeError as error:
    assert "aot_autograd" in str(error) or "donated" in str(error), error
else:
    raise AssertionError("it was not compiled")
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
class TestWrappers:
    def test_data_parallel_and_compiled_models_are_unwrapped(self):
        model = network(NAME)
        expected = answers(model)
        compiled = torch.compile(model, backend="eager")
        compiled_parallel = torch.compile(nn.DataParallel(model), backend="eager")
        for wrapped in (nn.DataParallel(model), compiled, nn.DataParallel(compiled), compiled_parallel):
            assert Classifier(wrapped).model is model
            assert largest_difference(answers(wrapped), expected) == 0

    @pytest.mark.thorough
    def test_a_compiled_function_is_explained_as_it_was_written(self):
        # in a process of its own, because the compiler keeps graphs that other tests look for
        done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def test_traced_and_scripted_models(self):
        model = network(NAME)
        expected = answers(model)
        for exported in (torch.jit.trace(model, normal(2, 3, 8, 8)), torch.jit.script(model)):
            assert largest_difference(answers(exported), expected) <= 1e-12

    def test_a_model_that_maps_over_its_images(self):
        model = network(NAME)
        function = torch.vmap(lambda image: model(image[None])[0])
        assert largest_difference(answers(lambda x: function(x)), answers(model)) <= 1e-12

    @pytest.mark.parametrize(("method", "batch"), [("ig", 1), ("fringe", 1), ("fringe", 3), ("smoothgrad", 3)])
    def test_a_network_for_one_image_gets_one_at_a_time(self, method, batch):
        model, x = network(NAME).eval(), normal(batch, 3, 8, 8)
        program = torch.export.export(model, (x[:1],)).module()
        expected = attribute(model, x, method=method, batch_size=1)
        many = batch > 1 or method != "fringe"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = attribute(program, x, method=method)
        said = [str(w.message) for w in caught if "takes one image at a time" in str(w.message)]
        assert len(said) == many
        torch.testing.assert_close(found.values, expected.values, rtol=1e-9, atol=1e-12)

    def test_a_network_for_one_image_with_one_argument_for_each_keeps_its_own_error(self):
        def first(x, weights):
            return x.view(1, 3) * weights.mean()

        with pytest.raises(InputError, match=r"the model cannot take them: shape.*forward_args.0., so each image gets"):
            attribute(first, normal(2, 3), forward_args=(normal(2, 3),), method="ig")

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

    def test_in_half_precision_that_cannot_be_copied_are_named(self):
        model = network(NAME, torch.float32).half()
        model[0].kept = model[0].weight * 2  # as of a module that keeps its last activations
        with pytest.raises(InputError, match=r"half precision, and no copy of it can be made .*; pass it in float32"):
            Classifier(model)

    def test_an_update_between_calls_is_seen(self):
        model, x = network(NAME), normal(2, 3, 8, 8)
        classifier = Classifier(model)
        before = classifier.logits(x)
        with torch.no_grad():
            model[-1].bias += 1
        assert torch.allclose(classifier.logits(x), before + 1, rtol=1e-12)


class TestInputs:
    def test_of_a_model_that_works_in_place_are_not_written_to_and_have_a_gradient(self):
        layers, x = (nn.Flatten(), nn.Linear(192, CLASSES)), normal(2, 3, 8, 8)
        in_place, pixels = nn.Sequential(nn.SiLU(inplace=True), *layers).double().eval(), x.clone()
        plain = nn.Sequential(nn.SiLU(), *layers).eval()
        assert largest_difference(answers(in_place, x=x), answers(plain, x=x)) == 0
        assert torch.equal(x, pixels)

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


CPU = torch.device("cpu")


class Limited(nn.Module):
    """A network on a device that holds ``rows`` images, and says so by an error of a given kind."""

    def __init__(self, model, rows, error=torch.OutOfMemoryError):
        super().__init__()
        self.model, self.rows, self.seen, self.error = model, rows, [], error

    def forward(self, x):
        self.seen.append(x.shape[0])
        if x.shape[0] > self.rows:
            raise self.error(f"{x.shape[0]} images do not fit")
        return self.model(x)


@pytest.mark.parametrize("rows", [1, 3, 5])
def test_results_survive_the_end_of_memory(rows):
    model, x, target = network("reused module"), normal(11, 3, 6, 6), torch.arange(11) % CLASSES
    plain, limited = Classifier(model), Classifier(Limited(model, rows).eval(), batch_size=8)
    assert torch.allclose(limited.logits(x), plain.logits(x), rtol=1e-12)
    assert limited.batch_size.on(CPU) == {1: 1, 3: 2, 5: 4}[rows]
    for ours, theirs in zip(limited.score_gradient(x, target), plain.score_gradient(x, target), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-14)


def test_what_was_learnt_is_remembered_and_finished_rows_are_kept():
    limited = Limited(network("reused module"), 3).eval()
    classifier = Classifier(limited, batch_size=8)
    classifier.logits(normal(10, 3, 6, 6))
    assert limited.seen == [8, 4, 2, 2, 2, 2, 2]
    limited.seen.clear()
    classifier.logits(normal(5, 3, 6, 6))
    assert limited.seen == [2, 2, 1]


@pytest.mark.parametrize(
    ("rows", "error", "seen"),
    [
        (3, "GET was unable to find an engine to execute this computation", [8, 4, 2, 2, 2, 2, 2]),  # cuDNN
        (3, "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory", [8, 4, 2, 2, 2, 2, 2]),
        (0, "mat1 and mat2 shapes cannot be multiplied", [8, 1]),  # nor does it take one
        (0, torch.OutOfMemoryError("CUDA out of memory"), [8, 4, 2, 1]),
    ],
)
def test_memory_ends_in_more_than_one_way(rows, error, seen):
    kind = type(error) if isinstance(error, RuntimeError) else RuntimeError
    limited = Limited(network("reused module"), rows, lambda _: kind(str(error))).eval()
    with contextlib.nullcontext() if rows else pytest.raises(kind, match=str(error)):
        Classifier(limited, batch_size=8).logits(normal(10, 3, 6, 6))
    assert limited.seen == seen


def test_map_splits_every_argument_alike_and_joins_every_result():
    a, b = torch.arange(7.0), torch.arange(7.0) * 10
    assert torch.equal(BatchSize(3).map(lambda x, y: x + y, a, b), a + b)
    total, product = BatchSize(2).map(lambda x, y: (x + y, x * y), a, b)
    assert torch.equal(total, a + b)
    assert torch.equal(product, a * b)


def test_no_images_give_no_rows():
    assert BatchSize(3).map(lambda x: x.sum(1, keepdim=True), torch.zeros(0, 4)).shape == (0, 1)


@pytest.mark.parametrize("size", [0, -1, True, 2.5, "large", None])
def test_a_size_without_meaning_is_named(size):
    with pytest.raises(ValueError, match=f"batch_size: got {size!r}, expected 'auto' or a positive integer"):
        BatchSize(size)


class Wide(nn.Module):
    """Returns 80 times its inputs on the way to three logits, of which it remembers how many it was asked for."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def forward(self, x):
        self.sizes.append(len(x))
        return x.flatten(1)[:, :3].repeat(1, 80).sum(1, keepdim=True) + torch.arange(3.0)


def test_the_first_batch_on_a_cpu_follows_from_the_size_of_the_inputs():
    model = Wide()
    Classifier(model).logits(torch.zeros(1).expand(3, 3, 2000, 3000))  # 72 MB each, of the 64 MiB for the first pass
    assert model.sizes == [1, 1, 1]
    model = Wide()
    Classifier(model).logits(torch.zeros(20, 3, 8, 8))
    assert model.sizes == [16, 4]


def test_later_batches_on_a_cpu_follow_from_the_memory_of_the_first_pass(monkeypatch):
    """240 numbers, a sum and three logits are 976 bytes of an input; it is copied, and the first outputs are
    checked: about 1,800 bytes."""
    x = torch.zeros(40, 3, 8, 8)
    monkeypatch.setattr(_network, "PASS_BYTES", 3 * 1900)
    monkeypatch.setattr(_network, "FIRST_BYTES", 6 * x[0].nbytes)
    model = Wide()
    classifier = Classifier(model)
    classifier.logits(x)
    assert model.sizes == [6] + 11 * [3] + [1]
    classifier.logits(x[:7])
    assert model.sizes[-3:] == [3, 3, 1]
    classifier.logits(torch.zeros(9, 3, 2, 2))  # another shape is measured anew: the first pass holds 16
    assert model.sizes[-1] == 9
    fixed = Wide()
    Classifier(fixed, batch_size=16).logits(x)
    assert fixed.sizes == [16, 16, 8]


def test_memory_that_runs_out_still_halves_a_measured_batch():
    size, x = BatchSize(), torch.zeros(4, 3, 2000)
    assert size.begin(x)
    assert not size.begin(x)  # it is measured once
    assert size.on(x.device) == 16
    size.halve(x.device, torch.OutOfMemoryError("simulated"))
    assert size.on(x.device) == 8
    assert not size.begin(torch.zeros(4, 3, 5))
