"""An image's map is its own: whatever the batch, its order, its chunks, or the memory."""

import dataclasses

import pytest
import torch
from attribution_toys import Smooth, inputs

import fringe
import fringe.paths
from fringe.attribution._integrate import some_rows
from fringe.paths import Problem

METHOD = fringe.FRInGe(tau=5e-3, delta_euc=1.0, damping=1e-2)


class Limited(torch.nn.Module):
    """Runs out of memory above ``limit`` images, once it has been called ``after`` times."""

    def __init__(self, limit: int, after: int):
        super().__init__()
        self.model, self.limit, self.after, self.calls = Smooth(), limit, after, 0

    def forward(self, x):
        self.calls += 1
        if self.calls > self.after and x.shape[0] > self.limit:
            raise torch.OutOfMemoryError("simulated")
        return self.model(x)


def mixed(count: int = 7) -> torch.Tensor:
    """Images of very different confidence, so of different T."""
    return inputs(count) * torch.linspace(0.1, 3.0, count, dtype=torch.float64).view(-1, 1, 1, 1)


def test_out_of_memory_on_the_way_costs_only_slots():
    x = mixed()
    model = Limited(limit=2, after=5)
    classifier = fringe.Classifier(model, batch_size=7)
    found = fringe.attribute(classifier, x, method=METHOD)
    expected = fringe.attribute(Smooth(), x, method=METHOD)
    torch.testing.assert_close(found.values, expected.values, rtol=1e-7, atol=1e-10)
    assert classifier.batch_size.on(x.device) == 1  # 7, 3, then 1: three do not fit


def test_finished_images_give_their_slot_to_waiting_ones(monkeypatch):
    """With slots refilled, seven images of 127 steps in all need about 127/3 full batches, not one batch a step."""
    sizes, linearise = [], Problem.linearise

    def spy(self, x, rows, **options):
        sizes.append(len(x))
        return linearise(self, x, rows, **options)

    monkeypatch.setattr(Problem, "linearise", spy)
    method = dataclasses.replace(METHOD, temperature=1.0)  # numbers of steps that differ more
    found = fringe.attribute(Smooth(), mixed(), method=method, batch_size=3)
    steps, walking = found.diagnostics["steps"].tolist(), sizes[1:]  # one image is looked at first
    assert sum(walking) == sum(steps) + 7
    unfilled = sum(max(steps[i : i + 3]) for i in (0, 3, 6)) + 3  # what fixed batches of three would take
    assert len(walking) < unfilled
    assert len(walking) <= sum(steps) / 3 + max(steps) / 2 + 3


def test_an_image_keeps_its_reference_where_others_are_left_out():
    """Of four distributions, one per image, the second and the last go to the two images that are explained."""
    model, x = Smooth(), inputs(4)
    q = torch.linspace(-1, 1, 20).double().view(4, 5).roll(1, 1).mul(3).sin().softmax(1)
    bad = x.clone()
    bad[[0, 2]] = torch.nan
    method = dataclasses.replace(METHOD, reference=q)
    found = fringe.attribute(model, bad, method=method, bad_images="mark")
    assert found.verdict[0] == found.verdict[2] == "nan_input"
    for i in (1, 3):
        alone = fringe.attribute(model, x[i : i + 1], method=dataclasses.replace(METHOD, reference=q[i]))
        torch.testing.assert_close(found.values[i], alone.values[0], rtol=1e-9, atol=1e-12)
        p, end = model(x[i : i + 1]).softmax(1)[0], found.diagnostics["endpoint_kl"][i]
        assert end < (p * (p / q[i]).log()).sum() - 1e-3
        assert found.diagnostics["distance"][i].item() == pytest.approx(
            2 * torch.arccos((p * q[i]).sqrt().sum()).item(), rel=1e-9
        )
    shared = dataclasses.replace(METHOD, reference=q[0])
    found = fringe.attribute(model, bad, method=shared, bad_images="mark").values[[1, 3]]
    torch.testing.assert_close(found, fringe.attribute(model, x[[1, 3]], method=shared).values, rtol=1e-9, atol=1e-12)


