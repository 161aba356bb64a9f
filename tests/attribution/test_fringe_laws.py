"""Laws of the method whose answers are known."""

import dataclasses
import gc
import math
import weakref

import pytest
import torch
from attribution_toys import Smooth, inputs

import fringe
from fringe.attribution import Diffusion, _fisher_rao
from fringe.paths import Problem

FAST = fringe.FRInGe(gamma_prior=1e-3, tau=5e-3, delta_euc=1.0, damping=1e-3, temperature=1.0)


@pytest.mark.parametrize(
    ("method", "target"),
    [(FAST, "predicted"), (fringe.FRInGe(), "top2"), (fringe.GuidedIG(steps=4), "predicted")],
)
def test_the_scores_at_both_ends_are_those_of_the_path_s_own_passes(method, target):
    """The rounding of another pass, here made large, would stay in the gap of every map."""
    model, x = Smooth(), inputs(3)
    problem = Problem.of(fringe.Classifier(model), x, target=target, record_path=2000)
    other = dataclasses.replace(problem, logits=problem.logits + 1e-3 * torch.arange(5).sin())
    with problem.model.session(x.device):
        found = method.attribute(other)
    ends = torch.stack([t.snapshots[-1] for t in found.trajectory])
    for scores, points in ((found.score, x), (found.endpoint_score, ends)):
        torch.testing.assert_close(scores, problem.score(model(points)), rtol=1e-12, atol=1e-12)


def test_a_constant_that_is_added_to_all_logits_changes_nothing():
    """Also not which segments are bisected: the steps are so long that many are."""
    model, x = Smooth(), inputs(4, seed=2)
    coarse = fringe.FRInGe(gamma_prior=0.0, tau=1e9, delta_euc=None, eta_max=300.0, damping=1.0, steps=4)
    plain, raised = (fringe.attribute(one, x, method=coarse, target=4) for one in (model, lambda z: model(z) + 50.0))
    torch.testing.assert_close(raised.values, plain.values, rtol=1e-9, atol=1e-12)
    assert raised.passes == plain.passes


@pytest.mark.parametrize("gap", [105.0, 120.0, 200.0])
def test_one_hot_prediction_in_float32_is_left(gap):
    """The probabilities of the other classes underflow in float32; the path finds its way to the reference all the
    same, in steps of a nat at most."""
    model = torch.nn.Linear(16, 3).requires_grad_(False)
    model.weight.data[0], model.weight.data[1:] = gap / 16.0, 0.0
    model.bias.data.zero_()
    found = fringe.attribute(model, torch.ones(1, 16), method=fringe.FRInGe(structure="none"))
    assert found.diagnostics["distance"].item() == pytest.approx(2 * math.acos(3**-0.5), rel=1e-6)
    assert found.verdict == ("ok",)
    assert found.diagnostics["endpoint_kl"].item() <= 0.05
    assert found.values.sum().item() == pytest.approx(gap - found.endpoint_score.item(), rel=1e-5)


def test_half_ends_at_the_first_point_from_step_t_on_with_half_of_the_divergence_gone(monkeypatch):
    """Or where 5 % of it did not go within T / 2 steps (at least 4), or after 5 T. Points are of an endless path."""
    model, x, ends = Smooth(), inputs(4), set()
    for cap in (1.0, 0.2, 0.08):
        method = fringe.FRInGe(delta_euc=cap, halvings=0, temperature=1.0)
        endless = dataclasses.replace(method, until="arrival", max_steps=99)
        found = fringe.attribute(model, x, method=method, telemetry=True)
        with monkeypatch.context() as patch:
            patch.setattr(_fisher_rao, "ARRIVED_BELOW", 1e-9)
            onward = fringe.attribute(model, x, method=endless, telemetry=True)
        for i, path in enumerate(onward.trajectory):
            left = path.points["reference_kl"].tolist()
            planned = math.ceil(float(found.diagnostics["distance"][i]) / math.sqrt(2 * method.tau))
            end, why = half_end(left, planned)
            assert int(found.diagnostics["steps"][i]) == end
            assert found.trajectory[i].points["reference_kl"].tolist() == pytest.approx(left[: end + 1], rel=1e-9)
            assert (found.verdict[i] in ("short", "stalled")) == (left[end] > left[0] / 2)
            ends.add("T" if end == planned and why == "half" else why)
    assert ends == {"T", "half", "no gain", "5 T"}


def half_end(left, planned):
    """The last step of a path with these divergences at its points, and why."""
    level, gained = left[0], 0
    for k in range(1, 5 * planned + 1):
        if left[k] <= 0.95 * level:
            level, gained = left[k], k
        if k >= planned and left[k] <= left[0] / 2:
            return k, "half"
        if k >= planned and k - gained >= max(planned / 2, 4):
            return k, "no gain"
    return 5 * planned, "5 T"


