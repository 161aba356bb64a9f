"""Methods by name."""

import difflib

from fringe._errors import InputError
from fringe._registry import collect
from fringe.attribution import catalogue
from fringe.attribution.base import Attributor

METHODS: dict[str, type[Attributor]] = collect(vars(catalogue), Attributor)


def resolve_method(method: str | Attributor) -> Attributor:
    """A configured method, or a registered one by name with its defaults."""
    if isinstance(method, Attributor):
        return method
    if not isinstance(method, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"method: got {method!r}, expected a name or a configured method such as FRInGe()")
    if method not in METHODS:
        near = difflib.get_close_matches(method, METHODS, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise InputError(f"method: got {method!r}{hint} Known methods: {', '.join(METHODS)}")
    return METHODS[method]()
