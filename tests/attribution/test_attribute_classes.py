"""One path, every class: maps of K targets, contrasts, and completeness by construction."""

import dataclasses
from typing import get_args

import pytest
import torch
from attribution_toys import Smooth, inputs

import fringe
from fringe.attribution._base import SEVERITY, Verdict

METHOD = fringe.FRInGe(tau=5e-3, delta_euc=1.0, damping=1e-2)


def test_classes_of_one_path_equal_explanations_one_by_one():
    model, x = Smooth(), inputs(3)
    target = torch.tensor([[0, 3], [4, 1], [2, 0]])
    found = fringe.attribute(model, x, method=METHOD, target=target, telemetry=True)
    assert found.values.shape == (3, 2, 2, 8, 8)
    for k in range(2):
        one = fringe.attribute(model, x, method=METHOD, target=target[:, k], telemetry=True)
        torch.testing.assert_close(found.values[:, k], one.values, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(found.score[:, k], one.score)
        torch.testing.assert_close(found.completeness_residual[:, k], one.completeness_residual, rtol=1e-6, atol=1e-9)
        for several, single in zip(found.trajectory, one.trajectory, strict=True):
            torch.testing.assert_close(several.cumulative[:, k], single.cumulative, rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(several.points["score"][:, k], single.points["score"])


@pytest.mark.parametrize("solve", ["geodesic", "natural", "diffusion"])
def test_a_class_more_costs_one_product_a_point(solve):
    """And nothing where the Jacobian is known as a whole: ten classes then cost what one costs."""
    model, x = Smooth(), inputs(3)
    products = dataclasses.replace(METHOD, solve=solve, jacobian="products")
    one, three = (fringe.attribute(model, x, method=products, target=t) for t in ("predicted", "top3"))
    points = int((one.diagnostics["steps"] + 1).sum())
    assert three.passes.forward == one.passes.forward
    assert three.passes.jvp == one.passes.jvp
    assert three.passes.vjp == one.passes.vjp + 2 * points
    if solve == "natural":
        explicit = dataclasses.replace(products, jacobian="explicit")
        one, five = (fringe.attribute(model, x, method=explicit, target=t) for t in ("predicted", "top5"))
        assert five.passes.vjp == one.passes.vjp + 4 * 3  # at the end points alone


@pytest.mark.parametrize("method", ["ig", "guided_ig", "agi", "blur_ig"])
def test_methods_with_a_path_for_each_class_repeat_images(method):
    model, x = Smooth(), inputs(2)
    found = fringe.attribute(model, x, method=method, target="top2")
    assert found.target.tolist() == model(x).topk(2, 1).indices.tolist()
    for k in range(2):
        one = fringe.attribute(model, x, method=method, target=found.target[:, k])
        torch.testing.assert_close(found.values[:, k], one.values, rtol=1e-9, atol=1e-12)
        worst = [max(v, w, key=SEVERITY.index) for v, w in zip(found.verdict, one.verdict, strict=True)]
        assert list(found.verdict) == worst


def test_a_contrast_is_the_difference_of_two_classes():
    """The path is the same for both, and the integral linear in the gradient."""
    model, x = Smooth(), inputs(2)
    both = fringe.attribute(model, x, method=METHOD, target=torch.tensor([[0, 1]] * 2))
    contrast = fringe.attribute(model, x, method=METHOD, target=0, contrast=1)
    torch.testing.assert_close(contrast.values, both.values[:, 0] - both.values[:, 1], rtol=1e-9, atol=1e-12)
    many = fringe.attribute(model, x, method=METHOD, target=torch.tensor([[0, 2]] * 2), contrast=1)
    torch.testing.assert_close(many.values[:, 0], contrast.values, rtol=1e-9, atol=1e-12)
    with pytest.raises(fringe.TargetError, match="contrast: class 2 is the target of image 0 itself"):
        fringe.attribute(model, x, method=METHOD, target=torch.tensor([[0, 2]] * 2), contrast=2)


def test_a_bad_image_among_several_classes():
    model, x = Smooth(), inputs(3)
    bad = x.clone()
    bad[1] = torch.nan
    found = fringe.attribute(model, bad, method=METHOD, target="top2", bad_images="mark")
    expected = fringe.attribute(model, x[[0, 2]], method=METHOD, target="top2")
    torch.testing.assert_close(found.values[[0, 2]], expected.values, rtol=1e-9, atol=1e-12)
    assert found.values[1].isnan().all()
    every = fringe.attribute(model, torch.full_like(x, torch.nan), method=METHOD, target="top2", bad_images="mark")
    assert every.values.shape == (3, 2, 2, 8, 8)


def test_adaptive_quadrature_serves_the_worst_class():
    model, x = Smooth(), inputs(2)
    method = dataclasses.replace(METHOD, tau=5e-2, quadrature="adaptive", quadrature_rtol=1e-4)
    found = fringe.attribute(model, x, method=method, target="top3")
    plain = fringe.attribute(model, x, method=dataclasses.replace(method, quadrature="trapezoid"), target="top3")
    assert (found.completeness_residual < 3e-4).all()
    assert (plain.completeness_residual > 5e-4).any()


def test_a_comparison_takes_one_class():
    with pytest.raises(fringe.TargetError, match="target: got 2 classes per image"):
        fringe.compare(Smooth(), inputs(2), ["ig"], ["sparseness"], target="top2")


def test_every_verdict_has_a_severity():
    assert sorted(SEVERITY) == sorted(get_args(Verdict))


class TestCorrectedRule:
    """``quadrature="corrected"``: each segment's known error is taken from its entries, in proportion to their size."""

    def test_maps_sum_to_the_change_of_the_score(self):
        model, x = Smooth(sharpness=3.0), inputs(3)
        coarse = dataclasses.replace(METHOD, tau=5e-2)
        plain = fringe.attribute(model, x, method=coarse, target="top2")
        found = fringe.attribute(model, x, method=dataclasses.replace(coarse, quadrature="corrected"), target="top2")
        assert (plain.completeness_residual > 1e-5).all()
        assert (found.completeness_residual < 1e-10).all()
        torch.testing.assert_close(found.endpoint_score, plain.endpoint_score)

    def test_the_verdict_judges_what_the_rule_missed(self):
        """A correction must not buy a verdict: the uncorrected residual is what is judged, and it is reported."""
        model, x = Smooth(sharpness=2.0), inputs(3)
        coarse = dataclasses.replace(METHOD, tau=0.5, steps=2, delta_euc=10.0, eta_max=50.0)
        plain = fringe.attribute(model, x, method=coarse)
        found = fringe.attribute(model, x, method=dataclasses.replace(coarse, quadrature="corrected"))
        assert "coarse" in plain.verdict
        assert found.verdict == plain.verdict
        torch.testing.assert_close(found.diagnostics["uncorrected_residual"], plain.completeness_residual)

    def test_entries_of_a_segment_change_by_one_share(self):
        """With one step, a' = a (1 - sign(a) e / sum |a|), transcribed."""
        model, x = Smooth(), inputs(2)
        one_step = dataclasses.replace(METHOD, steps=1, delta_euc=2.0)
        plain = fringe.attribute(model, x, method=one_step)
        found = fringe.attribute(model, x, method=dataclasses.replace(one_step, quadrature="corrected"))
        a = plain.values
        error = a.flatten(1).sum(1) - (plain.score - plain.endpoint_score)
        share = (error / a.abs().flatten(1).sum(1)).view(-1, 1, 1, 1)
        torch.testing.assert_close(found.values, a * (1 - a.sign() * share), rtol=1e-9, atol=1e-12)
        assert torch.equal(found.values.sign(), a.sign())
