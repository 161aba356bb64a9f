"""Where a search looks: fields of a method, with the ranges and choices that the fields carry."""

import dataclasses
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, cast, get_args, get_origin

from fringe._checks import require
from fringe.attribution import Attributor, FRInGe
from fringe.errors import InputError
from fringe.settings import Setting, settings_of
from fringe.tuning.naming import require_known

if TYPE_CHECKING:
    from optuna import Trial

SMOOTHING = ("gamma_step", "gamma_prior")


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, both included; evenly in their logarithm if ``log``; integers if ``whole``."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        bounds = (self.low, self.high)
        require(
            all(map(_is_number, bounds)) and self.low < self.high,
            "range",
            bounds,
            "two finite numbers, the lower first",
        )
        require(not self.log or self.low > 0, "range", bounds, "bounds above zero, on a logarithmic scale")
        require(not self.whole or all(b == int(b) for b in bounds), "range", bounds, "whole numbers")
        kind = int if self.whole else float
        for name, bound in zip(("low", "high"), bounds, strict=True):
            object.__setattr__(self, name, kind(bound))

    def suggest(self, trial: "Trial", name: str) -> float:
        if self.whole:
            return trial.suggest_int(name, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(name, self.low, self.high, log=self.log)

    def nearest(self, value: object) -> float:
        """``value`` moved into the range; the middle of the range for what is no number, such as ``"auto"``."""
        if not _is_number(value):
            value = math.sqrt(self.low * self.high) if self.log else (self.low + self.high) / 2
        near = min(max(cast(float, value), self.low), self.high)
        return round(near) if self.whole else float(near)


@dataclass(frozen=True)
class Choices:
    """One of some values."""

    options: tuple[Any, ...]

    def suggest(self, trial: "Trial", name: str) -> Any:
        return trial.suggest_categorical(name, self.options)

    def nearest(self, value: object) -> Any:
        return value if value in self.options else self.options[0]


@dataclass(frozen=True)
class SearchSpace:
    """The searched fields of the method called ``method``; all others keep the values of the setting it starts from."""

    method: str
    dimensions: Mapping[str, Range | Choices]

    def suggest(self, trial: "Trial") -> dict[str, Any]:
        """A value of every searched field, asked of an Optuna trial."""
        return {name: dimension.suggest(trial, name) for name, dimension in self.dimensions.items()}

    def nearest(self, method: Attributor) -> dict[str, Any]:
        """The place in this space nearest to a setting."""
        return {name: dimension.nearest(getattr(method, name)) for name, dimension in self.dimensions.items()}

    def record(self) -> dict[str, Any]:
        """This space as plain data."""
        return {name: dataclasses.asdict(dimension) for name, dimension in self.dimensions.items()}


def paper_space(smoothing: bool = True) -> SearchSpace:
    """What the paper searched: tau, eta_max, delta_euc and damping, and both gammas unless ``smoothing`` is off."""
    return space_of(FRInGe, ("tau", "eta_max", "delta_euc", "damping", *(SMOOTHING if smoothing else ())))


def space_of(
    method: type[Attributor],
    names: Collection[str] | None = None,
    overrides: Mapping[str, tuple[float, float]] | None = None,
) -> SearchSpace:
    """The fields ``names`` of a method (None: all that carry a range or choices), with other ranges (low, high) where
    ``overrides`` has them. Raises InputError on a name without a range or choices, and on a range that is none."""
    settings, searchable = settings_of(method), method.search_space()
    given = dict(overrides or {})
    asked = list(searchable if names is None else names)
    for name in (*asked, *given):
        require_known(f"{method.name} setting", name, settings)
    for name in given:
        require(name in asked, "overrides", name, f"a searched field, one of {', '.join(asked)}")
    require(bool(asked), "names", asked, "at least one field to search")
    dimensions = {name: _dimension(method, settings[name], given.get(name)) for name in asked}
    return SearchSpace(method.name, dimensions)


def _dimension(method: type[Attributor], setting: Setting, bounds: tuple[float, float] | None) -> Range | Choices:
    name, choices, search = setting.name, setting.choices, setting.search
    if choices is not None:
        require(bounds is None, name, bounds, f"no range: it is one of {', '.join(map(str, choices))}")
        return Choices(choices)
    numbers = {int, float}.intersection(setting.types)
    if not numbers or (bounds is None and search is None):
        raise InputError(f"{name}: {method.name} has no range to search it in, and no choices")
    low, high = bounds or (search.low, search.high)  # pyright: ignore[reportOptionalMemberAccess]
    try:
        return Range(low, high, search is not None and search.log, whole=float not in numbers)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the hint alone."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
