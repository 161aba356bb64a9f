"""Errors. Each names the argument, what was given, and what to do, for example how to install a missing package."""

import contextlib
import difflib
import importlib.metadata
import importlib.util
import inspect
import json
import math
import reprlib
import sysconfig
import traceback
import warnings
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path


class FringeError(ValueError):
    """Base class of the errors of this library.

    Args:
        message: What is wrong: what came, and what is expected.
        argument: Name of the argument, in terms of the Python interface; the command line shows its flag instead.
        hint: What to do, as a clause without a full stop.
    """

    def __init__(self, message: str = "", *, argument: str | None = None, hint: str | None = None):
        super().__init__(message)
        self.message, self.argument, self.hint = message, argument, hint

    def __str__(self) -> str:
        text = self.message if self.argument is None else f"{self.argument}: {self.message}"
        return text if self.hint is None else f"{text}; {self.hint}"


class ModelOutputError(FringeError):
    """The model's output cannot be read as logits (B, C)."""


class TargetError(FringeError):
    """The target does not name one class per image."""


class InputError(FringeError):
    """The inputs cannot be explained as they are."""


class ModelError(FringeError):
    """A model cannot be loaded as asked."""


class ImageError(FringeError):
    """An image, or the argument that should lead to one, cannot be used."""


class NotDifferentiableError(FringeError):
    """The output does not depend differentiably on the input."""


class TransientError(FringeError):
    """A failure that may pass, such as a full disk or a share that is not mounted.

    Nothing is lost: the same call resumes at the point where it stopped.
    """


def did_you_mean(
    name: str,
    known: Iterable[str],
    text: str = "",
    *,
    shown: Mapping[str, str] | None = None,
    n: int = 1,
    cutoff: float = 0.5,
) -> str | None:
    """Return the hint of an error about an unknown name: ``"did you mean 'a' or 'b'? Known: a, b, c"``.

    Args:
        name: What was typed.
        known: The names that there are.
        text: A clause that lists them, such as ``"known: a, b, c"``; alone if no name is similar.
        shown: What to write in place of a known name.
        n: Most names that are suggested.
        cutoff: Least similarity of a suggested name, from 0 to 1.

    Returns:
        The hint; None if no name is similar and there is no text.
    """
    near = difflib.get_close_matches(name, list(known), n=n, cutoff=cutoff)
    if not near:
        return text or None
    names = " or ".join(repr((shown or {}).get(one, one)) for one in near)
    return f"did you mean {names}? {text[:1].upper()}{text[1:]}".rstrip()


def warn_caller(message: str) -> None:
    """Warn at the line that called this library, and not at one of ours or of PyTorch."""
    inner = ("fringe", "torch", "contextlib")
    frames = enumerate(traceback.walk_stack(inspect.currentframe()), 1)
    outside = (n for n, (frame, _) in frames if frame.f_globals.get("__name__", "").partition(".")[0] not in inner)
    warnings.warn(message, stacklevel=next(outside, 2))


_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 200
_short.maxlist = _short.maxtuple = 20


def wrong_value(argument: str, value: object, expected: str, hint: str | None = None) -> InputError:
    """The error of a value, however long, that an argument does not take."""
    return InputError(f"got {_short.repr(value)}, expected {expected}", argument=argument, hint=hint)


def require(condition: bool, name: str, value: object, expected: str) -> None:
    """Raise InputError for the argument ``name`` unless ``condition`` holds."""
    if not condition:
        raise wrong_value(name, value, expected)


def require_positive(name: str, value: object) -> None:
    """Raise InputError unless ``value`` is a finite number above zero."""
    is_positive = isinstance(value, (int, float)) and math.isfinite(value) and value > 0
    require(is_positive, name, value, "a positive number")


def require_integer(name: str, value: object, least: int = 1) -> None:
    """Raise InputError unless ``value`` is an integer, and no bool, of at least ``least``."""
    expected = "a positive integer" if least == 1 else f"an integer of at least {least}"
    require(type(value) is int and value >= least, name, value, expected)


