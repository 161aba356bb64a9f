"""Which of two scores is better: what metrics, tables and figures share."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

#: Which values are better; "none" for a number that describes without a better or worse.
Direction = Literal["higher", "lower", "none"]
#: How a table marks the direction.
ARROW: Mapping[Direction, str] = {"higher": "↑", "lower": "↓", "none": ""}


def best_of(values: Sequence[float | None], direction: Direction) -> float | None:
    """Return the best of the finite ``values``; None if no value is finite, or no direction is better."""
    finite = [v for v in values if v is not None and math.isfinite(v)]
    if direction == "none" or not finite:
        return None
    return max(finite) if direction == "higher" else min(finite)
