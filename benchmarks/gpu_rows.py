"""The rows of benchmarks/gpu.py: each function measures one thing on a :class:`Bench` and returns a record."""

import contextlib
import copy
import importlib
import operator
import statistics
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager as Context
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import fringe
from fringe._network import isolation as _isolation
from fringe._network.cuda_graphs import PLAIN_VISITS
from fringe._network.linear_layers import LinearLayers
from fringe.attribution import GuidedIG, _walk
from fringe.classifier import Linearisation
from gpu_bench import (
    DEFAULT,
    GRAPHS,
    IG,
    METHODS,
    Absent,
    Bench,
    OutOfTime,
    Record,
    Stopwatch,
    Ticks,
    explain,
    key,
)  # fmt: skip


def cost(bench: Bench, network: str, name: str, batch: int) -> Record:
    """Seconds, passes and steps an image of one method at one batch size, and the peak of memory."""
    ended = [b for b in bench.batches if b < batch and bench.records.get(key(network, name, b), {}).get("memory_ended")]
    if ended:
        return {"status": "memory", "note": f"memory had ended at batch {ended[0]}"}
    classifier = bench.classifier(network, name, batch)
    x, method, before = bench.images(network, batch), METHODS[name][1](network), bench.forget()
    ticks = Ticks(bench, classifier, bench.share)
    found = explain(bench, classifier, x, method, ticks)
    (t0, d0, _, p0), (t1, d1, planned, p1) = ticks.rows[0], ticks.rows[-1]
    scale, spent = planned / (d1 - d0) / batch, p1.since(p0)
    record: Record = {
        "seconds": (t1 - t0) * scale,
        "cut": found is None,
        "steps": planned / batch,
        "step_seconds": (t1 - t0) / (len(ticks.rows) - 1),
        **{kind: getattr(spent, kind) * scale for kind in ("forward", "jvp", "vjp")},
    }
    if found is not None:  # that was the warm-up
        times, begin = list[float](), bench.clock()
        with contextlib.suppress(OutOfTime):
            while not times or (len(times) < 3 and bench.clock() - begin + times[-1] < bench.share):
                times.append(bench.seconds(partial(fringe.attribute, classifier, x, method=method)))
        if times:
            record |= {"seconds": statistics.median(times) / batch, "repeats": len(times)}
        record |= {kind: getattr(found.passes, kind) / batch for kind in ("forward", "jvp", "vjp")}
        record |= {"residual": float(found.completeness_residual.median()), "verdicts": Counter(found.verdict)}
    if bench.device.type == "cuda":
        record["memory"] = torch.cuda.max_memory_allocated() - before
    slots = classifier.batch_size.on(bench.device)
    if slots < batch:
        record |= {"memory_ended": True, "status": "memory", "note": f"memory ended: {slots} images at once"}
    return record


def alone(bench: Bench, network: str, name: str) -> Record:
    """Seconds of one image as a user has it: images and points of a path share a batch of automatic size."""
    classifier = bench.classifier(network, GRAPHS if name == IG else name, "auto")  # IG with graphs, where it has some
    run = partial(fringe.attribute, classifier, bench.images(network, 1), method=METHODS[name][1](network))
    first = bench.seconds(run)
    for _ in range(PLAIN_VISITS + 1):  # until what can be recorded is
        run()
    seconds = statistics.median(bench.seconds(run) for _ in range(5))
    return {"alone": seconds, "first": first}


