"""What the engine costs, as ratios against named alternatives in one run.

    python benchmarks/engine.py                 # CPU: products, paths, start-up
    python benchmarks/engine.py --only price    # CPU: the first table of docs/costs.md alone
    python benchmarks/engine.py --only fold     # CPU: its table of folded normalisations alone
    python benchmarks/engine.py --device cuda   # GPU: ResNet-18 at 224 x 224, batch 64, the paper's preset

The alternatives for a product are fresh ``torch.func.jvp`` and ``vjp``. Times are medians of alternating repetitions;
machines are shared, so only the ratios mean something, and absolute times only on a GPU.
"""

import argparse
import contextlib
import dataclasses
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import fringe
from fringe.attribution import PaperFRInGe
from fringe.classifier import Classifier, Linearisation

sys.path.insert(0, str(Path(__file__).parent))

import shared_models
from gpu_bench import Stopwatch, condition, smooth_images

PAPER_SECONDS = 55.12
"""FRInGe on ResNet-18, seconds an image on an H100, sequential (the paper's runtime table)."""


def seconds(run: Callable[[], object], device: torch.device) -> float:
    """Of the clock on a GPU, and of the processor on a CPU, where neighbours would count otherwise."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    start = clock()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def alternate(device: torch.device, repetitions: int, *runs: Callable[[], object]) -> list[float]:
    """Median seconds of each run, taken in turns so that a busy neighbour disturbs all alike."""
    for run in runs:
        run()
    times = [[seconds(run, device) for run in runs] for _ in range(repetitions)]
    return [statistics.median(column) for column in zip(*times, strict=True)]


def products(model: nn.Module, x: torch.Tensor) -> None:
    """One CG iteration's products (a JVP and a VJP), retained graph against fresh."""
    classifier = fringe.Classifier(model)
    with classifier.session(x.device):
        point = classifier.linearise(x)
        u = torch.randn_like(point.value)
        before = dataclasses.replace(classifier.passes)
        ours, fresh = alternate(
            x.device,
            20,
            lambda: (point.jvp(x), point.vjp(u)),
            lambda: (torch.func.jvp(model, (x,), (x,)), torch.func.vjp(model, x)[1](u)),
        )
        spent = classifier.passes.since(before)
    n = x.shape[0]
    print(
        f"products, batch {n}: retained / fresh = {ours / fresh:.2f} (target <= 0.6); forward passes {spent.forward}, "
    )
    print(f"    JVPs {spent.jvp // n} and VJPs {spent.vjp // n} an image over 21 repetitions")


def path(model: nn.Module, x: torch.Tensor, method: PaperFRInGe) -> None:
    """Seconds and passes of the paper's method on a batch."""
    found = fringe.attribute(model, x, method=method)
    repetitions = 3 if x.device.type == "cpu" else 1
    (seconds,) = alternate(x.device, repetitions, lambda: fringe.attribute(model, x, method=method))
    n, steps = len(x), statistics.mean(found.diagnostics["steps"].tolist())
    passes = found.passes
    counts = f"{passes.forward / n:.0f} forward, {passes.jvp / n:.0f} JVP, {passes.vjp / n:.0f} VJP, T = {steps:.0f}"
    print(f"the paper's method, batch {n}: {seconds / n:.2f} s an image, {counts}")
    if x.device.type == "cuda":
        print(f"    on {torch.cuda.get_device_name()}; the paper reports {PAPER_SECONDS} s on an H100, one at a time")


def price(name: str, model: nn.Module, x: torch.Tensor, repetitions: int = 7) -> None:
    """``FRInGe()`` against Integrated Gradients at its default, and against Captum's with as many gradients."""
    from captum.attr import IntegratedGradients

    batch, target = len(x), model(x).argmax(1)
    trapezoid = fringe.FRInGe(halvings=0)
    methods = "fringe", trapezoid
    found, other = (fringe.attribute(model, x, method=method) for method in methods)
    total, fewer = (a.passes.forward + a.passes.jvp + a.passes.vjp for a in (found, other))
    gradients = round(total / 2 / batch)
    peer = IntegratedGradients(model)
    ours, plain, ig, captum = alternate(
        CPU,
        repetitions,
        *(lambda method=method: fringe.attribute(model, x, method=method) for method in methods),
        lambda: fringe.attribute(model, x, method="ig"),
        lambda: peer.attribute(x, target=target, n_steps=gradients, internal_batch_size=16),
    )
    watch = Stopwatch(CPU)
    with watched(watch):
        start = time.perf_counter()
        fringe.attribute(model, x)
        whole = time.perf_counter() - start
    inside = sum(watch.between(start, stop) for _, start, stop in watch.spans)
    print(
        f"{name}, batch {batch}: FRInGe() is {ours / ig:.2f} x IG (50 gradients), {ours / captum:.2f} x Captum's IG "
        f"with {gradients} gradients, {ours / plain:.2f} x the trapezoid rule ({total / fewer:.2f} x its passes); "
        f"{1 - inside / whole:.0%} of its time outside the network; {found.passes}",
        flush=True,
    )


