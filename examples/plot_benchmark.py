"""
A benchmark of my method
========================

A method of your own, tested against what every method must keep, and compared with two others on forty images.
A method is a frozen dataclass. Its fields are its settings, and they are checked when it is made. The path of this
method leads from zero to a faded image, and from there to the image. A plain function works, too:
:doc:`/how-to/verify-a-method`.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import matplotlib.pyplot as plt
import torch

import fringe
from fringe.attribution import PathAttributor, quadrature_nodes
from fringe.evaluation import paired
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

    def nodes(self, problem: Problem) -> PiecewiseNodes:
        x = problem.inputs
        mean = x.mean(tuple(range(2, x.dim())) or (1,), keepdim=True)
        middle = mean + self.fade * (x - mean)
        vertices = torch.stack([x, middle, torch.zeros_like(x)], 1)  # (B, 3, *S), from the input on
        line = Polyline.from_vertices(vertices)
        return PiecewiseNodes(line, *quadrature_nodes("gausslegendre", self.steps))


# %%
# Every function that takes a method accepts it. The result has verdict, error, passes and path.

result = fringe.explain("embedded:digits", "embedded:digits:5", method=Midway(steps=30))
result

# %%
result.plot()

# %%
# ``check_attributor`` tests what every method must keep: shapes, finite maps, exact maps of linear models, the same
# map alone and in a batch, unchanged inputs of the caller, and more.

for check in check_attributor(Midway(steps=5)):
    print(f"{check.name:22} {check.detail}")

# %%
# The benchmark
# -------------
# With a folder as the second argument of ``run_experiment``, every score is stored as soon as it is computed. After an
# interruption the same call continues.

spec = fringe.ExperimentSpec(
    model="embedded:digits",
    data="embedded:digits",
    methods={"midway": Midway(), "fringe": "fringe", "ig": "ig"},
    metrics="signed_insertion,sparseness",
    n=40,
)
results = fringe.run_experiment(spec)
summary = results.summary()
for row in summary.iter_rows(named=True):
    print(f"{row['method']:20} {row['metric']:17} {row['mean']:6.2f} [{row['low']:.2f}, {row['high']:.2f}]")

# %%
# Means with 95 % bootstrap intervals over the images. The controls are below. Sparseness is no quality: a map that
# knows nothing may be sparse, too.

figure, panels = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True, layout="constrained")
for panel, metric in zip(panels, ["signed_insertion", "sparseness"], strict=True):
    part = summary.filter(summary["metric"] == metric)[::-1]
    errors = [part["mean"] - part["low"], part["high"] - part["mean"]]
    panel.errorbar(part["mean"], part["method"], xerr=errors, fmt="o", capsize=3)
    panel.set_xlabel(metric.replace("_", " "))
    panel.grid(axis="x", alpha=0.3)

# %%
# On the same images the difference between two methods is much more certain than their two intervals suggest. So the
# difference is computed image by image.

(model,) = results.models
for other in ("fringe", "ig"):
    first, second = (results.scores(model, method, "signed_insertion") for method in ("midway", other))
    difference = paired(first, second)
    print(f"midway - {other}: {difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]")

# %%
# The same from the command line, with a report as one page: ``fringe benchmark --out out/benchmark`` and
# ``fringe report out/benchmark``. More: :doc:`/benchmark`. To add the method to the package:
# :doc:`/how-to/add-a-method`.
