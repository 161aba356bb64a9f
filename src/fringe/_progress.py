"""Progress bars, in terminals and notebooks, and the log of the library."""

import contextlib
import importlib
import io
import logging
import sys
import time
from collections.abc import Callable, Generator
from typing import Any

from fringe._text import printable

#: Called with the steps done and planned, and perhaps with what is in work.
Report = Callable[..., None]

#: Seconds between two drawings in a notebook: each is a message to the browser.
REFRESH = 0.2

#: Seconds between two lines of progress where standard error is no terminal, such as the log of a job.
LOG_EVERY = 30.0

#: Messages of the library: what it does by itself, such as halving a batch. ``logging`` shows them; nothing is printed.
log = logging.getLogger("fringe")
log.addHandler(logging.NullHandler())


@contextlib.contextmanager
def shown(progress: bool | Report | None, description: str) -> Generator[Report | None]:
    """Yield what takes the steps done and planned: a progress bar for True, nothing for False or None, or the caller's
    own function."""
    if not isinstance(progress, bool):
        yield progress
    elif not progress or not _can_write():
        yield None
    else:
        with _bar(description) as report:
            yield report


def _can_write() -> bool:
    """Whether standard error is open: a service may have closed it, or have none."""
    return sys.stderr is not None and not sys.stderr.closed  # pyright: ignore[reportUnnecessaryComparison]


def make_bars(**options: Any) -> Any:
    """Make rich progress bars on standard error; ``options`` are those of ``rich.progress.Progress``."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=32),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), **options)


@contextlib.contextmanager
def _bar(description: str) -> Generator[Report]:
    draw = _notebook()
    bars = make_bars(auto_refresh=draw is None)
    task = bars.add_task(description, total=None)
    drawn = 0.0

    def report(done: float, total: float | None, what: str = description) -> None:
        nonlocal drawn
        # a method of several stages may begin again, or know its last step only at the end
        bars.update(task, completed=done, total=total, description=what)
        if draw is not None and time.monotonic() - drawn > REFRESH:
            draw(_html(bars.get_renderable()))
            drawn = time.monotonic()

    if draw is None:
        with bars:
            yield report
        return
    try:
        yield report
    finally:
        draw(_html(bars.get_renderable()))


class Progress:
    """Progress bars in a terminal, and elsewhere a line now and then: results of a run, and steps of those in work.

    Args:
        name: Words beside the bar of the results.
        total: Number of results; None if it is not known yet.
        quiet: Show nothing.
        steps: Show the steps, too.
    """

    def __init__(self, name: str, total: int | None, *, quiet: bool, steps: bool = False):
        quiet = quiet or not _can_write()
        terminal = not quiet and sys.stderr.isatty()
        self._bars = make_bars(transient=True, disable=quiet or not terminal)
        self._logs, self._started = not (quiet or terminal), time.monotonic()
        self._logged = self._started
        self._results = self._bars.add_task(name, total=total)
        self._steps = self._bars.add_task("steps", total=None) if steps else None

    def __enter__(self) -> "Progress":
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._bars.disable:  # before rich 14.3 they print an empty line even so
            self._bars.stop()

    def begin(self, total: int) -> None:
        """Set the number of results."""
        self._bars.update(self._results, total=total)

    def advance(self, results: int = 1, what: str | None = None) -> None:
        """Count finished results; ``what`` describes those in work."""
        self._bars.update(self._results, advance=results, description=None if what is None else printable(what))
        if self._steps is not None:
            self._bars.reset(self._steps, total=None)
        self._log()

    def step(self, done: float, total: int, what: str = "steps") -> None:
        """Show the steps of the results in work."""
        if self._steps is not None:
            self._bars.update(self._steps, completed=done, total=total, description=printable(what))
        self._log()

    def _log(self) -> None:
        now = time.monotonic()
        if not self._logs or now - self._logged < LOG_EVERY:
            return
        self._logged = now
        known = [t for t in self._bars.tasks if t.total and (t.completed or t.id == self._results)]
        counts = [f"{t.description}: {t.completed:.0f} of {t.total:.0f}" for t in known]
        print(f"{', '.join(counts)}, {(now - self._started) / 60:.1f} min", file=sys.stderr, flush=True)


def _notebook() -> Callable[[str], None] | None:
    """What shows HTML in the cell that runs and replaces it at the next call; None outside a notebook.

    Rich's own display in notebooks needs ipywidgets, and is not stored with the notebook.
    """
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if type(shell).__name__ not in ("ZMQInteractiveShell", "Shell"):  # Jupyter, and Colab
        return None
    display = importlib.import_module("IPython.display")
    handle = display.display(display.HTML(""), display_id=True)
    return lambda html: handle.update(display.HTML(html))


def _html(renderable: Any) -> str:
    from rich.console import Console

    console = Console(file=io.StringIO(), record=True, width=100, force_jupyter=False, color_system="truecolor")
    console.print(renderable)
    code = '<pre style="font-family:monospace;line-height:normal;margin:0">{code}</pre>'
    return console.export_html(inline_styles=True, code_format=code)
