"""Networks that are explained in milliseconds, with weights that are the same on every machine."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fringe._rng import KeyedGenerator
from fringe.baselines import InputSpace

CPU = torch.device("cpu")

SHAPE = (2, 8, 8)
"""Of an image."""

CLASSES = 3
LOW, HIGH = -3.0, 3.0
"""Valid range of an entry."""

REFERENCES = 5


@dataclass(frozen=True)
class Laboratory:
    """Makes networks and inputs of one precision on one device."""

    dtype: torch.dtype = torch.float64
    device: torch.device = CPU

    def build(self, network: Callable[[], nn.Module], shape: tuple[int, ...] = SHAPE) -> nn.Module:
        """The network in evaluation mode, with logits of mean 0 and standard deviation 2 over random inputs of this
        ``shape``, so that every class is predicted somewhere. New layers draw from the global generator, which is given
        back."""
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
        given: list[Tensor] = []

        def keep(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
            given.append(output)

        with head.register_forward_hook(keep):
            model(self.images(64, shape, "standard"))
        spread = torch.where(given[0].std(0) > 0, 0.5 * given[0].std(0), 1.0)
        head.weight /= spread[:, None]
        head.bias.copy_((head.bias - given[0].mean(0)) / spread)

    def images(self, count: int, shape: tuple[int, ...] = SHAPE, key: str = "images") -> Tensor:
        """Inputs (count, *shape), entries uniform on [-2, 2)."""
        like = torch.empty(count, *shape, dtype=self.dtype, device=self.device)
        return 4.0 * KeyedGenerator(0).uniform(key, like) - 2.0

    def space(self, shape: tuple[int, ...] = SHAPE) -> InputSpace:
        """The valid range and a few references."""
        return InputSpace(LOW, HIGH, self.images(REFERENCES, shape, "references"))


def curved() -> nn.Module:
    """Smooth everywhere, with the layers that behave otherwise while training."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Softplus(), nn.AvgPool2d(4), nn.Dropout(0.3),
        nn.Flatten(), nn.Linear(16, CLASSES),
    )  # fmt: skip


def kinked() -> nn.Module:
    """Piecewise affine, and it writes into its own activations."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, CLASSES)
    )


def saturated() -> nn.Module:
    """Predictions that are one-hot to the last bit of float32."""
    return nn.Sequential(curved(), Times(1e3))


def affine() -> nn.Module:
    """Logits ``W x + b``."""
    return nn.Sequential(nn.Flatten(), nn.Linear(128, CLASSES))


def constant() -> nn.Module:
    """The same logits for every input."""
    return nn.Sequential(Times(0.0), nn.Flatten(), nn.Linear(128, CLASSES))


def half_blind() -> nn.Module:
    """Smooth, and reads nothing of the second channel."""
    return nn.Sequential(
        FirstChannel(), nn.Conv2d(1, 4, 3, padding=1), nn.Softplus(), nn.AvgPool2d(4), nn.Flatten(),
        nn.Linear(16, CLASSES),
    )  # fmt: skip


def table() -> nn.Module:
    """Smooth, of rows (B, 6)."""
    return nn.Sequential(nn.Linear(6, 5), nn.Softplus(), nn.Linear(5, CLASSES))


class Times(nn.Module):
    """Its input times a number."""

    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


class FirstChannel(nn.Module):
    """The first channel of images."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :1]


class Spy(nn.Module):
    """Counts the images that go through ``model``, and the most at once."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model, self.images, self.largest = model, 0, 0
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        self.images += x.shape[0]
        self.largest = max(self.largest, x.shape[0])
        return self.model(x)
