"""The computations of the app: one at a time, each of which can be stopped."""

import threading
import time
from types import SimpleNamespace

import pytest

from fringe.app._jobs import Job, Jobs, StoppedError, reason


def nothing(*_):
    """Show no progress."""


class Running(threading.Thread):
    """A job of an owner in a thread of its own, which ends when it is stopped or let go."""

    def __init__(self, jobs, owner):
        super().__init__(daemon=True)
        self.jobs, self.owner = jobs, owner
        self.begun, self.free, self.error = threading.Event(), threading.Event(), None
        self.start()

    def run(self):
        try:
            with self.jobs.run(self.owner, nothing) as job:
                self.begun.set()
                while not self.free.wait(0.002):
                    job.check()
        except StoppedError as error:
            self.error = error


def test_one_job_runs_at_a_time_and_one_owner_stops_nothing_of_another():
    jobs = Jobs(60)
    first = Running(jobs, "a")
    assert first.begun.wait(60)
    second = Running(jobs, "b")
    assert not second.begun.wait(0.15)
    jobs.stop("c")
    assert first.is_alive()
    jobs.stop("a")
    assert second.begun.wait(60)
    first.join(60)
    assert str(first.error) == "Stopped. Nothing is computed any more."
    second.free.set()
    second.join(60)
    assert second.error is None


def test_a_job_that_waits_is_stopped_without_being_computed():
    jobs = Jobs(60)
    first = Running(jobs, "a")
    assert first.begun.wait(60)
    waiting = Running(jobs, "b")
    while "b" not in jobs._newest:
        time.sleep(0.002)
    jobs.stop("b")
    waiting.join(60)
    assert isinstance(waiting.error, StoppedError)
    assert not waiting.begun.is_set()
    first.free.set()


def test_a_new_job_of_an_owner_replaces_the_one_before():
    jobs = Jobs(60)
    first = Running(jobs, "a")
    assert first.begun.wait(60)
    with jobs.run("a", nothing):
        first.join(60)  # the lock is free before its thread keeps the error
        assert isinstance(first.error, StoppedError)
    assert jobs._newest == {}


def test_a_job_ends_at_the_time_limit_and_waiting_does_not_count():
    jobs = Jobs(0.3)
    first = Running(jobs, "a")
    assert first.begun.wait(60)
    with jobs.run("b", nothing) as job:
        job.check()
    first.join(60)
    assert first.error.is_late


def test_a_stop_that_is_caught_on_the_way_is_a_stop():
    def hide(jobs):
        jobs.stop("a")
        raise RuntimeError("a model that hides it")

    jobs = Jobs(60)
    with pytest.raises(StoppedError), jobs.run("a", nothing):
        hide(jobs)


def test_a_stop_at_the_very_end_is_a_stop():
    jobs = Jobs(60)
    with pytest.raises(StoppedError), jobs.run("a", nothing):
        jobs.stop("a")


def test_a_failure_lets_the_next_job_run():
    jobs = Jobs(60)
    with pytest.raises(KeyError) as error, jobs.run("a", nothing):
        raise KeyError("/home/somebody/secret")
    assert reason(error.value) == "The computation failed with KeyError. The terminal of the app shows more."
    with jobs.run("a", nothing):
        pass


def test_the_time_left_follows_from_the_steps_done(monkeypatch):
    shown = []
    job = Job(10.0, lambda *values: shown.append(values))
    # of this module alone: the clock of the process is read by other threads, too
    monkeypatch.setattr("fringe.app._jobs.time", SimpleNamespace(monotonic=lambda: job.start + 3.0))
    job.report(5.0, 20.0)
    assert shown == [(0.25, "steps, about 9 s left")]
