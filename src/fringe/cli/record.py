"""What is written about an explained input, as plain data."""

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fringe
from fringe._files import sha256_of
from fringe.attribution import Attribution
from fringe.cli.options import ModelOutput, RunOptions
from fringe.cli.problems import remark
from fringe.data import ImageRef
from fringe.models import LoadedModel

TOP = 5
"""Classes of a prediction that are recorded."""


@dataclass(frozen=True)
class Cost:
    """What a group of ``images`` that were computed together took."""

    images: int
    seconds: float


@dataclass(frozen=True)
class Explained:
    """Image ``row`` of the group that was explained as ``found``; ``x`` (C, H, W) is the model's input and ``logits``
    (C,) its answer, on the CPU."""

    ref: ImageRef
    x: Tensor
    logits: Tensor
    found: Attribution
    row: int
    cost: Cost

    @property
    def target(self) -> int:
        return int(self.found.target[self.row])

    @property
    def seconds(self) -> float:
        return self.cost.seconds / self.cost.images


@dataclass(frozen=True)
class Failed:
    """An input that could not be explained, and why; ``id`` is None where nothing was found."""

    id: str | None
    source: str
    label: int | None
    reason: str


@dataclass(frozen=True)
class Run:
    """What all inputs of a run share: how the model's ``output`` was read, ``what`` was done in a word, and ``about``
    that as plain data."""

    loaded: LoadedModel
    options: RunOptions
    device: torch.device
    output: ModelOutput
    what: str
    about: Mapping[str, Any]

    def record(self) -> dict[str, Any]:
        loaded = self.loaded
        return {
            "fringe": fringe.__version__,
            "versions": {"fringe": fringe.__version__, "torch": torch.__version__, "python": platform.python_version()},
            "model": {"spec": loaded.spec, "architecture": loaded.architecture, "digest": loaded.digest},
            "preprocessing": loaded.preprocessing.record(),
            "exif": self.options.exif.value,
            **plain(self.about),
            "model_output": self.output.value,
            "score_kind": self.options.score.value,
            "seed": self.options.seed,
            "device": str(self.device),
            "dtype": "float32",
        }

    def class_name(self, index: int) -> str | None:
        names = self.loaded.class_names
        return names[index] if names is not None and index < len(names) else None

    def class_label(self, index: int) -> str:
        """What people read: the name, or the number where there is none."""
        return self.class_name(index) or f"class {index}"


def explanation(item: Explained, run: Run) -> dict[str, Any]:
    """The content of ``explanation.json``."""
    found, cost = item.found, item.cost
    passes = asdict(found.passes)
    return {
        **summary_entry(item, run),
        "sha256": file_digest(item.ref.origin),
        "top": top_classes(item.logits, run),
        "diagnostics": {name: plain(values[item.row]) for name, values in found.diagnostics.items()},
        "cost": {"images": cost.images, "seconds": round(cost.seconds, 3), "passes": passes},
        **run.record(),
    }


def summary_entry(item: Explained, run: Run) -> dict[str, Any]:
    """One line of ``summary.json``. ``seconds`` is the share of the group that was computed together."""
    found, row = item.found, item.row
    return {
        "id": item.ref.id,
        "source": item.ref.source,
        "label": item.ref.label,
        "prediction": top_classes(item.logits, run, 1)[0],
        "target": {"class": item.target, "name": run.class_name(item.target)},
        "verdict": found.verdict[row],
        "advice": found.advice[row],
        "score": plain(found.score[row]),
        "endpoint_score": plain(found.endpoint_score[row]),
        "completeness_gap": plain(found.completeness_gap[row]),
        "completeness_residual": plain(found.completeness_residual[row]),
        "steps": steps_of(item),
        "seconds": round(item.seconds, 3),
    }


def failed_entry(failure: Failed) -> dict[str, Any]:
    return {"id": failure.id, "source": failure.source, "label": failure.label, "error": failure.reason}


def steps_of(item: Explained) -> int | None:
    """Steps of the path, for a method that has one."""
    steps = item.found.diagnostics.get("steps")
    return None if steps is None else int(steps[item.row])


def top_classes(logits: Tensor, run: Run, count: int = TOP) -> list[dict[str, Any]]:
    """The likeliest classes, likeliest first."""
    best = logits.double().softmax(-1).topk(min(count, logits.numel()))
    return [
        {"class": int(k), "name": run.class_name(int(k)), "probability": float(p)}
        for p, k in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]


def file_digest(origin: Path | int) -> str | None:
    """SHA-256 of the input file; None for an image that travels with the library, and, with a warning, for a file that
    can no longer be read: its results are written all the same."""
    if not isinstance(origin, Path):
        return None
    try:
        return sha256_of(origin)
    except OSError as error:
        remark(f"warning: {str(origin)!r} cannot be read again ({error.strerror}); its SHA-256 is not recorded")
        return None


def plain(value: Any) -> Any:
    """JSON-able data; a number that is not finite becomes None, which is not zero."""
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
