"""A worker thread that runs the jobs of several people one after another; jobs can be stopped.

It depends on no web server and no model: a job is a function that calls :meth:`Job.check` as often as it can.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from fringe.errors import FringeError, InputError, ModelOutputError, NotDifferentiableError, is_out_of_memory, require

State = Literal["waiting", "running", "done", "failed", "stopped", "expired"]
#: Final states of a job.
FINISHED: tuple[State, ...] = ("done", "failed", "stopped", "expired")


@dataclass(frozen=True)
class Limits:
    """Limits for one person, and for what all of them store.

    Attributes:
        max_pixels: Pixels of an uploaded image, compared with its header before it is decoded.
        max_input_pixels: Pixels of the model's input, after its preprocessing.
        max_upload_bytes: Bytes of an uploaded file.
        max_stored_bytes: Bytes of all files of the app at a time; uploads are removed after an hour.
        max_stored_files: Number of these files.
        time_limit: Seconds of one computation.
        queue: Number of computations that may wait.

    Raises:
        InputError: If a limit is not positive; the queue may be 0.
    """

    max_pixels: int = 20_000_000
    max_input_pixels: int = 1_500_000
    max_upload_bytes: int = 32 * 2**20
    max_stored_bytes: int = 2**30
    max_stored_files: int = 2000
    time_limit: float = 600.0
    queue: int = 8

    def __post_init__(self) -> None:
        for name in ("max_pixels", "max_input_pixels", "max_upload_bytes", "max_stored_bytes", "max_stored_files"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        require(self.queue >= 0, "queue", self.queue, "at least 0")
        require(self.time_limit > 0, "time_limit", self.time_limit, "more than 0 seconds")


class StoppedError(Exception):
    """Ends a computation whose job was stopped or took too long.

    It is not a FringeError, which a comparison would take for the failure of one method, and continue."""


@dataclass(frozen=True)
class Status:
    """Status of a job, ``ahead`` of which others run: steps done and planned (0 if unknown), seconds since the start,
    and an estimate of the seconds left; None before enough is done."""

    state: State
    ahead: int = 0
    what: str = ""
    done: float = 0.0
    total: float = 0.0
    seconds: float = 0.0
    left: float | None = None


class Job:
    """A computation of one owner, which gets this job, and calls :meth:`check` or :meth:`report` often; it may run for
    so many ``seconds``."""

    def __init__(self, owner: str, compute: Callable[["Job"], Any], seconds: float):
        self.owner, self.compute, self.seconds = owner, compute, seconds
        self.state: State = "waiting"
        self.result: Any = None
        self.error: BaseException | None = None
        self._stop, self._finished = threading.Event(), threading.Event()
        self._start = 0.0
        self._progress = ("", 0.0, 0.0)

    def stop(self) -> None:
        """Ask the computation to end at its next check."""
        self._stop.set()

    @property
    def is_stopping(self) -> bool:
        """Whether it was asked to end."""
        return self._stop.is_set()

    def check(self) -> None:
        """Raise StoppedError if the job was stopped or has run out of time."""
        if self._stop.is_set() or time.monotonic() - self._start > self.seconds:
            raise StoppedError

    def report(self, done: float, total: float, what: str = "steps") -> None:
        """Record the steps done and planned; a progress callback of the library."""
        self._progress = (what, done, total)
        self.check()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end of the job; return whether it has ended."""
        return self._finished.wait(seconds)

    def status(self, ahead: int = 0) -> Status:
        """Return the status, given that ``ahead`` jobs run first."""
        what, done, total = self._progress
        spent = time.monotonic() - self._start if self.state == "running" else 0.0
        left = spent * (total - done) / done if done > 0 and done >= 0.05 * total and spent > 0.5 else None
        return Status(self.state, ahead, what, done, total, spent, left)

    def run(self) -> None:
        """Run the computation and set the final state.

        The flags decide the state, not the exception: other code may have caught it and raised another."""
        self._start, self.state = time.monotonic(), "running"
        state: State = "done"
        try:
            self.check()
            self.result = self.compute(self)
        except BaseException as error:  # the thread must survive for the next jobs
            late = time.monotonic() - self._start > self.seconds
            state = "stopped" if self._stop.is_set() else "expired" if late else "failed"
            self.error = error if state == "failed" else None
            if state == "failed":  # the log keeps the advice to programmers, which the page omits
                known = isinstance(error, FringeError)
                logging.getLogger("fringe").error("a computation of the app failed: %s", error, exc_info=not known)
        self.end(state)

    def end(self, state: State) -> None:
        """Set the final state and wake waiting threads."""
        self.state = state
        self._finished.set()


