"""End point KL: how far from the reference did the path end?"""

from dataclasses import dataclass
from typing import ClassVar

from fringe.metrics.base import Direction, EvaluatedMaps, Metric, Scores
from fringe.metrics.reported import reported


@dataclass(frozen=True)
class EndpointKL(Metric):
    """``KL(p(x_end) || q)`` to the reference distribution q, the uniform one unless the method says otherwise.

    Read from the attribution's diagnostics; NaN and flagged ``undefined`` for a method that reports none.
    """

    name: ClassVar[str] = "endpoint_kl"
    title: ClassVar[str] = "End point KL"
    direction: ClassVar[Direction] = "lower"
    unit: ClassVar[str] = "nats"
    space: ClassVar[str] = "the prediction at the end of the method's path"
    source: ClassVar[str] = "FRInGe, appendix Effect of the Euclidean Trust-Region Cap"

    def score(self, explained: EvaluatedMaps) -> Scores:
        return reported(explained, self.name)
