"""The folder of a run: what is whole comes back as it went in, and what is not counts as not there."""

import contextlib
import errno
import hashlib
import json
import os
import signal
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from fringe import _process
from fringe.errors import FringeError, InputError, TransientError
from fringe.experiments._formats import ScoreRecord, StoredMap, is_intact
from fringe.experiments._store import CRASHES, MARKER, PLANS, Store

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and /proc")

FULL = ScoreRecord(
    setting="s" * 32,
    metric_key="m" * 32,
    image="i" * 32,
    model="digits",
    method="ig, as «published»",
    metric="insertion",
    image_id="0284_cat",
    label=284,
    target=3,
    confidence=0.1 + 0.2,
    score=1 / 3,
    status="ok",
    error=None,
    verdict="coarse",
    flags=["flat", "tied"],
    diagnostics=[("completeness_residual", 1e-300), ("endpoint_score", -0.0)],
    extras=[("zero_map", 0.1)],
    curves=[("scores", [0.0, 0.5, 1.0]), ("empty", [])],
    forward=12.5,
    jvp=0.0,
    vjp=100.0,
    seconds=0.25,
    batch=4,
)
EMPTY = replace(
    FULL,
    label=None,
    target=None,
    confidence=None,
    score=None,
    status="unreadable",
    error="'a.png': is empty\nsecond line",
    verdict=None,
    flags=[],
    diagnostics=[],
    extras=[],
    curves=[],
)
PLAN = {
    "plan": {"name": "é", **{name: {} for name in ("models", "preprocessing", "methods", "metrics", "limits")}, "n": 3},
    "images": [{"digest": "d", "id": "i", "source": "s", "label": None}],
    "missing": [],
    "settings": {"digits": {"ig": {"seed": 0}}},
    "metrics": {"insertion": {"key": "k", "limit": 3, "settings": {}}},
    "models": {},
    "versions": {},
}
CRASH = {
    **{"model": "digits", "method": "ig", "setting": {}, "setting_key": "s", "metrics": {}, "metric_keys": ["m"]},
    **{"images": ["i"], "reason": "x"},
}
ABOUT = {"model": "digits", "images": ["i" * 32], "failed": [["m", "i"]], "setting": {"τ": 0.1}}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "run")


def unit_file(store, key):
    return store.root / "units" / f"{key}.parquet"


def test_rows_come_back_as_they_went_in(store):
    assert store.read("unit") is None
    store.commit("unit", [FULL, EMPTY], ABOUT)
    assert store.read("unit") is not None
    assert store.tasks() == ["unit"]
    assert store.read("unit") == ([FULL, EMPTY], ABOUT)
    assert str(store.read("unit")[0][0].diagnostics[1][1]) == "-0.0"
    assert store.metadata() == {"unit": ABOUT}
    store.commit("unit", [EMPTY], {"images": []})
    assert store.read("unit") == ([EMPTY], {"images": []})
    assert [path.name for path in (store.root / "units").iterdir()] == ["unit.parquet"]


def test_a_unit_is_a_parquet_file_that_others_can_read(store):
    store.commit("unit", [FULL], ABOUT)
    table = pq.read_table(unit_file(store, "unit"))
    assert table.column("score").to_pylist() == [1 / 3]
    assert table.column("method").to_pylist() == ["ig, as «published»"]


def flipped(content, place):
    damaged = bytearray(content)
    damaged[place] ^= 1 << place % 8
    return bytes(damaged)


def test_every_flipped_byte_is_seen(store):
    store.commit("unit", [FULL], ABOUT)
    path = unit_file(store, "unit")
    content = path.read_bytes()
    assert len(content) > 3000
    assert is_intact(content)
    assert not any(is_intact(flipped(content, place)) for place in range(len(content)))
    for place in range(0, len(content), 500):
        path.write_bytes(flipped(content, place))
        assert store.read("unit") is None
        assert store.metadata() == {}
    path.write_bytes(content)
    assert store.read("unit") == ([FULL], ABOUT)


