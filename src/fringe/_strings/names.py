"""What people type for a method, a metric, a scene, a model and a setting: one grammar, read and printed here.

===========================  =============================================  =====================
``NAME``, ``NAME:PRESET``    a method, a metric or a scene                  :class:`Reference`
``MODIFIER(NUMBER):METHOD``  a method made of another one                   :class:`Reference`
``LABEL=NAME``               any of these, or a model, under another name   :func:`split_label`
``KEY=VALUE``                a setting                                      :func:`read_pair`
``LABEL.KEY=VALUE``          a setting of what has this label               :func:`split_path`
``A,B,C``                    several names                                  :func:`read_list`
``SOURCE:NAME``              a name in a module or in a Python file         :func:`split_source`
===========================  =============================================  =====================
"""

import functools
import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from fringe.errors import InputError, did_you_mean, wrong_value

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

#: A label that may be a part of a file's name. A model's spec with an equals sign has a colon or a slash before it.
LABEL = r"[\w.-]+"
_NUMBERED = re.compile(r"([^(]*)\(([^)]*)\)", re.DOTALL)


@dataclass(frozen=True)
class Reference:
    """What ``NAME``, ``NAME(NUMBER)``, ``NAME:REST`` or ``NAME(NUMBER):REST`` stands for; ``str`` prints it.

    Attributes:
        name: What a registry is asked for.
        number: Text in brackets after the name; None without brackets.
        rest: Text after the first colon: a preset, the name in another library, or the reference to what a modifier
            modifies; None without a colon.
    """

    name: str
    number: str | None = None
    rest: str | None = None

    @classmethod
    def parse(cls, text: str) -> "Reference":
        """Read a reference: any text, which its parts are again when they are printed."""
        head, colon, rest = text.partition(":")
        numbered = _NUMBERED.fullmatch(head)
        name, number = (head, None) if numbered is None else numbered.groups()
        return cls(name, number, rest if colon else None)

    @property
    def head(self) -> str:
        """What stands before the first colon: the name of what takes no number."""
        return self.name if self.number is None else f"{self.name}({self.number})"

    def __str__(self) -> str:
        return self.head if self.rest is None else f"{self.head}:{self.rest}"


def split_label(text: str, label: str = LABEL) -> tuple[str, str]:
    """Return label and name of ``LABEL=NAME``; no label that fits the regular expression is an empty one."""
    match = re.fullmatch(rf"\s*(?=\S)({label})=(.+)", text, re.DOTALL)
    return (match[1].strip(), match[2].strip()) if match else ("", text.strip())


def split_path(text: str) -> tuple[str, str]:
    """Return label and key of ``LABEL.KEY``; the label, which may have dots, is empty if there is none."""
    label, _, key = text.rpartition(".")
    return label.strip(), key.strip()


def split_source(text: str) -> tuple[str, str]:
    """Return source and name of ``SOURCE:NAME``; the source may have colons, as ``C:\\net.py`` has."""
    source, _, name = text.rpartition(":")
    return source, name


def read_pair(text: str, argument: str, expected: str, *, alone: bool = False) -> tuple[str, str]:
    """Return key and value of ``KEY=VALUE``, without spaces around them.

    Args:
        text: What was typed.
        argument: Name of the argument in errors.
        expected: What it takes, in words: ``"KEY=VALUE, such as tau=1e-3"``.
        alone: Whether a key may stand alone; its value is then empty.

    Raises:
        InputError: If there is no equals sign, or no key before it.
    """
    key, equals, value = (part.strip() for part in text.partition("="))
    if not key or not (equals or alone):
        raise wrong_value(argument, text, expected)
    return key, value


def read_list(text: str | None) -> list[str]:
    """Return the names in a text with commas between them."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def unique(pairs: Iterable[tuple[str, T]], argument: str, hint: str | None = None) -> dict[str, T]:
    """Return pairs as a mapping. Raises InputError, with this hint, for keys that are given twice."""
    pairs = list(pairs)
    counts = Counter(key for key, _ in pairs)
    twice = sorted(key for key, count in counts.items() if count > 1)
    if twice:
        raise InputError(f"{', '.join(twice)} given twice", argument=argument, hint=hint)
    return dict(pairs)


_SETTING = "settings are given to the method, as in method=IntegratedGradients(steps=50)"
#: What arguments of Captum are called here, where a similar name would not tell.
_CAPTUM = {
    **dict.fromkeys(("n_steps", "steps", "n_samples", "samples"), _SETTING),
    "internal_batch_size": "did you mean 'batch_size'?",
    "additional_forward_args": "did you mean 'forward_args'?",
    "return_convergence_delta": "the result has it as completeness_gap",
    "tokenizer": "texts go to fringe.explain",
}


def hint_unknown(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function: the TypeError for an argument that it does not have says what to write instead."""
    known = inspect.signature(function).parameters.keys()

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if unknown := [name for name in kwargs if name not in known]:
            raise unknown_argument(function.__qualname__, unknown[0], known)
        return function(*args, **kwargs)

    return call


def unknown_argument(function: str, name: str, known: Iterable[str]) -> TypeError:
    """Return the error for an argument that a function does not have: it says what to write instead."""
    hint = _CAPTUM.get(name) or did_you_mean(name, known) or _SETTING
    return TypeError(f"{function}() has no argument {name!r}; {hint}")


#: The registered methods: name to class. ``METHODS`` of ``fringe.attribution`` is this dictionary.
KINDS: dict[str, Any] = {}


def method_title(label: str) -> str:
    """Return a method's title in a figure, ``FRInGe (fast)`` for ``fringe:fast`` and ``Straight line: FRInGe``
    for ``straight:fringe``; labels without a registered method as they are."""
    named = Reference.parse(label)
    kind = KINDS.get(named.name)
    if kind is None or not kind.title:
        return label
    if named.rest and "of" in kind.__dataclass_fields__:
        number = f" ({named.number}{' px' * (named.name == 'smooth')})" if named.number else ""
        return f"{kind.title}{number}: {method_title(named.rest)}"
    return kind.titles.get(named.rest) or (f"{kind.title} ({named.rest})" if named.rest else kind.title)
