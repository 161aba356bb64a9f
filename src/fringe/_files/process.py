"""Processes: their names, whether they still run, and the signals that ask them to end."""

import contextlib
import hashlib
import os
import signal
import socket
import threading
import uuid
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Literal

Fate = Literal["alive", "gone", "unknown"]


def process_name() -> str:
    """Return a name of this process that can be a part of a file name: its host, its id, and its start in the clock
    ticks of Linux, which is empty if the system does not say."""
    return f"{_short(_host())}-{os.getpid()}-{_start(os.getpid())}"


def fate_of(name: str) -> Fate:
    """Return what became of a process by its :func:`process_name`; ``unknown`` for a text that is no such name, and
    unless it ran on this host."""
    host, _, rest = name.partition("-")
    pid, _, start = rest.partition("-")
    known = host == _short(_host()) and pid.isascii() and pid.isdigit()
    if os.name != "posix" or not known:  # other systems have no signal 0
        return "unknown"
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return "gone"
    except PermissionError:
        pass  # it exists and belongs to another user
    now = _start(int(pid))  # tells it from a later process of the same id
    if not now or not start:
        return "unknown"
    return "alive" if now == start else "gone"


def _host() -> str:
    """The host's name, its boot, and the namespace of its process ids: machines may share the first, containers of one
    machine the first two, and machines the last (the first namespace has the same number on all)."""
    return " ".join((socket.gethostname(), _boot(), _namespace()))


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return f"{uuid.getnode():x}"  # where the system has no such name: the machine's own


def _namespace() -> str:
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return ""


def _short(host: str) -> str:
    return hashlib.sha256(host.encode()).hexdigest()[:16]


def _start(pid: int) -> str:
    """When a process started; ``ended`` for one that only waits to be reaped (proc(5): fields 22 and 3 of stat)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()  # the name before it may hold spaces and brackets
    return "ended" if fields[0] in "ZX" else fields[19]


class Interrupted(BaseException):
    """A signal asked the run to end. No Exception, so that no handler takes it for a failure of the current task."""


#: The signal that came last in the innermost :func:`interruptible`.
_signalled: Interrupted | None = None


def check_interrupt() -> None:
    """Raise Interrupted once more for a signal whose own was lost, as in a callback whose caller ignores errors."""
    if _signalled is not None:
        raise Interrupted(*_signalled.args)


@contextlib.contextmanager
def interruptible() -> Generator[None]:
    """Let SIGINT and SIGTERM raise :class:`Interrupted`; outside the main thread nothing changes."""
    global _signalled
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        global _signalled
        _signalled = Interrupted(f"interrupted ({signal.Signals(number).name})")
        raise _signalled

    outer, _signalled = _signalled, None
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        _signalled = outer
        for number, handler in before.items():
            signal.signal(number, handler)
