"""Tasks: what of a plan is stored, missing, or no longer required."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fringe.experiments._manifest import Manifest, changes, digest
from fringe.experiments._spec import PLAN_NAME
from fringe.experiments._store import CRASHES, PLANS, Store

#: Digests of setting, metric and image: the name of one score.
Key = tuple[str, str, str]


@dataclass(frozen=True)
class Task:
    """One method on one model for some images, scored by some metrics: computed and committed together.

    Attributes:
        model, method: Labels.
        setting: Digest of what shapes the maps.
        metrics: Labels of the metrics.
        metric_keys: Their digests.
        images: Digests of the images.
        force: Whether to compute it again if it is committed.
    """

    model: str
    method: str
    setting: str
    metrics: tuple[str, ...]
    metric_keys: tuple[str, ...]
    images: tuple[str, ...]
    force: bool = False

    @property
    def key(self) -> str:
        """Name of the task in the store."""
        return digest([self.setting, sorted(self.metric_keys), self.images])

    def scores(self) -> Iterator[Key]:
        """Keys of its scores."""
        return ((self.setting, metric, image) for metric in self.metric_keys for image in self.images)

    def record(self, manifest: Manifest) -> dict[str, Any]:
        """The metadata stored with its records: enough to say later why it is no longer required."""
        return {
            "model": self.model,
            "method": self.method,
            "setting": manifest.settings[self.model][self.method],
            "metrics": {label: manifest.metrics[label]["settings"] for label in self.metrics},
            "setting_key": self.setting,
            "metric_keys": list(self.metric_keys),
            "images": list(self.images),
        }


def required_keys(manifest: Manifest) -> Iterator[tuple[str, str, str, str, Key]]:
    """Model, method, metric, image and key of every score that a plan requires."""
    for model, methods in manifest.settings.items():
        for method in methods:
            setting = manifest.setting_key(model, method)
            for metric, metadata in manifest.metrics.items():
                for image in manifest.images_of(metric):
                    yield model, method, metric, image["digest"], (setting, metadata["key"], image["digest"])


def stored_keys(metadata: Mapping[str, Any]) -> Iterator[Key]:
    """Keys of the scores of a committed task, from its metadata."""
    return (
        (metadata["setting_key"], metric, image) for metric in metadata["metric_keys"] for image in metadata["images"]
    )


def pending_tasks(manifest: Manifest, done: Iterable[Key], shard: int, *, force: bool = False) -> list[Task]:
    """The tasks that compute the scores of a plan that are not in ``done``: model by model, ``shard`` images at a time,
    all methods on the same images in turn, so that they share what is computed once for an image."""
    done = set(done)
    tasks: list[Task] = []
    for model, methods in manifest.settings.items():
        keys = {method: manifest.setting_key(model, method) for method in methods}
        for start in range(0, len(manifest.images), shard):
            block = range(start, min(start + shard, len(manifest.images)))
            for method, setting in keys.items():
                tasks += _of_block(manifest, model, method, setting, block, done, force)
    return tasks


def _of_block(
    manifest: Manifest, model: str, method: str, setting: str, block: Iterable[int], done: set[Key], force: bool
) -> Iterator[Task]:
    """Images of the block that lack the same metrics make one task."""
    lacking: dict[tuple[str, ...], list[str]] = {}
    for index in block:
        image = manifest.images[index]["digest"]
        metrics = tuple(
            label
            for label, metadata in manifest.metrics.items()
            if index < metadata["limit"] and (setting, metadata["key"], image) not in done
        )
        if metrics:
            lacking.setdefault(metrics, []).append(image)
    for metrics, images in lacking.items():
        keys = tuple(manifest.metrics[label]["key"] for label in metrics)
        yield Task(model, method, setting, metrics, keys, tuple(images), force)


@dataclass(frozen=True)
class OrphanedTask:
    """A committed task that no plan of the folder requires, and why."""

    task: str
    model: str
    method: str
    images: int
    reason: str


def committed_keys(store: Store, *, failures: bool = True) -> set[Key]:
    """Keys of all committed scores; without those that failed unless ``failures``."""
    result: set[Key] = set()
    for metadata in store.metadata().values():
        failed = set() if failures else {(metric, image) for metric, image in metadata.get("failed", ())}
        result.update(key for key in stored_keys(metadata) if key[1:] not in failed)
    return result


def manifests(store: Store) -> dict[str, Manifest]:
    """The plans of a folder by name. A record whose name is none of a plan, such as ``..``, is passed over: reports are
    written to folders of these names."""
    result = store.records(PLANS).items()
    return {name: Manifest.from_record(record) for name, record in result if re.fullmatch(PLAN_NAME, name)}


def crashes(store: Store) -> list[Mapping[str, Any]]:
    """The records of tasks that were set aside and whose scores are still missing."""
    done = committed_keys(store)
    return [record for record in store.records(CRASHES).values() if not done.issuperset(stored_keys(record))]


def versions_of(records: Iterable[Mapping[str, Any]], manifest: Manifest) -> dict[str, dict[str, int]]:
    """By library, how many tasks of a plan each of its versions computed, or made the stored maps of."""
    required = {key for *_, key in required_keys(manifest)}
    result: dict[str, Counter[str]] = {}
    for metadata in records:
        if required.isdisjoint(stored_keys(metadata)):
            continue
        made = [metadata.get("versions"), *metadata.get("map_versions", ())]
        pairs = {pair for one in made for pair in (one or {"fringe": "not recorded"}).items()}
        for name, version in sorted(pairs):
            result.setdefault(name, Counter())[version] += 1
    return {name: dict(sorted(counts.items())) for name, counts in result.items()}


def mixed(versions: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A line for each library of which several versions computed the results."""
    return [
        f"{name}: " + ", ".join(f"{version} ({n} unit{'' if n == 1 else 's'})" for version, n in counts.items())
        for name, counts in versions.items()
        if len(counts) > 1
    ]


def orphaned(store: Store) -> list[OrphanedTask]:
    """Committed tasks that no plan requires, each with the difference to what the plans require now."""
    plans = manifests(store).values()
    required = {key for manifest in plans for *_, key in required_keys(manifest)}
    return [
        OrphanedTask(
            name, metadata["model"], metadata["method"], len(metadata["images"]), _reason(metadata, list(plans))
        )
        for name, metadata in store.metadata().items()
        if required.isdisjoint(stored_keys(metadata))
    ]


def _reason(metadata: Mapping[str, Any], plans: list[Manifest]) -> str:
    current = [m.settings[metadata["model"]] for m in plans if metadata["model"] in m.settings]
    if not current:
        return f"no plan has the model {metadata['model']!r}"
    same = [settings[metadata["method"]] for settings in current if metadata["method"] in settings]
    if not same:
        return f"no plan has the method {metadata['method']!r}"
    differences = min((changes(metadata["setting"], setting) for setting in same), key=len)
    if differences:
        return "; ".join(differences)
    images = {image["digest"] for manifest in plans for image in manifest.images}
    missing = sum(image not in images for image in metadata["images"])
    return (
        f"{missing} of its images changed or are not drawn any more"
        if missing
        else "its metrics have other settings now"
    )
