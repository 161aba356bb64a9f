"""What a benchmark is to compute, as a frozen record."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fringe.attribution import Attributor
from fringe.classifier import Score
from fringe.errors import InputError
from fringe.experiments.controls import CONTROLS
from fringe.experiments.entrants import Candidate
from fringe.metrics import Metric

PLAN_NAME = r"[\w-]+"
"""What a plan may be called: it names a file and a folder."""


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from: the ``spec`` of :func:`fringe.models.load_model`, a ``preprocessing`` text in place of
    the source's own, and whether the author's code may run."""

    spec: str
    preprocessing: str | None = None
    trust_code: bool = False


@dataclass(frozen=True)
class Arm:
    """One model of a plan under a ``label``, and the methods by label that explain it."""

    label: str
    model: ModelSource
    methods: Mapping[str, Attributor]


@dataclass(frozen=True)
class Plan:
    """Models, methods, metrics and images. ``name`` tells the plans of one folder apart.

    ``data`` names images as a command line does; ``n`` of them are drawn by ``seed``, which keys all noise, too.
    ``limits`` holds metrics that only the first so many images are scored by. ``exclude`` are digests of images that
    are not drawn; ``last`` draws from the end of the order, for a part that must not meet the others. ``shard`` images
    make a unit of work. ``target``: ``"predicted"`` (top-1 on the clean image, the paper's protocol), ``"label"``, or
    the number of a class.
    """

    name: str
    data: tuple[str, ...]
    arms: tuple[Arm, ...]
    metrics: Mapping[str, Metric]
    n: int
    seed: int = 0
    target: str | int = "predicted"
    score: Score = "logit"
    exif: Literal["transpose", "ignore"] = "ignore"
    references: str | None = None
    controls: bool = True
    limits: Mapping[str, int] = field(default_factory=dict[str, int])
    exclude: frozenset[str] = frozenset()
    last: bool = False
    shard: int = 16

    def __post_init__(self) -> None:
        for name in ("n", "shard"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: got {getattr(self, name)}, expected at least 1")
        if not re.fullmatch(PLAN_NAME, self.name):
            raise InputError(f"name: got {self.name!r}, expected letters, digits, _ and -: it names a file")
        labels = [arm.label for arm in self.arms]
        if not labels or len(set(labels)) != len(labels):
            raise InputError(f"models: got the labels {labels}, expected at least one and each once")
        if not self.metrics:
            raise InputError("metrics: none given")
        for label in self.limits:
            if label not in self.metrics:
                raise InputError(f"limits: {label!r} is no metric of this plan; its metrics: {', '.join(self.metrics)}")
        for arm in self.arms:
            taken = sorted(set(arm.methods) & set(CONTROLS)) if self.controls else []
            if not arm.methods or taken:
                cure = f"{', '.join(taken)} is a control; choose another label, or leave the controls out"
                raise InputError(f"methods: {cure if taken else 'none given'}")

    def entrants(self, arm: Arm) -> list[Candidate]:
        """Who takes part on a model: its methods, then the controls."""
        controls = [Candidate(name, None) for name in CONTROLS] if self.controls else []
        return [*(Candidate(label, method) for label, method in arm.methods.items()), *controls]

    def limit(self, metric: str) -> int:
        """How many images a metric is computed on."""
        return min(self.limits.get(metric, self.n), self.n)

    def record(self) -> dict[str, Any]:
        """The plan as plain data, for people and for telling two plans apart."""
        return {
            "name": self.name,
            "data": list(self.data),
            "models": {arm.label: arm.model.spec for arm in self.arms},
            "preprocessing": {arm.label: arm.model.preprocessing for arm in self.arms},
            "methods": {arm.label: {e.label: _settings(e) for e in self.entrants(arm)} for arm in self.arms},
            "metrics": {label: metric.record() for label, metric in self.metrics.items()},
            "limits": dict(self.limits),
            "n": self.n,
            "seed": self.seed,
            "target": self.target,
            "score": self.score,
            "exif": self.exif,
            "references": self.references,
            **({"last": True} if self.last else {}),
        }


def _settings(entrant: Candidate) -> dict[str, Any]:
    return {"control": entrant.label} if entrant.method is None else entrant.method.record()
