"""Tasks: what of a plan is stored, missing, or no longer required."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fringe._records import changes, digest
from fringe._text import counted
from fringe.bench.experiments._manifest import Manifest
from fringe.bench.experiments._records import MISSING, OK, StoredTask
from fringe.bench.experiments._store import CRASH, PLAN, Store

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

    def record(self, manifest: Manifest) -> dict[str, Any]:
        """What names the task and its scores, as JSON data: the record of one that ended its process."""
        names = {"model": self.model, "method": self.method, "setting_key": self.setting}
        return {**names, "metric_keys": list(self.metric_keys), "images": list(self.images), **self.shared(manifest)}

    def shared(self, manifest: Manifest) -> dict[str, Any]:
        """What is stored with its records: enough to say later why it is no longer required."""
        metrics = {label: manifest.metrics[label]["settings"] for label in self.metrics}
        return {"setting": manifest.settings[self.model][self.method], "metrics": metrics}


class KeySet:
    """A set of score keys. Its memory grows with the images of a task, not with its metrics."""

    def __init__(self, keys: Iterable[Key] = ()):
        self._images: dict[str, dict[frozenset[str], set[str]]] = {}
        for setting, metric, image in keys:
            self.add(setting, (metric,), (image,))

    def add(self, setting: str, metrics: Iterable[str], images: Iterable[str]) -> None:
        """Add every pair of a metric and an image under a setting."""
        self._images.setdefault(setting, {}).setdefault(frozenset(metrics), set()).update(images)

    def metrics(self, setting: str, image: str) -> frozenset[str]:
        """The metrics of a setting and an image."""
        result = frozenset[str]()
        for metrics, images in self._images.get(setting, {}).items():
            if image in images:
                result = result | metrics if result else metrics
        return result

    def complete(self, setting: str, metrics: frozenset[str]) -> set[str]:
        """The images that one group holds under a setting and all of some metrics."""
        groups = self._images.get(setting, {}).items()
        return set[str]().union(*(images for present, images in groups if metrics <= present))


class Requirements:
    """The scores that a plan requires."""

    def __init__(self, manifest: Manifest):
        self._positions: dict[str, dict[str, int]] = {}  # by setting: two scenes may have one network
        for model, methods in manifest.settings.items():
            positions = {image["digest"]: index for index, image in enumerate(manifest.images_of(model))}
            for setting in (manifest.setting_key(model, method) for method in methods):
                before = self._positions.get(setting)
                self._positions[setting] = positions if before is None else {**before, **positions}
        self._limits, self._last = dict[str, int](), dict[tuple[str, ...], int]()
        for metric in manifest.metrics.values():
            self._limits[metric["key"]] = max(metric["limit"], self._limits.get(metric["key"], 0))

    def any_of(self, task: StoredTask) -> bool:
        """Whether any score of a committed task is required."""
        metrics = task.metrics
        if metrics not in self._last:
            self._last[metrics] = max((self._limits.get(metric, 0) for metric in metrics), default=0)
        last = self._last[metrics]
        positions = self._positions.get(task.setting, {})
        for image in task.images:  # noqa: SIM110 - called for every task, of which the first image decides
            if positions.get(image, last) < last:
                return True
        return False


def pending_tasks(manifest: Manifest, done: KeySet | Iterable[Key], shard: int, *, force: bool = False) -> list[Task]:
    """The tasks that compute the scores of a plan that are not in ``done``: model by model, ``shard`` images at a time,
    all methods on the same images in turn, so that they share what is computed once for an image."""
    done = done if isinstance(done, KeySet) else KeySet(done)
    every = frozenset(metadata["key"] for metadata in manifest.metrics.values())
    tasks: list[Task] = []
    for model, methods in manifest.settings.items():
        keys = {method: manifest.setting_key(model, method) for method in methods}
        complete = {setting: done.complete(setting, every) for setting in keys.values()}
        numbered = list(enumerate(image["digest"] for image in manifest.images_of(model)))
        for start in range(0, len(numbered), shard):
            block = numbered[start : start + shard]
            for method, setting in keys.items():
                by_metrics: dict[tuple[str, ...], list[str]] = {}  # the images by the metrics that they lack
                for i, image in block:
                    if image in complete[setting]:
                        continue
                    present = done.metrics(setting, image)
                    known = manifest.metrics.items()
                    metrics = tuple(n for n, one in known if i < one["limit"] and one["key"] not in present)
                    by_metrics.setdefault(metrics, []).append(image)
                for metrics, lacking in by_metrics.items():
                    if not metrics:
                        continue
                    metric_keys = tuple(manifest.metrics[label]["key"] for label in metrics)
                    tasks.append(Task(model, method, setting, metrics, metric_keys, tuple(lacking), force))
    return tasks


def committed_keys(store: Store, *, failures: bool = True, tasks: Iterable[StoredTask] | None = None) -> KeySet:
    """Keys of all committed scores; without those that failed unless ``failures``. ``tasks`` are those of the store, if
    they were read."""
    result = KeySet()
    for task in store.tasks() if tasks is None else tasks:
        present = task.status == OK if not failures else task.status != MISSING
        if present.all():
            result.add(task.setting, task.metrics, task.images)
            continue
        for i, image in enumerate(task.images):
            result.add(task.setting, [metric for m, metric in enumerate(task.metrics) if present[m, i]], [image])
    return result


def manifests(store: Store) -> dict[str, Manifest]:
    """The plans of a folder by name."""
    return {name: Manifest.from_record(record) for name, record in store.records(PLAN).items()}


def crashes(store: Store, tasks: Iterable[StoredTask] | None = None) -> list[Mapping[str, Any]]:
    """The records of tasks that were set aside and whose scores are still missing."""
    records = store.records(CRASH)
    done = committed_keys(store, tasks=tasks) if records else KeySet()

    def is_done(crash: Mapping[str, Any]) -> bool:
        return all(done.metrics(crash["setting_key"], i).issuperset(crash["metric_keys"]) for i in crash["images"])

    return [record for record in records.values() if not is_done(record)]


def versions_of(tasks: Iterable[StoredTask], manifest: Manifest) -> dict[str, dict[str, int]]:
    """By library, how many tasks of a plan each of its versions computed, or made the stored maps of."""
    required, numbers, result = Requirements(manifest), Counter[frozenset[tuple[str, str]]](), dict[str, Counter[str]]()
    for task in tasks:
        if "versions" in task.shared and required.any_of(task):
            made = [task.shared["versions"], *task.shared["map_versions"]]
            numbers[frozenset(pair for one in made for pair in one.items())] += 1
    for pairs, count in numbers.items():
        for name, version in sorted(pairs):
            result.setdefault(name, Counter())[version] += count
    return {name: dict(sorted(counts.items())) for name, counts in result.items()}


def mixed(versions: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A line for each library of which several versions computed the results."""
    return [
        f"{name}: " + ", ".join(f"{version} ({counted(n, 'unit')})" for version, n in counts.items())
        for name, counts in versions.items()
        if len(counts) > 1
    ]


