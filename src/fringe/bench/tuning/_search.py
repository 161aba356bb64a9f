"""Search for the settings with the best objective. A search stores nothing: what proposes settings depends on the seed
and on the scores before, so that a search which begins anew proposes the same, and finds them scored."""

import contextlib
import dataclasses
import hashlib
import math
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

import fringe
from fringe.attribution import Attributor, PresetMetadata
from fringe.bench.tuning._space import SearchSpace
from fringe.errors import FringeError, InputError, install_hint, is_transient, require, require_integer

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


#: Called after each trial with the trial, the number of trials that are done, and the number requested.
Progress = Callable[[Trial, int, int], None]


@dataclass(frozen=True)
class Tuned:
    """The result of a search.

    ``best`` is the method with the best objective ``value`` (the earliest if equal), and ``trials`` are all."""

    best: Attributor
    value: float
    trials: tuple[Trial, ...]
    seed: int


def tune(
    base: Attributor,
    space: SearchSpace,
    score: Score,
    *,
    seed: int,
    trials: int,
    progress: Progress | None = None,
) -> Tuned:
    """Score ``base``, then settings proposed by a tree-structured Parzen estimator (Optuna's TPESampler).

    Those of trial k depend on the seed, k and the scores before: a search that is interrupted, or another process,
    proposes the same again, and a ``score`` that reads what it has stored answers at once. If ``score`` raises a
    FringeError or returns a number that is not finite, the trial fails and the search continues. Any other error ends
    the call; so does a TransientError, because a full disk says nothing about the settings.

    A setting of ``base`` that is searched and outside the space, such as ``delta_euc="auto"``, is scored unchanged; the
    estimator gets the nearest point of the space. ``progress`` is called after each trial.

    Raises InputError if an argument is invalid; FringeError if no trial succeeded.
    """
    require(type(base).name == space.method, "space", space.method, f"a space of {base.name!r}, the base's method")
    require_integer("seed", seed, least=0)
    require_integer("trials", trials)
    known = list[Trial]()
    with _quiet() as optuna:
        study = optuna.create_study(direction="maximize")
        study.enqueue_trial(space.clip(base))
        for number in range(trials):
            drawn = int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:4], "big")
            study.sampler = optuna.samplers.TPESampler(seed=drawn, multivariate=True)
            proposed = study.ask(dict(space.dimensions))
            trial = _attempt(base, number, space, proposed.params, score)
            study.tell(proposed, *((None, optuna.trial.TrialState.FAIL) if trial.problem else (trial.value,)))
            known.append(trial)
            if progress is not None:
                progress(trial, len(known), trials)
    good = [one for one in known if not one.problem]
    if not good:
        raise FringeError(f"tune: none of {len(known)} trials succeeded; the first: {known[0].problem}")
    best = max(good, key=lambda one: (one.value, -one.number))
    return Tuned(_setting(base, best.number, best.settings), best.value, tuple(known), seed)


@contextlib.contextmanager
def _quiet() -> Generator[Any]:
    """Optuna, which says nothing. Raises InputError if it is not installed."""
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise InputError("tune needs Optuna", hint=install_hint("tune")) from error
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
            yield optuna
    finally:
        optuna.logging.set_verbosity(before)


def _setting(base: Attributor, number: int, settings: Mapping[str, Any]) -> Attributor:
    return base if number == 0 else dataclasses.replace(cast(Any, base), **settings)


def _attempt(base: Attributor, number: int, space: SearchSpace, proposed: Mapping[str, Any], score: Score) -> Trial:
    """The trial of proposed settings; that of number 0 is of the base as it is."""
    settings = {name: getattr(base, name) for name in space.dimensions} if number == 0 else dict(proposed)
    try:
        given = score(_setting(base, number, proposed))
    except FringeError as error:
        if is_transient(error):
            raise
        return Trial(number, settings, math.nan, {}, str(error))
    scores = {name: tuple(map(float, values)) for name, values in given.items()}
    for name in OBJECTIVE:
        require(name in scores, "score", ", ".join(scores) or "nothing", f"{name!r} among the scores")
    value, problem = objective(*(scores[name] for name in OBJECTIVE)), ""
    if not math.isfinite(value):
        lacking = {name: sum(not math.isfinite(one) for one in scores[name]) for name in OBJECTIVE}
        faults = ", ".join(f"{name} of {count}" for name, count in lacking.items() if count)
        problem = f"scores are not finite: {faults} of {len(scores[OBJECTIVE[0]])} images"
    return Trial(number, settings, math.nan if problem else value, scores, problem)


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
