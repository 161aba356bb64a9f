"""A tuned setting as a file, with what it was tuned for."""

import contextlib
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypedDict, cast, get_args, get_origin, get_type_hints

import fringe
from fringe._checks import require, require_local
from fringe._files import PRESET_BYTES, read_regular
from fringe._process import process_name
from fringe.attribution import METHODS, Attributor
from fringe.errors import InputError, TransientError, check_known
from fringe.tuning._search import Tuned
from fringe.tuning._space import alternatives

FORMAT = "fringe preset 1"


class About(TypedDict):
    """What a setting was tuned for, the network's ``architecture`` and the digest of its ``weights``; and how: to what
    ``objective``, on which ``images`` (digests), by how many ``trials`` from which ``seed``, by which
    ``version`` of this library."""

    architecture: str
    weights: str
    objective: float
    images: list[str]
    trials: int
    seed: int
    version: str


def about(tuned: Tuned, *, architecture: str, weights: str, images: Sequence[str]) -> About:
    """What is to be known of a search; ``images`` are those that its scores belong to, in their order."""
    scored = next(len(trial.scores["insertion"]) for trial in tuned.trials if not trial.problem)
    require(len(images) == scored, "images", len(images), f"{scored}, one for each score of a trial")
    return {
        "architecture": architecture,
        "weights": weights,
        "objective": tuned.value,
        "images": list(images),
        "trials": len(tuned.trials),
        "seed": tuned.seed,
        "version": fringe.__version__,
    }


def write_preset(path: Path, tuned: Tuned, about: About) -> None:
    """Write the best setting, all its fields, as JSON; a file that is there is replaced whole. Raises InputError for a
    path that is no file of this machine, and TransientError where it cannot be written."""
    require_local("path", path)
    method = tuned.best
    if METHODS.get(method.name) is not type(method):
        raise InputError(f"tuned: {method.name!r} is no registered method, so that a preset of it could not be read")
    settings = {name: value for name, value in method.record().items() if name != "method"}
    document = {"format": FORMAT, "method": method.name, "settings": settings, "about": about}
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    if path.is_dir():
        raise InputError(f"path: {str(path)!r} is a folder, expected a file")
    beside = path.with_name(f"{path.name}.{process_name()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)
    except PermissionError as error:
        raise InputError(f"path: {str(path)!r} cannot be written ({error.strerror})") from error
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise TransientError(f"{str(path)!r} cannot be written ({error.strerror or error})") from error


def read_preset(path: Path, architecture: str | None = None, *, allow_other: bool = False) -> tuple[Attributor, About]:
    """The setting of a file, and what it was tuned for. Settings that the file does not name have their defaults.

    Raises InputError on a file that is no preset, on an unknown method or key, on a value that its field does not take,
    and, unless ``allow_other``, on a preset for another architecture than the one named.
    """
    document = _document(path)
    method = METHODS[document["method"]]
    settings = {key: _value(method, f"{path}: {key}", key, v) for key, v in document["settings"].items()}
    facts = {key: _value(About, f"{path}: about: {key}", key, v) for key, v in document["about"].items()}
    found = cast(About, facts)
    if architecture is not None and architecture != found["architecture"] and not allow_other:
        raise InputError(
            f"preset: {path} was tuned for {found['architecture']!r}, not for {architecture!r}; settings do not carry "
            "over between architectures unless you allow it"
        )
    try:
        return method(**settings), found
    except InputError as error:
        raise InputError(f"preset: {path}: {error}") from error


def _document(path: Path) -> dict[str, Any]:
    """The file's content, with every key known and every part there."""
    try:
        document = json.loads(read_regular(path, PRESET_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"preset: {path} cannot be read: {error}") from error
    if not isinstance(document, dict) or cast(dict[str, Any], document).get("format") != FORMAT:
        raise InputError(f"preset: {path} is no preset: it does not say {FORMAT!r}")
    document = cast(dict[str, Any], document)
    parts = {"format": str, "method": str, "settings": dict, "about": dict}
    _keys(path, "part", document, parts, complete=True)
    for name, kind in parts.items():
        if not isinstance(document[name], kind):
            raise InputError(f"preset: {path}: {name}: got {document[name]!r}, expected {kind.__name__}")
    check_known(f"preset: {path}: method", document["method"], METHODS)
    method = METHODS[document["method"]]
    _keys(path, f"setting of {method.name}", document["settings"], [f.name for f in fields(cast(Any, method))])
    _keys(path, "about", document["about"], About.__annotations__, complete=True)
    return document


def _keys(path: Path, what: str, found: dict[str, Any], known: Iterable[str], *, complete: bool = False) -> None:
    for key in found:
        check_known(f"preset: {path}: {what}", key, known)
    missing = [key for key in known if key not in found] if complete else []
    if missing:
        raise InputError(f"preset: {path}: {what} {missing[0]!r} is missing")


def _value(kind: type, where: str, key: str, value: Any) -> Any:
    """A value of JSON as its field takes it."""
    hint = get_type_hints(kind)[key]
    for option in alternatives(hint):
        try:
            return _as(option, value)
        except (TypeError, OverflowError):
            continue
    raise InputError(f"preset: {where}: got {value!r}, expected {_words(hint)}")


def _as(option: Any, value: Any) -> Any:
    """``value`` as one alternative has it. Raises TypeError if it has no such value."""
    if get_origin(option) is Literal and value in get_args(option) and isinstance(value, str):
        return value
    if get_origin(option) in (tuple, list) and isinstance(value, list):
        return get_origin(option)(_as(get_args(option)[0], item) for item in cast(list[Any], value))
    if option is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if option in (int, bool, str, NoneType) and type(value) is option:
        return value
    raise TypeError


def _words(hint: Any) -> str:
    names = {float: "a finite number", int: "a whole number", bool: "true or false", NoneType: "null", str: "text"}
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    if get_origin(hint) in (tuple, list):
        return f"a list, each item {_words(get_args(hint)[0])}"
    return names.get(hint) or " or ".join(dict.fromkeys(_words(option) for option in get_args(hint)))
