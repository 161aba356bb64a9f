"""Signals that ask a long command to end."""

import contextlib
import signal
import threading
from collections.abc import Generator
from types import FrameType


class Interrupted(BaseException):
    """A signal asked the run to end. No error, so that no handler of errors takes it for a failure of the unit in
    hand."""


@contextlib.contextmanager
def interruptible() -> Generator[None]:
    """SIGINT and SIGTERM raise :class:`Interrupted` here. Elsewhere than in the main thread nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise Interrupted(f"interrupted ({signal.Signals(number).name})")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
