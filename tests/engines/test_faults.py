"""A disk that is full, broken or read-only; signals; two runs in one folder; and plans that change."""

import errno
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import forked_runs
import pytest
from forked_runs import Steps, digits_plan
from poison_methods import Signalled
from synthetic_units import expected, job, leftovers, manifest, noted, table

from fringe import IntegratedGradients
from fringe._errors import FringeError, InputError
from fringe.benchmark.coverage import coverage, present, stale
from fringe.benchmark.plan import Arm, ModelSource
from fringe.benchmark.results import read_results
from fringe.benchmark.store import Store, StoreFull
from fringe.engines import Account, How, Progress, run_here, run_plan
from fringe.engines.run import Interrupted, interruptible
from fringe.metrics import Insertion, Sparseness

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and /proc")
IG = IntegratedGradients(steps=8)


def arms(model="embedded:digits", **methods):
    return (Arm("digits", ModelSource(model), methods or {"ig": IG}),)


def small(**changed):
    """IG alone on two images, one in a unit."""
    return digits_plan(**{"arms": arms(), "controls": False, "n": 2, "shard": 1, **changed})


def done_units(finished):
    """What a run computed: (method, metrics, number of images) of each unit."""
    return Counter((r.unit.method, r.unit.metrics, len(r.unit.images)) for r in finished.account.reports)


# The disk


@pytest.fixture
def mounted(tmp_path):
    """A file system of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True)
    if made.returncode:
        pytest.skip(f"cannot mount a file system here: {made.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The table of the digits plan where nothing goes wrong."""
    out = tmp_path_factory.mktemp("whole") / "run"
    assert run_plan(digits_plan(shard=1), out, How()).stopped is None
    return table(Store(out))


@linux
def test_a_full_disk_stops_the_run_until_there_is_room(mounted, whole):
    out, ballast = mounted / "run", mounted / "ballast"
    room = os.statvfs(mounted)
    ballast.write_bytes(b"x" * (room.f_bavail * room.f_frsize - 200_000))
    first = run_plan(digits_plan(shard=1), out, How())
    needed = re.search(r"no space left \((\d+) bytes are needed; free some and run the same command", first.stopped)
    assert 4_000 < int(needed[1]) < 40_000
    done = first.account.count("done")
    assert 2 < done < 20
    store = Store(out)
    assert len(store.about()) == len(store.units()) == done
    assert leftovers(out) == []
    again = run_plan(digits_plan(shard=1), out, How())
    assert "bytes are needed" in again.stopped
    assert again.account.count("done") == 0

    ballast.unlink()
    second = run_plan(digits_plan(shard=1), out, How())
    assert second.stopped is None
    assert second.account.count("done") == 20 - done
    assert table(store) == whole


@linux
def test_a_full_disk_where_a_run_would_begin(mounted):
    room = os.statvfs(mounted)
    (mounted / "run").mkdir()
    (mounted / "ballast").write_bytes(b"x" * (room.f_bavail * room.f_frsize))
    with pytest.raises(FringeError, match=r"no space left|No space left"):
        run_plan(small(), mounted / "run", How())
    (mounted / "ballast").unlink()
    assert run_plan(small(), mounted / "run", How()).account.count("done") == 2


@linux
def test_a_read_only_file_system(mounted):
    run_plan(small(n=1), mounted / "run", How())
    subprocess.run(["mount", "-o", "remount,ro", mounted], check=True)
    for out in (mounted / "run", mounted / "new"):
        with pytest.raises(InputError, match=rf"^--out: .*{out.name}.*Read-only file system"):
            run_plan(small(), out, How())
    kept = Store(mounted / "run", create=False)  # reading needs no right to write
    assert len(kept.about()) == 1


@linux
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root, who can be somebody else")
def test_a_folder_of_somebody_else(tmp_path):
    tmp_path.chmod(0o700)
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        try:
            Store(tmp_path / "run")
        except InputError as error:
            os.write(theirs, str(error).encode())
        os._exit(0)
    os.close(theirs)
    os.waitpid(child, 0)
    told = os.read(ours, 1000).decode()
    os.close(ours)
    assert told == f"--out: cannot write in {str(tmp_path / 'run')!r} (Permission denied)"


FAULTS = {
    errno.ENOSPC: (StoreFull, r"no space left \(\d+ bytes are needed"),
    errno.EDQUOT: (StoreFull, r"no space left \(\d+ bytes are needed"),
    errno.EROFS: (InputError, r"^--out: .* cannot be written \(Read-only file system\)"),
    errno.EACCES: (InputError, r"^--out: .* cannot be written \(Permission denied\)"),
    errno.EIO: (FringeError, r"a result cannot be written \(Input/output error\); nothing that was computed before"),
}


