"""
What a verdict says
===================

Four questions, each with a number.
"""

import matplotlib.pyplot as plt
import torch

import fringe
from fringe.models import load_model

model = load_model("embedded:digits")
result = fringe.explain(model, "embedded:digits:3")

# %%
# 1. Is the sum right?
# --------------------
#
# The entries of a map should sum to the change of the score along its path. The *residual* is the missing share. If it
# is more than 5 %, the verdict is ``coarse``.

print(f"sum of the map        {result.values.sum():8.3f}")
print(f"change of the logit   {result.score[0] - result.endpoint_score[0]:8.3f}")
print(f"residual              {result.completeness_residual[0]:8.2%}")

# %%
# 2. Did the prediction become nearly uniform?
# --------------------------------------------
#
# A path that ends while the prediction is still certain explains only a part of the way. The verdict is then
# ``short``, or ``stalled`` if the prediction moved less than 5 % of the way.

start = float(
    (result.context.probabilities[0] * result.context.probabilities[0].log()).sum() + torch.tensor(10.0).log()
)
print(f"divergence from uniform: {start:.2f} nats at the input, {result.diagnostics['endpoint_kl'][0]:.2f} at the end")

for method in (fringe.FRInGe(), fringe.FRInGe(steps=6), fringe.FRInGe(delta_euc=0.01)):
    other = fringe.explain(model, "embedded:digits:3", method=method)
    print(f"{other.verdict[0]:8} {other.advice[0]}")

# %%
# 3. Does the map depend on the model?
# ------------------------------------
#
# If a map stays the same with new random weights, it explains the image and not the network
# (`Adebayo et al. 2018 <https://arxiv.org/abs/1810.03292>`_).

torch.manual_seed(0)
untrained = load_model("embedded:digits")
for parameter in untrained.module.parameters():
    if parameter.dim() > 1:
        torch.nn.init.kaiming_normal_(parameter)
control = fringe.explain(untrained, "embedded:digits:3", target=int(result.target[0]))

figure = plt.figure(figsize=(9, 4.2), layout="constrained")
left, right = figure.subfigures(1, 2)
for panel, drawn, title in ((left, result, "trained"), (right, control, "random weights")):
    axes = panel.subplots()
    axes.imshow(drawn.values[0].abs().sum(0), cmap="inferno")
    axes.set_title(title)
    axes.axis("off")

cosine = torch.nn.functional.cosine_similarity(result.values.flatten(), control.values.flatten(), dim=0)
print(f"cosine of the two maps: {cosine:.2f}")

# %%
# 4. Is it better than controls?
# ------------------------------
#
# A score alone says little. ``compare`` adds four maps that do not depend on the model (*zero* to *edge*), and a path
# that ignores its gradient (*diffusion*). A score means something only if it is better than the scores of these
# controls. The table has means over sixteen images.

inputs = fringe.explain(model, "embedded:digits:0:16", method="fringe:preview").context.inputs
table = fringe.compare(model.module, inputs, ["fringe", "ig"], ["mas_insertion", "mas_deletion"])
print("          higher is better   lower is better")
for row in table.rows:
    means = [float(scores.values.mean()) for scores in row.scores.values()]
    print(f"{row.label:9} {means[0]:11.2f} {means[1]:18.2f}")

# %%
# Here FRInGe is not better than the random map in the first score, and no method is better than the zero map in the
# second. :doc:`/trust` has all verdicts, and what to do.
