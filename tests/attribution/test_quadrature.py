"""Adaptive quadrature against its definition, written for one image and one piece at a time."""

import dataclasses
import itertools
import math

import pytest
import torch
from attribution_toys import Smooth, inputs
from torch import Tensor

import fringe
from fringe.attribution import _walk
from fringe.attribution._fisher_rao import piece_error, trapezoid
from fringe.attribution._walk import Halving, halved
from fringe.paths import Point, Problem

STEEP = {"damping": 1.0, "gamma_step": 0.0, "gamma_prior": 0.0, "tau": 1e9, "delta_euc": None, "eta_max": 300.0}
COARSE = fringe.FRInGe(**STEEP, steps=4, halvings=8, temperature=1.0)
"""Four steps so long that the trapezoid rule is far off on most of them, and not on all."""


@dataclasses.dataclass
class Bisection:
    """The integral of the score's gradient along straight pieces; counts the points that it asks the model about."""

    model: torch.nn.Module
    target: int
    rtol: float
    max_depth: int = 8
    points: int = 0

    def at(self, z: Tensor) -> tuple[float, Tensor]:
        z = z.detach().requires_grad_(True)
        score = self.model(z[None])[0, self.target]
        return score.item(), torch.autograd.grad(score, z)[0]

    def piece(self, a: Tensor, b: Tensor) -> tuple[Tensor, float]:
        """The trapezoid rule, and what it misses."""
        (f_a, g_a), (f_b, g_b) = self.at(a), self.at(b)
        value = 0.5 * (g_a + g_b) * (b - a)
        return value, value.sum().item() - (f_b - f_a)

    def segment(self, a: Tensor, b: Tensor, before: float, change: float, scale: float) -> Tensor:
        """Pieces of one size after the other: the bad ones of the latest size are halved, while the sum is off. The
        gradient at a middle has the share from 1/2 to 3/4 that is right for the score, or 1/2 where that is not enough
        and the halves are halved, or they are off by more than 8 times what a piece may be."""
        value, missed = self.piece(a, b)
        latest, allowed, limit = [(a, b)], self.rtol * scale, self.rtol * change
        for level in range(self.max_depth):
            bad = [(p, q) for p, q in latest if abs(self.piece(p, q)[1]) > allowed]
            if abs(before + missed) <= limit or not bad:
                break
            self.points += len(bad)
            turns, latest = list[tuple[Tensor, float, Tensor, Tensor]](), list[tuple[Tensor, Tensor]]()
            for p, q in bad:
                part, error = self.piece(p, q)
                turn = self.at(0.5 * (p + q))[1] * (q - p) - part
                rough = abs(error + 0.5 * turn.sum().item()) > 8 * allowed
                share = 0.5 if rough else min(max(-error / turn.sum().item(), 0.5), 0.75)
                turns.append((turn, share, error + share * turn.sum(), 0.5 * (p + q)))
            mixed = missed + sum(share * turn.sum().item() for turn, share, _, _ in turns)
            for (p, q), (turn, share, left, middle) in zip(bad, turns, strict=True):
                if abs(before + mixed) > limit and abs(left) > allowed and level + 1 < self.max_depth:
                    share, latest = 0.5, [*latest, (p, middle), (middle, q)]
                value, missed = value + share * turn, missed + share * turn.sum().item()
            allowed /= math.sqrt(2)
        return value

    def along(self, points: Tensor, planned: int) -> Tensor:
        """Over the first steps of a path, ``points`` in the order in which it was walked; ``planned`` in all."""
        total, gap, first = torch.zeros_like(points[0]), 0.0, self.at(points[0])[0]
        logits = self.model(points[:1])[0]
        least = 0.1 * abs(first - logits.mean().item())
        for a, b in itertools.pairwise(points):
            f_a, f_b = self.at(a)[0], self.at(b)[0]
            change = max(abs(f_b - first), least)
            scale = max(abs(f_b - f_a), change / planned)
            total = total + self.segment(a, b, gap, change, scale)
            error, limit = self.piece(a, b)[1], self.rtol * change
            if abs(error) > self.rtol * scale:  # a bisection is assumed to leave a quarter of the error
                for _ in range(self.max_depth):
                    error /= 4 if abs(gap + error) > limit else 1
            gap += error
        return total


@pytest.mark.parametrize(
    ("rtol", "seed", "target"),
    [
        (None, 4, "predicted"),
        (None, 24, 4),  # without the least change, the images would be bisected at 6 more points
        (1e-3, 1, "predicted"),
    ],
)
def test_pieces_are_bisected_while_the_sum_so_far_is_off(rtol, seed, target):
    """The same numbers from the same number of points, for images that need few bisections and many; 2 % by default."""
    model, x = Smooth(), inputs(4, seed)
    method = COARSE if rtol is None else dataclasses.replace(COARSE, quadrature_rtol=rtol)
    found = fringe.attribute(model, x, method=method, target=target, telemetry=True)
    plain = fringe.attribute(model, x, method=dataclasses.replace(method, halvings=0), target=target)
    counts = []
    for i, trajectory in enumerate(found.trajectory):
        oracle = Bisection(model, int(found.target[i]), rtol or 2e-2)
        expected = -oracle.along(trajectory.snapshots, 4)
        torch.testing.assert_close(found.values[i], expected, rtol=1e-9, atol=1e-12)
        counts.append(oracle.points)
    assert found.passes.forward - plain.passes.forward == sum(counts)
    assert found.passes.vjp - plain.passes.vjp == sum(counts)
    assert len(set(counts)) > 2


