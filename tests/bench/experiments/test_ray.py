"""A Ray cluster: what lost machines, dead actors, tasks that kill and a killed driver cost, and what they do not."""

import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from synthetic_units import expected, failed, job, manifest, noted, table, when_noted

from fringe.bench.experiments import RunLog, _executors, make_executor
from fringe.bench.experiments._executors import SerialExecutor, run_tasks
from fringe.bench.experiments._ray import _cause
from fringe.errors import FringeError

pytest.importorskip("ray", reason="needs the extra ray")
HERE = Path(__file__).parent
pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="needs signals"), pytest.mark.xdist_group("ray")]


@pytest.fixture(scope="module")
def shared_cluster():
    """Two machines with a core each, on the loopback; each is a tree of processes."""
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *sys.path]))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # They set a signal handler, which only the main thread may do; here, machines are also added from others.
        patch.setattr("ray._private.node.Node._register_shutdown_hooks", lambda node: None)
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        made.add_node(num_cpus=1)
        made.wait_for_nodes()
        yield made
        ray.shutdown()
        made.shutdown()


@pytest.fixture
def cluster(shared_cluster, monkeypatch):
    """The machines, both at work; a task fails after two tries, so that fewer actors need to be started."""
    monkeypatch.setattr(_executors, "MAX_TRIES", 2)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *sys.path]))
    if not shared_cluster.worker_nodes:
        shared_cluster.add_node(num_cpus=1)
    return shared_cluster


def run(cluster, work, timeout=None, workers=2):
    """All missing tasks on the cluster: the log, and the end of each task by method."""
    told = []
    log = RunLog(ended=told.append)
    executor = make_executor(f"ray:{cluster.address}", workers, timeout)
    run_tasks(work, work.store, work.left(), log, executor)
    assert log.reports == told
    return log, Counter((report.task.method, report.state) for report in told)


@pytest.mark.thorough
def test_tasks_that_kill_fail_and_dead_actors_are_replaced(cluster, tmp_path):
    asked = manifest(("exits", "fine"), 2)
    work = job(tmp_path, asked)
    _, ends = run(cluster, work)
    assert ends == {("exits", "crashed"): 1, ("fine", "done"): 1}
    begun = Counter(line.split()[1] for line in noted(tmp_path / "processes"))
    assert begun == {"exits": 2, "fine": 1}
    assert failed(work.store) == {"exits": "ended its process, 2 times"}
    (tmp_path / "behave").touch()
    run_tasks(work, work.store, work.left(retry=True), RunLog(), SerialExecutor())
    assert failed(work.store) == {}
    assert table(work.store) == expected(asked)


@pytest.mark.slow
def test_a_task_that_hangs_is_ended_and_fails(cluster, tmp_path):
    work = job(tmp_path, manifest(("hangs", "fine"), 2))
    _, ends = run(cluster, work, timeout=8)
    assert ends == {("hangs", "crashed"): 1, ("fine", "done"): 1}
    assert failed(work.store) == {"hangs": "took longer than 8 s, 2 times"}


@pytest.mark.thorough
def test_the_task_of_a_lost_machine_is_done_by_another(cluster, tmp_path):
    asked = manifest(("holds",), 4)
    work, stop = job(tmp_path, asked), threading.Event()

    def lose():
        try:
            while len(noted(tmp_path / "processes")) < 2:  # both are at work
                if stop.wait(0.05):
                    return
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
            cluster.add_node(num_cpus=1)
        finally:
            (tmp_path / "behave").touch()

    thread = threading.Thread(target=lose)
    thread.start()
    try:
        _, ends = run(cluster, work)
    finally:
        stop.set()
        thread.join()
    assert ends == {("holds", "done"): 2}
    assert sorted(Counter(noted(tmp_path / "log")).values()) == [1, 2]
    assert table(work.store) == expected(asked)


DRIVER = """
import sys
from pathlib import Path
from synthetic_units import job, manifest
from fringe.bench.experiments import RunLog, make_executor
from fringe.bench.experiments._executors import run_tasks
work = job(Path(sys.argv[1]), manifest(("lasts", "fine"), 4))
run_tasks(work, work.store, work.left(), RunLog(), make_executor("ray:" + sys.argv[2], 2))
"""


@pytest.mark.thorough
def test_a_killed_driver_leaves_a_run_that_another_finishes(cluster, tmp_path):
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path), cluster.address])
    when_noted(tmp_path, "lasts", lambda pid: driver.kill()).join()
    driver.wait(60)
    asked = manifest(("lasts", "fine"), 4)
    work = job(tmp_path, asked)
    assert work.left()
    run_tasks(work, work.store, work.left(), RunLog(), SerialExecutor())
    assert table(work.store) == expected(asked)


def test_the_end_of_an_actor_is_described_without_its_identifiers():
    said = "The actor died.\n\tclass_name: _Actor\n\tactor_id: 1\nThe actor is dead because its memory ran out.\n"
    assert _cause(RuntimeError(said)) == "The actor died. The actor is dead because its memory ran out."


def test_no_cluster_at_the_address(tmp_path):
    work = job(tmp_path, manifest())
    with pytest.raises(FringeError, match=r"executor: no Ray cluster answers at '127.0.0.1:1'"):
        run_tasks(work, work.store, work.left(), RunLog(), make_executor("ray:127.0.0.1:1"))


OWN = """
import os, signal, sys
from pathlib import Path
import ray
from small_plans import digits_plan
from synthetic_units import job, manifest
from fringe.bench.experiments import RayExecutor, RunLog, RunOptions, make_executor, run_plan
from fringe.bench.experiments._executors import run_tasks

work, log = job(Path(sys.argv[1]), manifest(("fine", "unmounted"), 6)), RunLog()
run_tasks(work, work.store, work.left(), log, make_executor("ray", 1))
print(ray.is_initialized(), log.count("done"), log.count("left"))

def interrupt(report):
    os.kill(os.getpid(), signal.SIGTERM)

options = RunOptions(executor=RayExecutor(workers=1))
print(run_plan(digits_plan(shard=1), Path(sys.argv[1], "run"), options, RunLog(ended=interrupt)).stopped)
"""


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_without_an_address_a_cluster_is_started_and_ended(cluster, monkeypatch, tmp_path):
    """Also if there is one on this machine, which Ray itself would use. A signal ends the run.

    In a process of its own: Ray's cluster asks for a token, and who has one cannot enter a cluster without, such as
    that of the other tests."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    command = [sys.executable, "-c", OWN, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280)
    # three are left, because the disk's trouble may pass: nothing of it is recorded
    told = ["False 3 3", "interrupted (SIGTERM)"]
    assert [line for line in ended.stdout.splitlines() if line in told] == told, ended.stderr  # Ray prints there, too
    assert failed(job(tmp_path, manifest(("fine", "unmounted"), 6)).store) == {}
