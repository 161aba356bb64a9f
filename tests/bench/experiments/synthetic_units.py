"""Units that cost nothing to compute and whose scores are known, so that a run can be killed hundreds of times."""

import ctypes
import os
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fringe._files.records import digest
from fringe.bench.experiments._manifest import Manifest, Resolved
from fringe.bench.experiments._records import fingerprint
from fringe.bench.experiments._runner import TaskResult
from fringe.bench.experiments._store import Store
from fringe.bench.experiments._tasks import pending_tasks
from score_records import ScoreRecord, about_of, images_of, records_in, result_of

SHARD = 2
"""Images of a unit."""
TIRES_AFTER = 3
"""Units of the method ``tires`` after which a process hangs."""


def manifest(methods=("fine",), images=2, metrics=("a", "b")):
    """A plan of one model; each metric on all images."""
    pictures = tuple({"digest": digest(i), "id": f"image-{i}", "source": f"{i}.png", "label": i} for i in range(images))
    words = {"title": "", "direction": "higher", "unit": "", "space": "", "source": "", "summary": "mean"}
    known = {
        name: {**words, "settings": {"metric": name}, "key": digest({"metric": name}), "limit": images}
        for name in metrics
    }
    settings = {"model": {name: {"model": {"weights": "w"}, "method": {"method": name}} for name in methods}}
    plan = {
        **{"name": "synthetic", "data": [], "models": {}, "preprocessing": {}, "methods": {"model": {}}, "metrics": {}},
        **{"limits": {}, "n": images, "seed": 0, "target": "predicted", "score": "logit", "exif": "ignore"},
        "references": None,
    }
    return Manifest(plan, pictures, (), settings, known, {"model": {}}, {})


def rows_of(unit):
    """The scores of a unit: numbers that follow from their names."""
    return [
        ScoreRecord(
            setting=unit.setting,
            metric_key=key,
            image=image,
            model=unit.model,
            method=unit.method,
            metric=metric,
            image_id="",
            label=None,
            target=1,
            confidence=0.5,
            score=int(digest([unit.setting, key, image])[:8], 16) / 7,
            status="ok",
            flags=["flat"],
            diagnostics=[("waypoint_kl", 0.25)],
            extras=[("zero", 1.0)],
            curves=[("scores", [0.0, 0.5, 1.0])],
            seconds=time.perf_counter(),  # what alone differs between two runs
        )
        for metric, key in zip(unit.metrics, unit.metric_keys, strict=True)
        for image in unit.images
    ]


def computed(unit):
    """The result of a unit."""
    rows = rows_of(unit)
    by_image = [[row for row in rows if row.image == image] for image in unit.images]
    setting = {"model": {"weights": "w"}, "method": {"method": unit.method}}
    return TaskResult(about_of(rows, setting), [result_of(of_image) for of_image in by_image])


def commit(store, unit):
    """Store the scores of a unit."""
    done = computed(unit)
    store.commit(done.about, done.results, task=unit.key)


def misbehave(how):
    if how == "exits":
        os._exit(7)
    if how == "leaves":
        os._exit(0)
    if how == "segfaults":
        ctypes.string_at(0)
    if how == "hangs":
        time.sleep(600)
    if how == "lasts":
        time.sleep(1.0)
    if how == "raises":
        raise AssertionError("a bug")
    if how == "unmounted":
        raise OSError(5, "Input/output error")


def note(log, line):
    """Append a line that survives the process being killed."""
    descriptor = os.open(log, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


def noted(log):
    return log.read_text().split("\n")[:-1] if log.exists() else []


def when_noted(base, method, act):
    """Call ``act(pid)`` once a process has begun the method."""

    def watch():
        for _ in range(8000):  # on a busy machine a process takes minutes to start
            for line in noted(base / "processes"):
                if line.split()[1] == method:
                    act(int(line.split()[0]))
                    return
            time.sleep(0.05)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


_STORES: dict[str, Store] = {}


@dataclass
class SyntheticRunner:
    """Computes nothing: it writes the unit's name to ``log``, its process beside it, and does as the method's name
    says, unless the file ``behave`` is there; ``holds`` waits for it. ``base`` holds the store and these files; ``url``
    is that of a store elsewhere."""

    resolved: Resolved
    base: Path
    url: str = ""
    device = torch.device("cpu")

    @property
    def store(self):
        """The store, opened once in a process."""
        name = f"{os.getpid()} {self.url or self.base}"
        if name not in _STORES:
            _STORES[name] = Store(Path(self.url) if self.url else self.base / "run")
        return _STORES[name]

    def perform(self, unit, stored=None):
        note(self.base / "log", unit.key)
        processes, behave = self.base / "processes", self.base / "behave"
        note(processes, f"{os.getpid()} {unit.method}")
        if not behave.exists():
            mine = sum(line.startswith(f"{os.getpid()} ") for line in noted(processes))
            misbehave("hangs" if unit.method == "tires" and mine > TIRES_AFTER else unit.method)
        while unit.method == "holds" and not behave.exists():
            time.sleep(0.05)
        if unit.method == "waits" and sum(line.endswith(" waits") for line in noted(processes)) == 1:
            time.sleep(600)  # to be killed; what another process does after it is done at once
        return computed(unit)

    def left(self, **more):
        """The units that are missing."""
        return pending_tasks(self.resolved.manifest, self.store.blocks(), SHARD, **more)


def job(base, asked, url=""):
    """The work of a manifest in ``base / "run"``, or in an object store."""
    return SyntheticRunner(Resolved(None, asked, {}, ()), base, url)


KNOWN = dict.fromkeys(digest(i) for i in range(200))
"""The images of all manifests of this file."""


def table(store, known=()):
    """Every committed row by its name, the failed ones that were computed again left out, without the time it took."""
    found = {}
    for row in sorted(
        records_in(store, dict.fromkeys([*KNOWN, *images_of(store), *known])), key=lambda row: row.status == "ok"
    ):
        before = found.get(row.key)
        assert before is None or before.status != "ok", "a score was computed twice"
        numbers = [(name, value) for name, value in row.diagnostics if value == value]  # NaN is equal to nothing
        found[row.key] = replace(row, diagnostics=numbers, seconds=0.0, forward=0.0, jvp=0.0, vjp=0.0)
    return found


def failed(store):
    """Why units failed, by method."""
    return {row.method: row.error for row in table(store).values() if row.status != "ok"}


def rows_by_image(store):
    """The setting, the metrics and the image of each row."""
    names = {fingerprint(image): image for image in {**KNOWN, **images_of(store)}}
    return [
        (block.setting, tuple(sorted(block.about["metrics"])), names[int(number)])
        for block in store.blocks()
        for number in block.rows["image"]
    ]


def expected(asked, shard=SHARD):
    """The table that a plan comes to."""
    units = pending_tasks(asked, (), shard)
    return {row.key: replace(row, seconds=0.0) for unit in units for row in rows_of(unit)}


def leftovers(root):
    return sorted(path.relative_to(root).as_posix() for path in root.rglob(".*"))
