"""Search for the settings with the best objective; resumable, and shared between processes."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

import fringe
from fringe.attribution import Attributor, PresetMetadata
from fringe.bench.tuning._space import SearchSpace, Study
from fringe.errors import FringeError, InputError, install_hint, is_transient, require

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


Array = NDArray[np.float64]

#: The metrics of the objective.
OBJECTIVE = ("insertion", "deletion", "infidelity")


#: Weights of Ins, 1 - Del and Fid.
WEIGHTS = {"insertion": 1.0, "deletion": 1.0, "fidelity": 0.5}
#: k, the rate at which Fid falls with the infidelity; and what is added to each part before the division.
RATE, EPSILON = 2.0, 1e-6


def objective(insertion: Sequence[float], deletion: Sequence[float], infidelity: Sequence[float]) -> float:
    """Compute the weighted harmonic mean of Ins, 1 - Del and Fid = exp(-k Inf), from the means over N images, (N,)
    scores each; the insertion and deletion are those with blurred pixels. NaN if a score is not finite.

    Higher is better. A part below zero counts as zero, because the formula has poles there. Raises InputError if the
    metrics have not one score for each of the same images, or the mean infidelity is negative.
    """
    scores = score_matrix({"insertion": insertion, "deletion": deletion, "infidelity": infidelity})
    if not np.isfinite(scores).all():
        return float("nan")
    return float(objective_of_means(scores.mean(1)))


def score_matrix(scores: "dict[str, Sequence[float]]") -> Array:
    """Stack the scores of M metrics, (N,) each of the same N images, to (M, N)."""
    rows = {name: np.asarray(values, dtype=np.float64) for name, values in scores.items()}
    shapes = {name: row.shape for name, row in rows.items()}
    if any(len(shape) != 1 for shape in shapes.values()) or len(set(shapes.values())) != 1 or (0,) in shapes.values():
        shapes_text = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise InputError(f"expected one number per image of the same images, got {shapes_text}", argument="scores")
    return np.stack(list(rows.values()))


def objective_of_means(means: Array) -> Array:
    """Compute the objective (...) of mean insertion, deletion and infidelity (3, ...)."""
    if bool((means[2] < 0).any()):
        raise InputError(f"got a mean of {means[2].min():.6g}, expected none below zero", argument="infidelity")
    parts, weights = (means[0], 1.0 - means[1], np.exp(-RATE * means[2])), WEIGHTS.values()
    total = sum(weight / (np.maximum(part, 0.0) + EPSILON) for weight, part in zip(weights, parts, strict=True))
    return np.asarray(sum(weights) / total)


#: Scores a method: returns ``insertion``, ``deletion`` and ``infidelity`` by name, (N,) each of the same N images, and
#: further scores to store.
Score = Callable[[Attributor], Mapping[str, Sequence[float]]]


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
    call repeats the trial; so does a TransientError, because a full disk says nothing about the settings. A trial whose
    process was killed is repeated, too, however often.

    A setting of ``base`` that is searched and outside the space, such as ``delta_euc="auto"``, is scored unchanged; the
    estimator gets the nearest point of the space. ``progress`` is called after each trial of this process.

    Raises InputError if an argument is invalid, or the file is damaged, no file of a search, or one of another search;
    TransientError if it cannot be read or written now; FringeError if no trial succeeded.
    """
    require(type(base).name == space.method, "space", space.method, f"a space of {base.name!r}, the base's method")
    try:
        from fringe.bench.tuning._study import SharedStudy, outcome_of
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
    with contextlib.closing(shared):
        while (trial := shared.ask()) is not None:
            slot = trial.user_attrs["slot"]["number"]
            try:
                with shared.alive(trial):
                    value, attributes = _attempt(base, slot, trial.params, score)
            except BaseException:
                with contextlib.suppress(FringeError, OSError):  # the disk may have failed: the first error says more
                    shared.release(trial)
                raise
            shared.tell(trial, value, attributes)
            if progress is not None:
                current = shared.trials()
                if (ended := _trial(slot, current[slot], base, space)) is not None:
                    done = sum(outcome_of(one) is not None for one in current.values())
                    progress(ended, done, trials)
        current = shared.trials()
    known = [one for slot, trial in current.items() if (one := _trial(slot, trial, base, space)) is not None]
    running, good = len(current) - len(known), [one for one in known if not one.problem]
    if not good:
        first = f"; the first: {known[0].problem}" if known else ""
        raise FringeError(f"tune: none of {len(known)} trials succeeded ({running} still running){first}")
    best = max(good, key=lambda one: (one.value, -one.number))
    return Tuned(_setting(base, best.number, best.settings), best.value, tuple(known), running, study.seed)


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
    for name in OBJECTIVE:
        require(name in scores, "score", ", ".join(scores) or "nothing", f"{name!r} among the scores")
    value = objective(*(scores[name] for name in OBJECTIVE))
    # JSON cannot represent numbers that are not finite.
    stored = {name: [v if math.isfinite(v) else None for v in values] for name, values in scores.items()}
    if math.isfinite(value):
        return value, {"scores": stored}
    faults = ", ".join(f"{name} of {stored[name].count(None)}" for name in OBJECTIVE if None in stored[name])
    return None, {"scores": stored, "problem": f"scores are not finite: {faults} of {len(stored[OBJECTIVE[0]])} images"}


def _trial(slot: int, trial: "FrozenTrial", base: Attributor, space: SearchSpace) -> Trial | None:
    """The trial as it ended; None for one without an end."""
    from fringe.bench.tuning._study import outcome_of

    outcome = outcome_of(trial)
    if outcome is None:
        return None
    scores: dict[str, list[float | None]] = outcome.get("scores", {})
    return Trial(
        number=slot,
        settings={name: getattr(base, name) for name in space.dimensions} if slot == 0 else trial.params,
        value=math.nan if trial.value is None else trial.value,
        scores={name: tuple(math.nan if v is None else v for v in values) for name, values in scores.items()},
        problem=outcome.get("problem", ""),
    )


def preset_metadata(tuned: Tuned, *, architecture: str, weights: str, images: Sequence[str]) -> PresetMetadata:
    """Build the metadata of a search; ``images`` are the digests of the scored images, in order."""
    scored = next(len(trial.scores["insertion"]) for trial in tuned.trials if not trial.problem)
    require(len(images) == scored, "images", len(images), f"{scored}, one for each score of a trial")
    return {
        "architecture": architecture,
        "weights": weights,
        "objective": tuned.value,
        "images": list(images),
        "trials": len(tuned.trials),
        "seed": tuned.seed,
        "version": fringe.__version__,
    }
