"""Tuned settings of a method as a file, with metadata of the search."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypedDict, cast, get_type_hints

from fringe._files.disk import PRESET_BYTES, read_regular, require_local, write_atomic
from fringe.attribution._base import METHODS, Attributor
from fringe.errors import InputError, TransientError, require_choice
from fringe.settings import NotNegativeInt, PositiveInt, Setting, settings_of

#: First entry of every preset file: name and version of the format.
PRESET_FORMAT = "fringe preset 1"


class PresetMetadata(TypedDict):
    """The network, the digests of its weights and of the images of a search, and how it was run."""

    architecture: str
    weights: str
    objective: float
    images: list[str]
    trials: PositiveInt
    seed: NotNegativeInt
    version: str


class _Preset(TypedDict):
    format: str
    method: str
    settings: dict[str, Any]
    about: dict[str, Any]


def check_preset(path: Path, method: Attributor, weights: str, seed: int) -> None:
    """Check, before a search for settings of a method on a network of these ``weights``, that its preset can be written
    to ``path``. Raises InputError if the method is not registered, or the file is of another method, other weights or
    another seed."""
    _require_registered(method)
    if path.exists():
        stored, metadata = read_preset(path)
        if type(stored) is not type(method) or (metadata["weights"], metadata["seed"]) != (weights, seed):
            other = f"of {stored.label} with seed {metadata['seed']}"
            message, hint = f"{path} holds the result of another search, {other}", "name another folder"
            raise InputError(message, argument="out", hint=hint)


def _require_registered(method: Attributor) -> None:
    if METHODS.get(method.name) is not type(method):
        raise InputError(f"method: {method.name!r} is no registered method, so that a preset of it could not be read")


def write_preset(path: str | os.PathLike[str], method: Attributor, metadata: PresetMetadata) -> None:
    """Write all settings of a method as JSON; an existing file is replaced in one step.

    Raises InputError if the method is not registered or the path cannot be a file of this machine, and TransientError
    if the file cannot be written for another reason, such as a full disk.
    """
    require_local("path", path)
    path = Path(path)
    _require_registered(method)
    document = {"format": PRESET_FORMAT, "method": method.name, "settings": _settings(method), "about": metadata}
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    if path.is_dir():
        raise InputError(f"{str(path)!r} is a folder, expected a file", argument="path")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text.encode())
    except PermissionError as error:
        raise InputError(f"{str(path)!r} cannot be written ({error.strerror})", argument="path") from error
    except OSError as error:
        raise TransientError(f"{str(path)!r} cannot be written ({error.strerror or error})") from error


def read_preset(path: str | os.PathLike[str], architecture: str | None = None) -> tuple[Attributor, PresetMetadata]:
    """Read a tuned method and its metadata.

    Raises InputError if the file is not a preset of this format, if a method, key or value is invalid, if a setting is
    missing (its default may be another one today), and if the preset is for another architecture than ``architecture``.
    """
    path = Path(path)
    document = _document(path)
    metadata = cast(PresetMetadata, document["about"])
    if architecture is not None and architecture != metadata["architecture"]:
        raise InputError(
            f"{path} was tuned for {metadata['architecture']!r}, not for {architecture!r}",
            argument="preset",
            hint="settings do not carry over between architectures",
        )
    settings = document["settings"]
    try:
        method = METHODS[document["method"]].from_record(settings)
    except InputError as error:
        raise InputError(f"{path}: {error}", argument="preset") from error
    _check_keys(path, f"setting of {method.name}", settings, _settings(method), complete=True)
    return method, metadata


def _settings(method: Attributor) -> dict[str, Any]:
    names = settings_of(type(method))  # a record may say more, such as "complete"
    return {name: value for name, value in method.record().items() if name in names}


def _document(path: Path) -> dict[str, Any]:
    """Read the file's content; check that keys are complete and known, but not yet the values of settings."""
    try:
        document: Any = json.loads(read_regular(path, PRESET_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {error}", argument="preset") from error
    if not isinstance(document, dict) or cast(dict[str, Any], document).get("format") != PRESET_FORMAT:
        raise InputError(f"{path} is no preset: it does not say {PRESET_FORMAT!r}", argument="preset")
    document = cast(dict[str, Any], document)
    _check_entries(path, "part", document, _Preset)
    require_choice(f"preset: {path}: method", document["method"], METHODS)
    method = METHODS[document["method"]]
    _check_keys(path, f"setting of {method.name}", document["settings"], settings_of(method))
    _check_entries(path, "about", document["about"], PresetMetadata)
    return document


def _check_entries(path: Path, what: str, entries: Mapping[str, Any], kind: type) -> None:
    """Check that a table has the keys of a typed dictionary, and no others, with values of their types."""
    hints = get_type_hints(kind, include_extras=True)
    _check_keys(path, what, entries, hints, complete=True)
    for name, hint in hints.items():
        try:
            Setting(name, None, hint).check(entries[name])
        except InputError as error:
            raise InputError(f"{path}: {what}: {error}", argument="preset") from error


def _check_keys(path: Path, what: str, keys: Iterable[str], known: Iterable[str], *, complete: bool = False) -> None:
    for key in keys:
        require_choice(f"preset: {path}: {what}", key, known)
    missing = [key for key in known if key not in keys] if complete else []
    if missing:
        raise InputError(f"{path}: {what} {missing[0]!r} is missing", argument="preset")
