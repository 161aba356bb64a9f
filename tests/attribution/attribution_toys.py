"""Networks whose scores are known well enough to test methods by, in float64, and paths seen segment by segment."""

from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import fringe
import toys
from fringe.attribution import integrate_steps
from fringe.paths import Problem
from toys import normal


class Smooth(nn.Module):
    """A small convolutional softplus classifier of (N, 2, 8, 8) images (n = 128): twice differentiable everywhere."""

    def __init__(self, classes: int = 5, seed: int = 0, sharpness: float = 1.0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.conv = nn.Conv2d(2, 6, 3, padding=1).double()
        self.norm = nn.BatchNorm2d(6).double()
        self.head = nn.Linear(6 * 16, classes).double()
        for parameter in self.parameters():
            parameter.data = 0.4 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        self.norm.running_mean.normal_(generator=generator)
        self.norm.running_var.uniform_(0.5, 2.0, generator=generator)
        self.sharpness = sharpness
        self.eval().requires_grad_(False)

    def forward(self, x):
        hidden = nn.functional.softplus(self.norm(self.conv(x)))
        return self.sharpness * self.head(nn.functional.avg_pool2d(hidden, 2).flatten(1))


def inputs(count: int, seed: int = 1, shape: tuple[int, ...] = (2, 8, 8)) -> torch.Tensor:
    return normal(count, *shape, seed=seed)


class Linear(nn.Module):
    """``logits = x W^T``; its gradient is the same everywhere."""

    def __init__(self, classes: int = 4, seed: int = 0):
        super().__init__()
        self.weight = _frozen(0.1 * normal(classes, 128, seed=seed))
        self.eval()

    def forward(self, x):
        return x.flatten(1) @ self.weight.T


SHAPE = (2, 6, 6)
ENTRIES = 72
CLASSES = 4


def images(count: int, seed: int = 1, shape: tuple[int, ...] = SHAPE) -> Tensor:
    """Standard normal images (count, *shape)."""
    return normal(count, *shape, seed=seed)


class Affine(nn.Module):
    """``F_c(x) = <w_c, x> + b_c``: its gradient is the same everywhere, and every rule of quadrature exact."""

    def __init__(self, seed: int = 0):
        super().__init__()
        self.weight, self.bias = (
            _frozen(normal(CLASSES, *SHAPE, seed=seed) / 4),
            _frozen(normal(CLASSES, seed=seed + 1)),
        )
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("nchw,kchw->nk", x, self.weight) + self.bias


class Quadratic(toys.Quadratic):
    """The quadratic scores of :mod:`toys`, for these images and classes."""

    def __init__(self, seed: int = 0):
        super().__init__(ENTRIES, CLASSES, seed)


class SoftplusMLP(nn.Module):
    """Two layers with a softplus between them: infinitely differentiable, and not a polynomial."""

    def __init__(self, seed: int = 0, hidden: int = 24):
        super().__init__()
        self.first, self.bias = _frozen(normal(hidden, ENTRIES, seed=seed) / 4), _frozen(normal(hidden, seed=seed + 1))
        self.second = _frozen(normal(CLASSES, hidden, seed=seed + 2))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.softplus(x.flatten(1) @ self.first.T + self.bias) @ self.second.T


class ReluCNN(nn.Module):
    """Two convolutions with ReLU and a linear head: piecewise affine, kinks as real networks have them."""

    def __init__(self, seed: int = 0, channels: int = 6):
        super().__init__()
        self.first = _frozen(normal(channels, SHAPE[0], 3, 3, seed=seed) / 3)
        self.second = _frozen(normal(channels, channels, 3, 3, seed=seed + 1) / 5)
        self.bias = _frozen(normal(2, channels, seed=seed + 2) / 2)
        self.head = _frozen(normal(CLASSES, channels * 9, seed=seed + 3))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.conv2d(x, self.first, self.bias[0], padding=1).relu()
        hidden = nn.functional.conv2d(hidden, self.second, self.bias[1], stride=2, padding=1).relu()
        return hidden.flatten(1) @ self.head.T


def _frozen(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values, requires_grad=False)


def filled(model):
    """A network in float64 whose parameters are the same on every machine."""
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.copy_(0.5 * normal(*parameter.shape, seed=i))
    return model.double().eval()


class ConvNet(nn.Module):
    """Convolutions at 8 x 8, then at 4 x 4, then one on a single pixel, as in squeeze-and-excitation."""

    def __init__(self, inplace=False):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(inplace=inplace), nn.MaxPool2d(2))
        self.second = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=inplace))
        self.pool = nn.AvgPool2d(2)
        self.gate = nn.Conv2d(4, 4, 1)
        self.head = nn.Linear(16, 3)

    def rest(self, z):
        return self.head(self.pool(z * self.gate(z.mean((2, 3), keepdim=True)).sigmoid()).flatten(1))

    def forward(self, x, scale=None):
        logits = self.rest(self.second(self.first(x)))
        return logits if scale is None else logits * scale[:, None]


def hooks_of(module):
    """Every hook of a module itself."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return [hook for kind in kinds for hook in getattr(module, kind).values()]


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
    """Raises from its ``last``-th call on, if there is one."""

    def __init__(self, model: nn.Module, last: int):
        super().__init__()
        self.model, self.last, self.calls = model, last, 0
        self.eval()

    def forward(self, x):
        self.calls += 1
        logits = self.model(x)
        if 0 < self.last <= self.calls:
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
    """Every step of one run, with its ends towards the baseline (``start``) and the input (``stop``), and the gradient
    where it departs; and the result."""
    walked, advance = [], path.advance

    def spy(problem, at, origin, direction):
        found = advance(problem, at, origin, direction)
        ends = SimpleNamespace(x=origin, gradient=direction), SimpleNamespace(x=found)
        start, stop = ends if path.begins == "baseline" else ends[::-1]
        walked.append(SimpleNamespace(start=start, stop=stop))
        return found

    object.__setattr__(path, "advance", spy)
    with problem.model.session(problem.inputs.device):
        return walked, integrate_steps(path, problem, "sum")


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


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the tensors made inside it that are alive at once; ``peak``: the most."""

    def __init__(self):
        super().__init__()
        self._storages, self.peak = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().nbytes() >= 2**10:
                storage = tensor.untyped_storage()
                self._storages[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
                self._storages = {k: v for k, v in self._storages.items() if not v[0].expired()}
                self.peak = max(self.peak, sum(size for _, size in self._storages.values()))
        return out


class SmallNet(nn.Module):
    """A smooth network for images (2, 8, 9) and five classes, in float64."""

    def __init__(self, scale=1.0):
        super().__init__()
        torch.manual_seed(4)
        self.conv, self.head = nn.Conv2d(2, 6, 3, padding=1), nn.Linear(6 * 4 * 4, 5)
        self.scale = scale
        self.double().eval().requires_grad_(False)

    def forward(self, x):
        return self.scale * self.head(functional.avg_pool2d(functional.softplus(self.conv(x)), 2).flatten(1))


def small_images(n=2):
    return torch.randn(n, 2, 8, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
