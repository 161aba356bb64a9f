"""Paths through input space, as a stream of segments."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from torch import Tensor

from fringe.classifier import Classifier


@dataclass(frozen=True)
class Query:
    """What is to be explained: ``inputs`` (B, *S), their ``logits`` (B, C), and the classes ``target`` (B,).

    Where images were left out of a call, ``rows`` are the places of these B among its ``total``; none: all are here.
    """

    inputs: Tensor
    logits: Tensor
    target: Tensor
    rows: list[int] | None = None
    total: int | None = None


@dataclass(frozen=True)
class Point:
    """Points of L paths: ``x`` (L, *S), the explained ``score`` there (L,), and its ``gradient`` (L, *S)."""

    x: Tensor
    score: Tensor
    gradient: Tensor


@dataclass(frozen=True)
class Segment:
    """One straight piece of each of L paths, oriented baseline -> input: from ``start`` to ``stop``.

    ``index`` names the image of the query that each row belongs to, ``step`` the step that the piece is, counted from
    the end where the path was begun. ``stats`` holds what the path measured there, one (L,) tensor a name.
    """

    index: list[int]
    step: list[int]
    start: Point
    stop: Point
    stats: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])


class Outcome(IntEnum):
    """How the path of one image ended."""

    COMPLETE = 0
    AT_REFERENCE = 1
    DIVERGED = 2


class Walk(ABC):
    """One run of a path over a query. ``planned`` steps an image are known before it begins; ``outcomes`` and ``taken``
    (steps) are filled while the segments stream by. No list of points is ever held: memory does not grow with steps."""

    planned: list[int]
    taken: list[int]
    outcomes: list[Outcome]

    @abstractmethod
    def segments(self) -> Iterator[Segment]:
        """Each segment of each image once; those of one image in order, images interleaved."""


class Path(ABC):
    """How to go from a baseline to an input; a description, without tensors."""

    @abstractmethod
    def walk(self, classifier: Classifier, query: Query) -> Walk:
        """Begin a run. The caller holds ``classifier.session`` open while it lasts."""
