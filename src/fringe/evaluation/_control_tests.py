"""What the score of a method is worth: whether it is better than that of every control."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fringe.evaluation._statistics import Difference, holm, paired_all
from fringe.metrics import Aggregate, Direction

#: Marks scores of methods that were not shown to be better than those of every control.
NOT_BETTER = "‡"
#: Level of the tests.
BELOW = 0.05


@dataclass(frozen=True)
class ControlTest:
    """A method under one metric against the ``control`` with the greatest p, of several the one with the best score.
    ``difference`` is the method less the control, image by image. ``p`` is 1 if the control is ahead. The greatest p
    need not be adjusted for the number of controls (intersection-union test, Berger 1982); ``adjusted`` is adjusted for
    the number of methods and metrics."""

    control: str
    difference: Difference
    p: float
    adjusted: float = math.nan

    @property
    def better(self) -> bool:
        """Whether the method is better than every control."""
        return self.adjusted < BELOW


def compare_with_controls(
    scores: Mapping[str, NDArray[np.float64]],
    controls: Collection[str],
    direction: Direction,
    summary: Aggregate,
    seed: int,
    *,
    clusters: Sequence[str] | None = None,
    networks: Sequence[str] | None = None,
) -> dict[str, ControlTest]:
    """Test each method against every control under one metric.

    Args:
        scores: Scores (n,) by method and control, NaN where there is none.
        controls: Which of them are controls.
        direction: Which scores are better.
        summary: What the differences show.
        seed: Keys the random signs of the tests.
        clusters: Names (n,) of groups of images that share pixels.
        networks: Names (n,) of the networks that were explained.

    Returns:
        The tests by method, not yet adjusted. A method that has no image in common with any control has none, and there
        is none under a metric without a direction.
    """
    if direction == "none":
        return {}
    sign = 1 if direction == "higher" else -1
    pairs: list[tuple[str, str]] = []
    for method in [label for label in scores if label not in controls]:
        known = {control: values for control in controls if (values := _finite(scores[method] - scores[control])).size}
        ahead = {control: sign * float(np.mean(values)) for control, values in known.items()}
        behind = [control for control in ahead if ahead[control] <= 0]  # then no other control decides
        pairs += [(method, control) for control in ([min(behind, key=ahead.__getitem__)] if behind else ahead)]
    differences = paired_all(
        [(scores[method], scores[control], summary) for method, control in pairs],
        seed,
        clusters=clusters,
        networks=networks,
    )
    tests: dict[str, ControlTest] = {}
    for (method, control), difference in zip(pairs, differences, strict=True):
        is_ahead, other = sign * difference.value > 0, tests.get(method)
        one = ControlTest(control, difference, difference.p if is_ahead else 1.0)
        if other is None or (one.p, -sign * difference.value) > (other.p, -sign * other.difference.value):
            tests[method] = one
    return tests


def _finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values[np.isfinite(values)]


def adjust_tests(tests: Mapping[tuple[str, str], ControlTest]) -> dict[tuple[str, str], ControlTest]:
    """Adjust the p of tests for their number (:func:`holm`)."""
    adjusted = holm([test.p for test in tests.values()])
    return {key: replace(test, adjusted=p) for (key, test), p in zip(tests.items(), adjusted, strict=True)}
