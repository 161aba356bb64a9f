"""Input-space baselines, where the paths of the baseline methods begin: a name with at most one number."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fringe._filters import gaussian_blur as gaussian_blur
from fringe._rng import KeyedGenerator
from fringe.errors import InputError, known_hint
from fringe.linalg import batch_view


@dataclass(frozen=True)
class InputSpace:
    """The space of valid inputs, in the model's own coordinates (after normalisation).

    Attributes:
        low: Smallest valid value: a number, or a tensor that broadcasts to an input (*S). None: each image's own
            smallest entry.
        high: Largest valid value, in the same forms.
        references: Images of the data (R, *S), for the methods that average over it.

    Raises:
        InputError: If only one of ``low`` and ``high`` is given.
    """

    low: float | Tensor | None = None
    high: float | Tensor | None = None
    references: Tensor | None = None

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None):
            raise InputError("give both of low and high, or neither", argument="space")

    def bounds(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the smallest and largest valid values of each image.

        Args:
            inputs: Images (B, *S).

        Returns:
            Two tensors (B or 1, ...) that broadcast to ``inputs``.

        Raises:
            InputError: If the bounds do not broadcast to an input, or ``low`` is not below ``high``.
        """
        if self.low is None or self.high is None:
            flat = inputs.flatten(1)
            return batch_view(flat.amin(1), inputs), batch_view(flat.amax(1), inputs)
        low, high = (torch.as_tensor(v, dtype=inputs.dtype, device=inputs.device) for v in (self.low, self.high))
        for name, value in (("low", low), ("high", high)):
            if not _broadcasts(value, inputs):
                raise InputError(
                    f"got shape {tuple(value.shape)}, expected one that broadcasts to an input "
                    f"{tuple(inputs.shape[1:])}",
                    argument=f"space.{name}",
                )
        if not bool((low < high).all()):
            raise InputError("low must be below high everywhere", argument="space")
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
    """Return name and number of ``"blur"`` or ``"blur:0.2"``; the InputError of another text names ``argument``."""
    known = ", ".join(BASELINES)
    if not isinstance(text, str):
        raise InputError(
            f"got {text!r}, expected a name such as 'zero' or 'blur:0.1'", argument=argument, hint=f"known: {known}"
        )
    name, colon, number = text.partition(":")
    if name not in BASELINES:
        hint = known_hint(name, BASELINES, f"known baselines: {known}", cutoff=0.4)
        raise InputError(f"got {text!r}", argument=argument, hint=hint)
    default = BASELINES[name].number
    if not colon:
        return name, default or 0.0
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if default is None or not 0 < value < float("inf"):
        takes = "takes no number" if default is None else f"takes a positive number, as in '{name}:{default}'"
        raise InputError(f"got {text!r}, but {name} {takes}", argument=argument)
    return name, value


def make_baseline(text: str, inputs: Tensor, space: InputSpace, rng: KeyedGenerator, keys: Sequence[str]) -> Tensor:
    """Return the baseline named by ``text`` of each image: (B, *S). ``keys`` (B) name the images for what is random."""
    name, number = parse_baseline(text)
    kind = BASELINES[name]
    low, high = space.bounds(inputs)
    draw = rng.uniform if kind.uniform else rng.normal

    def noise() -> Tensor:
        return torch.stack([draw(f"baseline {key}", x) for key, x in zip(keys, inputs, strict=True)])

    return kind.make(inputs, low, high, number, noise)


def _broadcasts(value: Tensor, inputs: Tensor) -> bool:
    try:
        return torch.broadcast_shapes(value.shape, inputs.shape[1:]) == inputs.shape[1:]
    except RuntimeError:
        return False
