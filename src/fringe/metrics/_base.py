"""What every metric takes and returns."""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeVar, cast

from torch import Tensor

from fringe._direction import Direction
from fringe.paths import Problem
from fringe.settings import Settings

T = TypeVar("T")

#: How the scores of many images become one number.
Aggregate = Literal["mean", "median"]

#: ``explain(x, rows)``: maps (L, *S) of other inputs ``x`` (L, *S), each for the target and with the noise of the
#: context's image at ``rows`` (L).
Explainer = Callable[[Tensor, list[int]], Tensor]


class _Caching:
    @cached_property
    def _cache(self) -> dict[Hashable, Any]:
        return {}

    def cached(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return a value that is computed once.

        Args:
            key: Name of the value; it must hold every setting that shapes the value.
            compute: Called at the first request for this ``key``.

        Returns:
            The value of ``compute()``.
        """
        if key not in self._cache:
            self._cache[key] = compute()
        return cast(T, self._cache[key])


@dataclass(frozen=True)
class EvaluationContext(_Caching):
    """The B images under evaluation, with what the scores of all methods have in common.

    :meth:`cached` stores values as long as the context lives: reference images, their predictions and responses to
    noise are computed once, however many methods are compared, and are the same for each.

    Attributes:
        problem: The model, the images and their targets.
    """

    problem: Problem


@dataclass(frozen=True)
class EvaluatedMaps(_Caching):
    """The maps of one method, as a metric is given them.

    :meth:`cached` stores what several metrics of these maps share, such as the perturbation curve of a raw and of
    a normalised score.

    Attributes:
        context: The images under evaluation.
        values: Maps (B, *S) of the context's images.
        diagnostics: Numbers (B,) that the method reported of its paths, by name.
        explain: Makes maps of other inputs with the same method; None if only the maps are known.
    """

    context: EvaluationContext
    values: Tensor
    diagnostics: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    explain: Explainer | None = None


@dataclass(frozen=True)
class Scores:
    """The scores of B maps under one metric.

    Attributes:
        values: One number (B,) per image in float64; NaN where the metric is not defined.
        flags: Booleans (B,) that mark degenerate cases, by name.
        details: Further numbers (B,), such as the score of the zero map, by name.
        curves: Curves (B, N + 1) that the score was computed from, by name.
    """

    values: Tensor
    flags: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    details: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    curves: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])


class Metric(Settings):
    """Base class of metrics: a frozen dataclass of settings that scores attribution maps.

    Attributes:
        name: Name in the registry.
        title: Name in tables.
        direction: Whether higher or lower scores are better.
        unit: Unit of the score; empty for a pure number.
        space: What the metric looks at.
        source: Where the formula is from.
        presets: Settings of publications and code by name; ``paper`` is the default.
        requires_explainer: Whether the metric needs maps of other inputs, ``EvaluatedMaps.explain``.
        aggregate: How tables summarise the scores of many images; the median if few images dominate the mean.
    """

    record_key: ClassVar[str] = "metric"
    title: ClassVar[str]
    direction: ClassVar[Direction]
    unit: ClassVar[str] = ""
    space: ClassVar[str]
    source: ClassVar[str]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}}
    requires_explainer: ClassVar[bool] = False
    aggregate: ClassVar[Aggregate] = "mean"

    @abstractmethod
    def score(self, maps: EvaluatedMaps) -> Scores:
        """Score each map. :func:`evaluate` has checked the maps and holds the model's session open.

        Args:
            maps: Finite maps (B, *S) of the context's images.

        Returns:
            One number per map.
        """
