"""Units of work: what of a manifest is not in the store yet."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fringe.experiments.keys import digest
from fringe.experiments.manifest import Manifest

Key = tuple[str, str, str]
"""Digests of setting, metric and image: the name of one score."""


@dataclass(frozen=True)
class Task:
    """One method on one model for some images, scored by some metrics: computed and committed together. ``images`` are
    digests, ``metrics`` labels; ``again`` tells to compute it though it is committed."""

    model: str
    method: str
    setting: str
    metrics: tuple[str, ...]
    metric_keys: tuple[str, ...]
    images: tuple[str, ...]
    again: bool = False

    @property
    def key(self) -> str:
        """The name of the unit in the store."""
        return digest([self.setting, sorted(self.metric_keys), self.images])

    def scores(self) -> Iterator[Key]:
        """The scores that it holds."""
        return ((self.setting, metric, image) for metric in self.metric_keys for image in self.images)

    def record(self, manifest: Manifest) -> dict[str, Any]:
        """What is kept beside the unit's rows: enough to say later why it fits no more."""
        return {
            "model": self.model,
            "method": self.method,
            "setting": manifest.settings[self.model][self.method],
            "metrics": {label: manifest.metrics[label]["settings"] for label in self.metrics},
            "setting_key": self.setting,
            "metric_keys": list(self.metric_keys),
            "images": list(self.images),
        }


def wanted(manifest: Manifest) -> Iterator[tuple[str, str, str, str, Key]]:
    """Model, method, metric, image and name of every score of a plan."""
    for model, methods in manifest.settings.items():
        for method in methods:
            setting = manifest.setting_key(model, method)
            for metric, about in manifest.metrics.items():
                for image in manifest.images_of(metric):
                    yield model, method, metric, image["digest"], (setting, about["key"], image["digest"])


def held(about: Mapping[str, Any]) -> Iterator[Key]:
    """The names of the scores of a committed unit, by what is kept about it."""
    return ((about["setting_key"], metric, image) for metric in about["metric_keys"] for image in about["images"])


def missing_units(manifest: Manifest, have: Iterable[Key], shard: int, *, again: bool = False) -> list[Task]:
    """The units that give a plan the scores that are not in ``have``: model by model, ``shard`` images at a time, all
    methods on the same images in turn, so that they share what is computed once for an image."""
    there = set(have)
    units: list[Task] = []
    for model, methods in manifest.settings.items():
        keys = {method: manifest.setting_key(model, method) for method in methods}
        for start in range(0, len(manifest.images), shard):
            block = range(start, min(start + shard, len(manifest.images)))
            for method, setting in keys.items():
                units += _of_block(manifest, model, method, setting, block, there, again)
    return units


def _of_block(
    manifest: Manifest, model: str, method: str, setting: str, block: Iterable[int], there: set[Key], again: bool
) -> Iterator[Task]:
    """Images of the block that lack the same metrics make one unit."""
    lacking: dict[tuple[str, ...], list[str]] = {}
    for place in block:
        image = manifest.images[place]["digest"]
        metrics = tuple(
            label
            for label, about in manifest.metrics.items()
            if place < about["limit"] and (setting, about["key"], image) not in there
        )
        if metrics:
            lacking.setdefault(metrics, []).append(image)
    for metrics, images in lacking.items():
        keys = tuple(manifest.metrics[label]["key"] for label in metrics)
        yield Task(model, method, setting, metrics, keys, tuple(images), again)
