"""One path, every class: maps of K targets, contrasts, and completeness by construction."""

import dataclasses
from typing import get_args

import pytest
import torch
from attribution_toys import LiveBytes, Smooth, inputs

import fringe
from fringe.attribution import Diffusion, _fisher_rao
from fringe.attribution._base import SEVERITY, Verdict
from fringe.attribution._record import _Log

METHOD = fringe.FRInGe(tau=5e-3, delta_euc=1.0, damping=1e-2)


@pytest.mark.parametrize("method", [METHOD, Diffusion.of(METHOD)])
def test_a_class_more_costs_one_product_a_point(method):
    model, x = Smooth(), inputs(3)
    one, three = (fringe.attribute(model, x, method=method, target=t) for t in ("predicted", "top3"))
    points = int((one.diagnostics["steps"] + 1).sum())
    assert three.passes.forward == one.passes.forward
    assert three.passes.jvp == one.passes.jvp
    assert three.passes.vjp == one.passes.vjp + 2 * points


class Strided(torch.nn.Module):
    """Scores of 60 classes, by a network whose activations are small beside its images."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = torch.nn.Sequential(torch.nn.AvgPool2d(12), torch.nn.Flatten(), torch.nn.Linear(48, 60))
        self.eval().requires_grad_(False)

    def forward(self, x):
        return self.body(x).sin()


@pytest.mark.parametrize("method", [fringe.IntegratedGradients(steps=8), fringe.SmoothGrad(samples=8)])
def test_memory_of_many_classes_is_that_of_a_few_and_of_the_maps(method):
    """Sixty paths at once need eight times the maps for ig."""
    x, model = torch.rand(1, 3, 48, 48), Strided()
    with LiveBytes() as live:
        found = fringe.attribute(model, x, method=method, target=[list(range(60))], batch_size=8)
    assert live.peak <= 3.5 * found.values.nbytes


class Rough(Strided):
    """Scores that rise and fall within a step, so that segments are halved."""

    def forward(self, x):
        return 3 * (60 * self.body(x)).sin()


def test_halved_segments_of_many_classes_are_not_half_as_large_as_the_gradients():
    """Maps in double precision and the gradients at both ends have four times the bytes of the maps. In full batches
    halved segments add 2.8 times."""
    x, model = torch.rand(1, 3, 48, 48, generator=torch.Generator().manual_seed(0)), Rough()
    method = fringe.FRInGe(quadrature_rtol=1e-3)
    with LiveBytes() as live:
        found = fringe.attribute(model, x, method=method, target=[list(range(60))], batch_size=16)
    assert found.passes.forward > 100  # twice as many as there are classes
    assert live.peak <= 5 * found.values.nbytes


@pytest.mark.parametrize("size", [1, 4])
def test_classes_in_parts_have_the_maps_and_the_progress_of_a_whole(size):
    model, x, seen = Smooth(), inputs(2), []
    target = torch.tensor([[1, 4, 2], [0, 3, 1]])
    given = {"method": fringe.SmoothGrad(samples=2), "ids": "ab", "contrast": (target + 1) % 5}
    whole = fringe.attribute(model, x, target=target, batch_size=6, **given)
    parts = fringe.attribute(
        model, x, target=target, batch_size=size, progress=lambda done, total: seen.append(done / total), **given
    )
    torch.testing.assert_close(parts.values, whole.values, rtol=1e-9, atol=1e-12)
    assert parts.verdict == whole.verdict
    assert parts.class_verdicts == whole.class_verdicts
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_a_contrast_is_the_difference_of_two_classes():
    """The path is the same for both, and the integral linear in the gradient."""
    model, x = Smooth(), inputs(2)
    both = fringe.attribute(model, x, method=METHOD, target=torch.tensor([[0, 1]] * 2))
    contrast = fringe.attribute(model, x, method=METHOD, target=0, contrast=1)
    torch.testing.assert_close(contrast.values, both.values[:, 0] - both.values[:, 1], rtol=1e-9, atol=1e-12)
    many = fringe.attribute(model, x, method=METHOD, target=torch.tensor([[0, 2]] * 2), contrast=1)
    torch.testing.assert_close(many.values[:, 0], contrast.values, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("target", "contrast"), [([0, 0], [1, 2]), ([[0, 1], [0, 1]], [[1, 2], [2, 0]])])
@pytest.mark.parametrize("bad", [[0], [0, 1]])
def test_a_contrast_is_that_of_each_image_where_some_hold_nan(target, contrast, bad):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3)).eval()
    x = torch.rand(2, 3, 2, 2)
    x[bad] = torch.nan
    given = {"target": torch.tensor(target), "contrast": torch.tensor(contrast)}
    result = fringe.attribute(model, x, method="ig", bad_images="mark", **given)
    assert result.contrast.tolist() == contrast
    assert [verdict == "nan_input" for verdict in result.verdict] == [i in bad for i in range(2)]


def test_each_of_several_classes_has_the_points_that_it_needs():
    """As many as in calls for one class at a time, and no others; in a call, the path itself is run once."""
    model, x = Smooth(), inputs(2)
    method = dataclasses.replace(METHOD, tau=5e-2, quadrature_rtol=1e-4, halvings=8)
    plain = dataclasses.replace(method, halvings=0)
    target = torch.tensor([[1, 4, 2], [0, 3, 1]])

    def points(target):
        found, rough = (fringe.attribute(model, x, method=m, target=target) for m in (method, plain))
        assert found.passes.forward - rough.passes.forward == found.passes.vjp - rough.passes.vjp
        # what a halving leaves is an assumption at first
        assert (found.completeness_residual < 2e-4).all()
        assert (rough.completeness_residual > 1e-4).any()
        return found.passes.forward - rough.passes.forward

    each = [points(target[:, k]) for k in range(3)]
    assert points(target) == points(target.flip(1)) == sum(each)
    assert len(set(each)) > 1


def test_a_hundred_classes_hold_few_times_the_maps_that_they_return():
    """Gradients at both ends of a segment, and sums in double precision: four times the maps, and some more."""
    weight = torch.randn(100, 768, generator=torch.Generator().manual_seed(0)) / 15
    x = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    method, every = fringe.FRInGe(steps=2, halvings=0), torch.arange(100).expand(4, -1)

    def model(z):
        return 4.0 * torch.tanh(z.flatten(1) @ weight.T)

    with LiveBytes() as live:
        found = fringe.attribute(model, x, method=method, target=every)
    assert live.peak < 6 * found.values.nbytes


def test_a_comparison_takes_one_class():
    with pytest.raises(fringe.TargetError, match="target: got 2 classes per image"):
        fringe.compare(Smooth(), inputs(2), ["ig"], ["sparseness"], target="top2")


def test_every_verdict_has_a_severity():
    assert sorted(SEVERITY) == sorted(get_args(Verdict))


class TestOneOfSeveralClasses:
    """``of_class(k)`` is what a call for this class alone returns."""

    @pytest.mark.parametrize("method", [METHOD, "ig"])
    def test_it_equals_a_call_for_this_class(self, method):
        model, x = Smooth(sharpness=2.0), inputs(3)
        target = torch.tensor([[0, 3], [4, 1], [2, 0]])
        several = fringe.attribute(model, x, method=method, target=target, telemetry=True)
        for k in range(2):
            one = several.of_class(k)
            alone = fringe.attribute(model, x, method=method, target=target[:, k], telemetry=True)
            assert one.verdict == alone.verdict
            assert one.advice == alone.advice
            assert one.diagnostics.keys() == alone.diagnostics.keys()
            for name in ("values", "target", "score", "endpoint_score", "completeness_gap"):
                torch.testing.assert_close(
                    getattr(one, name), getattr(alone, name), rtol=1e-6, atol=1e-9, equal_nan=True
                )
            for name, column in alone.diagnostics.items():
                torch.testing.assert_close(one.diagnostics[name], column, rtol=1e-6, atol=1e-9)
            if method != "ig":  # one path for all
                for ours, single in zip(several.trajectory, alone.trajectory, strict=True):
                    torch.testing.assert_close(ours.cumulative[:, k], single.cumulative, rtol=1e-9, atol=1e-12)
                    torch.testing.assert_close(ours.points["score"][:, k], single.points["score"])

    def test_each_class_has_its_verdict_and_the_image_the_worst(self):
        """One step is too long for some classes and not for others."""
        model, x = Smooth(sharpness=2.0), inputs(4)
        rough = dataclasses.replace(METHOD, tau=0.5, steps=2, delta_euc=10.0, eta_max=50.0, halvings=0)
        found = fringe.attribute(model, x, method=rough, target="top4")
        verdicts = [[verdict for verdict, _ in classes] for classes in found.class_verdicts]
        assert any(len(set(row)) > 1 for row in verdicts)
        assert list(found.verdict) == [max(row, key=SEVERITY.index) for row in verdicts]
        part = found.select([2, 0])
        assert part.class_verdicts == (found.class_verdicts[2], found.class_verdicts[0])
        assert type(found).concat([part, found]).class_verdicts == part.class_verdicts + found.class_verdicts

    @pytest.mark.parametrize(
        "method",
        [
            fringe.IntegratedGradients(steps=1, rule="left"),
            dataclasses.replace(METHOD, tau=2.0, steps=1, delta_euc=30.0, eta_max=50.0, halvings=0, temperature=1.0),
        ],
    )
    def test_the_advice_is_on_the_class_whose_sum_misses_most(self, method):
        """Whether the classes share a path or have one each."""
        found = fringe.attribute(Smooth(sharpness=2.0), inputs(4), method=method, target="top4")
        verdicts = [[verdict for verdict, _ in classes] for classes in found.class_verdicts]
        assert max(row.count("coarse") for row in verdicts) > 1
        for row, verdict in enumerate(found.verdict):
            if verdict == "coarse":
                assert f"{float(found.completeness_residual[row].max()):.1%}" in found.advice[row]

    def test_paths_of_their_own_are_recorded_of_the_first(self):
        found = fringe.attribute(Smooth(), inputs(1), method="ig", target="top2", telemetry=True)
        assert found.of_class(0).trajectory[0] is found.trajectory[0]
        assert found.of_class(1).trajectory == (None,)

    def test_a_bad_image_has_no_verdict_of_a_class(self):
        x = inputs(3).clone()
        x[1] = torch.nan
        found = fringe.attribute(Smooth(), x, method=METHOD, target="top2", bad_images="mark")
        assert [verdict for verdict, _ in found.class_verdicts[1]] == ["nan_input"] * 2
        assert found.of_class(1).verdict[1] == "nan_input"

    def test_there_must_be_such_a_class(self):
        with pytest.raises(fringe.InputError, match="k: got 2, expected 0 to 1"):
            fringe.attribute(Smooth(), inputs(1), method="ig", target="top2").of_class(2)
        with pytest.raises(fringe.InputError, match="k: the maps are of one class"):
            fringe.attribute(Smooth(), inputs(1), method="ig").of_class(0)


class TestStoredPoints:
    @pytest.mark.parametrize("method", [METHOD, fringe.IntegratedGradients(steps=9), fringe.GuidedIG(steps=9)])
    def test_as_many_as_are_asked_for_with_the_models_predictions(self, method):
        model, x = Smooth(), inputs(2)
        found = fringe.attribute(model, x, method=method, telemetry=4)
        for path, steps in zip(found.trajectory, found.diagnostics["steps"].tolist(), strict=True):
            count = len(path.points["entropy"]) - 1
            assert path.snapshot_steps.tolist() == [round(count * m / 3) for m in range(4)]
            assert steps
            expected = model(path.snapshots.to(x)).double().softmax(-1)
            torch.testing.assert_close(path.probabilities.double(), expected, rtol=1e-5, atol=1e-7)
        several, usual = (fringe.attribute(model, x, method=method, telemetry=t) for t in (True, False))
        assert several.passes == usual.passes  # of the explanation, not of the record

    def test_those_of_a_path_that_goes_on_are_spread_over_all_of_it(self, monkeypatch):
        monkeypatch.setattr(_fisher_rao, "ARRIVED_BELOW", 1e-12)
        last = 30
        method = dataclasses.replace(METHOD, until="arrival", max_steps=last)
        whole, some = (fringe.attribute(Smooth(), inputs(1), method=method, telemetry=t) for t in (200, 4))
        (path,), (all_points,) = some.trajectory, whole.trajectory
        steps = path.snapshot_steps
        assert all_points.snapshot_steps.tolist() == list(range(last + 1))
        assert len(steps) == 4
        assert (steps[0], steps[-1]) == (0, last)
        assert steps.diff().max() <= last / 2
        for name in ("snapshots", "cumulative", "probabilities"):
            torch.testing.assert_close(getattr(path, name), getattr(all_points, name)[steps])

    def test_a_path_of_a_thousand_steps_keeps_few_in_memory(self):
        point = torch.zeros(1)
        log = _Log(point, point.double(), {}, planned=10, snapshots=4)
        for step in range(1, 1001):
            log.store(step, point, "input")
            log.add(step, point + 1, None)
            assert len(log.snapshots) <= 2 * 4 + 2
        assert len(log.snapshots) >= 4
        assert sum(term.item() for _, term in log.snapshots.values()) == 1000  # of points that are dropped, too

    def test_thinned_takes_some_of_them(self):
        (path,) = fringe.attribute(Smooth(), inputs(1), method="ig", telemetry=11).trajectory
        some, (six,) = path.thinned(6), fringe.attribute(Smooth(), inputs(1), method="ig", telemetry=True).trajectory
        assert torch.equal(some.snapshot_steps, six.snapshot_steps)
        for name in ("snapshots", "probabilities", "cumulative"):  # added up in another order
            torch.testing.assert_close(getattr(some, name), getattr(six, name), rtol=1e-12, atol=1e-14)
        assert path.thinned(11).snapshots.equal(path.snapshots)
        assert path.thinned(50).snapshots.equal(path.snapshots)
        assert path.thinned(2).snapshot_steps.tolist() == [0, 51]
        with pytest.raises(fringe.InputError, match="count: got 1, expected an integer of at least 2"):
            path.thinned(1)  # not both ends
