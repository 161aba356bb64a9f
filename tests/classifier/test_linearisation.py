"""Jacobian products from one forward pass: dense Jacobians, exact pass counts, the three scores."""

import pytest
import torch
from classifier_toys import CLASSES, NETWORKS, dense_jacobian, jvp, network, normal, problem, vjp
from torch import nn

from fringe import Classifier


class CountingCalls(nn.Module):
    """Counts the calls, and the rows that pass through it."""

    def __init__(self, model):
        super().__init__()
        self.model, self.calls, self.rows = model, 0, 0

    def forward(self, x):
        self.calls += 1
        self.rows += x.shape[0]
        return self.model(x)


@pytest.fixture(params=NETWORKS, scope="module")
def case(request):
    return problem(request.param)


@pytest.mark.parametrize("frozen", [False, True])
class TestProducts:
    @pytest.mark.parametrize("mode", ["double_backward", "forward"])
    def test_are_those_of_the_dense_jacobian(self, case, frozen, mode):
        case.model.requires_grad_(not frozen)
        classifier = Classifier(case.model)
        if mode == "forward":
            classifier.jvp_mode = mode
        point = classifier.linearise(case.x)
        assert torch.allclose(point.value, case.model(case.x), rtol=1e-12, atol=1e-12)
        for seed in range(2):
            u, v = normal(3, CLASSES, seed=seed), normal(*case.x.shape, seed=seed)
            assert torch.allclose(point.vjp(u), vjp(case.jacobian, u), rtol=1e-10, atol=1e-12)
            assert torch.allclose(point.jvp(v), jvp(case.jacobian, v), rtol=1e-10, atol=1e-12)
        first = classifier.linearise(case.x).jvp(v)  # also if it comes first
        assert torch.allclose(first, jvp(case.jacobian, v), rtol=1e-10, atol=1e-12)
        assert classifier.jvp_mode == mode

    def test_are_adjoint_in_float32(self, case, frozen):
        model = network(case.name, torch.float32).requires_grad_(not frozen)
        point = Classifier(model).linearise(case.x.float())
        u, v = normal(3, CLASSES, dtype=torch.float32), normal(*case.x.shape, dtype=torch.float32)
        left, right = (u * point.jvp(v)).sum(), (point.vjp(u) * v).sum()
        assert abs(left - right) <= 1e-5 * (u.norm() * point.jvp(v).norm() + point.vjp(u).norm() * v.norm())


class TestPasses:
    @pytest.mark.parametrize(
        ("mode", "products", "counted", "calls"),
        [
            ("double_backward", "ujjjjj", (3, 15, 3), 1),  # one forward pass serves all
            ("double_backward", "jj", (3, 6, 3), 1),  # a JVP that comes first costs one VJP, once
            ("forward", "ujjjjj", (18, 15, 3), 6),  # a forward pass each
        ],
    )
    def test_of_products(self, mode, products, counted, calls):
        spy = CountingCalls(network("reused module")).eval()
        classifier = Classifier(spy)
        classifier.jvp_mode = mode
        point = classifier.linearise(normal(3, 3, 6, 6))
        for seed, product in enumerate(products):
            point.vjp(normal(3, CLASSES)) if product == "u" else point.jvp(normal(3, 3, 6, 6, seed=seed))
        passes = classifier.passes
        assert (passes.forward, passes.jvp, passes.vjp) == counted
        assert (spy.calls, spy.rows) == (calls, 3 * calls)

    @pytest.mark.parametrize(("batch_size", "calls"), [(1, 7), (2, 4), (7, 1), ("auto", 1)])
    def test_a_score_gradient_costs_one_forward_and_one_vjp_an_image(self, batch_size, calls):
        spy = CountingCalls(network("reused module")).eval()
        classifier = Classifier(spy, batch_size=batch_size)
        classifier.score_gradient(normal(7, 3, 6, 6), torch.arange(7) % CLASSES)
        assert vars(classifier.passes) == {"forward": 7, "jvp": 0, "vjp": 7}
        assert (spy.calls, spy.rows) == (calls, 7)


SCORES = {
    "logit": lambda logits: logits,
    "log_probability": lambda logits: logits.log_softmax(1),
    "probability": lambda logits: logits.softmax(1),
}


