"""What the settings of a method or metric must be: named, explained, frozen, and written down as plain data."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Protocol

from fringe.settings import settings_of
from fringe.testing.result import Broken, refuse


class Configured(Protocol):
    """A method or a metric."""

    def record(self) -> dict[str, Any]: ...


def frozen(configured: Configured) -> str:
    """A frozen dataclass: settings do not change, and a variant is ``dataclasses.replace``."""
    refuse(not dataclasses.is_dataclass(configured), f"{type(configured).__name__} is not a dataclass")
    names = _names(configured)
    for name in names:
        try:
            setattr(configured, name, getattr(configured, name))
        except dataclasses.FrozenInstanceError:
            continue
        raise Broken(f"{name} can be set: make it @dataclass(frozen=True)")
    return f"{len(names)} settings"


def explained(configured: Configured) -> str:
    """Each setting says what it means, and all have defaults: listings and command-line settings are made of them."""
    refuse(not (type(configured).__doc__ or "").strip(), "the class has no docstring: its first line is its summary")
    dumb = [name for name, setting in settings_of(type(configured)).items() if not setting.doc.text]
    refuse(bool(dumb), f"no help for {', '.join(dumb)}: annotate the type, Annotated[int, Doc('...')]")
    type(configured)()
    return "each has a default and a line of help"


def recorded(configured: Configured, key: str, name: str) -> str:
    """``record()`` is JSON, names what made it, and the same thing can be made of it again."""
    record = json.loads(json.dumps(configured.record(), allow_nan=False))
    refuse(record.get(key) != name, f"record()[{key!r}] is {record.get(key)!r}, expected {name!r}")
    again = type(configured)(**{field: value for field, value in record.items() if field != key})
    refuse(again != configured, f"made again from its record it is {again}, not {configured}")
    return json.dumps(record)


def constructed(kind: type, presets: Mapping[str, Mapping[str, Any]]) -> str:
    """Each preset names settings that exist, with values that they take."""
    for settings in presets.values():
        kind(**settings)
    return ", ".join(presets) or "none"


def _names(configured: Configured) -> list[str]:
    return [f.name for f in dataclasses.fields(configured)]  # pyright: ignore[reportArgumentType]
