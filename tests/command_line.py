"""The command line in the process of a test, and pictures and models to give it."""

import numpy as np
from PIL import Image
from typer.testing import CliRunner

from fringe.cli import app

#: A file with one network that returns logits, and the same one with a softmax behind them.
SOFTMAX = """
import torch
class Logits(torch.nn.Module):
    def forward(self, x):
        return torch.stack([x[:, 0, 0, 0], x[:, 0, 1, 1] * 2, x.mean((1, 2, 3))], 1)
class Softmax(Logits):
    def forward(self, x):
        return super().forward(x).softmax(1)
"""


def run(*arguments):
    """The result of ``fringe`` with these arguments."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def picture(path, size=(8, 8), seed=0, value=None):
    """A grey picture (width, height) of noise, or of one ``value``; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, size[::-1], dtype=np.uint8)
    Image.fromarray(pixels if value is None else np.full(size[::-1], value, np.uint8)).save(path)
    return path
