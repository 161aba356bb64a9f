"""Maps of random networks and of other classes: literal loops, SciPy, laws, and networks whose answer is known."""

import copy
import dataclasses

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor, nn

import fringe
from fringe import BinaryClassifier, Classifier, InputError
from fringe.bench.experiments import ExperimentSpec, build_plan, planned_work_of
from fringe.evaluation import planned_work
from fringe.metrics import MPRT, EfficientMPRT, EvaluationContext, RandomLogit, evaluate
from fringe.metrics._randomisation import _RandomNetworks, similarity
from fringe.paths import Problem
from toys import build, context_of, images, mlp, normal

X = images(3)


def gradients(problem: Problem) -> Tensor:
    return problem.logits_gradient(problem.inputs, problem.every_row)[1]


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


class Asked:
    """Gradients, and what was asked: the weights and the classes of each problem."""

    def __init__(self):
        self.states: list[dict[str, Tensor]] = []
        self.targets: list[Tensor] = []

    def __call__(self, problem: Problem) -> Tensor:
        self.states.append(state(problem.model.module))
        self.targets.append(problem.target)
        return gradients(problem)


def scored(metric, model=None, x=X, explain=gradients, **options):
    context = context_of(build() if model is None else model, x, **options)
    return evaluate(context, gradients(context.problem), [metric], explain)[metric.name]


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {name for name in before if not torch.equal(before[name], after[name])}


class Plain(nn.Module):
    """A matrix and an offset that nobody has a ``reset_parameters`` for."""

    def __init__(self, weight: Tensor, bias: Tensor):
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight.T + self.bias


class Tied(nn.Module):
    """Two layers with one matrix."""

    def __init__(self):
        super().__init__()
        self.first, self.middle = Plain(normal(8, 8), normal(8)), Plain(normal(8, 8, seed=2), normal(8))
        self.last = Plain(normal(8, 8), normal(8))
        self.last.weight = self.first.weight
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x).tanh()).tanh())


# Similarity and entropy


