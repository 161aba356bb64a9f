"""A search survives what happens to processes and files: kills, several at once, damaged files, silent processes."""

import contextlib
import errno
import itertools
import multiprocessing
import sqlite3
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import optuna
import pytest
from tuning_toys import BASE, SPACE, asked, score, search

from fringe import FringeError, InputError
from fringe._files.disk import StoreFull
from fringe.bench.tuning import Study, _study
from fringe.bench.tuning._study import OUTCOME, SLOT, SharedStudy
from fringe.errors import TransientError

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs fork")


def study_of(path: Path) -> optuna.Study:
    return optuna.load_study(study_name="study", storage=f"sqlite:///{path}")


def states(path: Path) -> list[str]:
    return [trial.state.name for trial in study_of(path).trials]


def tuned_of(path: Path, trials: int, **more):
    """The trials and the best setting of a search: what a preset is written from."""
    tuned = search(path, trials, **more)
    return tuned.best, tuned.value, tuned.trials


def work(pipe, path: Path, trials: int, hang_at: int) -> None:
    """Take part in a search, as a process of its own: wait in the first trial, and hang in one of them."""
    calls, mine = [], []

    def slow(method):
        calls.append(method)
        if len(calls) == 1:
            pipe.send("ready")
            pipe.recv()
        if len(calls) == hang_at:
            pipe.send(method.tau)
            time.sleep(600)
        time.sleep(0.03)
        return score(method)

    search(path, trials, slow, progress=lambda trial, done, wanted: mine.append(trial.number))
    pipe.send(mine)


@contextlib.contextmanager
def worker(path: Path, trials: int, hang_at: int = 0):
    """The pipe to a process that has taken its first trial and waits; killed at the end."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=work, args=(there, path, trials, hang_at))
    process.start()
    try:
        assert here.recv() == "ready"
        yield here
    finally:
        process.kill()
        process.join()


@contextlib.contextmanager
def taken(path: Path, trials: int):
    """A trial that another process took, and the study of that process; its last sign of life is an hour old."""
    search(path, trials - 1)
    where = Study(path, "study", 5, study_of(path).user_attrs["identity"])
    with contextlib.closing(SharedStudy(where, SPACE, SPACE.clip(BASE), trials)) as other:
        theirs = other.ask()
        silence(path)
        yield other, theirs


def execute(path: Path, sql: str):
    """The rows that a statement finds in the file of a search."""
    with contextlib.closing(sqlite3.connect(path, timeout=60)) as database, database:
        return database.execute(sql).fetchall()


def run_ahead(monkeypatch) -> None:
    """Let the clock of searches run, so that they wait to the end of their patience in no time."""
    clock = SimpleNamespace(monotonic=itertools.count(step=10).__next__, sleep=lambda _: None)
    monkeypatch.setattr(_study, "time", clock)


def silence(path: Path) -> None:
    """Make every sign of life an hour old, as if nobody had been heard of since."""
    execute(path, "UPDATE trial_heartbeats SET heartbeat = datetime('now', '-1 hour')")


def test_the_sampler_has_the_base_as_its_first_point(tmp_path):
    """Its settings are compared with the base's score: drawn ones would mislead every later trial."""
    tuned = search(tmp_path / "j", 2)
    first = study_of(tmp_path / "j").trials[0]
    assert first.params == SPACE.clip(BASE)
    assert first.value == tuned.trials[0].value


# Processes


@linux
def test_a_trial_is_not_lost_however_often_its_process_is_killed(tmp_path):
    alone, path = tuned_of(tmp_path / "alone", 3), tmp_path / "j"
    search(path, 2)
    for _ in range(2):
        with worker(path, 3, hang_at=1) as pipe:
            pipe.send("go")
            assert pipe.recv() == alone[2][2].settings["tau"]
        silence(path)
    assert tuned_of(path, 3) == alone
    assert states(path).count("FAIL") == 2


@linux
def test_two_processes_share_the_work_and_stop_together(tmp_path):
    path, alone = tmp_path / "j", search(tmp_path / "alone", 10)
    with worker(path, 16) as first, worker(path, 16) as second:
        first.send("go")
        second.send("go")
        shares = [first.recv(), second.recv()]
    assert sorted(shares[0] + shares[1]) == list(range(16))
    assert min(map(len, shares)) > 0
    assert states(path) == ["COMPLETE"] * 16
    tuned = search(path, 16)
    assert len({tuple(settings.values()) for settings in asked(tuned)}) == 16
    assert asked(tuned)[:10] == asked(alone)  # random trials depend on their slot alone


def test_a_trial_whose_process_ended_is_repeated_every_time(tmp_path):
    path = tmp_path / "j"
    for _ in range(2):
        with taken(path, 2) as (_, theirs):
            settings = theirs.params
    tuned = search(path, 3)
    assert [trial.problem for trial in tuned.trials] == [""] * 3
    assert tuned.trials[1].settings == settings
    assert tuned.trials == search(tmp_path / "alone", 3).trials


