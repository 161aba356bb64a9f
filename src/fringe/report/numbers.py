"""Numbers as a table prints them: as many decimals as an interval needs, powers of ten for the very large and small."""

import math
from collections.abc import Sequence

from fringe.experiments import Estimate

FEWEST, MOST = 3, 6
"""Decimals; the paper prints three."""
LARGE = 1000.0
"""From here on a number is printed as a power of ten, as in the paper's tables."""

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def spread(found: Estimate) -> float:
    """What stands behind the ±: half the width of a mean's interval, or the half-IQR of a median; NaN where there is
    none."""
    return found.half_iqr if found.summary == "median" else (found.high - found.low) / 2


def decimals_for(estimates: Sequence[Estimate]) -> int:
    """The fewest decimals, of three to six, with which no spread of ``estimates`` is printed as zero, but for those
    that are zero or belong to a number printed as a power of ten."""
    widths = [spread(e) for e in estimates if math.isfinite(e.value) and abs(e.value) < LARGE]
    smallest = min((w for w in widths if math.isfinite(w) and w > 0), default=1.0)
    return next((d for d in range(FEWEST, MOST) if round(smallest, d) > 0), MOST)


def scientific(value: float, decimals: int) -> bool:
    """Whether a number is printed as a power of ten: a large one, or one that would be printed as zero and is not."""
    return abs(value) >= LARGE or (value != 0 and round(value, decimals) == 0)


def power(value: float) -> tuple[str, int]:
    """Mantissa with two decimals and exponent: ``("3.81", 3)`` for 3814.2."""
    mantissa, exponent = f"{value:.2e}".split("e")
    return mantissa, int(exponent)


def plain(value: float, decimals: int, *, as_power: bool | None = None) -> str:
    """``0.597``, ``3.81×10³``, or a dash for what is no number; ``as_power`` overrules the number's own size."""
    if not math.isfinite(value):
        return "—"
    if (scientific(value, decimals) if as_power is None else as_power) and value != 0:
        mantissa, exponent = power(value)
        text = f"{mantissa}×10{str(exponent).translate(_RAISED)}"
    else:
        text = f"{value:.{decimals}f}"
    return text.replace("-", "−")


def with_spread(found: Estimate, decimals: int) -> str:
    """``0.597 ± 0.015``; without the second half where there is no interval."""
    width, as_power = spread(found), scientific(found.value, decimals)
    text = plain(found.value, decimals)
    if not math.isfinite(found.value) or not math.isfinite(width):
        return text
    return f"{text} ± {plain(width, decimals, as_power=as_power)}"
