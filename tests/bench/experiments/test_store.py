"""The store of a run: what is committed comes back as it went in, and what is damaged, or of a stranger, is said."""

import copy
import json
import math
import os
import random
import shutil
import signal
import sqlite3
import sys
import tracemalloc
import warnings
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from forked_runs import end_of, fork
from small_plans import all_rows, small
from synthetic_units import manifest
from typer.testing import CliRunner

from fringe.bench.experiments import RunOptions, Store, StoredMap, read_results, run_plan
from fringe.bench.experiments._database import Reader, Writer, seal
from fringe.bench.experiments._records import Damaged, StoredTask, from_json, to_json
from fringe.bench.experiments._store import MARKER, PLAN
from fringe.cli import app
from fringe.errors import FringeError, InputError
from score_records import EMPTY, ScoreRecord, records_in, task_of

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs fork")

FULL = ScoreRecord(
    setting="s" * 32,
    metric_key="m" * 32,
    image="i" * 32,
    model="digits",
    method="ig, as «published»",
    metric="insertion",
    image_id="",
    label=None,
    target=3,
    confidence=0.1 + 0.2,
    score=1 / 3,
    status="ok",
    error=None,
    verdict="coarse",
    flags=["flat", "tied"],
    diagnostics=[("completeness_residual", 1e-300), ("endpoint_score", -0.0)],
    extras=[("zero/map", 0.1)],
    curves=[("scores", [0.0, 0.5, 1.0]), ("empty", [])],
    forward=12.5,
    jvp=0.0,
    vjp=100.0,
    seconds=0.25,
    batch=4,
)
BARE = replace(
    FULL,
    image="j" * 32,
    target=None,
    confidence=None,
    score=None,
    status="unreadable",
    error="'a.png': is empty\nsecond line",
    verdict=None,
    flags=[],
    diagnostics=[],
    extras=[],
    curves=[("scores", [1.0])],
)
OTHER = replace(FULL, metric_key="n" * 32, metric="deletion", score=-1.0, flags=[], extras=[], curves=[])


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "run") as store:
        yield store


def plain(row):
    return {**vars(row), "flags": list(row.flags), "curves": [(n, list(v)) for n, v in row.curves]}


def test_rows_come_back_as_they_went_in(store):
    store.commit(task_of([FULL, BARE, OTHER]))
    found = {row.key: row for row in records_in(store)}
    assert {key: plain(row) for key, row in found.items()} == {row.key: plain(row) for row in (FULL, BARE, OTHER)}
    assert math.copysign(1, found[FULL.key].diagnostics[1][1]) == -1
    (task,) = store.tasks()
    assert task.status.tolist() == [[1, 5], [1, 0]]  # the other metric of the second image is missing
    assert (task.shared["model"], task.shared["labels"]) == ("digits", ["insertion", "deletion"])
    assert task.failed_images == 1


def test_maps_logits_and_records_come_back(store):
    facts = {"status": "ok", "diagnostics": [("steps", 3.0)]}
    maps = {name: StoredMap(torch.randn(1, 4, 5), {**facts, "name": name}, {"torch": "2"}) for name in "abc"}
    store.commit_maps("setting", {name: maps[name] for name in "ab"})
    store.commit_maps("setting", {"c": maps["c"], "b": StoredMap(torch.zeros(1, 4, 5), {"status": "failed"})})
    found = Store(store.root, create=False).load_maps("setting", ["a", "b", "c", "d"])
    assert found.keys() == set("abc")  # and of two of one image the valid one
    for name, one in found.items():
        assert torch.equal(one.values, maps[name].values)
        assert (one.metadata, one.versions) == (maps[name].metadata, maps[name].versions)
    assert store.images_with_maps("setting") == set("abc")
    assert store.load_maps("another", ["a"]) == {}
    logits = {"a": torch.tensor([1 / 3, math.inf, -0.0]), "b": torch.tensor([math.nan])}
    store.commit_logits("model", logits)
    known = Store(store.root, create=False).logits("model")
    assert all(torch.equal(known[name].nan_to_num(), values.nan_to_num()) for name, values in logits.items())
    assert (store.images_with_logits(), store.logits("another")) == ({"a", "b"}, {})
    store.write_record("note", "x", {"b": 1, "a": [None, "é"]})
    assert json.dumps(store.records("note")["x"]) == json.dumps({"b": 1, "a": [None, "é"]})  # in their order
    store.write_record("note", "x", None)
    assert store.records("note") == {}