def limit(bench: Bench, network: str, batch: int) -> Record:
    """Seconds an image of the passes of ``FRInGe()`` alone, as CUDA graphs of a forward pass and of one with a VJP; a
    JVP counts as a VJP. And those of the whole call, plain and with graphs, and whether its maps stay the same."""
    x, method = bench.images(network, batch), METHODS[DEFAULT][1](network)
    own = fringe.Classifier(bench.network(network), cuda_graphs=False)

    def forward() -> Tensor:
        with torch.no_grad():
            return own.evaluate(x)

    def gradient() -> Tensor:
        y = x.clone().requires_grad_(True)
        logits = own.evaluate(y)
        return torch.autograd.grad(logits, y, torch.ones_like(logits))[0]

    with own.session(x.device):
        forward()  # checks the outputs
        cuda = bench.device.type == "cuda"
        runs = [captured(run) if cuda else run for run in (forward, gradient)]
        first, both = (statistics.median(bench.seconds(run) for _ in range(5)) / len(x) for run in runs)
    record: Record = {"images": len(x)}
    for label, name in (("seconds", DEFAULT), ("graphs", GRAPHS)):
        classifier = bench.classifier(network, name, batch)
        run = partial(fringe.attribute, classifier, x, method=method)
        results = [run() for _ in range(2 if name == DEFAULT else PLAIN_VISITS + 2)]
        record[f"same_{label}"] = all(torch.equal(results[0].values, result.values) for result in results)
        passes = results[0].passes
        record[label] = statistics.median(bench.seconds(run) for _ in range(3)) / len(x)
    products = (passes.vjp + passes.jvp) / len(x)
    record["limit"] = passes.forward / len(x) * first + products * (both - first)
    record |= {f"over_{label}": record[label] / record["limit"] for label in ("seconds", "graphs")}
    return record


def tails(bench: Bench, network: str, name: str) -> Record:
    """How the time of a large batch divides over the paths that are left: seconds and steps with fewer than 8, with 8
    to 31, and with more. The clock waits for each step."""
    classifier, x = bench.classifier(network, name, max(bench.batches)), bench.images(network, max(bench.batches))
    run = partial(fringe.attribute, classifier, x, method=METHODS[name][1](network))
    for _ in range(PLAIN_VISITS + 2):
        run()
    seconds, steps, driver = Counter[str](), Counter[str](), _walk.Walk

    def watched(self: Any, state: Any, *, closing: bool) -> Any:
        result: list[Any] = []
        kind = "few" if len(state) < 8 else "some" if len(state) < 32 else "many"
        seconds[kind] += bench.seconds(  # pyright: ignore[reportArgumentType]
            lambda: result.append(plain(self, state, closing=closing))
        )
        steps[kind] += 1
        return result[0]

    plain = driver.look
    with mock.patch.object(driver, "look", watched):
        whole = bench.seconds(run)
    return {"whole": whole, "shares": {kind: t / whole for kind, t in seconds.items()}, "calls": dict(steps)}


def expected(bench: Bench, network: str, name: str, batch: int) -> float:
    """Seconds that :func:`cost` will need, from a measured batch of the same column: its share twice and four steps."""
    known = [(b, bench.records.get(key(network, name, b), {}).get("step_seconds")) for b in bench.batches]
    steps = [seconds * max(1.0, batch / b) for b, seconds in known if seconds is not None]
    return 2 * bench.share + 4 * min(steps, default=0.0)


def step(bench: Bench, network: str, name: str) -> Record:
    """The share of a step inside the network: forward passes, VJPs and JVPs, at the large batch."""
    classifier, method = bench.classifier(network, name, bench.large), METHODS[name][1](network)
    watch, marks = Stopwatch(bench.device), list[tuple[Any, int]]()
    x, patch = bench.images(network, bench.large), partial(mock.patch.object, Linearisation)
    explain(bench, classifier, x, method, Ticks(bench, classifier, most=2))  # warm-up
    classifier.model = watch.watch("forward", classifier.model)
    most = 3 if bench.quick else 9 if name in (IG, DEFAULT) else 4
    ticks = Ticks(bench, classifier, most=most, at=lambda _: marks.append((watch.mark(), len(watch.spans))))
    with (
        patch("vjp", watch.watch("vjp", Linearisation.vjp)),
        patch("jvp", watch.watch("jvp", Linearisation.jvp)),
    ):
        explain(bench, classifier, x, method, ticks)
    bench.wait()
    (start, first), (stop, last) = marks[0], marks[-1]
    total, inside = watch.between(start, stop), Counter[str]()
    for kind, a, b in watch.spans[first:last]:
        inside[kind] += watch.between(a, b) / total  # pyright: ignore[reportArgumentType]
    return {"inside": sum(inside.values()), "shares": dict(inside), "step_seconds": total / (len(marks) - 1)}


