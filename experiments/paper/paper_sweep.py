"""One setting varied at a time (the paper's appendix "Hyperparameter Sensitivity Across Architectures")."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from fringe.attribution import Attributor
from fringe.bench.tuning import (
    OBJECTIVE,
    SMOOTHING,
    Array,
    has_paper_settings,
    objective,
    objective_of_means,
    score_matrix,
)
from fringe.errors import InputError, require, require_choice

#: Label of the base, which all sweeps contain.
CENTRE = "centre"

#: Factors that set several fields to one value: the paper's gamma is gamma_step and gamma_prior.
JOINT: Mapping[str, tuple[str, ...]] = {"gamma": SMOOTHING}

PAPER_FACTORS = ("tau", "eta_max", "delta_euc", "damping", "gamma")
POINTS = 7
RESAMPLES = 1000
LEVEL = 0.95


@dataclass(frozen=True)
class SweepLine:
    """The objective (V,) at ascending ``values`` (V,) of a ``factor``, with 95 % intervals ``low`` to ``high`` (V,).

    Values that failed are NaN. ``centre`` is the value of the base, one of ``values``; None if it is not one number,
    such as ``"auto"`` or two different gammas. ``centre_objective`` is the objective of the base.
    """

    factor: str
    values: tuple[float, ...]
    objective: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    centre: float | None
    centre_objective: float


def default_factors(base: Attributor) -> dict[str, tuple[float, ...]]:
    """Return seven values over the range of each factor, evenly spaced (in the logarithm if the range is logarithmic).

    For FRInGe these are the paper's five factors; for other methods, all settings with a range.
    """
    known = type(base).search_space()
    require(bool(known), "factors", base.name, "a method with a setting to vary")
    ranges = {name: (one.search, float not in one.types) for name, one in known.items() if one.search is not None}
    if not has_paper_settings(type(base)):
        return {name: _grid(one.low, one.high, one.log, is_integer) for name, (one, is_integer) in ranges.items()}
    factors = dict[str, tuple[float, ...]]()
    for factor in PAPER_FACTORS:
        parts = [ranges[name][0] for name in JOINT.get(factor, (factor,))]
        low, high = min(part.low for part in parts), max(part.high for part in parts)
        factors[factor] = _grid(low, high, parts[0].log, is_integer=False)
    return factors


def one_at_a_time(base: Attributor, factors: Mapping[str, Sequence[Any]] | None = None) -> dict[str, Attributor]:
    """Return ``base`` as ``"centre"``, and ``base`` with each other value of each factor, as ``"tau=0.001"``.

    A factor is a setting, or ``gamma`` for both gammas of FRInGe; None: :func:`default_factors`. Raises InputError
    if a factor is unknown or a value is invalid.
    """
    points = {CENTRE: base}
    for factor, values in (default_factors(base) if factors is None else factors).items():
        for value in values:
            point = dataclasses.replace(cast(Any, base), **dict.fromkeys(_fields(base, factor), value))
            if point != base:
                points[label(factor, value)] = point
    return points


def label(factor: str, value: object) -> str:
    """Return the label of a value of a factor: ``damping=1e-05``."""
    return f"{factor}={value}"


def sweep_lines(
    base: Attributor,
    scores: Mapping[str, Mapping[str, Sequence[float]] | None],
    factors: Mapping[str, Sequence[float]] | None = None,
    *,
    clusters: Sequence[str] | None = None,
) -> dict[str, SweepLine]:
    """Compute a line per factor from the scores of the methods of :func:`one_at_a_time`, by label.

    ``scores`` are insertion, deletion and infidelity of N images, (N,) each; None for a method that failed. Intervals
    are percentile bootstraps over images (1000 resamples), or over ``clusters``: names (N,), equal for images with
    shared pixels; NaN for fewer than two of either. The resamples depend on N alone, so all methods have the same
    resamples, and their intervals are comparable.
    """
    chosen = default_factors(base) if factors is None else factors
    labels = one_at_a_time(base, chosen)
    missing = [name for name in labels if name not in scores]
    if missing:
        raise InputError(f"none of {', '.join(missing)}", argument="scores", hint="give None for a setting that failed")
    points, lines = {name: _estimate(scores[name], clusters) for name in labels}, dict[str, SweepLine]()
    for factor, values in chosen.items():
        require(all(type(v) in (int, float) for v in values), factor, tuple(values), "numbers, for a line")
        of_base = list({getattr(base, name) for name in _fields(base, factor)})
        centre = of_base[0] if len(of_base) == 1 and type(of_base[0]) in (int, float) else None
        ascending = sorted({*values} if centre is None else {*values, centre})
        estimates = [points[CENTRE if value == centre else label(factor, value)] for value in ascending]
        middle, low, high = zip(*estimates, strict=True)
        lines[factor] = SweepLine(factor, tuple(ascending), middle, low, high, centre, points[CENTRE][0])
    return lines


def _estimate(
    scores: Mapping[str, Sequence[float]] | None, clusters: Sequence[str] | None
) -> tuple[float, float, float]:
    """The objective with its interval."""
    if scores is None:
        return math.nan, math.nan, math.nan
    rows = score_matrix({name: scores[name] for name in OBJECTIVE})
    value = objective(*(scores[name] for name in OBJECTIVE))
    names = np.arange(rows.shape[1]) if clusters is None else np.asarray(clusters)
    require(len(names) == rows.shape[1], "clusters", f"{len(names)} names", f"{rows.shape[1]}, one for each image")
    numbers = np.unique(names, return_inverse=True)[1]
    count = int(numbers.max()) + 1
    if not math.isfinite(value) or count < 2:
        return value, math.nan, math.nan
    drawn = np.random.default_rng(0).multinomial(count, np.full(count, 1.0 / count), size=RESAMPLES)[:, numbers]
    shares: Array = drawn / drawn.sum(1, keepdims=True)
    resampled = objective_of_means(rows @ shares.T)
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return value, float(low), float(high)


def _fields(base: Attributor, factor: str) -> tuple[str, ...]:
    """The fields that a factor sets."""
    fields = [field.name for field in dataclasses.fields(cast(Any, base))]
    joint = {name: parts for name, parts in JOINT.items() if set(parts) <= set(fields)}
    require_choice(f"{base.name} factor", factor, (*fields, *joint))
    return joint.get(factor, (factor,))


def _grid(low: float, high: float, log: bool, is_integer: bool) -> tuple[float, ...]:
    values = [float(v) for v in (np.geomspace if log else np.linspace)(low, high, POINTS)]
    # three digits suffice, and give labels that are easy to type
    rounded = [round(v) for v in values] if is_integer else [float(f"{v:.3g}") for v in values]
    return tuple(dict.fromkeys(rounded))
