"""Methods by name."""

from fringe._registry import collect
from fringe.attribution import catalogue
from fringe.attribution.base import Attributor
from fringe.errors import InputError
from fringe.settings import look_up

METHODS: dict[str, type[Attributor]] = collect(vars(catalogue), Attributor)


def get_method(method: str | Attributor) -> Attributor:
    """A configured method, or a registered one by name with its defaults."""
    if isinstance(method, Attributor):
        return method
    if not isinstance(method, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"got {method!r}, expected a name or a configured method such as FRInGe()", argument="method")
    return look_up(method, METHODS)()
