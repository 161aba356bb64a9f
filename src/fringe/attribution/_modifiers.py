"""Methods made of another method: the straight line to its end point, its maps smoothed or weighed again.

They are controls. What a curved path finds and the straight line between the same ends finds as well is due to the
ends; what a method gains over a smoothed map of another is not due to smoothness. Maps that are weighed again, by
regions, by the other classes or by powers, are not complete. Some are of use by themselves.
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self, cast

import torch
from torch import Tensor

from fringe.attribution._base import (
    SEVERITY,
    Attribution,
    Attributor,
    ProgressStage,
    Trajectory,
    Verdict,
    get_method,
    method_of_record,
)
from fringe.attribution._diagnostics import PathAttributor, gradient_attribution
from fringe.attribution._fringe import FRInGe
from fringe.attribution._ig import IntegratedGradients
from fringe.attribution._integrate import completeness_gap, completeness_residual
from fringe.baselines import gaussian_blur
from fringe.errors import InputError
from fringe.paths import JVPUse, Problem
from fringe.settings import Doc, Positive, PositiveInt, Search, settings_of

#: What the name of a setting of the inner method begins with.
INNER = "of."


def _of_inner(name: str) -> Any:
    """A fact about a modifier that is that of the inner method."""
    return property(lambda modifier: getattr(modifier.of, name))


@dataclass(frozen=True)
class Modifier(Attributor):
    """A method that is computed from another one, its setting ``of``: ``MODIFIER:METHOD`` by name.

    A setting ``of.KEY`` given as text is the setting KEY of the inner method.
    """

    uses_references = _of_inner("uses_references")
    package = _of_inner("package")
    uses_gradients = _of_inner("uses_gradients")

    of: Annotated[Attributor, Doc("the method that is modified, by its name")] = dataclasses.field(
        default_factory=IntegratedGradients
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "of", get_method(self.of))
        super().__post_init__()

    @classmethod
    def preset(cls, name: str, /) -> Self:
        """Return this modifier of the method with this name, see :func:`get_method`."""
        return cls(of=get_method(name))

    def record(self) -> dict[str, Any]:
        """Return the name and all settings as plain data; ``of`` is the record of the inner method."""
        return {**super().record(), "of": self.of.record()}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Make a modifier from its record, see :meth:`fringe.settings.Settings.from_record`."""
        inner = record.get("of")
        if isinstance(inner, Mapping):
            record = {**record, "of": method_of_record(cast("Mapping[str, Any]", inner))}
        return super().from_record(record)

    def with_text(self, texts: Mapping[str, str]) -> Self:
        """Replace settings by values that are given as texts; those of the inner method are named ``of.KEY``."""
        outer = {name: text for name, text in texts.items() if not name.startswith(INNER)}
        unknown = [name for name in outer if name not in settings_of(type(self)) and name in settings_of(type(self.of))]
        if unknown:
            message = f"{self.name} has no setting {unknown[0]!r}, but {self.of.label} has"
            raise InputError(message, hint=f"write {INNER}{unknown[0]} for the setting of the method that is modified")
        inner = get_method(outer.pop("of")) if "of" in outer else self.of
        inner = inner.with_text({n.removeprefix(INNER): text for n, text in texts.items() if n.startswith(INNER)})
        return dataclasses.replace(super().with_text(outer), of=inner)

    @classmethod
    def describe(cls) -> list[dict[str, Any]]:
        """Return each setting as plain data; a method is given by its name."""
        shown = {"default": cls().of.label, "expected": "the name of a method"}
        return [{**entry, **shown} if entry["name"] == "of" else entry for entry in super().describe()]

    @property
    def innermost(self) -> Attributor:
        """The method inside all modifiers."""
        return self.of.innermost

    def around(self, method: Attributor) -> Attributor:
        """Apply this modifier, and those inside it, to another method."""
        return dataclasses.replace(self, of=self.of.around(method))

    def fitted(self, problem: Problem) -> Self:
        return dataclasses.replace(self, of=self.of.fitted(problem))

    def jvp_use(self, problem: Problem) -> JVPUse:
        return self.of.jvp_use(problem)

    def check_usable(self) -> None:
        """Check the inner method, see :meth:`Attributor.check_usable`."""
        self.of.check_usable()

    @property
    def accepts_baseline(self) -> bool:
        return self.of.accepts_baseline


