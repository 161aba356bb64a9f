"""Methods and metrics configured from texts: the fields of a dataclass say which keys there are and how a value
reads."""

import dataclasses
import difflib
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fringe.attribution import Attributor, FRInGe, get_method, table
from fringe.cli.options import MethodOptions
from fringe.cli.problems import require_extra
from fringe.errors import InputError
from fringe.metrics import Metric

Configured = TypeVar("Configured", bound=Attributor | Metric)

_WORDS = {float: "a number", int: "a whole number", bool: "true or false", NoneType: "none", str: "text"}


def configure(options: MethodOptions) -> Attributor:
    """The method that the options describe. Raises InputError on a name, key or value that cannot be meant."""
    return assign(_base(options), options.settings)


def named_method(text: str) -> Attributor:
    """A method by ``NAME`` or ``NAME:PRESET``."""
    name, colon, preset = text.partition(":")
    method = get_method(name)
    if method.name == "geoig_knn":
        require_extra("graph")
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


def check_preset(options: MethodOptions, architecture: str) -> None:
    """Raise InputError where the preset is a file that was tuned for another network."""
    if options.preset is not None and is_preset_file(options.preset):
        from fringe.tuning import read_preset

        read_preset(Path(options.preset), architecture)


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


def _base(options: MethodOptions) -> Attributor:
    base = named_method(options.method)
    if options.preset is not None and is_preset_file(options.preset):
        from fringe.tuning import read_preset

        base = read_preset(Path(options.preset))[0]
        options = replace(options, preset=None)
    if options.variant is None:
        return base if options.preset is None else type(base).preset(options.preset)
    if not isinstance(base, FRInGe):
        raise InputError(f"--variant belongs to the method fringe, not to {options.method!r}")
    variant = cast(Any, options.variant)
    if options.preset is None:
        return base.variant(variant)
    if (options.preset, variant) in table():
        return FRInGe.preset(options.preset, variant)
    return FRInGe.preset(options.preset).variant(variant)


def _assignment(base: Attributor | Metric, text: str) -> tuple[str, Any]:
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals:
        raise InputError(f"--set: got {text!r}, expected KEY=VALUE, such as --set tau=1e-3")
    known = field_of(type(base))
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise InputError(f"--set: {base.name} has no setting {key!r}{hint} Its settings: {', '.join(known)}")
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
        raise InputError(f"--set {key}: got {text!r}, expected {expected(kind, key)}") from error


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