def require_choice(name: str, value: object, choices: Iterable[object]) -> None:
    """Raise InputError, with the most similar name as its hint, unless ``value`` is one of ``choices``."""
    known = list(choices)
    if value not in known:
        near = did_you_mean(value, map(str, known)) if isinstance(value, str) else None
        raise wrong_value(name, value, f"one of {', '.join(map(str, known))}" if known else "none", near)


def require_order(name: str, values: object) -> None:
    """Raise InputError for a set, whose order is another one in each process."""
    require(not isinstance(values, (set, frozenset)), name, values, "a list: a set has no order")


def is_transient(error: BaseException) -> bool:
    """Tell whether the system, its memory or the device failed: the same call may succeed later.

    What was raised ``from`` such an error counts as well, except for an OSError without an error number: decoders raise
    it on bad data.
    """
    if isinstance(error, (OSError, TransientError)) or is_out_of_memory(error) or is_device_error(error):
        return True
    cause = error.__cause__
    if isinstance(cause, OSError):
        return cause.errno is not None
    return cause is not None and is_transient(cause)


@contextlib.contextmanager
def unfit_inputs(note: str | None = None) -> Generator[None]:
    """Turn an error of PyTorch about sizes, which a model raises at the inputs of a call, into one that names them.

    Args:
        note: What else to tell about these inputs.
    """
    try:
        yield
    except (RuntimeError, ValueError) as error:  # a GRU raises ValueError
        text = first_line(error)
        words = ("size", "shape", "channels", "2D")
        if isinstance(error, FringeError) or is_transient(error) or not any(word in text for word in words):
            raise
        notes = "; ".join(([note] if note else []) + list(getattr(error, "__notes__", ()))) or None
        raise InputError(f"the model cannot take them: {model_error(error)}", argument="inputs", hint=notes) from error


def model_error(error: BaseException) -> str:
    """Return the first line of a model's error about its input, and where it came from; for a model of grey images,
    with what to do."""
    text = first_line(error) + line_of(error)
    grey = "to have 1 channels, but got 3" in text
    return f"{text}; for grey images give channels=1 in the preprocessing" if grey else text


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or the kind of an error without a text."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def line_of(error: BaseException) -> str:
    """Say where in the caller's own files an error came from, as ``", in line 7 of net.py"``: the last line that ran
    and is not installed code; nothing if there is none."""
    installed = (*map(sysconfig.get_path, ("stdlib", "purelib", "platlib")), Path(__file__).parent)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename).resolve()
        if path.is_file() and not any(path.is_relative_to(folder) for folder in installed):
            return f", in line {frame.lineno} of {path.name}"
    return ""


def is_misread(error: BaseException) -> bool:
    """Tell whether a model's output is not what was promised: an option mends that, for all images at once."""
    return isinstance(error, ModelOutputError) and error.argument == "output"


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether memory, of the machine or of a device, ran out."""
    import torch

    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)


def is_machine_error(error: BaseException) -> bool:
    """Tell whether memory ran out or an accelerator failed, which says nothing of a model."""
    return is_out_of_memory(error) or is_device_error(error)


def is_device_error(error: BaseException) -> bool:
    """Tell whether an accelerator failed; every later call of the process to it fails, too."""
    import torch

    if is_out_of_memory(error):
        return False
    return isinstance(error, torch.AcceleratorError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _DEVICE_FAILED)
    )


#: The last one is cuDNN's where no plan of a convolution fits into what is left.
_NO_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "_STATUS_ALLOC_FAILED",
    "unable to find an engine",
)
_DEVICE_FAILED = ("CUDA error:", "CUDA driver error:", "HIP error:", "_EXECUTION_FAILED", "CUDNN_STATUS_INTERNAL_ERROR")


# -- packages ---------------------------------------------------------------------------------------------------------


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
        return f'run pip install -c constraints.txt -e ".{extras}" in the checkout'
    try:  # PEP 610: a folder or file that was installed; a package of the index has no such record
        record = importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        record = None
    origin = f" @ {json.loads(record)['url']}" if record else ""
    return f'run pip install {"" if origin else "-U "}"{DISTRIBUTION}{extras}{origin}"'
