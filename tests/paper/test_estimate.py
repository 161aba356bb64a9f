"""What a plan will cost: exact where the probe runs to the end, near where it is stopped."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from fringe import FRInGe, FringeError, IntegratedGradients
from fringe.experiments import CONTROLS, Arm, ModelSource, Plan
from fringe.experiments._evaluator import Candidate, make_maps
from fringe.experiments._manifest import resolve
from fringe.experiments._runner import TaskRunner
from fringe.metrics import MaxSensitivity, Sparseness
from fringe.paper._estimate import estimate_cost


def study(methods, data=("embedded:digits",), n=2, controls=False, **known):
    arm = Arm("digits", ModelSource("embedded:digits"), methods)
    metrics = known.pop("metrics", {"sparseness": Sparseness()})
    return resolve(Plan("plan", tuple(data), (arm,), metrics, n=n, controls=controls, **known))


def spent(resolved, method):
    """Passes of the whole map of the first image, counted."""
    subject = TaskRunner(resolved).subject("digits", (resolved.manifest.images[0]["digest"],))
    classifier = subject.problem.model
    before = replace(classifier.passes)
    with classifier.session(subject.problem.inputs.device):
        make_maps(Candidate("m", method), subject.problem)
    found = classifier.passes.since(before)
    return found.forward, found.jvp, found.vjp


METHODS = {"fringe": FRInGe(steps=3, cg_iterations=3), "ig": IntegratedGradients(steps=5)}


def test_a_map_that_is_finished_costs_what_it_cost():
    resolved = study(METHODS)
    costs = estimate_cost(resolved, "digits", seconds=600)
    assert list(costs) == ["fringe", "ig"]
    for name, cost in costs.items():
        assert (cost.forward, cost.jvp, cost.vjp) == spent(resolved, METHODS[name])
        assert cost.fraction == 1.0
        assert cost.seconds > 0
        assert cost.scores > 0


@pytest.mark.parametrize(
    "method",
    [
        FRInGe(steps=24, cg_iterations=6),
        FRInGe(tau=5e-3),
        FRInGe(tau=5e-3).variant("euclidean"),
        IntegratedGradients(steps=400),
    ],
    ids=["fringe", "fringe of a budget", "euclidean", "ig"],
)
def test_a_map_that_is_stopped_is_told_to_within_a_small_factor(method):
    resolved = study({"m": method})
    (cost,) = estimate_cost(resolved, "digits", seconds=0.0).values()
    assert 0 < cost.fraction < 0.5
    true = sum(spent(resolved, method))  # together: a JVP at the first step alone is not told apart from one a step
    assert true / 2 <= cost.forward + cost.jvp + cost.vjp <= 2.5 * true


def test_metrics_that_ask_for_maps_cost_those_maps():
    metrics = {"max_sensitivity": MaxSensitivity(samples=6), "sparseness": Sparseness()}
    some = study(METHODS, n=4, metrics=metrics, limits={"max_sensitivity": 2})
    one, other = estimate_cost(some, "digits", seconds=600).values()
    maps = 6 * 2 / 4  # six for half of the images; what the other metric takes is the same for all methods
    assert one.scores - maps * one.seconds == pytest.approx(other.scores - maps * other.seconds, rel=1e-6)
    assert one.scores > maps * one.seconds


def test_only_some_methods_and_the_controls():
    resolved = study(METHODS, controls=True)
    assert list(estimate_cost(resolved, "digits", seconds=600)) == [*METHODS, *CONTROLS, "diffusion"]
    costs = estimate_cost(resolved, "digits", ["ig", "zero"], seconds=600)
    assert list(costs) == ["ig", "zero"]
    assert (costs["zero"].forward, costs["zero"].vjp) == (0.0, 0.0)


def test_an_image_that_cannot_be_explained_is_passed_over(tmp_path):
    for place in range(3):
        values = np.random.default_rng(place).integers(0, 255, (32, 32), dtype=np.uint8)
        Image.fromarray(values).save(tmp_path / f"{place}.png")
    methods = {"ig": IntegratedGradients(steps=2)}
    first = study(methods, [str(tmp_path)], n=3).manifest.images[0]["source"]
    with open(first, "rb+") as file:
        file.truncate(60)
    resolved = study(methods, [str(tmp_path)], n=3)
    assert resolved.manifest.images[0]["source"] == first
    assert estimate_cost(resolved, "digits")["ig"].vjp == 2
    with pytest.raises(FringeError, match="cannot be decoded"):
        estimate_cost(study(methods, [first], n=1), "digits")
