"""Packages that an extra installs."""

import importlib.util


def is_installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ModuleNotFoundError, ValueError):  # an importer may raise the first; ``__main__`` gives the second
        return False
