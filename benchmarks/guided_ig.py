"""Guided Integrated Gradients in batches, against PAIR-code/saliency's one image at a time: speed, passes, agreement.

    python benchmarks/guided_ig.py --model cifar_resnet20 --images 16 --steps 50

Both follow the same rule with a gradient a step. Saliency's asks a function for the gradient of one image; ours asks
for those of a batch, sorts the entries once a step instead of asking for a quantile at a time, and adds the forward
passes that check the model and close the account. Seconds are the processor's, one thread, so that other programs do
not count (of the clock with ``--device cuda``). The bound is the network itself, fed with batches or with single
images. Maps are compared by relative distance, median and worst over the images: in float64 they agree to rounding; in
float32 the order of nearly equal gradients depends on how the network is called, and a path that branches there ends
in another map, whichever program walks it.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import saliency.core as saliency
import torch
from torch import Tensor, nn

import fringe
import shared_models
from fringe.attribution import GuidedIG, integrate_steps
from fringe.paths import GuidedPath, Problem


@contextmanager
def old_quantile() -> Iterator[None]:
    """``np.quantile`` with the keyword ``interpolation``, which NumPy 2.4 has no more and saliency 0.2.1 asks for."""
    quantile = np.quantile

    def shim(values: Any, q: float, interpolation: str) -> Any:
        return quantile(values, q, method=interpolation)

    np.quantile = shim
    try:
        yield
    finally:
        np.quantile = quantile


class Peer:
    """Saliency's GuidedIG of each image in turn; counts its gradients."""

    def __init__(self, model: nn.Module, steps: int, device: str):
        self.model, self.steps, self.device, self.gradients = model, steps, device, 0

    def gradient(self, x: Any, call_model_args: dict[str, int], expected_keys: list[str]) -> dict[str, Any]:
        self.gradients += len(x)
        dtype = next(self.model.parameters()).dtype
        z = torch.from_numpy(np.asarray(x)).to(self.device, dtype).requires_grad_(True)
        score = self.model(z)[:, call_model_args["target"]].sum()
        return {saliency.base.INPUT_OUTPUT_GRADIENTS: torch.autograd.grad(score, z)[0].cpu().numpy()}

    def explain(self, x: Tensor, target: list[int]) -> Tensor:
        with old_quantile():
            maps = [
                saliency.GuidedIG().GetMask(image.cpu().numpy(), self.gradient, {"target": t}, x_steps=self.steps)
                for image, t in zip(x, target, strict=True)
            ]
        return torch.from_numpy(np.stack(maps))


def timed(action: Callable[[], Any], device: str) -> tuple[float, Any]:
    clock = time.process_time if device == "cpu" else time.perf_counter
    begin = clock()
    found = action()
    if device != "cpu":
        torch.cuda.synchronize()
    return clock() - begin, found


def network_alone(model: nn.Module, x: Tensor, size: int, device: str) -> float:
    """Seconds of a score and gradient of every image, ``size`` at a time: the median of five."""

    def sweep() -> None:
        for part in x.split(size):
            z = part.clone().requires_grad_(True)
            torch.autograd.grad(model(z)[:, 0].sum(), z)

    return statistics.median(timed(sweep, device)[0] for _ in range(5))


def inner_share(model: nn.Module, x: Tensor, target: Tensor, steps: int, device: str) -> float:
    """Share of the walk's seconds that goes into choosing and moving entries, outside the network."""
    classifier, spent = fringe.Classifier(model), [0.0]
    problem = Problem.of(classifier, x, target=target, baseline=torch.zeros_like(x))
    walk = GuidedPath(steps, 0.25, 0.02)
    advance = walk.advance

    def watched(*arguments: Any) -> Tensor:
        seconds, found = timed(lambda: advance(*arguments), device)
        spent[0] += seconds
        return found

    object.__setattr__(walk, "advance", watched)
    with classifier.session(x.device):
        total, _ = timed(lambda: integrate_steps(walk, problem), device)
    return spent[0] / total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cifar_resnet20")
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    method, device = GuidedIG(steps=arguments.steps), arguments.device
    print("| dtype | seconds, ours | saliency | ratio | network's bound | passes, ours | saliency | maps differ by |")
    print("|---|---|---|---|---|---|---|---|")
    for dtype in (torch.float32, torch.float64):
        model = shared_models.model(arguments.model).to(device, dtype)
        x = shared_models.images(arguments.model, arguments.images).to(device, dtype)
        bound = network_alone(model, x, 1, device) / network_alone(model, x, len(x), device)
        ours, found = timed(lambda: fringe.attribute(model, x, method=method), device)  # noqa: B023
        peer = Peer(model, arguments.steps, device)
        theirs, maps = timed(lambda: peer.explain(x, found.target.tolist()), device)  # noqa: B023
        error = (found.values.cpu() - maps).flatten(1).norm(dim=1) / maps.flatten(1).norm(dim=1)
        print(
            f"| {dtype} | {ours:.2f} | {theirs:.2f} | {theirs / ours:.1f} | {bound:.1f} | "
            f"{found.passes.forward} F + {found.passes.vjp} VJP | {peer.gradients} of each | "
            f"{error.median():.1e}, {error.max():.1e} |",
            flush=True,
        )
    share = inner_share(model, x, found.target, arguments.steps, device)
    print(f"choosing and moving entries takes {share:.1%} of the walk (float64)")


if __name__ == "__main__":
    main()
