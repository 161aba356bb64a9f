"""What a comparison knows of one entrant."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fringe.attribution import Attribution
from fringe.classifier import PassCounts
from fringe.metrics import Scores


@dataclass(frozen=True)
class MethodResult:
    """One entrant of a comparison of B images.

    ``scores`` holds (B,) values by metric, NaN where there is no sound map, and ``faults`` (B) says why there is none
    ("" for a sound one): ``diverged``, ``not_finite``, or ``failed`` for all where ``error`` tells what went wrong;
    ``transient`` if that may pass.
    ``passes`` and ``seconds`` are what making the maps took, scoring left out. ``maps`` (B, *S) and, for a method,
    the whole ``attribution`` are there where they were asked for.
    """

    label: str
    control: bool
    settings: Mapping[str, Any]
    scores: Mapping[str, Scores]
    faults: tuple[str, ...]
    passes: PassCounts = field(default_factory=PassCounts)
    seconds: float = 0.0
    error: str | None = None
    transient: bool = False
    maps: Tensor | None = None
    attribution: Attribution | None = None
