"""The GPU benchmark, tried on the CPU: its rows, its page, its JSON, and what it does when time or memory end."""

import json
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import gpu
import gpu_rows
from gpu_bench import DEFAULT, IG, PAPER, Bench, Budget, OutOfTime

pytestmark = pytest.mark.thorough


@dataclass
class Clock:
    """Seconds that pass at every look, or when a test says so."""

    now: float = 0.0
    a_look: float = 0.0

    def __call__(self) -> float:
        self.now += self.a_look
        return self.now


def small(seconds: float, clock: Clock, pass_seconds: float = 0.0) -> Bench:
    """A bench whose clock moves by ``pass_seconds`` at every forward pass."""
    bench = Bench("cpu", True, Budget(seconds, clock), ["small"])

    def spend(module, inputs):
        clock.now += pass_seconds

    bench.network("small").register_forward_pre_hook(spend)
    return bench


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """The page and the JSON file of ``--quick``, on a clock by which most runs are cut."""
    out = tmp_path_factory.mktemp("gpu") / "run.json"
    bench = gpu.main(["--device", "cpu", "--quick", "--budget", "700", "--out", str(out)], Clock(a_look=0.2))
    return bench, out


def test_every_row_of_a_quick_run_is_measured(quick):
    bench, _ = quick
    status = {row.key: bench.records[row.key]["status"] for row in gpu.plan(bench)}
    assert {k for k, s in status.items() if s != "ok"} == {k for k in status if k.startswith("waits/")}
    assert bench.meta["networks"]["small"]["top_probability"] == pytest.approx(0.9, abs=1e-4)
    paper, ig = bench.records["small/paper/4"], bench.records["small/IG/4"]
    assert paper["cut"]
    # 1 + 2 gradients, the Fisher norm, and 20 iterations of a JVP and a VJP; no pass beside the gradients
    assert [paper[kind] / paper["steps"] for kind in ("forward", "jvp", "vjp")] == pytest.approx([1, 21, 22], rel=0.1)
    assert [ig[kind] for kind in ("forward", "jvp", "vjp")] == pytest.approx([50, 0, 50], rel=0.1)
    assert bench.records["precision/small/bfloat16"]["cosine"] < 1 - 1e-6  # autocast reaches the network
    assert bench.records["guided/small"]["cosine"] > 0.99
    assert bench.records["curves/small"]["largest_difference"] < 1e-4
    assert bench.records["gradients/small/2/images"]["difference"] < 1e-5
    assert all(bench.records[f"device/small/{name}/float64"]["largest"] < 1e-9 for name in (IG, DEFAULT))
    for name in (DEFAULT, PAPER):
        assert 0 < bench.records[f"step/small/{name}"]["inside"] < 1


def test_the_page_and_the_json_say_the_same(quick, capsys):
    bench, out = quick
    read = json.loads(out.read_text())
    assert read["records"].keys() == bench.records.keys()
    page = out.with_suffix(".md").read_text()
    assert page == gpu.report(read["meta"], read["records"])
    assert f"torch {torch.__version__}" in page
    (line,) = [line for line in page.splitlines() if line.startswith("| small | paper |")]
    cells = [cell.strip() for cell in line.split("|")[3:5]]
    for cell, batch in zip(cells, (2, 4), strict=True):
        seconds, plain = (read["records"][f"small/{name}/{batch}"]["seconds"] for name in (PAPER, IG))
        assert cell == f"~{seconds:.3g} ({seconds / plain:.3g})"
    assert "- waits/small/paper: absent, PyTorch counts them on CUDA devices only" in page


def test_against_an_earlier_run(quick, tmp_path, capsys):
    bench, out = quick
    old = json.loads(out.read_text())
    for record in old["records"].values():
        record |= {name: 3 * record[name] for name in ("ours", "seconds", "step_seconds", "together") if name in record}
    page = gpu.report(bench.meta, bench.records, old)
    rows = [line for line in page.partition("Against ")[2].splitlines() if line.startswith("| ")][2:]
    assert len(rows) == sum(bool({"seconds", "step_seconds", "together"} & r.keys()) for r in bench.records.values())
    assert {line.split("|")[-2].strip() for line in rows} == {"3"}
    gpu.main(["--device", "cpu", "--quick", "--budget", "0", "--against", str(out)], Clock(a_look=0.1))
    assert "Against none" in capsys.readouterr().out  # the file is read; with no budget there is nothing to compare


