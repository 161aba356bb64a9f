"""``kill -9`` and the power cut at every step of a run and at any time: nothing half done is ever seen, nothing that
was committed is computed again, and the table comes out the same."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import forked_runs
import pytest
from synthetic_units import SHARD, expected, job, leftovers, manifest, noted, rows_of, table

import fringe
from fringe.experiments import read_results
from fringe.experiments._store import MARKER, Store
from fringe.experiments._tasks import pending_tasks

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and /proc")
KILLED, WHOLE = [-signal.SIGKILL], [0]


@pytest.fixture
def nursery():
    return forked_runs.nursery()


def committed(base, asked):
    """The units in the store after a crash: each readable, and with the rows that it should have."""
    if not (base / "run" / MARKER).exists():
        return set()
    store, units = Store(base / "run"), {unit.key: unit for unit in pending_tasks(asked, (), SHARD)}
    found = set(store.tasks())
    assert found <= set(units)
    for key in found:
        assert store.read(key) is not None
        rows, about = store.read(key)
        assert [row.key for row in rows] == [row.key for row in rows_of(units[key])]
        assert about.pop("versions")["fringe"] == fringe.__version__
        assert about == {**units[key].record(asked), "failed": [], "map_versions": []}
    assert set(store.metadata()) == found
    return found


def finish(nursery, base, methods, images):
    """Run to the end; what the run left. ``again`` are the units that it computed though they were there."""
    asked = manifest(methods, images)
    before, performed = committed(base, asked), len(noted(base / "log"))
    assert nursery.run(base, methods=methods, images=images) == WHOLE
    again = set(noted(base / "log")[performed:]) & before
    assert again == set()
    assert leftovers(base / "run") == []
    assert table(Store(base / "run")) == expected(asked)


def steps(nursery, base, methods, images):
    """What a run does to the disk, in order, and how many steps it has."""
    assert nursery.run(base, methods=methods, images=images, step=-1) == WHOLE
    return [json.loads(line) for line in noted(base / "steps")]


def test_a_commit_is_flushed_before_it_is_named_and_its_folder_after(nursery, tmp_path):
    done = steps(nursery, tmp_path, ("fine",), 2)
    (key,) = Store(tmp_path / "run").tasks()
    folder = tmp_path / "run" / "units"
    at = next(i for i, step in enumerate(done) if step[-1] == str(folder / f"{key}.parquet"))
    partial = done[at][1]
    assert done[at - 2 : at + 2] == [
        ["write", partial],
        ["fsync", partial],
        ["replace", partial, str(folder / f"{key}.parquet")],
        ["fsync", str(folder)],
    ]
    assert Path(partial).name.startswith(".partial-")
    assert ["fsync", str(tmp_path)] in done  # the run's own folder outlasts a power cut


def deadly_steps(nursery, base):
    """The numbers of all steps of a run of three units in a new folder."""
    done = steps(nursery, base, ("fine",), 6)
    kinds = {"write": 3, "fsync": 2, "replace": 2, "mkdir": 1}  # open and the middle of a write count as steps, too
    return range(sum(kinds[step[0]] for step in done))


@pytest.mark.thorough
def test_killed_at_every_step(nursery, tmp_path):
    trials = deadly_steps(nursery, tmp_path / "steps")
    assert len(trials) >= 30
    for step in trials:
        base = tmp_path / f"{step}"
        assert nursery.run(base, step=step) == KILLED
        performed, there = noted(base / "log"), committed(base, manifest(images=6))
        assert len(set(performed) - there) <= 1
        assert len(leftovers(base / "run")) <= 1
        finish(nursery, base, ("fine",), 6)
        assert len(noted(base / "log")) <= 3 + 1
    assert nursery.run(tmp_path / "beyond", step=len(trials)) == WHOLE


def cut_power(base):
    """What a disk may hold after a power cut: a file without its bytes where they were not flushed, no file where its
    folder was not."""
    flushed, doubtful = set(), {}
    for line in noted(base / "steps"):
        kind, *paths = json.loads(line)
        if kind == "fsync":
            flushed.add(paths[0])
            doubtful = {target: torn for target, torn in doubtful.items() if str(Path(target).parent) != paths[0]}
            for target in [t for t, torn in doubtful.items() if torn]:
                Path(target).write_bytes(b"")
        elif kind == "write":
            flushed.discard(paths[0])
        elif kind == "replace":
            source, target = paths
            doubtful[target] = source not in flushed
            if source not in flushed:
                Path(target).write_bytes(b"")
    for target in doubtful:
        Path(target).unlink()


@pytest.mark.thorough
def test_power_cut_at_every_step(nursery, tmp_path):
    """Every unit that the run reported outlasts the cut, and the run goes on."""
    reported = 0
    for step in deadly_steps(nursery, tmp_path / "steps"):
        base = tmp_path / f"{step}"
        assert nursery.run(base, step=step) == KILLED
        cut_power(base)
        done = {line.split()[1] for line in noted(base / "reported")}
        assert done <= committed(base, manifest(images=6))
        reported += len(done)
        finish(nursery, base, ("fine",), 6)
    assert reported > 20


@pytest.mark.thorough
def test_killed_at_any_time(nursery, tmp_path):
    """60 kills out of the blue in runs of 20 units, each of which goes on where the last was killed."""
    methods, images, chance = ("fine", "too"), 20, random.Random(0)
    asked, kills, chain = manifest(methods, images), 0, 0
    began = time.monotonic()
    assert nursery.run(tmp_path / "whole", methods=methods, images=images) == WHOLE
    length = time.monotonic() - began
    assert table(Store(tmp_path / "whole" / "run")) == expected(asked)
    while kills < 60:
        base, there, wasted = tmp_path / f"chain-{chain}", set(), 0
        for _ in range(8):
            before = len(noted(base / "log"))
            how = nursery.run(base, methods=methods, images=images, after=chance.uniform(0, length / 3))
            performed, left = noted(base / "log")[before:], committed(base, asked)
            assert there <= left
            assert there.isdisjoint(performed)  # nothing that was committed is computed again
            assert len(performed) == len(set(performed))
            assert len(set(performed) - left) <= 1  # one worker loses one unit
            assert len(leftovers(base / "run")) <= 1
            there = left
            if how == WHOLE:
                break
            assert how == KILLED
            kills, wasted = kills + 1, wasted + len(set(performed) - left)
        finish(nursery, base, methods, images)
        assert len(noted(base / "log")) == len(expected(asked)) // (2 * SHARD) + wasted
        chain += 1


@pytest.mark.thorough
def test_killed_while_two_runs_share_the_folder(nursery, tmp_path):
    """Each of two runs loses at most the unit it is at."""
    chance, asked = random.Random(1), manifest(("fine", "too"), 20)
    for trial in range(8):
        base = tmp_path / f"{trial}"
        nursery.run(base, methods=("fine", "too"), images=20, runs=2, after=chance.uniform(0.01, 0.2))
        performed = noted(base / "log")
        assert len(performed) == len(set(performed))
        assert len(set(performed) - committed(base, asked)) <= 2
        finish(nursery, base, ("fine", "too"), 20)


@pytest.mark.thorough
def test_the_real_benchmark_killed_now_and_then(nursery, tmp_path):
    chance = random.Random(2)
    assert nursery.run(tmp_path / "whole", kind="digits") == WHOLE
    whole = table(Store(tmp_path / "whole" / "run"))
    assert len(whole) == 5 * 2 * 4  # IG and four controls, two metrics, four images
    base, there = tmp_path / "killed", set()
    for _ in range(5):
        assert nursery.run(base, kind="digits", step=chance.randrange(20, 45)) == KILLED
        if (base / "run" / MARKER).exists():
            store = Store(base / "run")
            assert all(store.read(key) for key in store.tasks())
            assert there <= set(store.metadata())
            there = set(store.metadata())
    done = len(noted(base / "reported"))
    assert done > 2
    assert nursery.run(base, kind="digits") == WHOLE
    assert not set(noted(base / "reported")[done:]) & {f"done {key}" for key in there}
    assert table(Store(base / "run")) == whole
    assert leftovers(base / "run") == []


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_real_process_killed_at_any_time(tmp_path, workers):
    """Whole processes from the first import on; with workers, they finish the unit in hand and end by themselves."""
    command = [sys.executable, str(HERE / "killed_program.py")]

    def start(base):
        return subprocess.Popen([*command, str(base), str(workers)], cwd=HERE)

    began = time.monotonic()
    assert start(tmp_path / "whole").wait() == 0
    length, chance = time.monotonic() - began, random.Random(workers)
    for _ in range(4):
        process = start(tmp_path / "killed")
        time.sleep(chance.uniform(length / 3, length))
        process.kill()
        process.wait()
    assert start(tmp_path / "killed").wait() == 0
    assert table(Store(tmp_path / "killed")) == table(Store(tmp_path / "whole"))
    assert leftovers(tmp_path / "killed") == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_command_killed_a_hundred_times_gives_the_same_table(tmp_path):
    """A thousand tasks, and a script that knows the command line alone."""
    config = tmp_path / "plan.toml"
    config.write_text('data = "embedded:digits"\nmethods = "ig"\nmetrics = "sparseness"\nn = 200\nshard = 1\n')
    command = [sys.executable, "-m", "fringe", "benchmark", "--config", str(config), "--set", "ig.steps=2"]
    whole, killed = ([*command, "--no-report", "--out", str(tmp_path / name)] for name in ("whole", "killed"))
    assert subprocess.run(whole, capture_output=True).returncode == 0
    times = os.environ.get("FRINGE_KILLS", "100")
    script = [str(HERE / "kill_again_and_again.sh"), times, str(tmp_path / "killed"), *killed]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= int(times) // 4
    frames = [read_results(tmp_path / name).frame.drop("seconds") for name in ("whole", "killed")]
    assert frames[0].equals(frames[1])
    assert len(frames[0]) == 1000
    print(f"{done.stdout.strip()} kills")


def test_a_claim_ends_with_its_process(nursery, tmp_path):
    """The lock of a killed run stays as a file and holds nobody up."""
    assert nursery.run(tmp_path, methods=("hangs",), images=2, since="log", after=0) == KILLED
    (key,) = noted(tmp_path / "log")
    assert len(list((tmp_path / "run" / "claims").iterdir())) == 1
    with job(tmp_path, manifest(("hangs",), 2)).store.lock(key) as mine:
        assert mine