@pytest.mark.parametrize("signed", [True, False])
def test_spearman_is_scipys(signed):
    a, b = normal(4, 2, 8, 8).mul(2).round(), (normal(4, 2, 8, 8) + normal(4, 2, 8, 8, seed=3)).round()
    result = similarity(a, b, "spearman", signed=signed)
    for i in range(4):
        first, second = (x[i].flatten() if signed else x[i].flatten().abs() for x in (a, b))
        expected = scipy.stats.spearmanr(first.numpy(), second.numpy()).statistic
        assert float(result[i]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("shape", [(2, 9, 12), (1, 7, 7), (3, 4, 6)])
def test_structural_similarity_is_that_of_scikit_image(shape):
    metrics = pytest.importorskip("skimage.metrics")
    a, b = normal(3, *shape), normal(3, *shape) + normal(3, *shape, seed=3)
    result = similarity(a, b, "ssim", signed=True)
    window = min(7, *(side - 1 + side % 2 for side in shape[1:]))
    for i in range(3):
        first, second = (x[i].numpy() / np.abs(x[i].numpy()).max() for x in (a, b))
        span = max(first.max(), second.max()) - min(first.min(), second.min())
        every = [
            metrics.structural_similarity(p, q, win_size=window, data_range=span)
            for p, q in zip(first, second, strict=True)
        ]
        assert float(result[i]) == pytest.approx(np.mean(every), abs=1e-12)


@pytest.mark.parametrize("kind", ["spearman", "ssim"])
def test_similarity_of_maps_without_an_order(kind):
    a = normal(3, 2, 8, 8)
    constant, broken = torch.ones_like(a), a.clone()
    broken[1, 0, 0, 0] = torch.nan
    assert similarity(a, a, kind, signed=True).tolist() == [1.0, 1.0, 1.0]
    assert similarity(constant, constant, kind, signed=True).tolist() == [1.0, 1.0, 1.0]
    assert similarity(a, constant, kind, signed=True).tolist() == [0.0, 0.0, 0.0]
    assert similarity(constant, a, kind, signed=True).tolist() == [0.0, 0.0, 0.0]
    assert similarity(a, broken, kind, signed=True).isnan().tolist() == [False, True, False]


# MPRT


@pytest.mark.parametrize(("order", "how"), [("top_down", "reinit"), ("bottom_up", "shuffle"), ("top_down", "gaussian")])
def test_mprt_is_a_loop_over_layers(order, how):
    """The weights of each stage, put into a copy of the network by hand, give the maps that the score compares."""
    model, asked = build(), Asked()
    result = scored(MPRT(order=order, how=how, stages=None), model, explain=asked)
    layers = [["0.weight", "0.bias"], ["1.weight", "1.bias"], ["6.weight", "6.bias"]]
    layers = layers[::-1] if order == "top_down" else layers
    before, original = state(model), gradients(context_of(model, X).problem)
    expected = [torch.ones(3, dtype=torch.float64)]
    for stage, weights in enumerate(asked.states):
        assert changed(before, weights) <= {name for layer in layers[: stage + 1] for name in layer}
        assert {layer[0] for layer in layers[: stage + 1]} <= changed(before, weights)
        twin = copy.deepcopy(model)
        twin.load_state_dict(weights)
        target = context_of(model, X).problem.target
        maps = gradients(context_of(twin, X, target).problem)
        pairs = zip(original.abs().flatten(1).numpy(), maps.abs().flatten(1).numpy(), strict=True)
        expected.append(torch.tensor([scipy.stats.spearmanr(a, b).statistic for a, b in pairs]))
    curve = torch.stack(expected, 1)
    torch.testing.assert_close(result.curves["similarity"], curve)
    torch.testing.assert_close(result.values, curve[:, 1:].mean(1))
    torch.testing.assert_close(scored(MPRT(order=order, how=how, summary="last"), model).values, curve[:, -1])


def test_new_weights_are_those_of_a_new_network():
    """Within one over the root of an output's inputs; factors of a normalisation 1, offsets 0."""
    asked = Asked()
    scored(EfficientMPRT(), explain=asked)
    weights = asked.states[0]
    assert torch.equal(weights["1.weight"], torch.ones(4, dtype=torch.float64))
    assert torch.equal(weights["1.bias"], torch.zeros(4, dtype=torch.float64))
    for name, inputs in {"0.weight": 18, "0.bias": 18, "6.weight": 16, "6.bias": 16}.items():
        assert float(weights[name].abs().max()) <= inputs**-0.5
    assert float(weights["0.weight"].std()) == pytest.approx((18 * 3) ** -0.5, rel=0.2)


def test_shuffled_and_normal_weights():
    model, asked = build(), Asked()
    scored(EfficientMPRT(how="shuffle"), model, explain=asked)
    scored(EfficientMPRT(how="gaussian"), model, explain=asked)
    for name, value in model.named_parameters():
        assert torch.equal(asked.states[0][name].flatten().sort().values, value.flatten().sort().values)
    drawn, value = asked.states[1]["0.weight"], model.state_dict()["0.weight"]
    assert float(drawn.mean()) == pytest.approx(float(value.mean()), abs=3 * float(value.std()) / 72**0.5)
    assert float(drawn.std()) == pytest.approx(float(value.std()), rel=0.3)


def test_parts_of_several_layers():
    asked, before = Asked(), state(build())
    result = scored(MPRT(stages=2), explain=asked)
    assert result.curves["similarity"].shape == (3, 3)
    assert changed(before, asked.states[0]) == {"6.weight", "6.bias"}
    assert len(changed(before, asked.states[1])) == 6


def test_any_tensor_counts_and_a_tied_one_is_random_once():
    model, asked = Tied(), Asked()
    scored(MPRT(stages=None), model, normal(3, 8), explain=asked)
    first, second, third = (changed(state(model), one) for one in asked.states)
    assert first == {"first.weight", "last.weight", "last.bias"}
    assert torch.equal(asked.states[0]["first.weight"], asked.states[0]["last.weight"])
    assert second == first | {"middle.weight", "middle.bias"}
    assert third == second | {"first.bias"}


class Remembering(Plain):
    """Computes a bias from its weights once, in evaluation mode, as the attention of timm's LeViT does."""

    def __init__(self):
        super().__init__(normal(4, X[0].numel()), normal(4, seed=1))
        self.seeds, self.memory = nn.Parameter(normal(4, seed=8)), {}

    def train(self, mode=True):
        if mode:
            self.memory = {}
        return super().train(mode)

    def forward(self, x):
        bias = self.seeds.exp()
        if not self.training:
            bias = self.memory.setdefault("bias", bias)
        return super().forward(x) * bias


def test_what_a_network_remembers_of_its_weights_is_forgotten():
    model = Remembering().eval()
    with torch.no_grad():
        model(X)
    before = dict(model.memory)
    networks = _RandomNetworks(Classifier(model), "gaussian", context_of(model, X).problem.rng)
    for names in (("seeds",), ()):
        with networks.randomised(names) as random, torch.no_grad():
            fresh = Remembering()
            fresh.load_state_dict(random.module.state_dict())
            torch.testing.assert_close(random.module(X), fresh.eval()(X))
            assert not any(part.training for part in random.module.modules())
    assert model.memory.keys() == before.keys()
    assert torch.equal(model.memory["bias"], before["bias"])


def test_all_methods_meet_the_same_networks():
    model, first, second, alone = build(), Asked(), Asked(), Asked()
    context = context_of(model, X)
    for asked in (first, second):
        evaluate(context, gradients(context.problem), ["mprt", "efficient_mprt"], asked)
    evaluate(context_of(model, X[1:2]), gradients(context_of(model, X[1:2]).problem), ["mprt"], alone)
    for one, other in zip(first.states, second.states, strict=True):
        assert changed(one, other) == set()
    for one, other in zip(first.states[:3], alone.states, strict=True):
        assert changed(one, other) == set()
    assert changed(first.states[2], first.states[3]) == set()  # all layers random: that of the efficient test
    other = Asked()
    evaluate(context_of(model, X, seed=1), gradients(context.problem), ["efficient_mprt"], other)
    assert changed(first.states[3], other.states[0])


def test_maps_of_noisy_inputs_are_averaged():
    metric = MPRT(samples=4, noise=0.2, stages=1)
    model = build()
    context, asked = context_of(model, X), Asked()
    result = evaluate(context, gradients(context.problem), [metric], asked)["mprt"]
    twin = copy.deepcopy(model)
    twin.load_state_dict(asked.states[-1])
    problem = context.problem

    def smooth(network: nn.Module) -> Tensor:
        span = X.flatten(1).amax(1) - X.flatten(1).amin(1)
        inputs = [X] + [
            X
            + 0.2
            * span.view(-1, 1, 1, 1)
            * torch.stack([problem.rng.normal(f"mprt {key} {m}", x) for key, x in zip(problem.keys, X, strict=True)])
            for m in (1, 2, 3)
        ]
        return torch.stack([gradients(context_of(network, x, problem.target).problem) for x in inputs]).mean(0)

    torch.testing.assert_close(result.values, similarity(smooth(model), smooth(twin), "spearman", signed=False))


# Refusals and controls


class Loud(nn.Module):
    """Large weights behind a small factor: with new weights the prediction is uniform to eleven digits."""

    def __init__(self):
        super().__init__()
        self.head = Plain(normal(3, 128).mul(1e12), normal(3).mul(1e12))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) * 1e-12