def test_what_no_longer_fits_is_dropped_and_what_fails_costs_its_own_row_only(capsys):
    clock = Clock()
    bench = small(12.0, clock)

    def row(name, seconds, error=None, expect=None):
        def measure():
            clock.now += seconds
            if error is not None:
                raise error
            return {"seconds": seconds}

        return gpu.Row(name, 0, measure, lambda: seconds if expect is None else expect)

    out_of_memory = torch.OutOfMemoryError("CUDA out of memory")
    gpu.run(
        bench,
        [row("a", 5.0), row("b", 1.0, ValueError("of b")), row("c", 1.0, out_of_memory), row("d", 6.0), row("e", 4.0),
         row("f", 1.0, OutOfTime(), expect=0.5)],
    )  # fmt: skip
    assert [record["status"] for record in bench.records.values()] == [
        "ok",
        "error",
        "memory",
        "dropped",
        "ok",
        "dropped",
    ]
    page = gpu.report(bench.meta, bench.records)
    assert bench.records["d"]["note"] == "needs about 6 s, 5 s were left"
    assert "- no time was left for 2 rows: d, f" in page
    assert "- b: error, ValueError: of b" in page


def test_a_run_that_is_cut_is_carried_on_to_its_planned_length():
    """By a clock that only forward passes move, a second each: 50 gradients of two images at once are 25 s an image."""
    cut = gpu_rows.cost(small(120 * 4.0, Clock(), 1.0), "small", IG, 2)
    whole = gpu_rows.cost(small(120 * 200.0, Clock(), 1.0), "small", IG, 2)
    assert cut["cut"]
    assert cut["seconds"] == 25.0
    assert (cut["forward"], cut["vjp"], cut["steps"], cut["step_seconds"]) == (50, 50, 50, 1.0)
    assert not whole["cut"]
    assert 25.0 < whole["seconds"] < 1.25 * 25.0  # and the passes that check the model and close the account
    assert 50 < whole["forward"] < 1.25 * 50


def test_a_repetition_that_runs_out_of_time_leaves_what_the_first_run_showed():
    clock = Clock()
    bench = small(1e9, clock, 1.0)
    bench.budget.end = clock.now + 70.0  # one run and a third
    record = gpu_rows.cost(bench, "small", IG, 2)
    assert (record["seconds"], record["cut"], record["steps"]) == (25.0, False, 50)
    assert "repeats" not in record
    assert record["verdicts"].total() == 2


def test_the_need_of_a_larger_batch_follows_from_a_smaller_one():
    bench = small(1200.0, Clock())
    assert gpu_rows.expected(bench, "small", PAPER, 4) == 12.0
    bench.records["small/paper/2"] = {"step_seconds": 3.0}
    assert gpu_rows.expected(bench, "small", PAPER, 4) == 12.0 + 4 * 6.0


def test_a_column_ends_with_the_memory():
    bench = small(1e6, Clock())

    def refuse(module, inputs):
        if len(inputs[0]) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")

    bench.network("small").register_forward_pre_hook(refuse)
    bench.batches = (2, 4, 8)
    first = bench.records["small/IG/4"] = gpu_rows.cost(bench, "small", IG, 4)
    assert (first["status"], first["note"]) == ("memory", "memory ended: 2 images at once")
    assert gpu_rows.cost(bench, "small", IG, 8) == {"status": "memory", "note": "memory had ended at batch 4"}


