"""Integrated Gradients and SmoothGrad against Captum's, as ratios in one run, and where the time goes.

    python benchmarks/gradient_methods.py                       # one thread, both networks
    python benchmarks/gradient_methods.py --model cifar_resnet20

Both explain the same contiguous images, with frozen weights; Captum is swept over its batch sizes first and compared
at its best, ours runs at its best and at its default. Times are CPU seconds of this process, in alternating runs
(machines are shared), ratios the medians over their turns. "network" is the bare forward and backward passes of as many
images, in as large batches and in the layout that the library chooses: what no library can do without.
"""

import argparse
import copy
import dataclasses
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from captum.attr import IntegratedGradients as CaptumIntegratedGradients
from captum.attr import NoiseTunnel, Saliency
from torch import Tensor, nn

import fringe
from fringe.attribution._base import ProgressCounter
from fringe.attribution._sampling import averaged
from fringe.paths import Problem

sys.path.insert(0, str(Path(__file__).parent))

import shared_models  # found through the line above

TARGET = 1.2
SIZES = (8, 16, 32, 64, 128)
COUNTS = {"cifar_resnet20": 16, "mobilenet_v1_025": 4}
SAMPLES = {"ig": "steps", "smoothgrad": "samples"}
Run = Callable[[], object]
Captum = Callable[..., Tensor]
"""Captum's map: of (gradients an image, batch size) or (gradients an image, batch size, images)."""


def seconds(run: Run) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def alternate(repetitions: int, *runs: Run) -> list[list[float]]:
    """Seconds of each run, taken in turns: a row a repetition."""
    return [[seconds(run) for run in runs] for _ in range(repetitions)]


def ratio(times: list[list[float]], above: int, below: int) -> float:
    """Median, over repetitions, of one run's time over another's: neighbours in time share what disturbs them."""
    return statistics.median(row[above] / row[below] for row in times)


def best(sizes: Iterable[int], make: Callable[[int], Run]) -> int:
    """The batch size with the least seconds in three turns."""
    sizes = list(sizes)
    times = alternate(3, *(make(size) for size in sizes))
    return min(zip(map(min, zip(*times, strict=True)), sizes, strict=True))[1]


