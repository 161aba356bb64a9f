"""
Add a method
============

A method is a frozen dataclass. Its fields are its settings, and they are checked when it is made. The path of this
method leads from zero to a faded image, and from there to the image. :doc:`/how-to/add-a-method` adds a method to the
package.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

import fringe
from fringe.attribution import NodeTerms, PathAttributor, quadrature_nodes
from fringe.paths import PiecewiseNodes, Polyline, Problem
from fringe.settings import Doc, Positive, PositiveInt
from fringe.testing import check_attributor


@dataclass(frozen=True)
class Midway(PathAttributor):
    """Integrate the gradient from zero to the image with less contrast, and from there to the image."""

    name: ClassVar[str] = "midway"
    title: ClassVar[str] = "Midway Gradients"
    source: ClassVar[str] = "an example of this documentation"

    steps: Annotated[PositiveInt, Doc("gradients on each half")] = 20
    fade: Annotated[Positive, Doc("share of the contrast at the middle of the path")] = 0.5

    def terms(self, problem: Problem) -> NodeTerms:
        x = problem.inputs
        mean = x.mean(tuple(range(2, x.dim())) or (1,), keepdim=True)
        middle = mean + self.fade * (x - mean)
        vertices = torch.stack([x, middle, torch.zeros_like(x)], 1)  # (B, 3, *S), from the input on
        line = Polyline.from_vertices(vertices)
        return NodeTerms(PiecewiseNodes(line, *quadrature_nodes("gausslegendre", self.steps)), problem)


# %%
# Every function that takes a method accepts it. The result has verdict, error, passes and path.

result = fringe.explain("embedded:digits", "embedded:digits:5", method=Midway(steps=30))
result

# %%
result.plot()

# %%
# A wrong setting is refused, with the reason:

try:
    Midway(steps=0)
except fringe.InputError as error:
    print(error)

# %%
# ``check_attributor`` tests what every method must keep: shapes, finite maps, exact maps of linear models, the same
# map alone and in a batch, unchanged inputs of the caller, and more.

for check in check_attributor(Midway(steps=5)):
    print(f"{check.name:22} {check.detail}")