def fail(code):
    def strike():
        raise OSError(code, os.strerror(code))

    return strike


def run_synthetic(base, asked, chosen, strike):
    """A run in which ``strike`` is called at a step: how many steps there were."""
    with Steps(base / "steps", chosen, strike) as steps:
        work = job(base, asked)
        account = Account()
        run_here(work, work.left(), account, lambda report: None)
    return steps.count


@linux
@pytest.mark.parametrize("code", FAULTS, ids=errno.errorcode.get)
def test_every_call_that_can_fail(tmp_path, code):
    """The second commit fails at each of its calls: the first unit stays, and the next run computes the others."""
    kind, told = FAULTS[code]
    asked = manifest(images=4)
    (tmp_path / "count").mkdir()
    total = run_synthetic(tmp_path / "count", asked, -1, None)
    last, silent = range(total - 9, total), 0
    for step in last:
        base = tmp_path / f"{step}"
        base.mkdir()
        try:
            run_synthetic(base, asked, step, fail(code))
        except FringeError as error:
            assert type(error) is kind
            assert re.search(told, str(error))
        else:
            silent += 1
        store = Store(base / "run")
        assert leftovers(base / "run") == []
        assert len(store.units()) == len(store.about()) >= 1
        run_synthetic(base, asked, -1, None)
        assert table(store) == expected(asked)
    assert silent == 2  # a folder that cannot be flushed, which some systems refuse


@linux
def test_a_full_disk_in_a_process_stops_them_all(mounted, monkeypatch):
    """What one process finds is raised where the run was asked for."""
    from fringe.engines import processes, run_processes

    work = job(mounted, manifest(("fine", "too"), 40))
    room = os.statvfs(mounted)
    (mounted / "ballast").write_bytes(b"x" * (room.f_bavail * room.f_frsize - 60_000))
    context = processes.multiprocessing.get_context("forkserver")
    monkeypatch.setattr(processes.multiprocessing, "get_context", lambda how: {"spawn": context}[how])
    with pytest.raises(StoreFull, match="bytes are needed"):
        run_processes(work, work.left(), Account(), lambda report: None, workers=2)
    (mounted / "ballast").unlink()
    work.store.sweep()
    assert leftovers(mounted / "run") == []
    assert len(work.store.about()) == len(work.store.units())
    run_here(work, work.left(), Account(), lambda report: None)
    assert table(work.store) == expected(manifest(("fine", "too"), 40))


# Signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_amid_a_method_ends_the_run_and_is_no_failure_of_it(tmp_path, number):
    before = [signal.getsignal(known) for known in (signal.SIGINT, signal.SIGTERM)]
    signalled = Signalled(int(number), str(tmp_path / "cure"))
    plan = small(arms=arms(ig=IG, signalled=signalled, last=IntegratedGradients(steps=4)))
    first = run_plan(plan, tmp_path / "run", How())
    assert first.stopped == f"interrupted ({number.name})"
    assert done_units(first) == {("ig", ("sparseness", "insertion"), 1): 1}
    assert {row.status for row in table(Store(tmp_path / "run")).values()} == {"ok"}
    assert [signal.getsignal(known) for known in (signal.SIGINT, signal.SIGTERM)] == before
    (tmp_path / "cure").touch()
    second = run_plan(plan, tmp_path / "run", How())
    assert second.stopped is None
    assert not second.partial
    assert second.account.count("done") == 5


@linux
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_every_step_of_a_commit(tmp_path, number):
    asked = manifest(images=4)
    (tmp_path / "count").mkdir()
    total = run_synthetic(tmp_path / "count", asked, -1, None)
    for step in range(total - 18, total):
        base = tmp_path / f"{step}"
        base.mkdir()
        with pytest.raises(Interrupted, match=number.name), interruptible():
            run_synthetic(base, asked, step, lambda: os.kill(os.getpid(), number))
        store = Store(base / "run")
        assert leftovers(base / "run") == []
        assert len(store.units()) == len(store.about())
        run_synthetic(base, asked, -1, None)  # this process holds no claim any more, or this would wait for ever
        assert table(store) == expected(asked)


