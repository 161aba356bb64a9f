"""The computations of the app: one at a time, each with a limit of time, and each of which can be stopped.

A computation is stopped by an exception from a function that it calls as often as it can.
"""

import logging
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from fringe.errors import FringeError, ModelOutputError, NotDifferentiableError, is_out_of_memory

#: Gets the share that is done, and what is being computed.
Show = Callable[[float, str], Any]
STOPPED = "Stopped. Nothing is computed any more."


class StoppedError(Exception):
    """Ends a computation that was stopped or took too long (``is_late``); its message is for people.

    It is not a FringeError, which a comparison would take for the failure of one method, and continue."""

    def __init__(self, message: str, is_late: bool = False):
        super().__init__(message)
        self.is_late = is_late


class Job:
    """A computation, which calls :meth:`check` or :meth:`report` often; it may run for so many ``seconds``."""

    def __init__(self, seconds: float, show: Show):
        self.seconds, self.show = seconds, show
        self.is_stopped = False
        self.start = time.monotonic()

    def check(self) -> None:
        """Raise StoppedError if the job was stopped or has run out of time."""
        if self.is_stopped:
            raise StoppedError(STOPPED)
        if time.monotonic() - self.start > self.seconds:
            limit, hint = _duration(self.seconds), "A quick method, or a smaller image or model, takes less time."
            raise StoppedError(f"Stopped at the limit of {limit}. {hint}", is_late=True)

    def report(self, done: float, total: float, what: str = "steps") -> None:
        """Show the steps done and planned, with an estimate of the time left; a progress callback of the library."""
        share = min(max(done / total, 0.0), 1.0) if total > 0 else 0.0
        spent = time.monotonic() - self.start
        left = f", about {_duration(spent * (1 - share) / share)} left" if 0.05 <= share < 1 and spent > 0.5 else ""
        self.show(share, what + left)
        self.check()


class Jobs:
    """The jobs of all people; an owner has one at a time, which may take so many ``seconds``."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._newest: dict[str, Job] = {}
        self._one = threading.Lock()  # gradio begins the next computation while a canceled one still ends
        self._here = threading.local()

    @contextmanager
    def run(self, owner: str, show: Show) -> Generator[Job]:
        """Run what is within the context as the job of an owner, once no other job runs."""
        self.stop(owner)
        job = self._newest[owner] = Job(self.seconds, show)
        try:
            while not self._one.acquire(timeout=0.05):
                job.start = time.monotonic()  # waiting takes no time of the limit
                job.check()
            try:
                job.start, self._here.job = time.monotonic(), job
                job.report(0, 0, "Beginning")
                yield job
            finally:
                self._here.job = None
                self._one.release()
            if job.is_stopped:
                job.check()
        except StoppedError:
            raise
        except BaseException as error:
            job.check()  # other code may have caught the stop and raised another error
            known = isinstance(error, FringeError)
            logging.getLogger("fringe").error("a computation of the app failed: %s", error, exc_info=not known)
            raise
        finally:
            if self._newest.get(owner) is job:
                del self._newest[owner]

    def stop(self, owner: str) -> None:
        """End the job of an owner at its next check."""
        if (job := self._newest.get(owner)) is not None:
            job.is_stopped = True

    def stop_all(self) -> None:
        """End all jobs."""
        for owner in list(self._newest):
            self.stop(owner)

    def check(self) -> None:
        """Raise StoppedError if the job of the calling thread must end; other threads are not affected."""
        if (job := getattr(self._here, "job", None)) is not None:
            job.check()


def _duration(seconds: float) -> str:
    return f"{max(round(seconds), 1)} s" if seconds < 90 else f"{round(seconds / 60)} min"


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


def reason(error: BaseException) -> str:
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
    if is_out_of_memory(error):
        return "There is not enough memory for this image, model and method."
    return f"The computation failed with {type(error).__name__}. The terminal of the app shows more."