@pytest.mark.parametrize("batch_size", [1, 3])
def test_segments_wait_for_a_full_batch_and_nothing_depends_on_it(batch_size):
    """The same maps from as many points, and the same sums at every point of a record."""
    model, x = Smooth(), inputs(4)
    plain, found = (
        fringe.attribute(model, x, method=method, batch_size=batch_size, telemetry=5)
        for method in (dataclasses.replace(COARSE, halvings=0), COARSE)
    )
    points = 0
    for i, (target, trajectory) in enumerate(zip(found.target.tolist(), found.trajectory, strict=True)):
        alone = fringe.attribute(model, x[i : i + 1], method=COARSE).values
        # a batch is rounded otherwise than an image, by as much as the processor's instructions have it
        torch.testing.assert_close(found.values[i : i + 1], alone, rtol=1e-9, atol=1e-12)
        for k in range(1, 5):
            oracle = Bisection(model, target, 2e-2)
            expected = -oracle.along(trajectory.snapshots[: k + 1], 4)
            torch.testing.assert_close(trajectory.cumulative[k], expected, rtol=1e-9, atol=1e-12)
        points += oracle.points
    assert found.passes.vjp - plain.passes.vjp == points > 0


@pytest.mark.parametrize(
    ("depth", "structure", "pieces"),
    [(2, "image", 4), ("auto", "image", 8), ("auto", "none", 256)],
)
def test_bisection_ends_at_its_depth(depth, structure, pieces):
    """A tolerance that rounding alone exceeds: each of 4 steps is cut into as many pieces as it may be."""
    model, x = Smooth(), inputs(1)
    method = dataclasses.replace(COARSE, quadrature_rtol=1e-18, halvings=depth, structure=structure)
    found = fringe.attribute(model, x, method=method)
    plain = fringe.attribute(model, x, method=dataclasses.replace(method, halvings=0))
    assert 3 * (pieces - 1) < found.passes.forward - plain.passes.forward <= 4 * (pieces - 1)
    assert found.completeness_residual.item() < plain.completeness_residual.item() / pieces


def test_a_middle_that_is_not_finite_leaves_the_trapezoid_rule():
    """The path itself is finite: its map keeps the error that it had, and says so."""
    model, x, method = Smooth(), inputs(1), dataclasses.replace(COARSE, halvings=1)
    plain = fringe.attribute(model, x, method=dataclasses.replace(method, halvings=0), telemetry=5)
    points = plain.trajectory[0].snapshots
    middles = 0.5 * (points[1:] + points[:-1])

    def broken(z: Tensor) -> Tensor:
        near = (z[:, None] - middles[None]).flatten(2).norm(dim=2).amin(1) < 1e-9
        return torch.where(near[:, None], torch.nan, 1.0) * model(z)

    found = fringe.attribute(broken, x, method=method)
    assert found.passes.forward > plain.passes.forward  # it tried
    torch.testing.assert_close(found.values, plain.values)
    torch.testing.assert_close(found.completeness_residual, plain.completeness_residual)


def test_memory_that_ends_while_segments_are_bisected_costs_no_image(monkeypatch):
    model, x, halved = Smooth(), inputs(4), _walk.halved
    expected = fringe.attribute(model, x, method=COARSE)

    def limited(problem, depth, batch):
        if len(batch) > 2:
            raise torch.OutOfMemoryError("simulated")
        return halved(problem, depth, batch)

    monkeypatch.setattr(_walk, "halved", limited)
    classifier = fringe.Classifier(model, batch_size=4)
    method = dataclasses.replace(COARSE, halvings=1)
    found = fringe.attribute(classifier, x, method=method)
    monkeypatch.undo()
    torch.testing.assert_close(found.values, fringe.attribute(model, x, method=method).values, rtol=1e-12, atol=1e-14)
    assert classifier.batch_size.on(x.device) == 2
    assert not torch.equal(found.values, expected.values)


@pytest.mark.parametrize("depth", [1, 3, 8])
def test_halves_of_one_segment_are_those_of_the_definition_whatever_the_errors_before_it(depth):
    """The errors before a segment may cancel its own, or add up with it: the same values from as many points."""
    model, ends = Smooth(), inputs(12, 5).view(6, 2, *inputs(1).shape[1:])
    problem = Problem.of(fringe.Classifier(model), ends[:, 0])
    rows, counts = torch.arange(6), list[int]()
    points = [
        Point(x, problem.score(z, rows), g) for x in ends.unbind(1) for z, g in [problem.logits_gradient(x, rows)]
    ]
    error = piece_error(trapezoid(*points), *points)
    allowed = 0.005 * error.abs()
    for share, most in ((0.0, 0.01), (0.0, 0.3), (0.2, 0.3), (-0.2, 0.3), (-1.5, 0.3)):  # in units of its own
        limit = most * error.abs()
        batch = Halving(rows, rows, *points, torch.stack([share * error, limit, allowed], 1))
        before = problem.model.passes.vjp
        with problem.model.session(ends.device):
            found = trapezoid(*points) + halved(problem, depth, batch)
        counts.append(problem.model.passes.vjp - before)
        oracles = [Bisection(model, int(problem.target[i]), 1.0, depth) for i in range(6)]
        for i, oracle in enumerate(oracles):
            bounds = float(share * error[i]), float(limit[i]), float(allowed[i])
            expected = oracle.segment(*ends[i], *bounds)
            torch.testing.assert_close(found[i], expected, rtol=1e-9, atol=1e-12)
        assert counts[-1] == sum(oracle.points for oracle in oracles)
    assert (len(set(counts)) > 1) is (depth > 1)
