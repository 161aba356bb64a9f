"""The space of a search: ranges and choices of a method's settings."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from fringe.attribution import Attributor
from fringe.errors import InputError, install_hint, require, require_choice
from fringe.settings import Setting, settings_of

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

SMOOTHING = ("gamma_step", "gamma_prior")


@dataclass(frozen=True)
class SearchSpace:
    """The searched settings of the method called ``method``, with their values as distributions of Optuna; its other
    settings keep their values."""

    method: str
    dimensions: Mapping[str, "BaseDistribution"]

    def clip(self, method: Attributor) -> dict[str, Any]:
        """Return the point of this space that is nearest to the settings of ``method``."""
        return {name: nearest(one, getattr(method, name)) for name, one in self.dimensions.items()}


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


def has_paper_settings(method: type[Attributor]) -> bool:
    """Whether a method has the settings that the paper varies: FRInGe, ours and as printed or released."""
    return {"tau", "eta_max", "delta_euc", "damping", *SMOOTHING} <= set(method.search_space())


def paper_space(method: type[Attributor], smoothing: bool = True) -> SearchSpace:
    """Return the paper's space: tau, eta_max, delta_euc and damping, and with ``smoothing`` both gammas."""
    return space_of(method, ("tau", "eta_max", "delta_euc", "damping", *(SMOOTHING if smoothing else ())))


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
    if names is None and not method.search_space():
        message = f"{method.name} has no setting with a range or choices to search"
        raise InputError(message, argument="method", hint="name another method, or a setting with its range")
    searched = list(method.search_space() if names is None else names)
    for name in (*searched, *ranges):
        require_choice(f"{method.name} setting", name, settings)
    for name in ranges:
        require(name in searched, "overrides", name, f"a searched field, one of {', '.join(searched)}")
    require(bool(searched), "names", searched, "at least one field to search")
    dimensions = {name: _dimension(method, settings[name], ranges.get(name)) for name in searched}
    return SearchSpace(method.name, dimensions)


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
    try:
        require(all(map(_is_number, bounds)) and low < high, "range", bounds, "two finite numbers, the lower first")
        require(not log or low > 0, "range", bounds, "bounds above zero, on a logarithmic scale")
        require(not is_integer or all(one == int(one) for one in bounds), "range", bounds, "whole numbers")
    except InputError as error:
        raise InputError(str(error), argument=name) from error
    for bound in bounds:
        setting.check(int(bound) if is_integer else float(bound))
    return IntDistribution(int(low), int(high), log) if is_integer else FloatDistribution(low, high, log)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
