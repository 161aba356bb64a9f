"""Paths in mask coordinates: each step by explicit matrices in float64, and what follows from the form of a mask."""

import math

import pytest
import torch
from torch import nn

import fringe
from fringe.attribution._coordinates import TOP, Coordinates
from fringe.errors import InputError
from fringe.paths import Problem

MASK = fringe.FRInGe(coordinates="mask")


class Net(nn.Module):
    """A smooth network of series (B, 2, 12) with four classes."""

    def __init__(self, slope=1.0):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.a = nn.Parameter(0.3 * slope * torch.randn(24, 10, generator=generator, dtype=torch.float64))
        self.b = nn.Parameter(2.0 * torch.randn(10, 4, generator=generator, dtype=torch.float64))

    def forward(self, x):
        return torch.tanh(x.flatten(1) @ self.a) @ self.b


def inputs(count=3):
    return torch.randn(count, 2, 12, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def test_a_path_is_that_of_explicit_matrices():
    """Each step in y from the Jacobian of F(b + m(y) (x_0 - b)): its direction by a dense solve, its three bounds, and
    the next point. Four classes have three columns, the whole metric."""
    net, x = Net().eval(), inputs(1)
    found = fringe.attribute(net, x, method=fringe.FRInGe(coordinates="mask", temperature=1.0), telemetry=200)
    points = found.trajectory[0].snapshots[:, None].double()
    base = x.mean(2, keepdim=True)
    sigmoid = lambda y: 1 / (1 + torch.exp(-y))  # noqa: E731
    top = sigmoid(torch.tensor(3.0).double())
    model = lambda y: net(base + (x - base) * (sigmoid(y).view_as(x) / top))[0]  # noqa: E731
    y, q = torch.full((24,), 3.0).double(), torch.full((4,), 0.25).double()
    logits = net(x)[0]
    first, end = logits.softmax(0).sqrt(), q.sqrt()
    angle = torch.acos(first @ end)
    total = math.ceil(2 * float(angle) / math.sqrt(2 * 4e-2))
    assert len(points) > 4
    for step in range(3):
        share = min((step + 1) / total, 1.0)
        waypoint = (torch.sin((1 - share) * angle) * first + torch.sin(share * angle) * end) / torch.sin(angle)
        p = model(y).softmax(0)
        root = p.sqrt()
        j = torch.autograd.functional.jacobian(model, y)
        tangent = waypoint - root * (root @ waypoint)
        unit = tangent / tangent.norm()
        basis = torch.linalg.svd(torch.stack([root, unit]))[2][2:]
        columns = torch.stack([j.T @ (root * d - p * (root @ d)) for d in (unit, *basis)], 1)
        m = columns[:, 0]
        metric = columns @ columns.T + (m @ m / 100) * 1e-2 * torch.eye(24).double()
        v = torch.linalg.solve(metric, -tangent.norm() / 2 * m)
        u = j @ v
        norm = math.sqrt(float((p * u**2).sum() - (p * u).sum() ** 2))
        bounds = [4.0, math.sqrt(2 * 4e-2) / norm, 0.3 * math.sqrt(24) / float(v.norm())]
        bounds.append(1.0 / float(u.max() - u.min()) if step == 0 else math.inf)
        size = float(found.trajectory[0].steps["step_size"][step])
        assert size <= min(bounds) * (1 + 1e-9)
        if step == 0:
            assert size == pytest.approx(min(bounds), rel=1e-9)
        y = (y - size * v).clamp_max(3.0)
        expected = base + (x - base) * (sigmoid(y).view_as(x) / top)
        assert torch.allclose(points[step + 1], expected, atol=1e-9)


def test_sums_are_right_to_rounding_where_segments_are_halved_far():
    method = fringe.FRInGe(coordinates="mask", quadrature_rtol=1e-11, halvings=20)
    found = fringe.attribute(Net(0.3).eval(), inputs(), method=method)
    assert float(found.completeness_residual.max()) < 1e-10


def test_nothing_is_added_and_what_is_at_the_baseline_has_no_evidence():
    net, x = Net().eval(), inputs()
    x[:, 0, 3:6] = 0.7
    base = torch.zeros_like(x)
    base[:, 0, 3:6] = 0.7
    found = fringe.attribute(net, x, method=MASK, baseline=base, telemetry=50)
    assert (found.values[:, 0, 3:6] == 0).all()
    assert (found.values.flatten(1).abs().amax(1) > 0).all()
    for path, start, zero in zip(found.trajectory, x, base, strict=True):
        share = (path.snapshots.double() - zero) / torch.where(start == zero, 1.0, start - zero)
        assert share.min() >= -1e-6
        assert share.max() <= 1 + 1e-6
    same = fringe.attribute(net, x, method=MASK, baseline=x)
    assert (same.values == 0).all()
    assert set(same.verdict) == {"stalled"}


def test_where_the_change_of_variables_is_the_identity_the_path_is_that_of_the_input(monkeypatch):
    """m(y) = y and x_0 - b = 1 make x = b + y."""
    net, x = Net().eval(), inputs()
    settings = {"gamma_step": 0.0, "gamma_prior": 0.0, "structure": "none", "delta_euc": 1.0}
    plain = fringe.attribute(net, x, method=fringe.FRInGe(**settings))
    monkeypatch.setattr(Coordinates, "slope", lambda self: self.free * self.span)
    start = x - 1.0
    given = Coordinates.of.__func__

    def of(cls, problem, scale, *, mask):
        made = given(cls, problem, scale, mask=mask)
        return made and Coordinates(made.free, torch.ones_like(made.span), made.base, made.span)

    def move(self, x, v, dx, size):
        y = self.y - size * self.free * v
        return self.base + self.span * y, Coordinates(self.free, y, self.base, self.span)

    monkeypatch.setattr(Coordinates, "of", classmethod(of))
    monkeypatch.setattr(Coordinates, "move", move)
    found = fringe.attribute(net, x, method=fringe.FRInGe(coordinates="mask", delta_euc=1.0), baseline=start)
    assert found.verdict == plain.verdict
    assert torch.allclose(found.values, plain.values, rtol=1e-9, atol=1e-12)


def test_one_path_serves_all_classes_and_batches():
    net, x = Net().eval(), inputs()
    several = fringe.attribute(net, x, method=MASK, target="top3", batch_size=2)
    for k in range(3):
        alone = fringe.attribute(net, x[1:2], method=MASK, target=int(several.target[1, k]))
        assert torch.allclose(several.values[1, k], alone.values[0], rtol=1e-9, atol=1e-12)
    assert several.of_class(0).verdict == several.verdict


def test_padding_stays_and_takes_no_part_in_the_mean():
    net, x = Net().eval(), inputs()
    x[0, :, 8:] = 0.4
    tail = x[0, :, 8:].clone()

    class Short(nn.Module):
        def forward(self, z):
            return net(torch.cat([z, tail.expand(len(z), 2, 4)], -1))

    together = fringe.attribute(net, x, lengths=[8, 12, 12], method=MASK, target=1)
    alone = fringe.attribute(Short().eval(), x[:1, :, :8], method=MASK, target=1)
    assert torch.allclose(together.values[0, :, :8], alone.values[0], rtol=1e-9, atol=1e-12)
    assert (together.values[0, :, 8:] == 0).all()


def test_a_focus_goes_with_a_mask():
    weights = torch.zeros(3, 1, 12)
    weights[..., :6] = 1.0
    focused = fringe.FRInGe(coordinates="mask", focus=tuple(weights.tolist()), focus_floor=0.1)
    found = fringe.attribute(Net().eval(), inputs(), method=focused)
    plain = fringe.attribute(Net().eval(), inputs(), method=MASK)

    def share(result):
        return result.values[..., :6].abs().sum() / result.values.abs().sum()

    assert share(found) > share(plain)
    assert float(found.completeness_residual.max()) < 0.05


def test_only_a_mask_takes_a_baseline():
    with pytest.raises(InputError, match="does not begin at one"):
        fringe.attribute(Net().eval(), inputs(), method="fringe", baseline=0.0)


def test_the_slope_is_the_derivative_of_the_move():
    problem = Problem.of(fringe.Classifier(Net().eval()), inputs())
    start = Coordinates.of(problem, torch.full((1, 1, 12), 0.5, dtype=torch.float64), mask=True)
    assert isinstance(start, Coordinates)
    assert torch.equal(start.y, torch.full_like(start.y, TOP))
    v = torch.rand(3, 2, 12, dtype=torch.float64)
    _, inside = start.move(problem.inputs, v, v, torch.ones(3, 1, 1, dtype=torch.float64))
    before, _ = inside.move(problem.inputs, v, v, torch.full((3, 1, 1), 1e-6, dtype=torch.float64))
    after, _ = inside.move(problem.inputs, v, v, torch.full((3, 1, 1), -1e-6, dtype=torch.float64))
    assert torch.allclose((after - before) / 2e-6, inside.slope() * v, rtol=1e-7)
