"""A configuration file, TOML or YAML: a plan's options under the names that they are typed by."""

import difflib
import json
import re
import reprlib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from fringe._files import SETTINGS_BYTES, read_regular
from fringe.cli.plan_options import LABEL, PlanOptions, split_names
from fringe.errors import InputError


class _File(BaseModel):
    """The keys of a configuration file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | list[str] | dict[str, str] | None = None
    data: str | list[str] | None = None
    methods: str | list[str] | None = None
    metrics: str | list[str] | None = None
    set: dict[str, Any] | None = None
    limits: dict[str, int] | None = None
    n: int | None = None
    seed: int | None = None
    target: str | int | None = None
    score: str | None = None
    exif: str | None = None
    references: str | None = None
    controls: bool | None = None
    preprocessing: str | None = None
    preset: str | None = None


def read_plan_file(path: Path) -> PlanOptions:
    """The options of a TOML or YAML file. Raises InputError on a file, key or value that cannot be meant."""
    content = _load(path)
    unknown = [str(key) for key in content if key not in _File.model_fields]
    if "trust_code" in unknown:
        raise InputError(f"--config {path}: a file cannot trust code; that is for a person to type: --trust-code")
    if unknown:
        near = difflib.get_close_matches(unknown[0], _File.model_fields, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise InputError(f"--config {path}: unknown key {unknown[0]!r}{hint} The keys: {', '.join(_File.model_fields)}")
    try:
        file = _File.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        got = reprlib.repr(first["input"])
        raise InputError(f"--config {path}: {key}: got {got}, expected {_expected(key)}") from error
    return PlanOptions(
        models=_labelled(file.model),
        data=_listed(file.data),
        methods=_split(file.methods),
        metrics=_split(file.metrics),
        settings=None if file.set is None else tuple(_settings(file.set)),
        limits=None if file.limits is None else tuple(f"{name}={n}" for name, n in file.limits.items()),
        target=None if file.target is None else str(file.target),
        **{
            name: getattr(file, name)
            for name in ("n", "seed", "score", "exif", "references", "controls", "preprocessing", "preset")
        },
    )


_EXPECTED = {
    "model": "a spec, a list of specs, or a table of specs by label",
    "set": "a table of settings, such as 'ig.steps' = 20",
    "limits": "a table of whole numbers by metric",
    **dict.fromkeys(("data", "methods", "metrics"), "text or a list of texts"),
    **dict.fromkeys(("n", "seed"), "a whole number"),
    "target": "text or a whole number",
    "controls": "true or false",
}


def _expected(key: str) -> str:
    return _EXPECTED.get(key, "text")


_DEEPEST = 100
"""Levels of a YAML file that are read; a plan has three."""


def _load(path: Path) -> dict[str, Any]:
    try:
        text = read_regular(path, SETTINGS_BYTES).decode()
        content = _yaml(text) if path.suffix.lower() in (".yaml", ".yml") else tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--config: cannot read {str(path)!r} ({error})") from error
    except RecursionError:
        raise InputError(f"--config: {str(path)!r} nests its values too deeply to be read") from None
    except ValueError as error:
        raise InputError(f"--config: {str(path)!r} is no valid TOML or YAML ({error})") from error
    if content is None:  # a YAML file without a key
        return {}
    if not isinstance(content, dict):
        raise InputError(f"--config: {str(path)!r} holds {type(content).__name__}, expected keys with values")
    return content


def _yaml(text: str) -> Any:
    """The content of a YAML file without aliases: a few hundred bytes of them stand for more values than memory
    holds."""
    import yaml

    try:
        depth = 0
        for event in yaml.parse(text, yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:  # the time to parse grows with the square of the depth
                raise RecursionError
            if isinstance(event, yaml.AliasEvent):
                raise ValueError(f"line {event.start_mark.line + 1}: write the value out; aliases (*) are not read")
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _labelled(value: str | list[str] | Mapping[str, str] | None) -> tuple[str, ...] | None:
    if isinstance(value, Mapping):
        wrong = next((label for label in value if not re.fullmatch(LABEL, label)), None)
        if wrong is not None:
            raise InputError(f"--config: model: the label {wrong!r} holds more than letters, digits, '_', '-' and '.'")
        return tuple(f"{label}={spec}" for label, spec in value.items())
    return _listed(value)


def _listed(value: str | list[str] | None) -> tuple[str, ...] | None:
    return None if value is None else (value,) if isinstance(value, str) else tuple(value)


def _split(value: str | list[str] | None) -> tuple[str, ...] | None:
    return split_names(value) if isinstance(value, str) else _listed(value)


def _settings(table: Mapping[str, Any], at: str = "") -> list[str]:
    """``{"ig.steps": 20}`` and ``{"ig": {"steps": 20}}`` alike as ``ig.steps=20``."""
    lines: list[str] = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += _settings(value, f"{at}{key}.")
        else:
            lines.append(f"{at}{key}={_text(value)}")
    return lines


def _text(value: Any) -> str:
    """A file's value as one would type it."""
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, default=str)
