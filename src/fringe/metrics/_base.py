"""What every metric takes and returns."""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol, TypeVar, cast

from torch import Tensor

from fringe._strings.tables import Direction
from fringe.errors import InputError
from fringe.paths import Problem
from fringe.settings import Settings

T = TypeVar("T")

#: What an input is: a shape (B, *S) that stands for all of its kind.
KINDS: Mapping[str, tuple[int, ...]] = {
    "image": (1, 3, 8, 8), "series": (1, 3, 8), "volume": (1, 3, 8, 8, 8), "tabular": (1, 8),
}  # fmt: skip

#: How the scores of many images become one number.
Aggregate = Literal["mean", "median"]


class Maps(Protocol):
    """What is scored: an :class:`fringe.Attribution`, or anything with ``values`` and ``diagnostics``."""

    @property
    def values(self) -> Tensor: ...
    @property
    def diagnostics(self) -> Mapping[str, Tensor]: ...


@dataclass(frozen=True)
class PlainMaps:
    """Maps (B, *S), with numbers (B,) of their paths by name, that no attribution holds."""

    values: Tensor
    diagnostics: Mapping[str, Tensor]


#: ``explain(problem)``: maps by the same method of another problem: other inputs, targets or another model.
Explainer = Callable[[Problem], Maps | Tensor]


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
    """The B images under evaluation, with the values that the scores of all methods share.

    :meth:`cached` stores values as long as the context exists: reference images, their predictions and responses to
    noise are computed once, and are the same for all compared methods.

    Attributes:
        problem: The model, the images and their targets.
        truth: Which pixels (B, H, W), samples or words (B, L) or columns (B, F) the model uses, if this is known: see
            :meth:`fringe.bench.scenes.Scene.make`.
    """

    problem: Problem
    truth: Tensor | None = None

    def select(self, rows: Sequence[int]) -> "EvaluationContext":
        """Restrict the evaluation to some images.

        Args:
            rows: The images (L,), in this order.

        Returns:
            The evaluation of these L images, with nothing cached.
        """
        problem = self.problem.select(rows)
        return EvaluationContext(problem, None if self.truth is None else self.truth[list(rows)])


@dataclass(frozen=True)
class EvaluatedMaps(_Caching):
    """The maps of one method, as a metric gets them.

    :meth:`cached` stores what several metrics of these maps share, such as the perturbation curve of a raw and of
    a normalised score.

    Attributes:
        context: The images under evaluation.
        values: Maps (B, *S) of the context's images.
        diagnostics: Numbers (B,) that the method reported of its paths, by name.
        explain: Makes maps of another problem with the same method; None if only the maps are known.
    """

    context: EvaluationContext
    values: Tensor
    diagnostics: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    explain: Explainer | None = None

    def maps_of(self, inputs: Tensor, rows: Sequence[int]) -> Tensor:
        """Make maps of other inputs with the same method: L forward passes, and those of the method.

        Args:
            inputs: Inputs (L, *S).
            rows: Images (L,) of the context that give each input its target and noise.

        Returns:
            Maps (L, *S).

        Raises:
            InputError: If the method is not known, or its maps have another shape.
        """
        part = self.context.problem.select(rows)
        part = replace(part, inputs=inputs, logits=part.forward(inputs, part.every_row))
        return self.made(part).values

    def made(self, problem: Problem) -> PlainMaps:
        """Make maps of another problem with the same method.

        Args:
            problem: Other inputs, targets or another model. The caller holds its session open.

        Returns:
            Maps (B, *S), or (B, K, *S) of several classes.

        Raises:
            InputError: As :meth:`maps_of`.
        """
        if self.explain is None:
            raise InputError("got maps alone, expected the method that made them", argument="explain")
        made = self.explain(problem)
        values, diagnostics = (made, {}) if isinstance(made, Tensor) else (made.values, made.diagnostics)
        expected = (*problem.target.shape, *problem.inputs.shape[1:])
        if tuple(values.shape) != expected:
            raise InputError(f"got maps of shape {tuple(values.shape)}, expected {expected}", argument="explain")
        return PlainMaps(values.detach(), diagnostics)


