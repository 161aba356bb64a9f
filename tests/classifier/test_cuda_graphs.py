"""Functions recorded as CUDA graphs: their books on any machine, their numbers on a CUDA device."""

import contextlib
import copy
import pickle
import weakref
from typing import ClassVar
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import fringe
from fringe._network import cuda_graphs as _cuda_graphs
from fringe._network.cuda_graphs import MOST, MOST_BYTES, PLAIN_VISITS, CUDAGraphs, Recording, _refilled, leaves
from fringe._network.passes import BatchSize
from fringe.attribution import Diffusion, FRInGeBinary
from fringe.classifier import Classifier, PassCounts
from fringe.paths import Problem

needs_cuda = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


class Nothing(TorchFunctionMode):
    """Refuses all that is computed."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} is computed before the first part")


class Log(TorchDispatchMode):
    """Keeps the operations below Python, as a graph does, and refuses those that read a number back."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in READS:
            raise RuntimeError("operation not permitted when stream is capturing")
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self):
        """Compute all again into the same memory."""
        for func, args, kwargs, result in self.calls:
            new = func(*args, **kwargs)
            pairs = zip(*((r,) if isinstance(r, torch.Tensor) else r for r in (result, new)), strict=True)
            for old, value in pairs:
                if value is not old and value is not None:
                    old.detach().copy_(value)


READS = [torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default, torch.ops.aten.equal.default]


class Played(Recording):
    """Repeats a function without its Python code in the same memory, which works on a CPU."""

    made: ClassVar[list["Played"]] = []

    def _record(self):
        Played.made.append(self)
        plain = list(self._function(*self._arguments))
        with Nothing():  # what is computed here is no part of a graph
            self._running = self._function(*self._arguments)
        for _ in plain:
            with Log() as log:
                self._add(log.replay)
        return plain


@pytest.fixture(autouse=True)
def played(monkeypatch):
    """On a CPU, too."""
    Played.made = []
    if not torch.cuda.is_available():
        monkeypatch.setattr(CUDAGraphs, "devices", ("cpu",))
        monkeypatch.setattr(CUDAGraphs, "recorder", Played)