def test_a_refusal_on_the_random_network_is_the_right_answer():
    """FRInGe says that a uniform prediction holds nothing to explain; IG explains the noise."""
    table = fringe.compare(Loud(), X, ["fringe", "ig"], ["mprt", "efficient_mprt"], controls=False)
    by_label = {row.label: row.scores for row in table.rows}
    mprt, efficient = by_label["fringe"]["mprt"], by_label["fringe"]["efficient_mprt"]
    assert mprt.values.tolist() == [0.0, 0.0, 0.0]
    assert mprt.flags["refused"].all()
    assert efficient.flags["refused"].all()
    assert mprt.details["refused_share"].tolist() == [1.0, 1.0, 1.0]
    assert mprt.details["random_steps"].tolist() == [0.0, 0.0, 0.0]
    assert efficient.values.isnan().all()
    assert not efficient.flags["undefined"].any()
    for scores in by_label["ig"].values():
        assert not scores.flags["refused"].any()
        assert scores.values.isfinite().all()


def test_maps_that_do_not_depend_on_the_model_score_worst():
    table = fringe.compare(build(), X, ["ig"], ["mprt", "mprt:ssim", "efficient_mprt", "random_logit"])
    rows = {row.label: {name: one.values for name, one in row.scores.items()} for row in table.rows}
    for control in ("edge", "random"):
        for name in ("mprt", "mprt:ssim", "random_logit"):
            assert rows[control][name].tolist() == [1.0, 1.0, 1.0]
        assert rows[control]["efficient_mprt"].tolist() == [0.0, 0.0, 0.0]
    zero = next(row for row in table.rows if row.label == "zero").scores
    assert all(scores.values.isnan().all() for scores in zero.values())
    assert zero["mprt"].flags["zero_map"].all()
    assert zero["random_logit"].flags["zero_map"].all()
    assert rows["ig"]["mprt"].max() < 0.9