def test_parquet_alone_would_not_see_them(store):
    """Why a unit has a seal: of the files with a flipped byte, some read without an error, and with other numbers."""
    store.commit("unit", [FULL], ABOUT)
    content, silent = unit_file(store, "unit").read_bytes(), 0

    def rows(content):
        return pq.read_table(pa.BufferReader(content)).to_pylist()

    assert rows(content) == [vars(FULL)]
    for place in range(4, len(content) // 2, 40):
        try:
            silent += rows(flipped(content, place)) != [vars(FULL)]
        except (pa.ArrowException, OSError, ValueError):
            continue
    assert silent > 2


@pytest.mark.parametrize("left", [0, 1, 4, 100, -100, -9, -8, -1])
def test_a_torn_unit_is_not_there(store, left):
    store.commit("unit", [FULL], ABOUT)
    store.commit("other", [FULL], ABOUT)
    path = unit_file(store, "unit")
    path.write_bytes(path.read_bytes()[:left])
    assert store.read("unit") is None
    assert list(store.metadata()) == ["other"]
    assert store.read("other") == ([FULL], ABOUT)
    store.commit("unit", [FULL], ABOUT)
    assert store.read("unit") == ([FULL], ABOUT)


def test_foreign_files_among_the_units_are_passed_over(store):
    store.commit("unit", [FULL], ABOUT)
    folder = store.root / "units"
    pq.write_table(pa.table({"score": [1.0]}), folder / "theirs.parquet")
    pq.write_table(pa.table({"score": [1.0]}).replace_schema_metadata({"fringe": "{}"}), folder / "unsealed.parquet")
    (folder / "text.parquet").write_text("fringe-sha256:")
    (folder / "folder.parquet").mkdir()
    (folder / "gone.parquet").symlink_to(folder / "nowhere")
    (folder / "unit.parquet.orig").write_bytes(b"x")
    (folder / "Thumbs.db").write_bytes(b"x")
    assert store.metadata() == {"unit": ABOUT}
    for name in ("theirs", "unsealed", "text", "folder", "gone"):
        assert store.read(name) is None


# The folder


def test_a_folder_may_be_named_by_its_text(tmp_path):
    assert Store(str(tmp_path / "run")).root == Store(str(tmp_path / "run"), create=False).root == tmp_path / "run"


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match=r"out: .* holds files that are no results of a run \(thesis.tex\); name an"):
        Store(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(InputError, match="is a file, expected a folder"):
        Store(tmp_path / "thesis.tex")
    with pytest.raises(InputError, match=rf"run: .* holds no run of this program \({MARKER} is missing\)"):
        Store(tmp_path, create=False)


def test_what_a_file_manager_leaves_in_a_folder_is_no_content(tmp_path):
    for name in (".DS_Store", "Thumbs.db", "desktop.ini"):
        (tmp_path / name).write_bytes(b"x")
    store = Store(tmp_path)
    store.commit("unit", [FULL], ABOUT)
    for name in ("units/.DS_Store", "units/._unit.parquet", "plans/._plan.json", "packs/._pack.scores.parquet"):
        (tmp_path / name).write_bytes(b"x")
    assert (store.damaged(), store.tasks()) == ({}, ["unit"])
    store.quarantine_damaged()
    assert not (tmp_path / "aside").exists()


def test_a_beginning_that_was_cut_short_is_taken_up(tmp_path):
    Store(tmp_path)
    (tmp_path / MARKER).rename(tmp_path / f".partial-elsewhere-12~{MARKER}")
    (tmp_path / "maps").rmdir()
    Store(tmp_path)
    assert (tmp_path / "maps").is_dir()
    assert Store(tmp_path, create=False).tasks() == []


def test_two_that_begin_at_once_both_begin(tmp_path, monkeypatch):
    """The other's mark appears after this one saw that there is none."""
    look, others = os.path.lexists, []

    def looked(path):
        found = look(path)
        if not others:
            others.append(path)
            Store(tmp_path)
        return found

    monkeypatch.setattr(os.path, "lexists", looked)
    store = Store(tmp_path)
    store.commit("unit", [FULL], ABOUT)
    assert others == [tmp_path / MARKER]
    assert Store(tmp_path).tasks() == ["unit"]


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", "null", "\x00\x00", None], ids=repr)
def test_a_damaged_mark_is_named_set_aside_and_written_again(tmp_path, content):
    Store(tmp_path).commit("unit", [FULL], ABOUT)
    (tmp_path / "report").mkdir()  # what else lies in the folder of a run
    (tmp_path / MARKER).unlink()
    (tmp_path / MARKER).mkdir() if content is None else (tmp_path / MARKER).write_text(content)
    with pytest.warns(UserWarning, match=rf"{MARKER}' (is damaged|is no file); the next run writes it again"):
        assert Store(tmp_path, create=False).tasks() == ["unit"]  # who only reads changes nothing
    assert not (tmp_path / "aside").exists()
    with pytest.warns(UserWarning, match=rf"{MARKER}' .*: set aside as .*aside/{MARKER}'"):
        assert Store(tmp_path).read("unit") == ([FULL], ABOUT)
    assert [path.name for path in (tmp_path / "aside").iterdir()] == [MARKER]
    assert json.loads((tmp_path / MARKER).read_text()) == {"format": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Store(tmp_path)


def test_a_damaged_mark_beside_other_things_makes_no_run_of_them(tmp_path):
    (tmp_path / MARKER).touch()
    (tmp_path / "thesis.tex").write_text("x")
    for create in (True, False):
        with pytest.raises(InputError, match="nothing beside it is of a run"):
            Store(tmp_path, create=create)
    assert sorted(path.name for path in tmp_path.iterdir()) == [MARKER, "thesis.tex"]


def test_the_format_of_another_time_is_refused(tmp_path):
    Store(tmp_path)
    (tmp_path / MARKER).write_text('{"format": 3}')
    with pytest.raises(InputError, match="has format 3, this program reads format 2"):
        Store(tmp_path)


@contextlib.contextmanager
def writer(store, **elsewhere):
    """Another process that is amid a commit; ``elsewhere`` are names that the machine has there."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        for name, value in elsewhere.items():
            setattr(_process, name, lambda *_, value=value: value)
        os.fsync = lambda descriptor: (os.write(theirs, b"x"), time.sleep(600))
        store.commit("unit", [FULL], ABOUT)
        os._exit(0)
    os.read(ours, 1)
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)


def partials(store):
    return sorted(path.name for path in store.root.rglob(".partial-*"))


def end(child):
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


@linux
def test_what_a_dead_process_left_is_swept_and_what_a_living_one_writes_is_not(store):
    with writer(store) as child:
        (half,) = partials(store)
        store.remove_stale_files()
        assert partials(store) == [half]
        end(child)
        strangers = [".partial-", ".partial-strange", ".partial-elsewhere-12~a.parquet", ".partial--~~b"]
        for name in strangers:
            (store.root / "units" / name).write_bytes(b"half")
        for name in ("", "maps", "plans", "crashes", "logits"):
            (store.root / name / half).write_bytes(b"half")
        store.commit("unit", [FULL], ABOUT)
        assert store.tasks() == ["unit"]
        store.remove_stale_files()
        assert partials(store) == sorted(strangers)
    assert store.read("unit") == ([FULL], ABOUT)


@linux
@pytest.mark.parametrize(
    "elsewhere",
    [{"_boot": "another machine of this name"}, {"_namespace": "another container of this machine"}],
    ids=["machine", "container"],
)
def test_a_process_that_cannot_be_seen_from_here_keeps_what_it_writes(store, elsewhere):
    """Its number is nobody's here, or somebody else's: only a day of silence says that it is dead."""
    with writer(store, **elsewhere) as child:
        (half,) = partials(store)
        end(child)  # so that nobody has the number here
        store.remove_stale_files()
        assert partials(store) == [half]
        path = store.root / "units" / half
        for hours, left in ((23, [half]), (25, [])):
            os.utime(path, (time.time() - hours * 3600,) * 2)
            store.remove_stale_files()
            assert partials(store) == left


@linux
def test_a_later_process_of_the_same_number_does_not_keep_a_dead_ones_file(store):
    with writer(store, _start="1"):  # that process started at another time than the one that has its number
        assert len(partials(store)) == 1
        store.remove_stale_files()
        assert partials(store) == []


@linux
def test_nothing_is_swept_where_nothing_can_be_removed(store, monkeypatch):
    with writer(store) as child:
        end(child)

        def refuse(path, missing_ok=False):
            raise OSError(30, "Read-only file system")

        monkeypatch.setattr(Path, "unlink", refuse)
        store.remove_stale_files()
        assert len(partials(store)) == 1


# Plans, crashes, maps, claims


def test_damaged_records_are_passed_over(store):
    store.write_record(PLANS, "benchmark", PLAN)
    store.write_record(CRASHES, "unit", CRASH)
    whole = (store.root / PLANS / "benchmark.json").read_bytes()
    (store.root / PLANS / "torn.json").write_bytes(whole[: len(whole) // 2])
    (store.root / PLANS / "empty.json").write_bytes(b"")
    (store.root / PLANS / "bytes.json").write_bytes(b"\xff\xfe")
    (store.root / PLANS / "list.json").write_text("[1]")
    (store.root / PLANS / "null.json").write_text("null")
    (store.root / PLANS / "folder.json").mkdir()
    (store.root / PLANS / "bare.json").write_text("{}")
    (store.root / PLANS / "poor.json").write_text(json.dumps({**PLAN, "images": [{}]}))
    (store.root / PLANS / "nameless.json").write_text(json.dumps({**PLAN, "plan": {}}))
    (store.root / CRASHES / "bare.json").write_text("{}")
    for name in ("images", "metric_keys"):
        (store.root / CRASHES / f"{name}.json").write_text(json.dumps({**CRASH, name: [{}]}))
    assert store.records(PLANS) == {"benchmark": PLAN}
    assert store.records(CRASHES) == {"unit": CRASH}
    store.forget_crash("unit")
    store.forget_crash("unit")
    assert store.records(CRASHES) == {}
    assert json.loads(whole) == PLAN


def test_maps_come_back_by_image_and_torn_ones_do_not(store):
    maps = {name: StoredMap(torch.randn(1, 4, 5), {"status": name, "value": 0.1}) for name in ("a", "b", "c")}
    store.commit_maps("setting", {name: maps[name] for name in ("a", "b")})
    store.commit_maps("setting", {"c": maps["c"]})
    store.commit_maps("other", {"a": StoredMap(torch.zeros(1, 4, 5), {})})
    found = store.load_maps("setting", ["a", "c", "d"])
    assert set(found) == {"a", "c"}
    assert all(torch.equal(found[name].values, maps[name].values) for name in found)
    assert all(found[name].metadata == maps[name].metadata for name in found)
    for path in (store.root / "maps" / "setting").iterdir():
        content = path.read_bytes()
        if b'"c"' in content:
            path.write_bytes(content[:-1])
    (store.root / "maps" / "setting" / "0.safetensors").write_bytes(b"")
    assert set(store.load_maps("setting", ["a", "c"])) == {"a"}


def test_of_two_maps_of_an_image_the_valid_one_counts(store):
    """One that failed stays in its file when the image is tried again; files come in the order of their names."""
    for other in "bcdefghi":
        nothing, valid = (StoredMap(torch.full((1, 2, 2), n), {"status": s}) for n, s in ((0.0, "failed"), (1.0, "ok")))
        store.commit_maps(other, {"a": nothing, other: valid})
        store.commit_maps(other, {"a": valid})
        found = store.load_maps(other, ["a", other])
        assert {name: one.metadata["status"] for name, one in found.items()} == {"a": "ok", other: "ok"}
        assert all(bool(one.values.all()) for one in found.values())


def test_every_flipped_byte_of_a_map_is_seen(store):
    store.commit_maps("setting", {"a": StoredMap(torch.arange(20.0).view(1, 4, 5), {"status": "ok"})})
    (path,) = (store.root / "maps" / "setting").iterdir()
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(flipped(content, place))
        assert store.load_maps("setting", ["a"]) == {}, place
    path.write_bytes(content)
    assert store.load_maps("setting", ["a"])["a"].values.flatten().tolist() == list(range(20))


def test_a_claim_is_one_at_a_time(store):
    with store.lock("unit") as mine:
        assert mine
        with store.lock("unit") as theirs, store.lock("other") as another:
            assert not theirs
            assert another
        with store.lock("unit") as theirs:
            assert not theirs  # that it was given up by who did not have it changes nothing
    with contextlib.suppress(RuntimeError), store.lock("unit") as mine:
        assert mine
        raise RuntimeError("amid the work")
    with store.lock("unit") as mine:
        assert mine


# Files that somebody prepared

NO_SEAL = b"fringe-sha256:" + b"0" * 64


def plant(store, key, table, **how):
    """A unit as this program would have sealed it."""
    table = table.replace_schema_metadata({"fringe": json.dumps(ABOUT), "seal": NO_SEAL.decode()})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **{"compression": "zstd", **how})
    seal(store, key, sink.getvalue().to_pybytes())


def seal(store, key, content):
    before, _, after = content.rpartition(NO_SEAL)
    sealed = before + b"fringe-sha256:" + hashlib.sha256(content).hexdigest().encode() + after
    (store.root / "units" / f"{key}.parquet").write_bytes(sealed)
    return sealed


def long_texts(n=600):
    return pa.table({"error": pa.array(["x" * 10**6] * n)})


BOMBS = {
    "compressed text": (long_texts, {"use_dictionary": False}),
    "one long text repeated by a dictionary": (long_texts, {}),
    "texts stored by what they share": (
        long_texts,
        {"use_dictionary": False, "column_encoding": {"error": "DELTA_BYTE_ARRAY"}},
    ),
    "nothing, often": (lambda: pa.table({"score": pa.nulls(10**8, pa.float64())}), {}),
    "long lists": (lambda: pa.table({"curves": pa.array([[0.0] * 10**6] * 20)}), {}),
    "another compression": (lambda: long_texts(2), {"compression": "gzip"}),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_unit_that_would_fill_the_memory_counts_as_not_there(tmp_path, name):
    store = Store(tmp_path)
    make, how = BOMBS[name]
    plant(store, "small", pa.table({"error": ["x"]}))
    assert store.read_loose("small") is not None
    plant(store, "bomb", make(), **how)
    assert (tmp_path / "units" / "bomb.parquet").stat().st_size < 3 * 10**5
    pa.default_memory_pool().release_unused()
    before = pa.total_allocated_bytes()
    assert store.read("bomb") is None
    assert "bomb" not in store.metadata()
    assert pa.total_allocated_bytes() - before < 10**7
    with pytest.warns(UserWarning, match="bomb.parquet' is damaged: set aside"):
        store.quarantine_damaged()
    assert store.tasks() == ["small"]


def test_sizes_in_the_metadata_are_not_believed(tmp_path):
    """The pages of this file hold 600 MB, and its metadata says 1 KB."""
    store = Store(tmp_path)
    table = long_texts().replace_schema_metadata({"fringe": json.dumps(ABOUT), "seal": NO_SEAL.decode()})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", use_dictionary=False)
    content = sink.getvalue().to_pybytes()
    real = pq.read_metadata(pa.BufferReader(content)).row_group(0).column(0).total_uncompressed_size
    assert real > 6 * 10**8
    at = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    content = content[:at] + content[at:].replace(varint(real), varint(1000, width=len(varint(real))))
    about = pq.read_metadata(pa.BufferReader(content)).row_group(0)
    assert about.column(0).total_uncompressed_size == 1000
    seal(store, "bomb", content)
    assert store.read("bomb") is None


def varint(value, width=1):
    """A number as Thrift writes it: twice itself, seven bits a byte; filled up to ``width`` bytes."""
    value, out = 2 * value, []
    while value > 127 or len(out) + 1 < width:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def test_a_large_honest_unit_is_read(tmp_path):
    store = Store(tmp_path)
    generator = torch.Generator().manual_seed(0)
    curves = torch.rand(600, 2, 400, generator=generator).tolist()
    rows = [
        replace(FULL, image=f"{i:032x}", curves=[("raw", curve[0]), ("normalised", curve[1])])
        for i, curve in enumerate(curves)
    ]
    store.commit("large", rows, ABOUT)
    assert len(store.read("large")[0]) == 600


def test_scores_that_could_not_be_read_back_are_refused_when_they_are_written(tmp_path):
    with pytest.raises(InputError, match="shard: the scores of one unit are more than can be read back"):
        Store(tmp_path).commit("k", [replace(FULL, error="x" * 10**6)] * 100, ABOUT)
    assert not Store(tmp_path).tasks()


@pytest.mark.timeout(60)
def test_pipes_devices_and_sparse_files_in_a_run_are_not_read(tmp_path):
    store = Store(tmp_path)
    store.commit("good", [FULL], ABOUT)
    os.mkfifo(tmp_path / "units" / "pipe.parquet")
    (tmp_path / "units" / "device.parquet").symlink_to("/dev/zero")
    with (tmp_path / "units" / "sparse.parquet").open("wb") as file:
        file.truncate(2**40)
    os.mkfifo(tmp_path / "plans" / "pipe.json")
    (tmp_path / "plans" / "device.json").symlink_to("/dev/zero")
    (tmp_path / "plans" / "deep.json").write_text("[" * 10**5)
    os.mkfifo(tmp_path / "maps" / "s-pipe.safetensors")
    assert list(store.metadata()) == ["good"]
    assert store.records(PLANS) == {}
    assert store.load_maps("s", ["i"]) == {}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", ["pipe", "device", "sparse"])
@pytest.mark.parametrize(
    "path", ["units/unit.parquet", "plans/benchmark.json", "crashes/unit.json", "logits/m.safetensors"]
)
def test_what_is_not_read_for_what_it_is_is_set_aside_and_does_not_stop_a_run(store, path, how):
    """A disk that does not answer stops a run; a pipe is no such disk."""
    store.commit("unit", [FULL], ABOUT)
    store.write_record(PLANS, "benchmark", PLAN)
    store.write_record(CRASHES, "unit", CRASH)
    place = store.root / path
    place.unlink(missing_ok=True)
    if how == "pipe":
        os.mkfifo(place)
    elif how == "device":
        place.symlink_to("/dev/zero")
    else:
        with place.open("wb") as file:
            file.truncate(2**40)
    assert store.logits("m") == {}
    if (how, place.parent.name) == ("sparse", "logits"):
        return  # as for maps, only what is empty or no file is looked for
    assert store.damaged() == {place: "is damaged" if how == "sparse" else "is no file"}
    with pytest.warns(UserWarning, match="set aside"):
        store.quarantine_damaged()
    assert store.damaged() == {}
    store.commit("unit", [FULL], ABOUT)
    assert store.read("unit") == ([FULL], ABOUT)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", ["pipe", "sparse", "deep"])
def test_a_mark_that_is_not_read_is_written_again(tmp_path, how):
    Store(tmp_path).commit("unit", [FULL], ABOUT)
    mark = tmp_path / MARKER
    mark.unlink()
    if how == "pipe":
        os.mkfifo(mark)
    elif how == "deep":
        mark.write_text("[" * 10**5)
    else:
        with mark.open("wb") as file:
            file.truncate(2**40)
    with pytest.warns(UserWarning, match=rf"{MARKER}' {'is no file' if how == 'pipe' else 'is damaged'}: set aside"):
        store = Store(tmp_path)
    assert store.read("unit") == ([FULL], ABOUT)
    assert json.loads(mark.read_text()) == {"format": 2}


def test_a_lock_that_is_a_link_empties_nothing(tmp_path):
    store, precious = Store(tmp_path / "run"), tmp_path / "precious"
    precious.write_text("kept")
    with store.lock("k"):
        (lock,) = (tmp_path / "run" / "claims").iterdir()
    lock.unlink(missing_ok=True)
    lock.symlink_to(precious)
    with pytest.raises(FringeError), store.lock("k"):
        pass
    assert precious.read_text() == "kept"


# What is damaged, and a disk that does not answer


def strew(store, path, how):
    """Put something in place of a file of the run."""
    path = store.root / path
    path.parent.mkdir(exist_ok=True)
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
    if how == "folder":
        path.mkdir()
        (path / "inside").write_text("somebody's")
    elif how == "link":
        path.symlink_to(path.parent / "nowhere")
    else:
        path.write_text(how)


@pytest.mark.parametrize("how", ["", "{}", "folder", "link"])
@pytest.mark.parametrize(
    "path", ["units/unit.parquet", "plans/benchmark.json", "crashes/unit.json", "maps/s/1.safetensors"]
)
def test_what_is_damaged_is_named_and_set_aside_and_can_be_written_again(store, path, how):
    if (path, how) == ("maps/s/1.safetensors", "{}"):
        pytest.skip("maps are looked into when they are asked for")
    strew(store, path, how)
    words = {"": "is empty", "{}": "is damaged", "folder": "is a folder where a file belongs", "link": "is no file"}
    assert store.damaged() == {store.root / path: words[how]}
    with pytest.warns(UserWarning, match=rf"{path}' {words[how]}: set aside as '.*/aside/{path.replace('/', '~')}'"):
        store.quarantine_damaged()
    assert store.damaged() == {}
    (aside,) = (store.root / "aside").iterdir()
    assert (aside / "inside").exists() == (how == "folder")
    strew(store, path, how)
    with pytest.warns(UserWarning, match=r"aside/.*\.1'"):  # a second one beside the first
        store.quarantine_damaged()
    store.commit("unit", [FULL], ABOUT)
    store.write_record(PLANS, "benchmark", PLAN)
    store.write_record(CRASHES, "unit", CRASH)
    assert store.damaged() == {}
    assert (store.read("unit"), store.records(PLANS)) == (([FULL], ABOUT), {"benchmark": PLAN})


def test_a_folder_that_appears_amid_a_run_does_not_keep_a_result_out(store):
    strew(store, "units/unit.parquet", "folder")
    with pytest.warns(UserWarning, match="is a folder where a file belongs: set aside"):
        store.commit("unit", [FULL], ABOUT)
    assert store.read("unit") == ([FULL], ABOUT)


@pytest.mark.parametrize("name", ["units", "maps", "claims", "crashes", "plans", "logits"])
def test_a_file_or_nothing_where_a_folder_belongs(tmp_path, name):
    Store(tmp_path)
    (tmp_path / name).rmdir()
    Store(tmp_path)
    assert (tmp_path / name).is_dir()
    (tmp_path / name).rmdir()
    (tmp_path / name).write_text("x")
    with pytest.warns(UserWarning, match=rf"{name}' is a file where a folder belongs: set aside as .*aside/{name}'"):
        store = Store(tmp_path)
    with store.lock("unit") as mine:
        assert mine
        store.commit("unit", [FULL], ABOUT)
    assert (tmp_path / "aside" / name).read_text() == "x"


def test_a_folder_that_another_process_makes_just_now_is_not_set_aside(tmp_path, monkeypatch):
    Store(tmp_path)
    (tmp_path / "units").rmdir()
    real = os.path.lexists

    def looked(path):
        if Path(path).name == "units":
            os.makedirs(path, exist_ok=True)
        return real(path)

    monkeypatch.setattr(os.path, "lexists", looked)
    Store(tmp_path)
    assert not (tmp_path / "aside").exists()


def test_a_folder_on_a_disk_that_is_not_mounted_is_not_made_anew(tmp_path):
    store = Store(tmp_path / "run")
    store.commit("unit", [FULL], ABOUT)
    (tmp_path / "run" / "units").rename(tmp_path / "disk")
    (tmp_path / "run" / "units").symlink_to(tmp_path / "disk")
    assert Store(tmp_path / "run").tasks() == ["unit"]
    (tmp_path / "disk").rename(tmp_path / "away")
    with pytest.raises(TransientError, match=r"units' leads to '.*/disk', where no folder is; is it mounted"):
        Store(tmp_path / "run")
    (tmp_path / "away").rename(tmp_path / "disk")
    assert Store(tmp_path / "run").read("unit") == ([FULL], ABOUT)


def test_what_another_process_computed_again_meanwhile_is_not_set_aside(store, monkeypatch):
    strew(store, "units/unit.parquet", "")
    move = store.files.set_aside

    def late(name):
        store.commit("unit", [FULL], ABOUT)
        return move(name)

    monkeypatch.setattr(store.files, "set_aside", late)
    store.quarantine_damaged()
    assert store.read("unit") == ([FULL], ABOUT)


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_a_disk_that_does_not_answer_is_no_missing_result(store, monkeypatch, code):
    store.commit("unit", [FULL], ABOUT)

    def fails(*_):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr("fringe.experiments._disk.read_regular", fails)
        for look in (store.metadata, store.quarantine_damaged, lambda: store.read("unit")):
            with pytest.raises(TransientError, match=rf"unit\.parquet cannot be read \({os.strerror(code)}\)"):
                look()
        with pytest.raises(TransientError, match=rf"{MARKER} cannot be read"):
            Store(store.root)
        patch.setattr(Path, "mkdir", lambda path, **more: fails(path))
        with pytest.raises(TransientError, match=os.strerror(code)):
            Store(store.root / "new")
    assert store.read("unit") == ([FULL], ABOUT)


@pytest.mark.parametrize("call", ["replace", "unlink"])
def test_windows_is_asked_again_to_move_or_remove_a_unit_that_is_being_read(store, monkeypatch, call):
    owner, tries = os if call == "replace" else Path, 1
    action = getattr(owner, call)

    def busy(*arguments, **options):
        nonlocal tries
        tries -= 1
        if tries == 0:
            error = PermissionError(errno.EACCES, "The process cannot access the file")
            error.winerror = 32
            raise error
        return action(*arguments, **options)

    store.commit("a", [], {})
    monkeypatch.setattr(owner, call, busy)
    if call == "replace":
        assert store.files.set_aside("units/a.parquet") == "aside/units~a.parquet"
    else:
        store.files.remove("units/a.parquet")
    assert (store.tasks(), tries) == ([], -1)


@linux
@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_no_reason_to_stop(store, monkeypatch, code):
    import fcntl

    def flock(descriptor, operation):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with store.lock("unit") as mine:
            assert mine
            store.commit("unit", [FULL], ABOUT)
    assert store.read("unit") == ([FULL], ABOUT)
    if code != errno.ENOSYS:  # where the library of locks finds a way of its own
        assert "the file system has no locks" in str(said[0].message)


@linux
def test_a_lock_on_a_broken_disk_stops_until_it_is_back(store, monkeypatch):
    import fcntl

    def flock(descriptor, operation):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(TransientError, match="Input/output error"), store.lock("unit"):
        pass


@pytest.mark.parametrize("url", ["ftp://host/run", "hdfs://x", "file:///tmp/run", "HTTPS://host/run", "az://x/y"])
@pytest.mark.parametrize("create", [True, False])
def test_a_url_of_another_kind_is_no_folder(tmp_path, monkeypatch, url, create):
    monkeypatch.chdir(tmp_path)
    scheme = url.partition(":")[0]
    for root in (Path(url), url):
        with pytest.raises(InputError, match=rf"got '{scheme}:/.*; {scheme}:// is not supported"):
            Store(root, create=create)
    assert list(tmp_path.iterdir()) == []
    assert Store(tmp_path / "a:b" / "c").tasks() == []  # a colon alone is a name
