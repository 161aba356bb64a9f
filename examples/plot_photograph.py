"""
A photograph, and your own model
================================

Why did the network say *espresso*? The photograph is in this package, and the network (EfficientNet-Lite0, 1,000
classes) comes with the extra ``photo``. A network of torchvision, timm or Hugging Face goes by its name, and a
photograph of yours by its path: ``fringe.explain("torchvision:resnet50", "photo.jpg")``.
"""

import fringe

result = fringe.explain("efficientnet_lite0", "embedded:photos:coffee")
result.plot()

# %%
# Read the verdict first. ``ok`` says that the sum of the map is right. It does not say that the map marks the right
# pixels.

result

# %%
# **The signs.** Red places are evidence for the class, blue places against it.

result.plot("signed")

# %%
# **The path.** FRInGe does not start from a black image. It changes the photograph step by step, and the probabilities
# of the classes become more alike. The entropy says how far the path came: at 100% all are equally probable. Below it
# are the photograph on the path, its change, and the map so far.

result.plot("path")

# %%
# Your own model
# --------------
# Any callable that takes a batch and returns logits can be explained. This trains a small network on the digits of this
# package, in a few seconds.

import torch
from torch import nn

from fringe.data import load_digits

torch.manual_seed(0)
digits = load_digits()
images = torch.from_numpy(digits.images).float()[:, None] / 16  # (1797, 1, 8, 8) in [0, 1]
labels = torch.from_numpy(digits.labels).long()
train, test = (torch.from_numpy(rows.astype(int)) for rows in (digits.train, digits.test))

network = nn.Sequential(
    *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()),
    *(nn.Flatten(), nn.Linear(16 * 64, 10)),
)
optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
for _ in range(12):
    for rows in train[torch.randperm(len(train))].split(64):
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(images[rows]), labels[rows]).backward()
        optimiser.step()
network.eval()
accuracy = (network(images[test]).argmax(1) == labels[test]).float().mean()
print(f"{accuracy:.1%} of the test images are classified correctly")

# %%
# Tensors are passed to the model unchanged. For photographs and a module, say how they are prepared:
# ``fringe.explain(network, "photo.jpg", preprocessing="imagenet")``. Class names are optional.

names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
result = fringe.explain(network, images[test[:6]], classes=names)
result

# %%
result[3].plot()

# %%
# **Why a three and not an eight?** ``contrast`` explains the difference of two logits. Red pixels are evidence for the
# three, blue pixels for the eight.

why = fringe.explain(network, images[test[3:4]], classes=names, contrast=8)
why.plot("signed")

# %%
# **Several classes at once.** The path does not depend on the class: five maps need one path, and a little more
# than twice the passes of one map.

top = fringe.explain(network, images[test[3:4]], classes=names, target="top5")
print([top.context.class_label(int(k)) for k in top.target[0]])
print(f"one class: {why.passes}")
print(f"five:      {top.passes}")

# %%
# The call restores the network: its mode, flags, gradients and random state.

assert all(parameter.requires_grad for parameter in network.parameters())