def test_what_is_there_is_not_written_again_and_a_reader_writes_nothing(store):
    store.write_record("note", "x", {"a": (1, 2)})
    store.close()
    before = {path: path.read_bytes() for path in store.root.rglob("*.db*")}
    store.write_record("note", "x", {"a": (1, 2)})
    reader = Store(store.root, create=False)
    assert (reader.records("note"), reader.tasks(), reader.damaged()) == ({"x": {"a": [1, 2]}}, [], {})
    assert {path: path.read_bytes() for path in store.root.rglob("*.db*")} == before


def test_a_process_recalls_what_others_wrote_and_what_is_written_later_counts(store):
    store.commit(task_of([FULL]))
    setting = store.tasks()[0].setting
    with Store(store.root) as other:
        other.recall([setting])
    assert store.tasks() == []
    store.commit(task_of([FULL]))
    assert len(store.tasks()) == 1


def test_the_newest_record_counts_whatever_the_clock_says(tmp_path, monkeypatch):
    with Store(tmp_path) as store:
        store.write_record("note", "x", 1)
    monkeypatch.setattr("time.time_ns", lambda: 5)
    with Store(tmp_path) as store:
        store.write_record("note", "x", 2)
        store.write_record("note", "x", 3)
    assert Store(tmp_path, create=False).records("note") == {"x": 3}


