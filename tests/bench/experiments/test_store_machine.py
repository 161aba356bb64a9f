"""The store as a state machine: whatever is written, recalled, killed, damaged and read in whatever order, on a disk
and in an object store, a reader sees what was acknowledged."""

import shutil
import sqlite3
import tempfile
import warnings
from contextlib import closing
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from fringe.bench.experiments import Manifest, Results, Store, StoredMap
from fringe.bench.experiments import _places as places
from score_records import ScoreRecord, records_in, records_of_cell, task_of

SETTINGS, METRICS, IMAGES = ("net a", "net b"), "kl", "pqr"
PLAN = Manifest(
    {"seed": 0},
    tuple({"digest": image, "id": image, "source": "", "label": None} for image in IMAGES),
    (),
    {"net": {name: {"name": name, "method": {}} for name in SETTINGS}},
    {metric: {"key": metric, "limit": len(IMAGES), "settings": {}} for metric in METRICS},
    {},
    {},
)
KEYS = {name: PLAN.setting_key("net", name) for name in SETTINGS}


def scores_of(row):
    return row.status, row.score, row.error


class StoreMachine(RuleBasedStateMachine):
    """Two writers in one folder. ``tasks`` are those that were acknowledged: file, number, and records."""

    writers = Bundle("writers")

    @initialize(where=st.sampled_from(["disk", "bucket"]), full=st.sampled_from([1, 30_000, 2**26]))
    def begin(self, where, full):
        self.base, self.full, self.number = Path(tempfile.mkdtemp()), full, 0
        self.tasks, self.notes, self.maps = list[tuple[str, int, list[ScoreRecord]]](), {}, {}
        self.opener, self.root = places.open_store, self.base / "run"
        if where == "bucket":
            from fsspec.implementations.memory import MemoryFileSystem

            system = type("InMemory", (MemoryFileSystem,), {"store": {}, "pseudo_dirs": [""], "cachable": False})()
            places.open_store = lambda url, argument: (system, "/bucket/run")
            self.root = Path("gs://bucket/run")
        self.open = [self._new(), self._new()]

    def _new(self):
        return Store(self.root, full=self.full)

    def teardown(self):
        if hasattr(self, "base"):
            for store in self.open:
                store.close()
            shutil.rmtree(self.base)
            places.open_store = self.opener

    @rule(
        who=st.integers(0, 1),
        setting=st.sampled_from(SETTINGS),
        metrics=st.sets(st.sampled_from(METRICS), min_size=1),
        images=st.lists(st.sampled_from(IMAGES), min_size=1, unique=True),
        failing=st.booleans(),
        value=st.floats(allow_nan=False),
    )
    def commit(self, who, setting, metrics, images, failing, value):
        rows = [
            ScoreRecord(
                **{"setting": KEYS[setting], "metric_key": metric, "image": image, "model": "net", "method": setting},
                **{"metric": metric, "image_id": "", "label": None, "target": 1, "confidence": 0.5},
                **{"score": None if failing else value, "status": "failed" if failing else "ok"},
                error=f"why {value}" if failing else None,
                curves=[("raw", [len(images), *range(IMAGES.index(image))])],
            )
            for metric in sorted(metrics)
            for image in images
        ]
        self.open[who].commit(task_of(rows))
        writer = self.open[who]._writers[".db"]
        self.tasks.append((writer.name, writer._ids["task"], rows))

    @rule(who=st.integers(0, 1), name=st.sampled_from("xyz"), value=st.one_of(st.none(), st.text(max_size=3)))
    def note(self, who, name, value):
        self.open[who].write_record("note", name, value)
        self.notes[name] = value

    @rule(who=st.integers(0, 1), setting=st.sampled_from(SETTINGS), image=st.sampled_from(IMAGES), ok=st.booleans())
    def keep_map(self, who, setting, image, ok):
        self.number += 1
        stored = StoredMap(torch.full((1, 2, 2), float(self.number)), {"status": "ok" if ok else "failed"})
        self.open[who].commit_maps(KEYS[setting], {image: stored})
        known = self.maps.setdefault((KEYS[setting], image), [])
        known.append(
            (self.open[who]._writers[".maps.db"].name, self.open[who]._writers[".maps.db"]._ids["map"], ok, self.number)
        )

    @rule(who=st.integers(0, 1), setting=st.sampled_from(SETTINGS))
    def recall(self, who, setting):
        self.open[who].recall([KEYS[setting]])
        self.tasks = [one for one in self.tasks if one[2][0].setting != KEYS[setting]]
        self.maps = {key: known for key, known in self.maps.items() if key[0] != KEYS[setting]}

    @rule(who=st.integers(0, 1))
    def close(self, who):
        self.open[who].close()

    @rule()
    def kill(self):
        """Both writers die: what is in their memory is gone, and their files stay as they are."""
        if self.root.is_dir():
            self.number += 1
            target = self.base / f"run-{self.number}"
            shutil.copytree(self.root, target)  # with the journals
            for store in self.open:
                store.close()
            self.root = target
        self.open = [self._new(), self._new()]

    @rule(who=st.integers(0, 1))
    def clean(self, who):
        self.open[who].clean()

    @rule(choice=st.integers(0, 100))
    def damage(self, choice):
        """A task of a closed file is damaged: it is said, and the others are saved."""
        files = sorted(path for path in self.root.glob("*[0-9a-f].db")) if self.root.is_dir() else []
        for store in self.open:
            store.close()
        files = [path for path in files if any(name == path.name for name, _, _ in self.tasks)]
        if not files:
            return
        path = files[choice % len(files)]
        mine = [one for one in self.tasks if one[0] == path.name]
        lost = mine[choice % len(mine)]
        with closing(sqlite3.connect(path)) as database:
            database.execute("UPDATE task SET notes = ? WHERE id = ?", (b"{}", lost[1]))
            database.commit()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            self.open[0].clean()
        assert any("is damaged (task" in str(one.message) for one in said)
        newest = self.open[0]._writers.get(".db")
        saved = sorted(one for one in mine if one is not lost)
        self.tasks = [one for one in self.tasks if one[0] != path.name]
        names = sorted({task.row for task in self.open[0].tasks()} - {one[:2] for one in self.tasks})
        places_now = [place for place in names if place[:2] not in {one[:2] for one in self.tasks}]
        assert len(places_now) == len(saved)
        assert newest is not None or not saved
        self.tasks += [(place[0], place[1], one[2]) for place, one in zip(places_now, saved, strict=True)]

    @invariant()
    def a_reader_sees_what_was_acknowledged(self):
        if not hasattr(self, "open"):
            return
        reader, expected = Store(self.root, create=False), {}
        for _, _, rows in sorted(self.tasks, key=lambda one: one[:2]):
            for row in rows:
                known = expected.get(row.key)
                if known is None or row.status == "ok" or known.status != "ok":
                    expected[row.key] = row
        results = Results(PLAN, reader)
        for setting in SETTINGS:
            for metric in METRICS:
                rows = records_of_cell(results.cells["net", setting, metric])
                wanted = [expected.get((KEYS[setting], metric, image)) for image in IMAGES]
                assert [row and scores_of(row) for row in rows] == [row and scores_of(row) for row in wanted]
                assert [row and row.curves for row in rows] == [row and row.curves for row in wanted]
        assert sum(len(rows) for _, _, rows in self.tasks) == len(records_in(reader))
        assert reader.records("note") == {name: value for name, value in self.notes.items() if value is not None}
        for setting in KEYS.values():
            found = reader.load_maps(setting, IMAGES)
            best = {
                image: max(known, key=lambda one: (one[2], *one[:2]))[3]
                for (of, image), known in self.maps.items()
                if of == setting
            }
            assert {image: float(one.values[0, 0, 0]) for image, one in found.items()} == best
        assert reader.damaged() == {}


class TestStore(StoreMachine.TestCase):
    settings = settings(max_examples=5, stateful_step_count=12, deadline=None, derandomize=True)


@pytest.mark.thorough
@pytest.mark.timeout(1800)
class TestStoreAtLength(StoreMachine.TestCase):
    settings = settings(max_examples=15, stateful_step_count=25, deadline=None, derandomize=True)
