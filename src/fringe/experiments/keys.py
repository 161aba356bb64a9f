"""Names made of what shapes a number, and of nothing else."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

SCHEMA = 1
"""Raised when a change of this library moves numbers that are kept under the same names."""


def digest(data: Any) -> str:
    """32 hexadecimal digits of the SHA-256 over plain ``data`` in a canonical form: keys sorted, floats exact."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Setting:
    """All that shapes a method's map on a model, but the image. Neither the batch size, the device nor the engine is in
    it: they move a number by rounding alone.

    ``model`` holds its architecture, the digests of weights and structure, and the preprocessing with the rule for
    turned photos; ``method`` its record; ``references`` the digests of the reference images, for a method that uses
    them.
    """

    model: Mapping[str, Any]
    method: Mapping[str, Any]
    target: str | int
    score: str
    seed: int
    references: tuple[str, ...] | None = None
    dtype: str = "float32"
    schema: int = SCHEMA

    def record(self) -> dict[str, Any]:
        """As plain data that JSON gives back unchanged."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    @property
    def key(self) -> str:
        return digest(self.record())


def changes(old: Mapping[str, Any], new: Mapping[str, Any], at: str = "") -> list[str]:
    """What differs between two plain records, a line a leaf: ``"method.tau: 0.003, now 0.005"``."""
    lines: list[str] = []
    for name in dict.fromkeys((*old, *new)):
        place, before, now = f"{at}{name}", old.get(name, "absent"), new.get(name, "absent")
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            lines += changes(before, now, f"{place}.")
        elif digest(before) != digest(now):  # 3 and 3.0 are equal, and have different names
            lines.append(f"{place}: {_short(before)}, now {_short(now)}")
    return lines


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:40]}… ({digest(value)[:8]})"
