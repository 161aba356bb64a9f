"""Attributions of small networks, with what their pages need."""

import dataclasses
from functools import cache

import torch
from torch import nn

import fringe
from fringe.attribution import Context

MALICE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>\u202e"


def network(channels, classes, seed=0):
    """A convolution that looks at the whole image, for any size."""
    torch.manual_seed(seed)
    layers = (nn.Conv2d(channels, 6, 3, 2, 1), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, classes))
    model = nn.Sequential(*layers).eval()
    with torch.no_grad():
        model[-1].weight *= 12
    return model


@cache
def explained(*, size=(8, 8), channels=1, classes=6, images=2, method="fringe", target="top5", **options):
    """The attribution of random images with context."""
    model = network(channels, classes)
    x = torch.rand(images, channels, *size, generator=torch.Generator().manual_seed(1))
    method = fringe.FRInGe(tau=0.01, steps=12) if method == "fringe" else method
    result = fringe.attribute(model, x, method=method, target=target, **{"telemetry": 11, **options})
    with torch.no_grad():
        probabilities = model(x).softmax(-1)
    names = ("zero", "", *(f"name {k}" for k in range(2, classes)))
    ids = tuple(f"image {i}" for i in range(images))
    return result.with_context(Context("image", x, probabilities, ids, "a model", class_names=names))


def renamed(result, **fields):
    return dataclasses.replace(result, context=dataclasses.replace(result.context, **fields))
