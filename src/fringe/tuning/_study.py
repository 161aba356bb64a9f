"""What a study is to do."""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState

from fringe._checks import is_whole, require, require_local, require_positive, require_whole
from fringe._files import MAPS_BYTES, open_regular
from fringe._process import fate, this_process
from fringe.errors import InputError
from fringe.tuning._space import SearchSpace


@dataclass(frozen=True)
class Plan:
    """The study ``name`` in the file ``journal``: ``trials`` settings of ``space``, the first of them ``start``, drawn
    from ``seed``. Its scores depend on ``identity``. Seconds after which a silent host's trial is given up:
    ``stale_after``."""

    journal: Path
    name: str
    identity: Mapping[str, Any]
    space: SearchSpace
    start: Mapping[str, Any]
    trials: int
    seed: int
    stale_after: float

    def __post_init__(self) -> None:
        require_local("journal", self.journal)
        require(bool(self.name), "name", self.name, "a name for the study")
        require_whole("trials", self.trials)
        require(is_whole(self.seed, least=0), "seed", self.seed, "a whole number not below zero")
        require_positive("stale_after", self.stale_after)


_RECORD = b'{"op_code":'
"""How each line of a journal begins."""


class Journal(BaseJournalBackend):
    """Optuna's journal file, whose last line may have been torn by a crash.

    A torn line was never acknowledged, so nothing that anybody knows of is lost with it; but a record appended to it
    would be, and the file could not be read again. It is cut off before each append.
    """

    def __init__(self, path: Path):
        self._path = path
        self._file = JournalFileBackend(str(path), lock_obj=JournalFileOpenLock(str(path)))

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        return self._file.read_logs(log_number_from)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        with exclusive(self._path), open(self._path, "r+b") as file:
            file.seek(_end_of_last_line(self._path))
            file.truncate()
            file.write(lines.encode())
            file.flush()
            os.fsync(file.fileno())


@contextlib.contextmanager
def exclusive(path: Path) -> Generator[None]:
    """Hold the lock file beside ``path``. That of a killed process is broken after 30 s."""
    lock = JournalFileOpenLock(str(path))
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """Keep Optuna's own messages off the terminal."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def open_study(path: Path, name: str, identity: dict[str, Any]) -> optuna.Study:
    """The study ``name`` of a journal, made if it is not there. Raises InputError, naming the differences, if it is
    there with another ``identity`` (plain JSON), and on a file that is no journal."""
    if path.exists():
        _inspect(path)
    study = optuna.create_study(
        storage=JournalStorage(Journal(path)), study_name=name, direction="maximize", load_if_exists=True
    )
    if "identity" not in study.user_attrs and not study.get_trials(deepcopy=False):
        study.set_user_attr("identity", identity)
    found = study.user_attrs.get("identity", {})
    if differences := sorted(_differences(found, identity)):
        raise InputError(
            f"journal: the study {name!r} in {path} was made with other settings; ask for the same, or keep the "
            f"new one elsewhere (--out). Differences: {'; '.join(differences)}"
        )
    return study


def plain(value: Any) -> Any:
    """``value`` as it comes back from JSON. Raises InputError if it cannot be written."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise InputError(f"identity: expected plain data that JSON can hold: {error}") from error


def _differences(found: Any, given: Any, where: str = "") -> list[str]:
    """``base.damping: 0.01 there, 0.1 now`` of every leaf that is not the same."""
    if isinstance(found, dict) and isinstance(given, dict):
        keys = {**found, **given}
        parts = [_differences(found.get(key), given.get(key), f"{where}.{key}" if where else key) for key in keys]
        return [line for part in parts for line in part]
    there, now = (json.dumps(value, sort_keys=True) for value in (found, given))
    return [] if there == now else [f"{where}: {there} there, {now} now"]


def _inspect(path: Path) -> None:
    """Raise InputError, with the line, unless every line is a record, the last one perhaps torn."""
    try:
        opened = open_regular(path, MAPS_BYTES)
    except OSError as error:
        raise InputError(f"journal: {path} is no file that can be read ({error.strerror})") from error
    with opened as file:
        for number, line in enumerate(file, start=1):
            if not (_is_record(line) if line.endswith(b"\n") else line.startswith(_RECORD[: len(line)])):
                raise InputError(
                    f"journal: line {number} of {path} is no record of a study; is it a journal? If it is, remove the "
                    "lines from there on and resume: trials that they held are run again"
                )


