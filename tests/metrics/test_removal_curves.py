"""DiffID, CPD, CPP and signed insertion: the authors' loops, closed forms, and the sign of a map."""

import numpy as np
import pytest
import torch
from metrics_toys import additive

from fringe.metrics import (
    CumulativePredictionDifference,
    CumulativePredictionPreservation,
    DiffID,
    SignedInsertion,
    evaluate,
)
from toys import Affine, TanhMLP, context_of, normal

X, MAPS = normal(3, 2, 6, 10), normal(3, 2, 6, 10, seed=2)


def literal_diffid(model, x, target, a, soft):
    """The insertions and deletions of the authors' code: entry by entry, the mean of what is kept for the rest."""
    order = a.abs().flatten().argsort(descending=True, stable=True)
    before, curves = float(model(x[None]).softmax(1)[0, target]), ([], [])
    for ratio in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9):
        count = int(len(order) * ratio)
        for curve, gone in zip(curves, (order[len(order) - count :], order[:count]), strict=True):
            flat, kept = x.flatten().clone(), torch.ones(len(order), dtype=torch.bool)
            kept[gone] = False
            flat[gone] = flat[kept].mean()
            p = model(flat.view_as(x)[None]).softmax(1)[0]
            curve.append(min(max(float(p[target]) / before, 0.0), 1.0) if soft else float(p.argmax() == target))
    return curves


@pytest.mark.parametrize("soft", [True, False])
def test_diffid_is_the_authors_loop(soft):
    model = TanhMLP(120)
    context = context_of(model, X)
    result = evaluate(context, MAPS, [DiffID(soft=soft)])["diffid"]
    for i, target in enumerate(context.problem.target.tolist()):
        inserted, deleted = literal_diffid(model, X[i], target, MAPS[i], soft)
        assert result.curves["insertion"][i].tolist() == pytest.approx(inserted, abs=1e-7)
        assert result.curves["deletion"][i].tolist() == pytest.approx(deleted, abs=1e-7)
        assert float(result.values[i]) == pytest.approx(np.mean(inserted) - np.mean(deleted), abs=1e-7)
        assert float(result.details["insertion"][i]) == pytest.approx(np.mean(inserted), abs=1e-7)
        assert float(result.details["deletion"][i]) == pytest.approx(np.mean(deleted), abs=1e-7)
    assert [DiffID.preset(name).soft for name in ("paper", "2026", "accuracy")] == [True, True, False]


def literal_change(model, x, order, total, steps):
    """The authors' loop over removals, with several pixels a step."""
    image, before, result = x.clone(), model(x[None]).softmax(1)[0], 0.0
    done = 0
    for s in range(1, steps + 1):
        stop = round(s * total / steps)
        for k in order[done:stop]:
            image[:, k // x.shape[2], k % x.shape[2]] = 0.0
        done, after = stop, model(image[None]).softmax(1)[0]
        result += float((before - after).abs().sum())
        before = after
    return result


@pytest.mark.parametrize(("share", "steps", "count"), [(0.001, 20, 1), (0.2, 20, 12), (0.5, 7, 7), (1.0, 60, 60)])
def test_cpd_and_cpp_are_the_authors_loop(share, steps, count):
    model, context = TanhMLP(120), context_of(TanhMLP(120), X)
    chosen = [
        CumulativePredictionDifference(share=share, steps=steps),
        CumulativePredictionPreservation(share=share, steps=steps),
    ]
    result = evaluate(context, MAPS, chosen)
    for i in range(3):
        order = MAPS[i].abs().amax(0).flatten().argsort(descending=True, stable=True).tolist()
        total = max(1, round(share * 60))
        assert float(result["cpd"].values[i]) == pytest.approx(literal_change(model, X[i], order, total, count))
        assert float(result["cpp"].values[i]) == pytest.approx(literal_change(model, X[i], order[::-1], total, count))
    assert result["cpd"].curves["cumulative"].shape == (3, count)


def test_changes_of_one_direction_add_up_to_the_whole_change():
    """Removing positive parts of an additive probability p only lowers it: the sum of all changes is 2 (p - p_end)."""
    weight = torch.arange(1.0, 61.0, dtype=torch.float64).view(1, 1, 6, 10)
    weight = weight / weight.sum()
    context = context_of(additive(weight), torch.ones(1, 1, 6, 10, dtype=torch.float64), 1)
    for kind, removed in (
        (CumulativePredictionDifference, weight.flatten()[-12:]),
        (CumulativePredictionPreservation, weight.flatten()[:12]),
    ):
        (scores,) = evaluate(context, weight, [kind()]).values()
        assert float(scores.values) == pytest.approx(2 * 0.9 * float(removed.sum()))


def test_signed_insertion_of_an_affine_score():
    """From zeros the logit is the sum of what is inserted: the gap of the sorted and the reversed running sums."""
    model = Affine(120)
    context = context_of(model, X)
    exact = model.weight[context.problem.target].view_as(X) * X
    one = SignedInsertion(reference="zeros", steps=60)
    result = evaluate(context, exact, [one])["signed_insertion"]
    parts = exact.sum(1).flatten(1).sort(1, descending=True).values
    zero = torch.zeros(3, 1, dtype=torch.float64)
    up, down = (torch.cat([zero, p.cumsum(1)], 1) for p in (parts, parts.flip(1)))
    expected = torch.trapezoid(up - down, dx=1 / 60, dim=1)
    torch.testing.assert_close(result.values, expected)
    torch.testing.assert_close(result.details["change"], exact.flatten(1).sum(1))
    torch.testing.assert_close(evaluate(context, -exact, [one])["signed_insertion"].values, -expected)
    assert bool((evaluate(context, normal(*X.shape, seed=9), [one])["signed_insertion"].values < expected).all())
