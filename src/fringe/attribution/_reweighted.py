"""Maps made of the finished map of another method: by regions, by the other classes, by powers. None is complete.

Some are of use by themselves, and all are controls: what a method gains over its own map, made sharper or moved towards
the centre, is due to the method.
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import torch
from annotated_types import Ge
from torch import Tensor

from fringe.attribution._base import Attribution
from fringe.attribution._cam import activations_and_gradients, cam_weights, find_cam_layer, upsample
from fringe.attribution._diagnostics import gradient_attribution
from fringe.attribution._modifiers import Modifier, with_verdicts
from fringe.errors import InputError
from fringe.paths import Problem
from fringe.settings import Doc, Positive, Search


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
        self, inner: Attribution, values: Tensor, problem: Problem, numbers: Mapping[str, Tensor]
    ) -> Attribution:
        hides = f"; it hides {self.hides}" if self.hides else ""
        why = f"not complete: the sum of a map of {self.label} is no change of the score{hides}"
        made = gradient_attribution(self, values, problem, {**inner.diagnostics, **numbers}, why)
        return with_verdicts(made, inner, self.of.label)


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
        values, numbers = self._changed(inner.values, problem)
        return self._result(inner, values, problem, numbers)

    @abstractmethod
    def _changed(self, maps: Tensor, problem: Problem) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The new maps (B, *S), and numbers (B,) about them."""


@dataclass(frozen=True)
class Located(Reweighted):
    """Multiply the map of another method by where the last layer in space sees the class.

    .. math:: A' = a \\odot A, \\quad a = relu( \\sum_c mean(G_c) A_c ) / max

    ``a`` is Grad-CAM, scaled up and divided by its maximum. The map is found in the right region more often, and what
    the last layer does not see is lost without a trace, such as a small mark that decides: ``hidden_share`` is the
    share of the map, in absolute values of its pixels, that was taken away. Costs a forward and a backward pass more.
    """

    name = "located"
    form = "located:METHOD"
    title = "Map times class activation map"
    hides = "what the last layer does not see"

    layer: Annotated[str, Doc("dotted name of a module of the network; auto: the last one in space")] = "auto"

    def fits(self, problem: Problem) -> bool:
        return problem.structure != "none"

    def _region(self, problem: Problem) -> Tensor:
        """Where the layer sees the class: (B, 1, *space), from zero to one."""
        layer = find_cam_layer(problem, self.layer)
        if layer is None:
            message = f"it has no layer with activations in space for inputs of shape {tuple(problem.inputs.shape[1:])}"
            raise InputError(message, argument="model", hint=f"use {self.of.label} as it is")
        return upsample(cam_weights(*activations_and_gradients(problem, layer)), problem.inputs.shape[2:])[:, 0]

    def _changed(self, maps: Tensor, problem: Problem) -> tuple[Tensor, Mapping[str, Tensor]]:
        values = self._region(problem) * maps
        return values, {"hidden_share": _lost(maps.sum(1).abs(), values.sum(1).abs())}


@dataclass(frozen=True)
class OtherCAM(Located):
    """Multiply the map by where the last layer sees the class of another image: a control of ``located``.

    The other image is the next one of the call, in the order of their names; where there is none, the image's own
    region is turned by 180 degrees. So a map depends on the other images. What ``located`` gains and this gains, too,
    is not due to the region.
    """

    name = "other_cam"
    form = "other_cam:METHOD"
    title = "Map times another image's activation map"
    hides = "what another image's region leaves out"

    def _region(self, problem: Problem) -> Tensor:
        regions, names = super()._region(problem), sorted(set(problem.keys))
        if len(names) == 1:
            return regions.flip(*range(2, regions.dim()))
        rows = {name: [row for row, key in enumerate(problem.keys) if key == name] for name in names}  # of its classes
        chosen = list[int]()
        for row, key in enumerate(problem.keys):
            other = rows[names[(names.index(key) + 1) % len(names)]]
            chosen.append(other[rows[key].index(row) % len(other)])
        return regions[chosen]


