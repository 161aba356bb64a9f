"""
Time series
===========

Which moments made a network recognise a movement? The series is drawn over strips, in the colour of each sample's
evidence. The path smooths neighbouring samples together, like neighbouring pixels of an image.

The data are *BasicMotions* of the UEA archive, from the package ``aeon``: ten seconds of a watch on the wrist, with
three axes of acceleration and three of rotation. The classes are standing, walking, running and badminton.
"""

import importlib.util
from pathlib import Path

import torch
from torch import nn

import fringe

# %%
# The data
# --------
# This function reads the file. ``aeon.datasets.load_basic_motions`` does the same.


def read(part: str) -> tuple[torch.Tensor, list[str]]:
    folder = Path(importlib.util.find_spec("aeon").submodule_search_locations[0]) / "datasets/data/BasicMotions"
    series, labels = [], []
    for line in (folder / f"BasicMotions_{part}.ts").read_text().splitlines():
        if line and line[0] not in "#@":
            *channels, label = line.split(":")
            series.append([[float(value) for value in channel.split(",")] for channel in channels])
            labels.append(label.strip().lower())
    return torch.tensor(series), labels


x, labels = read("TRAIN")
test, test_labels = read("TEST")
classes = sorted(set(labels))
y = torch.tensor([classes.index(label) for label in labels])
mean, std = x.mean((0, 2), keepdim=True), x.std((0, 2), keepdim=True)
x, test = (x - mean) / std, (test - mean) / std

# %%
# A small convolutional network
# -----------------------------

torch.manual_seed(0)
model = nn.Sequential(
    *(nn.Conv1d(6, 16, 7, padding=3), nn.GELU(), nn.Conv1d(16, 16, 7, padding=3, stride=2), nn.GELU()),
    *(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, len(classes))),
)
optimiser = torch.optim.Adam(model.parameters(), 1e-2)
for _ in range(150):
    optimiser.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimiser.step()
model.eval()
right = sum(classes[k] == label for k, label in zip(model(test).argmax(1).tolist(), test_labels, strict=True))
print(f"{right} of {len(test)} recognised")

# %%
# Explain
# -------

channels = ["acceleration x", "acceleration y", "acceleration z", "rotation x", "rotation y", "rotation z"]
result = fringe.explain(model, test[::5], kind="series", classes=classes, features=channels)
result

# %%
# One recording of badminton: long rests, and a few strokes.

result[[classes[int(k)] for k in result.target].index("badminton")].plot()
