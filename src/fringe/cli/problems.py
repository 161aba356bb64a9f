"""How a command ends when not all went well."""

import contextlib
import warnings
from collections.abc import Generator
from enum import IntEnum
from typing import Any

import typer

from fringe._errors import FringeError, TransientError, is_transient
from fringe._interrupt import Interrupted, interruptible


class Exit(IntEnum):
    """Exit codes of ``fringe``."""

    DONE = 0
    NOTHING_DONE = 1
    USAGE = 2
    SOME_FAILED = 3
    RESUMABLE = 75  # EX_TEMPFAIL of sysexits.h: the same command goes on where this one stopped
    INTERRUPTED = 130


_FLAGS = {
    "trust_code=True": "--trust-code",
    "preprocessing=": "--preprocessing TEXT",
    "references=": "--references FOLDER",
}
"""Arguments that the library's messages speak of, and what they are called here."""

_EXTRAS = {**dict.fromkeys(("filelock", "jinja2", "pyarrow", "yaml"), "bench"), "optuna": "tune"}
"""Packages that some commands need, and the extra that brings them."""


@contextlib.contextmanager
def reported() -> Generator[None]:
    """Errors that name a wrong argument become one line and exit code 2; others keep their traceback."""
    try:
        with _short_warnings():
            yield
    except FringeError as error:
        complain(str(error))
        raise typer.Exit(Exit.RESUMABLE if isinstance(error, TransientError) else Exit.USAGE) from error
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:
            raise
        complain(f"this command needs {error.name}, which is not installed; install fringe[{_EXTRAS[error.name]}]")
        raise typer.Exit(Exit.USAGE) from error


@contextlib.contextmanager
def resumable() -> Generator[None]:
    """As :func:`reported`, for a command that goes on where it stopped: a signal at any time, and trouble of the system
    that may pass, are one line and the exit code that says so."""
    try:
        with interruptible(), reported():
            yield
    except Interrupted as error:
        complain(f"{error}; run the same command again to go on")
        raise typer.Exit(Exit.RESUMABLE) from error
    except (OSError, MemoryError, RuntimeError) as error:
        if isinstance(error, (typer.Exit, typer.Abort)) or not is_transient(error):
            raise
        refused = isinstance(error, PermissionError)
        complain(f"{type(error).__name__}: {error}" if refused else f"{error}; run the same command again to go on")
        raise typer.Exit(Exit.USAGE if refused else Exit.RESUMABLE) from error


def complain(message: str) -> None:
    """One line about an error, with the flag of each argument that it speaks of."""
    flags = [flag for name, flag in _FLAGS.items() if name in message]
    hint = f" (here: {', '.join(flags)})" if flags else ""
    typer.echo(f"error: {' '.join(message.split())}{hint}", err=True)


def remark(message: str) -> None:
    typer.echo(message, err=True)


@contextlib.contextmanager
def _short_warnings() -> Generator[None]:
    """Warnings as one line each, without the place in the source that raised them."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        remark(f"warning: {' '.join(str(message).split())}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
