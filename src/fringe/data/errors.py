"""The error of this room."""

from fringe.errors import FringeError


class ImageError(FringeError):
    """An image, or the argument that should lead to one, cannot be used; the message says why."""
