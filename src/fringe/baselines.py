"""Input-space baselines: where the paths of the baseline methods begin. They are data: a name, at most one number."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fringe._filters import gaussian_blur
from fringe._rng import KeyedGenerator
from fringe.errors import InputError


@dataclass(frozen=True)
class InputSpace:
    """What is known of the space that inputs live in, in the model's own coordinates (after normalisation).

    ``low`` and ``high`` bound valid inputs: a number, or a tensor that broadcasts to an input (*S); where they are
    None, each image's own smallest and largest entry stand for them. ``references`` (R, *S) are images of the data,
    for the methods that average over it.
    """

    low: float | Tensor | None = None
    high: float | Tensor | None = None
    references: Tensor | None = None

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None):
            raise InputError("space: give both of low and high, or neither")

    def bounds(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The smallest and largest valid values, each (B or 1, ...) and broadcastable to ``inputs`` (B, *S)."""
        if self.low is None or self.high is None:
            flat = inputs.flatten(1)
            shape = (-1, *[1] * (inputs.dim() - 1))
            return flat.amin(1).view(shape), flat.amax(1).view(shape)
        low, high = (torch.as_tensor(v, dtype=inputs.dtype, device=inputs.device) for v in (self.low, self.high))
        for name, value in (("low", low), ("high", high)):
            if not _broadcasts(value, inputs):
                raise InputError(
                    f"space.{name}: got shape {tuple(value.shape)}, expected one that broadcasts to an input "
                    f"{tuple(inputs.shape[1:])}"
                )
        if not bool((low < high).all()):
            raise InputError("space: low must be below high everywhere")
        return low[None], high[None]


def _zero(x: Tensor, low: Tensor, high: Tensor, number: float, noise: Callable[[], Tensor]) -> Tensor:
    """Zero in the model's coordinates: the mean colour of the data for a model with normalised inputs."""
    return torch.zeros_like(x)


def _black(x: Tensor, low: Tensor, high: Tensor, number: float, noise: Callable[[], Tensor]) -> Tensor:
    """The smallest valid value."""
    return low.expand_as(x).clone()


def _white(x: Tensor, low: Tensor, high: Tensor, number: float, noise: Callable[[], Tensor]) -> Tensor:
    """The largest valid value."""
    return high.expand_as(x).clone()


def _mean(x: Tensor, low: Tensor, high: Tensor, number: float, noise: Callable[[], Tensor]) -> Tensor:
    """Each channel's mean over the image (over the whole input where it has no channels and space)."""
    axes = tuple(range(2, x.dim())) or (1,)
    return x.mean(axes, keepdim=True).expand_as(x).clone()


def _blurred(x: Tensor, low: Tensor, high: Tensor, number: float, noise: Callable[[], Tensor]) -> Tensor:
    """The image under a Gaussian blur whose standard deviation is a share (0.1) of its shorter side."""
    return gaussian_blur(x, number * min(x.shape[-2:]), "reflect")


def _noisy(x: Tensor, low: Tensor, high: Tensor, number: float, noise: Callable[[], Tensor]) -> Tensor:
    """The image with Gaussian noise of a share (0.5) of the valid range, clipped to it (Sturmfels et al. 2020)."""
    return torch.minimum(torch.maximum(x + number * (high - low) * noise(), low), high)


def _uniform(x: Tensor, low: Tensor, high: Tensor, number: float, noise: Callable[[], Tensor]) -> Tensor:
    """Uniform random numbers over the valid range (Sturmfels et al. 2020)."""
    return low + (high - low) * noise()


@dataclass(frozen=True)
class _Kind:
    make: Callable[[Tensor, Tensor, Tensor, float, Callable[[], Tensor]], Tensor]
    number: float | None = None
    uniform: bool = False


BASELINES = {
    "zero": _Kind(_zero),
    "black": _Kind(_black),
    "white": _Kind(_white),
    "mean": _Kind(_mean),
    "blur": _Kind(_blurred, 0.1),
    "noise": _Kind(_noisy, 0.5),
    "uniform": _Kind(_uniform, uniform=True),
}


def parse_baseline(text: object, argument: str = "baseline") -> tuple[str, float]:
    """Name and number of ``"blur"`` or ``"blur:0.2"``. Raises InputError naming ``argument``."""
    known = ", ".join(BASELINES)
    if not isinstance(text, str):
        raise InputError(f"{argument}: got {text!r}, expected a name such as 'zero' or 'blur:0.1'; known: {known}")
    name, colon, number = text.partition(":")
    if name not in BASELINES:
        near = difflib.get_close_matches(name, BASELINES, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise InputError(f"{argument}: got {text!r}{hint} Known baselines: {known}")
    default = BASELINES[name].number
    if not colon:
        return name, default or 0.0
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if default is None or not 0 < value < float("inf"):
        takes = "takes no number" if default is None else f"takes a positive number, as in '{name}:{default}'"
        raise InputError(f"{argument}: got {text!r}, but {name} {takes}")
    return name, value


def make_baseline(text: str, inputs: Tensor, space: InputSpace, noise: KeyedGenerator, keys: Sequence[str]) -> Tensor:
    """The baseline named by ``text`` of each image: (B, *S). ``keys`` (B) name the images for what is random."""
    name, number = parse_baseline(text)
    kind = BASELINES[name]
    low, high = space.bounds(inputs)
    draw = noise.uniform if kind.uniform else noise.normal

    def drawn() -> Tensor:
        return torch.stack([draw(f"baseline {key}", x) for key, x in zip(keys, inputs, strict=True)])

    return kind.make(inputs, low, high, number, drawn)


def _broadcasts(value: Tensor, inputs: Tensor) -> bool:
    try:
        return torch.broadcast_shapes(value.shape, inputs.shape[1:]) == inputs.shape[1:]
    except RuntimeError:
        return False
