"""Near ties: the paper's rule for what stands in bold beside the best."""

import math
from collections.abc import Mapping

from fringe._checks import require
from fringe.experiments.intervals import Estimate
from fringe.metrics import Direction


def near_ties(estimates: Mapping[str, Estimate], direction: Direction) -> tuple[str | None, set[str]]:
    """The label of the best estimate, and the others whose interval overlaps its own.

    A description, not a test: intervals of two methods may overlap where their paired difference is sure (see
    :func:`fringe.experiments.paired.paired`). The interval of a mean is the bootstrap's; of a median it is median +-
    half-IQR, as in the paper's table of max sensitivity (appendices Additional Quantitative Results and Robustness
    under small input perturbations). The first of equals is the best. None and nobody where no way is better or nobody
    has a score; an estimate without an interval ties with nobody. Raises InputError for means among medians.
    """
    kinds = sorted({found.summary for found in estimates.values()})
    require(len(kinds) < 2, "estimates", " and ".join(kinds), "one summary for all")
    known = {label: found for label, found in estimates.items() if math.isfinite(found.value)}
    if direction == "none" or not known:
        return None, set()
    choose = max if direction == "higher" else min
    best = choose(known, key=lambda label: known[label].value)
    low, high = _span(known[best])
    spans = {label: _span(found) for label, found in known.items() if label != best}
    return best, {label for label, span in spans.items() if span[0] <= high and span[1] >= low}


def _span(found: Estimate) -> tuple[float, float]:
    if found.summary == "median":
        return found.median - found.half_iqr, found.median + found.half_iqr
    return found.low, found.high
