"""How a command ends when not all went well."""

import contextlib
import importlib.util
import warnings
from collections.abc import Generator, Mapping
from enum import IntEnum
from typing import Any

import typer

from fringe._process import Interrupted, interruptible
from fringe._text import printable
from fringe.errors import FringeError, InputError, TransientError, is_transient


class Exit(IntEnum):
    """Exit codes of ``fringe``."""

    DONE = 0
    NOTHING_DONE = 1
    USAGE = 2
    SOME_FAILED = 3
    RESUMABLE = 75  # EX_TEMPFAIL of sysexits.h: the same command goes on where this one stopped
    INTERRUPTED = 130


_FLAGS = {
    "allow_partial=True": "--allow-partial",
    "trust_code=True": "--trust-code",
    "amend=True": "--amend",
    "renew=True": "--renew",
    "preprocessing=": "--preprocessing TEXT",
    "references=": "--references FOLDER",
    "fringe.BinaryClassifier(model)": "return that from a FILE.py:FUNCTION given as --model",
    "output='probabilities'": "return their logarithm from a FILE.py:FUNCTION given as --model",
}
"""What the library's messages speak of, and what it is called here."""

_ARGUMENTS = ("out", "workers", "plan")
"""Arguments of the library that are flags here, by the same name."""

MODEL_OUTPUT = {"output='probabilities'": "--model-output probabilities"}
"""The same for the commands that have this option."""

_EXTRAS = {
    "bench": ("filelock", "jinja2", "pebble", "polars", "pyarrow", "yaml"),
    "graph": ("sklearn",),
    "tune": ("optuna",),
}
"""Packages that some commands need, by the extra that brings them."""

_CORE = ("PIL", "matplotlib", "pydantic", "rich", "safetensors", "scipy")


@contextlib.contextmanager
def reported(called: Mapping[str, str] | None = None) -> Generator[None]:
    """Errors that name a wrong argument become one line and exit code 2, errors of the system one line with the file
    and exit code 1; others keep their traceback. ``called`` is added to what messages speak of and is called here."""
    try:
        with _usage_errors(called):
            yield
    except BrokenPipeError:
        raise  # the reader of the output is gone
    except OSError as error:
        name = "" if error.filename is None else f"{str(error.filename)!r}: "
        complain(f"{name}{error.strerror or error}")
        raise typer.Exit(Exit.NOTHING_DONE) from error


@contextlib.contextmanager
def _usage_errors(called: Mapping[str, str] | None = None) -> Generator[None]:
    try:
        with _short_warnings():
            yield
    except FringeError as error:
        complain(_with_flag(error), called)
        raise typer.Exit(Exit.RESUMABLE if isinstance(error, TransientError) else Exit.USAGE) from error
    except ModuleNotFoundError as error:
        complain(_lacking(error))
        raise typer.Exit(Exit.USAGE) from error


def _with_flag(error: FringeError) -> str:
    """The message, with the flag of this command in place of the argument that the error names."""
    return f"--{error}" if error.argument in _ARGUMENTS else str(error)


def require_extra(extra: str) -> None:
    """Raise InputError where a package of the extra is absent, before anything is computed or written."""
    for package in _EXTRAS[extra]:
        if not _is_installed(package):
            raise InputError(f"this command needs {package}, which is not installed; install fringe[{extra}]")


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ModuleNotFoundError, ValueError):
        return False


def _lacking(error: ModuleNotFoundError) -> str:
    """Which package is absent, and what brings it. Raises the error itself where it is none of ours."""
    package = (error.name or "").partition(".")[0]
    extra = next((name for name, packages in _EXTRAS.items() if package in packages), None)
    if extra is None and package not in _CORE:
        raise error
    way = f"install fringe[{extra}]" if extra else "it belongs to fringe itself: install fringe again"
    return f"this command needs {package}, which is not installed; {way}"


@contextlib.contextmanager
def resumable() -> Generator[None]:
    """As :func:`reported`, for a command that goes on where it stopped: a signal at any time, and trouble of the system
    that may pass, are one line and the exit code that says so."""
    try:
        with interruptible(), _usage_errors():
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


def complain(message: str, called: Mapping[str, str] | None = None) -> None:
    """One line about an error, with what each thing that it speaks of is called here."""
    hints = [hint for name, hint in {**_FLAGS, **(called or {})}.items() if name in message]
    here = f" (here: {', '.join(hints)})" if hints else ""
    remark(f"error: {' '.join(message.split())}{here}")


def remark(message: str) -> None:
    """A line on standard error; what a terminal would obey is written as its escape."""
    typer.echo(printable(message), err=True)


def say(message: str) -> None:
    """Lines on standard output; what a terminal would obey is written as its escape."""
    typer.echo(printable(message))


@contextlib.contextmanager
def _short_warnings() -> Generator[None]:
    """Warnings as one line each, without the place in the source that raised them."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        remark(f"warning: {' '.join(str(message).split())}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
