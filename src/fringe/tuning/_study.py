"""A study shared by processes: one journal file that survives crashes, and the assignment of trials. Needs Optuna.

Optuna's SQLite storage with heartbeats was tried instead: it starts a dead trial again only after a grace period, two
processes that create one file at once fail, and they score more trials than were requested.
"""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, cast

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState

from fringe._files import MAPS_BYTES, open_regular
from fringe._process import fate, this_process
from fringe.errors import InputError, require_integer
from fringe.tuning._space import SearchSpace, Study

#: Beginning of each line of a journal.
_RECORD = b'{"op_code":'

#: Attributes of a trial in stored journals: its slot, its process, and the number of processes that ended during it.
SLOT, _PROCESS, _DEATHS = "seat", "owner", "deaths"


class SharedStudy:
    """An Optuna study as slots, one for each of ``trials`` requested trials.

    Slot 0 has the settings ``start``, a point of the space. The settings of slot k depend on the seed, k and the scores
    known when they were drawn, so a resumed study continues like an uninterrupted one. An abandoned trial is marked as
    failed, and a new trial with the same settings takes its slot: the last trial of a slot counts. A lock file beside
    the journal serialises the processes. A stored study with another ``identity`` is refused.
    """

    def __init__(self, study: Study, space: SearchSpace, start: Mapping[str, Any], trials: int):
        require_integer("trials", trials)
        self._settings, self._space, self._start, self._slots = study, space, start, trials
        study.journal.parent.mkdir(parents=True, exist_ok=True)
        with self._locked():
            self._study = _open(study.journal, study.name, json.loads(json.dumps(dict(study.identity))))

    def ask(self) -> optuna.Trial | None:
        """Start the next trial, with its settings, in this process; None if every slot is taken."""
        with self._locked():
            self._fail_stale_trials()
            if not self.trials():
                self._study.enqueue_trial(dict(self._start), {SLOT: 0})
            current = self.trials()
            if sum(t.state != TrialState.WAITING for t in current.values()) >= self._slots:
                return None
            if not self._with_state(TrialState.WAITING):
                self._study.enqueue_trial({}, {SLOT: len(current)})
            # Optuna returns the first waiting trial; a trial without a slot was enqueued by the user.
            slot = self._with_state(TrialState.WAITING)[0].user_attrs.get(SLOT, len(current))
            self._study.sampler = TPESampler(
                seed=_slot_seed(self._settings.seed, slot), multivariate=True, constant_liar=True
            )
            trial = self._study.ask()
            if SLOT not in trial.user_attrs:
                trial.set_user_attr(SLOT, slot)
            self._space.suggest(trial)
            trial.set_user_attr(_PROCESS, this_process())
            return trial

    def tell(self, trial: optuna.Trial, value: float | None, attributes: Mapping[str, Any]) -> None:
        """Record a trial's value (None: it failed) and its user attributes.

        Nothing is recorded if the trial was given to another process in the meantime.
        """
        with _quiet(), contextlib.suppress(UpdateFinishedTrialError):
            for key, attribute in attributes.items():
                trial.set_user_attr(key, attribute)
            state = TrialState.FAIL if value is None else TrialState.COMPLETE
            self._study.tell(trial, value, state, skip_if_finished=True)

    def release(self, trial: optuna.Trial) -> None:
        """Return a trial that could not be scored, for the next :meth:`ask`."""
        with self._locked():
            last = self.trials()[trial.user_attrs[SLOT]]
            if last.number == trial.number and last.state == TrialState.RUNNING:
                self._requeue(last, deaths=last.user_attrs.get(_DEATHS, 0))

    def trials(self) -> dict[int, FrozenTrial]:
        """Return the last trial of each slot, by slot in ascending order."""
        trials = self._study.get_trials(deepcopy=False)
        return dict(sorted({t.user_attrs[SLOT]: t for t in trials if SLOT in t.user_attrs}.items()))

    def _with_state(self, state: TrialState) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False, states=(state,))

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        with _quiet(), _exclusive(Path(f"{self._settings.journal}.turn")):
            yield

    def _fail_stale_trials(self) -> None:
        """Queue abandoned trials again. A trial during which two processes ended stays failed: it may be the cause."""
        current = {t.number for t in self.trials().values()}
        for trial in self._with_state(TrialState.RUNNING):
            if self._is_abandoned(trial):
                deaths = trial.user_attrs.get(_DEATHS, 0) + (_PROCESS in trial.user_attrs)
                if trial.number in current and deaths < 2:
                    self._requeue(trial, deaths)
                else:
                    self._fail(trial)

    def _is_abandoned(self, trial: FrozenTrial) -> bool:
        # `ask` records the process last: without it, that call was interrupted.
        now = fate(trial.user_attrs[_PROCESS]) if _PROCESS in trial.user_attrs else "gone"
        started = trial.datetime_start.timestamp() if trial.datetime_start else 0.0
        return now == "gone" or (now == "unknown" and time.time() - started > self._settings.stale_after)

    def _requeue(self, trial: FrozenTrial, deaths: int) -> None:
        """Queue the trial's settings for its slot again, then fail it: in this order no crash loses the settings."""
        complete = set(trial.params) == set(self._space.dimensions)
        fixed = trial.params if complete else trial.system_attrs.get("fixed_params", {})
        self._study.enqueue_trial(fixed, {SLOT: trial.user_attrs[SLOT], _DEATHS: deaths})
        self._fail(trial)

    def _fail(self, trial: FrozenTrial) -> None:
        with contextlib.suppress(UpdateFinishedTrialError):
            self._study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)


