"""ROAD: the imputation against a dense solve of the authors' system, closed forms, and the curves by literal loops."""

import numpy as np
import pytest
import torch

from fringe import Classifier, InputError
from fringe._numbers.rng import KeyedGenerator
from fringe.baselines import InputSpace
from fringe.metrics import ROAD, EvaluationContext, _imputation, evaluate
from fringe.metrics._imputation import impute
from fringe.paths import Problem
from toys import TanhMLP, context_of, normal


def solved(x: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """Each missing entry of ``x`` (C, *S) is the mean of its neighbours inside, weighted by 1 / d^2, by a dense solve:
    on images the authors' equation, whose weights are 1/6 and 1/12."""
    places = np.argwhere(np.ones(missing.shape))
    apart = places[:, None] - places[None]
    weights = (np.abs(apart).max(-1) == 1) / np.maximum((apart**2).sum(-1), 1)
    gone, flat = missing.flatten(), x.reshape(len(x), -1).copy()
    system = (np.diag(weights.sum(1)) - weights)[gone]
    flat[:, gone] = np.linalg.solve(system[:, gone], -system[:, ~gone] @ flat[:, ~gone].T).T
    return flat.reshape(x.shape)


def holes(shape: tuple[int, int]) -> list[torch.Tensor]:
    """A disc that reaches the border, its complement, and scattered pixels: 20 to 80 % of the image."""
    rows, columns = torch.meshgrid(*(torch.arange(n) for n in shape), indexing="ij")
    disc = (rows - 3).square() + (columns - 4).square() < 40
    return [disc, ~disc, normal(*shape) < 0.8]


HOLES = [*holes((14, 17)), normal(23, seed=4) < 0.3, normal(4, 5, 6, seed=4) < 0.3]


@pytest.mark.parametrize("hole", HOLES, ids=["disc", "all but a disc", "scattered", "series", "volume"])
def test_imputation_solves_the_system(hole):
    x, missing = normal(2, 3, *hole.shape), torch.stack([hole, hole.flip(0)])[:, None]
    for tolerance, error in ((1e-3, 1e-3), (1e-6, 2e-5)):
        result, converged = impute(x.float(), missing, tolerance)
        assert converged.tolist() == [True, True]
        for found, image, gone in zip(result, x, missing[:, 0], strict=True):
            np.testing.assert_allclose(found, solved(image.numpy(), gone.numpy()), atol=error)
            assert found[:, ~gone].equal(image[:, ~gone].float())


def test_a_ramp_is_restored_inside_and_a_colour_everywhere():
    """Linear functions are harmonic, so that the weighted mean of the neighbours is the pixel itself."""
    ramp = (torch.arange(12.0)[:, None] * 2 + torch.arange(15.0)).expand(1, 1, 12, 15)
    inside = torch.zeros(1, 1, 12, 15, dtype=torch.bool)
    inside[..., 2:9, 3:12] = True
    torch.testing.assert_close(impute(ramp, inside, 1e-5)[0], ramp, atol=1e-3, rtol=0)
    flat = torch.full((1, 2, 12, 15), 3.25)
    for missing in holes((12, 15)):
        torch.testing.assert_close(impute(flat, missing.expand(1, 1, 12, 15), 1e-3)[0], flat, atol=1e-6, rtol=0)


X, MAPS = normal(3, 2, 8, 9), normal(3, 2, 8, 9, seed=2)
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9)


@pytest.mark.parametrize("preset", ["paper", "accuracy"])
def test_curves_are_the_literal_loop(preset):
    model, one = TanhMLP(144), ROAD.preset(preset)
    problem = Problem.of(Classifier(model), X, ids=("a", "b", "c"), domain=InputSpace(-4.0, 4.0))
    result = evaluate(EvaluationContext(problem), MAPS, [one])["road"]
    for i, target in enumerate(problem.target.tolist()):
        noise = 0.01 * 8.0 * KeyedGenerator(0).normal(f"road {'abc'[i]}", X[i])
        order = MAPS[i].abs().amax(0).flatten().argsort(descending=True, stable=True)
        expected = {"morf": [], "lerf": []}
        for share in SHARES:
            count = round(share * 72)
            for name, gone in (("morf", order[:count]), ("lerf", order[72 - count :])):
                missing = torch.zeros(72, dtype=torch.bool)
                missing[gone] = True
                missing = missing.view(8, 9)
                image = torch.tensor(solved(X[i].numpy(), missing.numpy()))
                image = torch.where(missing, image + noise, X[i])
                p = model(image[None]).softmax(1)[0]
                expected[name].append(float(p[target]) if preset == "paper" else float(p.argmax() == target))
        for name, curve in expected.items():
            assert result.curves[name][i].tolist() == pytest.approx(curve, abs=1e-3)
        gap = np.mean(expected["lerf"]) - np.mean(expected["morf"])
        assert float(result.values[i]) == pytest.approx(gap, abs=1e-3)
    assert not bool(result.flags["not_converged"].any())


def test_an_imputation_that_does_not_converge_is_flagged(monkeypatch):
    monkeypatch.setattr(_imputation, "MOST_ITERATIONS", 1)
    assert bool(evaluate(context_of(TanhMLP(144), X), MAPS, ["road"])["road"].flags["not_converged"].all())


@pytest.mark.parametrize("shares", [(), (0.0, 0.5), (0.5, 1.0)])
def test_shares_leave_and_remove_something(shares):
    with pytest.raises(InputError, match="shares"):
        ROAD(shares=shares)
