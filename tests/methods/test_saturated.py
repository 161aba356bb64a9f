"""A map of zeros is never called an answer: all methods, on softmaxes of any steepness."""

import pytest
import torch

import fringe
from fringe.attribution import METHODS

METHODS_AND_VARIANTS = {
    **{name: kind() for name, kind in METHODS.items() if name not in ("ggig", "geoig_svi")},
    "geoig_svi": fringe.attribution.GeoIGSVI(iterations=3, steps=10),
    "agi:official": fringe.attribution.AGI.preset("official"),
    "ggig": fringe.attribution.GGIG(intervals=5, iterations=4),
    "fringe:natural": fringe.FRInGe(solve="natural"),
    "fringe:diffusion": fringe.FRInGe().variant("diffusion"),
    "fringe:none": fringe.FRInGe(structure="none", max_steps=30),
}


def network(gap: float):
    """Logits (B, 4) of images (B, 1, 6, 6) in float32, ``gap`` nats apart on average, and three images."""
    g = torch.Generator().manual_seed(0)
    x, weight = torch.randn(3, 1, 6, 6, generator=g), torch.randn(4, 36, generator=g)
    plain = lambda z: z.flatten(1).sinh().tanh() @ weight.T  # noqa: E731
    top = plain(x).topk(2, 1).values
    scale = gap / (top[:, 0] - top[:, 1]).mean()
    return (lambda z: scale * plain(z)), x


@pytest.mark.parametrize("gap", [20.0, 200.0, 1000.0])
@pytest.mark.parametrize("name", METHODS_AND_VARIANTS)
def test_no_zero_map_is_an_answer(name, gap):
    model, x = network(gap)
    space = fringe.InputSpace(references=torch.randn(5, 1, 6, 6, generator=torch.Generator().manual_seed(2)))
    for score in ("logit", "log_probability", "probability"):
        found = fringe.attribute(model, x, method=METHODS_AND_VARIANTS[name], score=score, space=space)
        for values, verdict, advice in zip(found.values, found.verdict, found.advice, strict=True):
            if not torch.isfinite(values).all():
                assert verdict == "diverged"
            elif values.abs().max() < torch.finfo(torch.float32).tiny:
                assert verdict in ("stalled", "at_reference", "diverged")
                assert "logit" in advice or "reference" in advice or verdict == "diverged"


def test_a_map_beyond_the_range_of_its_precision_diverged():
    """Gradients of 3e38 and a constant score: sums of terms of 1.5e38 are finite in float64, and no map in float32."""
    model = lambda z: torch.stack([3e38 * (z[:, 0] - z[:, 1]), torch.zeros_like(z[:, 0])], 1)  # noqa: E731
    x = torch.full((1, 2), 2.0)
    method = fringe.attribution.GuidedIG(steps=4, fraction=1.0, max_dist=0.0)
    problem = fringe.paths.Problem.of(fringe.Classifier(model), x, target=0, baseline=torch.zeros_like(x))
    with problem.model.session(x.device):
        found = method.attribute(problem)
    assert not torch.isfinite(found.values).all()
    assert found.verdict == ("diverged",)
