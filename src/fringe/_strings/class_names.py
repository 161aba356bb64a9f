"""The names of a model's classes: from a file, a list or a dictionary."""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from fringe._files.disk import SETTINGS_BYTES, read_regular
from fringe.errors import InputError, TargetError, did_you_mean, require_order

#: A file, or names in their order, or names by class.
ClassNames = str | Path | Sequence[str] | Mapping[Any, Any]

_NUMBER = re.compile(r"\s*(\d+)\s+(n\d{8}\s+)?(?=\S)")


def class_names(names: ClassNames | None) -> tuple[str, ...] | None:
    """Return the names of classes 0, 1, ...; None for None.

    A text or path names a file: ``.json`` with a list or a dictionary, else one name per line, without empty lines at
    the end. Where every line begins with its own number, as in ``284 n02123597 Siamese_cat``, the number and a WordNet
    identifier after it are removed. In a dictionary, a class is a number or its digits, and of several names, as in
    ImageNet's ``{"0": ["n01440764", "tench"]}``, the last counts; a class that is left out has the name "".

    Raises:
        InputError: If a file cannot be read, or names no class; or if they are no names.
    """
    if names is None:
        return None
    if isinstance(names, (str, os.PathLike)):
        return _read(Path(names))
    require_order("classes", names)
    if not isinstance(cast(object, names), Iterable):
        raise InputError(f"got {names!r}, expected a file or the names of classes 0, 1, ...", argument="classes")
    result = _by_number(names) if isinstance(names, Mapping) else tuple(map(str, names))
    if not result:
        raise InputError("got no names", argument="classes")
    return result


def _read(path: Path) -> tuple[str, ...] | None:
    try:
        text = read_regular(path, SETTINGS_BYTES).decode("utf-8-sig")  # Windows begins files with a mark
        parsed: Any = json.loads(text) if path.suffix.lower() == ".json" else None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot read {str(path)!r} as text ({error})", argument="classes") from error
    if isinstance(parsed, (list, dict)):
        return class_names(cast("list[str] | dict[str, Any]", parsed))
    lines = text.rstrip().splitlines()
    if not lines:
        raise InputError(f"{str(path)!r} names no class", argument="classes")
    matches = [_NUMBER.match(line) for line in lines]
    numbered = all(match is not None and int(match[1]) == index for index, match in enumerate(matches))
    return tuple(_NUMBER.sub("", line).strip() if numbered else line.strip() for line in lines)


#: Most classes that a dictionary may number.
_MOST = 1_000_000


def _by_number(names: Mapping[Any, Any]) -> tuple[str, ...]:
    numbers: dict[int, str] = {}
    for key, value in names.items():
        digits = str(key)
        if not (digits.isascii() and digits.isdigit() and int(digits) < _MOST):
            raise InputError(f"got the key {key!r}, expected the number of a class", argument="classes")
        numbers[int(digits)] = str(value[-1] if isinstance(value, (list, tuple)) and value else value)
    return tuple(numbers.get(index, "") for index in range(max(numbers, default=-1) + 1))


def resolve_class_name(text: str, names: Sequence[str] | None, argument: str = "target") -> int:
    """Return the number of the class that a text names.

    The whole name counts first, then without case and separators, then one of several with commas between them, as in
    ``"goldfish, Carassius auratus"``; at last how a name begins, or a word in it, if that fits one class alone. Errors
    name the ``argument`` that the text was given as.

    Raises:
        TargetError: If the text fits no class or several, with those it may mean; or there are no names.
    """
    if not names:
        hint = "give the number of a class, or the names with classes="
        raise TargetError(f"got {text!r}, but the model has no class names", argument=argument, hint=hint)
    short = _plain(text)
    complete = [_plain(name) for name in names]
    parts = [[_plain(part) for part in name.split(",")] for name in names]
    fits = [
        [name == text for name in names],
        [name == short for name in complete],
        [short in some for some in parts],
        [any(part.startswith(short) or f" {short} " in f" {part} " for part in some) for some in parts],
    ]
    fits = fits if short else fits[: bool(text)]  # of separators alone: the whole name, as of the sign "-"
    matches = next(([k for k, fit in enumerate(each) if fit] for each in fits if any(each)), [])
    if len(matches) == 1:
        return matches[0]
    if matches:
        shown = ", ".join(f"{k} ({names[k]})" for k in matches[:_SHOWN]) + (", ..." if len(matches) > _SHOWN else "")
        message = f"got {text!r}, which fits the classes {shown}"
        more = "" if text in names else ", or its whole name"  # several classes have this name
        raise TargetError(message, argument=argument, hint=f"give the number of one{more}")
    near = did_you_mean(text, names, n=3, cutoff=0.6) or "expected the number or name of a class"
    raise TargetError(f"got {text!r}, which is no class of the model", argument=argument, hint=near)


#: Classes that a message lists.
_SHOWN = 5


def _plain(text: str) -> str:
    """A name without case, and with single spaces as its separators."""
    return re.sub(r"[\s_-]+", " ", text).strip().casefold()