def kernels(bench: Bench, network: str, name: str) -> Record:
    """What the profiler sees in a step: seconds the GPU is busy, kernels, waits, and the dearest kernels."""
    classifier, method = bench.classifier(network, name, bench.large), METHODS[name][1](network)
    kinds, cuda = torch.profiler.ProfilerActivity, bench.device.type == "cuda"
    profiler = torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA] if cuda else [kinds.CPU])

    def at(number: int) -> None:
        bench.wait()
        if number == 2:
            profiler.start()
        if number == 3:
            profiler.stop()

    ticks = Ticks(bench, classifier, most=3, at=at)
    explain(bench, classifier, bench.images(network, bench.large), method, ticks)
    if len(ticks.rows) < 3:
        raise OutOfTime
    events = profiler.key_averages()
    time_in = operator.attrgetter("self_device_time_total")
    device = [e for e in events if e.device_type.name == "CUDA" and not e.is_user_annotation]
    busy = sum(e.self_device_time_total for e in device)
    return {
        "busy_seconds": busy / 1e6 if busy else None,
        "kernels": sum(e.count for e in device) if cuda else None,
        "waits": sum(e.count for e in events if "StreamSynchronize" in e.key) if cuda else None,
        "dearest": {e.key[:100]: e.self_device_time_total / busy for e in sorted(device, key=time_in)[:-6:-1]},
    }


def waits(bench: Bench, network: str, name: str) -> Record:
    """Operations a step that make the host wait for the device, by the line that asked for them."""
    if bench.device.type != "cuda":
        raise Absent("PyTorch counts them on CUDA devices only")
    classifier, method = bench.classifier(network, name, bench.large), METHODS[name][1](network)
    counts = list[int]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ticks = Ticks(bench, classifier, most=6, at=lambda _: counts.append(len(caught)))
        torch.cuda.set_sync_debug_mode("warn")
        try:
            explain(bench, classifier, bench.images(network, bench.large), method, ticks)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return by_line(caught[counts[0] : counts[-1]], len(counts) - 1)


def by_line(caught: Sequence[warnings.WarningMessage], steps: int) -> Record:
    """Waits a step, in all and by file and line."""
    source = Path(fringe.__file__).parents[1]
    lines = Counter[str]()
    for warning in caught:
        if "called a synchronizing" in str(warning.message):
            path = Path(warning.filename)
            inside = path.is_relative_to(source)
            lines[f"{path.relative_to(source) if inside else Path(*path.parts[-2:])}:{warning.lineno}"] += 1
    return {"waits": sum(lines.values()) / steps, "lines": {line: n / steps for line, n in lines.most_common()}}


@contextlib.contextmanager
def rounding(convolutions: str, products: str = "ieee") -> Generator[None]:
    """How float32 convolutions and matrix products round on a GPU: "ieee" or "tf32"."""
    backends: Any = torch.backends  # set at run time, so untyped
    settings = [backends.cudnn.conv, backends.cuda.matmul]
    before = [s.fp32_precision for s in settings]
    try:
        settings[0].fp32_precision, settings[1].fp32_precision = convolutions, products
        yield
    finally:
        for s, value in zip(settings, before, strict=True):
            s.fp32_precision = value


class BFloat16(nn.Module):
    """A network under bfloat16 autocast, with float32 logits."""

    def __init__(self, model: nn.Module, device: torch.device):
        super().__init__()
        self.model, self.device, self.enabled = model, device.type, True

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(self.device, torch.bfloat16, enabled=self.enabled):
            return self.model(x).float()

    @contextlib.contextmanager
    def linear_layers(self) -> Generator[None]:
        """In place of the library's own, which would meet bfloat16 gradients with float32 weights: points at which a
        JVP is asked for, here the first of a path, stay in float32."""
        self.enabled = False
        try:
            with LinearLayers():
                yield
        finally:
            self.enabled = True


def channels_last() -> Context[Any]:
    """Images in channels last on any device; the library does so on a CPU only."""

    def layout(classifier: fringe.Classifier, x: Tensor) -> torch.memory_format:
        return torch.channels_last if x.dim() == 4 else torch.contiguous_format

    return mock.patch.object(fringe.Classifier, "layout", layout)


def any_order() -> Context[Any]:
    """cuDNN may add up in another order at each call; the library does not let it."""
    return mock.patch.object(_isolation, "_limit_cudnn")


def unverified(*_: object, **__: object) -> None:
    """In place of the check of derivatives, whose tolerance is that of float32."""


