"""What the rows of benchmarks/gpu.py share: the budget, networks, images, and runs that can be cut between steps."""

import contextlib
import copy
import gc
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

import fringe
import shared_models
from fringe.attribution import PaperFRInGe
from fringe.models import load_model

Record = dict[str, Any]
NETWORKS = {"resnet18": 0, "mobilenet_v2": 0.5, "cifar_resnet20": 0.5, "resnet152": 1, "resnet50": 1, "vgg19": 1.5}
"""Networks, and how much later than the first their rows come."""
TRAINED = ("mobilenet_v2", "cifar_resnet20")
"""Those of the folder FRINGE_SHARED, with its images; the others are torchvision's, with random weights."""
PAPER_SECONDS = {"resnet18": 55.1, "resnet50": 45.0, "resnet152": 319.0}
"""FRInGe as the paper reports it: seconds an image, one after the other, on an H100."""
IG, DEFAULT, PAPER, FAST = "IG", "FRInGe()", "paper", "fast"
TRAPEZOID, GRAPHS = "FRInGe by the trapezoid rule", "FRInGe() with CUDA graphs"
TF32, PAPER_TF32 = "FRInGe() with TF32", "paper with TF32"
METHODS: dict[str, tuple[float, Callable[[str], fringe.Attributor]]] = {
    IG: (0, lambda network: fringe.IntegratedGradients()),
    DEFAULT: (0, lambda network: fringe.FRInGe()),
    GRAPHS: (0.5, lambda network: fringe.FRInGe()),
    TF32: (1, lambda network: fringe.FRInGe()),
    PAPER: (0, lambda network: PaperFRInGe.preset(network if network in PAPER_SECONDS else "resnet18")),
    PAPER_TF32: (0.2, lambda network: PaperFRInGe.preset(network if network in PAPER_SECONDS else "resnet18")),
    TRAPEZOID: (1, lambda network: fringe.FRInGe(halvings=0)),
    FAST: (1, lambda network: fringe.FRInGe.preset("fast")),
}
"""Methods, how much later than the first their rows come, and their settings for a network."""
TOP_PROBABILITY = 0.9


class OutOfTime(Exception):
    """The budget is spent; raised between passes through a network."""


class Cut(Exception):
    """A run has shown enough; raised between steps."""


class Absent(Exception):
    """This machine lacks what a row needs."""


