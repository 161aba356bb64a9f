"""Scores that came to nothing, and why."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fringe.experiments import Manifest, Store, all_rows


def failures(store: Store, manifest: Manifest) -> list[dict[str, Any]]:
    """A plan's scores that failed, counted by model, method and reason, in the order of the plan."""
    drawn = {image["digest"] for image in manifest.images}
    rows = all_rows(store).values()
    found: list[dict[str, Any]] = []
    for model, methods in manifest.settings.items():
        for method in methods:
            key = manifest.setting_key(model, method)
            mine = [row for row in rows if row.setting == key and row.image in drawn and row.status != "ok"]
            reasons = Counter(row.error or row.status for row in mine)
            found += [
                {"model": model, "method": method, "reason": why, "scores": n} for why, n in reasons.most_common()
            ]
    return found


def told(found: Sequence[Mapping[str, Any]], crashes: Sequence[Mapping[str, Any]], most: int) -> list[str]:
    """Lines for people: a reason each, the most frequent first, with the methods that it befell; then the units that
    were set aside because they end their process."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for one in found:
        groups.setdefault((one["model"], one["reason"]), []).append(one)
    ranked = sorted(groups.items(), key=lambda group: -sum(one["scores"] for one in group[1]))
    lines = [
        f"{_count(sum(one['scores'] for one in group), 'score')} of {', '.join(one['method'] for one in group)} on "
        f"{model}: {why}"
        for (model, why), group in ranked
    ]
    lines += [
        f"set aside: {one['method']} on {one['model']}, {_count(len(one['images']), 'image')}: {one['reason']}"
        for one in crashes
    ]
    left = len(lines) - most
    return [*lines[:most], f"and {_count(left, 'other reason')}"] if left > 0 else lines


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