def test_a_signal_at_any_time(tmp_path):
    """40 signals out of the blue, in a process that lives on."""
    asked, interrupted = manifest(("fine", "too"), 20), 0
    for trial in range(40):
        base = tmp_path / f"{trial // 8}"
        base.mkdir(exist_ok=True)
        work = job(base, asked)
        sender = threading.Timer(0.01 + 0.005 * (trial % 8), os.kill, (os.getpid(), signal.SIGTERM))
        try:
            with interruptible():
                sender.start()
                run_here(work, work.left(), Account(), lambda report: None)
                time.sleep(0.2)
        except Interrupted:
            interrupted += 1
        sender.join()
        assert len(work.store.units()) == len(work.store.about())
        assert leftovers(base / "run") == []
    assert interrupted == 40
    for base in sorted(tmp_path.iterdir()):
        work = job(base, asked)
        run_here(work, work.left(), Account(), lambda report: None)
        assert table(work.store) == expected(asked)


def test_a_signal_with_processes_ends_them(tmp_path, monkeypatch):
    import multiprocessing

    context = multiprocessing.get_context("forkserver")
    monkeypatch.setattr(multiprocessing, "get_context", lambda how: {"spawn": context}[how])
    told = Progress(ended=lambda report: os.kill(os.getpid(), signal.SIGINT))
    first = run_plan(small(n=4), tmp_path, How(workers=2), told)
    assert first.stopped == "interrupted (SIGINT)"
    assert 0 < first.account.count("done") < 4
    assert multiprocessing.active_children() == []
    second = run_plan(small(n=4), tmp_path, How())
    assert second.stopped is None
    assert len(table(Store(tmp_path))) == 4 * 2
    assert leftovers(tmp_path) == []


# Two runs in one folder


@linux
def test_runs_that_begin_together_compute_each_unit_once(tmp_path):
    asked = manifest(("fine", "too"), 20)
    for trial in range(5):
        base = tmp_path / f"{trial}"
        assert forked_runs.nursery().run(base, methods=("fine", "too"), images=20, runs=3) == [0, 0, 0]
        performed = noted(base / "log")
        assert len(performed) == len(set(performed)) == 20
        assert table(Store(base / "run")) == expected(asked)
        assert len(noted(base / "processes")) == 20


@linux
def test_two_runs_of_the_real_benchmark_share_it(tmp_path, whole):
    assert forked_runs.nursery().run(tmp_path, kind="digits", runs=2) == [0, 0]
    fates = Counter(line.split()[0] for line in noted(tmp_path / "reported"))
    assert fates["done"] == 10
    assert len(set(noted(tmp_path / "reported"))) >= 10
    assert {key: row.score for key, row in table(Store(tmp_path / "run")).items()} == pytest.approx(
        {key: row.score for key, row in whole.items()}, abs=1e-4
    )  # there two images were in a batch, here one


# Plans that change


def test_other_settings_under_one_name_are_refused_and_shown(tmp_path):
    plan = small()
    run_plan(plan, tmp_path, How())
    other = {
        "methods.digits.ig.steps: 8, now 16": {"arms": arms(ig=IntegratedGradients(steps=16))},
        "methods.digits.ig: .*, now absent": {"arms": arms(other=IG)},
        "seed: 0, now 1": {"seed": 1},
        "target: predicted, now 3": {"target": 3},
        "n: 2, now 1": {"n": 1},
        "metrics.insertion: .*, now absent": {"metrics": {"sparseness": Sparseness()}},
        "limits.insertion: absent, now 1": {"limits": {"insertion": 1}},
        "metrics.insertion.reference: box, now gaussian": {
            "metrics": {"sparseness": Sparseness(), "insertion": Insertion(reference="gaussian")}
        },
    }
    for difference, change in other.items():
        with pytest.raises(InputError, match=rf"^--out: .*holds a digits with other settings \({difference}\); name"):
            run_plan(replace(plan, **change), tmp_path, How())
    assert run_plan(plan, tmp_path, How()).account.reports == []  # none of them was let in


