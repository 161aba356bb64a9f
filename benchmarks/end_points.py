"""Other end points of a path, on ResNet-20: does a complete map rank pixels better than the map times its region?

All maps but the products add up to a change of the score. Differences of scores to ``FRInGe()``, with 95 % intervals;
and the share of the mark in a scene where a fixed floor hides it (``tests/bench/scenes/test_designed.py``).

    FRINGE_SHARED=... python benchmarks/end_points.py [0 or 1, for the half of the images]
"""

import math
import sys
import warnings
from typing import Any

import torch
from torch import Tensor, nn

import fringe
import shared_models
from fringe.attribution._focus import FocusedPaths
from fringe.baselines import InputSpace, gaussian_blur
from fringe.bench.scenes import get_scene
from fringe.evaluation import paired
from fringe.metrics import EvaluationContext, evaluate, get_metric
from fringe.paths import Problem

COUNT, STEPS = 25, 16
#: Shares of the image that are blurred, until the prediction has lost half of its divergence.
AREAS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
METRICS = ("insertion", "deletion", "insertion:zero", "deletion:zero")


def divergence(logits: Tensor) -> Tensor:
    """Divergence (B,) of the prediction from the uniform one."""
    return math.log(logits.shape[1]) - torch.special.entr(logits.softmax(1)).sum(1)


def erased(model: nn.Module, x: Tensor, order: Tensor) -> Tensor:
    """The image whose first places of the order (B, H, W) are blurred, as few of ``AREAS`` as do the work of a path."""
    blurred, goal = gaussian_blur(x, x.shape[-1] / 6, padding="mirror"), 0.5 * divergence(model(x))
    ends, left = x.clone(), torch.ones(len(x), dtype=torch.bool)
    for area in AREAS:
        least = order.flatten(1).quantile(1 - area, dim=1)[:, None, None, None]
        mask = gaussian_blur((order[:, None] >= least).to(x), 1.0, padding="mirror")
        ends = torch.where(left[:, None, None, None], x.lerp(blurred, mask), ends)
        left &= divergence(model(ends)) > goal
    return ends


def candidates(model: nn.Module, x: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Maps (B, C, H, W) by name."""

    def explain(method: Any, **more: Any) -> Tensor:
        return fringe.attribute(model, x, method=method, target=target, **more).values

    classifier = fringe.Classifier(model)
    with classifier.session(x.device):
        weights = FocusedPaths("cam", 0.2, "auto").weights(Problem.of(classifier, x, target=target))
    assert weights is not None
    plain, line = explain("fringe"), fringe.IntegratedGradients(steps=32)
    own = gaussian_blur(plain.sum(1, keepdim=True).abs(), 1.5, padding="mirror")
    priors = [explain(fringe.FRInGe(gamma_prior=gamma)) for gamma in (0.0, 3e-3)]
    again: Any = (own / own.flatten(1).quantile(0.99, dim=1)[:, None, None, None]).clamp(0, 1)
    both: Any = again.maximum(weights)
    return {
        "FRInGe()": plain,
        "s x map, floor .2": (0.2 + 0.8 * weights) * plain,
        "s x map, floor .05": (0.05 + 0.95 * weights) * plain,
        "focus=cam": explain(fringe.FRInGe(focus="cam")),
        "the region blurred": explain(line, baseline=erased(model, x, weights[:, 0])),
        "the strongest pixels of the map blurred": explain(line, baseline=erased(model, x, own[:, 0])),
        "a second path, focused on the map of the first": explain(fringe.FRInGe(focus=again)),
        "a second path, focused on both": explain(fringe.FRInGe(focus=both)),
        "mean of three ends (prior 0, 3e-4, 3e-3)": (plain + priors[0] + priors[1]) / 3,
    }


def main() -> None:
    """Print a row for each candidate."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    half = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    model, x = shared_models.model("cifar_resnet20"), shared_models.images("cifar_resnet20", COUNT, half)
    target = model(x).argmax(1)
    maps = candidates(model, x, target)
    problem = Problem.of(fringe.Classifier(model), x, target=target, domain=InputSpace(x.amin(), x.amax()))
    metrics = {name: get_metric(name).with_text({"steps": str(STEPS)}) for name in METRICS}
    context, scores = EvaluationContext(problem), dict[str, dict[str, Any]]()
    for name, values in maps.items():
        print(name, file=sys.stderr)
        scores[name] = {label: one.values.numpy() for label, one in evaluate(context, values, metrics).items()}
    scene = get_scene("fooled_cam:weak_texture")
    network = scene.network(0, None, ())
    made = [scene.make(one, network) for one in scene.examples([network], (), 6, 0)]
    images, truth = torch.stack([one for one, _ in made]), torch.stack([one for _, one in made])
    marked = candidates(network.module, images, torch.ones(6, dtype=torch.long))
    print("| map | " + " | ".join(METRICS) + " | share of the mark |")
    print("|---" * (len(METRICS) + 2) + "|")
    for name, values in scores.items():
        size = marked[name].sum(1).abs()
        share = (size * truth).flatten(1).sum(1) / size.flatten(1).sum(1)
        cells = [
            f"{one.mean():.3f}" if name == "FRInGe()" else shown(one, scores["FRInGe()"][m])
            for m, one in values.items()
        ]
        print(f"| {name} | " + " | ".join(cells) + f" | {share.mean():.2f} |")


def shown(one: Any, base: Any) -> str:
    """A difference with its interval, and a star where that leaves out zero."""
    found = paired(one, base)
    star = "*" if found.low * found.high > 0 else ""
    return f"{found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]{star}".replace("-", "−")


if __name__ == "__main__":
    main()
