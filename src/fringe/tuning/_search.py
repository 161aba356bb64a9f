"""Search for the setting of a method with the best objective, resumable and shared between processes."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fringe._checks import require
from fringe.attribution import Attributor
from fringe.errors import FringeError, InputError, is_transient
from fringe.tuning._objective import PAPER, SCORES, Weights, objective
from fringe.tuning._space import SearchSpace
from fringe.tuning._study import Plan

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from fringe.tuning._study import Queue

Score = Callable[[Attributor], Mapping[str, Sequence[float]]]
"""Scores a setting: ``insertion``, ``deletion`` and ``infidelity`` by name, (N,) each of the same N images, and others
that are to be kept."""

_KILLED = "its process ended twice before it was scored"


@dataclass(frozen=True)
class Trial:
    """A setting that was scored. Number 0 is the one that the search started from.

    ``settings`` are the searched fields; ``value`` is the objective, NaN for a failed trial, whose ``problem`` says
    why. ``scores`` are those of the images, (N,) a metric, empty if there are none.
    """

    number: int
    settings: Mapping[str, Any]
    value: float
    scores: Mapping[str, tuple[float, ...]]
    problem: str = ""


Progress = Callable[[Trial, int, int], None]
"""Called after each trial of this process with it, the trials finished by all, and those wanted."""


@dataclass(frozen=True)
class Tuned:
    """What a search found: the ``best`` setting (the earliest of equals) with its objective ``value``, the finished
    ``trials``, and how many are ``running`` in other processes."""

    best: Attributor
    value: float
    trials: tuple[Trial, ...]
    running: int
    seed: int


def tune(
    base: Attributor,
    space: SearchSpace,
    score: Score,
    *,
    journal: Path,
    name: str,
    trials: int,
    seed: int,
    identity: Mapping[str, Any] | None = None,
    weights: Weights = PAPER,
    progress: Progress | None = None,
    stale_after: float = 3600.0,
) -> Tuned:
    """Score ``base`` and then settings of ``space`` that a tree-structured Parzen estimator proposes (Optuna's
    TPESampler) until the study ``name`` of the file ``journal`` holds ``trials`` of them, those of earlier calls and of
    other processes included. All of it is kept there, per image.

    Equal seeds propose equal settings, interrupted or not, as long as one process works; several never run more than
    ``trials`` together. ``identity`` is plain data that the scores depend on, such as the weights' digest and the
    images: a study that was made with another one, or another base, space, seed or objective, is refused. A searched
    field of ``base`` outside the space, such as ``delta_euc="auto"``, is scored as it is and shown to the estimator as
    the nearest place.

    A trial fails, and the search goes on, when ``score`` raises a FringeError or gives a number that is not finite. Any
    other error ends the call, and the trial is left to the next one; so does a TransientError, as a full disk says
    nothing about a setting. Left is that of a killed process, too: at once on its own host, after ``stale_after``
    seconds elsewhere, where a trial should not take longer. Raises FringeError if no trial succeeded.
    """
    require(type(base).name == space.method, "space", space.method, f"a space of {base.name!r}, the base's method")
    facts = {
        "base": base.record(),
        "space": space.record(),
        "weights": dataclasses.asdict(weights),
        "seed": seed,
        "identity": dict(identity or {}),
    }
    queue = _queue(Plan(Path(journal), name, facts, space, space.nearest(base), trials, seed, stale_after))
    while (taken := queue.take()) is not None:
        seat = taken.user_attrs["seat"]
        try:
            value, notes = _attempt(base, seat, taken.params, score, weights)
        except BaseException:
            with contextlib.suppress(OSError):  # the journal may be on the disk that failed: the first error says more
                queue.hand_back(taken)
            raise
        queue.finish(taken, value, notes)
        if progress is not None:
            finished = _finished(queue, base, space)
            for trial in (t for t in finished if t.number == seat):
                progress(trial, len(finished), trials)
    return _result(queue, base, space, seed)


def _queue(plan: Plan) -> "Queue":
    try:
        from fringe.tuning._study import Queue
    except ModuleNotFoundError as error:
        raise InputError("tune needs Optuna: pip install 'fringe[tune]'") from error
    return Queue(plan)


def _setting(base: Attributor, seat: int, settings: Mapping[str, Any]) -> Attributor:
    return base if seat == 0 else dataclasses.replace(cast(Any, base), **settings)


def _attempt(
    base: Attributor, seat: int, settings: Mapping[str, Any], score: Score, weights: Weights
) -> tuple[float | None, dict[str, Any]]:
    """The objective of a setting, None if it failed, and what is to be kept with it."""
    try:
        scores = {name: [float(v) for v in values] for name, values in score(_setting(base, seat, settings)).items()}
    except FringeError as error:
        if is_transient(error):
            raise
        return None, {"problem": str(error)}
    for name in SCORES:
        require(name in scores, "score", ", ".join(scores) or "nothing", f"{name!r} among the scores")
    value = objective(*(scores[name] for name in SCORES), weights=weights)
    # JSON has no word for what is not finite.
    kept = {name: [v if math.isfinite(v) else None for v in values] for name, values in scores.items()}
    if math.isfinite(value):
        return value, {"scores": kept}
    faults = ", ".join(f"{name} of {kept[name].count(None)}" for name in SCORES if None in kept[name])
    return None, {"scores": kept, "problem": f"scores are not finite: {faults} of {len(kept[SCORES[0]])} images"}


def _finished(queue: "Queue", base: Attributor, space: SearchSpace) -> list[Trial]:
    return [_trial(held, base, space) for held in queue.holders() if held.state.is_finished()]


def _trial(held: "FrozenTrial", base: Attributor, space: SearchSpace) -> Trial:
    about, seat = held.user_attrs, held.user_attrs["seat"]
    scores: dict[str, list[float | None]] = about.get("scores", {})
    failed = held.value is None
    return Trial(
        number=seat,
        settings={name: getattr(base, name) for name in space.dimensions} if seat == 0 else held.params,
        value=math.nan if held.value is None else held.value,
        scores={name: tuple(math.nan if v is None else v for v in values) for name, values in scores.items()},
        problem=about.get("problem", _KILLED) if failed else "",
    )


def _result(queue: "Queue", base: Attributor, space: SearchSpace, seed: int) -> Tuned:
    finished = _finished(queue, base, space)
    running = sum(held.state.name == "RUNNING" for held in queue.holders())
    good = [trial for trial in finished if not trial.problem]
    if not good:
        first = f"; the first: {finished[0].problem}" if finished else ""
        raise FringeError(f"tune: none of {len(finished)} trials succeeded ({running} still running){first}")
    best = max(good, key=lambda trial: (trial.value, -trial.number))
    return Tuned(_setting(base, best.number, best.settings), best.value, tuple(finished), running, seed)
