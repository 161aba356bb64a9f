"""Passes recorded as CUDA graphs: their books on any machine, their numbers on a CUDA device."""

import copy
from typing import ClassVar
from unittest import mock

import pytest
import torch
from torch import nn

import fringe
from fringe._arguments import NO_ARGUMENTS, ForwardArguments
from fringe._linearisation import MOST, PLAIN_VISITS, CUDAGraphs, Linearisation, RecordedLinearisation, RecordedPasses
from fringe.classifier import Classifier, PassCounts

needs_cuda = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


class Played(RecordedPasses):
    """Replays by computing again in the same memory, which works on a CPU."""

    made: ClassVar[list["Played"]] = []

    def _record(self):
        Played.made.append(self)
        self._logits = self._forward().detach()
        self.u, self.v = torch.zeros_like(self._logits), torch.zeros_like(self.x)
        self._product, self._column = torch.zeros_like(self.x), torch.zeros_like(self._logits)

    def _play(self, result, compute):
        with mock.patch.object(self._network, "passes", PassCounts()):
            x = self.x.detach().clone()
            result.detach().copy_(compute(Linearisation(self._network, x, self.tangents, NO_ARGUMENTS)))

    def _replay_forward(self):
        self.ready = False  # what a JVP differentiates is computed by a VJP
        self._play(self._logits, lambda point: point.value)

    def _replay_vjp(self):
        self.ready = True
        self._play(self._product, lambda point: point.vjp(self.u))

    def _replay_jvp(self):
        assert self.ready
        self._play(self._column, lambda point: point.jvp(self.v.detach()))


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


def before(classifier, x, tangents=False):
    """The calls that are plain."""
    for _ in range(PLAIN_VISITS + 1):  # the first checks the outputs and does not count
        assert type(classifier.linearise(x, tangents=tangents)) is Linearisation


DEVICES = ["cpu", pytest.param("cuda", marks=needs_cuda)]


@pytest.fixture(params=DEVICES)
def device(request):
    if request.param == "cpu" and torch.cuda.is_available():
        pytest.skip("the CUDA device is tried")
    return request.param


@pytest.mark.parametrize("tangents", [False, True])
def test_products_are_those_of_the_plain_passes(device, tangents):
    model, x = network(device), images(5, device)
    plain, graphs = Classifier(model), Classifier(model, cuda_graphs=True)
    u = torch.randn(5, 4, generator=torch.Generator().manual_seed(2)).to(x)
    v = images(6, device)[1:]
    with graphs.session(x.device), plain.session(x.device):
        before(graphs, x, tangents)
        for rows in (slice(0, 5), slice(2, 5), slice(0, 5)):  # all are filled up to eight
            points = [c.linearise(x[rows], tangents=tangents) for c in (graphs, plain)]
            products = [[p.value, p.vjp(u[rows]), p.vjp(2 * u[rows])] for p in points]
            if tangents:
                for product, point in zip(products, points, strict=True):
                    product.append(point.jvp(v[rows]))
            for found, expected in zip(*products, strict=True):
                torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
                assert found.is_contiguous()
    assert isinstance(points[0], RecordedLinearisation)
    assert type(points[1]) is Linearisation


def test_a_point_that_is_left_is_visited_again(device):
    model, x = network(device), images(4, device)
    graphs, u = Classifier(model, cuda_graphs=True), torch.eye(4).to(x)
    with graphs.session(x.device):
        before(graphs, x)
        expected = Classifier(model).linearise(x, tangents=False).vjp(u)
        first, second = (graphs.linearise(part, tangents=False) for part in (x, x.flip(0)))
        count = graphs.passes.forward
        torch.testing.assert_close(second.vjp(u.flip(0)), expected.flip(0))
        assert graphs.passes.forward == count
        torch.testing.assert_close(first.vjp(u), expected)
        assert graphs.passes.forward == count + 4
        torch.testing.assert_close(first.vjp(2 * u), 2 * expected)
        assert graphs.passes.forward == count + 4
        for _ in range(PLAIN_VISITS):
            graphs.linearise(x)
        expected = Classifier(model).linearise(x).jvp(x)
        first, second = (graphs.linearise(part) for part in (x, x.flip(0)))
        for _ in range(2):
            torch.testing.assert_close(second.jvp(x.flip(0)), expected.flip(0))
            torch.testing.assert_close(first.jvp(x), expected)
        count = graphs.passes.vjp
        torch.testing.assert_close(first.jvp(2 * x), 2 * expected)
        assert graphs.passes.vjp == count


@pytest.mark.parametrize("method", ["fringe", "ig", "fringe:full_metric", fringe.GuidedIG(steps=10)])
def test_maps_and_counts_are_those_without_graphs(device, method):
    model, x = network(device), images(5, device)
    expected, found = (
        fringe.attribute(Classifier(model, batch_size=4, cuda_graphs=graphs), x, method=method)
        for graphs in (False, True)
    )
    error = (found.values - expected.values).norm() / expected.values.norm()
    assert float(error) < 1e-6
    assert found.passes == expected.passes
    assert found.verdict == expected.verdict


