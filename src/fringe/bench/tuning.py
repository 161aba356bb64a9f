"""Search for the settings of a method with the best objective, with scores computed by the caller.

A search stores nothing: what proposes settings depends on the seed and on the scores before, so that a search which
begins anew proposes the same, and finds them scored."""

import contextlib
import dataclasses
import hashlib
import math
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from fringe._strings.formats import counted
from fringe.attribution import Attributor
from fringe.errors import FringeError, InputError, install_hint, is_transient, require, require_choice, require_integer
from fringe.settings import Setting, settings_of

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Array = NDArray[np.float64]

# -- the objective ----------------------------------------------------------------------------------------------------

#: The metrics of the objective.
OBJECTIVE = ("insertion", "deletion", "infidelity")
#: Weights of Ins, 1 - Del and Fid.
WEIGHTS = (1.0, 1.0, 0.5)
#: k, the rate at which Fid falls with the infidelity; and what is added to each part before the division.
RATE, EPSILON = 2.0, 1e-6


def objective(insertion: Sequence[float], deletion: Sequence[float], infidelity: Sequence[float]) -> float:
    """Compute the weighted harmonic mean of Ins, 1 - Del and Fid = exp(-k Inf), from the means over N images, (N,)
    scores each; the insertion and deletion are those with blurred pixels. NaN if a score is not finite.

    Higher is better. A part below zero counts as zero, because the formula has poles there. Raises InputError if the
    metrics have not one score for each of the same images, or the mean infidelity is negative.
    """
    scores = score_matrix({"insertion": insertion, "deletion": deletion, "infidelity": infidelity})
    return float(objective_of_means(scores.mean(1))) if np.isfinite(scores).all() else math.nan


def score_matrix(scores: Mapping[str, Sequence[float]]) -> Array:
    """Stack the scores of M metrics, (N,) each of the same N images, to (M, N)."""
    rows = {name: np.asarray(values, dtype=np.float64) for name, values in scores.items()}
    shapes = {row.shape for row in rows.values()}
    if len(shapes) != 1 or (0,) in shapes or any(row.ndim != 1 for row in rows.values()):
        shapes_text = ", ".join(f"{name} {row.shape}" for name, row in rows.items())
        raise InputError(f"expected one number per image of the same images, got {shapes_text}", argument="scores")
    return np.stack(list(rows.values()))


def objective_of_means(means: Array) -> Array:
    """Compute the objective (...) of mean insertion, deletion and infidelity (3, ...)."""
    if bool((means[2] < 0).any()):
        raise InputError(f"got a mean of {means[2].min():.6g}, expected none below zero", argument="infidelity")
    parts = means[0], 1.0 - means[1], np.exp(-RATE * means[2])
    total = sum(weight / (np.maximum(part, 0.0) + EPSILON) for weight, part in zip(WEIGHTS, parts, strict=True))
    return np.asarray(sum(WEIGHTS) / total)


# -- the space --------------------------------------------------------------------------------------------------------

#: What the paper varies.
PAPER, SMOOTHING = ("tau", "eta_max", "delta_euc", "damping"), ("gamma_step", "gamma_prior")
#: The searched settings of a method, with their values as distributions of Optuna; the others keep their values.
SearchSpace = Mapping[str, "BaseDistribution"]


def has_paper_settings(method: type[Attributor]) -> bool:
    """Whether a method has the settings that the paper varies: FRInGe, ours and as printed or released."""
    return {*PAPER, *SMOOTHING} <= set(method.search_space())


def paper_space(method: type[Attributor], smoothing: bool = True) -> SearchSpace:
    """Return the paper's space: tau, eta_max, delta_euc and damping, and with ``smoothing`` both gammas."""
    return space_of(method, dict.fromkeys((*PAPER, *(SMOOTHING if smoothing else ()))))


def space_of(method: type[Attributor], ranges: Mapping[str, tuple[float, float] | None] | None = None) -> SearchSpace:
    """Return the space of the settings of a method that have ``ranges`` (low, high), with None the setting's own range
    or choices. Without ``ranges``: all settings that have one.

    Raises InputError if a setting has neither a range nor choices, or a range is invalid.
    """
    settings, ranges = settings_of(method), dict.fromkeys(method.search_space()) if ranges is None else ranges
    if not ranges:
        message = f"{method.name} has no setting with a range or choices to search"
        raise InputError(message, argument="method", hint="name another method, or a setting with its range")
    for name in ranges:
        require_choice(f"{method.name} setting", name, settings)
    return {name: _dimension(method, settings[name], bounds) for name, bounds in ranges.items()}


