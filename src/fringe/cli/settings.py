"""A method configured from texts: its dataclass's fields say which keys there are and how a value reads."""

import dataclasses
import difflib
import json
from types import NoneType
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fringe._errors import InputError
from fringe.attribution import Attributor, FRInGe, resolve_method
from fringe.attribution.presets import table
from fringe.cli.options import MethodOptions

_WORDS = {float: "a number", int: "a whole number", bool: "true or false", NoneType: "none", str: "text"}


def configure(options: MethodOptions) -> Attributor:
    """The method that the options describe. Raises InputError on a name, key or value that cannot be meant."""
    base = _base(options)
    changes = dict(_assignment(type(base), text) for text in options.settings)
    return dataclasses.replace(cast(Any, base), **changes)


def field_of(method: type[Attributor]) -> dict[str, "dataclasses.Field[Any]"]:
    """The fields of a method's dataclass by name."""
    return {field.name: field for field in dataclasses.fields(cast(Any, method))}


def expected(method: type[Attributor], name: str) -> str:
    """In words, what a field takes."""
    about = field_of(method)[name].metadata
    words = _describe(get_type_hints(method)[name])
    if about.get("low") is not None and about.get("high") is not None:
        words += (
            f" (usually {about['low']:g} to {about['high']:g}{' ' if about.get('unit') else ''}{about.get('unit')})"
        )
    return words


def _base(options: MethodOptions) -> Attributor:
    base = resolve_method(options.method)
    if options.preset is None and options.variant is None:
        return base
    if not isinstance(base, FRInGe):
        raise InputError(f"--preset and --variant belong to the method fringe, not to {options.method!r}")
    variant = cast(Any, options.variant or "fringe")
    if options.preset is None:
        return base.variant(variant)
    if (options.preset, variant) in table():
        return FRInGe.preset(options.preset, variant)
    return FRInGe.preset(options.preset).variant(variant)


def _assignment(method: type[Attributor], text: str) -> tuple[str, Any]:
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals:
        raise InputError(f"--set: got {text!r}, expected KEY=VALUE, such as --set tau=1e-3")
    known = field_of(method)
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise InputError(f"--set: {method.name} has no setting {key!r}{hint} Its settings: {', '.join(known)}")
    return key, _value(method, key, value)


def _value(method: type[Attributor], key: str, text: str) -> Any:
    hint = get_type_hints(method)[key]
    options = get_args(hint) if get_origin(hint) is not Literal else ()
    if NoneType in options and text.lower() == "none":
        return None
    try:
        value = _split(text) if any(get_origin(kind) is tuple for kind in (hint, *options)) else text
        return TypeAdapter[Any](hint, config=ConfigDict(allow_inf_nan=False)).validate_python(value)
    except (ValidationError, json.JSONDecodeError) as error:
        raise InputError(f"--set {key}: got {text!r}, expected {expected(method, key)}") from error


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
