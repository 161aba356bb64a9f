"""A search survives what happens to processes and files: kills, several at once, torn journals, silent hosts."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest
from tuning_toys import BASE, SPACE, asked, score, search

import fringe
from fringe import FringeError, InputError, _process
from fringe._process import fate, this_process
from fringe.errors import TransientError
from fringe.experiments import StoreFull
from fringe.tuning import Study, _study
from fringe.tuning._study import Journal, SharedStudy

HERE = Path(__file__).parent
needs_proc = pytest.mark.skipif(not Path("/proc").is_dir(), reason="the system does not say when a process started")


def study_of(journal: Path) -> optuna.Study:
    return optuna.load_study(study_name="study", storage=optuna.storages.JournalStorage(Journal(journal)))


def states(journal: Path) -> list[str]:
    return [trial.state.name for trial in study_of(journal).trials]


@contextlib.contextmanager
def worker(journal: Path, trials: int, hang_at: int = 0):
    """A process that has taken its first trial and waits; killed at the end."""
    found = os.pathsep.join([str(HERE), str(Path(fringe.__file__).parents[1]), *sys.path])
    process = subprocess.Popen(
        [sys.executable, HERE / "tuning_worker.py", journal, str(trials), str(hang_at)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": found},
    )
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def start(process) -> None:
    process.stdin.write("\n")
    process.stdin.flush()


def test_the_journal_gives_the_sampler_the_base_as_its_first_point(tmp_path):
    """Its settings are compared with the base's score: drawn ones would mislead every later trial."""
    tuned = search(tmp_path / "j", 2)
    first = study_of(tmp_path / "j").trials[0]
    assert first.params == SPACE.clip(BASE)
    assert first.value == tuned.trials[0].value


@needs_proc
@pytest.mark.thorough
def test_a_search_goes_on_after_kill_9(tmp_path):
    whole, journal = search(tmp_path / "whole", 16), tmp_path / "j"
    with worker(journal, 16, hang_at=13) as process:
        start(process)
        assert process.stdout.readline().split() == ["hanging", str(whole.trials[12].settings["tau"])]
        process.send_signal(signal.SIGKILL)
        while process_state(process.pid) != "Z":  # dead, and not yet reaped by its parent
            time.sleep(0.01)
        assert states(journal) == ["COMPLETE"] * 12 + ["RUNNING"]
        resumed = search(journal, 16)
    assert states(journal) == ["COMPLETE"] * 12 + ["FAIL"] + ["COMPLETE"] * 4
    dead, again = study_of(journal).trials[12:14]
    assert dead.params == again.params == whole.trials[12].settings
    assert resumed == whole


def process_state(pid: int) -> str:
    return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.thorough
def test_two_processes_share_the_work_and_stop_together(tmp_path):
    journal, alone = tmp_path / "j", search(tmp_path / "alone", 10)
    with worker(journal, 24) as first, worker(journal, 24) as second:
        start(first)
        start(second)
        shares = [sorted(map(int, process.stdout.readline().split()[1:])) for process in (first, second)]
    assert sorted(shares[0] + shares[1]) == list(range(24))
    assert min(map(len, shares)) > 0
    assert states(journal) == ["COMPLETE"] * 24
    tuned = search(journal, 24)
    assert len({tuple(settings.values()) for settings in asked(tuned)}) == 24
    assert asked(tuned)[:10] == asked(alone)  # random trials depend on their slot alone


def test_a_journal_cut_anywhere_is_resumed_to_the_same_study(tmp_path, monkeypatch):
    monkeypatch.setattr(_study, "fate", lambda owner: "gone")
    whole, journal = search(tmp_path / "whole", 13), tmp_path / "j"
    content = (tmp_path / "whole").read_bytes()
    last = content.rstrip(b"\n").rfind(b"\n") + 1
    records = [i for i in range(len(content)) if content[i : i + 1] == b"\n"]
    inside = [records[k] + more for k in (0, 1, 60, 80) for more in (0, 1, 30)]
    cuts = [0, 7, 40, *inside, last, last + 5, len(content) - 1]
    for cut in cuts:
        journal.write_bytes(content[:cut])
        assert search(journal, 13) == whole, cut


def test_a_line_torn_in_the_middle_of_a_search_costs_nothing(tmp_path):
    journal = tmp_path / "j"

    def tears(method):
        """Another process is killed while it writes."""
        with open(journal, "ab") as file:
            file.write(b'{"op_code":5,"worker_id":"')
        return score(method)

    assert search(journal, 12, tears) == search(tmp_path / "whole", 12)
    assert b'id":"{' not in journal.read_bytes()
    assert states(journal) == ["COMPLETE"] * 12


