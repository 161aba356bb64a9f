"""Methods and metrics configured from texts: the fields of a dataclass say which keys there are and how a value
reads."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

from fringe.attribution import Attributor, FRInGe, get_method
from fringe.cli.options import MethodOptions
from fringe.cli.problems import require_extra
from fringe.errors import InputError
from fringe.settings import Settings

Configured = TypeVar("Configured", bound=Settings)


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
    values = dict(_assignment(text) for text in texts)
    try:
        return base.with_text(values)
    except InputError as error:
        raise InputError(f"--set{' ' if error.argument else ': '}{error}") from error


def is_preset_file(text: str) -> bool:
    """Whether a preset is a file, as ``fringe tune`` writes them, and not a name."""
    return text.endswith(".json")


def check_preset(options: MethodOptions, architecture: str) -> None:
    """Raise InputError where the preset is a file that was tuned for another network."""
    if options.preset is not None and is_preset_file(options.preset):
        from fringe.tuning import read_preset

        read_preset(Path(options.preset), architecture)


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
    return FRInGe.preset(options.preset, variant)


def _assignment(text: str) -> tuple[str, str]:
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals:
        raise InputError(f"--set: got {text!r}, expected KEY=VALUE, such as --set tau=1e-3")
    return key, value
