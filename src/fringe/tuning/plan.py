"""What a study is to do."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fringe._checks import is_whole, require, require_local, require_positive, require_whole
from fringe.tuning.space import SearchSpace


@dataclass(frozen=True)
class Plan:
    """The study ``name`` in the file ``journal``: ``trials`` settings of ``space``, the first of them ``start``, drawn
    from ``seed``. Its scores depend on ``identity``. Seconds after which a silent host's trial is given up:
    ``stale_after``."""

    journal: Path
    name: str
    identity: Mapping[str, Any]
    space: SearchSpace
    start: Mapping[str, Any]
    trials: int
    seed: int
    stale_after: float

    def __post_init__(self) -> None:
        require_local("journal", self.journal)
        require(bool(self.name), "name", self.name, "a name for the study")
        require_whole("trials", self.trials)
        require(is_whole(self.seed, least=0), "seed", self.seed, "a whole number not below zero")
        require_positive("stale_after", self.stale_after)