@dataclass(frozen=True)
class Scores:
    """The scores of B maps under one metric.

    Attributes:
        values: One number (B,) per image in float64; NaN where the metric is not defined.
        flags: Booleans (B,) that mark degenerate cases, by name.
        details: Further numbers (B,), such as the score of the zero map, by name.
        curves: Curves (B, N + 1) that the score was computed from, by name. The first is the one to draw; a run stores
            no other.
        refusals: Why the metric refuses each map, "" where it does not; empty if it refuses none.
    """

    values: Tensor
    flags: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    details: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    curves: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    refusals: tuple[str, ...] = ()


def images_only(shape: Sequence[int], what: str) -> str:
    """Why ``what`` refuses inputs of this shape, unless they are images."""
    return "" if len(shape) == 4 else f"{what} for images (B, C, H, W), not for inputs of shape {tuple(shape)}"


def space_only(shape: Sequence[int], what: str) -> str:
    """Why ``what`` refuses inputs of this shape, unless they have axes of space: tables have none."""
    return "" if len(shape) > 2 else f"{what} needs neighbours, and inputs of shape {tuple(shape)} have none"


def is_zero(maps: Tensor) -> Tensor:
    """Which maps (B, *S) are zero everywhere: (B,)."""
    return (maps == 0).flatten(1).all(1)


class Metric(Settings):
    """Base class of metrics: a frozen dataclass of settings that scores attribution maps.

    Attributes:
        name: Name in the registry.
        title: Name in tables.
        direction: Whether higher or lower scores are better.
        unit: Unit of the score; empty for a pure number.
        space: What the metric compares, in words.
        source: Where the formula is from.
        presets: Settings of publications and code by name.
        requires_explainer: Whether the metric needs maps of other inputs or models, ``EvaluatedMaps.explain``.
        requires_truth: Whether the metric compares maps with ``EvaluationContext.truth``.
        compares_models: Whether the metric tests if maps follow the model: it makes maps of other models or classes,
            and does not say how good a map is.
        by_default: Whether an experiment without named metrics computes it; False if it takes many maps.
        aggregate: How tables summarise the scores of many images: the median if few images dominate the mean.
    """

    record_key: ClassVar[str] = "metric"
    title: ClassVar[str]
    direction: ClassVar[Direction]
    unit: ClassVar[str] = ""
    space: ClassVar[str]
    source: ClassVar[str]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}}
    requires_explainer: ClassVar[bool] = False
    requires_truth: ClassVar[bool] = False
    compares_models: ClassVar[bool] = False
    by_default: ClassVar[bool] = True
    aggregate: ClassVar[Aggregate] = "mean"

    def refusal(self, shape: Sequence[int]) -> str:
        """Say why inputs cannot be scored with these settings; nothing is computed.

        Args:
            shape: Shape (B, *S) of the inputs.

        Returns:
            The reason; empty if they can be scored.
        """
        return ""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of input that can be scored with these settings, of ``image``, ``series``, ``volume``, ``tabular``."""
        return tuple(kind for kind, shape in KINDS.items() if not self.refusal(shape))

    @property
    def planned_passes(self) -> float:
        """Forward passes of one score, beyond those of maps."""
        return getattr(self, "samples", 0)

    @property
    def planned_maps(self) -> float:
        """Further maps of one score, by the method that is scored."""
        return self.planned_passes if self.requires_explainer else 0

    @abstractmethod
    def score(self, maps: EvaluatedMaps) -> Scores:
        """Score each map. :func:`evaluate` has checked the maps and holds the model's session open.

        Args:
            maps: Finite maps (B, *S) of the context's images.

        Returns:
            One number per map.
        """
