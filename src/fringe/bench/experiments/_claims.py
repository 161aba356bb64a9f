"""Claims: which process computes a task. A claim is a file that is made only if it is absent, and renewed while its
process lives. That two processes have one is possible, and costs only time."""

import contextlib
import json
import os
import threading
import time
from collections.abc import Generator

from fringe._process import fate_of, process_name
from fringe.bench.experiments._places import Folder

#: Seconds after which a claim that nobody renewed belongs to no living process.
LEASE = 120.0


class Claims:
    """The claims of a process in a run folder."""

    def __init__(self, files: Folder):
        self._files, self._mine, self._mutex = files, dict[str, str](), threading.Lock()
        self._stopped = threading.Event()
        self._renewing: threading.Thread | None = None

    @contextlib.contextmanager
    def claim(self, key: str, *, wait: bool) -> Generator[bool]:
        """Claim a name; False if another process has it, unless this is to ``wait``."""
        name, token, is_taken = f"claims/{key}", os.urandom(8).hex(), False
        try:
            while not (is_taken := self._files.create(name, _content(token))):
                if _is_stale(self._files.read(name)):
                    self._files.remove(name)
                elif wait:
                    time.sleep(0.05)
                else:
                    break
            if is_taken:
                self._renew(name, token)
            yield is_taken
        finally:  # also where a signal came just after the file was made
            with self._mutex:
                self._mine.pop(name, None)
                if token.encode() in (self._files.read(name) or b""):
                    self._files.remove(name)

    def stop(self) -> None:
        """Renew no claim any more."""
        self._stopped.set()

    def _renew(self, name: str, token: str) -> None:
        self._mine[name] = token
        if self._renewing is None or not self._renewing.is_alive():
            self._stopped.clear()
            self._renewing = threading.Thread(target=self._renew_all, daemon=True)
            self._renewing.start()

    def _renew_all(self) -> None:
        while not self._stopped.wait(LEASE / 4):
            for name, token in list(self._mine.items()):
                with self._mutex, contextlib.suppress(Exception):  # the next write says what is wrong
                    if name in self._mine:
                        self._files.write(name, _content(token))


def _content(token: str) -> bytes:
    return json.dumps({"process": process_name(), "time": time.time(), "token": token}).encode()


def _is_stale(claim: bytes | None) -> bool:
    """Whether a claim belongs to no living process; False if it is gone."""
    try:
        holder = json.loads(claim or b"")
        fate, age = fate_of(holder["process"]), time.time() - holder["time"]
        return fate == "gone" or (fate == "unknown" and age > LEASE)
    except (ValueError, KeyError, TypeError, RecursionError):  # not written by this program
        return claim is not None
