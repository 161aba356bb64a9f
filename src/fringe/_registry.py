"""Registries are explicit imports: what a module imported and made from a base class is what it offers."""

import inspect
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
