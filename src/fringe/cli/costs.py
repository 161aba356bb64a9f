"""What each entrant's maps took over all groups of images, and what went wrong."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fringe.experiments import MethodResult


class Costs:
    """Sums over groups, by the entrants' labels in their order."""

    def __init__(self) -> None:
        self._entries: dict[str, dict[str, Any]] = {}

    def add(self, rows: Sequence[MethodResult]) -> None:
        """Take in the rows of a group."""
        for row in rows:
            entry = self._entries.setdefault(row.label, _empty(row))
            entry["seconds"] = round(entry["seconds"] + row.seconds, 3)
            entry["passes"] = {kind: entry["passes"][kind] + count for kind, count in asdict(row.passes).items()}
            entry["images"] += len(row.faults)
            entry["maps"] += row.faults.count("")
            if row.error is not None:
                entry["errors"].append({"error": row.error, "images": len(row.faults)})

    def record(self) -> list[dict[str, Any]]:
        """One plain dict an entrant."""
        return list(self._entries.values())

    def errors(self) -> list[str]:
        """Each entrant's error, once."""
        found = [f"{e['label']}: {error['error']}" for e in self._entries.values() for error in e["errors"]]
        return list(dict.fromkeys(found))

    @property
    def any_made(self) -> bool:
        """Whether any method made a map that could be scored."""
        return any(entry["maps"] for entry in self._entries.values() if not entry["control"])


def _empty(row: MethodResult) -> dict[str, Any]:
    return {
        "label": row.label,
        "control": row.control,
        "settings": row.settings,
        "images": 0,
        "maps": 0,
        "passes": {"forward": 0, "jvp": 0, "vjp": 0},
        "seconds": 0.0,
        "errors": [],
    }
