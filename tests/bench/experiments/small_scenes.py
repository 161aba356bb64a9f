"""Scenes for tests: networks that are made in a moment, with gates that hold and fail."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from fringe.bench.scenes import Example, Gate
from fringe.bench.scenes._designed import ColourCounter
from fringe.models import state_digest
from fringe.settings import Doc


@dataclass(frozen=True)
class TwoNetworks(ColourCounter):
    """Two networks, of which the second has the larger weight; two examples make a cluster."""

    name: ClassVar[str] = "two_networks"
    title: ClassVar[str] = "Two networks"

    most: Annotated[float, Doc("largest weight that is let through")] = 0.6

    @property
    def networks(self):
        return 2

    def network(self, number, model, images):
        loaded = super().network(number, model, images)
        loaded.module.head.weight.mul_(1 + number)
        return replace(loaded, digest=state_digest(loaded.module))  # two networks of one digest share their scores

    def examples(self, networks, images, count, seed):
        assert len(networks) == 2
        return tuple(Example(f"e{i}", 1, f"c{i // 2}", (), {"seed": seed, "number": i}) for i in range(count))

    def gates(self, network, *given):
        weight = network.module.head.weight
        return (
            Gate("classes", float(len(weight)), least=2.0),
            Gate("largest weight", float(weight.max()), most=self.most),
        )
