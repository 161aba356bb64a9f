"""
Segmentation
============

Why does a segmentation network see a disc *here*? ``fringe.Region(model, mask)`` makes a classifier of the network: the
logit of a class is its mean in a region. Everything else works as for images: the path leads towards the uniform
prediction for the region.
"""

import torch
from torch import nn
from torch.nn import functional as F

import fringe

# %%
# Discs, squares, and a small network
# -----------------------------------
# Each image has a red or a blue disc and a square of the other colour. Pixels are background, disc or square.

SIZE, CLASSES = 48, ["background", "disc", "square"]


def scenes(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    row, column = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    x, y = 0.5 + 0.05 * torch.randn(count, 3, SIZE, SIZE, generator=g), torch.zeros(count, SIZE, SIZE, dtype=torch.long)
    for i in range(count):
        a, b, c, d = torch.randint(10, SIZE - 10, (4,), generator=g).tolist()
        disc = (row - a) ** 2 + (column - b) ** 2 <= 49
        square = ((row - c).abs() <= 6) & ((column - d).abs() <= 6) & ~disc
        colour = int(torch.randint(0, 2, (1,), generator=g)) * 2  # red or blue
        x[i, colour][disc] += 0.4
        x[i, 2 - colour][square] += 0.4
        y[i][disc], y[i][square] = 1, 2
    return x.clamp(0, 1), y


torch.manual_seed(0)
model = nn.Sequential(
    *(nn.Conv2d(3, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 16, 5, padding=4, dilation=2), nn.ReLU()),
    *(nn.Conv2d(16, 16, 5, padding=4, dilation=2), nn.ReLU(), nn.Conv2d(16, len(CLASSES), 1)),
)
x, y = scenes(192, seed=0)
optimiser = torch.optim.Adam(model.parameters(), 3e-3)
for step in range(120):
    rows = torch.arange(step * 16, step * 16 + 16) % len(x)
    optimiser.zero_grad()
    F.cross_entropy(model(x[rows] - 0.5), y[rows], weight=torch.tensor([0.3, 1.0, 1.0])).backward()
    optimiser.step()
model.eval()

# %%
# Why a disc?
# -----------
# The region has the pixels that the network calls a disc, in a new image.

image = scenes(4, seed=9)[0][2:3]
region = model(image - 0.5).argmax(1)[0] == 1
print(f"{int(region.sum())} pixels are called a disc")

result = fringe.explain(
    fringe.Region(model, region), image - 0.5, preprocessing="mean=0.5,std=1", classes=CLASSES, target="disc"
)
result

# %%
# The evidence is mostly at the edge, where a disc differs from a square.

result.plot()

# %%
# Evidence for and against the class:

result.plot("signed")

# %%
# Each image of a batch can have its own region, as a forward argument:

images = scenes(3, seed=11)[0]
masks = model(images - 0.5).argmax(1) == 2
maps = fringe.attribute(fringe.Region(model), images - 0.5, forward_kwargs={"mask": masks}, target=2)
print(maps)
