"""Checks at the door of a settings record: each names the field, what came, and what is expected."""

import math
from collections.abc import Sequence

from fringe._files import require_local as require_local
from fringe.errors import InputError


def require(condition: bool, name: str, value: object, expected: str) -> None:
    """Raise InputError unless ``condition`` holds of field ``name``."""
    if not condition:
        raise InputError(f"{name}: got {value!r}, expected {expected}")


def is_positive(value: object) -> bool:
    """Whether ``value`` is a finite number above zero."""
    return isinstance(value, (int, float)) and math.isfinite(value) and value > 0


def is_whole(value: object, least: int = 1) -> bool:
    """Whether ``value`` is a whole number (no bool) of at least ``least``."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def require_positive(name: str, value: object) -> None:
    require(is_positive(value), name, value, "a positive number")


def require_not_negative(name: str, value: object) -> None:
    require(value == 0 or is_positive(value), name, value, "a number not below zero")


def require_fraction(name: str, value: object) -> None:
    require(value == 0 or (is_positive(value) and value <= 1), name, value, "a number from 0 to 1")  # pyright: ignore[reportOperatorIssue]


def require_whole(name: str, value: object, least: int = 1) -> None:
    expected = "a positive integer" if least == 1 else f"an integer of at least {least}"
    require(is_whole(value, least), name, value, expected)


def require_choice(name: str, value: object, choices: Sequence[object]) -> None:
    require(value in choices, name, value, f"one of {', '.join(map(str, choices))}")