@dataclass(frozen=True)
class Straight(Modifier):
    """Integrate the gradient along the straight line to the point where another method's path ends.

    .. math:: A = (x - x_T) \\odot \\int_0^1 \\nabla F^t(x_T + a (x - x_T)) \\, da

    ``straight:fringe`` keeps the end point of FRInGe's path and replaces the path: if both score the same, the end
    point decides. The map sums to the same change of the score as the method's own map. If the path is ``short`` or
    ``diverged``, this map has the same verdict. A method without a path, or with several ends per image (AGI,
    IG2), is refused. Costs the path, if its end is not known at the start, and one forward pass and VJP per step.
    """

    name = "straight"
    form = "straight:METHOD"
    uses_gradients = True
    title = "Straight line"
    source = "a control of this library"

    of: Annotated[Attributor, Doc("the method whose path ends there, by its name")] = dataclasses.field(
        default_factory=FRInGe
    )
    steps: Annotated[PositiveInt, Search(10, 500, log=True), Doc("gradients along the line")] = 50

    @property
    def planned_passes(self) -> float | None:
        inner = 0.0 if isinstance(self.of, IntegratedGradients) else self.of.planned_passes
        return None if inner is None else inner + 2 * self.steps

    def check_usable(self) -> None:
        """Refuse a method without a path, or with several."""
        super().check_usable()
        if self.of.many_paths:
            message = f"{self.of.label} follows several paths per image, which end at different points"
            raise InputError(message, argument="method", hint="name a method of one path, as in straight:fringe")
        if not self.of.has_path:
            raise self._no_end()

    def _no_end(self) -> InputError:
        message = f"{self.of.label} has no path, and so no end point"
        return InputError(message, argument="method", hint="name a method with a path, as in straight:fringe")

    def attribute(self, problem: Problem) -> Attribution:
        ends, inner, done = self._ends(problem)
        stage = problem.progress and ProgressStage(problem.progress, done)  # goes on after the steps of the path
        line = dataclasses.replace(problem, baseline=ends, progress=stage)
        result = dataclasses.replace(IntegratedGradients(self.steps).attribute(line), settings=self.record())
        return result if inner is None else _with_verdicts(result, inner, self.of.label)

    def _ends(self, problem: Problem) -> tuple[Tensor, Attribution | None, int]:
        """Where the paths end (B, *S); the method's result and its steps, if it had to run."""
        if isinstance(self.of, PathAttributor) and getattr(self.of, "focus", "none") == "none":
            return self.of.nodes(dataclasses.replace(problem, record_path=False)).endpoint, None, 0
        self.check_usable()
        stage = ProgressStage(problem.progress, after=len(problem.inputs) * self.steps)
        quiet = dataclasses.replace(problem, record_path=2, progress=stage)
        result = self.of.attribute(quiet)
        ends = [None if path is None else path.snapshots[-1] for path in result.trajectory or ()]
        ends = [end for end in ends if end is not None]
        if len(ends) < len(problem.inputs):
            raise self._no_end()
        return torch.stack(ends).to(problem.inputs), result, stage.total


def _with_verdicts(result: Attribution, inner: Attribution, label: str) -> Attribution:
    """The result, where the inner path did not arrive with its verdict if that is the worse one."""
    verdicts, advice = list[Verdict](result.verdict), list(result.advice)
    for image, (verdict, why) in enumerate(zip(inner.verdict, inner.advice, strict=True)):
        is_worse = SEVERITY.index(verdict) > SEVERITY.index(verdicts[image])
        if verdict in ("short", "stalled", "diverged") and is_worse:
            verdicts[image], advice[image] = verdict, f"the path of {label}: {why}"
    return dataclasses.replace(result, verdict=tuple(verdicts), advice=tuple(advice))


