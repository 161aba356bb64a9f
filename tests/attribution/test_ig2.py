"""IG2: closed form where features are the image, the literal loop, references, representations, hooks, and cost."""

import dataclasses
import math

import pytest
import torch
from attribution_toys import (
    CLASSES,
    ENTRIES,
    Bare,
    Headed,
    ReluCNN,
    SoftplusMLP,
    images,
    linear,
    problem_of,
    score_and_gradient,
)
from torch import nn

import fringe
from fringe import InputSpace
from fringe._numbers.rng import KeyedGenerator
from fringe.attribution import IG2
from fringe.attribution._integrate import Stats
from fringe.paths import CounterfactualPath, last_linear_layer

POOL = images(12, seed=11)
SPACE = InputSpace(references=POOL)


def only(x, **about) -> InputSpace:
    """A space with these references and no others."""
    return InputSpace(references=x, **about)


def literal(model, features, x, target, reference, steps, eta, low=None, high=None):
    """The published loop of one image and one reference (*S): map, and the points from the input on."""
    goal = features(reference[None])[0]
    z, values, points = x, torch.zeros_like(x), [x]
    for _ in range(steps):
        _, gradient = score_and_gradient(model, z, target)
        leaf = z.clone().requires_grad_(True)
        (u,) = torch.autograd.grad(((features(leaf[None])[0] - goal) ** 2).mean(), leaf)
        moved = z - eta * u / u.norm()
        moved = moved.clamp(low, high) if low is not None else moved
        values += (z - moved) * gradient
        z = moved
        points.append(z)
    return values, points


def draws(model, x, count, seed=0):
    """The numbers in POOL of the references that the method draws for each image."""
    return IG2(references=count)._draw(problem_of(model, x, domain=SPACE, rng=KeyedGenerator(seed)))


@pytest.mark.parametrize(
    ("network", "features"),
    [
        (Headed, lambda model: model.features),
        (ReluCNN, lambda model: model),
        (Bare, lambda model: lambda x: x.flatten(1)),
    ],
    ids=["penultimate", "no layer", "the image itself"],
)
@pytest.mark.parametrize("bounds", [None, (-1.2, 1.4)])
def test_equals_the_literal_loop(network, features, bounds):
    model, x, steps, eta = network(), images(3, seed=5), 12, 0.25
    low, high = bounds or (None, None)
    space = only(POOL, low=low, high=high)
    method = IG2(references=2, steps=steps, eta=eta)
    found = fringe.attribute(model, x, method=method, space=space, batch_size=4)
    for i, references in enumerate(draws(model, x, 2)):
        target, values, ends = found.target[i].item(), 0.0, []
        for reference in references:
            one, points = literal(model, features(model), x[i], target, POOL[reference], steps, eta, low, high)
            values, ends = values + one / 2, [*ends, score_and_gradient(model, points[-1], target)[0]]
        torch.testing.assert_close(found.values[i], values, rtol=1e-8, atol=1e-10)
        score = score_and_gradient(model, x[i], target)[0]
        assert found.score[i].item() == pytest.approx(score, rel=1e-12)
        assert found.endpoint_score[i].item() == pytest.approx(sum(ends) / 2, rel=1e-8)
        gap = values.sum().item() - (score - sum(ends) / 2)
        assert found.completeness_gap[i].item() == pytest.approx(gap, rel=1e-6, abs=1e-10)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-2.0, 2.5)])
def test_automatic_steps_change_an_entry_as_the_authors_do(low, high):
    """256 grey values in all at 299 x 299 x 3: the same root mean square per entry, in units of the range."""
    model, x = Headed(), images(2).sigmoid() * 0.6 + 0.2

    def changed(space):
        found = fringe.attribute(model, x, method=IG2(steps=1), space=space, telemetry=True)
        return torch.cat([path.steps["euclidean_step"] for path in found.trajectory]) / math.sqrt(ENTRIES)

    authors = 256 / 255 * (high - low) / math.sqrt(299 * 299 * 3)
    assert changed(only(POOL, low=low, high=high)).tolist() == pytest.approx([authors] * 2, rel=1e-7)
    spread = x.flatten(1).amax(1) - x.flatten(1).amin(1)
    torch.testing.assert_close(changed(SPACE), authors / (high - low) * spread)


