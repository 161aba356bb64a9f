"""Expected Gradients: Captum on its own draws, the naive sum, and what holds in expectation."""

import math

import numpy as np
import pytest
import torch
from attribution_toys import SoftplusMLP, images
from captum.attr import GradientShap

import fringe
from fringe import ExpectedGradients, InputSpace, IntegratedGradients
from fringe._rng import KeyedGenerator, content_hash
from fringe.attribution._integrate import SampleTerms, integrate
from fringe.paths import Problem, ReferencePairs

REFERENCES = images(4, seed=20)


def explain(model, x, target=1, references=REFERENCES, seed=0, ids=None, **settings):
    space, method = InputSpace(references=references), ExpectedGradients(**settings)
    return fringe.attribute(model, x, method=method, target=target, space=space, seed=seed, ids=ids)


@pytest.mark.parametrize("name", ["one", "three"])
def test_it_equals_captum_s_gradient_shap_on_its_draws(name):
    """Captum draws from NumPy's global generator: all references first, then all fractions."""
    batch, m = {"one": 1, "three": 3}[name], 9
    model, x, target = SoftplusMLP(), images(batch), torch.arange(batch)
    np.random.seed(6)  # noqa: NPY002 - what captum draws from
    peer = GradientShap(model).attribute(x, baselines=REFERENCES, n_samples=m, stdevs=0.0, target=target)
    np.random.seed(6)  # noqa: NPY002
    drawn = torch.from_numpy(np.random.choice(len(REFERENCES), batch * m)).view(batch, m)  # noqa: NPY002
    fractions = torch.from_numpy(np.random.uniform(0.0, 1.0, batch * m)).view(batch, m)  # noqa: NPY002
    classifier = fringe.Classifier(model, batch_size=4)
    with classifier.session(x.device):
        problem = Problem.of(classifier, x, target=target)
        found = integrate(SampleTerms(ReferencePairs(x, REFERENCES, drawn, fractions), problem))
    torch.testing.assert_close(found.values, peer, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("fractions", ["uniform", "stratified"])
def test_it_is_the_naive_sum_over_keyed_draws(fractions):
    model, x, m, target = SoftplusMLP(), images(2), 6, [3, 1]
    found = explain(model, x, target, samples=m, fractions=fractions, seed=5)
    for i in range(2):
        key, like = content_hash(x[i]), torch.empty(m, dtype=torch.float64)
        drawn = KeyedGenerator(5).integers(f"expected_gradients references {key}", len(REFERENCES), m)
        u = KeyedGenerator(5).uniform(f"expected_gradients fractions {key}", like)
        total, ends = torch.zeros_like(x[i]), 0.0
        for j in range(m):
            start = REFERENCES[drawn[j]]
            a = (j + u[j]) / m if fractions == "stratified" else u[j]
            z = (start + a * (x[i] - start))[None].requires_grad_(True)
            total += (x[i] - start) * torch.autograd.grad(model(z)[0, target[i]], z)[0][0] / m
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


def test_each_sample_lies_where_its_fraction_says():
    x, drawn = images(2), torch.tensor([[3, 0], [1, 1]])
    fractions = torch.tensor([[0.25, 1.0], [0.0, 0.5]], dtype=torch.float64)
    found = ReferencePairs(x, REFERENCES, drawn, fractions).at(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]))
    torch.testing.assert_close(found.x[0], 0.25 * x[0] + 0.75 * REFERENCES[3])
    torch.testing.assert_close(found.x[1], REFERENCES[1])
    torch.testing.assert_close(found.displacement[2], (x[1] - REFERENCES[1]) / 2)
    assert found.alpha.tolist() == [0.75, 1.0, 0.5]


@pytest.mark.parametrize("fractions", ["uniform", "stratified"])
def test_in_expectation_it_is_complete(fractions):
    """Over independent draws the sums average to the score minus its mean over the references."""
    model, x, repeats = SoftplusMLP(), images(1), 300
    names = [str(i) for i in range(repeats)]
    found = explain(model, x.expand(repeats, -1, -1, -1), samples=5, fractions=fractions, ids=names)
    sums = found.values.flatten(1).sum(1)
    expected = model(x)[0, 1] - model(REFERENCES)[:, 1].mean()
    assert abs(sums.mean() - expected) <= 4 * sums.std() / math.sqrt(repeats)
    gap = found.completeness_gap
    assert abs(gap.mean()) <= 4 * gap.std() / math.sqrt(repeats)
    assert gap.std() > 1e-3  # it is not exact in each draw


def test_of_one_reference_stratified_fractions_tend_to_integrated_gradients():
    """Stratified fractions err as m^(-3/2), independent ones as m^(-1/2)."""
    model, x, one, repeats = SoftplusMLP(), images(1), REFERENCES[:1], 24
    exact = IntegratedGradients(steps=64, rule="gausslegendre")
    limit = fringe.attribute(model, x, method=exact, target=1, baseline=one).values
    names = [str(i) for i in range(repeats)]
    for fractions, power in (("stratified", 1.5), ("uniform", 0.5)):
        errors = []
        for m in (8, 128):
            found = explain(
                model, x.expand(repeats, -1, -1, -1), references=one, samples=m, fractions=fractions, ids=names
            )
            errors.append(float((found.values - limit).flatten(1).square().sum(1).mean().sqrt() / limit.norm()))
        assert math.log(errors[0] / errors[1], 16) == pytest.approx(power, abs=0.15)
        assert errors[1] < {"stratified": 2e-3, "uniform": 0.1}[fractions]


def test_it_says_what_is_missing():
    x = images(2)
    with pytest.raises(fringe.InputError, match=r"space: expected_gradients averages .*InputSpace\(references"):
        fringe.attribute(SoftplusMLP(), x, method="expected_gradients")
    with pytest.raises(fringe.InputError, match=r"space.references: got shape \(2, 6, 6\)"):
        explain(SoftplusMLP(), x, references=REFERENCES[0])
    coarse = explain(SoftplusMLP(), x, samples=2)
    assert set(coarse.verdict) == {"coarse"}
    assert "draw more samples, or stratify" in coarse.advice[0]