@dataclass(frozen=True)
class Smooth(Modifier):
    """Convolve the maps of another method with a Gaussian of ``sigma`` pixels, channel by channel.

    Images are mirrored beyond their edge, edge pixels included. So smoothing moves evidence, and adds and removes
    nothing: a map of a method with completeness keeps its sum, and gap and verdict are those of the
    method. But evidence moves by about ``sigma``: an input that the model does not read can get some.
    """

    name = "smooth"
    form = "smooth(SIGMA):METHOD"
    title = "Smoothed"
    source = "a control of this library"
    number = "sigma"
    is_complete = _of_inner("is_complete")
    many_targets = _of_inner("many_targets")
    path_of_targets = _of_inner("path_of_targets")
    many_paths = _of_inner("many_paths")
    has_path = _of_inner("has_path")

    sigma: Annotated[Positive, Search(0.5, 8.0, log=True), Doc("standard deviation", unit="pixels")] = 3.0

    @property
    def planned_passes(self) -> float | None:
        return self.of.planned_passes

    def attribute(self, problem: Problem) -> Attribution:
        if problem.inputs.dim() != 4:
            message = f"got shape {tuple(problem.inputs.shape)}, expected images (B, C, H, W), whose maps are smoothed"
            raise InputError(message, argument="inputs")
        result = self.of.attribute(problem)
        values = self._smoothed(result.values)
        gap = completeness_gap(values, result.score.double() - result.endpoint_score.double())

        def smoothed(path: Trajectory) -> Trajectory:
            return dataclasses.replace(path, cumulative=self._smoothed(path.cumulative))

        return dataclasses.replace(
            result,
            values=values,
            completeness_gap=gap,
            completeness_residual=completeness_residual(gap, result.score, result.endpoint_score),
            settings=self.record(),
            trajectory=result.trajectory and tuple(path and smoothed(path) for path in result.trajectory),
        )

    def _smoothed(self, maps: Tensor) -> Tensor:
        """Maps (..., C, H, W), smoothed."""
        return gaussian_blur(maps.flatten(0, -4), self.sigma, padding="mirror").view_as(maps)


# -- maps without completeness ----------------------------------------------------------------------------------------


#: Weights (B, 1, *space) from zero to one, and notes (B) on their layer.
Region = tuple[Tensor, list[str]]
#: The new maps (B, *S), numbers (B,) about them, and the region that they are multiplied by.
Changed = tuple[Tensor, Mapping[str, Tensor], Region | None]


