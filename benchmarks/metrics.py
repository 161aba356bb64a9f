"""What scoring maps costs, against a plain loop over metrics, images and steps that gives the same scores.

    python benchmarks/metrics.py                  # CPU: cifar_resnet20 and mobilenet_v1_025
    python benchmarks/metrics.py --device cuda

Scored are the paper's perturbation metrics: MAS insertion and deletion, insertion and deletion, normalised and raw. The
loop walks a curve for each of them, one image at a time; the loop with shared passes walks each curve once. So
time(loop) / time(shared) is what is gained by sharing passes, and time(shared) / time(library) by batching; the network
alone, on as many images in batches, is the least that the library could take. Times are of one run each; on a CPU they
are the process's own on one thread, which busy neighbours disturb little. Passes are forward passes, counted in images.
"""

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

import fringe
import shared_models
from fringe._numbers.filters import blur, gaussian_kernel
from fringe.metrics import METRICS, EvaluationContext, Insertion, evaluate
from fringe.paths import Problem

NAMES = ("mas_insertion", "mas_deletion", "insertion", "deletion", "insertion:raw", "deletion:raw")
#: With the references of the paper, which the loop has.
SCORED = {
    name: replace(METRICS[base].preset("paper"), **({"normalise": False} if preset else {}))
    for name in NAMES
    for base, _, preset in (name.partition(":"),)
}


