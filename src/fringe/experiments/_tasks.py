"""Units of work: what of a manifest is not in the store yet."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fringe.experiments._manifest import Manifest, changes, digest
from fringe.experiments._spec import PLAN_NAME
from fringe.experiments._store import CRASHES, PLANS, Store

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


@dataclass(frozen=True)
class Stale:
    """A committed unit that no plan of the folder asks for, and why."""

    unit: str
    model: str
    method: str
    images: int
    reason: str


def present(store: Store, *, failures: bool = True) -> set[Key]:
    """The names of all committed scores; without those that failed unless ``failures``."""
    found: set[Key] = set()
    for about in store.metadata().values():
        found.update(_scores(about, failures))
    return found


def manifests(store: Store) -> dict[str, Manifest]:
    """The plans of a folder by name. A record whose name is none of a plan, such as ``..``, is passed over: reports are
    written to folders of these names."""
    found = store.records(PLANS).items()
    return {name: Manifest.from_record(record) for name, record in found if re.fullmatch(PLAN_NAME, name)}


def crashes(store: Store) -> list[Mapping[str, Any]]:
    """What is known of the units that were set aside and whose scores are still missing."""
    there = present(store)
    return [record for record in store.records(CRASHES).values() if not there.issuperset(held(record))]


def versions_of(abouts: Iterable[Mapping[str, Any]], manifest: Manifest) -> dict[str, dict[str, int]]:
    """By library, how many units of a plan each of its versions computed, or the kept maps that they score."""
    asked = {key for *_, key in wanted(manifest)}
    found: dict[str, Counter[str]] = {}
    for about in abouts:
        if asked.isdisjoint(held(about)):
            continue
        made = [about.get("versions"), *about.get("map_versions", ())]
        pairs = {pair for one in made for pair in (one or {"fringe": "not recorded"}).items()}
        for name, version in sorted(pairs):
            found.setdefault(name, Counter())[version] += 1
    return {name: dict(sorted(counts.items())) for name, counts in found.items()}


def mixed(versions: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A line for each library of which several versions computed the results."""
    return [
        f"{name}: " + ", ".join(f"{version} ({n} unit{'' if n == 1 else 's'})" for version, n in counts.items())
        for name, counts in versions.items()
        if len(counts) > 1
    ]


def stale(store: Store) -> list[Stale]:
    """Committed units that serve no plan, each with the difference to what the plans ask for now."""
    plans = manifests(store).values()
    asked = {key for manifest in plans for *_, key in wanted(manifest)}
    return [
        Stale(name, about["model"], about["method"], len(about["images"]), _reason(about, list(plans)))
        for name, about in store.metadata().items()
        if asked.isdisjoint(held(about))
    ]


def _scores(about: Mapping[str, Any], failures: bool) -> Iterator[Key]:
    bad = set() if failures else {(metric, image) for metric, image in about.get("failed", ())}
    return (key for key in held(about) if key[1:] not in bad)


def _reason(about: Mapping[str, Any], plans: list[Manifest]) -> str:
    now = [m.settings[about["model"]] for m in plans if about["model"] in m.settings]
    if not now:
        return f"no plan has the model {about['model']!r}"
    mine = [settings[about["method"]] for settings in now if about["method"] in settings]
    if not mine:
        return f"no plan has the method {about['method']!r}"
    differences = min((changes(about["setting"], setting) for setting in mine), key=len)
    if differences:
        return "; ".join(differences)
    images = {image["digest"] for manifest in plans for image in manifest.images}
    gone = sum(image not in images for image in about["images"])
    return f"{gone} of its images changed or are not drawn any more" if gone else "its metrics have other settings now"
