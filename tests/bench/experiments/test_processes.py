"""Several processes: what one that dies, hangs or is killed costs, and what it does not."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from forked_runs import end_of, fork, spawn_quickly
from poison_methods import Poison
from small_plans import IG, digits_plan, models
from synthetic_units import (
    SyntheticRunner,
    commit,
    expected,
    failed,
    job,
    manifest,
    noted,
    table,
    when_noted,
)

from fringe.attribution import read_target
from fringe.bench.experiments import RunLog, RunOptions, _executors, run_plan
from fringe.bench.experiments._executors import (
    ProcessExecutor,
    SerialExecutor,
    perform_or_exit,
    run_tasks,
)
from fringe.bench.experiments._results import Results
from fringe.bench.experiments._store import Store
from fringe.errors import FringeError, InputError

HERE = Path(__file__).parent
#: With the folders of the tests' own modules.
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in (str(HERE), *sys.path) if path)}
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs a fork server, and signals")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    spawn_quickly(monkeypatch)


def run(work, workers=2, timeout=None, told=None, **which):
    """All missing units in processes: the account, and the fate of each unit by method as it was told."""
    told = [] if told is None else told
    account = RunLog(ended=told.append)
    run_tasks(work, work.store, work.left(**which), account, ProcessExecutor(workers, timeout))
    assert account.reports == told
    assert multiprocessing.active_children() == []
    return account, Counter((report.task.method, report.state) for report in told)


def performed(base):
    """How often each method was begun."""
    return Counter(line.split()[1] for line in noted(base / "processes"))


def test_units_that_end_their_process_fail_and_those_that_meet_a_broken_disk_are_left(tmp_path):
    fatal = ("exits", "leaves", "segfaults", "raises")
    asked = manifest((*fatal, "unmounted", "fine"), 2)
    work = job(tmp_path, asked)
    _, fates = run(work)
    assert fates == {**{(name, "crashed"): 1 for name in fatal}, ("unmounted", "left"): 1, ("fine", "done"): 1}
    assert performed(tmp_path) == {**dict.fromkeys(fatal, 3), "unmounted": 1, "fine": 1}
    assert failed(work.store) == {
        "exits": "ended its process (exit code 7), 3 times",
        "leaves": "ended its process (exit code 0), 3 times",
        "segfaults": "ended its process (SIGSEGV), 3 times",
        "raises": "ended its process (exit code 1), 3 times",
    }
    (tmp_path / "behave").touch()
    assert {unit.method for unit in work.left()} == {"unmounted"}
    _, fates = run(work, retry=True)
    assert sum(fates.values()) == 5
    assert failed(work.store) == {}
    assert table(work.store) == expected(asked)


def test_a_bug_shows_its_traceback_before_its_process_ends(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(os, "_exit", sys.exit)
    work = job(tmp_path, manifest(("raises",), 2))
    with pytest.raises(SystemExit, match="1"):
        perform_or_exit(work, work.left()[0], {})
    head, *lines = capsys.readouterr().err.splitlines()
    assert (head, lines[0], lines[-1]) == (
        "raises on model",
        "Traceback (most recent call last):",
        "AssertionError: a bug",
    )


@pytest.mark.thorough
def test_a_unit_that_hangs_is_ended_and_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(_executors, "MAX_TRIES", 2)
    work = job(tmp_path, manifest(("hangs", "fine"), 2))
    _, fates = run(work, timeout=4)
    assert fates == {("hangs", "crashed"): 1, ("fine", "done"): 1}
    assert performed(tmp_path)["hangs"] == 2  # on a busy machine the other one may take 4 s, too
    assert failed(work.store) == {"hangs": "took longer than 4 s, 2 times"}


def test_a_process_killed_at_work_costs_its_unit_one_more_try(tmp_path):
    asked = manifest(("waits", "fine", "too"), 2)
    work = job(tmp_path, asked)
    killer = when_noted(tmp_path, "waits", lambda pid: os.kill(pid, signal.SIGKILL))
    _, fates = run(work)
    killer.join()
    assert fates == {("waits", "done"): 1, ("fine", "done"): 1, ("too", "done"): 1}
    assert performed(tmp_path) == {"waits": 2, "fine": 1, "too": 1}
    assert failed(work.store) == {}
    assert table(work.store) == expected(asked)


def test_a_process_killed_between_two_units_is_replaced(tmp_path):
    work = job(tmp_path, manifest(("fine",), 2 * 3))

    def kill_the_idle(report):
        os.kill(int(noted(tmp_path / "processes")[-1].split()[0]), signal.SIGKILL)

    account = RunLog(ended=kill_the_idle)
    run_tasks(work, work.store, work.left(), account, ProcessExecutor(1))
    assert account.count("done") == 3
    assert performed(tmp_path) == {"fine": 3}
    assert failed(work.store) == {}
    assert multiprocessing.active_children() == []


class Unborn(SyntheticRunner):
    """Its processes end before they can take a unit."""

    def __reduce__(self):
        return os._exit, (3,)


def test_processes_that_never_begin_blame_no_unit(tmp_path):
    made = job(tmp_path, manifest(("fine",), 8))
    unborn = Unborn(made.resolved, tmp_path)
    with pytest.raises(FringeError, match=r"workers: 3 processes in turn ended its process \(exit code 3\) before"):
        run_tasks(unborn, made.store, unborn.left(), RunLog(), ProcessExecutor(2))
    assert multiprocessing.active_children() == []
    assert made.store.blocks() == []


class Refusing(SyntheticRunner):
    def perform(self, unit, stored=None):
        raise FringeError("model 'model': its weights changed since the run began")


def test_what_a_process_refuses_is_raised_and_ends_the_others(tmp_path):
    made = job(tmp_path, manifest(("fine",), 8))
    refusing = Refusing(made.resolved, tmp_path)
    with pytest.raises(FringeError, match="its weights changed"):
        run_tasks(refusing, made.store, refusing.left(), RunLog(), ProcessExecutor(2))
    assert multiprocessing.active_children() == []


def hold(base, keys, until):
    """Claim units as another run, until a file is there."""
    store = Store(base / "run")
    assert [store.claim(key) for key in keys] == ["claimed"] * len(keys)
    (base / "holding").touch()
    while not until.exists():
        time.sleep(0.05)
    store.close()


def test_units_that_another_run_has_claimed_are_looked_at_now_and_then(tmp_path, monkeypatch):
    work, scheduled = job(tmp_path, manifest(("fine", "too"), 4)), []
    process = _executors._Process
    send = process.send
    monkeypatch.setattr(process, "send", lambda self, *task: (scheduled.append(task), send(self, *task)))
    units = work.left()
    other = fork(hold, tmp_path, [unit.key for unit in units[:3]], tmp_path / "go")
    while not (tmp_path / "holding").exists():
        time.sleep(0.05)
    account = RunLog(ended=lambda report: (tmp_path / "go").touch())
    run_tasks(work, work.store, units, account, ProcessExecutor(2))
    assert end_of(other) == 0
    assert account.count("done") == 4
    assert table(work.store) == expected(manifest(("fine", "too"), 4))
    assert len(scheduled) == 4  # each once, and those of the other run when it had given them up


def test_what_another_run_has_done_meanwhile_is_not_done_again(tmp_path):
    work = job(tmp_path, manifest(("fine",), 4))
    first, second = work.left()

    def other():
        """Do a unit, and live on."""
        store = Store(tmp_path / "run")
        assert store.claim(first.key) == "claimed"
        commit(store, first)
        hold(tmp_path, [], tmp_path / "go")

    child = fork(other)
    while not (tmp_path / "holding").exists():
        time.sleep(0.05)
    account = RunLog()
    run_tasks(work, work.store, [first, second], account, SerialExecutor())
    assert [report.state for report in account.reports] == ["cached", "done"]
    (tmp_path / "go").touch()
    assert end_of(child) == 0
    assert table(work.store) == expected(manifest(("fine",), 4))


@pytest.mark.thorough
def test_a_method_that_cannot_be_sent_is_refused_before_a_process_starts(tmp_path):
    method = read_target(lambda model, x, target: x)
    message = r"executor: its methods or metrics cannot be sent .*; write them as classes of a module .*='serial'"
    with pytest.raises(InputError, match=message):
        run_plan(digits_plan(models=models(own=method)), tmp_path / "run", RunOptions(executor=ProcessExecutor(2)))
    assert multiprocessing.active_children() == []


@pytest.mark.thorough
def test_a_poisonous_method_of_a_real_plan(tmp_path, monkeypatch):
    """The others are computed; it is listed, passed over in the next run, and computed when it is asked for again."""
    monkeypatch.setattr(_executors, "MAX_TRIES", 1)
    plan = digits_plan(models=models(poison=Poison(str(tmp_path / "cure")), ig=IG), controls=False, n=2)
    out = tmp_path / "run"

    def cells():
        store = Store(out)
        return {
            (cell.method, cell.metric): (cell.scored, cell.missing)
            for cell in Results(first.resolved.manifest, store).cells.values()
        }

    first = run_plan(plan, out, RunOptions(executor=ProcessExecutor(2)))
    assert first.stopped is None
    assert first.partial
    assert first.log.count("crashed") == 1
    done, lacking = (2, 0), (0, 0)
    metrics = ("sparseness", "insertion")
    assert cells() == {**{("poison", m): lacking for m in metrics}, **{("ig", m): done for m in metrics}}
    assert failed(Store(out)) == {"poison": "ended its process (SIGSEGV), 1 times"}

    second = run_plan(plan, out, RunOptions(executor=ProcessExecutor(2)))
    assert (second.log.reports, second.partial, second.failed) == ([], True, 4)

    Path(tmp_path / "cure").touch()
    third = run_plan(plan, out, RunOptions(retry=True))
    assert third.log.count("done") == 1
    assert not third.partial
    assert set(cells().values()) == {done}
    fourth = run_plan(plan, out, RunOptions())
    assert fourth.log.reports == []
    assert not fourth.partial


@pytest.mark.slow
def test_a_script_without_a_main_guard_is_told_so(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\nfrom small_plans import digits_plan\n"
        "from fringe.bench.experiments import ProcessExecutor, RunOptions, run_plan\n"
        f"run_plan(digits_plan(), Path({str(tmp_path / 'run')!r}), RunOptions(executor=ProcessExecutor(2)))\n"
    )
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, env=ENVIRONMENT)
    assert ended.returncode == 1
    assert 'under `if __name__ == "__main__"`' in ended.stderr.splitlines()[-1]
    assert Store(tmp_path / "run").blocks() == []


@pytest.mark.slow
def test_spawned_processes_end_with_a_killed_parent(tmp_path):
    program = subprocess.Popen([sys.executable, HERE / "killed_program.py", tmp_path / "run", "2"], env=ENVIRONMENT)

    def children():
        found = set()
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                if int(stat.read_text().rpartition(")")[2].split()[1]) == program.pid:
                    found.add(int(stat.parent.name))
            except OSError:
                continue
        return found

    def alive(pid):
        stat = Path(f"/proc/{pid}/stat")
        return stat.exists() and ") Z " not in stat.read_text()

    while len(workers := children()) < 3:  # two workers, and the process that tracks resources
        assert program.poll() is None
        time.sleep(0.1)
    program.kill()
    program.wait()
    for _ in range(600):
        if not any(alive(pid) for pid in workers):
            break
        time.sleep(0.1)
    assert not any(alive(pid) for pid in workers)
