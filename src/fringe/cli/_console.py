"""Output for people, progress, errors and exit codes."""

import contextlib
import importlib.util
import logging
import re
import sys
import warnings
from collections.abc import Generator, Iterable, Sequence
from enum import IntEnum
from typing import Any

import typer

from fringe._files.process import Interrupted, check_interrupt, interruptible
from fringe._strings.formats import printable
from fringe._strings.progress import NOTE, log
from fringe._strings.progress import Progress as Progress
from fringe._strings.tables import Table
from fringe.errors import (
    FringeError,
    InputError,
    ModelError,
    TransientError,
    first_line,
    install_hint,
    is_machine_error,
    is_transient,
)


class Exit(IntEnum):
    """Exit codes of ``fringe``."""

    DONE = 0
    NOTHING_DONE = 1
    CHECK_FAILED = 1  # of ``fringe verify``
    USAGE = 2
    SOME_FAILED = 3
    RESUMABLE = 75  # EX_TEMPFAIL of sysexits.h: the same command continues where this one stopped
    INTERRUPTED = 130


#: Flags of the current command by the name of its parameter.
FLAGS: dict[str, str] = {}
#: Parameters of the command line that have another name in the library.
_ALIASES = {"output": "model_output", "path": "out", "space": "references"}
#: Hints that the command line words in another way, by the parameter.
_HINTS = {
    "model_output": "pass --model-output probabilities to explain their logarithms",
    "references": "pass images with --references DIR",
}
#: What is added to the hint of an error, by the parameter.
_MORE = {"model": "see 'fringe models'"}

#: Passes of one map or one score of an image that are not many: a quarter of an hour at a millisecond a pass. The
#: longest of the paper's settings take 2e5.
MAX_MAP_PASSES = 1e6
#: Passes of a run that are not many. All of the paper's tables take about 1e9.
MAX_PASSES = 1e10

#: Packages that some commands need, by the extra that installs them.
_EXTRAS = {
    "app": ("gradio",),
    "bench": ("polars",),
    "ray": ("ray",),
    "graph": ("sklearn",),
    "tune": ("optuna",),
}
_CORE = ("PIL", "matplotlib", "pydantic", "rich", "safetensors", "scipy")


@contextlib.contextmanager
def exit_on_error(*extras: str) -> Generator[None]:
    """Turn an error that names a wrong argument into one line and exit code 2, one of the system, its memory or the
    device into one line, with the file if there is one, and exit code 1; others keep their traceback."""
    try:
        with interruptible(), _usage_errors(extras):
            yield
    except BrokenPipeError:
        raise  # the reader of the output is gone
    except (KeyboardInterrupt, Interrupted) as error:
        warn("interrupted: run the command again")
        raise typer.Exit(Exit.INTERRUPTED) from error
    except OSError as error:
        name = "" if error.filename is None else f"{str(error.filename)!r}: "
        print_error(f"{name}{error.strerror or error}")
        raise typer.Exit(Exit.NOTHING_DONE) from error
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, (typer.Exit, typer.Abort)) or not is_machine_error(error):
            raise
        print_error(first_line(error))
        raise typer.Exit(Exit.NOTHING_DONE) from error


@contextlib.contextmanager
def resumable(*extras: str) -> Generator[None]:
    """As :func:`exit_on_error`, for a command that continues where it stopped: a signal at any time, and system errors
    that may pass, are one line and exit code 75."""
    try:
        with interruptible(), _usage_errors(extras):
            yield
    except Interrupted as error:
        print_error(f"{error}; run the same command again to go on")
        raise typer.Exit(Exit.RESUMABLE) from error
    except (OSError, MemoryError, RuntimeError) as error:
        if isinstance(error, (typer.Exit, typer.Abort)) or not is_transient(error):
            raise
        refused = isinstance(error, PermissionError)
        print_error(f"{type(error).__name__}: {error}" if refused else f"{error}; run the same command again to go on")
        raise typer.Exit(Exit.USAGE if refused else Exit.RESUMABLE) from error


@contextlib.contextmanager
def _usage_errors(extras: Sequence[str]) -> Generator[None]:
    try:
        with _short_warnings():
            for package in (package for extra in extras for package in _EXTRAS[extra]):
                if importlib.util.find_spec(package) is None:  # before anything is computed or written
                    raise ModuleNotFoundError(name=package)
            yield
            check_interrupt()
    except SystemExit as error:  # this package raises none
        if isinstance(error.__context__, BrokenPipeError):
            raise  # rich ends the program where the reader of the output, such as head, is gone
        print_error(f"the code of a model or a method ended the program, by exit({error.code!r}); remove that call")
        raise typer.Exit(Exit.USAGE) from error
    except FringeError as error:
        print_error(error_text(error))
        raise typer.Exit(Exit.RESUMABLE if isinstance(error, TransientError) else Exit.USAGE) from error
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = next((name for name, packages in _EXTRAS.items() if package in packages), None)
        if extra is None and package not in _CORE:
            raise
        hint = install_hint(extra) if extra else f"it belongs to fringe itself: {install_hint()}"
        print_error(f"this command needs {package}, which is not installed; {hint}")
        raise typer.Exit(Exit.USAGE) from error