def test_a_dead_or_nan_gradient_in_the_first_image_is_its_own_affair():
    """The model is judged by an image that says something about it; a bad first row does not stop the others."""
    model, x = Smooth(), mixed(3)
    dead = lambda z: model(z) * (z.flatten(1).abs().sum(1) > 0)[:, None] + 0.0 * model(z)  # noqa: E731
    x[0] = 0.0
    found = fringe.attribute(dead, x, method=METHOD)
    expected = fringe.attribute(model, x[1:], method=METHOD)
    torch.testing.assert_close(found.values[1:], expected.values, rtol=1e-7, atol=1e-10)
    assert found.verdict[0] == "at_reference"
    steep = lambda z: model(z) + 0.01 * (z - x[0]).flatten(1).norm(dim=1).sqrt()[:, None] * torch.eye(5)[0]  # noqa: E731
    found = fringe.attribute(steep, x, method=METHOD)
    assert found.verdict[0] == "diverged"
    assert "gradient were not finite after step 0" in found.advice[0]
    assert found.diagnostics["steps"][0] == 0
    assert found.verdict[1] == "ok"


def test_what_waits_keeps_only_itself():
    """A path that waits for its last gradient must not keep its former batch in memory."""
    problem = Problem.of(fringe.Classifier(Smooth()), mixed(6))
    state = dataclasses.replace(METHOD.path(128).start(problem), x=torch.zeros(6, 128))
    chosen = some_rows(state, [True] + 5 * [False])
    assert chosen.x.untyped_storage().nbytes() == 128 * 4
    assert chosen.geodesic.s0.untyped_storage().nbytes() == chosen.geodesic.s0.nbytes
    assert some_rows(state, 6 * [True]) is state
    assert some_rows(state, 6 * [False]) is None


def test_nan_logits_are_named():
    model = Smooth()
    broken = lambda x: model(x).where(x.flatten(1)[:, :1] < 5.0, torch.nan)  # noqa: E731
    x = mixed(3)
    x[2, 0, 0, 0] = 6.0
    with pytest.raises(fringe.InputError, match=r"logits for images \[2\] .*masked with -inf"):
        fringe.attribute(broken, x, method=METHOD)
    found = fringe.attribute(broken, x, method=METHOD, bad_images="mark")
    assert found.verdict[2] == "nan_logits"


@pytest.mark.parametrize("where", ["logits", "gradient"])
@pytest.mark.parametrize(("value", "until"), [(torch.inf, "budget"), (torch.nan, "arrival")])
def test_one_entry_that_is_not_finite_ends_the_path_before_it(until, where, value):
    """Of the logits or of the gradient, off a ball around the second image: its map is that of the first step alone."""
    model, x, method = Smooth(), mixed(3), dataclasses.replace(METHOD, until=until)

    class Spoilt(torch.autograd.Function):
        @staticmethod
        def forward(ctx, z, outside):
            ctx.outside = outside
            return z.clone()

        @staticmethod
        def backward(ctx, grad):
            grad = grad.clone()
            grad[ctx.outside, 1, 3, 5] = value
            return grad, None

    def fragile(z):
        away = torch.stack([(z - image).flatten(1).norm(dim=1) for image in x])
        outside = (away[1] > 1.2) & (away.argmin(0) == 1)
        logits = model(Spoilt.apply(z, outside) if where == "gradient" else z)
        spoilt = outside[:, None] & (torch.arange(5) == 3) & (where == "logits")
        return logits.masked_fill(spoilt, value)

    found, whole = (fringe.attribute(one, x, method=method, telemetry=2000) for one in (fragile, model))
    assert (found.verdict[0], found.verdict[2]) == (whole.verdict[0], whole.verdict[2])
    torch.testing.assert_close(found.values[[0, 2]], whole.values[[0, 2]], rtol=1e-7, atol=1e-10)
    assert found.verdict[1] == "diverged"
    assert found.diagnostics["steps"][1] == 1
    torch.testing.assert_close(found.values[1], whole.trajectory[1].cumulative[1], rtol=1e-7, atol=1e-10)
