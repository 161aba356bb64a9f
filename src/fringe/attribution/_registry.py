"""The methods by name, and the names under which they are asked for."""

import re
from collections.abc import Mapping
from typing import Any

from fringe.attribution._base import Attributor
from fringe.attribution._views import KINDS
from fringe.errors import InputError, install_hint, is_installed
from fringe.settings import look_up, settings_of

#: The registered methods: name to class. :mod:`fringe.attribution` fills it.
METHODS: dict[str, type[Attributor]] = KINDS

_WITH_NUMBER = re.compile(r"([^(:]*)\(([^):]*)\)(.*)", re.DOTALL)


def get_method(method: str | Attributor | type[Attributor]) -> Attributor:
    """Return a configured method.

    Args:
        method: A configured method, which is returned as it is; the class of one; or a name: of a registered method,
            with a preset after a colon, as in ``"ig:paper"``; of a method of another library, ``"captum:grad_cam"``; or
            of a modifier with the method that it modifies, ``"straight:fringe:preview"`` or ``"smooth(3):ig"``.

    Returns:
        The method, with its default settings unless a preset is named.

    Raises:
        InputError: If there is no such method or preset.
    """
    if isinstance(method, Attributor):
        return method
    if isinstance(method, type) and issubclass(method, Attributor):  # pyright: ignore[reportUnnecessaryIsInstance]
        return method()
    if not isinstance(method, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        hint = "fringe.cards.read_target makes a method of a function" if callable(method) else None
        message = f"got {method!r}, expected a name or a configured method such as FRInGe()"
        raise InputError(message, argument="method", hint=hint)
    split = _WITH_NUMBER.fullmatch(method)
    name, colon, preset = (method if split is None else split[1] + split[3]).partition(":")
    if name.endswith(".py"):
        hint = "for a benchmark see 'How do I score my own method?' in docs/questions.md"
        message = f"got {method!r}, but only fringe compare and fringe verify read a function of a file"
        raise InputError(message, argument="method", hint=hint)
    kind = look_up(name, METHODS)
    if split is not None and kind.number is None:
        raise InputError(f"got {method!r}, but {kind.name} takes no number in brackets", argument="method")
    try:
        result = kind.preset(preset) if colon else kind()
        return result if split is None or kind.number is None else result.with_text({kind.number: split[2]})
    except InputError as error:  # the preset and the number are parts of this name
        text = error.message if error.argument in ("method", "preset") else f"{error.argument}: {error.message}"
        raise InputError(text, argument="method", hint=error.hint) from error


def split_name(text: str) -> tuple[str, str, str]:
    """Split the name of a method, as for :func:`get_method`, into modifiers, the method in them, and its preset.

    Each may be empty, and modifiers keep their colons: ``("smooth(3):", "fringe", "preview")``. Raises InputError if a
    method has another name.
    """
    modifiers, rest = "", text
    while ":" in rest:
        head, _, tail = rest.partition(":")
        if "of" not in settings_of(look_up(head.partition("(")[0], METHODS)):
            return modifiers, head, tail
        modifiers, rest = f"{modifiers}{head}:", tail
    return modifiers, rest, ""


def require_package(method: Attributor) -> None:
    """Raise InputError if a method cannot explain any image, or the package that it needs is not installed."""
    method.check_usable()
    package = method.package
    if package is not None and not is_installed(package):
        message, hint = f"{method.label} needs {package}, which is not installed", install_hint(package)
        raise InputError(message, argument="method", hint=hint)


def method_of_record(record: Mapping[str, Any]) -> Attributor:
    """Make a method from the record of any registered one, possibly read from JSON.

    Raises InputError if no method has this name, or it does not take a setting.
    """
    name = record.get(Attributor.record_key)
    if name not in METHODS:
        raise InputError(f"got {name!r}, which is no registered method", argument="method")
    return METHODS[name].from_record(record)
