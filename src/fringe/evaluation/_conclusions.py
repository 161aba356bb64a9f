"""Conclusions: what a table of scores shows, in at most four sentences that are made by rule from its numbers."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from fringe._strings.formats import counted
from fringe.evaluation._statistics import (
    BELOW,
    ControlTest,
    Difference,
    is_of_another,
    least_images,
)
from fringe.evaluation._summary import ScoreTable

#: What replaces pixels, in words.
_REFERENCES = {**dict.fromkeys(("gaussian", "box", "folded"), "a blur"), "mean": "the mean colour"}
#: More images than this many times those at hand are not asked for: the two methods are level.
_MANY_MORE = 20


@dataclass(frozen=True)
class _Contest:
    """The best method under a metric: its differences to the others, each with an adjusted p, its test against the
    controls, and a control with a better score that is made of the map of another method, if there is one."""

    metric: str
    best: str
    others: Mapping[str, tuple[Difference, float]]
    test: ControlTest | None
    modified: str | None

    @property
    def level(self) -> list[str]:
        """The other methods that the best is not shown to be better than, the nearest first."""
        level = [method for method, (_, p) in self.others.items() if not p < BELOW]
        return sorted(level, key=lambda method: abs(self.others[method][0].value))

    @property
    def rival(self) -> str | None:
        """The nearest of these."""
        return next(iter(self.level), None)

    @property
    def beats_controls(self) -> bool | None:
        """Whether the best is better than every control; None where that was not tested."""
        return False if self.modified else None if self.test is None else self.test.better

    @property
    def is_won(self) -> bool:
        """Whether the best is better than every other method, and than every control if there are any."""
        return self.rival is None and (self.beats_controls or (self.test is None and not self.modified))


def conclude(
    table: ScoreTable, *, variants: Mapping[str, tuple[str, str]] | None = None, without: Collection[str] = ()
) -> list[str]:
    """Say which method is better than all others and all controls, which control the best is not shown to be better
    than, whether the reference decides, and what more images would show.

    Args:
        table: The scores.
        variants: The name of the metric and of its reference, by label, of metrics that replace pixels.
        without: Labels of metrics that are left out.

    Returns:
        At most four sentences; none where nothing was tested.
    """
    contests = _contests(table, [label for label in table.metrics if label not in without])
    tests = [test.difference for test in table.tests] or [pair for one in contests for pair, _ in one.others.values()]
    if not tests or max(pair.signs for pair in tests) < least_images(len(tests)):
        return []
    several = len({method for method, _ in table.scores if method not in table.controls}) > 1
    turned = _turned(contests, variants or {})
    return [*_winners(contests, bool(table.tests), several), *_level(contests), *turned, *_next(contests)]


def variants_of(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
    """The names of the metric and of its reference, by label, of metrics with these settings that have a reference."""
    return {label: (one["metric"], str(one["reference"])) for label, one in settings.items() if "reference" in one}


def _contests(table: ScoreTable, labels: Sequence[str]) -> list[_Contest]:
    """The contest of each metric with a direction under which a method has a score."""
    pairs, best, modified = list[tuple[str, str, str]](), dict[str, str](), dict[str, str | None]()
    for label in labels:
        sign = {"higher": 1.0, "lower": -1.0, "none": math.nan}[table.metrics[label][0]]
        every = {method: sign * one.estimate.value for (method, metric), one in table.cells.items() if metric == label}
        means = {m: value for m, value in every.items() if m not in table.controls and math.isfinite(value)}
        if not means:
            continue
        best[label] = max(means, key=means.__getitem__)
        made = [m for m in table.controls if is_of_another(m, best[label]) and math.isfinite(every.get(m, math.nan))]
        first = max(made, key=lambda method: every[method], default=None)
        modified[label] = first if first is not None and every[first] >= means[best[label]] else None
        pairs += [(best[label], other, label) for other in means if other != best[label]]
    adjusted = dict(zip(pairs, table.differences(pairs), strict=True))
    return [
        _Contest(
            metric=label,
            best=method,
            others={other: one for (_, other, of), one in adjusted.items() if of == label},
            test=table.cells[method, label].test,
            modified=modified[label],
        )
        for label, method in best.items()
    ]


def _winners(contests: Sequence[_Contest], tested: bool, several: bool) -> list[str]:
    """Which method is better than all it was compared with, and in which scores."""
    rivals = " and ".join(["all other methods"] * several + ["all controls"] * tested)
    won = dict[str, list[str]]()
    for one in contests:
        if one.is_won:
            won.setdefault(one.best, []).append(_title(one.metric))
    if not won:
        who = "No method is" if several else f"{contests[0].best} is not"
        shown = dict[str, list[str]]()
        for one in contests:
            if one.level and one.beats_controls:
                what = f"{one.best} is better than all controls, and level with {_listed(one.level)}"
            elif behind := [method for method, (_, p) in one.others.items() if p < BELOW]:
                many = f"{len(behind)} of {len(one.others)} other methods"
                what = f"{one.best} is better than {many if len(behind) > 3 else _listed(behind)}"
            else:
                continue
            shown.setdefault(what, []).append(_title(one.metric))
        most = sorted(shown.items(), key=lambda item: ("controls" not in item[0], -len(item[1])))[:2]
        known = "".join(f"; in {_listed(names)} {what}" for what, names in most)
        return [f"{who} shown to be better than {rivals} in any metric{known}."]
    parts = [f"{method} is better than {rivals} in {_listed(names)}" for method, names in won.items()]
    return [f"{'; '.join(parts)}."]


def _level(contests: Sequence[_Contest]) -> list[str]:
    """Which control the best method is not shown to be better than, and what to do."""
    levels = dict[str, list[str]]()
    for one in contests:
        is_behind = one.test is not None and one.test.better is False
        control = one.test.control if one.test is not None and is_behind else one.modified
        if control is None:
            continue
        what = f"the best method is not shown to be better than the control {control}"
        if not is_behind or (one.test is not None and one.test.p == 1.0):
            what = f"the control {control} has a better value than the best method"
        levels.setdefault(what, []).append(_title(one.metric))
    if not levels:
        return []
    parts = [f"{what} in {_listed(names)}" for what, names in levels.items()]
    text = "; ".join(parts)
    return [f"{text[0].upper()}{text[1:]}: such a metric is no evidence for a map here, take another one."]


def _turned(contests: Sequence[_Contest], variants: Mapping[str, tuple[str, str]]) -> list[str]:
    """Where the best method depends on what pixels are replaced by: with another reference it is shown to be behind."""
    by_name = dict[str, dict[str, _Contest]]()
    for one in contests:
        if one.metric in variants:
            name, reference = variants[one.metric]
            by_name.setdefault(name, {})[reference] = one
    parts = [
        f"{_title(name)} depends on the reference: the best is "
        + _listed([f"{one.best} with {_REFERENCES.get(reference, reference)}" for reference, one in of.items()])
        for name, of in by_name.items()
        if any(
            other.best in one.others and one.others[other.best][1] < BELOW
            for one in of.values()
            for other in of.values()
        )
    ]
    return [f"{'; '.join(parts)}."] if parts else []


def _next(contests: Sequence[_Contest]) -> list[str]:
    """What more images would show, of the score where the fewest of them are needed.

    A difference of ``power`` half intervals has in four of five samples the p that Holm's adjustment asks of the first
    of those that were not shown: (1.96 + .84) / 1.96 if there is one. Metrics that say nothing for a map here are left
    out, unless all are of this kind.
    """
    needed, z = list[tuple[float, str]](), NormalDist().inv_cdf
    family = max(1, sum(len(one.level) for one in contests))
    power = (z(1 - BELOW / (2 * family)) + z(0.8)) / z(0.975)
    for one in [one for one in contests if one.beats_controls is not False] or contests:
        if (rival := one.rival) is None:
            continue
        difference, _ = one.others[rival]
        half, size, n = (difference.high - difference.low) / 2, abs(difference.value), difference.n
        if not half > 0 or not math.isfinite(half):
            continue
        more = n * (power * half / size) ** 2 if size > 0 else math.inf
        known = f"{one.best} and {rival} differ by {size:.2g} in {_title(one.metric)}, and {counted(n, 'image')}"
        text = f"{known} show a difference of {power * half:.2g} in four of five samples"
        advice = "they are level"
        if more <= _MANY_MORE * n:
            advice = f"take about {_rounded(max(more, n + 1, least_images(family))):,} images to tell them apart"
        needed.append((more, f"{text}: {advice}."))
    return [min(needed)[1]] if needed else []


def _rounded(count: float) -> int:
    """A number with two digits, rounded up."""
    unit = 10 ** max(0, math.floor(math.log10(count)) - 1)
    return math.ceil(count / unit) * unit


def _title(label: str) -> str:
    return label.replace("_", " ")


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