@pytest.mark.parametrize("kind", SCORES)
class TestScores:
    def test_gradient_equals_autograd(self, kind):
        model, x, target = network("convolutions with batch normalisation"), normal(3, 3, 8, 8), torch.tensor([4, 0, 2])
        leaf = x.clone().requires_grad_(True)
        expected = SCORES[kind](model(leaf))[range(3), target]
        (gradient,) = torch.autograd.grad(expected.sum(), leaf)
        found, found_gradient = Classifier(model, score=kind).score_gradient(x, target)
        assert torch.allclose(found, expected, rtol=1e-12)
        assert torch.allclose(found_gradient, gradient, rtol=1e-10, atol=1e-13)

    @pytest.mark.parametrize("spread", [0.0, 1.0, 300.0])
    def test_cotangent_is_the_gradient_in_the_logits(self, kind, spread):
        logits, target = (spread * normal(4, CLASSES)).requires_grad_(True), torch.tensor([0, 1, 4, 4])
        classifier = Classifier(nn.Identity(), score=kind)
        (expected,) = torch.autograd.grad(classifier.score(logits, target).sum(), logits)
        assert torch.allclose(classifier.score_cotangent(logits.detach(), target), expected, rtol=1e-12, atol=1e-15)
        several = torch.tensor([[0, 1], [1, 2], [4, 3], [4, 0]])
        contrast = torch.tensor([[2, 0], [0, 4], [3, 4], [1, 2]])
        other = Classifier(nn.Identity())  # that is asked for this kind alone
        found = other.score_cotangent(logits.detach(), several, contrast, kind)
        for k in range(2):
            (expected,) = torch.autograd.grad(other.score(logits, several, contrast, kind)[:, k].sum(), logits)
            assert torch.allclose(found[:, k], expected, rtol=1e-12, atol=1e-15)
            literal = SCORES[kind](logits).gather(1, torch.stack((several[:, k], contrast[:, k]), 1))
            score = other.score(logits, several, contrast, kind)[:, k]
            assert torch.allclose(score, literal[:, 0] - literal[:, 1], rtol=1e-12, atol=1e-15)

    @pytest.mark.parametrize("contrast", [None, torch.tensor([1])])
    def test_near_certainty_single_precision_is_as_exact_as_double(self, kind, contrast):
        logits, target = torch.tensor([[20.0, 1.0, 2.0, 0.5]]), torch.tensor([0])  # 1 - p = 2.4e-8
        classifier = Classifier(nn.Identity(), score=kind)
        for function in (classifier.score, classifier.score_cotangent):
            single, double = (function(given, target, contrast) for given in (logits, logits.double()))
            assert single.dtype == torch.float32
            assert torch.allclose(single.double(), double, rtol=1e-7, atol=0)


@pytest.mark.parametrize("argument", ["mode", "output", "score"])
def test_unknown_words_are_refused(argument):
    with pytest.raises(ValueError, match=f"{argument}: got 'train', expected one of"):
        Classifier(nn.Identity(), **{argument: "train"})


def test_a_model_that_cannot_be_called_is_named():
    with pytest.raises(ValueError, match="model: expected a module or callable, got dict"):
        Classifier({"weights": 1})


def test_integer_inputs_are_told_what_to_do():
    with pytest.raises(ValueError, match=r"got dtype torch\.uint8, expected floating point; scale and normalise"):
        Classifier(nn.Identity()).logits(torch.zeros(2, 3, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"got dtype torch\.int64, .*texts are .*tokenizer=.*embeddings") as e:
        Classifier(nn.Identity()).logits(torch.zeros(2, 3, dtype=torch.int64))
    assert "pixels" not in str(e.value)


def test_non_contiguous_and_channels_last_inputs_are_the_same_inputs():
    model, x = network("convolutions with batch normalisation"), normal(3, 3, 8, 8)
    u, v = normal(3, CLASSES), normal(3, 3, 8, 8)
    expected = dense_jacobian(model, x)
    for other in (x.to(memory_format=torch.channels_last), x.transpose(2, 3).contiguous().transpose(2, 3)):
        point = Classifier(model).linearise(other)
        assert torch.allclose(point.vjp(u), vjp(expected, u), rtol=1e-10, atol=1e-12)
        assert torch.allclose(point.jvp(v), jvp(expected, v), rtol=1e-10, atol=1e-12)
        assert point.vjp(u).is_contiguous()  # whatever layout the network computes in
