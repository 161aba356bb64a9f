"""Small networks, one row each: adding a row runs every law of the linearisation on it. And the dense oracle."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

CLASSES = 5


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


class Reused(nn.Module):
    """One convolution called twice, a value added in place, and a residual connection."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 3, 3, padding=1)
        self.head = nn.Linear(3 * 36, CLASSES)

    def forward(self, x):
        y = F.silu(self.convolution(x))
        y = self.convolution(y)
        y += 1
        y *= 0.5
        return self.head((x + y).flatten(1))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        y = self.norm(x)
        return self.head((x + self.attention(y, y, y, need_weights=False)[0]).mean(1))


class Fused(nn.Module):
    """Scaled dot-product attention by its functional form."""

    def __init__(self):
        super().__init__()
        self.projection = nn.Linear(8, 24)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        q, k, v = self.projection(x).view(x.shape[0], -1, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.head(y.transpose(1, 2).flatten(2).mean(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = nn.LSTM(8, 6, batch_first=True)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x):
        return self.head(self.memory(x)[0][:, -1])


def two_dimensional():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2, bias=False),
        nn.BatchNorm2d(6, affine=False),
        nn.SiLU(inplace=True),
        nn.Conv2d(6, 4, 2, padding="same", dilation=2),
        nn.GELU(),
        nn.Conv2d(4, 4, (3, 1), stride=(1, 2), padding=(1, 0), padding_mode="circular"),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    )


def one_dimensional():
    layers = (
        nn.Conv1d(3, 4, 3, stride=2, dilation=2),
        nn.BatchNorm1d(4),
        nn.Tanh(),
        nn.Flatten(),
        nn.LazyLinear(CLASSES),
    )
    return nn.Sequential(*layers)


def three_dimensional():
    layers = nn.Conv3d(2, 3, 2, padding=1), nn.BatchNorm3d(3), nn.Softplus(), nn.MaxPool3d(2), nn.Flatten()
    return nn.Sequential(*layers, nn.LazyLinear(CLASSES))


def other_layers():
    return nn.Sequential(
        nn.ConvTranspose2d(3, 4, 3, stride=2),
        nn.GroupNorm(2, 4),
        nn.Hardswish(),
        nn.InstanceNorm2d(4, affine=True),
        nn.PReLU(),
        nn.Upsample(scale_factor=0.5, mode="bilinear"),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.LazyLinear(8),
        nn.BatchNorm1d(8),
        nn.ELU(),
        nn.Linear(8, CLASSES),
    )


def weight_normalised():
    convolution = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3))
    return nn.Sequential(convolution, nn.Mish(), nn.Flatten(), nn.LazyLinear(CLASSES))


def transformer():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")
    return nn.Sequential(
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.LazyLinear(CLASSES)
    )


NETWORKS = {
    "convolutions with batch normalisation": (two_dimensional, (3, 8, 8)),
    "conv1d": (one_dimensional, (3, 11)),
    "conv3d": (three_dimensional, (2, 3, 4, 5)),
    "reused module": (Reused, (3, 6, 6)),
    "other layers": (other_layers, (3, 7, 7)),
    "weight norm": (weight_normalised, (3, 6, 6)),
    "attention": (Attention, (4, 8)),
    "fused attention": (Fused, (4, 8)),
    "transformer": (transformer, (4, 8)),
    "LSTM": (Recurrent, (4, 8)),
}


@dataclass
class Problem:
    name: str
    model: nn.Module
    x: torch.Tensor  # (3, *S)
    jacobian: torch.Tensor  # (3, C, *S), dense


def network(name, dtype=torch.float64):
    """A network of the table in evaluation mode, with statistics and affine parameters that are not trivial."""
    build, shape = NETWORKS[name]
    torch.manual_seed(0)
    model = build()
    model(torch.zeros(2, *shape))  # lazy layers take their size
    model = model.to(dtype).eval()
    for seed, (key, tensor) in enumerate(model.state_dict().items()):
        if key.endswith("running_var"):
            tensor.copy_(0.5 + normal(*tensor.shape, seed=seed).square())
        elif key.endswith("running_mean") or tensor.dim() == 1:
            tensor.copy_(tensor + 0.3 * normal(*tensor.shape, seed=seed))
    return model


def problem(name):
    model = network(name)
    x = normal(3, *NETWORKS[name][1], seed=1)
    return Problem(name, model, x, dense_jacobian(model, x))


def dense_jacobian(model, x):
    """One row of the Jacobian by one plain backward pass: (B, *S) -> (B, C, *S)."""
    x = x.detach().requires_grad_(True)
    logits = model(x)
    rows = [torch.autograd.grad(column.sum(), x, retain_graph=True)[0] for column in logits.unbind(1)]
    return torch.stack(rows, 1)


def vjp(jacobian, u):
    return torch.einsum("bc,bc...->b...", u, jacobian)


def jvp(jacobian, v):
    return (jacobian * v[:, None]).flatten(2).sum(2)
