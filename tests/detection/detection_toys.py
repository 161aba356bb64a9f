"""A small detector whose answers are known."""

import torch
from torch import nn

import fringe
from fringe import Detector

NAMES = ["cat", "dog", "cup"]


class Grid(nn.Module):
    """A detector with a place for each square of 8 pixels, whose class logits are linear in its pixels."""

    def __init__(self, *, drift: float = 0.0, turned: bool = False, labels: int = 3, decisive: float = 2.0):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.layer = nn.Conv2d(3, labels, 8, 8)
        self.layer.weight.data = decisive * torch.randn(labels, 3, 8, 8, generator=generator) / 14
        self.layer.bias.data = torch.full((labels,), -1.0)
        self.drift, self.turned = drift, turned
        self.double().eval()

    def forward(self, x):
        logits = self.layer(x)
        rows, columns = (torch.arange(size, dtype=x.dtype) * 8 + 4 for size in logits.shape[-2:])
        centres = torch.stack(torch.meshgrid(columns, rows, indexing="xy")).flatten(1)
        centres = centres + self.drift * x.mean((1, 2, 3))[:, None, None]
        sizes = torch.full_like(centres, 8.0)
        output = torch.cat([centres, sizes, logits.flatten(2).sigmoid()], 1)
        return output if self.turned else output.movedim(1, 2)


def image(seed=0, size=(48, 64)):
    return torch.rand(1, 3, *size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def explained(model=None, x=None, **options):
    options = {"method": "ig", "classes": NAMES, **options}
    return fringe.explain(Detector(model or Grid(), read="yolo"), image() if x is None else x, **options)