class Budget:
    """Seconds left, by a clock of its own."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.perf_counter):
        self.clock, self.seconds, self.end = clock, seconds, clock() + seconds

    def left(self) -> float:
        return self.end - self.clock()

    def check(self) -> None:
        if self.left() <= 0:
            raise OutOfTime


class SmallResNet(nn.Module):
    """A residual network of three convolutions, for machines without torchvision and for ``--quick``."""

    def __init__(self, classes: int):
        super().__init__()
        conv = partial(nn.Conv2d, kernel_size=3, padding=1)
        self.stem = conv(3, 16, stride=4)
        self.block = nn.Sequential(conv(16, 16), nn.BatchNorm2d(16), nn.ReLU(), conv(16, 16), nn.BatchNorm2d(16))
        self.head = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(torch.relu(x + self.block(x)).mean((2, 3)))


def smooth_images(count: int, size: int) -> Tensor:
    """Random images (count, 3, size, size) of two coarse scales, in [0, 1], then normalised as for ImageNet."""
    generator = torch.Generator().manual_seed(0)
    draws = [torch.randn(count, 3, size // cell, size // cell, generator=generator) for cell in (32, 8)]
    coarse, fine = (nn.functional.interpolate(z, size=size, mode="bicubic") for z in draws)
    mean, std = (torch.tensor(v)[:, None, None] for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    return (torch.sigmoid(2 * coarse + fine) - mean) / std


@torch.no_grad()
def condition(model: nn.Module, x: Tensor) -> Record:
    """Give a random network what training gives: running statistics, and decided predictions on ``x`` (B, *S)."""
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    if norms:
        before = [norm.momentum for norm in norms]
        for norm in norms:
            norm.momentum = 1.0
        model.train()(x)
        for norm, momentum in zip(norms, before, strict=True):
            norm.momentum = momentum
    logits = model.eval()(x).double()

    def top(scale: float) -> float:
        return float((scale * logits).softmax(1).amax(1).mean())

    low, high = -20.0, 40.0  # logarithms of the scale
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if top(math.exp(middle)) < TOP_PROBABILITY else (low, middle)
    last = [m for m in model.modules() if isinstance(m, nn.Linear)][-1]
    for parameter in last.parameters():
        parameter.mul_(math.exp(high))
    return {"last_layer_times": math.exp(high), "top_probability": float(model(x).softmax(1).amax(1).mean())}


class Bench:
    """Networks, images, the budget, and the records so far."""

    def __init__(self, device: str, quick: bool, budget: Budget, networks: Sequence[str], out: Path | None = None):
        self.device, self.quick, self.budget, self.clock, self.out = (
            torch.device(device),
            quick,
            budget,
            budget.clock,
            out,
        )
        self.size, self.classes, self.batches = (32, 30, (2, 4)) if quick else (224, 1000, (64, 8, 1, 256))
        self.networks, self.large, self.share = tuple(networks), 4 if quick else 64, budget.seconds / 200
        self.x = smooth_images(max(self.batches), self.size).to(self.device)
        self.inputs: dict[str, Tensor] = {}
        self.models: dict[str, nn.Module] = {}
        self.maps: dict[str, fringe.Attribution] = {}
        self.records: dict[str, Record] = {}
        methods = {name: METHODS[name][1](self.networks[0]).record() for name in METHODS}
        self.meta: Record = {**machine(self.device), "methods": methods, "networks": {}, "seconds": budget.seconds}

    def network(self, name: str) -> nn.Module:
        """Built at the first call; it refuses to run when the budget is spent."""
        if name not in self.models:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                if name in TRAINED:
                    model = shared_models.model(name)
                else:
                    random = SmallResNet if name == "small" else None
                    model = random(self.classes) if random else load_model(f"torchvision:{name}@random:0").module
            model = model.to(self.device).requires_grad_(False)
            if name in TRAINED:
                x = self.images(name, 32)
                with torch.no_grad():
                    self.meta["networks"][name] = {"top_probability": float(model(x).softmax(1).amax(1).mean())}
            else:
                self.meta["networks"][name] = condition(model, self.x[:32])

            def check(*_: object) -> None:  # a function, which a copy of the network shares
                self.budget.check()

            model.register_forward_pre_hook(check)
            self.models[name] = model
        return self.models[name]

    def images(self, network: str, count: int) -> Tensor:
        """Inputs (count, *S) of a network, on the device."""
        if network not in TRAINED:
            return self.x[:count]
        if network not in self.inputs:
            x = shared_models.images(network, max(self.batches)).to(self.device)
            views = [x, x.flip(-1), *(y.roll(n, -2) for n in (3, 5) for y in (x, x.flip(-1)))]  # of fewer photographs
            self.inputs[network] = torch.cat(views)[: max(self.batches)]
        return self.inputs[network][:count]

    def classifier(self, network: str, name: str, batch_size: int | Literal["auto"]) -> fringe.Classifier:
        """The classifier with which a method is measured."""
        model = self.network(network)
        if name == GRAPHS:  # a network with hooks, such as that of the budget, has none
            model = copy.copy(model)
            vars(model)["_forward_pre_hooks"] = OrderedDict()
        return fringe.Classifier(
            model, batch_size=batch_size, tf32=name in (TF32, PAPER_TF32), cuda_graphs=name == GRAPHS
        )

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def forget(self) -> int:
        """Free what earlier rows left; the bytes in use (CUDA), from which the next peak counts."""
        gc.collect()
        if self.device.type != "cuda":
            return 0
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()

    def seconds(self, run: Callable[[], object]) -> float:
        self.wait()
        start = self.clock()
        run()
        self.wait()
        return self.clock() - start

    def resume(self, earlier: Record) -> None:
        """Keep the rows and networks of an earlier run of the same versions on the same card."""
        for name in ("card", "torch", "commit"):
            if earlier["meta"][name] != self.meta[name]:
                raise SystemExit(f"--resume: {name} was {earlier['meta'][name]}, and is {self.meta[name]} now")
        self.records |= earlier["records"]
        self.meta["networks"] |= earlier["meta"]["networks"]

    def save(self) -> None:
        if self.out is not None:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            part = self.out.with_suffix(".part")  # renamed when complete: a run that is killed leaves the rows before
            part.write_text(json.dumps({"meta": self.meta, "records": self.records}, indent=1) + "\n")
            part.replace(self.out)


def machine(device: torch.device) -> Record:
    def output(*command: str) -> str:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(command, capture_output=True, text=True, timeout=20, cwd=Path(__file__).parent)
            return done.stdout.strip().partition("\n")[0] if done.returncode == 0 else "unknown"
        return "unknown"

    cuda = device.type == "cuda"
    return {
        "card": torch.cuda.get_device_name() if cuda else f"none ({platform.processor() or platform.machine()})",
        "driver": output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") if cuda else "none",
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
        "python": platform.python_version(),
        "command": " ".join(["python", *sys.argv]),
        "commit": os.environ.get("FRINGE_COMMIT") or output("git", "describe", "--always", "--dirty"),
    }


class Ticks:
    """A progress callback: notes clock, steps and passes, and ends the run after ``seconds`` or ``most`` reports."""

    def __init__(
        self,
        bench: Bench,
        classifier: fringe.Classifier,
        seconds: float = math.inf,
        most: float = math.inf,
        at: Callable[[int], object] = lambda number: None,
    ):
        self.bench, self.classifier, self.most, self.at = bench, classifier, most, at
        self.until, self.rows = bench.clock() + seconds, list[tuple[float, int, int, fringe.PassCounts]]()

    def __call__(self, done: int, planned: int) -> None:
        self.rows.append((self.bench.clock(), done, planned, replace(self.classifier.passes)))
        self.at(len(self.rows))
        if len(self.rows) >= self.most or (len(self.rows) > 2 and self.bench.clock() > self.until):
            raise Cut


def explain(
    bench: Bench, classifier: fringe.Classifier, x: Tensor, method: fringe.Attributor, ticks: Ticks
) -> fringe.Attribution | None:
    """The map, or None when the run was cut after two reports or more."""
    try:
        return fringe.attribute(classifier, x, method=method, progress=ticks)
    except (Cut, OutOfTime):
        if len(ticks.rows) < 2:
            raise OutOfTime from None
        return None


class Stopwatch:
    """Spans of time inside calls, on the device's own clock: CUDA events, which wait for nothing."""

    def __init__(self, device: torch.device):
        self.device, self.spans, self.depth = device, list[tuple[str, Any, Any]](), 0

    def mark(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, start: Any, stop: Any) -> float:
        return start.elapsed_time(stop) / 1e3 if self.device.type == "cuda" else stop - start

    def watch(self, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def watched(*arguments: Any, **named: Any) -> Any:
            if self.depth:  # a JVP asks for a VJP first
                return call(*arguments, **named)
            self.depth, start = 1, self.mark()
            try:
                return call(*arguments, **named)
            finally:
                self.depth = 0
                self.spans.append((kind, start, self.mark()))

        return watched


def key(*parts: object) -> str:
    return "/".join(map(str, parts))