class Journal(JournalFileBackend):
    """Optuna's journal file, whose last line may be incomplete after a crash.

    An incomplete line was never acknowledged, so it is removed before each append; otherwise the appended record would
    be lost, and the file could not be read again.
    """

    def __init__(self, path: Path):
        super().__init__(str(path), lock_obj=JournalFileOpenLock(str(path)))
        self._path = path

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        with _exclusive(self._path), open(self._path, "r+b") as file:
            if size := file.seek(0, os.SEEK_END):
                file.seek(size - 1)
                if file.read(1) != b"\n":
                    file.seek(0)
                    size = file.read().rfind(b"\n") + 1
                    file.truncate(size)
                    file.seek(size)
            file.write(lines.encode())
            file.flush()
            os.fsync(file.fileno())


@contextlib.contextmanager
def _exclusive(path: Path) -> Generator[None]:
    """Hold the lock file beside ``path``. The lock of a killed process expires after 30 s."""
    lock = JournalFileOpenLock(str(path))
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Suppress Optuna's own messages."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def _open(path: Path, name: str, identity: dict[str, Any]) -> optuna.Study:
    """Open or create a study; refuse a file that is not a journal, and list the differences from another identity."""
    if path.exists():
        _check_journal(path)
    storage = JournalStorage(Journal(path))
    study = optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True)
    if "identity" not in study.user_attrs and not study.get_trials(deepcopy=False):
        study.set_user_attr("identity", identity)
    if differences := sorted(_differences(study.user_attrs.get("identity", {}), identity)):
        raise InputError(
            f"the study {name!r} in {path} was made with other settings",
            argument="journal",
            hint=f"ask for the same, or name another file for the new one. Differences: {'; '.join(differences)}",
        )
    return study


def _differences(before: Any, now: Any, path: str = "") -> list[str]:
    """List each leaf that differs, as ``base.damping: 0.01 there, 0.1 now``."""
    if isinstance(before, dict) and isinstance(now, dict):
        old, new = cast(dict[str, Any], before), cast(dict[str, Any], now)
        parts = [_differences(old.get(key), new.get(key), f"{path}.{key}" if path else key) for key in {**old, **new}]
        return [line for part in parts for line in part]
    texts = [json.dumps(value, sort_keys=True) for value in (before, now)]
    return [] if texts[0] == texts[1] else [f"{path}: {texts[0]} there, {texts[1]} now"]


def _check_journal(path: Path) -> None:
    """Check that every line is a record (the last may be incomplete); the error names the line."""
    try:
        opened = open_regular(path, MAPS_BYTES)
    except OSError as error:
        raise InputError(f"{path} is no file that can be read ({error.strerror})", argument="journal") from error
    with opened as file:
        for number, line in enumerate(file, start=1):
            if not (_is_record(line) if line.endswith(b"\n") else line.startswith(_RECORD[: len(line)])):
                raise InputError(
                    f"line {number} of {path} is no record of a study",
                    argument="journal",
                    hint="is it a journal? If it is, remove the lines from there on and resume: trials that they held "
                    "are run again",
                )


def _is_record(line: bytes) -> bool:
    try:
        return line.startswith(_RECORD) and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _slot_seed(seed: int, slot: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {slot}".encode()).digest()[:4], "big")
