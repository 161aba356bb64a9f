"""What every metric takes and gives."""

import math
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar, cast

from torch import Tensor

from fringe.paths import Problem
from fringe.settings import Settings

Direction = Literal["higher", "lower", "none"]
"""Which way is better; "none" for a number that describes without praising."""

ARROW: Mapping[Direction, str] = {"higher": "↑", "lower": "↓", "none": ""}

Aggregate = Literal["mean", "median"]
"""What stands for the scores of many images."""

T = TypeVar("T")
Explainer = Callable[[Tensor, list[int]], Tensor]
"""``explain(x, rows)``: maps (L, *S) of other inputs ``x`` (L, *S), each for the target and with the noise of the
subject's image at ``rows`` (L)."""


@dataclass(frozen=True)
class EvaluationContext:
    """The B images of a ``problem`` under evaluation, and what the scores of all methods have in common.

    ``once`` keeps what was computed for as long as the subject lives: references, blurred predictions, noise
    responses are paid for once, however many methods are compared, and are the same for each of them.
    """

    problem: Problem
    _kept: dict[Hashable, Any] = field(default_factory=dict[Hashable, Any], repr=False, compare=False)

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """The value of ``compute()``, computed at the first call with this ``key``."""
        if key not in self._kept:
            self._kept[key] = compute()
        return cast(T, self._kept[key])


@dataclass(frozen=True)
class EvaluatedMaps:
    """A method's maps ``values`` (B, *S) of a subject, with the ``diagnostics`` (B,) it reported.

    ``explain`` makes maps of other inputs, for metrics that ask how stable maps are. ``once`` keeps what several
    metrics of these maps share, such as the curve behind a raw and a normalised score.
    """

    subject: EvaluationContext
    values: Tensor
    diagnostics: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    explain: Explainer | None = None
    _kept: dict[Hashable, Any] = field(default_factory=dict[Hashable, Any], repr=False, compare=False)

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """The value of ``compute()``, computed at the first call with this ``key``."""
        if key not in self._kept:
            self._kept[key] = compute()
        return cast(T, self._kept[key])


@dataclass(frozen=True)
class Scores:
    """One number an image: ``values`` (B,) in float64, NaN where the metric is not defined.

    ``flags`` names degenerate cases, (B,) booleans; ``extras`` companion numbers (B,), such as the score of the zero
    map; ``curves`` what a score was read off, (B, N + 1) each.
    """

    values: Tensor
    flags: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    extras: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    curves: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])


def best_of(values: Sequence[float | None], direction: Direction) -> float | None:
    """The best of the finite ``values``; None where there is none, or no better and worse."""
    finite = [v for v in values if v is not None and math.isfinite(v)]
    if direction == "none" or not finite:
        return None
    return max(finite) if direction == "higher" else min(finite)


class Metric(Settings):
    """A metric of attribution maps: a frozen dataclass of settings. Final classes set the class variables.

    ``name`` in the registry, ``title`` in tables, ``direction``, ``unit`` ("" for a pure number), the ``space`` it
    works in, and the ``source`` of its formula. ``presets`` are other people's settings by name; ``paper`` is the
    default. ``needs_explain`` tells that it asks for maps of other inputs. ``summary`` is what a table shows of the
    scores of many images: the median where a few images would carry the mean away.
    """

    record_key: ClassVar[str] = "metric"
    title: ClassVar[str]
    direction: ClassVar[Direction]
    unit: ClassVar[str] = ""
    space: ClassVar[str]
    source: ClassVar[str]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}}
    needs_explain: ClassVar[bool] = False
    summary: ClassVar[Aggregate] = "mean"

    @abstractmethod
    def score(self, explained: EvaluatedMaps) -> Scores:
        """Score each map. The caller holds the model's session open and has checked the maps' shape and numbers."""
