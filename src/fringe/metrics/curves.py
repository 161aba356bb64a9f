"""What is read off a curve of N + 1 responses: its area, its envelope, and itself in other units. Rows are images."""

from typing import Literal

from torch import Tensor

Mode = Literal["insertion", "deletion"]
"""Pixels of the input are put into the reference, or pixels of the reference into the input."""

Scale = Literal["ends", "guarded", "extremes"]
"""How a probability becomes a response on [0, 1]: see :func:`scaled`."""

EPSILON = 1e-8
"""Smallest gap between the probabilities at the input and at the reference that ``guarded`` divides by."""


def area(curve: Tensor) -> Tensor:
    """Trapezoid rule over the share of changed pixels, 0 to 1: (B, N + 1) -> (B,)."""
    return (0.5 * (curve[:, :-1] + curve[:, 1:])).mean(1)


def envelope(curve: Tensor, mode: Mode) -> Tensor:
    """The curve made monotone: the largest value so far (insertion), or the smallest (deletion)."""
    return (curve.cummax(1) if mode == "insertion" else curve.cummin(1)).values


def scaled(curve: Tensor, p_input: Tensor, p_reference: Tensor, scale: Scale) -> Tensor:
    """Probabilities ``c`` (B, N + 1) as responses on [0, 1], from those at the input and the reference (B,).

    ``ends``: ``clip((c - p_ref) / (p_in - p_ref))``, 0 at the reference and 1 at the input, whichever is the larger;
    ``guarded``: the gap is at least epsilon, so that the response to a reference of more confidence than the input is
    1 above p_ref and 0 below; ``extremes``: :func:`stretched`. A quotient of zeros is NaN.
    """
    if scale == "extremes":
        return stretched(curve)
    gap = p_input - p_reference
    gap = gap.clamp_min(EPSILON) if scale == "guarded" else gap
    return ((curve - p_reference[:, None]) / gap[:, None]).clamp(0.0, 1.0)


def stretched(curve: Tensor) -> Tensor:
    """The curve between its own extremes, ``(c - min c) / (max c - min c)``; NaN where it is flat."""
    low, high = curve.amin(1, keepdim=True), curve.amax(1, keepdim=True)
    return (curve - low) / (high - low)
