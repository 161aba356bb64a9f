"""Expected Gradients: Captum on its own draws, the naive sum, and what holds in expectation."""

import pytest
import torch
from attribution_toys import SoftplusMLP, images, score_and_gradient

import fringe
from fringe import ExpectedGradients, InputSpace
from fringe._numbers.rng import KeyedGenerator, content_hash

REFERENCES = images(4, seed=20)


def explain(model, x, target=1, references=REFERENCES, seed=0, ids=None, **settings):
    space, method = InputSpace(references=references), ExpectedGradients(**settings)
    return fringe.attribute(model, x, method=method, target=target, space=space, seed=seed, ids=ids)


def test_it_is_the_naive_sum_over_keyed_draws():
    model, x, m, target = SoftplusMLP(), images(2), 6, [3, 1]
    found = explain(model, x, target, samples=m, seed=5)
    for i in range(2):
        key, like = content_hash(x[i]), torch.empty(m, dtype=torch.float64)
        drawn = KeyedGenerator(5).integers(f"expected_gradients references {key}", len(REFERENCES), m)
        u = KeyedGenerator(5).uniform(f"expected_gradients fractions {key}", like)
        total, ends = torch.zeros_like(x[i]), 0.0
        for j in range(m):
            start = REFERENCES[drawn[j]]
            total += (x[i] - start) * score_and_gradient(model, start + u[j] * (x[i] - start), target[i])[1] / m
            ends += float(model(start[None])[0, target[i]]) / m
        torch.testing.assert_close(found.values[i], total, rtol=1e-11, atol=1e-13)
        assert float(found.endpoint_score[i]) == pytest.approx(ends, rel=1e-12)
        gap = float(total.sum() - (model(x[i : i + 1])[0, target[i]] - ends))
        assert float(found.completeness_gap[i]) == pytest.approx(gap, rel=1e-9)
        log_p = model(REFERENCES[drawn]).log_softmax(1)
        mean_entropy = -float((log_p.exp() * log_p).sum(1).mean())
        assert float(found.diagnostics["endpoint_entropy"][i]) == pytest.approx(mean_entropy, rel=1e-12)
        lengths = (x[i] - REFERENCES[drawn]).flatten(1).norm(dim=1)
        assert float(found.diagnostics["path_length"][i]) == pytest.approx(float(lengths.mean()), rel=1e-12)


def test_it_says_how_its_sum_comes_nearer():
    coarse = explain(SoftplusMLP(), images(2), samples=2)
    assert set(coarse.verdict) == {"coarse"}
    assert coarse.advice[0].endswith(": use samples=8")
