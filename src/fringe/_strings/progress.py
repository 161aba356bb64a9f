"""Progress bars, in terminals and notebooks, and the log of the library."""

import contextlib
import logging
import shutil
import sys
import threading
import warnings
from collections.abc import Callable, Generator
from typing import Any

from fringe._strings.formats import printable

#: Called with the steps done and planned, and perhaps with what is in work.
Report = Callable[..., None]

#: Seconds between two drawings, and between two lines where standard error is no terminal, such as the log of a job.
REFRESH, LOG_EVERY = 0.1, 30.0

#: Messages of the library: what it does by itself, such as halving a batch. ``logging`` shows them; nothing is printed.
log = logging.getLogger("fringe")
log.addHandler(logging.NullHandler())


@contextlib.contextmanager
def shown(progress: bool | Report | None, description: str) -> Generator[Report | None]:
    """Yield what takes the steps done and planned: a progress bar for True, nothing for False or None, or the caller's
    own function."""
    if not isinstance(progress, bool):
        yield progress
    elif not progress:
        yield None
    else:
        with _bar(description) as bar:

            def report(done: float, total: float | None, what: str = description) -> None:
                bar.total = total  # a method of several stages may begin again, or know its last step only at the end
                bar.set_description_str(printable(what), refresh=False)
                bar.update(int(done) - bar.n)

            yield report


class Progress:
    """A progress bar of the results of a run in a terminal, and elsewhere a line now and then.

    Args:
        name: Words beside the bar.
        total: Number of results; None if it is not known yet.
        quiet: Show nothing.
        leave: Show it at once, and leave it there at the end.
    """

    def __init__(self, name: str, total: int | None, *, quiet: bool, leave: bool = False):
        delay = 0.0 if leave or _is_live() else LOG_EVERY
        self._bar = _bar(name, total=total, disable=quiet, leave=leave, delay=delay)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def begin(self, total: int) -> None:
        """Set the number of results."""
        self._bar.total = total

    def advance(self, results: int = 1, what: str = "") -> None:
        """Count finished results; ``what`` describes those in work."""
        self._bar.set_postfix_str(printable(what), refresh=False)
        self._bar.update(results)

    def step(self, done: float, total: int, what: str = "steps") -> None:
        """Show the steps of the results in work."""
        self._bar.set_postfix_str(f"{printable(what)}: {done:.0f} of {total}", refresh=False)
        self._bar.update(0)


class _Stream:
    """Standard error for a bar: where nothing overwrites a line, each drawing is a line of its own, and a stream that
    is closed, full or absent does not end the work."""

    def __init__(self) -> None:
        self.live = _is_live()

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)

    def write(self, text: str) -> None:
        lines = text if self.live else f"{text.strip()}\n" if text.strip() else ""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(lines)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.flush()


def _bar(description: str, **options: Any) -> Any:
    """Return a bar of tqdm on standard error; ``options`` are its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without ipywidgets a notebook shows a bar of letters
        from tqdm.auto import tqdm

    class Bar(tqdm):
        monitor_interval = 0  # no thread that lives on

    Bar.set_lock(threading.RLock())  # tqdm's own makes a semaphore for processes
    every = REFRESH if _is_live() else LOG_EVERY
    width = shutil.get_terminal_size().columns if _is_terminal() else None
    return Bar(desc=printable(description), file=_Stream(), mininterval=every, miniters=0, ncols=width, **options)


def _is_live() -> bool:
    """Return whether standard error is a terminal, or the output of a cell of a notebook."""
    return _is_terminal() or type(sys.stderr).__module__.startswith("ipykernel")


def _is_terminal() -> bool:
    with contextlib.suppress(ValueError, AttributeError):  # it is closed, or there is none
        return sys.stderr.isatty()
    return False