# The folder


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match=r"out: .* holds files that are no results of a run \(thesis.tex\); name an"):
        Store(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(InputError, match="is a file, expected a folder"):
        Store(tmp_path / "thesis.tex")
    with pytest.raises(InputError, match=rf"run: .* holds no run of this program \({MARKER} is missing\)"):
        Store(tmp_path, create=False)


def test_a_run_of_the_old_format_is_refused_by_name(tmp_path):
    (tmp_path / "run" / "units").mkdir(parents=True)
    (tmp_path / "run" / MARKER).write_text('{"format": 2}')
    for use in (lambda: Store(tmp_path / "run"), lambda: read_results(tmp_path / "run")):
        with pytest.raises(
            InputError, match="has format 2, this program reads format 3; read it with the version that"
        ):
            use()
    for command in ("status", "report"):
        result = CliRunner().invoke(app, [command, str(tmp_path / "run")])
        assert (result.exit_code, "has format 2" in result.stderr, "Traceback" in result.stderr) == (2, True, False)


def test_what_a_file_manager_leaves_in_a_folder_is_no_content(tmp_path):
    for name in (".DS_Store", "Thumbs.db", "desktop.ini", "._a.db"):
        (tmp_path / name).write_bytes(b"x")
    with Store(tmp_path) as store:
        store.commit(task_of([FULL]))
        store.clean()
        assert (store.damaged(), len(store.tasks())) == ({}, 1)
    assert not (tmp_path / "aside").exists()


@pytest.mark.parametrize("content", ["", "[]", "{}", None, "gone"], ids=repr)
def test_a_damaged_mark_is_named_and_written_again(tmp_path, content):
    with Store(tmp_path) as store:
        store.commit(task_of([FULL]))
    (tmp_path / MARKER).unlink()
    if content != "gone":
        (tmp_path / MARKER).mkdir() if content is None else (tmp_path / MARKER).write_text(content)
    with pytest.warns(UserWarning, match=rf"{MARKER}' is damaged or gone; the next run writes it again"):
        assert len(Store(tmp_path, create=False).tasks()) == 1  # who only reads changes nothing
    with pytest.warns(UserWarning, match="is damaged or gone"):
        assert len(Store(tmp_path).tasks()) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Store(tmp_path)


def test_a_damaged_mark_beside_other_things_makes_no_run_of_them(tmp_path):
    (tmp_path / MARKER).touch()
    (tmp_path / "thesis.tex").write_text("x")
    for create in (True, False):
        with pytest.raises(InputError, match="nothing beside it is of a run"):
            Store(tmp_path, create=create)


@linux
def test_what_a_dead_process_left_is_swept_and_what_a_living_one_writes_is_not(tmp_path):
    with Store(tmp_path) as store:
        names = [f".{1:020d}-{store_name}-00ff.db" for store_name in ("elsewhere-1-1", _name_of_the_dead())]
        for name in (*names, ".partial-elsewhere-1-1~x", f".partial-{_name_of_the_dead()}~x"):
            (tmp_path / name).touch()
        store.clean()
        left = {path.name for path in tmp_path.glob(".*")}
        assert left == {names[0], ".partial-elsewhere-1-1~x"}
        for path in tmp_path.glob(".*"):
            os.utime(path, (0, 0))
        store.clean()
        assert not list(tmp_path.glob(".*"))


def _name_of_the_dead():
    from fringe._files import process as _process

    here, there = os.pipe()
    child = fork(lambda: os.write(there, _process.process_name().encode()))
    assert end_of(child) == 0
    return os.read(here, 200).decode()


# Damage


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run with maps: three closed files, and one of a process that was killed, with its journal."""
    root = tmp_path_factory.mktemp("whole") / "run"
    run_plan(small(n=3), root, RunOptions(save_maps=True))

    def killed():
        store = Store(root)
        store.commit(task_of([FULL, OTHER]))
        os.kill(os.getpid(), signal.SIGKILL)

    if sys.platform == "linux":
        assert end_of(fork(killed)) == -signal.SIGKILL
        assert list(root.glob("*-wal"))
    return root


def snapshot(root):
    """All numbers of a run, and whether something was said."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            store = Store(root, create=False)
            numbers = {key: repr(plain(replace(row, seconds=0.0))) for key, row in all_rows(store).items()}
            settings = {task.setting for task in store.tasks()}
            for setting in sorted(settings):
                maps = store.load_maps(setting, store.images_with_maps(setting))
                numbers |= {(setting, image): repr((m.values.tolist(), m.metadata)) for image, m in maps.items()}
            numbers |= {("plan", name): repr(record) for name, record in store.records(PLAN).items()}
            return numbers, bool(said or store.damaged())
        except FringeError:
            return {}, True


def flip(path, rng):
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def flipped_runs(whole, tmp_path, number, seed):
    """How many of the runs with one flipped bit have lost something, none of which may show another number."""
    rng, known, lost = random.Random(seed), snapshot(whole)[0], 0
    assert len(known) == 3 * 2 + 2 + 3 + 1
    for _ in range(number):
        root = tmp_path / "flipped"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(whole, root)
        path = rng.choice(sorted(path for path in root.iterdir() if path.is_file() and path.stat().st_size))
        flip(path, rng)
        found, is_said = snapshot(root)
        assert found.items() <= known.items(), path.name
        lost += found != known
        assert found == known or is_said or path.name.endswith(("-wal", "-shm")), path.name
    return lost


def test_a_flipped_bit_changes_no_number(whole, tmp_path):
    assert flipped_runs(whole, tmp_path, 24, 0) > 2


@pytest.mark.thorough
def test_many_flipped_bits_change_no_number(whole, tmp_path):
    assert flipped_runs(whole, tmp_path, 300, 1) > 20


def test_a_damaged_file_is_set_aside_and_only_what_it_lost_is_computed_again(whole, tmp_path):
    root, rng = tmp_path / "run", random.Random(2)
    shutil.copytree(whole, root)
    known = snapshot(root)[0]
    for _ in range(2):
        path = rng.choice(sorted(root.glob("*.db")))
        with closing(sqlite3.connect(path)) as database:
            at = database.execute("SELECT max(id) FROM task").fetchone()[0] or 1
            table_name = "map" if ".maps" in path.name else "task"
            column = "content" if table_name == "map" else "numbers"
            database.execute(f"UPDATE {table_name} SET {column} = zeroblob(length({column})) WHERE id = ?", (at,))
            database.commit()
        lost = set(known) - set(snapshot(root)[0])
        assert lost
        with pytest.warns(UserWarning, match=r"is damaged \(.*\): set aside as .*aside/.*, and made again"):
            again = run_plan(small(n=3), root, RunOptions(save_maps=True))
        assert again.log.count("done") == len({key[2] for key in lost if len(key) == 3 and key[0] != FULL.setting})
        found, is_said = snapshot(root)
        scores = [key for key in known if len(key) == 3 and key[0] != FULL.setting]
        assert all(found[key] == known[key] for key in scores)
        assert not is_said


def test_a_task_that_was_copied_over_another_is_found_and_computed_again(whole, tmp_path):
    root = tmp_path / "run"
    shutil.copytree(whole, root)
    (path,) = [path for path in root.glob("*.db") if ".maps" not in path.name and not Path(f"{path}-wal").exists()]
    known = snapshot(root)[0]
    columns = "setting, metrics, images, shared, created, numbers, notes, digest"
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"UPDATE task SET ({columns}) = (SELECT {columns} FROM task WHERE id = 1) WHERE id = 2")
        database.commit()
    assert snapshot(root)[1]
    assert len(read_results(root).missing()) == 2
    with pytest.warns(UserWarning, match="task 2 is damaged"):
        assert run_plan(small(n=3), root, RunOptions()).log.count("done") == 1
    assert {k: v for k, v in snapshot(root)[0].items() if len(k) == 3} == {
        k: v for k, v in known.items() if len(k) == 3
    }


