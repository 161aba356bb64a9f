"""Names that a user may have mistyped."""

import difflib
from collections.abc import Iterable

from fringe.errors import InputError


def require_known(what: str, name: str, known: Iterable[str]) -> None:
    """Raise InputError, with the nearest name, unless ``name`` is one of ``known``."""
    names = list(known)
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise InputError(f"{what}: got {name!r}{hint} Known: {', '.join(names) or 'none'}")