@dataclass(frozen=True)
class Incomplete(Modifier):
    """A map made of the maps of another method, whose sum is then no change of the score.

    The record says so (``complete``, ``hides``), and so does the sentence of each verdict. ``short``, ``stalled`` and
    ``diverged`` remain.

    Attributes:
        hides: What such a map does not show.
    """

    source = "a control of this library"
    is_complete = False
    has_path = False
    hides: ClassVar[str] = ""

    def record(self) -> dict[str, Any]:
        """Return the name and all settings, and what the maps are not."""
        return {**super().record(), "complete": False, **({"hides": self.hides} if self.hides else {})}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Make a modifier from its record."""
        return super().from_record({name: v for name, v in record.items() if name not in ("complete", "hides")})

    @property
    def planned_passes(self) -> float | None:
        return self.of.planned_passes

    def _result(
        self,
        inner: Attribution,
        problem: Problem,
        values: Tensor,
        numbers: Mapping[str, Tensor],
        region: Region | None = None,
    ) -> Attribution:
        hides = f"; it hides {self.hides}" if self.hides else ""
        why = f"not complete: the sum of a map of {self.label} is no change of the score{hides}"
        made = gradient_attribution(self, values, problem, {**inner.diagnostics, **numbers}, why)
        shown = inner.region if region is None or values.dim() != 4 else region[0].to(values.dtype)
        result = dataclasses.replace(_with_verdicts(made, inner, self.of.label), region=shown)
        return result if region is None else result.noted(region[1])


class Reweighted(Incomplete):
    """A map computed from the finished map of another method alone."""

    def fits(self, problem: Problem) -> bool:
        """Whether inputs of this kind can have such maps."""
        return True

    def attribute(self, problem: Problem) -> Attribution:
        return self.derive(self.of.attribute(problem), problem)

    def derive(self, inner: Attribution, problem: Problem) -> Attribution:
        """Make the maps of those of the inner method, without its passes.

        Args:
            inner: The result of ``of`` for this problem.
            problem: The images, of one class each, and the model. Its session is open.

        Returns:
            The new maps, with the diagnostics of the old ones.
        """
        return self._result(inner, problem, *self._changed(inner.values, problem))

    @abstractmethod
    def _changed(self, maps: Tensor, problem: Problem) -> Changed:
        """Make the new maps."""


@dataclass(frozen=True)
class CentrePrior(Reweighted):
    """Multiply the map by a Gaussian at the centre of the image: a control without a model.

    .. math:: A' = A \\exp( -8 \\sum_i ((u_i - c_i) / s_i)^2 )

    with position ``u``, centre ``c`` and side ``s`` of each axis in space: its standard deviation is a quarter of it.
    Objects of photographs lie at the centre: what such a map gains needs no explanation of the model.
    """

    name = "centre_prior"
    form = "centre_prior:METHOD"
    title = "Centre prior"
    hides = "what is not at the centre"

    def fits(self, problem: Problem) -> bool:
        return problem.structure != "none"

    def _changed(self, maps: Tensor, problem: Problem) -> Changed:
        if not self.fits(problem):
            shape = tuple(problem.inputs.shape)
            raise InputError(f"got shape {shape}, expected axes in space, which have a centre", argument="inputs")
        weights = torch.ones((), dtype=maps.dtype, device=maps.device)
        for side in problem.inputs.shape[2:]:
            away = (torch.arange(side, dtype=maps.dtype, device=maps.device) - (side - 1) / 2) / (side / 4)
            weights = weights[..., None] * (-away.square() / 2).exp()
        return maps * weights, {}, None


@dataclass(frozen=True)
class Power(Reweighted):
    """Raise each entry of the map to a power, and keep its sign.

    .. math:: A' = sign(A) |A|^p

    The ranking of the entries does not change. So what a score gains from p above 1 is due to sharpness, and
    not to what the map shows: the scores of MAS, and the shares of a map in a region, gain.
    """

    name = "power"
    form = "power(P):METHOD"
    title = "Power"
    number = "exponent"

    exponent: Annotated[Positive, Search(0.5, 3.0, log=True), Doc("power of each entry")] = 1.5

    def _changed(self, maps: Tensor, problem: Problem) -> Changed:
        return maps.sign() * maps.abs() ** self.exponent, {}, None


# -- another backward pass --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Libra(Incomplete):
    """Take the map of another method with balanced gradients of a transformer: LibraGrad (Mehri et al. 2024).

    Gradients take attention, the deviation in normalisations, and the gates of GELU and SiLU as constants; a product of
    an activation with other features passes half to each. Those of the input and of all biases, times their values,
    then sum to the score. All attention, normalisations and activations that are functions of PyTorch count, and a
    network without any keeps its map. The values of the network stay, so that a path is where it was; methods that need
    more than gradients are refused.
    """

    name = "libra"
    form = "libra:METHOD"
    title = "LibraGrad"
    source = "Mehri et al. 2024"

    def check_usable(self) -> None:
        """Refuse a method without gradients."""
        super().check_usable()
        if not self.uses_gradients:
            message = f"{self.of.label} takes no gradients, which libra balances"
            raise InputError(message, argument="method", hint="name a method of gradients, as in libra:ig")

    def attribute(self, problem: Problem) -> Attribution:
        self.check_usable()
        if self.of.jvp_use(problem) != "none":
            message = f"{self.of.label} takes Jacobian-vector products, which do not fit balanced gradients"
            raise InputError(message, argument="method", hint="name a method of gradients alone, as in libra:ig")
        model = problem.model
        before = model.graphs, model.balanced
        # neither what was recorded nor what was computed before is balanced
        model.graphs, model.verified_point, model.balanced = None, None, []
        try:
            inner = self.of.attribute(problem)
            gates = sum(model.balanced)
        finally:
            model.graphs, model.balanced = before
        note = "its gradients are balanced" if gates else "the network has nothing that libra balances"
        return self._result(inner, problem, inner.values, {}).noted([note] * len(inner.values))
