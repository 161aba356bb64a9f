"""Controls of focused paths: methods made of the finished map of another one, which hide a part of what it says.

An experiment names them as ``controls.py:located``, and the command line with ``--trust-code`` as
``experiments/controls.py:located``. Each modifies FRInGe; ``Located(of="ig")`` is that of another method.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from fringe import FRInGe, GradCAM
from fringe.attribution import Attribution, Incomplete, Reweighted
from fringe.errors import InputError
from fringe.paths import Problem
from fringe.settings import Doc

#: Weights (B, 1, *space) from zero to one, and notes (B) on their layer.
Region = tuple[Tensor, list[str]]


def region_of(problem: Problem) -> Region:
    """Where the last layer in space sees the class: Grad-CAM over its maximum."""
    result = GradCAM().attribute(replace(problem, progress=None))
    cam = result.values.sum(1, keepdim=True)
    top = cam.flatten(1).amax(1).view(-1, *[1] * (cam.dim() - 1))
    notes = [f"the layer is {advice.partition('; the layer is ')[2]}" for advice in result.advice]
    return torch.where(top > 0, cam / top, 0.0), notes


def lost(before: Tensor, after: Tensor) -> Tensor:
    """The share (B,) of the sum that is gone; zero where there was nothing."""
    total, left = (x.flatten(1).double().sum(1) for x in (before, after))
    return torch.where(total > 0, 1 - left / total, 0.0)


@dataclass(frozen=True)
class Located(Reweighted):
    """Multiply the map of another method by where the last layer in space sees the class.

    .. math:: A' = a \\odot A, \\quad a = relu( \\sum_c mean(G_c) A_c ) / max

    The map is found in the right region more often, and what the last layer does not see is lost without a trace, such
    as a small mark that decides: ``hidden_share`` is the share of the map, in absolute values of its pixels, that was
    taken away. Costs Grad-CAM more.
    """

    name = "located"
    form = "located:METHOD"
    uses_gradients = True
    title = "Map × activation map"
    hides = "what the last layer does not see"

    def fits(self, problem: Problem) -> bool:
        return problem.structure != "none"

    def _region(self, problem: Problem) -> Region:
        return region_of(problem)

    def _changed(self, maps: Tensor, problem: Problem) -> tuple[Tensor, dict[str, Tensor], Region]:
        region = self._region(problem)
        values = region[0] * maps
        return values, {"hidden_share": lost(maps.sum(1).abs(), values.sum(1).abs())}, region


@dataclass(frozen=True)
class OtherCAM(Located):
    """Multiply the map by where the last layer sees the class of another image: a control of ``located``.

    The other image is the next one of the call, in the order of their names; where there is none, the image's own
    region is turned by 180 degrees. So a map depends on the other images. What ``located`` gains and this gains, too,
    is not due to the region.
    """

    name = "other_cam"
    form = "other_cam:METHOD"
    title = "Another image's region"
    hides = "what another image's region leaves out"

    def _region(self, problem: Problem) -> Region:
        (regions, notes), names = region_of(problem), sorted(set(problem.keys))
        if len(names) == 1:
            return regions.flip(*range(2, regions.dim())), notes
        rows = {name: [row for row, key in enumerate(problem.keys) if key == name] for name in names}  # of its classes
        chosen = list[int]()
        for row, key in enumerate(problem.keys):
            other = rows[names[(names.index(key) + 1) % len(names)]]
            chosen.append(other[rows[key].index(row) % len(other)])
        return regions[chosen], notes


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
    title = "Map − other classes"
    source = "after class competition (VAR, 2025)"
    hides = "what speaks as much for another class"
    needs_classes = True

    classes: Annotated[int, Ge(2), Doc("probable classes that compete, with the explained one")] = 5

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
            every = self.of.attribute(replace(problem, target=classes))
            inner, rivals = every.of_class(0), every.values[:, 1:].amax(1)
        else:
            quiet = replace(problem, progress=None)
            inner = self.of.attribute(problem)
            each = [self.of.attribute(replace(quiet, target=other)).values for other in others.T]
            rivals = torch.stack(each).amax(0)
        hidden = lost(inner.values.relu(), (inner.values - rivals.relu()).relu())
        return self._result(inner, problem, inner.values - rivals, {"hidden_share": hidden})


located, other_cam, competing = Located(FRInGe()), OtherCAM(FRInGe()), Competing(FRInGe())
