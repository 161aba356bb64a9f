"""The error of this room, and the near matches its messages offer."""

from collections.abc import Iterable
from difflib import get_close_matches

from fringe.errors import FringeError


class ModelError(FringeError):
    """A model cannot be loaded as asked; the message says what came and what to do."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``"; did you mean a or b?"`` from the names closest to ``name``, or an empty string."""
    close = get_close_matches(name, list(known), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(close)}?" if close else ""
