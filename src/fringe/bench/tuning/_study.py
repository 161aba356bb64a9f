"""A search shared by processes: Optuna's trials in its SQLite storage, with its heartbeat. Needs Optuna.

Optuna says how to store, draw and take over trials; what it lacks is here: at most as many trials as were requested,
one number for a trial and those that take it over, and a digest by which a damaged file is noticed.
"""

import contextlib
import hashlib
import json
import sqlite3
import threading
import time
import warnings
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, cast

import optuna
from filelock import FileLock
from optuna.distributions import distribution_to_json
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.samplers import PartialFixedSampler, TPESampler
from optuna.storages import RDBStorage, fail_stale_trials
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import URL
from sqlalchemy.exc import SQLAlchemyError

from fringe._files.disk import MAPS_BYTES, open_regular
from fringe._files.records import changes
from fringe.bench.tuning._space import SearchSpace, Study
from fringe.errors import FringeError, InputError, TransientError, first_line, require_integer

#: Attributes of a trial: its slot, and how it ended; each with a digest.
SLOT, OUTCOME = "slot", "outcome"
_HEADER = b"SQLite format 3\0"
#: Results of SQLite by which a file is damaged; others, such as a full disk, are the machine's.
_DAMAGE = {
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
}
#: Seconds without a sign of life after which the process of a trial counts as ended.
GRACE_PERIOD = 60
#: Seconds that a process waits for another one that writes.
_PATIENCE = 60.0


class SharedStudy:
    """An Optuna study of ``trials`` slots, one for each requested trial.

    Slot 0 has the settings ``start``, a point of the space. The settings of slot k depend on the seed, k and the scores
    known when they were drawn, so a resumed study continues like an uninterrupted one. A trial whose process has ended
    is marked as failed, and a new one with the same settings takes its slot, however often: the last trial of a slot
    counts. A stored study with another ``identity`` is refused.
    """

    def __init__(self, study: Study, space: SearchSpace, start: Mapping[str, Any], trials: int):
        require_integer("trials", trials)
        self._settings, self._space, self._start, self._slots = study, space, start, trials
        study.path.parent.mkdir(parents=True, exist_ok=True)
        with self._turn():
            _check_file(study.path)
            database = URL.create("sqlite", database=str(study.path.absolute())).render_as_string()
            self._storage = RDBStorage(
                database.replace("{", "{{").replace("}", "}}"),
                engine_kwargs={"connect_args": {"timeout": _PATIENCE}},
                heartbeat_interval=GRACE_PERIOD // 6,
                grace_period=GRACE_PERIOD,
            )
            self._study = _open(self._storage, study.name, json.loads(json.dumps(dict(study.identity))), study.path)

    def close(self) -> None:
        """Close the file."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    def ask(self) -> optuna.Trial | None:
        """Start the next trial, with its settings, in this process; None if every slot is taken.

        Where all that is left runs elsewhere, wait as long as it takes to notice that a process has ended.
        """
        deadline = time.monotonic() + GRACE_PERIOD + 2
        while (trial := self._ask()) is None:
            running = any(t.state == TrialState.RUNNING for t in self.trials().values())
            if not running or time.monotonic() > deadline:
                break
            time.sleep(1.0)
        return trial

    def _ask(self) -> optuna.Trial | None:
        with self._turn():
            fail_stale_trials(self._study)
            for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                if SLOT not in trial.user_attrs:  # its process ended while it was asked
                    self._fail(trial)
            current = self.trials()
            abandoned = (n for n, trial in current.items() if trial.state.is_finished() and outcome_of(trial) is None)
            slot = next(abandoned, len(current))
            if slot >= self._slots:
                return None
            known = current[slot].params if slot in current else self._start if slot == 0 else {}
            seed = hashlib.sha256(f"{self._settings.seed} {slot}".encode()).digest()[:4]
            sampler = TPESampler(seed=int.from_bytes(seed, "big"), multivariate=True, constant_liar=True)
            self._study.sampler = PartialFixedSampler(dict(known), sampler)
            trial = self._study.ask(dict(self._space.dimensions))
            self._beat(trial.number)
            trial.set_user_attr(SLOT, {"number": slot, "digest": _digest(trial, slot)})
            return trial

    @contextlib.contextmanager
    def alive(self, trial: optuna.Trial) -> Generator[None]:
        """Record that this process works on a trial, until the block ends."""
        ended = threading.Event()

        def beat() -> None:
            while not ended.wait(self._storage.get_heartbeat_interval()):
                with contextlib.suppress(StorageInternalError, SQLAlchemyError):  # one that lacks is no harm
                    self._beat(trial.number)

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def tell(self, trial: optuna.Trial, value: float | None, attributes: Mapping[str, Any]) -> None:
        """Record a trial's value (None: it failed) and what else is known of it.

        Nothing is recorded if the trial was given to another process in the meantime.
        """
        outcome = {**attributes, "value": value}
        digest = _digest(trial, trial.user_attrs[SLOT]["number"], outcome)
        state = TrialState.FAIL if value is None else TrialState.COMPLETE
        with _storage_errors(self._settings.path), contextlib.suppress(UpdateFinishedTrialError):
            trial.set_user_attr(OUTCOME, {**outcome, "digest": digest})
            self._study.tell(trial, value, state, skip_if_finished=True)

    def release(self, trial: optuna.Trial) -> None:
        """Return a trial that could not be scored, for the next :meth:`ask`."""
        with _storage_errors(self._settings.path):
            self._fail(trial)

    def trials(self) -> dict[int, FrozenTrial]:
        """Return the last trial of each slot, by slot in ascending order. Raises InputError if the file is damaged."""
        with _storage_errors(self._settings.path):
            trials = self._study.get_trials(deepcopy=False)
            current = {_checked_slot(trial): trial for trial in trials if SLOT in trial.user_attrs}
            dense = [trial.number for trial in trials] == list(range(len(trials)))
            complete = all(SLOT in trial.user_attrs for trial in trials if trial.state == TrialState.COMPLETE)
            if not dense or not complete or sorted(current) != list(range(len(current))):
                raise ValueError("a trial is missing")
            return dict(sorted(current.items()))

    def _beat(self, number: int) -> None:
        study = self._storage.get_study_id_from_name(self._settings.name)
        self._storage.record_heartbeat(self._storage.get_trial_id_from_study_id_trial_number(study, number))

    def _fail(self, trial: optuna.Trial | FrozenTrial) -> None:
        with contextlib.suppress(UpdateFinishedTrialError):
            self._study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)

    @contextlib.contextmanager
    def _turn(self) -> Generator[None]:
        """Work on the study alone. The system frees the lock of a process that has ended."""
        with FileLock(f"{self._settings.path}.lock"), _storage_errors(self._settings.path):
            yield


def outcome_of(trial: FrozenTrial) -> Mapping[str, Any] | None:
    """Return how a trial ended: its ``value``, and its ``scores`` or its ``problem``; None for one that still runs, or
    whose process ended."""
    outcome = cast(Mapping[str, Any] | None, trial.user_attrs.get(OUTCOME))
    ended = trial.state == TrialState.COMPLETE or (trial.state == TrialState.FAIL and outcome and "problem" in outcome)
    return outcome if ended else None


def _checked_slot(trial: FrozenTrial) -> int:
    """The slot of a trial whose digests fit its settings and its outcome."""
    slot, outcome = trial.user_attrs[SLOT], trial.user_attrs.get(OUTCOME)
    fits = slot["digest"] == _digest(trial, slot["number"])
    if outcome is not None:
        stored = {name: value for name, value in outcome.items() if name != "digest"}
        fits &= outcome["digest"] == _digest(trial, slot["number"], stored)
    if trial.state == TrialState.COMPLETE:
        fits &= outcome is not None and outcome["value"] == trial.value
    if not fits:
        raise ValueError(f"trial {trial.number} is not as it was written")
    return slot["number"]


def _digest(trial: optuna.Trial | FrozenTrial, *parts: Any) -> str:
    ranges = {name: distribution_to_json(one) for name, one in trial.distributions.items()}
    text = json.dumps([trial.params, ranges, *parts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@contextlib.contextmanager
def _storage_errors(path: Path) -> Generator[None]:
    """Raise InputError for a damaged file, and TransientError where the machine failed; keep Optuna quiet."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the heartbeat, and taking over a trial, are experimental in Optuna
            yield
    except (FringeError, OSError, MemoryError):
        raise
    except Exception as error:
        cause: BaseException = error  # that of SQLite behind one of Optuna
        while not isinstance(cause, sqlite3.Error) and cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, sqlite3.Error) and getattr(cause, "sqlite_errorcode", 1) & 0xFF not in _DAMAGE:
            raise TransientError(f"{path} cannot be read or written ({cause})") from error
        raise InputError(
            f"{path} is damaged ({first_line(cause)})",
            argument="path",
            hint="remove it and search again: scores that a run folder stores are not computed again",
        ) from error
    finally:
        optuna.logging.set_verbosity(before)


