"""Run times and prices of maps: one image and one point of a path at a time, as the paper measured, and in batches."""

import json
import math
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fringe
from fringe._strings.formats import with_interval
from fringe.attribution import Attributor
from fringe.evaluation import estimate


@dataclass(frozen=True)
class Timing:
    """What a map of a method costs: the mean ``seconds`` over ``n`` images with half the 95 % bootstrap interval, NaN
    for batches; passes; and the largest memory on a GPU in bytes, NaN elsewhere.

    ``mode`` is "sequential", one image and one point of the path at a time; "single", one image and many points, whose
    seconds are the median; or "batched".
    """

    method: str
    mode: str
    seconds: float
    half: float
    n: int
    forward: float
    jvp: float
    vjp: float
    device: str
    memory: float = math.nan

    @property
    def passes(self) -> float:
        """All passes."""
        return self.forward + self.jvp + self.vjp

    def __str__(self) -> str:
        seconds = with_interval(self.seconds, self.seconds - self.half, self.seconds + self.half, 3)
        passes = f"{self.forward:.0f} forward + {self.jvp:.0f} jvp + {self.vjp:.0f} vjp"
        return f"{self.method} {self.mode}: {seconds} s per image of {self.n}, {passes}; {self.device}"


def measure(
    model: fringe.Classifier,
    x: Tensor,
    methods: Mapping[str, Attributor],
    mode: str,
    batch_size: int | str = "auto",
    **given: Any,
) -> list[Timing]:
    """Time methods on images (B, C, H, W): one after the other, the methods in turn on each, so that a machine that
    slows down slows all of them; or, if ``mode`` is "batched", all images in one call.

    The first map of a method allocates and is not timed. ``given`` goes to :func:`fringe.attribute`.
    """
    size: Any = 1 if mode == "sequential" else batch_size
    classifier = fringe.Classifier(model.module, batch_size=size)
    parts = [x] if mode == "batched" else list(x.split(1))
    spent: dict[str, list[tuple[float, Any, float]]] = {label: [] for label in methods}
    for i, part in enumerate(parts):
        for label, method in methods.items():
            if not i:
                fringe.attribute(classifier, part, method=method, **given)
            spent[label].append(_timed(classifier, part, method, given))
    name = (
        torch.cuda.get_device_name(x.device)
        if x.is_cuda
        else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    return [_timing(label, mode, rows, len(x), name) for label, rows in spent.items()]


def slowdown(timings: Sequence[Timing], method: str, mode: str) -> float | None:
    """The seconds of a method divided by those of ``ig``; None where one is missing."""
    seconds = {t.method: t.seconds for t in timings if t.mode == mode}
    return seconds[method] / seconds["ig"] if {method, "ig"} <= seconds.keys() else None


def key_of(methods: Mapping[str, Attributor], images: Sequence[str], batch_size: int | str) -> str:
    """All that run times depend on but the network and the machine, as text."""
    records = {label: method.record() for label, method in methods.items()}
    return json.dumps([records, list(images), batch_size, fringe.__version__, torch.__version__], default=str)


def stored(path: Path, key: str) -> list[Timing]:
    """Run times that :func:`store` wrote under this key; none where there are none."""
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    rows = found["timings"] if found.get("key") == key else []
    return [Timing(**{name: math.nan if value is None else value for name, value in row.items()}) for row in rows]


def store(path: Path, key: str, timings: Sequence[Timing]) -> None:
    """Write run times as JSON, whose NaN is null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{name: None if value != value else value for name, value in asdict(t).items()} for t in timings]
    path.write_text(json.dumps({"key": key, "timings": rows}, indent=1) + "\n", encoding="utf-8")


def _timed(
    classifier: fringe.Classifier, x: Tensor, method: Attributor, given: dict[str, Any]
) -> tuple[float, Any, float]:
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
        torch.cuda.reset_peak_memory_stats(x.device)
    began = time.perf_counter()
    passes = fringe.attribute(classifier, x, method=method, **given).passes
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
    seconds = time.perf_counter() - began
    return seconds, passes, float(torch.cuda.max_memory_allocated(x.device)) if x.is_cuda else math.nan


def _timing(label: str, mode: str, rows: Sequence[tuple[float, Any, float]], n: int, device: str) -> Timing:
    seconds, half = sum(row[0] for row in rows) / n, math.nan
    if mode != "batched":
        found = estimate([row[0] for row in rows], summary="median" if mode == "single" else "mean")
        seconds, half = found.value, (found.high - found.low) / 2
    forward, jvp, vjp = (sum(getattr(row[1], kind) for row in rows) / n for kind in ("forward", "jvp", "vjp"))
    return Timing(label, mode, seconds, half, n, forward, jvp, vjp, device, max(row[2] for row in rows))
