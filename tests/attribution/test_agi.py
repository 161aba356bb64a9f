"""AGI: both modes against a loop written image by image and class by class, completeness, edges, and cost."""

import pytest
import torch
from attribution_toys import (
    CLASSES,
    Affine,
    ReluCNN,
    SoftplusMLP,
    Watched,
    images,
    score_and_gradient,
)

import fringe
from fringe import InputSpace
from fringe.attribution import AGI

BOUNDS = InputSpace(low=-1.5, high=1.8)


def literal(model, x, target, method, low=None, high=None):
    """The published loop of one image ``x`` (*S): map, the change of the score, the steps of each class, and after each
    step towards the first of them the point, the sum so far and the length of the step."""
    clipped = low is not None
    low, high = (low, high) if clipped else (x.min(), x.max())
    values, change, steps, walk = torch.zeros_like(x), 0.0, [], []
    ids = method._towards(target, CLASSES)
    for label in ids:
        z, taken = x, 0
        for _ in range(method.steps):
            if model(z[None]).argmax() == label:
                break
            _, ascent = score_and_gradient(model, z, label, "probability")
            _, gradient = score_and_gradient(model, z, target, "probability")
            origin = z if method.mode == "path" else x
            moved = origin + method.epsilon * (high - low) * ascent.sign()
            moved = moved.clamp(low, high) if clipped else moved
            values = values - gradient * (moved - origin)
            z, taken = moved, taken + 1
            if label == ids[0]:
                walk.append((z, values, (moved - origin).norm()))
        steps.append(taken)
        change += score_and_gradient(model, x, target, "probability")[0]
        change -= score_and_gradient(model, z, target, "probability")[0]
    return values, change, steps, walk


METHODS = [
    AGI(),
    AGI(mode="official"),
    AGI(epsilon=0.01, steps=30),
    AGI(epsilon=0.02, classes=2),
    AGI.preset("paper"),
]


@pytest.mark.parametrize(("network", "bounded"), [(SoftplusMLP, True), (ReluCNN, False)])
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_equals_the_literal_loop(network, method, bounded):
    """Maps, changes of the score and steps, with clipping to a valid range and without."""
    model, x = network(), images(4, seed=3)
    found = fringe.attribute(model, x, method=method, space=BOUNDS if bounded else None, batch_size=5)
    limits = (BOUNDS.low, BOUNDS.high) if bounded else (None, None)
    walked = []
    for i in range(len(x)):
        target = found.target[i].item()
        values, change, steps, _ = literal(model, x[i], target, method, *limits)
        torch.testing.assert_close(found.values[i], values, rtol=1e-10, atol=1e-12)
        assert found.diagnostics["steps"][i] == max(steps)
        walked += steps
        if method.mode == "official":
            assert found.verdict[i] == "unchecked"
            assert found.completeness_gap[i].isnan()
        else:
            assert (found.score - found.endpoint_score)[i].item() == pytest.approx(change, rel=1e-9, abs=1e-12)
            assert found.completeness_gap[i].item() == pytest.approx(values.sum().item() - change, rel=1e-8, abs=1e-12)
        expected, _ = score_and_gradient(model, x[i], target, "probability")
        assert found.score[i].item() == pytest.approx(expected, rel=1e-12)
    assert method.classes == 1 or len(set(walked)) > 1  # walks of different lengths, or nothing is shown


def test_classes_follow_the_authors_rule():
    """Every s-th of C, s = floor(C / k), without the target; never none."""
    assert AGI(classes=20)._towards(3, 1000) == list(range(0, 1000, 50))
    assert len(AGI(classes=15)._towards(3, 1000)) == 16
    assert AGI(classes=20)._towards(50, 1000) == [c for c in range(0, 1000, 50) if c != 50]
    assert AGI(classes=20)._towards(4, 10) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert AGI(classes=3)._towards(4, 10) == [0, 3, 6, 9]
    assert AGI(classes=1)._towards(7, 1000) == [0]
    assert AGI(classes=1)._towards(0, 1000) == [1]
    assert AGI(classes=20)._towards(1, 2) == [0]


def test_a_class_that_is_predicted_already_contributes_nothing():
    """Asked about another class than the predicted one, the walk towards the latter ends before it begins."""
    model, x = SoftplusMLP(), images(3)
    predicted = model(x).argmax(1)
    target = (predicted + 1) % CLASSES
    found = fringe.attribute(model, x, method=AGI(), target=target)
    for i in range(3):
        values, _, steps, _ = literal(model, x[i], target[i].item(), AGI())
        assert 0 in steps
        torch.testing.assert_close(found.values[i], values, rtol=1e-10, atol=1e-12)
    pair = lambda z: model(z)[:, :2]  # noqa: E731 - two classes: nowhere else to walk to
    still = fringe.attribute(pair, x, method=AGI(), target=1 - pair(x).argmax(1))
    assert still.verdict == ("stalled",) * 3
    assert (still.values == 0).all()
    assert torch.equal(still.score, still.endpoint_score)


def test_the_direction_survives_a_probability_that_underflows():
    """At logits hundreds of nats apart, p_l is zero in float32, and log p_l still says where to go."""
    model, x = Affine().float(), images(2).float()
    sharp = lambda z: 300.0 * model(z)  # noqa: E731
    logits = sharp(x)
    assert (logits.softmax(1) == 0).any()
    found = fringe.attribute(sharp, x, method=AGI(epsilon=0.02, steps=60), telemetry=True)
    assert torch.isfinite(found.values).all()
    assert all(t.steps["euclidean_step"].min() > 0 for t in found.trajectory)
    target = logits.argmax(1)
    for i, t in enumerate(found.trajectory):
        label = AGI()._towards(target[i].item(), CLASSES)[0]
        assert sharp(t.snapshots[-1:]).argmax().item() == label  # it arrived


def test_finished_walks_are_not_evaluated_again():
    """Every call brings the walks that are still on their way, and no others."""
    model, x, method = SoftplusMLP(), images(3), AGI(epsilon=0.03, steps=9)
    watched = Watched(model)
    fringe.attribute(watched, x, method=method, batch_size=16)
    steps = [s for i in range(3) for s in literal(model, x[i], model(x)[i].argmax().item(), method)[2]]
    expected = [sum(s >= k for s in steps) for k in range(max(steps) + 1)]
    assert watched.sizes[-len(expected) :] == expected
    assert len(set(expected)) > 3


@pytest.mark.parametrize("mode", ["path", "official"])
def test_the_trajectory_is_the_walk_towards_the_first_class(mode):
    model, x, method = SoftplusMLP(), images(2, seed=3), AGI(epsilon=0.01, steps=8, mode=mode)
    found = fringe.attribute(model, x, method=method, telemetry=10)
    for i, path in enumerate(found.trajectory):
        *_, walk = literal(model, x[i], found.target[i].item(), method)
        points, sums, lengths = map(torch.stack, zip(*walk, strict=True))
        assert len(walk) > 2
        torch.testing.assert_close(path.snapshots[1:], points)
        torch.testing.assert_close(path.cumulative[1:], sums)
        torch.testing.assert_close(path.steps["euclidean_step"], lengths)
