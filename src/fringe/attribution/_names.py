"""The registered methods, and how one is called."""

from collections.abc import Mapping
from typing import Any, cast

from fringe._text import plain

#: The registered methods: name to class, typed in ``_registry``. :mod:`fringe.attribution` fills it.
KINDS: dict[str, Any] = {}


def method_label(record: Mapping[str, Any]) -> str:
    """Return the name of a method from its record; that of a modifier holds the record of the method in it.

    Names are ``"ig"``, ``"captum:grad_cam"``, ``"straight:fringe"`` or ``"smooth(3):ig"``.
    """
    name, inner = str(record.get("method", "unknown")), record.get("of")
    if isinstance(inner, Mapping):
        number = f"({record['sigma']:g})" if "sigma" in record else ""
        return f"{name}{number}:{method_label(cast('Mapping[str, Any]', inner))}"
    return f"{name}:{record['algorithm']}" if "algorithm" in record else name


def preset_label(record: Mapping[str, Any]) -> str:
    """Return the name of a method from its record, with the preset that its settings are: ``"fringe:preview"``.

    The defaults, and settings that no preset has, are named without one.
    """
    label, inner, kind = method_label(record), record.get("of"), KINDS.get(str(record.get("method")))
    if isinstance(inner, Mapping):
        settings = cast("Mapping[str, Any]", inner)
        return label.removesuffix(method_label(settings)) + preset_label(settings)
    if kind is None or ":" in label:
        return label
    given, default = plain(dict(record)), plain(kind().record())
    if default.get("structure") == "auto":  # the record of a result has what was used
        default["structure"] = given.get("structure")
    fits = (name for name in kind.presets if given == {**default, **plain(dict(kind.presets[name]))})
    name = None if given == default else next(fits, None)
    return label if name is None else f"{label}:{name}"
