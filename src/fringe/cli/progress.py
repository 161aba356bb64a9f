"""How far a run is, for people who watch."""

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fringe._text import printable


class Watch:
    """Two bars on standard error: images of the run, steps of those in work. Nothing where no terminal is."""

    def __init__(self, images: int, *, quiet: bool):
        self._bars = _bars(quiet)
        self._images = self._bars.add_task("images", total=images)
        self._steps = self._bars.add_task("steps", total=None)

    def __enter__(self) -> "Watch":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def begin(self) -> None:
        """A new group of images: its steps are not known yet."""
        self._bars.reset(self._steps, total=None)

    def step(self, done: float, total: int, what: str = "steps") -> None:
        self._bars.update(self._steps, completed=done, total=total, description=printable(what))

    def finished(self, images: int) -> None:
        self._bars.advance(self._images, images)


class Units:
    """One bar on standard error: maps that are missing, and which is in work. Nothing where no terminal is."""

    def __init__(self, name: str, *, quiet: bool):
        self._bars = _bars(quiet)
        self._task = self._bars.add_task(name, total=None)

    def __enter__(self) -> "Units":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def begin(self, maps: int) -> None:
        self._bars.update(self._task, total=maps)

    def advance(self, maps: int, what: str) -> None:
        self._bars.update(self._task, advance=maps, description=printable(what))


def _bars(quiet: bool) -> Progress:
    """Bars on standard error that go away when they are done; hidden where nobody watches."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=32),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    hidden = quiet or not sys.stderr.isatty()
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=hidden)
