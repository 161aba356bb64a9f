"""Input-space baselines, where the paths of the baseline methods begin: a name with at most one number."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fringe._numbers.filters import gaussian_blur as gaussian_blur
from fringe._numbers.rng import KeyedGenerator
from fringe._strings.names import Reference
from fringe.errors import InputError, did_you_mean
from fringe.linalg import batch_view


@dataclass(frozen=True)
class InputSpace:
    """The space of valid inputs, in the model's own coordinates (after normalisation).

    Attributes:
        low: Smallest valid value: a number, or a tensor that broadcasts to an input (*S). None: each image's own
            smallest entry.
        high: Largest valid value, in the same forms.
        references: Images of the data (R, *S), for methods that average over them. Arrays become tensors.
        names: Names of the features of a table, or of the channels of other inputs, for messages.

    Raises:
        InputError: If only one of ``low`` and ``high`` is given, or one of them or the references are no numbers.
    """

    low: float | Tensor | None = None
    high: float | Tensor | None = None
    references: Tensor | None = None
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None):
            raise InputError("give both of low and high, or neither", argument="space")
        for name in ("low", "high", "references"):
            value: Any = getattr(self, name)
            if isinstance(value, (int, float, Tensor, tuple, Mapping, type(None))):
                continue
            try:  # an array, or a list of numbers
                object.__setattr__(self, name, torch.as_tensor(value))
            except (TypeError, ValueError, RuntimeError) as error:
                message = f"got {type(value).__name__}, expected numbers in a tensor or an array ({error})"
                raise InputError(message, argument=f"space.{name}") from error

    def narrowed(self, axis: int, size: int, length: int) -> "InputSpace":
        """Return the space of the first ``length`` of ``size`` samples along an axis, counted from the end."""

        def narrow(value: Any) -> Any:
            fits = isinstance(value, Tensor) and value.dim() >= -axis and value.shape[axis] == size
            return value.narrow(axis, 0, length) if fits else value

        return InputSpace(*map(narrow, (self.low, self.high, self.references)), names=self.names)

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


#: The space of inputs of which nothing is known.
ANY_INPUT = InputSpace()

#: Names of baselines, each with the default of its number; None: it takes none.
BASELINES: Mapping[str, float | None] = {
    "zero": None, "black": None, "white": None, "mean": None, "blur": 0.1, "noise": 0.5, "uniform": None,
}  # fmt: skip


def parse_baseline(text: object, argument: str = "baseline") -> tuple[str, float]:
    """Return name and number of ``"blur"`` or ``"blur:0.2"``; the InputError of another text names ``argument``."""
    known = ", ".join(BASELINES)
    if not isinstance(text, str):
        raise InputError(
            f"got {text!r}, expected a name such as 'zero' or 'blur:0.1'", argument=argument, hint=f"known: {known}"
        )
    reference = Reference.parse(text)
    name = reference.head
    if name not in BASELINES:
        hint = did_you_mean(name, BASELINES, f"known baselines: {known}", cutoff=0.4)
        raise InputError(f"got {text!r}", argument=argument, hint=hint)
    default = BASELINES[name]
    if reference.rest is None:
        return name, default or 0.0
    try:
        value = float(reference.rest)
    except ValueError:
        value = -1.0
    if default is None or not 0 < value < float("inf"):
        takes = "takes no number" if default is None else f"takes a positive number, as in '{name}:{default}'"
        raise InputError(f"got {text!r}, but {name} {takes}", argument=argument)
    return name, value


def make_baseline(text: str, inputs: Tensor, space: InputSpace, rng: KeyedGenerator, keys: Sequence[str]) -> Tensor:
    """Return the baseline named by ``text`` of each image: (B, *S). ``keys`` (B) name the images for what is random."""
    name, number = parse_baseline(text)
    low, high = space.bounds(inputs)
    if name == "zero":  # in the model's coordinates: the mean colour of the data for a model with normalised inputs
        return torch.zeros_like(inputs)
    if name in ("black", "white"):
        return (low if name == "black" else high).expand_as(inputs).clone()
    if name == "mean":  # of each channel, or of the input if it has no channels and space
        return inputs.mean(tuple(range(2, inputs.dim())) or (1,), keepdim=True).expand_as(inputs).clone()
    if name == "blur":  # the number is a share of the shorter side
        return gaussian_blur(inputs, number * min(inputs.shape[2:], default=1))
    draw = rng.uniform if name == "uniform" else rng.normal  # both as in Sturmfels et al. 2020
    noise = torch.stack([draw(f"baseline {key}", x) for key, x in zip(keys, inputs, strict=True)])
    if name == "uniform":
        return low + (high - low) * noise
    return torch.minimum(torch.maximum(inputs + number * (high - low) * noise, low), high)


def _broadcasts(value: Tensor, inputs: Tensor) -> bool:
    try:
        return torch.broadcast_shapes(value.shape, inputs.shape[1:]) == inputs.shape[1:]
    except RuntimeError:
        return False