def test_a_process_that_was_only_silent_records_nothing(tmp_path):
    path = tmp_path / "j"
    with taken(path, 2) as (other, theirs):
        tuned = search(path, 2)
        assert tuned.running == 0
        other.tell(theirs, 0.99, {"scores": {}})
        other.release(theirs)
    assert search(path, 2) == tuned
    assert states(path) == ["COMPLETE", "FAIL", "COMPLETE"]


def test_a_slow_trial_of_a_living_process_is_its_own(tmp_path, monkeypatch):
    path = tmp_path / "j"
    monkeypatch.setattr(_study, "GRACE_PERIOD", 6)  # so it beats every second
    with taken(path, 2) as (other, theirs):
        with other.alive(theirs):
            for _ in range(1200):  # on a busy machine, for two minutes
                if execute(path, "SELECT * FROM trial_heartbeats WHERE heartbeat > datetime('now', '-50 minutes')"):
                    break
                time.sleep(0.1)
            monkeypatch.undo()
            run_ahead(monkeypatch)
            assert search(path, 2).running == 1
        other.tell(theirs, 0.99, {"scores": {}})
    assert search(path, 2).value == 0.99


def test_a_search_waits_until_another_process_counts_as_ended(tmp_path, monkeypatch):
    path, waited = tmp_path / "j", []

    def wait(seconds):
        waited.append(seconds)
        silence(path)

    with taken(path, 2) as (other, theirs):
        other._beat(theirs.number)
        monkeypatch.setattr(_study, "time", SimpleNamespace(monotonic=time.monotonic, sleep=wait))
        assert search(path, 2).running == 0
    assert waited == [1.0]


@pytest.mark.parametrize("when", ["asked", "told"])
def test_a_process_killed_while_it_writes_costs_nothing(tmp_path, monkeypatch, when):
    """Between two records of a trial: before its slot is known, or before its state follows its outcome."""
    path, kill = tmp_path / "j", KeyboardInterrupt("killed")
    search(path, 1)

    def killed(*_, **__):
        raise kill

    with monkeypatch.context() as patch:
        patch.setattr(SharedStudy, "release", lambda self, trial: None)  # a killed process gives nothing back
        patch.setattr(*((optuna.Trial, "set_user_attr") if when == "asked" else (optuna.Study, "tell")), killed)
        with pytest.raises(KeyboardInterrupt):
            search(path, 3)
    assert states(path)[1:] == ["RUNNING"]
    assert ({SLOT} <= {*study_of(path).trials[1].user_attrs}, OUTCOME in study_of(path).trials[1].user_attrs) == (
        (when == "told"),
        (when == "told"),
    )
    if when == "told":  # a trial without a slot waits for nothing
        silence(path)
    found = search(path, 3)
    assert found.trials == search(tmp_path / "alone", 3).trials
    assert sorted(states(path)) == ["COMPLETE"] * 3 + ["FAIL"]


TROUBLES = {
    "disk": lambda: StoreFull("no space left"),
    "memory": lambda: MemoryError(),
    "device": lambda: RuntimeError("CUDA error: unspecified launch failure"),
    "caused": lambda: caused_by(FringeError("scores: cannot be read"), OSError(errno.ESTALE, "Stale file handle")),
}


