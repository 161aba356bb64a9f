"""Plain records: their digest, and in what two of them differ."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any


def digest(data: Any) -> str:
    """32 hexadecimal digits of the SHA-256 of plain ``data`` in a canonical form: keys sorted, floats exact."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def changes(old: Mapping[str, Any], new: Mapping[str, Any], at: str = "") -> list[str]:
    """Describe the differences between two plain records, one line per leaf: ``"method.tau: 0.003, now 0.005"``."""
    lines: list[str] = []
    for name in dict.fromkeys((*old, *new)):
        path, before, now = f"{at}{name}", old.get(name, "absent"), new.get(name, "absent")
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            lines += changes(before, now, f"{path}.")
        elif digest(before) != digest(now):  # 3 and 3.0 are equal, and have different names
            lines.append(f"{path}: {_short(before)}, now {_short(now)}")
    return lines


#: Differences that a message lists.
LISTED = 4


def describe_changes(lines: Iterable[str], most: int = LISTED) -> str:
    """What :func:`changes` found, in one text: another method first, and ``most`` in all."""
    lines = [line.replace("method.method: ", "method: ") for line in lines]
    lines.sort(key=lambda line: not re.match(r"([^:]*\.)?method: ", line))  # a stable order otherwise
    more = [f"and {len(lines) - most} more"] if len(lines) > most else []
    return "; ".join([*lines[:most], *more])


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:40]}… ({digest(value)[:8]})"