@pytest.fixture
def on_cpu():
    if torch.cuda.is_available():
        pytest.skip("counted on a CPU")


def sizes():
    return [len(passes.x) for passes in Played.made]


def test_copies_of_a_classifier_go_on_to_count_together(on_cpu):
    x, graphs = images(2), Classifier(network(), cuda_graphs=True)
    other = copy.copy(graphs)
    with graphs.session(x.device):
        before(graphs, x)
        assert isinstance(graphs.linearise(x, tangents=False), RecordedLinearisation)
    assert other.passes == graphs.passes == PassCounts(forward=2 * (PLAIN_VISITS + 2))


def test_what_is_recorded(on_cpu):
    """One image, eight, or a power of two up to the batch size, from the fourth call on; no other arguments."""
    x, graphs = images(MOST + 1), Classifier(network(), batch_size=24, cuda_graphs=True)
    with graphs.session(x.device):
        graphs.logits(x)
        for count in (3, 2, 4, 1, 1, 1, 20, 20, 20, MOST + 1, MOST + 1, MOST + 1):
            graphs.linearise(x[:count], tangents=False)
        assert sizes() == []
        for count in (8, 3, 1, 1, 20, 20, MOST + 1):
            graphs.linearise(x[:count], tangents=False)
        assert sizes() == [8, 1, 24]
        for _ in range(PLAIN_VISITS + 1):
            assert len(Played.made) == 3
            graphs.linearise(x[:4], tangents=True)
        assert [passes.tangents for passes in Played.made] == [False, False, False, True]
        given = ForwardArguments.of(4, kwargs={"flag": True})
        assert graphs._graphs.linearise(graphs, x[:4], False, given) is None


def test_records_serve_until_the_network_changes(on_cpu):
    model, x = network(), images(4)
    graphs = Classifier(model, cuda_graphs=True)

    def made(classifier=graphs):
        count = len(Played.made)
        for _ in range(PLAIN_VISITS + 2):
            with classifier.session(x.device):
                classifier.logits(x)
                point = classifier.linearise(x, tangents=False)
                torch.testing.assert_close(point.value, classifier.model(x).detach())
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
    graphs.linearise(x, tangents=False)  # outside of a session
    assert made(Classifier(lambda x: model(x), cuda_graphs=True)) == 0  # nothing tells whether a function has changed


class Reads(nn.Module):
    """Reads a number back from the device, which no graph can hold."""

    def __init__(self):
        super().__init__()
        self.model = network()

    def forward(self, x):
        return self.model(x) if float(x.sum()) < 1e9 else x.new_zeros(len(x), 4)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_model_that_cannot_be_recorded_is_run_as_it_is(caplog):
    model, x = Reads().cuda(), images(3, "cuda")
    expected = fringe.attribute(Classifier(model), x, method="fringe")
    found = fringe.attribute(Classifier(model, cuda_graphs=True), x, method="fringe")
    torch.testing.assert_close(found.values, expected.values)
    assert caplog.text.count("no CUDA graph of the model") == 1
    torch.testing.assert_close(torch.ones(3, device="cuda").sum().cpu(), torch.tensor(3.0))


@pytest.mark.parametrize(("error", "tried"), [(torch.OutOfMemoryError("CUDA out of memory"), 2), (RuntimeError(), 1)])
def test_without_a_graph_passes_are_plain(on_cpu, monkeypatch, error, tried):
    """Memory may suffice for fewer images; what cannot be recorded is not tried again."""
    calls = []

    def fails(*arguments):
        calls.append(arguments)
        raise error

    monkeypatch.setattr(CUDAGraphs, "recorder", fails)
    x, graphs = images(8), Classifier(network(), cuda_graphs=True)
    with graphs.session(x.device):
        graphs.logits(x)
        for count in (8, 1):
            for _ in range(PLAIN_VISITS + 3):
                assert type(graphs.linearise(x[:count], tangents=False)) is Linearisation
    assert len(calls) == tried


def test_what_a_record_was_not_made_for(on_cpu):
    """JVPs without tangents are those of forward mode, and each rounding has its own records."""
    x, graphs = images(4), Classifier(network(), cuda_graphs=True)
    with graphs.session(x.device):
        before(graphs, x)
        point = graphs.linearise(x, tangents=False)
        assert isinstance(point, RecordedLinearisation)
        torch.testing.assert_close(point.jvp(x), Classifier(network()).linearise(x).jvp(x))
        graphs.tf32 = True
        assert type(graphs.linearise(x, tangents=False)) is Linearisation
        with graphs.in_full_precision():
            assert isinstance(graphs.linearise(x, tangents=False), RecordedLinearisation)
