"""The thread of the app: one job at a time, in order, each of which can be stopped."""

import threading
import time
from types import SimpleNamespace

import pytest

from fringe.app import Limits
from fringe.app._worker import Job, StoppedError, Worker, reason
from fringe.errors import InputError


@pytest.fixture
def make_worker():
    workers = []

    def make(**limits):
        workers.append(Worker(Limits(**limits)))
        return workers[-1]

    yield make
    for worker in workers:
        worker.close()


def endless(job: Job) -> None:
    while True:
        time.sleep(0.002)
        job.check()


def begin(worker, owner, compute=endless) -> Job:
    """Submit a job and wait until it runs."""
    job = worker.submit(owner, compute)
    while job.state == "waiting":
        time.sleep(0.002)
    return job


def test_jobs_run_one_at_a_time_and_in_order(make_worker):
    worker, trace, lock = make_worker(), [], threading.Lock()

    def note(name):
        def compute(job):
            assert lock.acquire(blocking=False), "two jobs at once"
            trace.append(name)
            time.sleep(0.01)
            lock.release()
            return name

        return compute

    jobs = [worker.submit(f"owner {i}", note(i)) for i in range(5)]
    assert all(job.wait(60) for job in jobs)
    assert [job.result for job in jobs] == trace == [0, 1, 2, 3, 4]


def test_a_stopped_job_ends_and_the_next_one_runs(make_worker):
    worker = make_worker()
    first = begin(worker, "a")
    second = worker.submit("b", lambda job: "result")
    assert worker.status(second).ahead == 1
    assert worker.stop("a")
    assert first.wait(60)
    assert second.wait(60)
    assert (first.state, first.result, second.state, second.result) == ("stopped", None, "done", "result")


def test_a_job_that_waits_is_stopped_without_being_computed(make_worker):
    worker, computed = make_worker(), []
    begin(worker, "a")
    waiting = worker.submit("b", computed.append)
    worker.stop("b")
    worker.stop("a")
    last = worker.submit("c", lambda job: None)
    assert last.wait(60)
    assert waiting.state == "stopped"
    assert computed == []


def test_one_owner_stops_nothing_of_another(make_worker):
    worker = make_worker()
    job = begin(worker, "a")
    assert not worker.stop("b")
    assert job.state == "running"


def test_a_new_job_of_an_owner_replaces_the_one_before(make_worker):
    worker = make_worker(queue=0)
    first = begin(worker, "a")
    second = worker.submit("a", lambda job: 2)
    assert second.wait(60)
    assert (first.state, second.result) == ("stopped", 2)


def test_two_jobs_of_an_owner_at_once_are_one(make_worker, monkeypatch):
    worker, jobs = make_worker(), []
    stop = worker.stop
    monkeypatch.setattr(worker, "stop", lambda owner: (stop(owner), time.sleep(0.1)))
    threads = [threading.Thread(target=lambda: jobs.append(worker.submit("a", endless))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while not any(job.state == "stopped" for job in jobs):
        time.sleep(0.002)
    assert sorted(job.state == "stopped" for job in jobs) == [False, True]


def test_a_full_queue_refuses_and_says_when_to_come_back(make_worker):
    worker = make_worker(queue=1)
    begin(worker, "a")
    worker.submit("b", endless)
    with pytest.raises(InputError, match="2 computations are in work or waiting; try again in a minute"):
        worker.submit("c", endless)


def test_a_job_ends_at_the_time_limit(make_worker):
    worker = make_worker(time_limit=0.05)
    job = worker.submit("a", endless)
    assert job.wait(60)
    assert job.state == "expired"


def test_the_time_of_waiting_does_not_count(make_worker):
    worker = make_worker(time_limit=0.3)
    worker.submit("a", endless)
    second = worker.submit("b", lambda job: "result")
    assert second.wait(60)
    assert second.result == "result"


def test_a_stop_that_is_caught_on_the_way_is_a_stop(make_worker):
    def compute(job):
        try:
            endless(job)
        except StoppedError:
            raise RuntimeError("a model that hides it") from None

    worker = make_worker()
    job = begin(worker, "a", compute)
    worker.stop("a")
    assert job.wait(60)
    assert (job.state, job.error) == ("stopped", None)


def test_a_failure_leaves_the_thread_alive(make_worker):
    def fail(job):
        raise KeyError("/home/somebody/secret")

    worker = make_worker()
    job = worker.submit("a", fail)
    assert job.wait(60)
    assert job.state == "failed"
    assert reason(job.error) == "The computation failed with KeyError. The terminal of the app shows more."
    assert worker.submit("a", lambda job: 1).wait(60)


def test_the_time_left_follows_from_the_steps_done(make_worker, monkeypatch):
    job = Job("a", lambda job: None, 10.0)
    # of this module alone: the clock of the process is read by other threads, too
    monkeypatch.setattr("fringe.app._worker.time", SimpleNamespace(monotonic=lambda: 103.0))
    job._start, job.state = 100.0, "running"
    job._progress = ("steps", 5.0, 20.0)
    status = job.status()
    assert (status.seconds, status.left) == (3.0, 9.0)


@pytest.mark.parametrize("name", ["max_pixels", "max_input_pixels", "max_upload_bytes", "time_limit"])
def test_limits_are_positive(name):
    with pytest.raises(InputError, match=f"{name}: got 0"):
        Limits(**{name: 0})
    with pytest.raises(InputError, match="queue: got -1"):
        Limits(queue=-1)