def test_a_spoilt_line_is_named(tmp_path, monkeypatch):
    journal = tmp_path / "j"
    search(journal, 3)
    lines = journal.read_bytes().splitlines(keepends=True)
    for bad in (b"\0" * 50 + b"\n", lines[9][:-9] + b"\n", b"\n"):
        journal.write_bytes(b"".join([*lines[:9], bad, *lines[10:]]))
        with pytest.raises(InputError, match=r"journal: line 10 of .*/j is no record.*remove the lines from there on"):
            search(journal, 4)
    journal.write_bytes(b"".join(lines[:9]))
    monkeypatch.setattr(_study, "fate", lambda owner: "gone")
    assert len(search(journal, 4).trials) == 4


@pytest.mark.parametrize("content", [b"one line without end", b"many\nlines\n", b'{"opinion": 1}\n'])
def test_a_file_that_is_no_journal_is_left_alone(tmp_path, content):
    (tmp_path / "notes").write_bytes(content)
    with pytest.raises(InputError, match=r"line 1 of .*notes is no record of a study; is it a journal"):
        search(tmp_path / "notes", 3)
    assert (tmp_path / "notes").read_bytes() == content
    with pytest.raises(InputError, match="is no file"):
        search(tmp_path, 3)


@pytest.mark.parametrize("by", ["another identity", "Optuna itself"])
def test_a_study_of_others_is_refused_and_stays_theirs(tmp_path, by):
    """Without a trial so far it has an owner already; with trials and no identity, nobody knows what they are of."""
    if by == "another identity":
        _study._open(tmp_path / "j", "study", {"seed": 1})
    else:
        storage = optuna.storages.JournalStorage(Journal(tmp_path / "j"))
        optuna.create_study(storage=storage, study_name="study", direction="maximize").ask()
    before = study_of(tmp_path / "j").user_attrs
    with pytest.raises(InputError, match=r"seed: (1|null) there, 0 now"):
        _study._open(tmp_path / "j", "study", {"seed": 0})
    assert study_of(tmp_path / "j").user_attrs == before


def test_locks_are_given_back(tmp_path):
    search(tmp_path / "j", 2)
    assert [path.name for path in tmp_path.iterdir()] == ["j"]


def taken_elsewhere(
    journal: Path, monkeypatch, trials: int = 2, host: str = "elsewhere"
) -> tuple[SharedStudy, optuna.Trial]:
    """A trial that another host took and does not finish."""
    search(journal, trials)
    study = study_of(journal)
    where = Study(journal, "study", 5, study.user_attrs["identity"], stale_after=1e9)
    with monkeypatch.context() as patch:
        patch.setattr(_study, "this_process", lambda: this_process() | {"host": host})
        other = SharedStudy(where, SPACE, SPACE.clip(BASE), trials + 1)
        return other, other.ask()


def test_a_trial_of_a_silent_host_is_reclaimed_when_it_is_stale(tmp_path, monkeypatch):
    journal = tmp_path / "j"
    other, theirs = taken_elsewhere(journal, monkeypatch)
    meanwhile = search(journal, 4)
    assert (len(meanwhile.trials), meanwhile.running) == (3, 1)
    assert [trial.number for trial in meanwhile.trials] == [0, 1, 3]
    time.sleep(0.05)
    tuned = search(journal, 4, stale_after=0.04)
    assert (len(tuned.trials), tuned.running) == (4, 0)
    assert tuned.trials[2].settings == theirs.params
    other.tell(theirs, 0.99, {"scores": {}})  # it was only slow: the trial is no longer its own
    other.release(theirs)
    assert search(journal, 4) == tuned
    assert states(journal).count("COMPLETE") == 4


@needs_proc
def test_a_slow_trial_of_a_living_process_is_its_own(tmp_path, monkeypatch):
    journal = tmp_path / "j"
    other, theirs = taken_elsewhere(journal, monkeypatch, host=this_process()["host"])
    time.sleep(0.02)
    assert search(journal, 3, stale_after=0.01).running == 1
    other.tell(theirs, 0.99, {"scores": {}})
    assert search(journal, 3).value == 0.99