def orphaned(tasks: Iterable[StoredTask], plans: Iterable[Manifest]) -> list[dict[str, Any]]:
    """Committed tasks that no plan requires: ``model``, ``method``, how many ``images``, and as ``reason`` the
    difference to what the plans require now."""
    current = list(plans)
    required = [Requirements(manifest) for manifest in current]
    unused = [task for task in tasks if not any(one.any_of(task) for one in required)]
    numbers = [{"images": len(task.images), "reason": _reason(task, current)} for task in unused]
    names = [{name: task.shared[name] for name in ("model", "method")} for task in unused]
    return [{**named, **known} for named, known in zip(names, numbers, strict=True)]


def _reason(task: StoredTask, plans: list[Manifest]) -> str:
    model, method = task.shared["model"], task.shared["method"]
    current = [m.settings[model] for m in plans if model in m.settings]
    if not current:
        return f"no plan has the model {model!r}"
    same = [settings[method] for settings in current if method in settings]
    if not same:
        return f"no plan has the method {method!r}"
    differences = min((changes(task.shared["setting"], setting) for setting in same), key=len)
    if differences:
        return "; ".join(differences)
    images = {image["digest"] for manifest in plans for image in manifest.images}
    missing = sum(image not in images for image in task.images)
    return (
        f"{missing} of its images changed or are not drawn any more"
        if missing
        else "its metrics have other settings now"
    )
