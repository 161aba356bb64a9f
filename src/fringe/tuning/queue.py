"""Which setting is scored next, agreed between the processes that share a journal. Needs Optuna."""

import contextlib
import hashlib
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial, TrialState

from fringe._process import fate, this_process
from fringe.tuning.journal import exclusive, open_study, plain, quiet
from fringe.tuning.plan import Plan


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