def test_a_file_that_was_copied_over_another_or_renamed_is_found(tmp_path):
    for name, image in (("one", "a" * 32), ("other", "b" * 32)):
        with Store(tmp_path / "run") as store:
            store.commit(task_of([replace(FULL, image=image, method=name)]))
    first, second = sorted((tmp_path / "run").glob("*.db"))
    shutil.copy(first, second)
    store = Store(tmp_path / "run", create=False)
    assert [row.method for row in records_in(store)] == ["one"]
    assert list(store.damaged()) == [str(second)]
    second.unlink()
    first.rename(second)
    assert records_in(Store(tmp_path / "run", create=False)) == []


def test_a_file_that_vanishes_is_a_missing_result(whole, tmp_path):
    root = tmp_path / "run"
    shutil.copytree(whole, root)
    for path in root.glob("*.db*"):
        if ".maps" not in path.name:
            path.unlink()
    result = CliRunner().invoke(app, ["status", str(root)])
    assert (result.exit_code, "no plan yet" in result.stdout) == (75, True)
    assert run_plan(small(n=3), root, RunOptions()).log.count("done") == 3


def test_damaged_details_are_said_where_they_are_read_and_made_again_by_the_next_run(tmp_path):
    run_plan(small(n=2), tmp_path, RunOptions())
    (path,) = tmp_path.glob("*.db")
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE detail SET content = zeroblob(length(content)) WHERE id = 1")
        database.commit()
    with pytest.warns(UserWarning, match="details 1 of .* are damaged; its scores are computed again by the next run"):
        assert len(read_results(tmp_path).details("digits", "ig", {"insertion": "curve/raw"})["insertion"]) <= 1
    with pytest.warns(UserWarning, match="details 1"):
        assert run_plan(small(n=2), tmp_path, RunOptions()).log.count("done") == 1
    assert not Store(tmp_path, create=False).damaged()


