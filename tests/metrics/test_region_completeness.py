"""Region completeness on a sum of two networks whose terms are known."""

import pytest
import torch
from torch import nn

from fringe.attribution import get_method
from fringe.classifier import Classifier
from fringe.metrics import EvaluationContext, evaluate, get_metric
from fringe.paths import Problem
from toys import normal


class TwoHalves(nn.Module):
    """Logits ``f(left) + b f(right)`` of images (1, 6, 12); the two middle columns are read by neither."""

    def __init__(self, weight: float = 0.5, power: int = 1):
        super().__init__()
        self.rows = nn.Parameter(normal(3, 30, seed=4), requires_grad=False)
        self.weight, self.power = weight, power
        self.eval()

    def parts(self, x):
        left = torch.zeros(6, 12, dtype=torch.bool)
        left[:, :5] = True
        right = left.flip(1)
        terms = [
            scale * (x[:, 0, :, columns].flatten(1) ** self.power) @ self.rows.T
            for scale, columns in ((1.0, slice(0, 5)), (self.weight, slice(7, 12)))
        ]
        return torch.stack([left, right]), torch.stack(terms)

    def forward(self, x):
        return self.parts(x)[1].sum(0)


X = normal(4, 1, 6, 12, seed=7)


def score(method, model=None, x=X, score="logit", values=None, batch_size="auto", **more):
    classifier = Classifier(model or TwoHalves(), score=score, batch_size=batch_size)
    problem = Problem.of(classifier, x, target=[0, 1, 2, 0], **more)
    context = EvaluationContext(problem, torch.ones(len(x), 6, 12).bool())
    method = get_method(method) if isinstance(method, str) else method

    def explain(problem):
        return method.attribute(problem)

    with classifier.session(x.device):
        maps = explain(context.problem) if values is None else values
        return evaluate(context, maps, ["region_completeness"], explain)["region_completeness"]


@pytest.mark.parametrize("method", ["ig", "guided_ig"])
def test_a_path_on_an_affine_network_is_exact(method):
    scored = score(method)
    assert scored.values.max() < 1e-9
    assert not scored.flags["no_identity"].any()
    assert scored.details["outside"].max() == 0


def test_it_is_exact_of_a_difference_of_two_classes_and_in_batches():
    scored = score("ig", contrast=[1, 2, 0, 2], batch_size=3)
    assert scored.values.max() < 1e-9
    assert not scored.flags["no_difference"].any()


def test_the_end_point_is_the_methods_own():
    """The path of FRInGe ends elsewhere than at zero: against zero the same map would be wrong."""
    own = score("fringe", TwoHalves(power=3))
    assert own.values.max() < 0.05
    ends = score(Ended("fringe"), TwoHalves(power=3))
    assert ends.values.mean() > 2 * own.values.mean()
    assert ends.flags["no_identity"].all()


@pytest.mark.parametrize("method", ["agi", "idg"])
def test_the_end_of_a_path_is_none_of_a_map_that_does_not_add_up_to_its_change(method):
    """AGI adds up a path of the probability to each other class, and records the first; IDG weighs its gradients."""
    scored = score(method, TwoHalves(power=3))
    assert scored.flags["no_identity"].tolist() == [True] * 4
    torch.testing.assert_close(scored.values, score(Ended(method), TwoHalves(power=3)).values)


class Ended:
    """The maps of a method whose path is not recorded."""

    def __init__(self, name):
        self.method = get_method(name)

    def attribute(self, problem):
        return self.method.attribute(problem).values


def test_shares_by_hand():
    """A map of 3 on the left and 1 on the right, on a network that is twice the left and once the right."""
    model, x = TwoHalves(weight=0.5), X.clone()
    x[:, :, :, 7:] = x[:, :, :, :5]
    values = torch.zeros_like(x)
    values[:, 0, 0, 0], values[:, 0, 0, 11] = 3.0, 1.0
    scored = score(Ended("ig"), model, x, values=values)
    sign = model(x).gather(1, torch.tensor([[0], [1], [2], [0]]))[:, 0].sign()
    expected = torch.where(sign > 0, 3 / 4 - 2 / 3, 0.5 * (3 / 4 + 2 / 3 + 1 / 4 + 1 / 3))
    torch.testing.assert_close(scored.values, expected.double())
    values[:, 0, 0, 6] = -4.0  # as much on pixels that nothing reads
    scored = score(Ended("ig"), model, x, values=values)
    torch.testing.assert_close(scored.details["outside"], torch.full((4,), 0.5).double())
    torch.testing.assert_close(scored.details["share"], torch.full((4,), 3 / 8).double())
    torch.testing.assert_close(scored.details["exact_share"], 2 / 3 * sign.double())
    right, wrong = (0.5 * (abs(3 / 8 - s * 2 / 3) + abs(1 / 8 - s / 3) + 0.5) for s in (1, -1))
    torch.testing.assert_close(scored.values, torch.where(sign > 0, right, wrong).double())


def test_what_is_no_sum_has_no_score():
    network = nn.Sequential(nn.Flatten(), nn.Linear(72, 3)).double().eval()
    for scored in (score("ig", network), score("ig", score="probability")):
        assert scored.values.isnan().all()
        assert scored.flags["no_regions"].all()


def test_the_planned_maps_and_passes_are_those_that_are_made():
    classifier, metric, made = Classifier(TwoHalves()), get_metric("region_completeness"), []
    context = EvaluationContext(Problem.of(classifier, X), torch.ones(len(X), 6, 12).bool())

    def explain(problem):
        made.append(len(problem.inputs))
        return problem.inputs

    before = classifier.passes.forward
    evaluate(context, X, [metric], explain)
    assert made == [metric.planned_maps * len(X)]
    assert classifier.passes.forward - before == metric.planned_passes * len(X)
