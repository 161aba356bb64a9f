"""
Which method should I trust here?
=================================

No method is best everywhere. Five questions, each with a number, say which map of *your* network deserves trust. Here
they are asked of the small network of this package, so that this page runs in a minute.
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
# is more than 5%, the verdict is ``coarse``.

print(f"sum of the map        {result.values.sum():8.3f}")
print(f"change of the logit   {result.score[0] - result.endpoint_score[0]:8.3f}")
print(f"residual              {result.completeness_residual[0]:8.2%}")

# %%
# 2. Did the prediction become nearly uniform?
# --------------------------------------------
#
# A path that ends while the prediction is still certain explains only a part of the way. The verdict is then
# ``short``, or ``stalled`` if the prediction moved less than 5 % of the way. The advice says what to do.

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

figure, panels = plt.subplots(1, 2, figsize=(6, 3.2), layout="constrained")
for panel, drawn, title in zip(panels, (result, control), ("trained", "random weights"), strict=True):
    panel.imshow(drawn.values[0].abs().sum(0), cmap="inferno")
    panel.set_title(title)
    panel.axis("off")

cosine = torch.nn.functional.cosine_similarity(result.values.flatten(), control.values.flatten(), dim=0)
print(f"cosine of the two maps: {cosine:.2f}")

# %%
# 4. Is a method better than controls?
# ------------------------------------
#
# A score alone says little. ``compare`` adds maps that do not depend on the model (*zero*, *random*, *uniform*,
# *edge*), and a path that ignores its gradient (*diffusion*). A score means something only if it is better than the
# scores of these controls. The mark ‡ in the table says where a method is not. Here every method has it: these scores
# give no reason to prefer one of them to a control.

methods = ["fringe", ("ig from black", fringe.IntegratedGradients(baseline="black")), "smoothgrad", "gradcam"]
table = fringe.compare(model, "embedded:digits:0:16", methods, ["signed_insertion", "mas_insertion"])
table

# %%
# The picture has the maps of the first eight digits. On a path from a black image only the ink changes, so the
# background of a digit gets nothing. FRInGe's path also changes the empty paper, so the paper has evidence, too.
#
# Can a metric be trusted at all? ``fringe compare ... --validity`` answers this for your network: it scores the same
# maps with more and more pixels moved. Of the two metrics above, only signed insertion passes on these digits:
# :doc:`/compare`.
#
# 5. Does a method find what is known?
# ------------------------------------
#
# A *scene* is a network and images for which it is known which pixels the network uses. *Mass inside* is the share of
# a map on these pixels. In ``fooled_cam`` a texture draws the last layer, and a small mark decides. In ``patch_and``
# two patches are needed together.

from fringe import ExperimentSpec, run_experiment

spec = ExperimentSpec(scene="fooled_cam,patch_and", methods="fringe,ig,smoothgrad,gradcam", metrics="mass_inside", n=8)
results = run_experiment(spec, progress=False)
for scene in results.models:
    for method in ("fringe", "ig", "smoothgrad", "gradcam", "edge"):
        print(f"{scene:12} {method:12} {results.scores(scene, method, 'mass_inside').mean():.2f}")

# %%
# (``nan``: the map has no positive entry.) So: for small marks a path method, and not Grad-CAM. On grids of photographs
# it is the other way round (:doc:`/figures`). Ask the same five questions of your network: ``fringe compare`` and
# ``fringe benchmark --scene`` take it by its name or file.
