"""
Add a metric
============

A metric is a frozen dataclass that gives each map one number. This metric measures whether the map marks the ink: the
share of its strength on the brightest pixels. :doc:`/how-to/add-a-metric` adds a metric to the package.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import matplotlib.pyplot as plt
import torch

import fringe
from fringe.data import digits_samples
from fringe.metrics import Direction, EvaluatedMaps, Metric, Scores
from fringe.models import load_model
from fringe.settings import Doc, Fraction


@dataclass(frozen=True)
class OnInk(Metric):
    """Share of the map's strength on the brightest pixels of the input; NaN, flagged ``zero_map``, for an empty map."""

    name: ClassVar[str] = "on_ink"
    title: ClassVar[str] = "Share on ink"
    direction: ClassVar[Direction] = "none"  # a number without a better or worse
    space: ClassVar[str] = "the map's strength"
    source: ClassVar[str] = "an example of this documentation"

    share: Annotated[Fraction, Doc("share of the pixels that counts as ink")] = 0.2

    def score(self, maps: EvaluatedMaps) -> Scores:
        x, strength = maps.context.problem.inputs.flatten(1), maps.values.abs().flatten(1).double()
        ink = x >= x.quantile(1 - self.share, dim=1, keepdim=True)
        total = strength.sum(1)
        return Scores((strength * ink).sum(1) / total, flags={"zero_map": total == 0})


# %%
# Every function that takes a metric accepts it. ``compare`` gives it the maps of each method, on the same images.

model = load_model("embedded:digits")
inputs = model.prepare([sample.image for sample in digits_samples()[:8]])
methods = ["fringe", "ig", ("ig from black", fringe.IntegratedGradients(baseline="black"))]
table = fringe.compare(model.module, inputs, methods, [OnInk()])

for row in table.rows:
    print(f"{row.label:14} {row.scores['on_ink'].values.nanmean():.2f}")

# %%
# A fifth of the pixels counts as ink. On a path from a black image only pixels that are not black change, so the
# map stays on the ink. FRInGe's path also changes the empty paper, where ink would make another digit.

rows = [row for row in table.rows if row.label != "zero"]
figure, panel = plt.subplots(figsize=(7, 3.4), layout="constrained")
panel.boxplot([row.scores["on_ink"].values for row in rows], orientation="horizontal")
panel.set_yticks(range(1, len(rows) + 1), [row.label for row in rows])
panel.axvline(OnInk().share, color="0.6", linestyle=":")
panel.set_xlabel("share of the map's strength on ink (dotted: a map that knows nothing)")

# %%
# You can check one number: a map of ones scores the share of the ink.

uniform = next(row for row in table.rows if row.label == "uniform")
print(uniform.scores["on_ink"].values)
assert torch.isfinite(uniform.scores["on_ink"].values).all()