class Loop:
    """The scores of one image, step by step."""

    def __init__(self, model: nn.Module, x: Tensor, target: int, values: Tensor, shared: bool):
        self.model, self.x, self.target, self.shared = model, x, target, shared
        self.importance = values.abs().amax(0).flatten().double()
        self.order = self.importance.argsort(descending=True, stable=True)
        height, width = x.shape[-2:]
        size = max(3, min(height, width) // 10) // 2 * 2 + 1
        box = nn.functional.avg_pool2d(x[None], size, 1, size // 2)[0]
        self.references = {"box": box, "gaussian": blur(x[None], gaussian_kernel(3.0, 15), "reflect")[0]}
        self.curves: dict[tuple[str, str], list[float]] = {}
        self.passes = 0

    def probability(self, x: Tensor) -> float:
        self.passes += 1
        with torch.no_grad():
            return float(self.model(x[None])[0].double().softmax(0)[self.target])

    def curve(self, mode: str, reference: str) -> list[float]:
        if self.shared and (mode, reference) in self.curves:
            return self.curves[mode, reference]
        begin, end = (self.references[reference], self.x)[:: 1 if mode == "insertion" else -1]
        steps, pixels, found = self.x.shape[1], self.order.numel(), []
        for s in range(steps + 1):
            x, moved = begin.clone().flatten(1), self.order[: round(s * pixels / steps)]
            x[:, moved] = end.flatten(1)[:, moved]
            found.append(self.probability(x.view_as(begin)))
        self.curves[mode, reference] = found
        return found

    def score(self, name: str) -> float:
        mode = "insertion" if "insertion" in name else "deletion"
        c = torch.tensor(self.curve(mode, "gaussian" if name.startswith("mas") else "box"), dtype=torch.float64)
        p_reference, p_input = (c[0], c[-1]) if mode == "insertion" else (c[-1], c[0])
        if name.startswith("mas"):
            return self.aligned(((c - p_reference) / (p_input - p_reference)).clamp(0, 1), mode)
        if not name.endswith("raw"):
            c = ((c - p_reference) / (p_input - p_reference).clamp_min(1e-8)).clamp(0, 1)
        return float(torch.trapezoid(c)) / (len(c) - 1)

    def aligned(self, response: Tensor, mode: str) -> float:
        steps, pixels = len(response) - 1, self.order.numel()
        mass = torch.stack([self.importance[self.order[: round(s * pixels / steps)]].sum() for s in range(steps + 1)])
        density = (mass / mass[-1]).cpu()
        if mode == "insertion":
            response = response.cummax(0).values
            score = response - (density - response).abs()
        else:
            response = response.cummin(0).values
            score = response + (1 - density - response).abs()
        score = score.clamp(0, 1)
        return float(torch.trapezoid((score - score.min()) / (score.max() - score.min()))) / steps


def looped(model: nn.Module, subject: EvaluationContext, values: Tensor, shared: bool) -> tuple[Tensor, float]:
    """Scores (metrics, B) and passes an image of the loop."""
    images = zip(subject.problem.inputs, subject.problem.target.tolist(), values, strict=True)
    loops = [Loop(model, x, target, a, shared) for x, target, a in images]
    scores = torch.tensor([[loop.score(name) for loop in loops] for name in NAMES], dtype=torch.float64)
    return scores, sum(loop.passes for loop in loops) / len(loops)


def library(subject: EvaluationContext, values: Tensor) -> tuple[Tensor, float]:
    before = subject.problem.model.passes.forward
    found = evaluate(subject, values, SCORED)
    scores = torch.stack([found[name].values.cpu() for name in NAMES])
    return scores, (subject.problem.model.passes.forward - before) / values.shape[0]


def timed(run: Callable[[], tuple[Tensor, float]], device: torch.device) -> tuple[float, Tensor, float]:
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    start = clock()
    scores, passes = run()  # its scores are on the CPU: nothing is left to wait for
    return clock() - start, scores, passes


def fresh(model: nn.Module, x: Tensor) -> EvaluationContext:
    return EvaluationContext(Problem.of(fringe.Classifier(model), x))


def compare(name: str, images: int, device: torch.device) -> None:
    model, x = shared_models.model(name).to(device), shared_models.images(name, images).to(device)
    values = fringe.attribute(model, x, method=fringe.IntegratedGradients(steps=10)).values
    other = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x)
    subject = fresh(model, x)
    evaluate(fresh(model, x[:1]), values[:1], [Insertion(steps=2)])  # what is slow the first time
    ours, scores, passes = timed(lambda: library(subject, values), device)
    second = library(subject, other)[1]
    naive, plain, naive_passes = timed(lambda: looped(model, subject, values, shared=False), device)
    shared, _, shared_passes = timed(lambda: looped(model, subject, values, shared=True), device)
    many = x[:1].expand(round(passes) * images, *x.shape[1:])
    network = timed(lambda: (subject.problem.model.logits(many).cpu(), 0.0), device)[0]
    print(f"{name}, {images} images of {x.shape[-1]} pixels, {len(NAMES)} metrics, {device}:")
    print(f"    time: loop / library = {naive / ours:.1f} (target >= 10)")
    print(f"    of which shared passes {naive / shared:.2f}, batching {shared / ours:.2f}")
    print(f"    network alone / library = {network / ours:.2f}")
    print(f"    passes an image: loop {naive_passes:.0f}, shared {shared_passes:.0f}, library {passes:.0f}")
    print(f"    and of another method {second:.0f}, whose references are known")
    print(f"    largest difference of a score {float((scores - plain).abs().max()):.1e}")


def peak(steps: int) -> float:
    """Peak resident memory (MiB) of a fresh process that scores an insertion in so many steps."""
    command = [sys.executable, __file__, "--memory-of", str(steps)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def memory_of(steps: int) -> None:
    torch.set_num_threads(1)
    x = torch.randn(32, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    subject = fresh(shared_models.model("cifar_resnet20"), x)
    evaluate(subject, x, [METRICS[name](steps=steps) for name in ("insertion", "mas_insertion")])
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--models", nargs="+", default=["cifar_resnet20", "mobilenet_v1_025"])
    parser.add_argument("--memory-of", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        return memory_of(arguments.memory_of)
    torch.set_num_threads(1)
    for name in arguments.models:
        compare(name, arguments.images, torch.device(arguments.device))
    few, many = peak(8), peak(128)
    print(f"peak memory, 32 images, 8 steps {few:.0f} MiB, 128 steps {many:.0f} MiB")
    return None


if __name__ == "__main__":
    main()