def error_text(error: FringeError) -> str:
    """The error in terms of the command line: the flag in place of the argument, and flags in its hint."""
    argument, message, hint = error.argument, error.message, error.hint
    if argument is None and isinstance(error, ModelError) and "model" in FLAGS:
        argument = "model"
    if argument is None:  # a text of the form "argument: message"
        prefix, colon, rest = message.partition(": ")
        if colon and _parameter(prefix) is not None:
            argument, message = prefix, rest
            if _parameter(prefix) in _HINTS:  # which say it in place of what the text ends with
                message = rest.rpartition("; ")[0] or rest
    parameter = None if argument is None else _parameter(argument)
    if parameter in _HINTS and parameter != argument:
        hint = _HINTS[parameter]
    if hint is not None:
        hint = "; ".join([typed(hint), *([_MORE[parameter]] if parameter in _MORE else [])])
    name = argument if parameter is None else FLAGS[parameter]
    return (f"{name}: " if name else "") + message + (f"; {hint}" if hint else "")


_VALUE = re.compile(r"\b([a-z_]+)=(?:True\b|'([^']*)'|(\d+))?")


def typed(text: str) -> str:
    """``overwrite=True`` and ``model='torchvision:resnet50'`` in a text as flags, if this command has them."""

    def flag(match: re.Match[str]) -> str:
        parameter, value = _parameter(match[1]), match[2] or match[3]
        return match[0] if parameter is None else " ".join([FLAGS[parameter], *([value] if value else [])])

    return _VALUE.sub(flag, text)


def _parameter(argument: str) -> str | None:
    """The parameter of the current command for an argument of the library, if it has one."""
    name = argument.partition(".")[0]
    plural = None if name == "reference" else f"{name}s"  # a prediction or a blur, where --references are images
    return next((known for known in (name, _ALIASES.get(name), plural) if known in FLAGS), None)


def print_error(message: str) -> None:
    """Print one line about an error."""
    warn(f"error: {' '.join(message.split())}")


def warn(message: str) -> None:
    """Print a line on standard error; control characters are escaped."""
    typer.echo(printable(message), err=True)


def say(message: str) -> None:
    """Print lines on standard output; control characters are escaped."""
    typer.echo(printable(message))


def show(parts: Iterable[str | Table]) -> None:
    """Print tables and lines."""
    for part in parts:
        part.show() if isinstance(part, Table) else say(part)


@contextlib.contextmanager
def _short_warnings() -> Generator[None]:
    """Print warnings as one line each, without the source line that raised them, and what the log says of long work."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        warn(f"warning: {' '.join(str(message).split())}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        handler = logging.Handler(NOTE)
        handler.emit = lambda record: warn(record.getMessage())
        level = log.level
        log.addHandler(handler)
        log.setLevel(min(level or NOTE, NOTE))
        try:
            yield
        finally:
            log.removeHandler(handler)
            log.setLevel(level)


def describe_excess(work: Sequence[tuple[str, float, float]]) -> str | None:
    """Describe the passes of work, as :func:`fringe.evaluation.planned_work` returns it; None unless they are so many
    that they may be a slip in a setting."""
    total = sum(passes * count for _, passes, count in work)
    name, longest, _ = max(work, key=lambda item: item[1], default=("", 0.0, 0.0))
    if longest <= MAX_MAP_PASSES and total <= MAX_PASSES:
        return None
    return f"the settings mean about {total:.2g} forward and backward passes, {longest:.2g} for {name} of one image"


def require_consent(work: Sequence[tuple[str, float, float]], *, yes: bool, quiet: bool) -> None:
    """Ask whether to start absurdly much work: a slip in a setting, or a configuration file of a stranger. With
    ``quiet``, or where nobody can be asked, refuse; with ``yes``, do not ask."""
    text = None if yes else describe_excess(work)
    if text is None:
        return
    if quiet or not sys.stdin.isatty():
        raise InputError(text, argument="yes", hint="lower the settings, or pass --yes to start all the same")
    if not typer.confirm(f"{text}. Start?", err=True):
        raise typer.Exit(Exit.NOTHING_DONE)
