"""Paths through input space, as a stream of segments."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from fringe._noise import Noise, content_key
from fringe.baselines import InputSpace, make_baseline
from fringe.classifier import Classifier
from fringe.paths.gauge import GeodesicGauge


@dataclass(frozen=True)
class Query:
    """What is to be explained: ``inputs`` (B, *S), their ``logits`` (B, C), and the classes ``target`` (B,).

    Where images were left out of a call, ``rows`` are the places of these B among its ``total``; none: all are here.
    ``space`` is what is known of the inputs' space, ``baseline`` (B, *S) the caller's own baseline, and ``ids`` (B)
    name the images for keyed noise; without them an image's name is made of its numbers.
    """

    inputs: Tensor
    logits: Tensor
    target: Tensor
    rows: list[int] | None = None
    total: int | None = None
    space: InputSpace = field(default_factory=InputSpace)
    baseline: Tensor | None = None
    ids: tuple[str, ...] | None = None

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """A name an image, for keyed noise."""
        return self.ids if self.ids is not None else tuple(content_key(x) for x in self.inputs)

    def baseline_or(self, text: str, noise: Noise) -> Tensor:
        """The caller's baseline, or the one that ``text`` names: (B, *S)."""
        if self.baseline is not None:
            return self.baseline
        return make_baseline(text, self.inputs, self.space, noise, self.keys)

    def take(self, rows: list[int]) -> "Query":
        """The query of these images, in this order; an image may be taken more than once."""
        at = torch.tensor(rows, device=self.inputs.device)
        return Query(
            self.inputs[at],
            self.logits[at],
            self.target[at],
            [self.rows[i] for i in rows] if self.rows is not None else rows,
            self.total if self.total is not None else len(self.inputs),
            self.space,
            None if self.baseline is None else self.baseline[at],
            tuple(self.keys[i] for i in rows),
        )


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
    the end where the path was begun. ``stats`` holds what the path measured along the piece and at ``start``, its end
    far from the input, one (L,) tensor a name.
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


Begins = Literal["input", "baseline"]
"""The end of a path at which its walk begins."""


class Walk(ABC):
    """One run of a path over a query. ``planned`` steps an image are known before it begins; ``outcomes`` and ``taken``
    (steps) are filled while the segments stream by. No list of points is ever held: memory does not grow with steps.
    ``gauge`` is what predictions on the way are measured against. ``begins`` says at which end of the path the first
    segment lies; a walk that begins at the baseline arrives at the input with its last planned step, or diverges."""

    begins: Begins = "input"
    gauge: GeodesicGauge
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
