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


def answered(words: int = 1000, tokens: int = 3) -> fringe.Attribution:
    """An answer of so many tokens to a prompt of ``words`` words, with evidence that is known: that of the first word
    is 1, of the second -0.5, and of each earlier token of the answer 2; the last word does not move."""
    size = words + tokens - 1
    values, inputs = torch.zeros(tokens, size, 2), torch.zeros(tokens, size, 2)
    text = ["Once" if k == 0 else f"word{k}" if k % 17 else "end." for k in range(words)]
    features, target = [], torch.arange(tokens)
    for k in range(tokens):
        inputs[k, : words + k] = 1.0
        values[k, : words - 1, 0] = 0.1 * torch.sin(torch.arange(words - 1) / 5.0 + k)
        values[k, :2, 0] = torch.tensor([1.0, -0.5]) / (k + 1)
        values[k, words : words + k, 0] = 2.0
        features.append((*text, *(f"answer{j}" for j in range(k)), *[""] * (tokens - 1 - k)))
    number = torch.arange(tokens, dtype=torch.float64)
    context = fringe.attribution.Context(
        kind="text",
        inputs=inputs,
        probabilities=torch.eye(tokens) * 0.5 + 0.5 / tokens,
        ids=tuple(f"text-0#{k + 1}" for k in range(tokens)),
        model="a language model",
        features=tuple(features),
        classes=(tuple(f"answer{k}" for k in range(tokens)),) * tokens,
        prompts=("text-0",) * tokens,
    )
    return fringe.Attribution(
        values,
        target,
        number.float(),
        number.float(),
        number,
        number,
        ("unchecked",) * tokens,
        ("advice",) * tokens,
        {},
        settings=fringe.IntegratedGradients().record(),
        context=context,
    )