def prices() -> None:
    """Of trained networks, with one image and with more."""
    for name, repetitions in (("cifar_resnet20", 7), ("mobilenet_v1_025", 3), ("mobilenet_v2", 1)):
        model, x = shared_models.model(name), shared_models.images(name, 16)
        for batch in (1, 8, 16):
            price(name, model, x[:batch], repetitions)


def folds() -> None:
    """The time with folded normalisations as a share of the time without."""
    from fringe.models import load_model

    resnet, efficientnet = shared_models.model("cifar_resnet20"), load_model("efficientnet_lite0").module
    for model, x, batches, repetitions in (
        (resnet, shared_models.images("cifar_resnet20", 16), (1, 8, 16), 7),
        (efficientnet, shared_models.images("mobilenet_v2", 8), (1, 8), 1),
    ):
        for method, batch in itertools.product(("fringe", "ig"), batches):
            classifiers = (Classifier(model, fold_batch_norm=fold) for fold in (True, False))
            runs = (partial(fringe.attribute, classifier, x[:batch], method=method) for classifier in classifiers)
            folded, plain = alternate(CPU, repetitions, *runs)
            print(f"{type(model).__name__}, batch {batch}, {method}: {folded / plain:.2f} of the time without folds")


class Operations(TorchDispatchMode):
    """Counts PyTorch's operations without views: on a GPU nearly each starts a kernel, whatever the batch."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def operations(name: str, model: nn.Module, x: torch.Tensor) -> None:
    """Operations of a step inside the network's passes and outside, for one image: what a small batch waits for."""
    for title, method in (("FRInGe()", fringe.FRInGe()),):
        counts = []
        for steps in (5, 15):
            until = method.path(1).until  # with steps= alone a path would end after these
            chosen = dataclasses.replace(method, steps=steps, until=until, quadrature_rtol=1e6)  # no bisections
            with Operations() as counter, watched(watch := Stopwatch(CPU)):
                watch.mark = lambda counter=counter: counter.count
                taken = int(fringe.attribute(model, x[:1], method=chosen).diagnostics["steps"][0])
            inside = sum(stop - start for _, start, stop in watch.spans)
            counts.append((inside, counter.count - inside, taken))
        inside, outside, more = (longer - shorter for shorter, longer in zip(*counts, strict=True))
        inside, outside = inside / more, outside / more
        print(f"{name}, a step of {title}: {inside:.0f} operations in the network's passes, {outside:.0f} outside")


@contextlib.contextmanager
def watched(watch: Stopwatch) -> Iterator[None]:
    """Lets the watch see every pass through the network."""
    with (
        patch.object(Linearisation, "__init__", watch.watch("forward", Linearisation.__init__)),
        patch.object(Linearisation, "vjp", watch.watch("vjp", Linearisation.vjp)),
        patch.object(Linearisation, "jvp", watch.watch("jvp", Linearisation.jvp)),
        patch.object(Classifier, "logits", watch.watch("logits", Classifier.logits)),
    ):
        yield


def shared(name: str) -> tuple[nn.Module, torch.Tensor]:
    return shared_models.model(name), shared_models.images(name, 8)


def large() -> tuple[nn.Module, torch.Tensor]:
    """A network of the size that photographs are classified by: most of the time is spent in it."""
    from fringe.models import load_model

    model, x = load_model("torchvision:resnet18@random:0").module.requires_grad_(False), smooth_images(8, 224)
    condition(model, x)
    return model, x


def start_up() -> None:
    def run(code: str) -> float:
        times = list[float]()
        for _ in range(5):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    torch_alone, whole = run("import torch"), run("import torch, fringe; fringe.attribute")
    print(f"import fringe on top of torch: {whole - torch_alone:.2f} s (target < 2)")
    print(f"fringe --help: {run(HELP):.2f} s (target < 1)")


CPU = torch.device("cpu")
HELP = "import sys; sys.argv = ['fringe', '--help']; import fringe.cli; fringe.cli.main()"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=64, help="images at once on the GPU")
    parser.add_argument("--only", choices=("price", "fold"))
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        torch.set_num_threads(1)
        if arguments.only:
            return prices() if arguments.only == "price" else folds()
        model, x = shared("cifar_resnet20")
        products(model, x)
        prices()
        price("resnet18, random weights", *large(), repetitions=1)
        operations("resnet18, random weights", *large())
        path(model, x, PaperFRInGe(tau=1e-2))
        start_up()
        return None
    from fringe.models import load_model

    model = load_model("torchvision:resnet18@random:0").module.to(arguments.device)
    x = torch.randn(arguments.batch, 3, 224, 224, generator=torch.Generator().manual_seed(0)).to(arguments.device)
    products(model, x)
    return path(model, x, PaperFRInGe.preset("resnet18"))


if __name__ == "__main__":
    main()
