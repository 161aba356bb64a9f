"""Tasks: what of a plan is stored, missing, or no longer required."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fringe._files.records import changes, digest
from fringe._strings.formats import counted
from fringe.bench.experiments._manifest import Manifest
from fringe.bench.experiments._records import MISSING, OK, fingerprint
from fringe.bench.experiments._results import Results
from fringe.bench.experiments._store import Block, Store


@dataclass(frozen=True)
class Task:
    """One method on one model for some images, scored by some metrics: computed and committed together.

    Attributes:
        model, method: Labels.
        setting: Digest of what shapes the maps.
        metrics: Labels of the metrics.
        metric_keys: Their digests.
        images: Digests of the images.
        force: Whether to compute it again, and to use no stored map.
        save: Whether its maps are stored in any case.
    """

    model: str
    method: str
    setting: str
    metrics: tuple[str, ...]
    metric_keys: tuple[str, ...]
    images: tuple[str, ...]
    force: bool = False
    save: bool = False

    @property
    def key(self) -> str:
        """Name of the task in the store."""
        return digest([self.setting, sorted(self.metric_keys), self.images])

    def about(
        self, manifest: Manifest, versions: Mapping[str, str], of_maps: Sequence[Mapping[str, str]]
    ) -> dict[str, Any]:
        """What the rows of the task share: enough to read them, and to say later why they are no longer required. The
        stored maps that were scored are by other versions, ``of_maps``."""
        return {
            **{"model": self.model, "method": self.method, "setting_key": self.setting},
            "setting": manifest.settings[self.model][self.method],
            **{"labels": list(self.metrics), "metrics": list(self.metric_keys)},
            "metric_settings": {label: manifest.metrics[label]["settings"] for label in self.metrics},
            **{"versions": dict(versions), "map_versions": [dict(one) for one in of_maps]},
        }


def pending_tasks(
    manifest: Manifest,
    stored: Iterable[Block] | Results,
    shard: int,
    *,
    retry: bool = False,
    lost: Mapping[str, frozenset[int]] | None = None,
) -> list[Task]:
    """The tasks that compute the scores of a plan that are not ``stored``, with ``retry`` also those that failed, and
    the maps that are ``lost`` (:meth:`Store.lost_maps`): model by model, ``shard`` images at a time, all methods on the
    same images in turn, so that they share what is computed once for an image."""
    results = stored if isinstance(stored, Results) else Results(manifest, Store(None), stored)
    is_done = results.status == OK if retry else results.status != MISSING
    labels, tasks, lost = list(manifest.metrics), list[Task](), lost or {}
    keys, limits = ([one[name] for one in manifest.metrics.values()] for name in ("key", "limit"))
    for model, methods in manifest.settings.items():
        at = np.asarray(manifest.positions(model), np.int64)
        digests, groups = [manifest.images[i]["digest"] for i in at.tolist()], dict[tuple[int, str, bytes], list[int]]()
        is_limited = np.arange(len(digests)) >= np.array(limits)[:, None]
        failed = dict[str, NDArray[np.bool_]]()  # (metrics, images)
        for method in methods:
            setting = manifest.setting_key(model, method)
            columns, of_setting = [results.index(setting, key) for key in keys], lost.get(setting, frozenset())
            failed[method] = np.stack([results.status[column][at] > OK for column in columns])
            lacking = ~(np.stack([is_done[column][at] for column in columns]) | is_limited)
            is_lost = np.array([bool(of_setting) and fingerprint(one) in of_setting for one in digests], np.bool_)
            needs = np.vstack([lacking, is_lost])
            for i in np.flatnonzero(needs.any(0)).tolist():  # the images of a task lack the same
                groups.setdefault((i // shard, method, needs[:, i].tobytes()), []).append(i)
        for (_, method, what), images in sorted(groups.items(), key=lambda group: group[0][0]):
            *of_metrics, save = np.frombuffer(what, np.bool_).tolist()
            metrics = np.flatnonzero(of_metrics).tolist()
            named, asked = (tuple(one[m] for m in metrics) for one in (labels, keys))
            force = retry and bool(failed[method][np.ix_(metrics, images)].any())
            chosen = tuple(digests[i] for i in images)
            setting = manifest.setting_key(model, method)
            tasks.append(Task(model, method, setting, named, asked, chosen, force, save))
    return tasks


def mixed(versions: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A line for each library of which several versions computed the results."""
    return [
        f"{name}: " + ", ".join(f"{version} ({counted(n, 'map')})" for version, n in counts.items())
        for name, counts in versions.items()
        if len(counts) > 1
    ]


def orphaned(blocks: Iterable[Block], plans: Sequence[Results]) -> list[dict[str, Any]]:
    """Rows that no plan requires: ``model``, ``method``, how many ``images``, and as ``reason`` the difference to what
    the plans require now."""
    found, manifests = Counter[tuple[str, str, str]](), [one.manifest for one in plans]
    images = [fingerprint(image["digest"]) for manifest in manifests for image in manifest.images]
    for block in blocks:
        used = np.zeros(len(block.rows), np.bool_)
        for one in plans:
            used |= one.where(block) >= 0
        if used.all():
            continue
        is_known = np.isin(block.rows["image"], images)
        for missing, rows in ((0, ~used & is_known), (int((~used & ~is_known).sum()), ~used & ~is_known)):
            if rows.any():
                found[block.about["model"], block.about["method"], _reason(block, manifests, missing)] += int(
                    rows.sum()
                )
    return [
        {"model": model, "method": method, "images": n, "reason": reason}
        for (model, method, reason), n in found.items()
    ]


def _reason(block: Block, plans: list[Manifest], missing: int) -> str:
    model, method = block.about["model"], block.about["method"]
    current = [m.settings[model] for m in plans if model in m.settings]
    if not current:
        return f"no plan has the model {model!r}"
    same = [settings[method] for settings in current if method in settings]
    if not same:
        return f"no plan has the method {method!r}"
    differences = min((changes(block.about["setting"], setting) for setting in same), key=len)
    if differences:
        return "; ".join(differences)
    if missing:
        return f"{missing} of its images changed or are not drawn any more"
    return "its metrics have other settings now"
