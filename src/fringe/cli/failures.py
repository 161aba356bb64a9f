"""Scores that came to nothing, and why."""

from collections.abc import Mapping, Sequence
from typing import Any

from fringe.experiments import Manifest, Store, results_of


def failures(store: Store, manifest: Manifest) -> list[dict[str, Any]]:
    """A plan's scores that failed, counted by model, method and reason, in the order of the plan."""
    return results_of(store, manifest).failures().drop("images").to_dicts()


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