def test_efficient_mprt_by_hand():
    model, asked = build(), Asked()
    result = scored(EfficientMPRT(bins=50), model, explain=asked)
    twin = copy.deepcopy(model)
    twin.load_state_dict(asked.states[0])
    target = context_of(model, X).problem.target
    for i in range(3):
        before, after = (
            scipy.stats.entropy(np.histogram(gradients(context_of(one, X, target).problem)[i].numpy(), bins=50)[0])
            for one in (model, twin)
        )
        assert float(result.values[i]) == pytest.approx((after - before) / before, abs=1e-12)
        assert float(result.details["entropy"][i]) == pytest.approx(before)
        assert float(result.details["random_entropy"][i]) == pytest.approx(after)


# Random logit


def test_random_logit_explains_another_class():
    model, asked = build(), Asked()
    context = context_of(model, X)
    result = evaluate(context, gradients(context.problem), [RandomLogit()], asked)["random_logit"]
    (other,) = asked.targets
    assert not bool((other == context.problem.target).any())
    maps = gradients(context_of(model, X, other).problem)
    torch.testing.assert_close(result.values, similarity(gradients(context.problem), maps, "ssim", signed=True))


def test_every_other_class_is_drawn_as_often():
    """Over 600 images each of two other classes about 300 times; 4 standard deviations are 49."""
    asked = Asked()
    scored(RandomLogit(similarity="spearman"), x=images(600), target=0, explain=asked)
    counts = torch.bincount(asked.targets[0], minlength=3).tolist()
    assert counts[0] == 0
    assert abs(counts[1] - 300) < 49


def test_opposite_maps_of_two_classes_are_not_called_alike():
    """The map of "no" is minus that of "yes". The structural similarity of the two is near 1, as that of equal ones."""
    a = nn.functional.avg_pool2d(normal(3, 2, 32, 32), 9, 1)
    assert similarity(a, -a, "ssim", signed=True).min() > 0.5
    binary = Classifier(BinaryClassifier(lambda x: x.square().sum((1, 2, 3))))
    context = EvaluationContext(Problem.of(binary, X))
    metrics = ["random_logit", "random_logit:spearman"]
    both = evaluate(context, gradients(context.problem), metrics, gradients)
    assert both["random_logit"].values.isnan().all()
    assert both["random_logit"].flags["two_classes"].all()
    assert both["random_logit:spearman"].values.tolist() == pytest.approx([-1.0] * 3)
    assert "two_classes" not in both["random_logit:spearman"].flags | scored(RandomLogit()).flags  # of three classes
    table = str(fringe.compare(binary, X, ["ig"], ["random_logit"], controls=False))
    assert "metric random_logit: no score (two classes)" in table


