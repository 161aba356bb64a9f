"""What a metric puts in the place of a pixel: a blurred image, zeros, or the mean."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from fringe._checks import is_whole, require, require_choice, require_positive
from fringe._filters import Padding, blur, box_kernel, gaussian_kernel, round_up_to_odd
from fringe.baselines import make_baseline
from fringe.errors import InputError
from fringe.metrics.base import EvaluationContext

ReferenceKind = Literal["box", "gaussian", "folded", "zeros", "mean"]
"""An average over a square, a Gaussian cut to its window, a Gaussian whose tails are folded back into its window
(RISE), zeros in the model's coordinates, or each channel's mean."""

KINDS: tuple[ReferenceKind, ...] = get_args(ReferenceKind)
PADDINGS: tuple[Padding, ...] = get_args(Padding)


@dataclass(frozen=True)
class Reference:
    """How references are made. ``size`` (odd) and ``sigma`` are in pixels, ``padding`` is what a kernel sees beyond the
    edge. Without a size, a box or folded kernel is a tenth of the shorter side (:func:`box_size`), and a Gaussian
    reaches 4 sigma."""

    kind: ReferenceKind
    size: int | None
    sigma: float
    padding: Padding

    def __post_init__(self) -> None:
        require_choice("reference", self.kind, KINDS)
        odd = self.size is None or (is_whole(self.size) and self.size % 2 == 1)
        require(odd, "size", self.size, "an odd number of pixels, or none")
        require_positive("sigma", self.sigma)
        require_choice("padding", self.padding, PADDINGS)

    def on(self, inputs: Tensor) -> "Reference":
        """The same reference of ``inputs`` (B, *S), written in one way: what has no meaning here is left out."""
        if self.kind in ("zeros", "mean"):
            return Reference(self.kind, None, 1.0, "zeros")
        if inputs.dim() != 4:
            raise InputError(
                f"reference: {self.kind!r} blurs images (B, C, H, W), but the inputs have shape "
                f"{tuple(inputs.shape)}; use reference='zeros' or 'mean'"
            )
        size = box_size(*inputs.shape[-2:]) if self.size is None and self.kind != "gaussian" else self.size
        return replace(self, size=size, sigma=1.0 if self.kind == "box" else self.sigma)

    def make(self, subject: EvaluationContext) -> Tensor:
        """The reference (B, *S) of each image."""
        problem, plain = subject.problem, {"zeros": "zero", "mean": "mean"}
        if self.kind in plain:
            return make_baseline(plain[self.kind], problem.inputs, problem.domain, problem.rng, problem.keys)
        return blur(problem.inputs, self._taps(), self.padding)

    def _taps(self) -> Tensor:
        if self.kind == "gaussian":
            return gaussian_kernel(self.sigma, self.size)
        assert self.size is not None
        return box_kernel(self.size) if self.kind == "box" else folded_gaussian_taps(self.sigma, self.size)


def box_size(height: int, width: int) -> int:
    """``max(3, odd(floor(min(H, W) / 10)))``, rounded up to odd: 23 at 224 pixels, 29 at 299 (the FRInGe paper)."""
    return round_up_to_odd(max(3, min(height, width) // 10))


def folded_gaussian_taps(sigma: float, size: int) -> Tensor:
    """Weights (size,) of a Gaussian of ``sigma`` pixels whose tails are mirrored back at the window's edges, float64.

    The kernel of RISE's and MAS's code, made there by filtering a unit impulse inside the window: at 11 pixels it is
    within 7 % (sigma 5) or 0.01 % (sigma 11) of a box.
    """
    whole = gaussian_kernel(sigma)
    radius = whole.numel() // 2
    places = torch.arange(-radius, radius + 1).add(size // 2).remainder(2 * size)
    return torch.zeros(size, dtype=whole.dtype).index_add_(0, torch.minimum(places, 2 * size - 1 - places), whole)


def reference_of(subject: EvaluationContext, reference: Reference) -> Tensor:
    """The references (B, *S) of the subject's images, made once for all methods."""
    return subject.once(("reference", reference), lambda: reference.make(subject))