# Strangers


def test_a_file_of_a_stranger_is_refused(store, tmp_path):
    path = tmp_path / "a.db"

    def made(*statements, source=None):
        path.unlink(missing_ok=True)
        if source:
            Writer(tmp_path, path.name).close()
        with closing(sqlite3.connect(path)) as database:
            for statement in statements:
                database.execute(statement)
            database.commit()

    for statements, source in (
        (["CREATE TABLE task (id)"], False),
        (["CREATE VIEW more AS SELECT 1"], True),
        (["CREATE TRIGGER t AFTER INSERT ON task BEGIN SELECT 1; END"], True),
        (["PRAGMA user_version = 4"], True),
        (["PRAGMA application_id = 1"], True),
        (["CREATE INDEX i ON task (setting)"], True),
    ):
        made(*statements, source=source)
        with pytest.raises(Damaged, match="has format"):
            Reader(path, path.name, {})
    made(source=True)
    Reader(path, path.name, {}).__exit__()
    for content in (b"", b"SQLite format 3\0", b"x" * 5000):
        path.write_bytes(content)
        with pytest.raises(Damaged):
            Reader(path, path.name, {})
    path.unlink()
    os.mkfifo(path) if hasattr(os, "mkfifo") else path.mkdir()
    with pytest.raises(Damaged, match="is no file"):
        Reader(path, path.name, {})
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(Damaged, match="is no file"):
        Reader(path, path.name, {})
    path.unlink()
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(Damaged):
        Reader(path, path.name, {})


