"""Toy problems: small networks, with the same weights on every machine."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fringe._rng import KeyedGenerator
from fringe.baselines import InputSpace

CPU = torch.device("cpu")

#: Shape (C, H, W) of an image.
SHAPE = (2, 8, 8)
CLASSES = 3
#: Bounds of an entry.
LOW, HIGH = -3.0, 3.0
#: Number of reference images.
REFERENCES = 5


@dataclass(frozen=True)
class ToyProblems:
    """Make networks and inputs of one precision on one device."""

    dtype: torch.dtype = torch.float64
    device: torch.device = CPU

    def build(self, network: Callable[[], nn.Module], shape: tuple[int, ...] = SHAPE) -> nn.Module:
        """Build a network in evaluation mode, without advancing the global random generator.

        The last linear layer is scaled so that logits have mean 0 and standard deviation 2 over random inputs of this
        ``shape``: every class is then predicted for some inputs.
        """
        with torch.random.fork_rng(devices=[]):
            model = network()
        model = model.to(self.device, self.dtype).eval()
        with torch.no_grad():
            for name, value in (*model.named_parameters(), *model.named_buffers()):
                if name.endswith("running_var"):
                    value.copy_(0.5 + KeyedGenerator(0).uniform(name, value))
                elif value.is_floating_point():
                    value.copy_(KeyedGenerator(0).normal(name, value) / value[0].numel() ** 0.5)
            self._standardise(model, shape)
        return model

    def _standardise(self, model: nn.Module, shape: tuple[int, ...]) -> None:
        *_, head = (module for module in model.modules() if isinstance(module, nn.Linear))
        outputs: list[Tensor] = []

        def capture(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
            outputs.append(output)

        with head.register_forward_hook(capture):
            model(self.images(64, shape, "standard"))
        deviation = outputs[0].std(0)
        scale = torch.where(deviation > 0, 0.5 * deviation, 1.0)
        head.weight /= scale[:, None]
        head.bias.copy_((head.bias - outputs[0].mean(0)) / scale)

    def images(self, count: int, shape: tuple[int, ...] = SHAPE, key: str = "images") -> Tensor:
        """Draw inputs (count, *shape) with entries uniform on [-2, 2)."""
        like = torch.empty(count, *shape, dtype=self.dtype, device=self.device)
        return 4.0 * KeyedGenerator(0).uniform(key, like) - 2.0

    def space(self, shape: tuple[int, ...] = SHAPE) -> InputSpace:
        """Return the bounds of an entry, with a few reference images."""
        return InputSpace(LOW, HIGH, self.images(REFERENCES, shape, "references"))


def smooth_cnn() -> nn.Module:
    """Smooth network with layers that behave differently in training mode."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Softplus(), nn.AvgPool2d(4), nn.Dropout(0.3),
        nn.Flatten(), nn.Linear(16, CLASSES),
    )  # fmt: skip


def relu_cnn() -> nn.Module:
    """Piecewise affine network with in-place activations."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, CLASSES)
    )


def saturated() -> nn.Module:
    """Network whose predictions are exactly one-hot in float32."""
    return nn.Sequential(smooth_cnn(), Times(1e3))


def affine() -> nn.Module:
    """Logits ``W x + b``."""
    return nn.Sequential(nn.Flatten(), nn.Linear(128, CLASSES))


def constant() -> nn.Module:
    """The same logits for every input."""
    return nn.Sequential(Times(0.0), nn.Flatten(), nn.Linear(128, CLASSES))


def blocks_cnn() -> nn.Module:
    """Smooth network that depends only on three blocks of the first channel."""
    return nn.Sequential(
        Blocks(), nn.Conv2d(3, 3, 3, padding=1, groups=3), nn.Softplus(), nn.AvgPool2d(3), nn.Flatten(),
        nn.Linear(3, CLASSES),
    )  # fmt: skip


def mlp() -> nn.Module:
    """Smooth network for tabular inputs (B, 6)."""
    return nn.Sequential(nn.Linear(6, 5), nn.Softplus(), nn.Linear(5, CLASSES))


class Times(nn.Module):
    """Multiply the input by a number."""

    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


class Blocks(nn.Module):
    """Select three blocks of the first channel of images.

    Their places are such that a shifted, mirrored or transposed map misses them."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x[:, 0, 1:4, 4:7], x[:, 0, 4:7, :3], x[:, 0, 4:7, 4:7]], 1)


class CountingModel(nn.Module):
    """Count the ``images`` that pass through a ``model``, and the ``largest`` batch."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model, self.images, self.largest = model, 0, 0
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        self.images += x.shape[0]
        self.largest = max(self.largest, x.shape[0])
        return self.model(x)
