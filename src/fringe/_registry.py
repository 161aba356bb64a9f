"""Registries are explicit imports: what a module imported and made from a base class is what it offers."""

import difflib
import inspect
import re
import unicodedata
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def collect(namespace: Mapping[str, Any], base: type[T]) -> dict[str, type[T]]:
    """``{name: class}`` of the concrete subclasses of ``base`` in ``namespace`` (a module's ``globals()``).

    A class names itself by a class variable ``name``; two classes of one name are a programming error.
    """
    found: dict[str, type[T]] = {}
    for item in namespace.values():
        if inspect.isclass(item) and issubclass(item, base) and not inspect.isabstract(item):
            name = str(vars(item)["name"])
            if found.setdefault(name, item) is not item:
                raise TypeError(f"two {base.__name__} classes are called {name!r}: {found[name]} and {item}")
    return found


def nearest(name: str, registry: Mapping[str, type]) -> str:
    """``"; did you mean 'ig'?"`` for the entry that ``name`` was meant for, or ``"."``.

    Letters and digits count, in either case, of an entry's name and of the title in the first line of its file:
    ``Integrated Gradients``, ``integrated_gradients`` and ``IntegratedGradients`` are all ``ig``.
    """
    spellings = {_letters(_title(kind)): key for key, kind in registry.items()}
    spellings |= {_letters(key): key for key in registry}
    near = difflib.get_close_matches(_letters(name), spellings, n=1, cutoff=0.5)
    return f"; did you mean {spellings[near[0]]!r}?" if near else "."


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", unicodedata.normalize("NFKC", text).lower())


def _title(kind: type) -> str:
    module = inspect.getmodule(kind)
    return ((module and module.__doc__) or "").partition("(")[0].partition(".")[0]
