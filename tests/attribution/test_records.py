"""Laws of all paths: the record says what the model says at its points, and memory does not grow with the steps."""

import pytest
import torch
from attribution_toys import Headed, LiveBytes, Smooth, images, inputs, off_course

import fringe
from fringe.geometry import dist, entropy, kl, log_probabilities, sqrt_chart

METHODS = {
    "fringe": fringe.FRInGe(tau=2e-2, delta_euc=0.7),  # at a temperature: what is recorded is the model's own
    "paper": fringe.attribution.PaperFRInGe(tau=0.05),
    "ig": fringe.IntegratedGradients(steps=4),
    "trapezoid": fringe.IntegratedGradients(steps=4, rule="trapezoid"),
    "blur_ig": fringe.BlurIG(steps=4),
    "spectral_ig": fringe.SpectralIG(steps=5),
    "geoig_knn": fringe.GeoIGKNN(neighbours=2, order=2),
    "guided_ig": fringe.GuidedIG(steps=6),
    "agi": fringe.AGI(steps=6, classes=1, epsilon=0.01),
    "ig2": fringe.IG2(steps=6, references=1),
}
FIFTHS, SIXTHS = [k / 5 for k in range(1, 6)], [k / 6 for k in range(1, 7)]
DUE = {"spectral_ig": [*FIFTHS, 1.0], "guided_ig": SIXTHS, "ig2": SIXTHS}
"""At which share of its geodesic the prediction is due at each point after the input."""
SPACE = fringe.InputSpace(-3.0, 3.0, references=inputs(5, seed=3))


@pytest.mark.parametrize("name", METHODS)
def test_what_is_recorded_at_a_point_is_what_the_model_says_there(name):
    model, x = Smooth(sharpness=6.0), inputs(2)
    given = {"space": SPACE, "target": 1 if name == "ig2" else "predicted"}  # which is that of all references
    found = fringe.attribute(model, x, method=METHODS[name], telemetry=1000, batch_size=3, **given)
    uniform = torch.full((5,), 0.2, dtype=torch.float64).log()

    def close(value, expected):
        torch.testing.assert_close(value, expected, rtol=1e-7, atol=1e-7)

    for i, path in enumerate(found.trajectory):
        assert path.snapshot_steps.tolist() == list(range(len(path.snapshots)))
        logits = model(path.snapshots)
        log_p = log_probabilities(logits)
        s = sqrt_chart(log_p)
        scores = logits.softmax(1) if name == "agi" else logits  # it explains the probability
        expected = {
            "score": scores[:, found.target[i]],
            "entropy": entropy(log_p),
            "reference_kl": kl(log_p, uniform),
            "reference_distance": dist(s, sqrt_chart(uniform)),
        }
        for quantity, value in expected.items():
            close(path.points[quantity], value)
        close(path.steps["euclidean_step"], path.snapshots.diff(dim=0).flatten(1).norm(dim=1))
        close(path.steps["fisher_rao_step"], dist(s[1:], s[:-1]))
        close(path.cumulative[-1], found.values[i])
        for quantity in ("entropy", "kl", "distance"):
            at = path.points[quantity if quantity == "entropy" else f"reference_{quantity}"]
            close(found.diagnostics[f"endpoint_{quantity}"][i], at[-1])
            if quantity != "kl":
                close(found.diagnostics[quantity][i], at[0])
        error = path.points["tracking_error"][1:]
        if name in DUE:
            p = log_p.exp()
            expected = [off_course(point, p[0], share) for point, share in zip(p[1:], DUE[name], strict=True)]
            assert error.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-7)
        close(found.diagnostics["tracking_error_max"][i], error.max())
        close(found.diagnostics["tracking_error_mean"][i], error.mean())
    assert torch.equal(found.trajectory[0].snapshots[0], x[0])


OF_STEPS = {
    "ig": lambda steps: fringe.IntegratedGradients(steps=steps),
    "guided_ig": lambda steps: fringe.GuidedIG(steps=steps),
    "agi": lambda steps: fringe.AGI(steps=steps, epsilon=1e-4),
    "ig2": lambda steps: fringe.IG2(steps=steps, references=1, eta=0.1),
    "ggig": lambda steps: fringe.GGIG(intervals=9, iterations=steps),
    "fringe": lambda steps: fringe.FRInGe(steps=steps, halvings=0),
}


@pytest.mark.parametrize("name", OF_STEPS)
def test_memory_does_not_grow_with_the_number_of_steps(name):
    """No history is kept, of points, gradients or graphs."""

    def peak(steps):
        x = images(2, seed=3)
        space = fringe.InputSpace(references=images(6, seed=11))
        with LiveBytes() as live:
            fringe.attribute(Headed(), x, method=OF_STEPS[name](steps), space=space, batch_size=8)
        return live.peak

    assert peak(30) <= peak(10)
