"""Fields of a method that know what they mean and where a search should look."""

import dataclasses
from collections.abc import Sequence
from typing import Any


def tunable(
    default: Any,
    *,
    low: float | None = None,
    high: float | None = None,
    log: bool = False,
    choices: Sequence[Any] | None = None,
    unit: str = "",
    help: str = "",
) -> Any:
    """A dataclass field with a default, a search range (``low``, ``high``, on a ``log`` scale or not) or ``choices``,
    a ``unit`` and a one-line ``help``. A field without range or choices is configured but not searched."""
    about = {"low": low, "high": high, "log": log, "choices": choices, "unit": unit, "help": help}
    return dataclasses.field(default=default, metadata=about)