def test_a_reference_with_the_images_own_representation_contributes_nothing():
    """Its gradient is zero: no NaN, and no map. Beside another reference it counts as a walk without steps."""
    model, x = Headed(), images(2)
    target = (model(x).argmax(1) + 1) % CLASSES  # else the image itself would not be drawn
    found = fringe.attribute(model, x[:1], method=IG2(steps=5, eta=0.1), target=target[:1], space=only(x[:1]))
    assert (found.values == 0).all()
    assert found.verdict == ("stalled",)
    assert "representation" in found.advice[0]
    assert found.completeness_residual.tolist() == [0.0]
    other = POOL[model(POOL).argmax(1) != target[0]][:1]
    both = fringe.attribute(
        model, x[:1], method=IG2(steps=5, eta=0.1), target=target[:1], space=only(torch.cat((x[:1], other)))
    )
    alone = fringe.attribute(model, x[:1], method=IG2(steps=5, eta=0.1), target=target[:1], space=only(other))
    assert both.verdict == alone.verdict
    torch.testing.assert_close(both.values, alone.values / 2, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(both.diagnostics["endpoint_entropy"], alone.diagnostics["endpoint_entropy"])


def test_references_of_the_same_class_are_not_drawn():
    model, x = Headed(), images(4)
    predicted, target = model(POOL).argmax(1), model(x).argmax(1)
    assert len(set(predicted.tolist())) > 1
    for i, references in enumerate(draws(model, x, 12)):
        others = (predicted != target[i]).nonzero()[:, 0].tolist()
        assert sorted(references) == others  # fewer than asked for: all there are, each once
    for i, references in enumerate(draws(model, x, 2)):
        assert len(set(references)) == 2
        assert (predicted[references] != target[i]).all()


def test_draws_belong_to_the_image_and_the_seed():
    model, x = Headed(), images(6)
    first = draws(model, x, 2)
    turned = [4, 1, 5, 0, 3, 2]
    assert draws(model, x[turned], 2) == [first[i] for i in turned]
    assert draws(model, x, 2, seed=1) != first
    whole, target = draws(model, x, 12), model(x).argmax(1).tolist()
    alike = [(i, j) for i in range(6) for j in range(i) if target[i] == target[j]]
    assert len(alike) > 1
    assert all(sorted(whole[i]) == sorted(whole[j]) and whole[i] != whole[j] for i, j in alike)


def test_references_of_the_target_alone_are_named():
    model, x = Headed(), images(3)
    target = model(x).argmax(1)
    same = POOL[model(POOL).argmax(1) == target[1]]
    bad = torch.cat((torch.full_like(x[:1], torch.nan), x[1:2]))  # places are those of the call, not of what is left
    with pytest.raises(fringe.InputError, match=rf"target of image 1, class {target[1]}, for all {len(same)}"):
        fringe.attribute(model, bad, method="ig2", space=only(same), bad_images="mark")


class Tokens(nn.Module):
    """Linear layers on tokens, on the image, and on tokens again; the one in the middle is the last of the image."""

    def __init__(self):
        super().__init__()
        self.late, self.pooled, self.early = linear(4, CLASSES, 0), linear(5, 4, 1), linear(12, 5, 2)
        self.eval()

    def forward(self, x):
        tokens = self.early(x.reshape(-1, 12)).tanh().view(-1, 6, 5)
        pooled = self.pooled(tokens.mean(1)).tanh()
        return self.late(pooled[:, None].expand(-1, 2, -1).reshape(-1, 4)).view(-1, 2, CLASSES).sum(1)


def test_the_layer_is_the_last_that_runs():
    """Not the last that is registered, none that does not run, and none that sees an image as many rows."""
    for model, expected in ((Headed(), "head"), (Tokens(), "pooled"), (SoftplusMLP(), None), (Headed().forward, None)):
        assert last_linear_layer(problem_of(model, images(1))) == expected
    assert last_linear_layer(problem_of(nn.Sequential(Headed()).eval(), images(1))) == "0.head"


def test_a_path_that_is_left_has_no_hook_behind():
    x = images(2)
    problem = problem_of(Headed(), x, domain=SPACE)
    classifier = problem.model
    with classifier.session(x.device):
        path = CounterfactualPath((0, 1), (0, 1), "head", 3, 0.1)
        path.evaluate(problem, dataclasses.replace(path.start(problem), x=x))  # and never another step
        assert not any(module._forward_pre_hooks for module in classifier.module.modules())


def test_statistics_of_several_paths_are_pooled_by_hand():
    """Two paths of image 0, of which the second never moved; two of image 1; none of image 2."""
    stats = Stats(("entropy",), torch.zeros(4, dtype=torch.float64))
    stats.add(torch.tensor([0, 2, 3]), torch.tensor([[1.0], [5.0], [7.0]]))
    stats.add(torch.tensor([0, 1, 3]), torch.tensor([[3.0], [9.0], [2.0]]), torch.tensor([True, False, True]))
    assert stats.total["entropy"].tolist() == [4.0, 0.0, 5.0, 9.0]
    assert stats.count.tolist() == [2.0, 0.0, 1.0, 2.0]
    assert stats.last["entropy"].tolist() == [3.0, 0.0, 5.0, 2.0]
    pool = stats.pooled(torch.tensor([0, 0, 1, 1]), 3)
    assert pool.count.tolist() == [1.0, 1.5, 0.0]
    assert pool.total["entropy"].tolist() == [2.0, 7.0, 0.0]
    assert pool.largest["entropy"].tolist() == [3.0, 7.0, 0.0]
    assert pool.last["entropy"].tolist() == [3.0, 3.5, 0.0]  # of the paths that moved
