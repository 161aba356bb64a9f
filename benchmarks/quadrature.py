"""Where the completeness residual of FRInGe comes from: the table of docs/solver.md.

    python benchmarks/quadrature.py --model mobilenet_v1_025 --images 96

A row is a path at a step length tau. Each segment is summed with the gradient at its end near the input, at its other
end, at its middle, and with the two usual combinations. Errors are those of whole maps, as shares of the change of the
score: the median over images with its sign, and how many images are wrong by more than 5 %. ``diffusion`` is a path
whose direction does not depend on the gradient that is summed along it. Then the passes and verdicts under each rule of
``FRInGe``, how far its maps differ from those of the trapezoid rule, and the passes of five classes at once.
"""

import argparse
import dataclasses
import statistics
from unittest.mock import patch

import torch
from torch import Tensor

import fringe
import shared_models
from fringe.attribution import Diffusion, _walk
from fringe.attribution._diagnostics import COARSE_ABOVE
from fringe.attribution._fisher_rao import FisherRaoPath, Here, Segment, State

ADAPTIVE = fringe.FRInGe(temperature=1.0, tau=2e-2)  # the predictions themselves: only the rule and tau change
PLAIN = dataclasses.replace(ADAPTIVE, halvings=0)
BUDGET = dataclasses.replace(PLAIN, until="budget")
PATHS = {"FRInGe": BUDGET, "diffusion": dataclasses.replace(Diffusion.of(BUDGET), gamma_prior=3e-3)}
TAUS = 2e-2, 3e-3, 5e-4
RULES = {"trapezoid": PLAIN}
HALVES = "adaptive, 2%, trapezoid rule on both halves"
RULES |= {HALVES: ADAPTIVE}
RULES |= {f"adaptive, {tol:.0%}": dataclasses.replace(ADAPTIVE, quadrature_rtol=tol) for tol in (0.01, 0.02, 0.03)}


def errors(model: torch.nn.Module, x: Tensor, method: fringe.FRInGe) -> tuple[float, dict[str, Tensor]]:
    """Steps of an image, and the errors (B,) of the rules relative to the change of the score."""
    total = torch.zeros(len(x), 4, dtype=torch.float64)

    classifier, target, original = fringe.Classifier(model), model(x).argmax(1), FisherRaoPath.segment

    def measured(self: FisherRaoPath, state: State, here: Here) -> tuple[Segment, Tensor]:
        segment, missed = original(self, state, here)
        near, far = segment.stop, segment.start
        move = (near.x - far.x).double().flatten(1)
        _, middle = classifier.score_gradient(0.5 * (near.x + far.x), target[state.image])
        sums = [(g.double().flatten(1) * move).sum(1) for g in (near.gradient, far.gradient, middle)]
        total.index_add_(0, state.image, torch.stack([*sums, (near.score - far.score).double()], 1))
        return segment, missed

    with patch.object(FisherRaoPath, "segment", measured):
        found = fringe.attribute(model, x, method=method)
    near, far, middle, change = total.unbind(1)
    rules = {
        "near end": near,
        "far end": far,
        "trapezoid": (near + far) / 2,
        "middle": middle,
        "Simpson": (near + 4 * middle + far) / 6,
    }
    return float(found.diagnostics["steps"].double().mean()), {k: (v - change) / change for k, v in rules.items()}


def passes(found: fringe.Attribution) -> float:
    """Forward passes, JVPs and VJPs for an image."""
    return (found.passes.forward + found.passes.jvp + found.passes.vjp) / len(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mobilenet_v1_025")
    parser.add_argument("--images", type=int, default=96)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model, x = shared_models.model(arguments.model), shared_models.images(arguments.model, arguments.images)
    for name, path in PATHS.items():
        for tau in TAUS:
            steps, found = errors(model, x, dataclasses.replace(path, tau=tau))
            cells = [
                f"{statistics.median(v.tolist()):+.1%}, {int((v.abs() > COARSE_ABOVE).sum())}" for v in found.values()
            ]
            print(f"| {name} | {tau:g} | {steps:.0f} | " + " | ".join(cells) + " |", flush=True)
    for label, method in (("trapezoid", PLAIN), ("adaptive, 2%", ADAPTIVE)):
        print(
            f"{label}: {passes(fringe.attribute(model, x, method=method, target='top5')):.0f} passes for five classes"
        )
    maps: list[Tensor] = []
    for label, method in RULES.items():
        with patch.object(_walk, "MIDDLE", (0.5, 0.5) if label == HALVES else _walk.MIDDLE):
            found = fringe.attribute(model, x, method=method)
        maps.append(found.values.flatten(1))
        verdicts = {v: found.verdict.count(v) for v in sorted(set(found.verdict))}
        residual, cosine = found.completeness_residual.median(), torch.cosine_similarity(maps[0], maps[-1])
        likeness = f"cosine {cosine.median():.4f}, at the least {cosine.min():.3f}"
        print(
            f"{label}: {passes(found):.0f} passes, median residual {residual:.2%}, {verdicts}, {likeness}", flush=True
        )


if __name__ == "__main__":
    main()