@dataclasses.dataclass(frozen=True)
class Case:
    """A network and its images, contiguous, each explained for the class ``target`` (B,) it is predicted as."""

    name: str
    model: nn.Module
    x: Tensor
    target: Tensor

    def ours(self, method: fringe.Attributor, size: int | str) -> fringe.Attribution:
        return fringe.attribute(self.model, self.x, method=method, batch_size=size)  # pyright: ignore[reportArgumentType]

    def captum_ig(self, steps: int, size: int, x: Tensor | None = None) -> Tensor:
        return CaptumIntegratedGradients(self.model).attribute(
            self.x if x is None else x, target=self.target, n_steps=steps, method="riemann_middle",
            internal_batch_size=size,
        )  # fmt: skip

    def captum_smoothgrad(self, samples: int, size: int, x: Tensor | None = None) -> Tensor:
        """Captum takes one sigma for all: that of the first image."""
        return NoiseTunnel(Saliency(self.model)).attribute(
            self.x if x is None else x, nt_type="smoothgrad", nt_samples=samples, target=self.target, abs=False,
            stdevs=self.sigma(), nt_samples_batch_size=max(1, size // len(self.x)),
        )  # fmt: skip

    def sigma(self) -> float:
        return 0.15 * float(self.x[0].max() - self.x[0].min())

    def network(self, gradients: int, size: int) -> None:
        """Forward and backward passes of so many images."""
        copies = self.x.repeat(-(-size // len(self.x)), 1, 1, 1)[:size].contiguous(memory_format=torch.channels_last)
        target = self.target.repeat(-(-size // len(self.x)))[:size]
        for _ in range(gradients // size):
            z = copies.clone().requires_grad_(True)
            torch.autograd.grad(self.model(z).gather(1, target[:, None]).sum(), z)


def case(name: str) -> Case:
    model, x = shared_models.model(name), shared_models.images(name, COUNTS[name]).contiguous()
    with torch.no_grad():
        return Case(name, model, x, model(x).argmax(1))


def compare(case: Case, method: fringe.Attributor, captum: Captum, repetitions: int) -> tuple[int, int]:
    """A method of 50 gradients an image against Captum's, each at its best batch size: these are returned."""
    count = 50
    short = dataclasses.replace(method, **{SAMPLES[method.name]: 16})  # pyright: ignore[reportArgumentType]
    theirs = best([size for size in SIZES if size >= len(case.x)], lambda size: lambda: captum(16, size))
    size = best(SIZES, lambda size: lambda: case.ours(short, size))
    last = case.x.contiguous(memory_format=torch.channels_last)
    gradients = count * len(case.x)
    times = alternate(
        repetitions,
        lambda: case.ours(method, size),
        lambda: captum(count, theirs),
        lambda: captum(count, theirs, last),
        lambda: case.ours(method, "auto"),
        lambda: case.network(gradients, size),
    )
    least = min(row[0] for row in times)
    print(f"{method.name} {count}: captum / ours = {ratio(times, 1, 0):.2f} (target >= {TARGET}), ours by default "
          f"{ratio(times, 1, 3):.2f}; captum on channels-last images / ours = {ratio(times, 2, 0):.2f}")  # fmt: skip
    print(f"    ours / network = {ratio(times, 0, 4):.2f}; {1e3 * least / gradients:.2f} ms a gradient; batch {size}, "
          f"captum's {theirs}; {passes(case, method)}")  # fmt: skip
    return theirs, size


def compare_long(case: Case, sizes: tuple[int, int], repetitions: int) -> None:
    """The paper's setting, at the batch sizes found before."""
    method = fringe.IntegratedGradients.preset("paper")
    times = alternate(repetitions, lambda: case.ours(method, sizes[1]), lambda: case.captum_ig(method.steps, sizes[0]))
    print(f"ig {method.steps}: captum / ours = {ratio(times, 1, 0):.2f} (target >= {TARGET}); {passes(case, method)}")


def passes(case: Case, method: fringe.Attributor) -> str:
    spent = case.ours(method, 64).passes
    return f"{len(case.x)} images: {spent.forward} forward, {spent.vjp} VJP, {spent.jvp} JVP"


def distance(found: Tensor, peer: Tensor) -> list[float]:
    """Relative distance of each map."""
    return ((found - peer).flatten(1).norm(dim=1) / peer.flatten(1).norm(dim=1)).tolist()


def same_maps(case: Case) -> None:
    """In float64 both give one map; in float32 both are as far from it: a kink of the network falls to one side or the
    other with the rounding of a convolution, and with the batch size."""
    exact = Case(case.name, copy.deepcopy(case.model).double(), case.x.double(), case.target)
    method, truth = fringe.IntegratedGradients(steps=20), exact.captum_ig(20, 16)
    same = max(distance(exact.ours(method, 16).values, truth))
    single = [distance(v.double(), truth) for v in (case.ours(method, 16).values, case.captum_ig(20, 16))]
    smooth = smoothgrad_distance(exact)
    print(f"largest relative distance of maps, float64: IG {same:.0e}, SmoothGrad on captum's noise {smooth:.0e}; "
          f"float32 IG to float64, median: ours {statistics.median(single[0]):.0e}, "
          f"captum {statistics.median(single[1]):.0e}")  # fmt: skip
    assert same < 1e-6  # captum's weights are float32
    assert smooth < 1e-9


def smoothgrad_distance(case: Case, samples: int = 6) -> float:
    """Between our mean over the noise that Captum drew for the first image, and Captum's."""
    first = Case(case.name, case.model, case.x[:1], case.target[:1])
    torch.manual_seed(0)
    noise = torch.normal(0, torch.full((samples, *first.x.shape[1:]), first.sigma())).to(first.x)
    torch.manual_seed(0)
    expected = first.captum_smoothgrad(samples, samples)
    problem = Problem.of(fringe.Classifier(case.model), first.x, target=first.target)
    with problem.model.session(first.x.device):

        def term(rows: Tensor, copies: Tensor) -> Tensor:
            return problem.logits_gradient(problem.inputs[rows] + noise[copies], rows)[1]

        found, _ = averaged(term, problem, samples, ProgressCounter(None, 0))
    return distance(found, expected)[0]


def peak(name: str, library: str, steps: int) -> float:
    """Peak resident memory (MiB) of a fresh process that explains a network's images once."""
    command = [sys.executable, __file__, "--memory-of", json.dumps([name, library, steps])]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def memory_of(name: str, library: str, steps: int) -> None:
    torch.set_num_threads(1)
    chosen = case(name)
    if library == "ours":
        chosen.ours(fringe.IntegratedGradients(steps=steps), 16)
    else:
        chosen.captum_ig(steps, 16)
    # the kernel's own account of this program alone: ru_maxrss begins with what the parent had
    status = Path("/proc/self/status").read_text()
    print(int(status.partition("VmHWM:")[2].split()[0]) / 1024)


def memory(name: str) -> None:
    ours, theirs = ([peak(name, library, steps) for steps in (5, 50, 200)] for library in ("ours", "captum"))
    print("peak memory (MiB) of IG 5, 50, 200, batches of 16:", *(f"{p:.0f}" for p in ours), end="; captum ")
    print(*(f"{p:.0f}" for p in theirs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=COUNTS)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        return memory_of(*json.loads(arguments.memory_of))
    sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]
    torch.set_num_threads(arguments.threads)
    for name in [arguments.model] if arguments.model else COUNTS:
        chosen = case(name)
        print(f"{name}, {len(chosen.x)} images; {platform.processor() or platform.machine()}, "
              f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} thread(s)")  # fmt: skip
        same_maps(chosen)
        sizes = compare(chosen, fringe.IntegratedGradients(steps=50), chosen.captum_ig, arguments.repetitions)
        compare_long(chosen, sizes, max(2, arguments.repetitions // 2))
        compare(chosen, fringe.SmoothGrad(samples=50), chosen.captum_smoothgrad, arguments.repetitions)
        memory(name)
    return None


if __name__ == "__main__":
    main()
