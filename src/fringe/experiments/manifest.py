"""A plan after looking: the very weights, images and settings that it stands for, as they are kept beside the results.

A report or a status reads it and needs neither a model nor an image.
"""

import hashlib
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import fringe
from fringe.experiments.draw import Drawn, ImageEntry, draw, draw_references
from fringe.experiments.keys import Setting, digest
from fringe.experiments.logits import FirstLogits, first_logits
from fringe.experiments.plan import Arm, Plan
from fringe.models import LoadedModel, Preprocessing, load_model


@dataclass(frozen=True)
class Manifest:
    """``plan`` is the plan's record. ``images`` (n) hold digest, id, source and label, in the order of the draw;
    ``missing`` why images that were drawn are not among them. ``settings`` are setting records by model and method,
    ``metrics`` what is known of each metric by label, ``models`` of each model."""

    plan: Mapping[str, Any]
    images: tuple[Mapping[str, Any], ...]
    missing: tuple[str, ...]
    settings: Mapping[str, Mapping[str, Any]]
    metrics: Mapping[str, Mapping[str, Any]]
    models: Mapping[str, Mapping[str, Any]]
    versions: Mapping[str, str]

    @property
    def name(self) -> str:
        return self.plan["name"]

    def setting_key(self, model: str, method: str) -> str:
        return digest(self.settings[model][method])

    def model_key(self, model: str) -> str:
        """The name of a model as settings know it: weights, structure and preprocessing, and not where it came from."""
        return digest({name: value for name, value in self.models[model].items() if name != "spec"})

    def images_of(self, metric: str) -> tuple[Mapping[str, Any], ...]:
        """The images that a metric is computed on."""
        return self.images[: self.metrics[metric]["limit"]]

    def record(self) -> dict[str, Any]:
        return {**vars(self), "images": list(self.images), "missing": list(self.missing)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Manifest":
        known: dict[str, Any] = {**record, "images": tuple(record["images"]), "missing": tuple(record["missing"])}
        return cls(**known)


@dataclass(frozen=True)
class Resolved:
    """A plan with its manifest, and the pictures behind it. ``logits`` are those of a few images by model, where they
    were asked for."""

    plan: Plan
    manifest: Manifest
    pictures: Mapping[str, ImageEntry]
    references: tuple[ImageEntry, ...]
    logits: Mapping[str, FirstLogits] = field(default_factory=dict[str, FirstLogits])


def resolve(plan: Plan, *, logits: bool = False) -> Resolved:
    """Look at the models and images of a plan; with ``logits`` compute those of the first few images, on the CPU.
    Raises FringeError for a model or data that cannot be used."""
    drawn = draw(plan.data, plan.n, plan.seed, plan.exclude, last=plan.last)
    references = draw_references(plan.data, plan.references, plan.seed)
    loaded = {arm.label: load(arm) for arm in plan.arms}
    manifest = Manifest(
        plan=plan.record(),
        images=tuple(_image(picture) for picture in drawn.pictures),
        missing=drawn.missing,
        settings={arm.label: _settings(plan, arm, loaded[arm.label], references) for arm in plan.arms},
        metrics={label: _metric(plan, label) for label in plan.metrics},
        models={label: {"spec": model.spec, **describe(model, plan.exif)} for label, model in loaded.items()},
        versions=versions(),
    )
    first = {label: first_logits(model, drawn.pictures, plan.exif) for label, model in loaded.items()} if logits else {}
    return Resolved(plan, manifest, _by_digest(drawn), references, first)


def versions() -> dict[str, str]:
    """The versions of what shapes the numbers: this library, PyTorch, NumPy, Python, and the libraries of models as far
    as they are loaded in this process."""
    known = {"fringe": fringe.__version__, "torch": str(torch.__version__), "numpy": np.__version__}
    loaded = {name: sys.modules[name] for name in ("torchvision", "timm", "transformers") if name in sys.modules}
    more = {name: str(getattr(module, "__version__", "unknown")) for name, module in loaded.items()}
    return {**known, "python": platform.python_version(), **more}


def load(arm: Arm, device: torch.device | str = "cpu") -> LoadedModel:
    """The model of an arm."""
    source = arm.model
    recipe = None if source.preprocessing is None else Preprocessing.parse(source.preprocessing)
    return load_model(source.spec, trust_code=source.trust_code, preprocessing=recipe, device=device)


def describe(model: LoadedModel, exif: str) -> dict[str, Any]:
    """What of a model shapes the numbers."""
    return {
        "architecture": model.architecture,
        "weights": model.digest[:32],
        "structure": hashlib.sha256(str(model.module).encode()).hexdigest()[:32],
        "preprocessing": {**model.preprocessing.record(), "exif": exif},
    }


def _settings(
    plan: Plan, arm: Arm, model: LoadedModel, references: tuple[ImageEntry, ...]
) -> dict[str, dict[str, Any]]:
    about = describe(model, plan.exif)
    digests = tuple(picture.digest for picture in references)
    return {
        entrant.label: Setting(
            model=about,
            method={"control": entrant.label} if entrant.method is None else entrant.method.record(),
            target=plan.target,
            score=plan.score,
            seed=plan.seed,
            references=digests if entrant.method is not None and entrant.method.uses_references else None,
        ).record()
        for entrant in plan.entrants(arm)
    }


def _metric(plan: Plan, label: str) -> dict[str, Any]:
    metric = plan.metrics[label]
    about = {name: getattr(metric, name) for name in ("title", "direction", "unit", "space", "source")}
    return {
        **about,
        "summary": metric.aggregate,
        "settings": metric.record(),
        "key": digest(metric.record()),
        "limit": plan.limit(label),
    }


def _image(picture: ImageEntry) -> dict[str, Any]:
    ref = picture.ref
    return {"digest": picture.digest, "id": ref.id, "source": ref.source, "label": ref.label}


def _by_digest(drawn: Drawn) -> dict[str, ImageEntry]:
    return {picture.digest: picture for picture in drawn.pictures}
