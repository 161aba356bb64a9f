"""What stands under the maps of a grid: the two scores that matter most, in few letters."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fringe.metrics import ARROW, Direction, best_of
from fringe.plots._grid import Word


@dataclass(frozen=True)
class Gauge:
    """A metric that may stand under a map: its ``label`` in a table, its registry ``name``, its ``title``."""

    label: str
    name: str
    title: str
    direction: Direction

    @property
    def short(self) -> str:
        """``MI`` for mas_insertion, ``Spa`` for sparseness."""
        words = self.name.split("_")
        return "".join(word[0] for word in words).upper() if len(words) > 1 else self.name[:3].capitalize()

    def words(self, values: Sequence[float]) -> list[Word]:
        """A word a method, for one image; the best is marked."""
        best = best_of(values, self.direction)
        return [Word(f"{self.short} {short_number(value)}", value == best) for value in values]


def telemetry(gauges: Sequence[Gauge]) -> list[Gauge]:
    """MAS insertion and deletion where both are there, else the first two, those with a direction before others."""
    aligned = [gauge for gauge in gauges if gauge.name in ("mas_insertion", "mas_deletion")]
    return aligned if len(aligned) == 2 else sorted(gauges, key=lambda gauge: gauge.direction == "none")[:2]


def caption(gauges: Sequence[Gauge]) -> str:
    """What the short names stand for."""
    legend = [f"{gauge.short} {gauge.title} {ARROW[gauge.direction]}".strip() for gauge in gauges]
    return f"{' · '.join(legend)}; the best of an image is bold"


def short_number(value: float) -> str:
    """Two decimals without a leading zero: ``.43``, ``-.07``, ``12``."""
    if not math.isfinite(value):
        return "–"
    text = f"{value:.2f}" if abs(value) < 10 else f"{value:.0f}" if abs(value) < 1e4 else f"{value:.0e}"
    return text.replace("0.", ".", 1) if abs(value) < 1 else text