def caused_by(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("trouble", TROUBLES)
def test_trouble_of_the_system_fails_no_trial(tmp_path, trouble):
    path, error, calls = tmp_path / "j", TROUBLES[trouble](), []

    def troubled(method):
        calls.append(method)
        if len(calls) >= 2:
            raise error
        return score(method)

    for _ in range(2):  # the same trouble again and again
        with pytest.raises(type(error)) as caught:
            search(path, 3, troubled)
        assert caught.value is error
        assert "RUNNING" not in states(path)  # the next call repeats it at once
    assert [trial.problem for trial in search(path, 3).trials] == [""] * 3


def test_a_search_with_nothing_finished_says_that_others_are_at_work(tmp_path, monkeypatch):
    run_ahead(monkeypatch)

    def meanwhile(method):
        with pytest.raises(FringeError, match=r"none of 0 trials succeeded \(1 still running\)$"):
            search(tmp_path / "j", 1)
        return score(method)

    assert len(search(tmp_path / "j", 1, meanwhile).trials) == 1


# Files


def flipped(content: bytes, at: int, bit: int) -> bytes:
    return content[:at] + bytes([content[at] ^ (1 << bit)]) + content[at + 1 :]


def bits(content: bytes, count: int, seed: int):
    """Bits of those bytes that hold something, and of a few that do not."""
    rng, used = np.random.default_rng(seed), np.flatnonzero(np.frombuffer(content, np.uint8))
    return [(int(at), int(bit)) for at, bit in zip(rng.choice(used, count), rng.integers(0, 8, count), strict=True)]


def unharmed(path: Path, content: bytes, at: int, bit: int, known) -> bool:
    """Whether a search with one flipped bit gives what it gave; False where it is refused."""
    path.write_bytes(flipped(content, at, bit))
    try:
        found = tuned_of(path, len(known[2]))
    except (InputError, TransientError):
        return False
    assert found == known, (at, bit)
    return True


def flips(tmp_path, count, seed):
    path = tmp_path / "j"
    known, content = tuned_of(path, 4), path.read_bytes()
    outcomes = [unharmed(path, content, at, bit, known) for at, bit in bits(content, count, seed)]
    assert not all(outcomes)


def test_a_flipped_bit_gives_the_same_search_or_none(tmp_path):
    flips(tmp_path, 10, seed=0)


@pytest.mark.thorough
def test_many_flipped_bits_give_the_same_search_or_none(tmp_path):
    flips(tmp_path, 30, seed=1)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE trial_values SET value = value + 1",
        "UPDATE trial_params SET param_value = param_value * 1.01 WHERE param_name = 'tau' AND trial_id = 2",
        "UPDATE trial_params SET distribution_json = replace(distribution_json, '0.0003', '0.0002') WHERE trial_id = 2",
        "UPDATE trial_user_attributes SET value_json = replace(value_json, '0.1', '0.2') WHERE key = 'outcome'",
        "UPDATE trial_user_attributes SET value_json = replace(value_json, ': 2', ': 1') WHERE key = 'slot'",
        "DELETE FROM trial_user_attributes WHERE trial_id = 2",
        "DELETE FROM trials WHERE trial_id = 2",
        "CREATE TRIGGER stranger AFTER INSERT ON trials BEGIN SELECT 1; END",
        "DROP TABLE trial_user_attributes",
    ],
)
def test_a_changed_record_is_refused(tmp_path, change):
    path = tmp_path / "j"
    search(path, 3)
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        assert database.execute(change).rowcount != 0
    with pytest.raises(InputError, match=r"path: .*/j is damaged \(.*remove it and search again"):
        search(path, 4)


@pytest.mark.parametrize("content", [b"one line without end", b"many\nlines\n", b'{"op_code":0}\n'])
def test_a_file_that_is_no_search_is_left_alone(tmp_path, content):
    (tmp_path / "notes").write_bytes(content)
    with pytest.raises(InputError, match=r"path: .*notes is no file of a search; name another one"):
        search(tmp_path / "notes", 3)
    assert (tmp_path / "notes").read_bytes() == content
    with pytest.raises(InputError, match="is no file"):
        search(tmp_path, 3)


def test_a_database_of_others_is_refused_and_stays_theirs(tmp_path):
    """With trials and no identity, nobody knows what they are of."""
    study = optuna.create_study(storage=f"sqlite:///{tmp_path}/j", study_name="study", direction="maximize")
    study.ask()
    with pytest.raises(InputError, match="seed: absent, now 5"):
        search(tmp_path / "j", 2)
    assert study_of(tmp_path / "j").user_attrs == {}


def test_a_file_on_the_disk_that_failed_does_not_hide_why(tmp_path, monkeypatch):
    path = tmp_path / "j"

    def fails(*_, **__):
        raise optuna.exceptions.StorageInternalError("commit") from sqlite3.OperationalError("disk is full")

    with monkeypatch.context() as patch:

        def full(method):
            patch.setattr(optuna.Study, "tell", fails)
            raise StoreFull("no space left for a unit")

        with pytest.raises(StoreFull, match="for a unit"):
            search(path, 3, full)
    silence(path)
    assert [trial.problem for trial in search(path, 3).trials] == [""] * 3


@pytest.mark.parametrize("code", ["FULL", "IOERR", "CORRUPT"])
def test_an_error_of_the_database_is_the_machines_or_the_files(tmp_path, monkeypatch, code):
    error = sqlite3.OperationalError("what SQLite says")
    error.sqlite_errorcode = getattr(sqlite3, f"SQLITE_{code}")

    def fails(*_, **__):
        raise optuna.exceptions.StorageInternalError("commit") from error

    monkeypatch.setattr(optuna.Study, "ask", fails)
    with pytest.raises(InputError if code == "CORRUPT" else TransientError, match=r"/j .*what SQLite says"):
        search(tmp_path / "j", 1)


def test_a_name_with_signs_of_a_url_is_a_file(tmp_path):
    path = tmp_path / "a {b} c?d#e%20"
    assert search(path, 1).trials == search(path, 1).trials
    assert path.is_file()