PRECISIONS: dict[str, tuple[Callable[[], Context[Any]], ...]] = {
    "float32": (),
    "cuDNN in any order": (any_order,),
    "TF32": (),
    "channels last": (channels_last,),
    "TF32, channels last": (channels_last,),
    "bfloat16": (),
    "bfloat16, channels last": (channels_last,),
}


def precision(bench: Bench, network: str, name: str) -> Record:
    """One way to round or lay out, by feedback (no second derivatives): speed, and what becomes of the map."""
    if name != "float32" and network not in bench.maps:
        precision(bench, network, "float32")
    bench.forget()
    x, model, reference = bench.images(network, bench.large), bench.network(network), bench.maps.get(network)
    if channels_last in PRECISIONS[name]:
        model = copy.deepcopy(model).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    with contextlib.ExitStack() as stack:
        for enter in PRECISIONS[name]:
            stack.enter_context(enter())
        if "bfloat16" in name:
            model = BFloat16(model, bench.device).eval()
            stack.enter_context(mock.patch("fringe._network.passes.LinearLayers", model.linear_layers))
            attribute = importlib.import_module("fringe.attribution._attribute")
            stack.enter_context(mock.patch.object(attribute, "verify", unverified))
        classifier, method = fringe.Classifier(model, batch_size=len(x), tf32="TF32" in name), fringe.FRInGe()
        target = "predicted" if reference is None else reference.target
        run = partial(fringe.attribute, classifier, x, method=method, target=target)
        found = run()  # also the warm-up
        seconds = bench.seconds(run) / len(x)
    expected = bench.maps.setdefault(network, found).values.double().flatten(1)
    cosine = torch.cosine_similarity(found.values.double().flatten(1), expected)
    return {
        "seconds": seconds,
        **{"cosine": float(cosine.median()), "cosine_least": float(cosine.min())},
        "residual": float(found.completeness_residual.median()),
        "verdicts": Counter(found.verdict),
    }


def device(bench: Bench, network: str, name: str, dtype: torch.dtype) -> Record:
    """Maps of 16 images against those of a CPU: their relative distance, and the passes of both."""
    x, model = bench.images(network, 16).to(dtype), copy.deepcopy(bench.network(network)).to(dtype)
    found, expected = (
        fringe.attribute(fringe.Classifier(model.to(place)), x.to(place), method=METHODS[name][1](network))
        for place in (bench.device, "cpu")
    )
    maps = [result.values.double().cpu().flatten(1) for result in (found, expected)]
    error = (maps[0] - maps[1]).norm(dim=1) / maps[1].norm(dim=1)
    return {
        **{"median": float(error.median()), "largest": float(error.max())},
        "cosine_least": float(torch.cosine_similarity(maps[0], maps[1]).min()),
        "passes": [found.passes.vjp, expected.passes.vjp],
    }


def captum(bench: Bench, network: str) -> Record:
    """Captum's IG with our number of gradients, at its best batch: rounded as ours, and by PyTorch's default."""
    peer = wanted("captum.attr").IntegratedGradients(bench.network(network))
    classifier, x = fringe.Classifier(bench.network(network)), bench.images(network, 8)
    method = fringe.IntegratedGradients()
    found = fringe.attribute(classifier, x, method=method)
    run = partial(peer.attribute, x, target=found.target, n_steps=method.steps, method="riemann_middle")
    record: Record = {"ours": bench.seconds(lambda: fringe.attribute(classifier, x, method=method)) / len(x)}
    for label, convolutions in (("seconds", "ieee"), ("seconds_tf32", "tf32")):
        times: dict[int, float] = {}
        for size in (8, 16) if bench.quick else (32, 128, 400):
            with rounding(convolutions), contextlib.suppress(torch.OutOfMemoryError):
                run(internal_batch_size=size)
                times[size] = bench.seconds(partial(run, internal_batch_size=size)) / len(x)
        record |= {label: min(times.values()), f"{label}_batch": min(times, key=times.__getitem__)}
    fast = bench.records.get(key(network, DEFAULT, bench.large), {})
    if "seconds" in fast:  # as many gradients as FRInGe takes
        record["fringe"] = fast["seconds"] / (record["seconds"] / method.steps * fast["vjp"])
    return record | {"gradients": method.steps, "peer": "Captum's IG"}


