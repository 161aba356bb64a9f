"""The store as a state machine: whatever is written, killed, copied, damaged and read in whatever order, a reader sees
what was acknowledged, and of what was damaged nothing."""

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
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fringe.bench.experiments import Manifest, Results, Store, StoredMap
from fringe.bench.experiments._store import FILE
from score_records import ScoreRecord, about_of, records_of_cell, result_of

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
    return row.status, row.score, row.error, row.curves


class StoreMachine(RuleBasedStateMachine):
    """Two writers in one folder. ``rows`` are the records of each row that was acknowledged, by number, and ``maps``
    the value of its map."""

    @initialize()
    def begin(self):
        self.base, self.number = Path(tempfile.mkdtemp()), 0
        self.root, self.rows, self.maps, self.logits = self.base / "run", {}, {}, {}
        self.open = [Store(self.root), Store(self.root)]

    def teardown(self):
        if hasattr(self, "base"):
            for store in self.open:
                store.close()
            shutil.rmtree(self.base)

    @rule(
        who=st.integers(0, 1),
        setting=st.sampled_from(SETTINGS),
        metrics=st.sets(st.sampled_from(METRICS), min_size=1),
        images=st.lists(st.sampled_from(IMAGES), min_size=1, unique=True),
        failing=st.booleans(),
        value=st.floats(allow_nan=False, allow_infinity=False),
        saved=st.booleans(),
    )
    def commit(self, who, setting, metrics, images, failing, value, saved):
        of_images = [
            [
                ScoreRecord(
                    **{"setting": KEYS[setting], "metric_key": metric, "image": image, "model": "net"},
                    **{"method": setting, "metric": metric, "image_id": "", "label": None, "target": 1},
                    **{"confidence": 0.5, "score": None if failing else value},
                    status="failed" if failing else "ok",
                    error=f"why {value}" if failing else None,
                    curves=[("raw", [len(images), *range(IMAGES.index(image))])],
                )
                for metric in sorted(metrics)
            ]
            for image in images
        ]
        self.number += 1
        results = []
        for rows in of_images:
            values = torch.full((1, 2, 2), float(self.number))
            made = StoredMap(values, {"status": "ok"})
            results.append(result_of(rows))
            object.__setattr__(results[-1], "map", made if saved else None)
        store = self.open[who]
        store.commit(about_of(of_images[0]), results)
        last = store._db.execute("SELECT max(id) FROM result").fetchone()[0]
        for number, rows in zip(range(last - len(of_images) + 1, last + 1), of_images, strict=True):
            assert number not in self.rows
            self.rows[number] = rows
            if saved:
                self.maps[number] = self.number

    @rule(who=st.integers(0, 1), name=st.sampled_from("xyz"), value=st.floats(allow_nan=False, allow_infinity=False))
    def note(self, who, name, value):
        self.open[who].write_record("logits", name, {"image": [value]})
        self.logits[name] = {"image": [value]}

    @rule(who=st.integers(0, 1))
    def close(self, who):
        """Another run begins in its place."""
        self.open[who].close()
        self.open[who] = Store(self.root)

    @rule()
    def kill(self):
        """Both writers die: what is in their memory is gone, and their files stay as they are."""
        self.number += 1
        target = self.base / f"run-{self.number}"
        shutil.copytree(self.root, target)  # with the journal
        for store in self.open:
            store.close()
        self.root = target
        self.open = [Store(self.root), Store(self.root)]

    @rule(who=st.integers(0, 1))
    def clean(self, who):
        self.open[who].clean()

    @rule(choice=st.integers(0, 100), what=st.sampled_from(["numbers", "details", "row"]))
    def damage(self, choice, what):
        """A row is damaged: the next run says so, and forgets it alone."""
        if not self.rows:
            return
        number = sorted(self.rows)[choice % len(self.rows)]
        statement = {
            "numbers": "UPDATE result SET numbers = zeroblob(length(numbers)) WHERE id = ?",
            "details": "UPDATE detail SET content = zeroblob(length(content) + 1) WHERE id = ?",
            "row": "DELETE FROM result WHERE id = ?",
        }[what]
        for store in self.open:
            store.close()
        with closing(sqlite3.connect(self.root / FILE)) as database:
            database.execute(statement, (number,))
            database.commit()
        self.open = [Store(self.root), Store(self.root)]
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            self.open[0].clean()
        assert any("is damaged (1 row," in str(one.message) for one in said) == (what != "row")
        del self.rows[number]
        self.maps.pop(number, None)

    @rule(choice=st.integers(0, 100))
    def lose_map(self, choice):
        """A file of a map is gone: it is listed as lost, until a later row has another."""
        found = sorted(self.root.glob("maps/*/*.safetensors"))
        if found:
            found[choice % len(found)].unlink()

    @invariant()
    def a_reader_sees_what_was_acknowledged(self):
        if not hasattr(self, "open"):
            return
        reader, expected = Store(self.root, create=False), {}
        for number in sorted(self.rows):
            for row in self.rows[number]:
                known = expected.get(row.key)
                if known is None or row.status == "ok" or known.status != "ok":
                    expected[row.key] = row
        results = Results(PLAN, reader)
        for setting in SETTINGS:
            for metric in METRICS:
                cell = results.cells["net", setting, metric]
                wanted = [expected.get((KEYS[setting], metric, image)) for image in IMAGES]
                known = [None if row is None or row.score is None else row.score for row in wanted]
                assert [None if score != score else score for score in cell.scores.tolist()] == known
                assert (cell.missing, cell.failed) == (wanted.count(None), sum(bool(r and r.error) for r in wanted))
                if sum(map(len, self.rows.values())) < 8:
                    rows = records_of_cell(cell)
                    assert [row and row.curves for row in rows] == [row and row.curves for row in wanted]
        assert sum(len(block.rows) for block in reader.blocks()) == len(self.rows)
        assert reader.records("logits") == self.logits
        newest = {}
        for number in sorted(self.maps):
            row = self.rows[number][0]
            newest[row.setting, row.image] = self.maps[number]
        lost = {(s, image) for s, marks in reader.lost_maps(KEYS.values()).items() for image in marks}
        for setting in KEYS.values():
            found = reader.load_maps(setting, IMAGES)
            assert all(newest[setting, image] == float(one.values[0, 0, 0]) for image, one in found.items())
            assert len(found) == sum(of == setting for of, _ in newest) - sum(of == setting for of, _ in lost)
        assert reader.damaged() == []
        reader.close()


class TestStore(StoreMachine.TestCase):
    settings = settings(max_examples=5, stateful_step_count=12, deadline=None, derandomize=True)


@pytest.mark.thorough
@pytest.mark.timeout(1800)
class TestStoreAtLength(StoreMachine.TestCase):
    settings = settings(max_examples=60, stateful_step_count=25, deadline=None, derandomize=True)
