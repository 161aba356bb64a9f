"""The store: rows come back as they were written; what is damaged, moved, of a stranger or of another version is said,
never shown, and computed again."""

import copy
import os
import shutil
import sqlite3
import tracemalloc
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_plans import small
from synthetic_units import table
from typer.testing import CliRunner

from fringe.bench.experiments import Manifest, RunOptions, Store, StoredMap, read_results, run_plan
from fringe.bench.experiments._records import (
    LOGITS,
    PLAN,
    Damaged,
    fact_problem,
    fingerprint,
    from_json,
    row_type,
    seal,
    to_json,
)
from fringe.bench.experiments._store import FILE
from fringe.cli import app
from fringe.errors import InputError
from score_records import ScoreRecord, about_of, commit, images_of, records_in, result_of

FULL = ScoreRecord(
    setting="s" * 32,
    metric_key="m" * 32,
    image="i" * 32,
    model="digits",
    method="ig",
    metric="insertion",
    image_id="",
    label=None,
    target=3,
    confidence=0.123456789012345,
    score=-1.25e-300,
    status="ok",
    error=None,
    verdict="ok",
    flags=["flat", "tied"],
    diagnostics=[("residual", 1e300)],
    extras=[("chance", float("inf"))],
    curves=[("raw", [0.0, 0.5]), ("normalised", [1.0])],
    forward=1.5,
    vjp=2.0,
    seconds=0.25,
    batch=4,
)
KNOWN = {"i" * 32: None, "j" * 32: None}