@pytest.mark.parametrize("item", ["[]", "0"])
def test_json_that_would_fill_the_memory_is_refused_before_it_is_read(item):
    """80 MiB of empty lists are some 4 GB in memory."""
    content = ("[" + f"{item}," * (80 * 2**20 // (len(item) + 1)) + "0]").encode()
    tracemalloc.start()
    with pytest.raises(Damaged, match="it would fill the memory"):
        from_json(content)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_a_long_plan_is_read():
    images = [{"digest": "0" * 32, "id": f"{i:08}", "source": f"val/{i:08}.jpg", "label": i} for i in range(100_000)]
    assert len(from_json(to_json(images))) == 100_000


DELETED = object()
STRANGE_PLANS = {
    **{f"no {part}": ((part,), DELETED) for part in ("plan", "images", "settings", "metrics", "models", "versions")},
    "a newer part": (("more",), {}),
    "a newer setting of the plan": (("plan", "more"), 1),
    "a newer word of an image": (("images", 0, "more"), 1),
    "an odd number of images": (("plan", "n"), "many"),
    "a huge number": (("plan", "n"), 10**400),
    "a negative limit": (("metrics", "insertion", "limit"), -1),
    "a limit of another type": (("metrics", "insertion", "limit"), True),
    "a number as a title": (("metrics", "insertion", "title"), 3),
    "no key": (("metrics", "insertion", "key"), DELETED),
    "an image that is a list": (("images", 0), []),
    "an image without a digest": (("images", 0, "digest"), None),
    "a huge label": (("images", 0, "label"), 2**40),
    "an image of no scene": (("images", 0, "scene"), "four"),
    "scenes without images": (("scenes",), {"four": {}}),
    "settings that are a text": (("settings", "digits", "ig"), "ig"),
    "a model that is not described": (("models",), {}),
    "a method that is not described": (("plan", "methods"), {}),
    "half a character": (("plan", "score"), "\ud800"),
    "half a character in the name of an image": (("images", 0, "id"), "\udc80"),
    "half a character in a name": (("settings", "digits", "\udc80"), {"model": {}, "method": {}}),
    "another name": (("plan", "name"), "another"),
    "nothing": ((), None),
    "a list": ((), []),
    "deep": (("plan", "metrics"), DELETED),
}


def edited(root, change):
    """A run whose plan is another, as no program of ours writes it."""
    path, value = STRANGE_PLANS[change]
    with Store(root) as store:
        record = copy.deepcopy(store.records(PLAN)["digits"])
        at = record
        for name in path[:-1]:
            at = at[name]
        if not path:
            record = "null" if value is None else value
        elif value is DELETED:
            del at[path[-1]]
        else:
            at[path[-1]] = value
        store._writer(".db").record(PLAN, "digits", store._now(), record)


def test_a_plan_that_a_stranger_edited_is_told_and_the_one_before_it_counts(whole, tmp_path):
    """Every reader gets its plans here."""
    known = Store(whole, create=False).records(PLAN)
    for number, change in enumerate(STRANGE_PLANS):
        root = tmp_path / str(number)
        shutil.copytree(whole, root)
        edited(root, change)
        store = Store(root, create=False)
        assert store.records(PLAN) == known, change
        (problem,) = store.damaged().values()
        assert "the plan 'digits' is damaged, or of another version: " in problem, change


def test_a_plan_that_a_stranger_edited_ends_in_one_line_and_is_made_again(whole, tmp_path):
    root = tmp_path / "run"
    shutil.copytree(whole, root)
    edited(root, "half a character in a name")
    for command in ("status", "report"):
        result = CliRunner().invoke(app, [command, str(root)])
        assert isinstance(result.exception, SystemExit | None), (command, result.exception)
        assert result.exit_code == 75 if command == "status" else result.exit_code in (0, 2), result.output
        assert "Traceback" not in result.output
        assert command == "report" or "the plan 'digits' is damaged, or of another version: " in result.output
    with pytest.warns(UserWarning, match="set aside as"):
        assert run_plan(small(n=3), root, RunOptions()).stopped is None
    assert CliRunner().invoke(app, ["status", str(root)]).exit_code == 0


@pytest.mark.parametrize("name", ["..", "", "a/b", "\x1b[2J", "x" * 5000])
def test_a_plan_whose_name_is_a_path_is_none(store, name):
    record = manifest().record()
    store._writer(".db").record(PLAN, name, store._now(), {**record, "plan": {**record["plan"], "name": name}})
    assert store.records(PLAN) == {}
    (problem,) = store.damaged().values()
    assert "its name is none of a plan" in problem
    assert len(problem) < 300


def test_half_a_character_is_escaped_in_an_error_and_damage_in_a_task_of_a_stranger(store):
    """No table can hold it; an error may name a file whose name is not UTF-8."""
    made = {"i" * 32: {"status": "failed", "error": "'\udcff.png' is empty"}}
    names = {"model": "digits", "method": "ig", "labels": ["insertion"]}
    store.commit(StoredTask.of("s" * 32, ["m" * 32], made, (), {**EMPTY, **names}))
    store.commit(task_of([replace(FULL, flags=["\ud800"])]))
    store.commit(task_of([replace(FULL, verdict="\udcff")]))
    store.commit(task_of([replace(FULL, model="\ud800")]))
    assert [row.error for row in records_in(store)] == ["'\\udcff.png' is empty"]
    (problem,) = store.damaged().values()
    assert problem == "; ".join(
        f"task {n} is damaged ({what})" for n, what in ((2, "its notes"), (3, "its notes"), (4, "its names"))
    )


def test_a_record_with_the_digest_of_other_bytes_is_damage(store):
    store.write_record("note", "x", 1)
    store.close()
    (path,) = store.root.glob("*.db")
    row = (2, "note", "y", 5, b"2", seal("another file", 2, "note", "y", 5, b"2"))
    with closing(sqlite3.connect(path)) as database:
        database.execute("INSERT INTO record VALUES (?, ?, ?, ?, ?, ?)", row)
        database.commit()
    reader = Store(store.root, create=False)
    assert reader.records("note") == {"x": 1}
    assert reader.damaged() == {str(path): "record 2 is damaged (the digest)"}