@pytest.mark.parametrize("moves", [0, 4, 9])
def test_half_ends_where_no_more_of_the_divergence_goes(moves):
    """The prediction follows the image up to a point, and no further: the path of 20 steps would be one of 100."""

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(floor + 3 * torch.nn.functional.softplus(x[:, :1] - floor, 20.0), (0, 1))

    x, method = torch.full((1, 1), 2.0).double(), fringe.FRInGe(until="half", steps=20, delta_euc=0.02, temperature=1.0)
    floor = 2.0 - 0.02 * moves
    found = fringe.attribute(model, x, method=method, telemetry=True)
    left = found.trajectory[0].points["reference_kl"].tolist()
    end, why = half_end(left + [left[-1]] * 100, 20)
    assert why == "no gain"
    assert found.diagnostics["steps"].tolist() == [end]
    assert found.verdict == ("short",) if moves else ("stalled",)
    assert ("use delta_euc=" if moves else "use temperature=") in found.advice[0]


def test_the_control_that_diffuses_the_image_goes_on_without_a_gain():
    """It does not aim at the reference: its divergence may rest, or rise, before it falls."""
    model, x, earlier = Smooth(), inputs(4), 0
    method = Diffusion(halvings=0, temperature=1.0)
    found = fringe.attribute(model, x, method=method, telemetry=True)
    for i, path in enumerate(found.trajectory):
        left, steps = path.points["reference_kl"].tolist(), int(found.diagnostics["steps"][i])
        planned = math.ceil(float(found.diagnostics["distance"][i]) / math.sqrt(2 * method.tau))
        assert steps == next((k for k in range(planned, 5 * planned) if left[k] <= left[0] / 2), 5 * planned)
        earlier += half_end(left + [left[-1]] * 5 * planned, planned)[0] < steps
    assert earlier > 0


def test_progress_of_a_path_that_goes_on_past_its_planned_steps():
    """It rises by one at each of these, but the last is counted at the end only."""
    seen: list[tuple[int, int]] = []
    method = fringe.FRInGe(delta_euc=0.1, temperature=1.0)
    found = fringe.attribute(Smooth(), inputs(1), method=method, progress=lambda *now: seen.append(now))
    planned = math.ceil(float(found.diagnostics["distance"][0]) / math.sqrt(2 * method.tau))
    assert int(found.diagnostics["steps"][0]) > planned
    assert seen == [(k, planned) for k in range(1, planned + 1)]


def test_a_path_that_rests_ends():
    """The gradient is zero from 0.5 on: the step after T would be the same, and so would all to the thousandth."""

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(3 * x[:, :1].clamp(min=0.5), (0, 1))

    method = fringe.FRInGe(structure="none", gamma_prior=0.0)
    found = fringe.attribute(model, torch.tensor([[0.7], [0.4]]), method=method)
    planned = [math.ceil(d / math.sqrt(2 * method.tau)) for d in found.diagnostics["distance"].tolist()]
    assert found.diagnostics["steps"].tolist() == [steps + 1 for steps in planned]
    lost = torch.tensor([[3 * 0.7 - 3 * 0.5], [0.0]])
    torch.testing.assert_close(found.values, lost, rtol=0.02, atol=0)
    assert found.verdict == ("short", "stalled")
    assert not any("max_steps" in advice for advice in found.advice)


def test_sequences_and_tables():
    weight = 0.5 * torch.randn(3, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = lambda x: torch.tanh(x.flatten(1)) @ weight.T  # noqa: E731
    sequence = fringe.attribute(model, inputs(2, shape=(2, 12)), method=fringe.FRInGe(structure="sequence", tau=5e-3))
    table = fringe.attribute(model, inputs(2, shape=(24,)), method=fringe.FRInGe(structure="none", tau=5e-3))
    for found in (sequence, table):
        assert found.completeness_residual.max() < 0.025
    default = fringe.attribute(model, inputs(2, shape=(24,)), method=fringe.FRInGe(tau=5e-3))
    assert default.settings["structure"] == "none"  # a vector has no axes of space
    assert torch.equal(default.values, table.values)
    with pytest.raises(ValueError, match="structure: 'image' needs inputs with at least 2 axes"):
        fringe.FRInGe().path(24).on(torch.zeros(24))


def test_no_graph_outlives_the_call():
    def with_graph() -> int:
        gc.collect()
        return sum(isinstance(o, torch.Tensor) and o.grad_fn is not None for o in gc.get_objects())

    model, x = Smooth(), inputs(2)
    before = with_graph()
    found = fringe.attribute(model, x, method=dataclasses.replace(FAST, steps=2), telemetry=True)
    assert with_graph() == before
    reference = weakref.ref(found)
    del found
    assert reference() is None
