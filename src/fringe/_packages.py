"""Packages that an extra installs, and what installs them."""

import importlib.metadata
import importlib.util
import json
from pathlib import Path

#: The name of this library for ``pip``. In the public index, ``fringe`` is another project.
DISTRIBUTION = "fringe-xai"
_CHECKOUT = Path(__file__).parents[2]


def is_installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ModuleNotFoundError, ValueError):  # an importer may raise the first; ``__main__`` gives the second
        return False


def install_hint(extra: str = "") -> str:
    """Say how to install this library again, with an extra: in its checkout, or from where it was installed."""
    extras = f"[{extra}]" if extra else ""
    if (_CHECKOUT / "pyproject.toml").is_file():
        return f'run pip install -e ".{extras}" in the checkout'
    try:  # PEP 610: a folder or file that was installed; a package of the index has no such record
        record = importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        record = None
    origin = f" @ {json.loads(record)['url']}" if record else ""
    return f'run pip install {"" if origin else "-U "}"{DISTRIBUTION}{extras}{origin}"'
