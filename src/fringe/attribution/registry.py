"""Methods by name."""

from fringe._registry import collect, nearest
from fringe.attribution import catalogue
from fringe.attribution.base import Attributor
from fringe.errors import InputError

METHODS: dict[str, type[Attributor]] = collect(vars(catalogue), Attributor)


def get_method(method: str | Attributor) -> Attributor:
    """A configured method, or a registered one by name with its defaults."""
    if isinstance(method, Attributor):
        return method
    if not isinstance(method, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"method: got {method!r}, expected a name or a configured method such as FRInGe()")
    if method not in METHODS:
        raise InputError(f"method: got {method!r}{nearest(method, METHODS)} Known methods: {', '.join(METHODS)}")
    return METHODS[method]()