@pytest.mark.parametrize("method", ["fringe", "ig"])
def test_several_classes_of_a_method(method):
    """A method with one path for all classes, and one with a path for each; and control maps."""
    model = build()
    metric = RandomLogit(classes=2, similarity="spearman")
    table = fringe.compare(model, X, [method], [metric])
    target = table.target
    maps = fringe.attribute(model, X, method=method, target=target, ids=["0", "1", "2"]).values
    rest = torch.tensor([[c for c in range(3) if c != t] for t in target.tolist()])
    each = [
        similarity(maps, fringe.attribute(model, X, method=method, target=t).values, "spearman", signed=True)
        for t in rest.unbind(1)
    ]
    scores = {row.label: row.scores["random_logit"].values for row in table.rows}
    torch.testing.assert_close(scores[method], torch.stack(each).mean(0))
    assert scores["edge"].tolist() == [1.0, 1.0, 1.0]


# What is refused


def test_what_cannot_be_randomised_is_said():
    with pytest.raises(InputError, match=r"model: got a function, whose weights are not known; pass the torch.nn.Mod"):
        scored(MPRT(), lambda x: x.flatten(1)[:, :3] * 2.0)
    with pytest.raises(InputError, match="model: it has no parameters that could be made random"):
        scored(MPRT(), nn.Flatten().eval())
    model = build()
    model.cache = model[0].weight * 2  # a tensor with a graph, which Python cannot copy
    with pytest.raises(InputError, match="model: its weights cannot be made random, as it cannot be copied"):
        scored(MPRT(), model)


def test_what_cannot_be_compared_is_said():
    rows = normal(3, 6)
    with pytest.raises(
        InputError, match=r"structural similarity is defined for images .* shape \(3, 6\); use .*'spearman'"
    ):
        scored(RandomLogit(), build(mlp), rows)
    assert scored(RandomLogit(similarity="spearman"), build(mlp), rows).values.isfinite().all()
    with pytest.raises(InputError, match=r"random_logit\.classes: got 3, but the model has 3 classes, 2 of them not"):
        scored(RandomLogit(classes=3))
    context = context_of(build(), X, 0)
    problem = dataclasses.replace(context.problem, contrast=torch.ones(3, dtype=torch.int64))
    asked = Asked()
    evaluate(EvaluationContext(problem), gradients(problem), ["random_logit"], asked)
    assert asked.targets[0].tolist() == [2, 2, 2]
    binary = Classifier(BinaryClassifier(nn.Sequential(nn.Flatten(), nn.Linear(128, 1).double())).eval())
    problem = Problem.of(binary, X)
    assert evaluate(EvaluationContext(problem), gradients(problem), ["random_logit"], gradients)


def test_planned_work_counts_the_further_maps():
    ig = fringe.IntegratedGradients(steps=10)
    passes = ig.planned_passes
    metrics = {"mprt": MPRT(stages=5, samples=3), "efficient_mprt": EfficientMPRT(), "random_logit": RandomLogit()}
    work = planned_work({"ig": ig}, metrics, 7, {"random_logit": 2})
    further = [(cost, count) for what, cost, count in work if what == "a map by ig"]
    assert further == [(passes, (3 * 5 + 2) * 7), (passes, 7), (passes, 2), (passes, 7)]
    assert [cost for what, cost, _ in work if what.startswith("the score")] == [0, 0, 0]


def test_planned_work_counts_the_controls():
    """Five are scored, and one of them runs the network as often as FRInGe: for its map, and in each further one."""
    methods = {"f": fringe.FRInGe(steps=7), "ig": fringe.IntegratedGradients(steps=10)}
    chosen = {"methods": list(methods.items()), "metrics": "insertion,random_logit", "n": 3}
    for controls in (False, True):
        work = planned_work_of([build_plan(ExperimentSpec(data="embedded:digits", controls=controls, **chosen))])
        assert [count for what, _, count in work if what.startswith("the score")] == [3 * (9 if controls else 2)] * 2
        maps = [(what, passes, count) for what, passes, count in work if what.startswith("a map")]
        known = [("f", methods["f"]), ("ig", methods["ig"]), *([("diffusion", methods["f"])] if controls else [])]
        assert maps == [(f"a map by {name}", method.planned_passes, 3) for name, method in known] * 2