def _dimension(method: type[Attributor], setting: Setting, bounds: tuple[float, float] | None) -> "BaseDistribution":
    try:
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
    except ModuleNotFoundError as error:
        raise InputError("a search needs Optuna", hint=install_hint("tune")) from error
    name, choices, search = setting.name, setting.choices, setting.search
    if choices is not None:
        require(bounds is None, name, bounds, f"no range: it is one of {', '.join(map(str, choices))}")
        return CategoricalDistribution(choices)
    numbers = {int, float}.intersection(setting.types)
    if not numbers or (bounds is None and search is None):
        raise InputError(f"{method.name} has no range to search it in, and no choices", argument=name)
    low, high = bounds = bounds or (search.low, search.high)  # pyright: ignore[reportOptionalMemberAccess]
    log, is_integer = search is not None and search.log, float not in numbers
    require(all(map(_is_number, bounds)) and low < high, name, bounds, "two finite numbers, the lower first")
    require(not log or low > 0, name, bounds, "bounds above zero, on a logarithmic scale")
    require(not is_integer or all(one == int(one) for one in bounds), name, bounds, "whole numbers")
    for bound in bounds:
        setting.check(int(bound) if is_integer else float(bound))
    return IntDistribution(int(low), int(high), log) if is_integer else FloatDistribution(low, high, log)


def nearest(distribution: Any, value: object) -> Any:
    """Return the value of a distribution that is nearest to another. That of something that is no number, such as
    ``"auto"``, is the middle of a range, or the first of several options."""
    if hasattr(distribution, "choices"):
        return value if value in distribution.choices else distribution.choices[0]
    low, high = distribution.low, distribution.high
    if not _is_number(value):
        value = math.sqrt(low * high) if distribution.log else (low + high) / 2
    near = min(max(cast(float, value), low), high)
    return round(near) if type(low) is int else float(near)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


# -- the search -------------------------------------------------------------------------------------------------------

#: Scores a method: returns ``insertion``, ``deletion`` and ``infidelity`` by name, (N,) each of the same N images.
Score = Callable[[Attributor], Mapping[str, Sequence[float]]]


@dataclass(frozen=True)
class Trial:
    """Scored settings; trial 0 has those that the search started from.

    ``settings`` are the searched settings; ``value`` is the objective, NaN for a failed trial; ``problem`` is its
    reason.
    """

    number: int
    settings: Mapping[str, Any]
    value: float
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

    ``best`` is the method with the best objective ``value`` (the earliest if equal), and ``trials`` are all; ``path``
    is the preset file that it was written to."""

    best: Attributor
    value: float
    trials: tuple[Trial, ...]
    path: Path | None = None

    @property
    def start(self) -> float | None:
        """The objective of the setting that the search began with; None if it has no score."""
        return None if self.trials[0].problem else self.trials[0].value

    def record(self) -> dict[str, Any]:
        """Return the best setting, its objective and that of the start, as JSON data."""
        values = {"objective": self.value, "start": self.start, "trials": len(self.trials)}
        return {"preset": str(self.path), **values, "settings": self.best.record()}

    def describe(self) -> str:
        """Describe the result for people."""
        start = "no score" if self.start is None else f"{self.start:.4f}"
        failed = sum(bool(trial.problem) for trial in self.trials)
        fate = f", of which {failed} failed" if failed else ""
        text = f"best of {counted(len(self.trials), 'trial')}{fate}: {self.value:.4f}"
        return f"{text} (the setting it began with: {start})\npreset: {self.path}; use it with preset='{self.path}'"


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
    for name in space:
        require_choice("space", name, settings_of(type(base)))
    require_integer("seed", seed, least=0)
    require_integer("trials", trials)
    known, methods = list[Trial](), list[Attributor]()
    with _quiet() as optuna:
        study = optuna.create_study(direction="maximize")
        study.enqueue_trial({name: nearest(one, getattr(base, name)) for name, one in space.items()})
        for number in range(trials):
            drawn = int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:4], "big")
            study.sampler = optuna.samplers.TPESampler(seed=drawn, multivariate=True)
            proposed = study.ask(dict(space))
            method = dataclasses.replace(cast(Any, base), **proposed.params) if number else base
            value, problem = _attempt(method, score)
            study.tell(proposed, *((None, optuna.trial.TrialState.FAIL) if problem else (value,)))
            known.append(Trial(number, {name: getattr(method, name) for name in space}, value, problem))
            methods.append(method)
            if progress is not None:
                progress(known[-1], len(known), trials)
    good = [one for one in known if not one.problem]
    if not good:
        raise FringeError(f"tune: none of {len(known)} trials succeeded; the first: {known[0].problem}")
    best = max(good, key=lambda one: (one.value, -one.number))
    return Tuned(methods[best.number], best.value, tuple(known))


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


def _attempt(method: Attributor, score: Score) -> tuple[float, str]:
    """The objective of a method, and why it has none."""
    try:
        scores = score(method)
    except FringeError as error:
        if is_transient(error):
            raise
        return math.nan, str(error)
    for name in OBJECTIVE:
        require(name in scores, "score", ", ".join(scores) or "nothing", f"{name!r} among the scores")
    value = objective(*(scores[name] for name in OBJECTIVE))
    if math.isfinite(value):
        return value, ""
    lacking = {name: sum(not math.isfinite(one) for one in scores[name]) for name in OBJECTIVE}
    faults = ", ".join(f"{name} of {count}" for name, count in lacking.items() if count)
    return math.nan, f"scores are not finite: {faults} of {len(scores[OBJECTIVE[0]])} images"
