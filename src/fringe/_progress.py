"""Progress bars, in terminals and notebooks."""

import contextlib
from collections.abc import Callable, Generator
from typing import Any


@contextlib.contextmanager
def shown(progress: bool | Callable[..., Any] | None, description: str) -> Generator[Callable[..., Any] | None]:
    """Yield what reports the steps done and planned: a bar for True, nothing for False, or the caller's function."""
    if progress is not True:
        yield progress or None
        return
    from rich.progress import Progress

    with Progress(transient=True) as bars:
        task = bars.add_task(description, total=None)

        def report(done: float, total: int, what: str = description) -> None:
            bars.update(task, completed=done, total=total, description=what)

        yield report