def _check_file(path: Path) -> None:
    """Refuse a file that is no database, or one with pages that do not fit together or with code of its own."""
    if not path.exists():
        return
    try:
        with open_regular(path, MAPS_BYTES) as file:
            header = file.read(len(_HEADER))
    except OSError as error:
        raise InputError(f"{path} is no file that can be read ({error.strerror})", argument="path") from error
    if header not in (b"", _HEADER):
        raise InputError(f"{path} is no file of a search", argument="path", hint="name another one")
    with contextlib.closing(sqlite3.connect(path, timeout=_PATIENCE)) as database:
        (answer,) = database.execute("PRAGMA integrity_check(1)").fetchone()
        code = database.execute("SELECT name FROM sqlite_master WHERE type IN ('trigger', 'view')").fetchone()
    if answer != "ok" or code is not None:
        raise ValueError(answer if code is None else f"it holds {code[0]!r}")


def _open(storage: RDBStorage, name: str, identity: dict[str, Any], path: Path) -> optuna.Study:
    """Open or create a study, and list the differences from another identity."""
    study = optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True)
    if "identity" not in study.user_attrs and not study.get_trials(deepcopy=False):
        study.set_user_attr("identity", identity)
    if differences := sorted(changes(study.user_attrs.get("identity", {}), identity)):
        raise InputError(
            f"the study {name!r} in {path} was made with other settings",
            argument="path",
            hint=f"ask for the same, or name another place for the new one. Differences: {'; '.join(differences)}",
        )
    return study
