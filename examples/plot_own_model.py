"""
Your own model
==============

Any callable that takes a batch and returns logits can be explained. This page trains a small network on the digits
of this package, in a few seconds.
"""

import torch
from torch import nn

import fringe
from fringe.data import load_digits

torch.manual_seed(0)
digits = load_digits()
images = torch.from_numpy(digits.images).float()[:, None] / 16  # (1797, 1, 8, 8) in [0, 1]
labels = torch.from_numpy(digits.labels).long()
train, test = (torch.from_numpy(rows.astype(int)) for rows in (digits.train, digits.test))

network = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(16, 16, 3, padding=1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(16 * 64, 10),
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
# Tensors are passed to the model unchanged. Class names are optional.

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