@dataclass(frozen=True)
class CentrePrior(Reweighted):
    """Multiply the map by a Gaussian at the centre of the image: a control without a model.

    .. math:: A' = A \\exp( -\\tfrac{1}{2} \\sum_i ((u_i - c_i) / (\\sigma s_i))^2 )

    with position ``u``, centre ``c`` and side ``s`` of each axis in space. Objects of photographs lie at the centre:
    what such a map gains needs no explanation of the model.
    """

    name = "centre_prior"
    form = "centre_prior:METHOD"
    title = "Map times a centre prior"
    hides = "what is not at the centre"

    width: Annotated[Positive, Doc("standard deviation, as a share of the side")] = 0.25

    def fits(self, problem: Problem) -> bool:
        return problem.structure != "none"

    def _changed(self, maps: Tensor, problem: Problem) -> tuple[Tensor, Mapping[str, Tensor]]:
        if not self.fits(problem):
            shape = tuple(problem.inputs.shape)
            raise InputError(f"got shape {shape}, expected axes in space, which have a centre", argument="inputs")
        weights = torch.ones((), dtype=maps.dtype, device=maps.device)
        for side in problem.inputs.shape[2:]:
            away = (torch.arange(side, dtype=maps.dtype, device=maps.device) - (side - 1) / 2) / (self.width * side)
            weights = weights[..., None] * (-away.square() / 2).exp()
        return maps * weights, {}


@dataclass(frozen=True)
class Power(Reweighted):
    """Raise each entry of the map to a power, and keep its sign.

    .. math:: A' = sign(A) |A|^p

    The ranking of the entries does not change. So what a score gains from p above 1 is due to sharpness, and
    not to what the map shows: the scores of MAS, and the shares of a map in a region, gain.
    """

    name = "power"
    form = "power(P):METHOD"
    title = "Power of a map"
    number = "exponent"

    exponent: Annotated[Positive, Search(0.5, 3.0, log=True), Doc("power of each entry")] = 1.5

    def _changed(self, maps: Tensor, problem: Problem) -> tuple[Tensor, Mapping[str, Tensor]]:
        return maps.sign() * maps.abs() ** self.exponent, {}


@dataclass(frozen=True)
class Competing(Incomplete):
    """Subtract from the map of the class, at each entry, the largest map of the other probable classes.

    .. math:: A' = A^t - \\max_{k \\neq t} A^k

    FRInGe's path does not depend on the class, so it gives all maps; other methods run once for each class. What
    speaks as much for another class vanishes: ``hidden_share`` is that share of the evidence for the class (of the
    positive part of the map).
    """

    name = "competing"
    form = "competing:METHOD"
    title = "Map less those of the other classes"
    source = "after class competition (VAR, 2025)"
    hides = "what speaks as much for another class"
    needs_classes = True

    classes: Annotated[int, Ge(2), Search(2, 10), Doc("probable classes that compete, with the explained one")] = 5

    @property
    def planned_passes(self) -> float | None:
        inner = self.of.planned_passes
        return inner if inner is None or self.of.many_targets else inner * self.classes

    def attribute(self, problem: Problem) -> Attribution:
        if problem.contrast is not None:
            message = f"{self.label} compares the class with the other probable ones already"
            raise InputError(message, argument="contrast", hint="leave it out")
        if problem.logits.shape[1] < 2:
            raise InputError(f"{self.label} compares classes, and the model has one", argument="method")
        others = problem.logits.scatter(1, problem.target[:, None], -torch.inf)
        others = others.topk(min(self.classes, others.shape[1]) - 1, dim=1).indices
        classes = torch.cat([problem.target[:, None], others], 1)
        if self.of.many_targets:
            every = self.of.attribute(dataclasses.replace(problem, target=classes))
            inner, rivals = every.of_class(0), every.values[:, 1:].amax(1)
        else:
            quiet = dataclasses.replace(problem, progress=None)
            inner = self.of.attribute(problem)
            each = [self.of.attribute(dataclasses.replace(quiet, target=other)).values for other in others.T]
            rivals = torch.stack(each).amax(0)
        hidden = _lost(inner.values.relu(), (inner.values - rivals.relu()).relu())
        return self._result(inner, inner.values - rivals, problem, {"hidden_share": hidden})


def _lost(before: Tensor, after: Tensor) -> Tensor:
    """The share (B,) of the sum that is gone; zero where there was nothing."""
    total, left = (x.flatten(1).double().sum(1) for x in (before, after))
    return torch.where(total > 0, 1 - left / total, 0.0)