def network(device="cpu", dtype=torch.float64):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Softplus(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip
    for parameter in model.parameters():
        parameter.data *= 3
    return model.eval().to(device, dtype)


def images(count, device="cpu", dtype=torch.float64):
    return torch.randn(count, 3, 9, 9, generator=torch.Generator().manual_seed(1)).to(device, dtype)


DEVICES = ["cpu", pytest.param("cuda", marks=needs_cuda)]


@pytest.fixture(params=DEVICES)
def device(request):
    if request.param == "cpu" and torch.cuda.is_available():
        pytest.skip("the CUDA device is tried")
    return request.param


@pytest.fixture
def on_cpu():
    if torch.cuda.is_available():
        pytest.skip("counted on a CPU")


@contextlib.contextmanager
def begun(classifier, x):
    """A problem of these images in a session, after the pass that checks the model."""
    given = Problem.of(classifier, x, target=[0] * len(x))
    with classifier.session(x.device):
        given.forward(x, given.every_row)
        yield given


def gradients(given, count):
    """Gradients at ``count`` images: plain, or by a recording."""
    return given.logits_gradient(given.inputs[:count], given.every_row[:count])


def sizes():
    return [passes._size for passes in Played.made]


def test_a_tree_keeps_its_form():
    a, b = torch.ones(2), torch.zeros(2)
    tree = (a, None, ("name", b), PassCounts(1))
    assert [x is y for x, y in zip(leaves(tree), (a, b), strict=True)] == [True, True]
    assert _refilled(tree, iter((b, a))) == (b, None, ("name", a), PassCounts(1))


#: Guided IG waits for the device; of it and of IG, scores with gradients are recorded.
OTHERS = [fringe.GuidedIG(steps=10), fringe.IntegratedGradients(steps=20)]
METHODS = [
    *("fringe", "fringe:fast", FRInGeBinary(tau=0.05), Diffusion(tau=0.05)),
    *(fringe.FRInGe(structure="none", tau=0.05, max_steps=20), fringe.FRInGe(focus="cam", tau=0.3), *OTHERS),
]


@pytest.mark.parametrize("method", METHODS)
def test_maps_and_counts_are_those_without_graphs(device, method):
    model, x = network(device), images(5, device)
    plain, graphs = (Classifier(model, batch_size=4, cuda_graphs=graphs) for graphs in (False, True))
    _, *results, expected = (  # no call but the first checks the model
        fringe.attribute(classifier, x, method=method, target="top2") for classifier in (plain, graphs, graphs, plain)
    )
    for found in results:  # the first is plain at first
        assert torch.equal(found.values, results[0].values)
        assert all(map(torch.equal, found.diagnostics.values(), results[0].diagnostics.values()))
        assert found.class_verdicts == expected.class_verdicts
    error = (found.values - expected.values).norm() / expected.values.norm()  # three paths are filled up to four
    assert float(error) < 1e-6
    assert found.passes == expected.passes
    has_steps = any(key[2][0] != "gradient" for key in graphs.graphs._recordings)
    assert has_steps is (method not in OTHERS)


def test_what_a_part_leaves_is_that_of_the_same_call(device):
    """A second part that is not asked for costs nothing, and does not change the next call."""
    x = images(3, device)

    def parts(of, rows, x):
        point = of.linearise(x, rows)
        yield point.value
        yield point.vjp(of.score_cotangent(point.value, rows)), x

    with begun(Classifier(network(device), cuda_graphs=True), x) as given:
        for number in range(3 * PLAIN_VISITS):
            z = x + number
            before = given.model.passes.vjp
            call = given.call(parts, "parts", given.every_row, z)
            torch.testing.assert_close(next(call), given.forward(z, given.every_row))
            assert given.model.passes.vjp == before
            if number % 2 == 0:
                gradient, same = next(call)
                assert given.model.passes.vjp == before + len(x)
                expected = torch.func.grad(lambda z: given.model.model(z)[:, 0].sum())(z)
                torch.testing.assert_close(gradient, expected)
                assert same is z  # an argument is given back as it came


def test_what_a_graph_reads_lives_as_long_as_it(device):
    """A tensor of a model that is no buffer, or of a path, may be replaced by the next call."""
    x, factors = images(4, device), [torch.ones(4, 1, 1, 1, device=device) * 2, torch.ones(1, device=device)]
    known = [weakref.ref(factor) for factor in factors]

    def parts(of, rows, x):
        yield torch.stack([x, factors[0].expand_as(x)]).prod(0)
        yield (x * factors[1],)

    with begun(Classifier(network(device), cuda_graphs=True), x) as given:
        for number in range(2 * PLAIN_VISITS):
            found = [leaf for part in given.call(parts, "parts", given.every_row, x) for leaf in leaves(part)]
            assert torch.equal(found[0], 2 * x)
            if number == PLAIN_VISITS:
                factors[:] = [factor.clone() for factor in factors]
                assert all(reference() is not None for reference in known)


def test_copies_of_a_classifier_go_on_to_count_together(on_cpu):
    x, graphs = images(2), Classifier(network(), cuda_graphs=True)
    other = copy.copy(graphs)
    with begun(graphs, x) as given:
        for _ in range(PLAIN_VISITS + 2):
            gradients(given, 2)
    assert len(Played.made) == 1
    assert other.passes == graphs.passes == PassCounts(2 * (PLAIN_VISITS + 4), 0, 2 * (PLAIN_VISITS + 2))


def test_a_copy_records_its_own(on_cpu):
    classifier, x = Classifier(network()), images(2)
    with begun(classifier, x) as given:
        for _ in range(PLAIN_VISITS + 1):
            gradients(given, 2)
    assert classifier.graphs._recordings
    for other in (copy.deepcopy(classifier), pickle.loads(pickle.dumps(classifier))):
        assert not other.graphs._recordings
        with begun(other, x) as again:
            assert all(map(torch.equal, gradients(again, 2), gradients(given, 2)))


def test_what_is_recorded(on_cpu):
    """A power of two, up to the batch size, from the fourth call on."""
    with begun(Classifier(network(), batch_size=40, cuda_graphs=True), images(40)) as given:
        for count in (3, 4, 4, 1, 1, 1, 20, 20, 20, 33, 33, 33, 2):
            gradients(given, count)
        assert sizes() == []
        for count in (3, 8, 1, 1, 17, 20, 40):
            gradients(given, count)
        assert sizes() == [4, 1, 32, 40]


@pytest.mark.parametrize("repeats", [False, True])
def test_the_number_of_rows_does_not_depend_on_what_is_recorded(on_cpu, monkeypatch, repeats):
    """A call gives the same numbers before and after it is recorded."""
    if not repeats:
        monkeypatch.setattr(_cuda_graphs, "PLAIN_VISITS", 100)
    x, seen = images(3), []

    def parts(of, rows, x):
        seen.append(len(x))
        yield x.mean((1, 2, 3)) * len(x)

    with begun(Classifier(network(), cuda_graphs=True), x) as given:
        for _ in range(PLAIN_VISITS + 2):
            (found,) = given.call(parts, "parts", given.every_row, x)
            assert torch.equal(found, 4 * x.mean((1, 2, 3)))
    assert set(seen) == {4}
    assert bool(Played.made) is repeats


def test_few_small_images_are_recorded(on_cpu, monkeypatch):
    class Model:
        model = module = nn.Identity()
        is_checked, state, jvp_mode, linear_layers, smooth_rectifiers, tf32 = True, object(), "none", True, True, False
        batch_size, passes, is_plain = BatchSize(1000), PassCounts(), lambda: True

    def made(graphs, rows, numbers):
        with mock.patch.object(CUDAGraphs, "_recorded", return_value=None) as recorded:
            for _ in range(PLAIN_VISITS + 1):
                list(graphs.call(Model, lambda x: iter([x]), "name", (torch.empty(rows, numbers),)))
        return recorded.called

    graphs = CUDAGraphs()
    assert not made(graphs, MOST + 1, 1)
    assert not made(graphs, 3, MOST_BYTES // 16 + 1)
    assert made(graphs, 3, MOST_BYTES // 16)
    assert made(graphs, MOST, 1)
    monkeypatch.setattr(_cuda_graphs, "MOST_RECORDINGS", 2)
    assert not made(graphs, 8, 1)


def test_other_arguments_and_other_devices_are_not(on_cpu, monkeypatch):
    x = images(2)
    classifier = Classifier(lambda x, scale: network()(x) * scale, cuda_graphs=True)
    given = Problem.of(classifier, x, target=[0, 0], forward_args=fringe.classifier.ForwardArguments.of(2, (2.0,)))
    with classifier.session(x.device), mock.patch.object(CUDAGraphs, "call") as call:
        gradients(given, 2)
    assert not call.called
    scripted = torch.jit.trace(network(), x, check_trace=False)
    for other in (Classifier(scripted), Classifier(network(), score=lambda logits: logits[:, 0])):
        for _ in range(PLAIN_VISITS + 1):
            fringe.attribute(other, x, method="ig")
    assert not Played.made
    monkeypatch.setattr(CUDAGraphs, "devices", ("cuda",))
    fringe.attribute(Classifier(network(), cuda_graphs=True), x, method="fringe")
    assert not Played.made


def test_recordings_serve_until_the_network_changes(on_cpu):
    model, x = network(), images(4)
    graphs = Classifier(model, cuda_graphs=True)

    def made(classifier=graphs):
        count = len(Played.made)
        for _ in range(PLAIN_VISITS + 2):
            with begun(classifier, x) as given:
                logits, _ = gradients(given, 4)
                torch.testing.assert_close(logits, classifier.model(x).detach())
        return len(Played.made) - count

    assert made() == 1
    assert made() == 0
    with torch.no_grad():
        model[0].weight.mul_(0.5)
    assert made() == 1
    model[1].running_mean += 0.5  # of which they read a copy
    assert made() == 1
    model[0].weight = nn.Parameter(model[0].weight.detach().clone())
    assert made() == 1
    assert made(graphs.with_model(model)) == 0
    assert made(graphs.with_model(network())) == 1
    assert made() == 1
    assert made(Classifier(lambda x: model(x), cuda_graphs=True)) == 0  # nothing tells what else a function does


def test_each_setting_has_its_own_recordings(on_cpu):
    graphs = Classifier(network(), cuda_graphs=True)
    with begun(graphs, images(4)) as given:
        for count, (name, value) in enumerate({"tf32": False, "tf32 ": True, "score_kind": "probability"}.items(), 1):
            setattr(graphs, name.strip(), value)
            for _ in range(PLAIN_VISITS + 1):
                gradients(given, 4)
            assert len(Played.made) == count


class Reads(nn.Module):
    """Reads a number back from the device, which no graph can hold."""

    def __init__(self):
        super().__init__()
        self.model = network()

    def forward(self, x):
        return self.model(x) if float(x.sum()) < 1e9 else x.new_zeros(len(x), 4)


def test_a_model_that_cannot_be_recorded_is_run_as_it_is(device):
    model, x = Reads().to(device).eval(), images(4, device)
    expected = fringe.attribute(Classifier(model, cuda_graphs=False), x, method="fringe")
    classifier = Classifier(model, cuda_graphs=True)
    found = fringe.attribute(classifier, x, method="fringe")
    torch.testing.assert_close(found.values, expected.values)
    assert classifier.graphs._refused
    torch.testing.assert_close(torch.ones(3, device=device).sum().cpu(), torch.tensor(3.0))


class Counts(nn.Module):
    """Does something else from call to call."""

    def __init__(self):
        super().__init__()
        self.model, self.calls = network(), 0

    def forward(self, x):
        self.calls += 1
        return self.model(x) * (1 + self.calls % 3)


class Changes(nn.Module):
    """Does something else after many calls, which it counts in one of many ways."""

    def __init__(self, where):
        super().__init__()
        self.model, self.where = network(), where
        self.calls, self.all_calls, self.entries, self.tensor = 0, [], {"calls": 0}, torch.zeros((), dtype=torch.int64)

    def count(self):
        match self.where:
            case "attribute":
                self.calls += 1
                return self.calls
            case "list":
                self.all_calls.append(1)
                return len(self.all_calls)
            case "dict":
                self.entries["calls"] += 1
                return self.entries["calls"]
            case "list of the file":
                WRITTEN.append(1)
                return len(WRITTEN)
            case "number of the file":
                global written
                written += 1
                return written
            case "tensor":
                self.tensor += 1
                return self.tensor
            case _:
                return 0

    def forward(self, x):
        number = torch.as_tensor(self.count(), device=x.device)
        return self.model(x) * (1 + (number > 1000))


WRITTEN, written = list[int](), 0
PLACES = "attribute", "list", "dict", "list of the file", "number of the file", "tensor"


@pytest.mark.parametrize("where", [*PLACES, "nowhere"])
def test_a_model_that_writes_to_something_is_run_as_it_is(on_cpu, where):
    """By default. Its numbers are the same in both calls that are compared."""
    model = Changes(where).eval()
    classifier = Classifier(model)
    with begun(classifier, images(2)) as given:
        for _ in range(2 * PLAIN_VISITS):
            gradients(given, 2)
    assert bool(Played.made)
    assert classifier.graphs._refused is (where != "nowhere")


@pytest.mark.parametrize("method", ["fringe", "ig"])
def test_a_model_that_is_not_recorded_gives_the_same_map_each_time(device, method):
    """Rows are filled up before a model is refused, and so after it: their number changes the rounding."""
    model, x = Changes("attribute").eval().to(device, torch.float32), images(3, device, torch.float32)
    classifier = Classifier(model)
    first, second, third = (fringe.attribute(classifier, x, method=method).values for _ in range(3))
    assert classifier.graphs._refused
    assert torch.equal(first, third)
    assert torch.equal(second, third)


def test_a_model_whose_results_differ_is_run_as_it_is(device):
    model = Counts().eval().to(device)
    classifier = Classifier(model, cuda_graphs=True)
    with begun(classifier, images(2, device)) as given:
        for _ in range(2 * PLAIN_VISITS):
            gradients(given, 2)
        assert classifier.graphs._refused
        calls = model.calls
        gradients(given, 2)
    assert model.calls == calls + 1


@pytest.mark.parametrize("of_all_modules", [False, True])
def test_hooks_run_at_each_call(device, of_all_modules):
    model, x, runs, counts = network(device), images(2, device), [], []
    register = register_module_forward_pre_hook if of_all_modules else model[0].register_forward_pre_hook
    handle = register(lambda *_: runs.append(1))
    for graphs in (False, True):
        classifier = Classifier(model, cuda_graphs=graphs)
        for _ in range(PLAIN_VISITS + 1):
            runs.clear()
            fringe.attribute(classifier, x, method="fringe:fast")
        counts.append(len(runs))
        assert not (classifier.graphs and classifier.graphs._recordings)
    assert counts[0] == counts[1] > 0
    handle.remove()
    for _ in range(PLAIN_VISITS + 1):
        fringe.attribute(classifier, x, method="fringe:fast")
    assert classifier.graphs._recordings


@pytest.mark.parametrize(("error", "tried"), [(torch.OutOfMemoryError("CUDA out of memory"), 2), (RuntimeError(), 1)])
def test_without_a_graph_calls_are_plain(on_cpu, monkeypatch, error, tried):
    """Memory may suffice for fewer images; what cannot be recorded is not tried again."""
    calls = []

    def fails(*arguments):
        calls.append(arguments)
        raise error

    monkeypatch.setattr(CUDAGraphs, "recorder", fails)
    with begun(Classifier(network(), cuda_graphs=True), images(8)) as given:
        for count in (8, 1):
            for _ in range(PLAIN_VISITS + 3):
                gradients(given, count)
    assert len(calls) == tried
