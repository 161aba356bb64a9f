"""ROAD: the imputation against a dense solve of the authors' system, closed forms, and the curves by literal loops."""

import numpy as np
import pytest
import torch
from scipy.sparse import csc_matrix
from scipy.sparse.linalg import spsolve

from fringe import Classifier, InputError
from fringe._rng import KeyedGenerator
from fringe.baselines import InputSpace
from fringe.metrics import ROAD, EvaluationContext, _imputation, evaluate
from fringe.metrics._imputation import impute
from fringe.paths import Problem
from toys import TanhMLP, context_of, normal


def solved(x: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """Noisy linear imputation without its noise: one equation for each missing pixel, by a sparse direct solver."""
    height, width = missing.shape
    pixels = [tuple(p) for p in np.argwhere(missing)]
    number = {p: k for k, p in enumerate(pixels)}
    matrix, right = np.zeros((len(pixels), len(pixels))), np.zeros((len(pixels), len(x)))
    for k, (i, j) in enumerate(pixels):
        matrix[k, k] = 1.0
        for a in (-1, 0, 1):
            for b in (-1, 0, 1):
                if (a, b) == (0, 0):
                    continue
                weight, other = (1 / 6 if a == 0 or b == 0 else 1 / 12), (i + a, j + b)
                if not (0 <= other[0] < height and 0 <= other[1] < width):
                    matrix[k, k] -= weight  # as if the image ended here
                elif other in number:
                    matrix[k, number[other]] -= weight
                else:
                    right[k] += weight * x[:, other[0], other[1]]
    result = x.copy()
    for p, value in zip(pixels, spsolve(csc_matrix(matrix), right).reshape(len(pixels), -1), strict=True):
        result[:, p[0], p[1]] = value
    return result


def holes(shape: tuple[int, int]) -> list[torch.Tensor]:
    """A disc that reaches the border, its complement, and scattered pixels: 20 to 80 % of the image."""
    rows, columns = torch.meshgrid(*(torch.arange(n) for n in shape), indexing="ij")
    disc = (rows - 3).square() + (columns - 4).square() < 40
    return [disc, ~disc, normal(*shape) < 0.8]


@pytest.mark.parametrize("which", range(3))
def test_imputation_solves_the_system(which):
    x, missing = normal(2, 3, 14, 17).float(), holes((14, 17))[which]
    result, converged = impute(x, missing.expand(2, 1, 14, 17), 1e-3)
    assert converged.tolist() == [True, True]
    for image, expected in zip(result, x, strict=True):
        np.testing.assert_allclose(image, solved(expected.double().numpy(), missing.numpy()), atol=1e-3)
    finer, _ = impute(x, missing.expand(2, 1, 14, 17), 1e-6)
    np.testing.assert_allclose(finer[0], solved(x[0].double().numpy(), missing.numpy()), atol=2e-5)
    assert result[:, :, ~missing].equal(x[:, :, ~missing])


@pytest.mark.parametrize("shape", [(23,), (4, 5, 6)])
def test_imputation_of_series_and_volumes_solves_the_dense_system(shape):
    """Each missing entry is the mean of its neighbours, weighted by 1 / d^2."""
    x, missing = normal(2, 3, *shape), normal(2, 1, *shape, seed=4) < 0.3
    result, converged = impute(x.float(), missing, 1e-6)
    assert bool(converged.all())
    places = np.argwhere(np.ones(shape))
    square = ((places[:, None] - places[None]) ** 2).sum(-1)
    near = (np.abs(places[:, None] - places[None]).max(-1) == 1).astype(float)
    weights = near / np.maximum(square, 1)
    for i in range(2):
        gone = missing[i, 0].flatten().numpy()
        system = np.diag(weights.sum(1)) - weights
        right = weights[gone][:, ~gone] @ x[i].flatten(1).numpy().T[~gone]
        expected = np.linalg.solve(system[gone][:, gone], right)
        np.testing.assert_allclose(result[i].flatten(1).T[gone], expected, atol=2e-5)
        assert result[i].flatten(1)[:, ~gone].equal(x[i].float().flatten(1)[:, ~gone])


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