class Worker:
    """The thread and its queue, within ``limits``. An owner has one job at a time: a new job stops the last one."""

    def __init__(self, limits: Limits):
        self.limits = limits
        self._condition = threading.Condition()
        self._waiting: list[Job] = []
        self._running: Job | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="fringe-app", daemon=True)
        self._thread.start()

    def submit(self, owner: str, compute: Callable[[Job], Any]) -> Job:
        """Put a computation into the queue.

        Raises:
            InputError: If the queue is full.
        """
        job = Job(owner, compute, self.limits.time_limit)
        with self._condition:
            self.stop(owner)
            busy = self._running is not None and not self._running.is_stopping
            pending = len(self._waiting) + busy
            if self._closed or pending > self.limits.queue:
                raise InputError(f"{pending} computations are in work or waiting", hint="try again in a minute")
            self._waiting.append(job)
            self._condition.notify()
        return job

    def stop(self, owner: str) -> bool:
        """Stop the job of an owner, whether it waits or runs; return whether there was one."""
        with self._condition:
            waiting = [job for job in self._waiting if job.owner == owner]
            self._waiting = [job for job in self._waiting if job.owner != owner]
            running = self._running if self._running is not None and self._running.owner == owner else None
        for job in waiting:
            job.end("stopped")
        if running is not None:
            running.stop()
        return bool(waiting or running)

    def status(self, job: Job) -> Status:
        """Return the status of a job."""
        with self._condition:
            ahead = self._waiting.index(job) + (self._running is not None) if job in self._waiting else 0
        return job.status(ahead)

    def check(self) -> None:
        """Raise StoppedError if the job of the calling thread must end; other threads are not affected."""
        running = self._running
        if running is not None and threading.current_thread() is self._thread:
            running.check()

    def close(self) -> None:
        """Stop all jobs and end the thread."""
        with self._condition:
            self._closed = True
            waiting, self._waiting, running = self._waiting, [], self._running
            self._condition.notify()
        for job in waiting:
            job.end("stopped")
        if running is not None:
            running.stop()
        self._thread.join(10)

    def _serve(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                self._running = self._waiting.pop(0)
            self._running.run()
            with self._condition:
                self._running = None


#: Field of the page for each argument of the library.
_FIELDS = {
    **dict.fromkeys(("model", "output", "layer"), "model"),
    **dict.fromkeys(("inputs", "image", "images", "x"), "image"),
    **dict.fromkeys(("method", "space", "space.references"), "method"),
}
#: What people read of errors whose own words are for those who wrote the model.
_SAID = {
    ModelOutputError: "The output of this model cannot be read as one score for each class",
    NotDifferentiableError: "This model has no gradients that the method can use",
}


def reason(error: BaseException | None) -> str:
    """Return the text of an error for people: the message of a library error, and only the type of any other error,
    whose message may contain paths of this machine.

    Arguments are called by the fields of the page, and the advice to programmers is omitted.
    """
    said = next((text for kind, text in _SAID.items() if isinstance(error, kind)), None)
    if said is not None:
        return f"{said}; choose another model. The terminal of the app shows more."
    if isinstance(error, FringeError):
        text = error.message if error.hint is None else f"{error.message}; {error.hint}"
        if (field := _FIELDS.get(error.argument or "")) is not None:
            text = f"the {field}: {error.message.partition('. ')[0]}; choose another {field}"
        return f"{text[:1].upper()}{text[1:]}."
    if error is not None and is_out_of_memory(error):
        return "There is not enough memory for this image, model and method."
    return f"The computation failed with {type(error).__name__}. The terminal of the app shows more."