def test_a_plan_that_grows_computes_what_is_new(tmp_path):
    both = ("sparseness", "insertion")
    plan = small(metrics={"insertion": Insertion()}, limits={"insertion": 1})
    assert done_units(run_plan(plan, tmp_path, How())) == {("ig", ("insertion",), 1): 1}
    plan = replace(plan, limits={})
    assert done_units(run_plan(plan, tmp_path, How())) == {("ig", ("insertion",), 1): 1}
    plan = replace(plan, metrics={"sparseness": Sparseness(), "insertion": Insertion()})
    assert done_units(run_plan(plan, tmp_path, How())) == {("ig", ("sparseness",), 1): 2}
    plan = replace(plan, arms=arms(ig=IG, more=IntegratedGradients(steps=4)))
    assert done_units(run_plan(plan, tmp_path, How())) == {("more", both, 1): 2}
    plan = replace(plan, n=3)
    assert done_units(run_plan(plan, tmp_path, How())) == {("ig", both, 1): 1, ("more", both, 1): 1}
    plan = replace(plan, arms=(*plan.arms, Arm("twin", ModelSource("embedded:digits"), {"new": IG})))
    grown = run_plan(plan, tmp_path, How())
    assert grown.account.reports == []  # another name for the same maps: they are there
    store = Store(tmp_path)
    assert all(cell.scored == cell.wanted == 3 for cell in coverage(store, grown.resolved.manifest))
    assert stale(store) == []
    assert read_results(store).holes() == []


def test_a_plan_in_another_batch_size_engine_or_order_is_the_same(tmp_path):
    plan = small(arms=arms(ig=IG, more=IntegratedGradients(steps=4)), n=3, shard=2)
    run_plan(plan, tmp_path, How())
    turned = replace(plan, arms=arms(more=IntegratedGradients(steps=4), ig=IG), shard=3)
    turned = replace(turned, metrics=dict(reversed(plan.metrics.items())))
    assert run_plan(turned, tmp_path, How(batch_size=1, workers=1)).account.reports == []


NET = """
import torch
def net():
    torch.manual_seed({seed})
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4))
"""


def test_amended_plans_say_why_old_units_serve_no_more(tmp_path):
    source = tmp_path / "net.py"
    source.write_text(NET.format(seed=1))
    model = ModelSource(f"{source}:net", "resize=8x8,mean=0.5,std=0.5", trust_code=True)
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for number in range(2):
        draw_picture(pictures / f"{number}_picture.png", number)
    plan = small(data=(str(pictures),), arms=(Arm("net", model, {"ig": IG, "old": IG}),), metrics={"s": Sparseness()})
    out = tmp_path / "run"

    def reasons():
        return Counter((unit.method, unit.reason) for unit in stale(Store(out)))

    run_plan(plan, out, How())
    assert reasons() == {}

    plan = replace(plan, arms=(Arm("net", model, {"ig": IntegratedGradients(steps=16)}),))
    assert run_plan(plan, out, How(amend=True)).account.count("done") == 2
    assert reasons() == {("ig", "method.steps: 8, now 16"): 2}

    source.write_text(NET.format(seed=2))
    assert run_plan(plan, out, How()).account.count("done") == 2
    now = reasons()
    assert sum(now.values()) == 4
    (weights,) = [reason for _, reason in now if "method.steps" not in reason]
    assert re.fullmatch(r"model\.weights: [0-9a-f]{32}, now [0-9a-f]{32}", weights)

    draw_picture(pictures / "1_picture.png", 7)
    assert run_plan(plan, out, How()).account.count("done") == 1
    assert reasons() - now == {("ig", "1 of its images changed or are not drawn any more"): 1}

    plan = replace(plan, metrics={"s": Insertion()})
    run_plan(plan, out, How(amend=True))
    assert ("ig", "its metrics have other settings now") in reasons()
    plan = replace(plan, arms=(Arm("other", model, {"ig": IG}),))
    run_plan(plan, out, How(amend=True))
    assert set(reasons()) == {("ig", "no plan has the model 'net'")}


def draw_picture(path, seed):
    from PIL import Image

    Image.frombytes("L", (8, 8), bytes((seed * 31 + 7 * i) % 256 for i in range(64))).save(path)


def test_a_run_of_the_past_that_failed_keeps_the_plan_partial(tmp_path):
    """A run with nothing left to do still says that some images have no score."""
    plan = small(target="label", data=(str(tmp_path / "pictures"),), metrics={"s": Sparseness()})
    Path(tmp_path / "pictures").mkdir()
    draw_picture(tmp_path / "pictures" / "3_picture.png", 1)
    draw_picture(tmp_path / "pictures" / "12_picture.png", 2)  # the model has ten classes
    first = run_plan(plan, tmp_path / "run", How())
    assert (first.account.failed, first.failed_before, first.partial) == (1, 0, True)
    second = run_plan(plan, tmp_path / "run", How())
    assert (second.account.failed, second.failed_before, second.partial) == (0, 1, True)
    third = run_plan(plan, tmp_path / "run", How(retry=True))
    assert (third.account.failed, third.failed_before, third.partial) == (1, 0, True)
    assert len(present(Store(tmp_path / "run"))) == 2
