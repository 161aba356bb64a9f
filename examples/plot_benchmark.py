"""
Run a benchmark
===============

Three methods, two metrics and forty digits, with intervals and paired differences. With a folder as the second argument
of ``run_experiment``, every score is stored as soon as it is computed. After an interruption the same call continues.
"""

import matplotlib.pyplot as plt

from fringe import ExperimentSpec, run_experiment
from fringe.evaluation import paired

spec = ExperimentSpec(
    model="embedded:digits",
    data="embedded:digits",
    methods="fringe,ig,smoothgrad",
    metrics="mas_insertion,sparseness",
    n=40,
    set=["smoothgrad.samples=8"],
)
results = run_experiment(spec)
summary = results.summary()
print(summary.select("method", "metric", "mean", "low", "high"))

# %%
# Means with 95 % bootstrap intervals over the images. The controls are below.

figure, panels = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True, layout="constrained")
for panel, metric in zip(panels, ["mas_insertion", "sparseness"], strict=True):
    part = summary.filter(summary["metric"] == metric)[::-1]
    errors = [part["mean"] - part["low"], part["high"] - part["mean"]]
    panel.errorbar(part["mean"], part["method"], xerr=errors, fmt="o", capsize=3)
    panel.set_xlabel(metric.replace("_", " "))
    panel.grid(axis="x", alpha=0.3)

# %%
# On the same images the difference between two methods is much more certain than their two intervals suggest. So the
# difference is computed image by image.

(model,) = results.models
first, second = (results.scores(model, method, "mas_insertion") for method in ("fringe", "ig"))
difference = paired(first, second)
print(difference)

# %%
# The same from the command line, with a report as one page: ``fringe benchmark --out out/benchmark`` and
# ``fringe report out/benchmark``. More: :doc:`/benchmark`.
