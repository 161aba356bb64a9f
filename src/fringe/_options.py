"""Options as pydantic models whose errors name the field, what came, and what is expected."""

import re
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from fringe.errors import InputError, did_you_mean

#: What a type takes, by the first word of the kind of error that pydantic reports.
_TYPES = {"bool": "true or false", "int": "a whole number", "float": "a number", "tuple": "a list of texts"}


class Options(BaseModel):
    """Base class of options: an unknown name and a wrong value are an InputError that names the field.

    Attributes:
        expected: Accepted values, in words, of fields that take other ones than their type does.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, protected_namespaces=())
    expected: ClassVar[Mapping[str, str]] = {}

    def __init__(self, **values: Any):
        refuse_unknown(values, type(self).model_fields, "field")
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _input_error(error, self.expected) from error


def refuse_unknown(names: Iterable[str], known: Iterable[str], kind: str) -> None:
    """Raise InputError, with the nearest name, for one of ``names`` that is not among the ``known``."""
    known = list(known)
    for name in map(str, names):
        if name not in known:
            raise InputError(f"unknown {kind} {name!r}{nearest_known(name, known)} The {kind}s: {', '.join(known)}")


def nearest_known(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """The end of a sentence about an unknown name: the nearest one that is known, if one is near."""
    near = did_you_mean(name, known, cutoff=cutoff)
    return f"; {near}" if near else "."


def wrong_value(argument: str, value: Any, expected: str) -> InputError:
    """The error of a value that an option does not take."""
    return InputError(f"got {reprlib.repr(value)}, expected {expected}", argument=argument)


def _input_error(error: ValidationError, expected: Mapping[str, str]) -> InputError:
    """The first problem of a validation as an error that names the field, the value and what is expected."""
    first = error.errors()[0]
    original = first.get("ctx", {}).get("error")
    if isinstance(original, InputError):
        return original
    name, value = str(first["loc"][0]), first["input"]
    if first["type"] == "greater_than_equal":
        return wrong_value(name, value, f"at least {first.get('ctx', {})['ge']:g}")
    if first["type"] == "greater_than" and name not in expected:
        least = first.get("ctx", {})["gt"]
        return wrong_value(name, value, f"at least {least + 1}" if isinstance(value, int) else f"more than {least:g}")
    if first["type"] == "literal_error" and name not in expected:
        choices = [choice.strip("'") for choice in re.split(", | or ", str(first.get("ctx", {})["expected"]))]
        return wrong_value(name, value, f"one of {', '.join(choices)}")
    return wrong_value(name, value, expected.get(name, _TYPES.get(first["type"].partition("_")[0], "text")))
