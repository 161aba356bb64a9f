"""The space of a search (ranges and choices of a method's settings), and the storage of its trials."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fringe._files import require_local
from fringe.attribution import Attributor, FRInGe
from fringe.errors import InputError, check_known, require, require_integer
from fringe.settings import Setting, settings_of

if TYPE_CHECKING:
    from optuna import Trial

SMOOTHING = ("gamma_step", "gamma_prior")


@dataclass(frozen=True)
class Study:
    """The storage of the trials of a search, and the identity of the search.

    Attributes:
        path: SQLite file of the study, with all scores of each image.
        name: Name of the study in the file.
        seed: Seed of the proposals.
        identity: JSON data that the scores depend on, such as the digests of weights and images. A stored study with
            another identity, base, space, seed or objective is refused.
        grace_period: Seconds without a sign of life after which the process of a trial counts as ended, and the trial
            is repeated.
    """

    path: Path
    name: str
    seed: int
    identity: Mapping[str, Any] = field(default_factory=dict[str, Any])
    grace_period: int = 60

    def __post_init__(self) -> None:
        require_local("path", self.path)
        require(bool(self.name), "name", self.name, "a name for the study")
        require_integer("seed", self.seed, least=0)
        require_integer("grace_period", self.grace_period)


@dataclass(frozen=True)
class NumericDistribution:
    """Numbers from ``low`` to ``high``, both included; uniform in the logarithm if ``log``."""

    low: float
    high: float
    log: bool = False
    integer: bool = False

    def __post_init__(self) -> None:
        bounds = (self.low, self.high)
        ordered = all(map(_is_number, bounds)) and self.low < self.high
        require(ordered, "range", bounds, "two finite numbers, the lower first")
        require(not self.log or self.low > 0, "range", bounds, "bounds above zero, on a logarithmic scale")
        require(not self.integer or all(b == int(b) for b in bounds), "range", bounds, "whole numbers")
        kind = int if self.integer else float
        for name, bound in zip(("low", "high"), bounds, strict=True):
            object.__setattr__(self, name, kind(bound))

    def suggest(self, trial: "Trial", name: str) -> float:
        """Return the trial's value of the setting ``name``."""
        if self.integer:
            return trial.suggest_int(name, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(name, self.low, self.high, log=self.log)

    def clip(self, value: object) -> float:
        """Clip a value to the range; a value that is not a number, such as ``"auto"``, becomes the middle."""
        if not _is_number(value):
            value = math.sqrt(self.low * self.high) if self.log else (self.low + self.high) / 2
        near = min(max(cast(float, value), self.low), self.high)
        return round(near) if self.integer else float(near)

    def record(self) -> dict[str, Any]:
        """Return the range as plain data."""
        return {"low": self.low, "high": self.high, "log": self.log, "whole": self.integer}


@dataclass(frozen=True)
class CategoricalDistribution:
    """One of several values."""

    options: tuple[Any, ...]

    def suggest(self, trial: "Trial", name: str) -> Any:
        """Return the trial's value of the setting ``name``."""
        return trial.suggest_categorical(name, self.options)

    def clip(self, value: object) -> Any:
        """Return ``value`` if it is one of the options, else the first option."""
        return value if value in self.options else self.options[0]

    def record(self) -> dict[str, Any]:
        """Return the options as plain data."""
        return {"options": self.options}


@dataclass(frozen=True)
class SearchSpace:
    """The searched settings of the method called ``method``; its other settings keep their values."""

    method: str
    dimensions: Mapping[str, NumericDistribution | CategoricalDistribution]

    def suggest(self, trial: "Trial") -> dict[str, Any]:
        """Ask an Optuna trial for a value of every searched setting."""
        return {name: dimension.suggest(trial, name) for name, dimension in self.dimensions.items()}

    def clip(self, method: Attributor) -> dict[str, Any]:
        """Return the point of this space that is nearest to the settings of ``method``."""
        return {name: dimension.clip(getattr(method, name)) for name, dimension in self.dimensions.items()}

    def record(self) -> dict[str, Any]:
        """Return this space as plain data."""
        return {name: dimension.record() for name, dimension in self.dimensions.items()}


def paper_space(smoothing: bool = True) -> SearchSpace:
    """Return the paper's space: tau, eta_max, delta_euc and damping, and with ``smoothing`` both gammas."""
    return space_of(FRInGe, ("tau", "eta_max", "delta_euc", "damping", *(SMOOTHING if smoothing else ())))


def space_of(
    method: type[Attributor],
    names: Collection[str] | None = None,
    overrides: Mapping[str, tuple[float, float]] | None = None,
) -> SearchSpace:
    """Return the space of the settings ``names`` of a method; None: all settings with a range or choices.

    ``overrides`` replace ranges (low, high) by setting. Raises InputError if a setting has neither a range nor choices,
    or a range is invalid.
    """
    settings, ranges = settings_of(method), dict(overrides or {})
    searched = list(method.search_space() if names is None else names)
    for name in (*searched, *ranges):
        check_known(f"{method.name} setting", name, settings)
    for name in ranges:
        require(name in searched, "overrides", name, f"a searched field, one of {', '.join(searched)}")
    require(bool(searched), "names", searched, "at least one field to search")
    dimensions = {name: _dimension(method, settings[name], ranges.get(name)) for name in searched}
    return SearchSpace(method.name, dimensions)


def _dimension(
    method: type[Attributor], setting: Setting, bounds: tuple[float, float] | None
) -> NumericDistribution | CategoricalDistribution:
    name, choices, search = setting.name, setting.choices, setting.search
    if choices is not None:
        require(bounds is None, name, bounds, f"no range: it is one of {', '.join(map(str, choices))}")
        return CategoricalDistribution(choices)
    numbers = {int, float}.intersection(setting.types)
    if not numbers or (bounds is None and search is None):
        raise InputError(f"{method.name} has no range to search it in, and no choices", argument=name)
    low, high = bounds or (search.low, search.high)  # pyright: ignore[reportOptionalMemberAccess]
    try:
        result = NumericDistribution(low, high, search is not None and search.log, integer=float not in numbers)
    except InputError as error:
        raise InputError(str(error), argument=name) from error
    for bound in (result.low, result.high):
        setting.check(bound)
    return result


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
