"""
Compare methods
===============

Four methods explain the same digits, and two metrics score every map.
"""

import matplotlib.pyplot as plt

import fringe
from fringe.data import digits_samples
from fringe.models import load_model

model = load_model("embedded:digits")
samples = digits_samples()[:8]
inputs = model.prepare([sample.image for sample in samples])

methods = ["fringe", "ig", ("ig from black", fringe.IntegratedGradients(baseline="black")), "smoothgrad"]
table = fringe.compare(model.module, inputs, methods, ["mas_insertion", "mas_deletion"])

# %%
# A method is a name, a configured method, or a pair of a label and one of these. The table has means over the eight
# images. *zero*, *random*, *uniform* and *edge* are maps that do not depend on the model. The path of *diffusion*
# ignores the gradient of the model.

print("                 MAS insertion ↑   MAS deletion ↓   passes an image")
for row in table.rows:
    means = [float(scores.values.mean()) for scores in row.scores.values()]
    total = row.passes.forward + row.passes.jvp + row.passes.vjp
    print(f"{row.label:16} {means[0]:12.2f} {means[1]:16.2f} {total / len(inputs):10.0f}")

# %%
# The maps of the first four digits.

rows = [row for row in table.rows if not row.control]
figure, axes = plt.subplots(4, len(rows) + 1, figsize=(8.5, 7), layout="constrained")
for line, sample, k in zip(axes, samples, range(4), strict=False):
    line[0].imshow(sample.image, cmap="gray")
    for panel, row in zip(line[1:], rows, strict=True):
        strength = row.maps[k].abs().sum(0)
        panel.imshow(strength, cmap="inferno", vmax=strength.quantile(0.995))
for panel, title in zip(axes[0], ["input", *(row.label for row in rows)], strict=True):
    panel.set_title(title)
for panel in axes.flat:
    panel.axis("off")

# %%
# **How to read it.** A map depends on which pixels the path changes. On a path from a black image only the ink
# changes, so the background of a digit gets nothing. FRInGe's path also changes the empty paper, so the paper has
# evidence, too.
#
# The same from the command line: ``fringe compare embedded:digits:0:8 --methods fringe,ig,smoothgrad --metrics
# mas_insertion,mas_deletion --out out/compare``.