def _is_record(line: bytes) -> bool:
    try:
        return line.startswith(_RECORD) and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _end_of_last_line(path: Path, block: int = 1 << 16) -> int:
    """Bytes up to and with the last line feed."""
    with open(path, "rb") as file:
        place = file.seek(0, os.SEEK_END)
        while place > 0:
            start = max(0, place - block)
            file.seek(start)
            found = file.read(place - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            place = start
    return 0


class Queue:
    """A study as seats, one for each trial that is wanted. Seat 0 is the start; the setting of seat k follows from the
    seed, k and the scores that were there when it was drawn, so that a study interrupted and resumed asks what it would
    have asked.

    A trial sits on a seat. One that was left behind is marked failed, and a new trial with the same setting takes its
    seat; the last trial of a seat is the one that counts. Processes take turns by a lock beside the journal.
    """

    def __init__(self, plan: Plan):
        self._plan = plan
        plan.journal.parent.mkdir(parents=True, exist_ok=True)
        with self._turn():
            self._study = open_study(plan.journal, plan.name, plain(dict(plan.identity)))

    def take(self) -> optuna.Trial | None:
        """The next trial, with its parameters, now this process's own; None if every seat is taken."""
        with self._turn():
            self._reclaim()
            return self._next()

    def finish(self, trial: optuna.Trial, value: float | None, notes: Mapping[str, Any]) -> None:
        """Keep a trial's value, or its failure if there is none, and ``notes`` as its user attributes. A trial that was
        reclaimed meanwhile is somebody else's: then nothing is kept."""
        with quiet(), contextlib.suppress(UpdateFinishedTrialError):
            for key, note in notes.items():
                trial.set_user_attr(key, note)
            state = TrialState.FAIL if value is None else TrialState.COMPLETE
            self._study.tell(trial, value, state, skip_if_finished=True)

    def hand_back(self, trial: optuna.Trial) -> None:
        """Leave a trial that could not be finished to whoever asks next."""
        with self._turn():
            left = next(t for t in self.holders() if t.user_attrs["seat"] == trial.user_attrs["seat"])
            if left.number == trial.number and left.state == TrialState.RUNNING:
                self._vacate(left, deaths=left.user_attrs.get("deaths", 0))

    def holders(self) -> list[FrozenTrial]:
        """The trial that counts of each seat, in the order of seats."""
        trials = self._study.get_trials(deepcopy=False)
        seated = {t.user_attrs["seat"]: t for t in trials if "seat" in t.user_attrs}
        return [seated[seat] for seat in sorted(seated)]

    @contextlib.contextmanager
    def _turn(self) -> Generator[None]:
        with quiet(), exclusive(Path(f"{self._plan.journal}.turn")):
            yield

    def _next(self) -> optuna.Trial | None:
        if not self.holders():
            self._study.enqueue_trial(dict(self._plan.start), {"seat": 0})
        held = self.holders()
        if sum(t.state != TrialState.WAITING for t in held) >= self._plan.trials:
            return None
        if not self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            self._study.enqueue_trial({}, {"seat": len(held)})
        # Optuna hands out the first that waits; one without a seat was enqueued by hand.
        first = self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,))[0]
        seat = first.user_attrs.get("seat", len(held))
        self._study.sampler = TPESampler(seed=_seed(self._plan.seed, seat), multivariate=True, constant_liar=True)
        trial = self._study.ask()
        if "seat" not in trial.user_attrs:
            trial.set_user_attr("seat", seat)
        self._plan.space.suggest(trial)
        trial.set_user_attr("owner", this_process())
        return trial

    def _reclaim(self) -> None:
        """Vacate the seats of trials whose process is gone, or not known to be alive after so long. One that a process
        has died of twice keeps its seat as a failure: it may be what kills them."""
        held = {t.number for t in self.holders()}
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if not self._abandoned(trial):
                continue
            deaths = trial.user_attrs.get("deaths", 0) + ("owner" in trial.user_attrs)
            if trial.number in held and deaths < 2:
                self._vacate(trial, deaths)
            else:
                self._fail(trial)

    def _abandoned(self, trial: FrozenTrial) -> bool:
        # A trial gets its owner at the end of the turn in which it starts: without one, that turn was cut short.
        now = fate(trial.user_attrs["owner"]) if "owner" in trial.user_attrs else "gone"
        started = trial.datetime_start.timestamp() if trial.datetime_start else 0.0
        return now == "gone" or (now == "unknown" and time.time() - started > self._plan.stale_after)

    def _vacate(self, trial: FrozenTrial, deaths: int) -> None:
        """Queue the trial's setting for its seat again, then fail it: in this order no crash loses the setting."""
        complete = set(trial.params) == set(self._plan.space.dimensions)
        fixed = trial.params if complete else trial.system_attrs.get("fixed_params", {})
        self._study.enqueue_trial(fixed, {"seat": trial.user_attrs["seat"], "deaths": deaths})
        self._fail(trial)

    def _fail(self, trial: FrozenTrial) -> None:
        with contextlib.suppress(UpdateFinishedTrialError):
            self._study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)


def _seed(seed: int, seat: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {seat}".encode()).digest()[:4], "big")
