"""Progress bars, in terminals and notebooks, and the log of the library."""

import contextlib
import logging
import shutil
import sys
import time
from collections.abc import Callable, Generator

from fringe._strings.formats import printable

#: Called with the steps done and planned, and perhaps with what is in work.
Report = Callable[..., None]

#: Seconds between two drawings, and between two lines where standard error is no terminal, such as the log of a job.
REFRESH, LOG_EVERY = 0.1, 30.0

#: The level of messages that the command line prints, too: of work that takes minutes.
NOTE = 25
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
        with Progress(description, None, quiet=False, leave=True) as bar:

            def report(done: float, total: float | None, what: str = description) -> None:
                bar.name, bar.total = what, total  # a method of several stages may begin again
                bar.advance(done - bar.done)

            yield report


class Progress:
    """One line on standard error about results of a run: a bar that is drawn over itself in a terminal and in a
    notebook, and elsewhere a line now and then. A stream that is closed, full or absent does not end the work.

    Args:
        name: Words before the bar.
        total: Number of results; None if it is not known yet.
        quiet: Show nothing.
        leave: Show it at once, and leave it there at the end.
    """

    def __init__(self, name: str, total: float | None, *, quiet: bool, leave: bool = False):
        self.name, self.total, self.done, self._what = name, total, 0.0, ""
        self._quiet, self._leave, self._is_live = quiet, leave, _is_live()
        self._begun = self._drawn = time.monotonic()
        if leave or self._is_live:
            self._draw()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._leave:
            self._draw(end="\n")
        elif self._is_live and not self._quiet:
            self._write(f"\r{' ' * (_width() - 1)}\r")

    def begin(self, total: int) -> None:
        """Set the number of results."""
        self.total = total

    def advance(self, results: float = 1, what: str = "") -> None:
        """Count finished results; ``what`` describes those in work."""
        self.done, self._what = self.done + results, what
        self._refresh()

    def step(self, done: float, total: int, what: str = "steps") -> None:
        """Show the steps of the results in work."""
        self._what = f"{what}: {done:.0f} of {total}"
        self._refresh()

    def _refresh(self) -> None:
        if time.monotonic() - self._drawn >= (REFRESH if self._is_live else LOG_EVERY):
            self._draw()

    def _draw(self, end: str = "") -> None:
        if self._quiet:
            return
        self._drawn = time.monotonic()
        passed = self._drawn - self._begun
        head, what = f"{printable(self.name)}: ", f", {printable(self._what)}" if self._what else ""
        share = min(self.done / self.total, 1.0) if self.total else 0.0
        left = f"<{_clock(passed / share - passed)}" if share else ""
        tail = f"{self.done:.0f}{f'/{self.total:.0f}' if self.total else ''} [{_clock(passed)}{left}{what}]"
        from rich.cells import cell_len, set_cell_size  # names may have letters that are two columns wide

        columns = _width() - 1
        if self.total:
            room = max(columns - cell_len(head + tail) - len("100%|| "), 10)
            head += f"{share:4.0%}|{'#' * int(room * share):{room}}| "
        line = head + tail
        self._write(f"\r{set_cell_size(line, columns)}{end}" if self._is_live else f"{line}\n")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(text)
            sys.stderr.flush()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def _width() -> int:
    """The columns of the terminal; those of a usual one where it has none."""
    return shutil.get_terminal_size().columns


def _is_live() -> bool:
    """Return whether standard error is a terminal, or the output of a cell of a notebook."""
    return _is_terminal() or type(sys.stderr).__module__.startswith("ipykernel")


def _is_terminal() -> bool:
    with contextlib.suppress(ValueError, AttributeError):  # it is closed, or there is none
        return sys.stderr.isatty()
    return False