def guided(bench: Bench, network: str) -> Record:
    """Guided IG in one batch against saliency's, one image after the other."""
    peer = wanted("guided_ig").Peer(bench.network(network), 5 if bench.quick else 50, str(bench.device))
    method, x = GuidedIG(steps=peer.steps), bench.images(network, 16)
    classifier = fringe.Classifier(bench.network(network))
    found = fringe.attribute(classifier, x, method=method)
    ours = bench.seconds(lambda: fringe.attribute(classifier, x, method=method)) / len(x)
    maps: list[Tensor] = []
    with rounding("ieee"):
        seconds = bench.seconds(lambda: maps.append(peer.explain(x[:2], found.target[:2].tolist()))) / 2
    cosine = torch.cosine_similarity(maps[0].double().flatten(1), found.values[:2].cpu().double().flatten(1))
    return {"ours": ours, "seconds": seconds, "cosine": float(cosine.min()), "peer": "saliency's Guided IG"}


def curves(bench: Bench, network: str) -> Record:
    """Insertion, deletion and MAS of 16 images against a loop over metrics, images and steps that walks one image."""
    loop, model, x = wanted("metrics"), bench.network(network), bench.images(network, 16)
    values = fringe.attribute(model, x, method=fringe.IntegratedGradients(steps=10)).values
    loop.library(loop.fresh(model, x[:1]), values[:1])  # warm-up
    subject, scores = loop.fresh(model, x), list[Tensor]()
    ours = bench.seconds(lambda: scores.append(loop.library(subject, values)[0])) / len(x)
    one = loop.fresh(model, x[:1])
    with rounding("ieee"):
        seconds = bench.seconds(lambda: scores.append(loop.looped(model, one, values[:1], shared=False)[0]))
    error = float((scores[0][:, :1] - scores[1]).abs().max())
    return {"ours": ours, "seconds": seconds, "largest_difference": error, "peer": "a loop over curve metrics"}


def gradients(bench: Bench, network: str, batch: int) -> Record:
    """A forward pass and two VJPs, the network's part of a step, in four forms, plain and as one CUDA graph: one VJP
    after the other; both as one batched product; of images that are there twice, by one VJP; and on two streams."""
    model, images = bench.network(network), bench.images(network, batch)
    x, twice, cuda = images.clone().requires_grad_(True), torch.cat((images, images)), bench.device.type == "cuda"
    with fringe.Classifier(model).session(x.device):
        cotangents = torch.randn(2, *model(x).shape, generator=torch.Generator().manual_seed(0)).to(x)

        def product(logits: Tensor, u: Tensor) -> Tensor:
            return torch.autograd.grad(logits, x, u, retain_graph=True)[0]

        def singly() -> Tensor:
            logits = model(x)
            return torch.stack([product(logits, u) for u in cotangents])

        def together() -> Tensor:  # is_grads_batched would run convolutions once a cotangent all the same
            return torch.func.vmap(partial(product, model(x)))(cotangents)

        def doubled() -> Tensor:
            y = twice.clone().requires_grad_(True)
            return torch.autograd.grad(model(y), y, cotangents.flatten(0, 1))[0].view(2, *x.shape)

        def streams() -> Tensor:  # backward passes run on the stream of their forward pass, so each has its own
            here = torch.cuda.current_stream()
            aside.wait_stream(here)
            with torch.cuda.stream(aside):
                second = product(model(x), cotangents[1])
            first = product(model(x), cotangents[0])
            here.wait_stream(aside)
            return torch.stack((first, second))

        forms = {"singly": singly, "together": together, "doubled": doubled}
        if cuda:
            aside, forms["streams"] = torch.cuda.Stream(), streams
        right, record = singly(), Record()
        record["difference"] = max(float((run() - right).norm() / right.norm()) for run in forms.values())
        for name, run in forms.items():
            try:  # some operations cannot be captured; the other figures stay
                record[name] = statistics.median(bench.seconds(run) for _ in range(5)) / batch
                if cuda:
                    graph = captured(run)
                    record[f"{name}_graph"] = statistics.median(bench.seconds(graph) for _ in range(5)) / batch
            except RuntimeError as error:
                record["note"] = f"no CUDA graph of {name}: {str(error).splitlines()[0]}"
    return record


def captured(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """``run`` as a CUDA graph, replayed at each call."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


def wanted(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise Absent(f"{error.name} is not installed") from error
