"""Tables of pandas or polars, whichever the caller uses."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fringe._packages import install_hint
from fringe.errors import InputError, require_choice

FrameLibrary = Literal["pandas", "polars"]
_EXTRAS = {"pandas": "notebook", "polars": "bench"}


def make_frame(rows: Sequence[Mapping[str, Any]], library: FrameLibrary) -> Any:
    """Make a table of rows that have the same names.

    Raises:
        InputError: If the library is unknown or not installed.
    """
    require_choice("library", library, tuple(_EXTRAS))
    try:
        module = importlib.import_module(library)
    except ModuleNotFoundError as error:
        other = "polars" if library == "pandas" else "pandas"
        hint = f"{install_hint(_EXTRAS[library])}, or pass library={other!r}"
        raise InputError(f"{library} is not installed", argument="library", hint=hint) from error
    return module.DataFrame({name: [row[name] for row in rows] for name in (rows[0] if rows else ())})
