"""Toy models, inputs and problems for all tests: small enough for milliseconds, the same numbers on every machine.

``build(smooth_cnn)`` makes one of the networks that :mod:`fringe.testing` uses, for images (2, 8, 8), ``mlp`` for rows
(6,); the classes below are networks of inputs of any shape whose answers are known. All of it is float64 unless said
otherwise.
"""

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fringe import Attributor, Classifier
from fringe._numbers.rng import KeyedGenerator
from fringe.metrics import EvaluationContext
from fringe.paths import Problem
from fringe.testing._checks import (  # noqa: F401 - what other tests import from here
    SHAPE,
    ToyProblems,
    _CountingModel,
    affine,
    blocks_cnn,
    constant,
    mlp,
    relu_cnn,
    saturated,
    smooth_cnn,
)


def build(network: Callable[[], nn.Module] = smooth_cnn, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A network of :mod:`fringe.testing` in evaluation mode: every class is predicted for some images."""
    return ToyProblems(dtype).build(network, (6,) if network is mlp else SHAPE)


def images(count: int, key: str = "images", dtype: torch.dtype = torch.float64) -> Tensor:
    """Images (count, 2, 8, 8) for these networks, uniform on [-2, 2)."""
    return ToyProblems(dtype).images(count, key=key)


def normal(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers of this shape."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def cheap(kind: type[Attributor], most: int = 5) -> Attributor:
    """A method with its defaults, but at most ``most`` steps, samples, references ...: each whole number that a search
    may choose is the smallest that it tries, if that is smaller still."""
    counts = {name: one.search for name, one in kind.search_space().items() if type(one.default) is int}
    method = kind(**{name: min(int(search.low), most) for name, search in counts.items() if search is not None})
    inner = method.innermost
    return method if inner is method else dataclasses.replace(method, of=cheap(type(inner), most))


class Affine(nn.Module):
    """Logits ``W x + b`` of inputs of any shape, ``size`` entries each: the gradient of logit c is ``weight[c]``."""

    def __init__(self, size: int = 128, classes: int = 3, seed: int = 0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.register_buffer("weight", torch.randn(classes, size, generator=generator, dtype=torch.float64))
        self.register_buffer("bias", torch.randn(classes, generator=generator, dtype=torch.float64))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight.T + self.bias


class Quadratic(nn.Module):
    """Logits ``<x, Q_c x> / 2 + <w_c, x>`` with symmetric, indefinite ``matrix`` Q (C, n, n): the integral of the
    gradient along any straight line is exact by the midpoint rule with one node."""

    def __init__(self, size: int = 128, classes: int = 3, seed: int = 0):
        super().__init__()
        square = normal(classes, size, size, seed=seed) / size**0.5
        self.register_buffer("matrix", (square + square.mT) / 2)
        self.register_buffer("weight", normal(classes, size, seed=seed + 1) / 4)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return torch.einsum("ni,kij,nj->nk", flat, self.matrix, flat) / 2 + flat @ self.weight.T

    def gradient(self, x: Tensor, target: Tensor) -> Tensor:
        """Gradient (N, *S) of the logits of ``target`` (N,): ``Q x + w``."""
        flat = x.flatten(1)
        return (torch.einsum("nij,nj->ni", self.matrix[target], flat) + self.weight[target]).view_as(x)


class TanhMLP(nn.Module):
    """A smooth network of inputs of any shape, ``size`` entries, whose probabilities go up and down along any path."""

    def __init__(self, size: int = 128, classes: int = 4, seed: int = 0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.register_buffer("inner", torch.randn(16, size, generator=generator, dtype=torch.float64) / size**0.5)
        self.register_buffer("outer", torch.randn(classes, 16, generator=generator, dtype=torch.float64))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return (x.flatten(1) @ self.inner.T).tanh() @ self.outer.T


def problem_of(model: nn.Module, x: Tensor, target: object = "predicted", *, seed=0, ids=None, **options) -> Problem:
    """A problem of the images ``x``, with no pass counted yet; ``options`` are the classifier's."""
    classifier = Classifier(model, **options)
    problem = Problem.of(classifier, x, target=target, ids=ids, rng=KeyedGenerator(seed))
    classifier.passes.forward = 0
    return problem


def context_of(model: nn.Module, x: Tensor, target: object = "predicted", **options) -> EvaluationContext:
    """The images ``x`` under evaluation; arguments as of :func:`problem_of`."""
    return EvaluationContext(problem_of(model, x, target, **options))


def results_of_scores(scores, seed=0):
    """Results with these scores by (model, method, metric), as read from a store in memory."""
    from fringe._files.records import digest
    from fringe.bench.experiments import Manifest
    from fringe.metrics import METRICS
    from score_records import ScoreRecord, results_from

    settings, limits = {}, {}
    for (model, method, metric), values in scores.items():
        settings.setdefault(model, {})[method] = {"model": {"name": model}, "method": {"method": method}}
        limits[metric] = max(limits.get(metric, 0), len(values))
    metrics = {
        name: {"settings": {}, "key": digest(name), "limit": n, "summary": METRICS[name].aggregate}
        for name, n in limits.items()
    }
    images = tuple(
        {"digest": digest(i), "id": f"{i}", "source": f"{i}", "label": None} for i in range(max(limits.values()))
    )
    records = [
        ScoreRecord(
            digest(settings[model][method]),
            digest(metric),
            digest(i),
            model,
            method,
            metric,
            f"{i}",
            None,
            0,
            0.5,
            float(value),
            "ok",
        )
        for (model, method, metric), values in scores.items()
        for i, value in enumerate(values)
    ]
    return results_from(
        Manifest({"seed": seed}, images, (), settings, metrics, {}, {}), {one.key: one for one in records}
    )
