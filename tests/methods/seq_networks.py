"""What the tests of sequential paths share: networks with linear layers, float64, and walks seen segment by segment."""

import weakref

import torch
from method_networks import CLASSES, ENTRIES
from torch import nn

import fringe
from fringe.paths import Problem


class Headed(nn.Module):
    """Flatten, linear, tanh, linear: its last linear layer takes ``hidden`` features. Registered head first."""

    def __init__(self, seed: int = 0, hidden: int = 10, classes: int = CLASSES):
        super().__init__()
        self.head = linear(hidden, classes, seed)
        self.unused = linear(3, 3, seed)
        self.body = linear(ENTRIES, hidden, seed + 1)
        self.eval()

    def features(self, x):
        return self.body(x.flatten(1)).tanh()

    def forward(self, x):
        return self.head(self.features(x))


class Bare(nn.Module):
    """Its only linear layer takes the flattened image itself; what follows is no layer."""

    def __init__(self, seed: int = 0, hidden: int = 16):
        super().__init__()
        self.first, self.second = linear(ENTRIES, hidden, seed), linear(hidden, CLASSES, seed + 1).weight
        self.eval()

    def forward(self, x):
        return nn.functional.softplus(self.first(x.flatten(1))) @ self.second.T


class Failing(nn.Module):
    """Raises at its ``last``-th call."""

    def __init__(self, model: nn.Module, last: int):
        super().__init__()
        self.model, self.last, self.calls = model, last, 0
        self.eval()

    def forward(self, x):
        self.calls += 1
        logits = self.model(x)
        if self.calls == self.last:
            raise RuntimeError("simulated")
        return logits


class Watched(nn.Module):
    """Notes how many images each call brings."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model, self.sizes = model, []
        self.eval()

    def forward(self, x):
        self.sizes.append(len(x))
        return self.model(x)


def linear(entries: int, outputs: int, seed: int) -> nn.Linear:
    layer = nn.Linear(entries, outputs).double().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / entries**0.5
    return layer


def problem_of(model, x, target="predicted", score="logit", **fields) -> Problem:
    return Problem.of(fringe.Classifier(model, score=score), x, target=target, **fields)


def segments(path, problem):
    """Every segment of one run, and the walk."""
    with problem.model.session(problem.inputs.device):
        walk = path.run(problem)
        return list(walk.segments()), walk


def most_alive(path, problem) -> int:
    """How many of the points that a run visits are in memory at the same time, at most."""
    seen, most = [], 0
    with problem.model.session(problem.inputs.device):
        for segment in path.run(problem).segments():
            seen += [weakref.ref(segment.start.x), weakref.ref(segment.stop.x)]
            del segment
            most = max(most, sum(point() is not None for point in seen))
    return most


def score_and_gradient(model, z, target, kind="logit"):
    """Score (a number) and gradient (*S) of one point ``z`` (*S), by autograd alone."""
    z = z.clone().requires_grad_(True)
    logits = model(z[None])[0]
    values = {"logit": logits, "probability": logits.softmax(0), "log_probability": logits.log_softmax(0)}[kind]
    (gradient,) = torch.autograd.grad(values[target], z)
    return values[target].item(), gradient


def bend(model, points, target):
    """Half the sum over pieces of ``D^T Q D``, D from point to point, of a quadratic model's score: (a number)."""
    steps = torch.stack(points).flatten(1).diff(dim=0)
    return 0.5 * torch.einsum("ki,ij,kj->", steps, model.matrix[target], steps).item()


def off_course(p, p0, alpha):
    """Fisher-Rao distance (radians) of ``p`` (C,) from the point at ``alpha`` of the way from ``p0`` to uniform."""
    start, stop = p0.sqrt(), torch.full_like(p0, 1 / len(p0)).sqrt()
    angle = torch.arccos(start @ stop)
    due = (torch.sin((1 - alpha) * angle) * start + torch.sin(alpha * angle) * stop) / torch.sin(angle)
    return 2 * torch.arccos(p.sqrt() @ due).item()