def rows_in(store):
    return records_in(store, KNOWN)


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "run") as made:
        yield made


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of three images with maps."""
    root = tmp_path_factory.mktemp("whole") / "run"
    run_plan(small(n=3), root, RunOptions(save_maps=True))
    return root


def edit(root, statement, *values):
    with closing(sqlite3.connect(root / FILE)) as database:
        database.execute(statement, values)
        database.commit()


# What is written comes back


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"score": None, "status": "failed", "error": "'\\udcff.png' is empty", "flags": []},
        {"target": None, "confidence": None, "verdict": None, "curves": [], "extras": [], "diagnostics": []},
        {"score": 5e-324, "flags": ["é\u2028"]},
    ],
)
def test_a_row_comes_back_as_it_was_written(store, changed):
    row = replace(FULL, **changed)
    commit(store, [row])
    assert rows_in(store) == [row]
    store.close()
    assert rows_in(Store(store.root, create=False)) == [row]


def test_images_without_the_same_details_share_a_commit(store):
    rows = [FULL, replace(FULL, image="j" * 32, curves=[("raw", [1.0, 2.0, 3.0])], extras=[])]
    commit(store, rows)
    assert sorted(rows_in(store), key=lambda row: row.image) == rows
    assert len(store.blocks()) == 2


def test_a_commit_is_whole_or_not_at_all(store):
    one, other = result_of([FULL]), result_of([replace(FULL, image="j" * 32)])
    broken = replace(other, made={"target": "no number"})
    with pytest.raises((TypeError, ValueError)):
        store.commit(about_of([FULL]), [one, broken])
    assert rows_in(store) == []
    commit(store, [FULL])  # the same fact is stored with it, though the first try began with it
    assert rows_in(Store(store.root, create=False)) == [FULL]


def test_a_reader_sees_what_is_committed_while_it_reads(store):
    commit(store, [FULL])
    reader = Store(store.root, create=False)
    assert len(rows_in(reader)) == 1
    commit(store, [replace(FULL, image="j" * 32)])
    assert len(rows_in(reader)) == 2


def test_a_store_in_memory_makes_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = Store(None)
    commit(store, [FULL])
    store.close()
    assert rows_in(store) == [FULL]
    assert list(tmp_path.iterdir()) == []


def stored_map(value, **metadata):
    facts = {"status": "ok", "target": 3, "diagnostics": [("residual", 0.5)], **metadata}
    return StoredMap(torch.full((3, 2, 2), value), facts, {"fringe": "1"})


def keep(store, value, image="i" * 32):
    made = replace(result_of([replace(FULL, image=image)]), map=stored_map(value))
    store.commit(about_of([FULL]), [made])


def test_the_last_map_of_an_image_counts(store):
    keep(store, 1.0)
    keep(store, 2.0, "j" * 32)
    keep(store, 3.0)
    assert store.has_maps(FULL.setting, [*KNOWN, "absent"]) == KNOWN.keys()
    found = store.load_maps(FULL.setting, [*KNOWN, "absent"])
    assert {image: float(one.values[0, 0, 0]) for image, one in found.items()} == {"i" * 32: 3.0, "j" * 32: 2.0}
    assert found["i" * 32].metadata == stored_map(3.0).metadata
    assert found["i" * 32].versions == {"fringe": "1"}
    assert store.load_maps("another", KNOWN) == {}
    commit(store, [FULL])  # a metric that is added later stores no map
    assert store.lost_maps([FULL.setting]) == {}


def test_records_are_replaced(store):
    store.write_record(LOGITS, "a", {"x": [1.0]})
    store.write_record(LOGITS, "b", {"x": [2.0]})
    store.write_record(LOGITS, "a", {"x": [3.0]})
    assert Store(store.root, create=False).records(LOGITS) == {"a": {"x": [3.0]}, "b": {"x": [2.0]}}

    def refuses():
        raise InputError("no")

    with pytest.raises(InputError, match="no"):
        store.write_record(LOGITS, "a", {"x": [4.0]}, refuses)
    assert store.records(LOGITS)["a"] == {"x": [3.0]}


def test_bytes_of_a_row():
    """As docs/store.md says: 96 bytes, and 9 for each score."""
    assert [row_type(metrics).itemsize for metrics in (0, 1, 11)] == [96, 105, 195]


# Folders


def test_a_folder_of_other_things_is_refused(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(InputError, match=r"out: .* holds files that are no results of a run \(thesis.tex\)"):
        Store(tmp_path)
    Store(tmp_path, beside=True).close()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file, expected a folder"):
        Store(tmp_path / "file")
    with pytest.raises(InputError, match=r"run: .* holds no run of this program"):
        Store(tmp_path / "absent", create=False)
    assert Store.existing(tmp_path / "absent") is None
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("create", [True, False])
def test_a_run_of_version_0_2_is_refused_by_name(tmp_path, create):
    (tmp_path / "fringe-run.json").write_text('{"format": 3}')
    (tmp_path / "00000000000000000001-a-1-1-0000.db").write_bytes(b"SQLite format 3\0")
    with pytest.raises(InputError, match=r"holds a run of fringe 0.2 or older, this program reads format 4; read it"):
        Store(tmp_path, create=create)
    with pytest.raises(InputError, match=r"fringe 0\.2"):
        Store.existing(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_run_that_is_copied_or_moved_is_the_same_run(whole, tmp_path):
    for place in ("copy", "moved"):
        shutil.copytree(whole, tmp_path / place)
        shutil.move(tmp_path / place, tmp_path / f"{place} again")
        assert run_plan(small(n=3), tmp_path / f"{place} again", RunOptions(save_maps=True)).log.reports == []


def test_a_folder_that_is_copied_amid_a_run_goes_on(tmp_path):
    store = Store(tmp_path / "run")
    commit(store, [FULL])
    assert store.claim("unit") == "claimed"
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    store.close()
    copied = Store(tmp_path / "copy")
    copied.clean()
    assert rows_in(copied) == [FULL]
    commit(copied, [replace(FULL, image="j" * 32)])
    assert len(rows_in(Store(tmp_path / "copy", create=False))) == 2


def test_a_file_is_a_plain_one_when_its_writer_is_closed(store):
    commit(store, [FULL])
    store.close()
    assert [path.name for path in store.root.iterdir()] == [FILE]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="needs rights that are kept")
def test_a_run_is_read_where_nothing_can_be_written(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run").chmod(0o500)
    assert len(table(Store(tmp_path / "run", create=False))) == 6


# Damage


def damaged_at(root, name, at):
    content = bytearray((root / name).read_bytes())
    content[at] ^= 1 << at % 8
    (root / name).write_bytes(content)


def everything(root, known):
    """What a reader is shown: scores with their details, and maps."""
    store = Store(root, create=False)
    rows = table(store, images_of(Store(known, create=False)))
    images = {row.image for row in rows.values()}
    maps = {s: store.load_maps(s, images) for s in {row.setting for row in rows.values()}}
    return rows, {(s, i): one.values.tolist() for s, of in maps.items() for i, one in of.items()}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_flipped_bit_shows_nothing_wrong_and_the_same_command_mends_it(whole, tmp_path, seed):
    """Wherever it is in the database."""
    rows, maps = everything(whole, whole)
    rng = np.random.default_rng(seed)
    size = (whole / FILE).stat().st_size
    for number, at in enumerate(rng.integers(0, size, 10).tolist()):
        root = tmp_path / str(number)
        shutil.copytree(whole, root)
        damaged_at(root, FILE, at)
        try:
            found, found_maps = everything(root, whole)
        except InputError as error:  # it is no database any more, or its tables are not ours
            if "other tables" in str(error):  # who knows what they hold: nothing of it is touched
                continue
            found, found_maps = {}, {}
        for key, row in found.items():  # a row whose details are damaged is shown without them
            bare = {"curves": rows[key].curves, "extras": rows[key].extras, "diagnostics": rows[key].diagnostics}
            assert replace(row, **bare) == rows[key], at
            assert row.curves in (rows[key].curves, []), at
        assert found_maps.items() <= maps.items(), at
        again = run_plan(small(n=3), root, RunOptions(save_maps=True))
        assert again.stopped is None
        after, after_maps = everything(root, whole)
        assert after.keys() == rows.keys(), at
        assert all(after[key].score == pytest.approx(row.score, abs=1e-6) for key, row in rows.items()), at
        assert after_maps.keys() == maps.keys(), at
        assert CliRunner().invoke(app, ["status", str(root)]).exit_code == 0, at


DAMAGE = {
    "the numbers of a row": "UPDATE result SET numbers = zeroblob(length(numbers)) WHERE id = 1",
    "the seal of a row": "UPDATE result SET seal = zeroblob(16) WHERE id = 1",
    "a row that was copied over another": "UPDATE result SET (shape, numbers, seal) = "
    "(SELECT shape, numbers, seal FROM result WHERE id = 1) WHERE id = 2",
    "a row of another type": "UPDATE result SET numbers = 'text' WHERE id = 1",
    "a row of another length": "UPDATE result SET numbers = substr(numbers, 2) WHERE id = 1",
    "the details of a row": "UPDATE detail SET content = zeroblob(length(content)) WHERE id = 1",
    "details that are gone": "DELETE FROM detail WHERE id = 1",
    "a row that is gone": "DELETE FROM result WHERE id = 1",
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_row_is_computed_again(whole, tmp_path, what):
    root = tmp_path / "run"
    shutil.copytree(whole, root)
    rows, maps = everything(whole, whole)
    edit(root, DAMAGE[what])
    with pytest.warns(UserWarning, match="is damaged") if "gone" not in what or "details" in what else _nothing():
        again = run_plan(small(n=3), root, RunOptions(save_maps=True))
    assert again.log.count("done") == 1
    after, after_maps = everything(root, whole)
    assert (after.keys(), after_maps.keys()) == (rows.keys(), maps.keys())


class _nothing:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def test_a_damaged_fact_is_written_again(whole, tmp_path):
    """What many rows share is named by its content: the rows of it are lost, and the next commit mends it."""
    root = tmp_path / "run"
    shutil.copytree(whole, root)
    edit(root, "UPDATE fact SET content = replace(content, 'ig', 'xx')")
    assert records_in(Store(root, create=False)) == []
    with pytest.warns(UserWarning, match=r"is damaged \(3 rows, the first is 1\); what is lost is computed again"):
        assert run_plan(small(n=3), root, RunOptions(save_maps=True)).log.count("done") == 3
    assert everything(root, whole)[0].keys() == everything(whole, whole)[0].keys()


def test_of_each_metric_the_curve_is_stored_whose_area_is_the_score(whole):
    results = read_results(whole)
    (block, *_), metrics = results._source.blocks(), results.manifest.metrics
    names = [name for name, _ in block.about["details"] if name.startswith("curve/")]
    assert len(names) == len({name.split("/")[1] for name in names}) > 0
    curves = results.details("digits", "ig", {"insertion": "curve/normalised"})["insertion"]
    assert metrics["insertion"]["settings"]["normalise"]
    areas = [np.trapezoid(line, dx=1 / (len(line) - 1)) for line in curves.values()]
    assert areas == pytest.approx(results.scores("digits", "ig", "insertion"), rel=1e-5)


def test_damaged_details_are_said_where_they_are_read(whole, tmp_path):
    root = tmp_path / "run"
    shutil.copytree(whole, root)
    edit(root, "UPDATE detail SET content = zeroblob(length(content)) WHERE id = 1")
    with pytest.warns(UserWarning, match="details 1 of .* are damaged; its scores are computed again by the next run"):
        assert len(read_results(root).details("digits", "ig", {"insertion": "curve/normalised"})["insertion"]) == 2


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0", b"x" * 5000])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_file_that_is_no_database_is_set_aside(whole, tmp_path, content):
    root = tmp_path / "run"
    shutil.copytree(whole, root)
    (root / FILE).write_bytes(content)
    assert run_plan(small(n=3), root, RunOptions()).log.count("done") == 3
    assert everything(root, whole)[0].keys() == everything(whole, whole)[0].keys()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_file_that_is_cut_is_set_aside_and_what_is_left_of_it_is_taken_over(tmp_path):
    root = tmp_path / "run"
    with Store(root) as store:
        for number in range(60):
            commit(store, [replace(FULL, image=f"{number:032}", curves=[("raw", [0.5] * 2000)])])
    content = (root / FILE).read_bytes()
    (root / FILE).write_bytes(content[: len(content) // 2 // 16384 * 16384])
    with Store(root) as store:  # it may be found out when it is opened, or when it is read
        store.clean()
        found = rows_in(store)
        assert 15 < len(found) < 40
        assert all(row.curves == [("raw", [0.5] * 2000)] for row in found)
        assert store.damaged() == []
    assert len(list((root / "aside").iterdir())) == 1


# Strangers


STRANGE = {
    "CREATE VIEW more AS SELECT 1": "other tables",
    "CREATE TRIGGER t AFTER INSERT ON result BEGIN SELECT 1; END": "other tables",
    "CREATE INDEX i ON result (shape)": "other tables",
    "CREATE TABLE more (id)": "other tables",
    "PRAGMA user_version = 5": "has format 5",
    "PRAGMA application_id = 1": "other tables",
}


@pytest.mark.parametrize("statement", STRANGE)
@pytest.mark.parametrize("create", [True, False])
def test_a_file_of_a_stranger_is_refused(store, statement, create):
    store.close()
    edit(store.root, statement)
    with pytest.raises(InputError, match=STRANGE[statement]):
        Store(store.root, create=create)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes and links")
def test_what_is_no_file_is_not_opened(tmp_path):
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / FILE
    for make in (lambda: os.mkfifo(path), lambda: path.symlink_to("/dev/zero")):
        make()
        with pytest.raises(InputError, match="is no file"):
            Store(tmp_path / "run", create=False)
        path.unlink()


@pytest.mark.parametrize("item", ["[]", "0"])
def test_json_that_would_fill_the_memory_is_refused_before_it_is_read(item):
    """80 MiB of empty lists are some 4 GB in memory."""
    content = "[" + f"{item}," * (80 * 2**20 // (len(item) + 1)) + "0]"
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
            record = value
        elif value is DELETED:
            del at[path[-1]]
        else:
            at[path[-1]] = value
        store.write_record(PLAN, "digits", record)


def test_a_plan_that_a_stranger_edited_is_told_and_not_read(whole, tmp_path):
    """Every reader gets its plans here."""
    for number, change in enumerate(STRANGE_PLANS):
        root = tmp_path / str(number)
        shutil.copytree(whole, root)
        edited(root, change)
        store = Store(root, create=False)
        assert store.records(PLAN) == {}, change
        (problem,) = store.damaged()
        assert "the plan 'digits' is damaged, or of another version: " in problem, change


def test_a_plan_that_a_stranger_edited_ends_in_one_line_and_is_made_again(whole, tmp_path):
    root = tmp_path / "run"
    shutil.copytree(whole, root)
    edited(root, "half a character in a name")
    for command in ("status", "report"):
        result = CliRunner().invoke(app, [command, str(root)])
        assert isinstance(result.exception, SystemExit | None), (command, result.exception)
        assert result.exit_code == (75 if command == "status" else 2), result.output
        assert "Traceback" not in result.output
        assert command == "report" or "the plan 'digits' is damaged, or of another version: " in result.output
    assert run_plan(small(n=3), root, RunOptions()).log.reports == []
    assert CliRunner().invoke(app, ["status", str(root)]).exit_code == 0


@pytest.mark.parametrize("name", ["..", "", "a/b", "\x1b[2J", "x" * 5000])
def test_a_plan_whose_name_is_a_path_is_none(store, name):
    plan = Manifest({"name": name}, (), (), {}, {}, {}, {})
    store.write_record(PLAN, name, plan.record())
    assert store.records(PLAN) == {}
    (problem,) = store.damaged()
    assert "its name is none of a plan" in problem
    assert len(problem) < 300


STRANGE_FACTS = [
    {**about_of([FULL]), "details": [["curve/x/raw", 2**40]]},
    {**about_of([FULL]), "details": [["else/x/raw", 1]]},
    {**about_of([FULL]), "details": [], "labels": []},
    {**about_of([FULL]), "details": [], "model": "\ud800"},
    {name: value for name, value in about_of([FULL]).items() if name != "versions"} | {"details": []},
    ["ok", [[["flat"], None, [-1]]]],
    ["ok", [["flat", None, [0]]]],
    [3, []],
    ["\udcff", []],
    [],
    "text",
]


@pytest.mark.parametrize("number", range(len(STRANGE_FACTS)))
def test_what_rows_share_is_checked(number):
    assert fact_problem(STRANGE_FACTS[number])


def test_a_row_that_a_stranger_makes_is_no_row(store):
    """With the digests of what it says, and an image, a status or a length as no program of ours writes it."""
    commit(store, [FULL])
    (numbers,) = store._db.execute("SELECT numbers FROM result").fetchone()
    row = np.frombuffer(numbers, row_type(1)).copy()
    row["id"], row["status"], row["notes"] = 2, 200, 7

    def insert(content):
        mark = __import__("hashlib").sha256(content).digest()[:16]
        edit(store.root, "INSERT OR REPLACE INTO result VALUES (2, ?, ?, ?)", int(row["shape"][0]), content, mark)

    insert(row.tobytes())
    assert rows_in(Store(store.root, create=False)) == [FULL]  # nothing is known of its notes
    row["notes"] = np.frombuffer(numbers, row_type(1))["notes"]
    insert(row.tobytes())
    results = [block.rows["status"].tolist() for block in Store(store.root, create=False).blocks()]
    assert results == [[[1], [200]]]  # which no table shows: Results leave out what is no status
    insert(row.tobytes()[:-1])
    assert len(rows_in(Store(store.root, create=False))) == 1


def test_a_record_with_the_digest_of_another_is_damage(store):
    store.write_record(LOGITS, "x", {"a": [1.0]})
    store.close()
    values = (LOGITS, "y", '{"a":[2.0]}', seal(LOGITS, "z", '{"a":[2.0]}'))
    edit(store.root, "INSERT INTO record VALUES (?, ?, ?, ?)", *values)
    reader = Store(store.root, create=False)
    assert reader.records(LOGITS) == {"x": {"a": [1.0]}}
    assert "the logits 'y' is damaged" in reader.damaged()[0]


def test_a_fingerprint_is_never_zero(monkeypatch):
    assert fingerprint("a") == fingerprint(b"a") != fingerprint("b")
    monkeypatch.setattr("hashlib.sha256", lambda content: type("Zero", (), {"digest": lambda self: bytes(32)})())
    assert fingerprint("a") == 1


def test_the_map_of_a_stranger_is_left_out(store):
    """Whatever its bytes are taken for."""
    keep(store, 1.0)
    (path,) = Path(store.root).glob("maps/*/*.safetensors")
    path.write_bytes(b"\xff" * 100)
    assert store.load_maps(FULL.setting, KNOWN) == {}
    assert store.lost_maps([FULL.setting]) == {FULL.setting: frozenset({fingerprint("i" * 32)})}