def test_a_trial_that_kills_its_process_twice_has_failed(tmp_path, monkeypatch):
    journal = tmp_path / "j"
    _, theirs = taken_elsewhere(journal, monkeypatch)
    monkeypatch.setattr(_study, "fate", lambda owner: "gone")
    _, again = taken_elsewhere(journal, monkeypatch, trials=2)
    assert again.params == theirs.params
    tuned = search(journal, 4)
    assert [trial.problem for trial in tuned.trials] == ["", "", "its process ended twice before it was scored", ""]
    assert states(journal) == ["COMPLETE", "COMPLETE", "FAIL", "FAIL", "COMPLETE"]


def test_a_turn_cut_short_is_no_death(tmp_path, monkeypatch):
    journal = tmp_path / "j"
    _, theirs = taken_elsewhere(journal, monkeypatch)
    lines = journal.read_bytes().splitlines(keepends=True)
    assert b'"owner"' in lines[-1]
    journal.write_bytes(b"".join(lines[:-2]))  # killed before all of its setting was written
    tuned = search(journal, 3)
    assert tuned.trials[2].settings == theirs.params
    assert study_of(journal).trials[3].user_attrs["deaths"] == 0


TROUBLES = {
    "disk": lambda: StoreFull("no space left"),
    "away": lambda: TransientError("images: 3 have no score yet"),
    "memory": lambda: MemoryError(),
    "system": lambda: OSError(errno.EIO, "Input/output error"),
    "device": lambda: RuntimeError("CUDA error: unspecified launch failure"),
    "caused": lambda: caused_by(FringeError("scores: cannot be read"), OSError(errno.ESTALE, "Stale file handle")),
}


def caused_by(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("at", [1, 3])
def test_trouble_of_the_system_fails_no_trial(tmp_path, trouble, at):
    journal, error, calls = tmp_path / "j", TROUBLES[trouble](), []

    def troubled(method):
        calls.append(method)
        if len(calls) >= at:
            raise error
        return score(method)

    for _ in range(3):  # the same trouble again and again
        with pytest.raises(type(error)) as caught:
            search(journal, 4, troubled)
        assert caught.value is error
        assert "RUNNING" not in states(journal)  # else the sampler would shun these settings while this process lives
    tuned = search(journal, 4)
    assert [trial.problem for trial in tuned.trials] == [""] * 4
    assert tuned == search(tmp_path / "whole", 4)


def test_a_refusal_of_a_setting_is_a_failed_trial_for_good(tmp_path):
    def refuses(method):
        if method is not BASE:
            raise FringeError("tau: too small")
        return score(method)

    search(tmp_path / "j", 3, refuses)
    assert [trial.problem for trial in search(tmp_path / "j", 3).trials] == ["", "tau: too small", "tau: too small"]


def test_a_journal_on_the_disk_that_failed_does_not_hide_why(tmp_path, monkeypatch):
    journal = tmp_path / "j"

    def fails(study, logs):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:

        def full(method):
            patch.setattr(Journal, "append_logs", fails)
            raise StoreFull("no space left for a unit")

        with pytest.raises(StoreFull, match="for a unit"):
            search(journal, 3, full)
    monkeypatch.setattr(_study, "fate", lambda owner: "gone")  # that process has ended
    assert [trial.problem for trial in search(journal, 3).trials] == [""] * 3


def test_a_journal_is_no_url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="journal: got 's3:/bucket/j'; s3:// is not supported"):
        search(Path("s3://bucket/j"), 3)
    assert list(tmp_path.iterdir()) == []


def test_a_search_with_nothing_finished_says_that_others_are_at_work(tmp_path):
    def meanwhile(method):
        with pytest.raises(FringeError, match=r"none of 0 trials succeeded \(1 still running\)$"):
            search(tmp_path / "j", 1)
        return score(method)

    assert len(search(tmp_path / "j", 1, meanwhile).trials) == 1


@needs_proc
def test_fates(monkeypatch):
    me = this_process()
    assert fate(me) == "alive"
    assert fate(me | {"start": "1"}) == "gone"  # a later process has the number
    assert fate(me | {"host": "another"}) == "unknown"
    for part in ("_boot", "_namespace"):  # machines and containers that share the host's name
        with monkeypatch.context() as patch:
            patch.setattr(_process, part, lambda: "another")
            theirs = this_process()
        assert fate(theirs) == "unknown"
        assert fate(theirs | {"pid": 2**22 + 1}) == "unknown"
    assert fate(me | {"start": ""}) == "unknown"
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    theirs = me | {"pid": child.pid, "start": _process._start(child.pid)}
    assert fate(theirs) == "alive"
    child.communicate()
    assert fate(theirs) == "gone"
