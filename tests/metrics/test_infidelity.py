"""Infidelity: the affine closed form, the literal mean, and captum."""

import captum.metrics
import pytest
import torch

from fringe.metrics import Infidelity, evaluate
from toys import Affine, TanhMLP, context_of, normal

X, MAPS = normal(3, 2, 7, 6), normal(3, 2, 7, 6, seed=2)


def moves(context, samples: int, sigma: float) -> torch.Tensor:
    """The draws (B, samples, *S) that belong to the images."""
    problem, noise = context.problem, context.problem.rng
    return torch.stack(
        [
            torch.stack([sigma * noise.normal(f"infidelity {key} {m}", x) for m in range(samples)])
            for key, x in zip(problem.keys, problem.inputs, strict=True)
        ]
    )


def slopes(model: Affine, context) -> torch.Tensor:
    """Gradient of the explained logit of an affine network: (B, *S)."""
    return model.weight[context.problem.target].view_as(context.problem.inputs)


@pytest.mark.parametrize("c", [0.0, 0.5, 1.0, -2.0])
def test_affine_closed_form(c):
    """A = c w gives (1 - c)^2 mean <w, delta>^2."""
    model = Affine(84)
    context = context_of(model, X)
    w = slopes(model, context)
    result = evaluate(context, c * w, [Infidelity(samples=20)])["infidelity"]
    along = (w[:, None] * moves(context, 20, 0.02)).flatten(2).sum(2)
    expected = (1 - c) ** 2 * along.square().mean(1)
    torch.testing.assert_close(result.values, expected, rtol=1e-10, atol=1e-24)
    torch.testing.assert_close(result.details["zero_map"], along.square().mean(1), rtol=1e-10, atol=0)
    torch.testing.assert_close(result.details["ratio"], torch.full((3,), (1 - c) ** 2).double(), rtol=1e-9, atol=1e-20)
    assert result.flags["zero_map"].tolist() == [c == 0] * 3


@pytest.mark.parametrize(("score", "read"), [("probability", torch.softmax), ("log_probability", torch.log_softmax)])
def test_literal_mean(score, read):
    """Of logits it is that of captum, below."""
    model = TanhMLP(84)
    context = context_of(model, X, score=score)
    result = evaluate(context, MAPS, [Infidelity(samples=7, sigma=0.5)])["infidelity"]
    for i, target in enumerate(context.problem.target.tolist()):
        total = 0.0
        for delta in moves(context, 7, 0.5)[i]:
            change = read(model(X[i][None]), -1)[0, target] - read(model((X[i] - delta)[None]), -1)[0, target]
            total += float((delta * MAPS[i]).sum() - change) ** 2
        assert float(result.values[i]) == pytest.approx(total / 7, rel=1e-10)


@pytest.mark.parametrize("normalise", [False, True])
def test_captum(normalise):
    model = TanhMLP(84)
    context = context_of(model, X)
    delta = moves(context, 50, 0.02).flatten(0, 1)
    expected = captum.metrics.infidelity(
        model,
        lambda x: (delta, x - delta),
        X,
        MAPS,
        target=context.problem.target,
        n_perturb_samples=50,
        normalize=normalise,
    )
    result = evaluate(context, MAPS, [Infidelity(normalise=normalise)])["infidelity"]
    torch.testing.assert_close(result.values, expected, rtol=1e-10, atol=1e-16)


def test_scale_free_ignores_the_scale_and_never_exceeds_the_zero_map():
    context = context_of(TanhMLP(84), X)
    expected = evaluate(context, MAPS, ["infidelity:scale_free"])["infidelity:scale_free"]
    result = evaluate(context, -1e-6 * MAPS, ["infidelity:scale_free"])["infidelity:scale_free"]
    torch.testing.assert_close(result.values, expected.values, rtol=1e-12, atol=0)
    torch.testing.assert_close(result.details["scale"], -1e6 * expected.details["scale"], rtol=1e-12, atol=0)
    assert bool((expected.values <= expected.details["zero_map"]).all())
    zero = evaluate(context, 0 * MAPS, ["infidelity:scale_free"])["infidelity:scale_free"]
    assert zero.values.equal(zero.details["zero_map"])
