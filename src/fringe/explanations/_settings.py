"""Methods and metrics configured from texts: the fields of a dataclass say which keys there are and how a value
reads."""

import dataclasses
import difflib
import importlib
import json
from collections.abc import Iterable
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fringe.attribution import Attributor, FRInGe, get_method, table
from fringe.errors import InputError
from fringe.explanations._spec import ExplainSpec
from fringe.metrics import Metric

Configured = TypeVar("Configured", bound=Attributor | Metric)

_WORDS = {float: "a number", int: "a whole number", bool: "true or false", NoneType: "none", str: "text"}


def configured_method(spec: ExplainSpec, architecture: str | None = None) -> Attributor:
    """The method of a spec; a tuned preset file must be of the ``architecture``, if given.

    Raises:
        InputError: For an unknown name or key, or a value out of range.
    """
    return assign(_base(spec, architecture), spec.set)


def named_method(text: str) -> Attributor:
    """A method by ``NAME`` or ``NAME:PRESET``."""
    name, colon, preset = text.partition(":")
    method = get_method(name)
    if method.name == "geoig_knn":
        importlib.import_module("sklearn")  # a missing package is reported before anything is computed
    return type(method).preset(preset) if colon else method


def assign(base: Configured, texts: Iterable[str]) -> Configured:
    """``base`` with the settings ``KEY=VALUE`` replaced. Raises InputError on a key or value that cannot be meant."""
    changes = dict(_assignment(base, text) for text in texts)
    return dataclasses.replace(cast(Any, base), **changes)


def read_value(base: Attributor | Metric, key: str, text: str) -> Any:
    """The value that ``text`` is for a setting of ``base``. Raises InputError on what cannot be meant."""
    return _assignment(base, f"{key}={text}")[1]


def is_preset_file(text: str) -> bool:
    """Whether a preset is a file, as ``fringe tune`` writes them, and not a name."""
    return text.endswith(".json")


def field_of(kind: type) -> dict[str, "dataclasses.Field[Any]"]:
    """The fields of a method's or metric's dataclass by name."""
    return {field.name: field for field in dataclasses.fields(kind)}


def expected(kind: type, name: str) -> str:
    """In words, what a field takes."""
    about = field_of(kind)[name].metadata
    words = _describe(get_type_hints(kind)[name])
    if about.get("low") is not None and about.get("high") is not None:
        words += (
            f" (usually {about['low']:g} to {about['high']:g}{' ' if about.get('unit') else ''}{about.get('unit')})"
        )
    return words


def described(kind: type) -> list[dict[str, Any]]:
    """Each field as plain data: default, what it takes, the range of a search, unit and help."""
    keys = ("low", "high", "log", "choices", "unit", "help")
    return [
        {"name": name, "default": field.default, "expected": expected(kind, name)}
        | {key: field.metadata.get(key) for key in keys}
        for name, field in field_of(kind).items()
    ]


def _base(spec: ExplainSpec, architecture: str | None) -> Attributor:
    base, preset = named_method(spec.method), spec.preset
    if preset is not None and is_preset_file(preset):
        from fringe.tuning import read_preset

        base, preset = read_preset(Path(preset), architecture)[0], None
    if spec.variant is None:
        return base if preset is None else type(base).preset(preset)
    if not isinstance(base, FRInGe):
        raise InputError(f"belongs to the method fringe, not to {spec.method!r}", argument="variant")
    variant = cast(Any, spec.variant)
    if preset is None:
        return base.variant(variant)
    if (preset, variant) in table():
        return FRInGe.preset(preset, variant)
    return FRInGe.preset(preset).variant(variant)


def _assignment(base: Attributor | Metric, text: str) -> tuple[str, Any]:
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals:
        raise InputError(f"got {text!r}, expected KEY=VALUE, such as tau=1e-3", argument="set")
    known = field_of(type(base))
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise InputError(f"{base.name} has no setting {key!r}{hint} Its settings: {', '.join(known)}", argument="set")
    return key, _value(type(base), key, value)


def _value(kind: type, key: str, text: str) -> Any:
    hint = get_type_hints(kind)[key]
    options = get_args(hint) if get_origin(hint) is not Literal else ()
    if NoneType in options and text.lower() == "none":
        return None
    try:
        value = _split(text) if any(get_origin(option) is tuple for option in (hint, *options)) else text
        return TypeAdapter[Any](hint, config=ConfigDict(allow_inf_nan=False)).validate_python(value)
    except (ValidationError, json.JSONDecodeError) as error:
        raise InputError(f"{key}: got {text!r}, expected {expected(kind, key)}", argument="set") from error


def _split(text: str) -> Any:
    """``[[0.5, 0.5], [1, 0]]`` as JSON, or numbers with commas between them."""
    return json.loads(text) if text.startswith("[") else text.split(",")


def _describe(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return f"one of {', '.join(str(choice) for choice in get_args(hint))}"
    if get_origin(hint) is tuple:
        inner = get_args(hint)[0]
        return "lists of numbers" if get_origin(inner) is tuple else "numbers with commas between them"
    if hint in _WORDS:
        return _WORDS[hint]
    return " or ".join(dict.fromkeys(_describe(part) for part in get_args(hint)))