def test_waits_are_counted_by_the_line_that_asked():
    inside = Path(gpu_rows.fringe.__file__).parent / "paths" / "tracking.py"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            warnings.warn_explicit("called a synchronizing CUDA operation", UserWarning, str(inside), 7)
        warnings.warn_explicit("called a synchronizing CUDA operation", UserWarning, "/a/torch/functional.py", 9)
        warnings.warn_explicit("something else", UserWarning, str(inside), 8)
    assert gpu_rows.by_line(caught, 2) == {
        "waits": 2.5,
        "lines": {"fringe/paths/tracking.py:7": 2.0, "torch/functional.py:9": 0.5},
    }


def test_on_a_device_with_events_memory_and_waits(monkeypatch):
    """CUDA's part of PyTorch replaced by a stand-in, on which a forward pass takes a second, a step waits twice."""
    clock, mode = Clock(), ["default"]

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = clock.now

        def elapsed_time(self, other):
            return 1e3 * (other.at - self.at)

    stand_in = {
        "synchronize": lambda: None,
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": lambda: None,
        "memory_allocated": lambda: 100,
        "max_memory_allocated": lambda: 1124,
        "Event": Event,
        "set_sync_debug_mode": lambda value: mode.__setitem__(0, value),
    }
    for name, value in stand_in.items():
        monkeypatch.setattr(torch.cuda, name, value)
    bench = small(1e9, clock, 1.0)
    bench.device = SimpleNamespace(type="cuda")

    def wait(module, inputs):
        if mode[0] == "warn":
            for line in (1, 2):
                warnings.warn_explicit("called a synchronizing CUDA operation", UserWarning, "/x/y/z.py", line)

    assert gpu_rows.cost(bench, "small", DEFAULT, 2)["memory"] == 1024
    bench.network("small").register_forward_pre_hook(wait)
    found = gpu_rows.waits(bench, "small", DEFAULT)
    assert found == {"waits": 2.0, "lines": {"y/z.py:1": 1.0, "y/z.py:2": 1.0}}
    assert mode == ["default"]
    shares = gpu_rows.step(bench, "small", DEFAULT)
    assert shares["inside"] == pytest.approx(1.0)
    assert shares["shares"]["forward"] == pytest.approx(1.0)
    assert shares["step_seconds"] == 1.0


def test_without_torchvision_a_small_network_takes_its_place(monkeypatch, capsys):
    def absent():
        raise gpu.ModelError("torchvision is not installed")

    monkeypatch.setattr("fringe.models._torchvision.import_torchvision", absent)
    bench = gpu.main(["--device", "cpu", "--networks", "resnet18", "--budget", "25"], Clock(a_look=1.0))
    assert bench.networks == ("small",)
    assert capsys.readouterr().out.startswith("torchvision is not installed; a small built-in")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_no_device_is_said_at_once(capsys):
    with pytest.raises(SystemExit):
        gpu.main([])
    assert "PyTorch sees no CUDA device here; --device cpu --quick tries the program" in capsys.readouterr().err


def test_a_resumed_run_measures_what_is_missing_and_a_failed_device_ends_it(quick, tmp_path, capsys):
    _, out = quick
    document = json.loads(out.read_text())
    document["records"]["small/IG/2"] = {"status": "dropped", "note": "no time"}
    document["records"]["small/IG/4"]["seconds"] = 77.0
    again = tmp_path / "run.json"
    again.write_text(json.dumps(document))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("FRINGE_COMMIT", document["meta"]["commit"])
        arguments = ["--device", "cpu", "--quick", "--budget", "600", "--out", str(again), "--resume"]
        bench = gpu.main(arguments, Clock(a_look=0.2))
        assert bench.records["small/IG/2"]["status"] == "ok"
        assert bench.records["small/IG/4"]["seconds"] == 77.0
        patched.setenv("FRINGE_COMMIT", "another")
        with pytest.raises(SystemExit, match=r"--resume: commit was .*, and is another now"):
            gpu.main(arguments, Clock(a_look=0.2))

    def fail():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    broken = small(100.0, Clock())
    gpu.run(broken, [gpu.Row(name, 0, fail, lambda: 0.0) for name in "ab"])
    assert list(broken.records) == ["a"]
