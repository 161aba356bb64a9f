"""The table of scores: methods and controls under metrics, with intervals, tests, differences, and what is bold.

Every table of scores is made of it: of comparisons, reports, cards and the app."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np

from fringe._strings.formats import decimals_for
from fringe._strings.names import method_title
from fringe._strings.tables import Cell, best_of
from fringe.errors import require
from fringe.evaluation._statistics import (
    NOT_BETTER,
    NOT_BETTER_MEANS,
    Column,
    ControlTest,
    Difference,
    Estimate,
    Names,
    as_column,
    compare_with_controls,
    estimate_all,
    holm,
    is_of_another,
    is_rival,
    paired_all,
    too_few,
)
from fringe.metrics import Aggregate, Direction

#: A method or a control, and a metric, by their labels.
Key = tuple[str, str]
#: What is better under a metric, and what is estimated.
Words = tuple[Direction, Aggregate]


@dataclass(frozen=True)
class Score:
    """What is known of a method, or a control, under a metric.

    Attributes:
        estimate: The mean or median with its interval.
        test: The comparison with the controls; None for a control, and where nothing was tested.
        better: Whether the score is better than that of every control; None where this is not known.
        difference: The reference method less this one, image by image; None for these two, and without a direction.
        adjusted: Its p after Holm.
        rank: Whether no method is better, or the interval overlaps that of the best.
        is_shown: Whether it may be bold: it is better than every control, or there is none.
        decimals: Decimals of its column.
    """

    estimate: Estimate
    test: ControlTest | None = None
    better: bool | None = None
    difference: Difference | None = None
    adjusted: float = math.nan
    rank: Literal["", "best", "near"] = ""
    is_shown: bool = False
    decimals: int = 3

    @property
    def mark(self) -> str:
        """Asterisks of the difference, and the sign of what is not shown."""
        return significance_stars(self.adjusted) + NOT_BETTER * (self.better is False)

    def cell(self, note: str = "", *, mark: str = "", near: bool = False) -> Cell:
        """The score as every table prints it; ``near`` says whether near ties are bold."""
        one, style = self.estimate, self.rank if self.is_shown and (near or self.rank == "best") else ""
        hint = f"not shown to be better than {self.test.control}" if self.better is False and self.test else ""
        ends = one.low, one.high
        return Cell(one.value, self.decimals, ends=ends, style=style, mark=self.mark + mark, note=note, hint=hint)


@dataclass(frozen=True)
class ScoreTable:
    """Scores, and all that follows from them.

    Attributes:
        scores: A score an image, by the labels of the method or control and of the metric.
        controls: Which of the methods are controls.
        metrics: What is better, and what is estimated, by label.
        seed: Keys the bootstrap and the random signs.
        groups: The ``clusters`` and ``networks`` of the images by metric, as for :func:`estimate`.
        reference: The method that the others are compared with, if there is one.
        unjudged: Metrics under which no method wins.
        by_value: Compare values with those of controls, without a test, as of one image.
    """

    scores: Mapping[Key, Column]
    controls: Collection[str]
    metrics: Mapping[str, Words]
    seed: int = 0
    groups: Mapping[str, Names] = field(default_factory=dict[str, Names])
    reference: str | None = None
    unjudged: Collection[str] = ()
    by_value: bool = False

    @cached_property
    def cells(self) -> dict[Key, Score]:
        """What is known by method and metric, in the order of the scores. The tests are those of
        :func:`compare_with_controls`, with p that are adjusted for the number of them (:func:`holm`); likewise the
        differences to the reference."""
        estimates, tests = self._estimates(), {} if self.by_value else self._tests()
        apart = {self.reference, *self.controls}
        others = [(m, of) for m, of in self.scores if m not in apart and self.metrics[of][0] != "none"]
        pairs = [] if self.reference is None else [(self.reference, *other) for other in others]
        differences = {(m, of): one for (_, m, of), one in zip(pairs, self.differences(pairs), strict=True)}
        result = dict[Key, Score]()
        for label, (direction, _) in self.metrics.items():
            column = {method: one for (method, of), one in estimates.items() if of == label}
            methods = {method: one for method, one in column.items() if method not in self.controls}
            best, near = near_ties(methods, "none" if label in self.unjudged else direction)
            decimals = decimals_for((one.value, one.half) for one in methods.values())
            for method, one in column.items():
                key, is_best = (method, label), best is not None and one.value == methods[best].value
                better = self._better(method, column, direction) if self.by_value else None
                better = better if (test := tests.get(key)) is None else test.better
                is_control = method in self.controls
                made = [column[control].value for control in column if is_of_another(control, method)]
                is_behind = best_of([one.value, *made], direction) not in (None, one.value)
                result[key] = Score(
                    one,
                    test,
                    better,
                    *differences.get(key, (None, math.nan)),
                    "" if is_control else "best" if is_best else "near" if method in near else "",
                    not is_control and not is_behind and bool(better or not self.controls),
                    decimals,
                )
        return {key: result[key] for key in self.scores}

    @property
    def tests(self) -> list[ControlTest]:
        """The comparisons of methods with the controls."""
        return [one.test for one in self.cells.values() if one.test is not None]

    def count(self, method: str) -> int | str:
        """The number of scores of a method, the fewest and the most of a metric where these differ: ``60–64``."""
        counts = sorted({one.estimate.n for (of, _), one in self.cells.items() if of == method and one.estimate.n})
        return f"{counts[0]}–{counts[-1]}" if len(counts) > 1 else counts[0] if counts else 0

    @property
    def comparisons(self) -> int:
        """How many differences to the reference the adjustment of p counts."""
        return sum(one.difference is not None and one.difference.n > 0 for one in self.cells.values())

    def untested(self, noun: str = "image") -> list[str]:
        """Say, in a sentence or none, that there are too few images, or clusters, for the tests."""
        return too_few(max((test.difference.signs for test in self.tests), default=0), len(self.tests), noun)

    def notes(self, noun: str = "image") -> list[str]:
        """What is bold, what the marks of the controls mean, or why there are none."""
        marked = any(one.better is False for one in self.cells.values())
        bold = len({method for method, _ in self.cells}.difference(self.controls)) > 1
        bold &= any(one.cell().style == "best" for one in self.cells.values())
        best = f"bold: the best method{', shown to be better than every control' * bool(self.tests)}"
        return [*[best] * bold, *[NOT_BETTER_MEANS] * marked, *self.untested(noun)]

    def differences(self, pairs: Iterable[tuple[str, str, str]]) -> list[tuple[Difference, float]]:
        """Compare pairs of methods image by image.

        Args:
            pairs: Two methods and a metric, by their labels.

        Returns:
            The differences, each with its p that is adjusted for the number of pairs (:func:`holm`).
        """
        columns: list[tuple[Column, Column, Aggregate, Names]] = [
            (self.scores[one, of], self.scores[other, of], self.metrics[of][1], self.groups.get(of, {}))
            for one, other, of in pairs
        ]
        differences = paired_all(columns, self.seed)
        return list(zip(differences, holm([one.p for one in differences]), strict=True))

    def _estimates(self) -> dict[Key, Estimate]:
        columns: list[tuple[Column, Aggregate, Names]] = [
            (column, self.metrics[of][1], self.groups.get(of, {})) for (_, of), column in self.scores.items()
        ]
        return dict(zip(self.scores, estimate_all(columns, self.seed), strict=True))

    def _tests(self) -> dict[Key, ControlTest]:
        tests = dict[Key, ControlTest]()
        for label, (direction, kind) in self.metrics.items():
            columns = {method: as_column(method, column) for (method, of), column in self.scores.items() if of == label}
            groups = self.groups.get(label, {})
            compared = compare_with_controls(columns, self.controls, direction, kind, self.seed, **groups)
            tests |= {(method, label): test for method, test in compared.items()}
        adjusted = holm([test.p for test in tests.values()])
        return {key: replace(tests[key], adjusted=p, count=len(tests)) for key, p in zip(tests, adjusted, strict=True)}

    def _better(self, method: str, column: Mapping[str, Estimate], direction: Direction) -> bool | None:
        """Whether the value of a method is better than those of all its controls; None without any."""
        if method in self.controls or not math.isfinite(value := column[method].value):
            return None
        values = {name: np.array([one.value]) for name, one in column.items()}
        rivals = [one for one in self.controls if one in values and is_rival(method, one, values[method], values[one])]
        bound = best_of([column[name].value for name in rivals], direction)
        return None if bound is None else best_of([value, bound], direction) != bound


def significance_stars(adjusted: float) -> str:
    """``***`` for an adjusted p below .001, ``**`` below .01, ``*`` below .05, nothing for others and NaN."""
    return "*" * sum(adjusted < level for level in (0.05, 0.01, 0.001))


def near_ties(estimates: Mapping[str, Estimate], direction: Direction) -> tuple[str | None, set[str]]:
    """Find the label of the best estimate, and those whose interval overlaps its interval; None and nothing if no
    direction is better, or there is no score. Raises InputError for means among medians.

    A description, not a test: intervals of two methods may overlap where their paired difference is significant (see
    :func:`paired`). The first of equals is the best; an estimate without an interval ties with none.
    """
    kinds = sorted({item.summary for item in estimates.values()})
    require(len(kinds) < 2, "estimates", " and ".join(kinds), "one summary for all")
    known = {label: item for label, item in estimates.items() if math.isfinite(item.value)}
    best = best_of([one.value for one in known.values()], direction)
    label = next((name for name, one in known.items() if one.value == best), None)
    if label is None:
        return None, set()
    first = known.pop(label)
    return label, {name for name, one in known.items() if one.low <= first.high and one.high >= first.low}


def method_cell(label: str, role: str = "", name: str | None = None) -> Cell:
    """The first cell of a method or control: its ``name``, or its label with its title in pictures if that is another;
    and its role."""
    title = method_title(label)
    is_other = name is None and role != "control" and title.lower() != label.lower()
    return Cell(name or label, note=", ".join(filter(None, (title * is_other, role))))
