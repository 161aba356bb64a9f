"""Search for the settings with the best objective; resumable, and shared between processes."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from fringe._packages import install_hint
from fringe.attribution import Attributor
from fringe.errors import FringeError, InputError, is_transient, require
from fringe.tuning._objective import SCORES, WEIGHTS, objective
from fringe.tuning._space import SearchSpace, Study

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from fringe.tuning._study import SharedStudy

#: Scores a method: returns ``insertion``, ``deletion`` and ``infidelity`` by name, (N,) each of the same N images, and
#: further scores to store.
Score = Callable[[Attributor], Mapping[str, Sequence[float]]]

_KILLED = "its process ended twice before it was scored"


@dataclass(frozen=True)
class Trial:
    """Scored settings; trial 0 has those that the search started from.

    ``settings`` are the searched settings; ``value`` is the objective, NaN for a failed trial; ``problem`` is its
    reason. ``scores`` (N,) are the scores of the images by metric; empty if there are none.
    """

    number: int
    settings: Mapping[str, Any]
    value: float
    scores: Mapping[str, tuple[float, ...]]
    problem: str = ""

    def describe(self) -> str:
        """Describe the trial in a line: its number, value or problem, and settings."""
        values = (f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in self.settings.items())
        return f"trial {self.number}: {self.problem or f'{self.value:.4f}'} ({', '.join(values)})"


#: Called after each trial of this process with the trial, the number of trials that all processes have finished, and
#: the number requested.
Progress = Callable[[Trial, int, int], None]


@dataclass(frozen=True)
class Tuned:
    """The result of a search.

    ``best`` is the method with the best objective ``value`` (the earliest if equal), ``trials`` are the finished
    trials, and ``running`` is the number of trials that run in other processes."""

    best: Attributor
    value: float
    trials: tuple[Trial, ...]
    running: int
    seed: int


def tune(
    base: Attributor,
    space: SearchSpace,
    score: Score,
    study: Study,
    *,
    trials: int,
    progress: Progress | None = None,
) -> Tuned:
    """Score ``base``, then settings proposed by a tree-structured Parzen estimator (Optuna's TPESampler).

    With one process, equal seeds propose equal settings, also after an interruption. Several processes together never
    run more than ``trials``, which include those of earlier calls. If ``score`` raises a FringeError or returns a
    number that is not finite, the trial fails and the search continues. Any other error ends the call, and the next
    call repeats the trial; so does a TransientError, because a full disk says nothing about the settings.

    A setting of ``base`` that is searched and outside the space, such as ``delta_euc="auto"``, is scored unchanged; the
    estimator gets the nearest point of the space. ``progress`` is called after each trial of this process.

    Raises InputError if an argument is invalid, or the file is not a journal or has another study; FringeError if no
    trial succeeded.
    """
    require(type(base).name == space.method, "space", space.method, f"a space of {base.name!r}, the base's method")
    try:
        from fringe.tuning._study import SLOT, SharedStudy
    except ModuleNotFoundError as error:
        raise InputError("tune needs Optuna", hint=install_hint("tune")) from error
    identity = {
        "base": base.record(),
        "space": space.record(),
        "weights": WEIGHTS,
        "seed": study.seed,
        "identity": dict(study.identity),
    }
    shared = SharedStudy(dataclasses.replace(study, identity=identity), space, space.clip(base), trials)
    while (trial := shared.ask()) is not None:
        slot = trial.user_attrs[SLOT]
        try:
            value, attributes = _attempt(base, slot, trial.params, score)
        except BaseException:
            with contextlib.suppress(OSError):  # the journal's disk may have failed: the first error says more
                shared.release(trial)
            raise
        shared.tell(trial, value, attributes)
        if progress is not None:
            current = shared.trials()
            if current[slot].state.is_finished():
                done = sum(one.state.is_finished() for one in current.values())
                progress(_trial(slot, current[slot], base, space), done, trials)
    return _result(shared, base, space, study.seed)


def _setting(base: Attributor, slot: int, settings: Mapping[str, Any]) -> Attributor:
    return base if slot == 0 else dataclasses.replace(cast(Any, base), **settings)


def _attempt(
    base: Attributor, slot: int, settings: Mapping[str, Any], score: Score
) -> tuple[float | None, dict[str, Any]]:
    """The objective of a method (None if it failed), and the data to store with the trial."""
    try:
        scores = {name: [float(v) for v in values] for name, values in score(_setting(base, slot, settings)).items()}
    except FringeError as error:
        if is_transient(error):
            raise
        return None, {"problem": str(error)}
    for name in SCORES:
        require(name in scores, "score", ", ".join(scores) or "nothing", f"{name!r} among the scores")
    value = objective(*(scores[name] for name in SCORES))
    # JSON cannot represent numbers that are not finite.
    stored = {name: [v if math.isfinite(v) else None for v in values] for name, values in scores.items()}
    if math.isfinite(value):
        return value, {"scores": stored}
    faults = ", ".join(f"{name} of {stored[name].count(None)}" for name in SCORES if None in stored[name])
    return None, {"scores": stored, "problem": f"scores are not finite: {faults} of {len(stored[SCORES[0]])} images"}


def _trial(slot: int, trial: "FrozenTrial", base: Attributor, space: SearchSpace) -> Trial:
    stored = trial.user_attrs
    scores: dict[str, list[float | None]] = stored.get("scores", {})
    failed = trial.value is None
    return Trial(
        number=slot,
        settings={name: getattr(base, name) for name in space.dimensions} if slot == 0 else trial.params,
        value=math.nan if trial.value is None else trial.value,
        scores={name: tuple(math.nan if v is None else v for v in values) for name, values in scores.items()},
        problem=stored.get("problem", _KILLED) if failed else "",
    )


def _result(study: "SharedStudy", base: Attributor, space: SearchSpace, seed: int) -> Tuned:
    current = study.trials()
    finished = [_trial(slot, trial, base, space) for slot, trial in current.items() if trial.state.is_finished()]
    running = sum(trial.state.name == "RUNNING" for trial in current.values())
    good = [trial for trial in finished if not trial.problem]
    if not good:
        first = f"; the first: {finished[0].problem}" if finished else ""
        raise FringeError(f"tune: none of {len(finished)} trials succeeded ({running} still running){first}")
    best = max(good, key=lambda trial: (trial.value, -trial.number))
    return Tuned(_setting(base, best.number, best.settings), best.value, tuple(finished), running, seed)
