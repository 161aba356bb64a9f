"""What a verdict is worth, as a record: how often maps are right, by what their method reports of them.

The record holds the share of right maps by verdict, the model of :mod:`fringe.experiments._reliability`, and its
judgement by scenes that were left out. If that is that it holds, the probability may be printed with a verdict.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

import fringe
from fringe._files import read_json, write_atomic
from fringe._text import plain, to_json
from fringe.attribution import Attribution
from fringe.errors import InputError, first_line
from fringe.evaluation import CONTROLS
from fringe.experiments._manifest import digest
from fringe.experiments._reliability import (
    Column,
    Reliability,
    ReliabilityModel,
)

#: First entry of the file: the name and the version of its format.
FORMAT = "fringe reliability 1"
#: Parts of the way from chance to 1 that the mass inside or the rank accuracy of a right map reaches.
MASS_GAIN, RANK_GAIN = 0.1, 0.5
RIGHT = (
    f"A map is right if its rank accuracy is at least {RANK_GAIN:g} of the way from chance to 1, or if its mass inside "
    f"is at least {MASS_GAIN:g} of that way and above that of every blind map ({', '.join(CONTROLS)}) of the same "
    "example."
)
#: Reports of a map that are diagnostics of the method, in the order of the model.
DIAGNOSTICS = ("completeness_residual", "endpoint_kl", "tracking_error_mean", "tracking_error_max")
STABILITY = "max_sensitivity"
#: Verdicts that the model tells from ``ok``; maps with others have no probability.
_VERDICTS = ("short", "coarse", "stalled")
#: Reports whose logarithm is taken, between these bounds.
_LOGARITHMS = ("completeness_residual", STABILITY)
_LEAST, _MOST = 1e-6, 1e3


@dataclass(frozen=True)
class VerdictShare:
    """How many maps with one verdict are right: the share with its 95 % interval, clusters and networks resampled; from
    0 to 1 for a single cluster."""

    verdict: str
    right: float
    low: float
    high: float
    maps: int
    clusters: int


@dataclass(frozen=True)
class ReliabilityFit:
    """A model of the probability, and how it did on scenes that were left out.

    Attributes:
        model: The model, of all scenes; None if there cannot be one.
        judgement: How models of the other scenes did on each; None if that cannot be asked.
        ranges: Smallest and largest value of each report: outside of them there is no probability.
        reason: Why there is no model or judgement.
    """

    model: ReliabilityModel | None
    judgement: Reliability | None
    ranges: Mapping[str, tuple[float, float]]
    reason: str = ""

    @property
    def holds(self) -> bool:
        """Whether the probability may be printed."""
        return self.model is not None and self.judgement is not None and self.judgement.holds

    @property
    def faults(self) -> str:
        """Why it may not."""
        return self.reason if self.judgement is None else "; ".join(self.judgement.faults)

    def probability(self, reports: Mapping[str, Column]) -> Column:
        """The probability (n,) that each map is right; NaN outside of the ranges."""
        assert self.model is not None
        inside = [(low <= reports[name]) & (reports[name] <= high) for name, (low, high) in self.ranges.items()]
        return np.where(np.logical_and.reduce(inside), self.model.probability(reports), np.nan)


@dataclass(frozen=True, repr=False)
class VerdictReliability:
    """What the verdict of a method is worth.

    Attributes:
        method: Record of the method.
        score: The explained score.
        scenes: Maps and right maps of each scene.
        shares: The share of right maps by verdict.
        skipped: Maps that were not scored, or that have nothing to explain.
        reported: The model of what comes with every map.
        stable: The same with the stability, where it was computed; else None.
        stability: Settings of that metric.
        right: When a map is right.
        date: Day on which this was made.
        version: Version of the library.
        format: Name and version of the file.
    """

    method: Mapping[str, Any]
    score: str
    scenes: Mapping[str, tuple[int, int]]
    shares: tuple[VerdictShare, ...]
    skipped: int
    reported: ReliabilityFit
    stable: ReliabilityFit | None = None
    stability: Mapping[str, Any] | None = None
    right: str = RIGHT
    date: str = ""
    version: str = fringe.__version__
    format: str = FORMAT

    @property
    def holds(self) -> bool:
        """Whether the probability holds on scenes that it was not fitted on."""
        return self.reported.holds

    @property
    def maps(self) -> int:
        """Number of maps."""
        return sum(maps for maps, _ in self.scenes.values())

    @cached_property
    def digest(self) -> str:
        """Name of all of it."""
        return digest(self.record())

    def record(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        return {"format": self.format, "holds": self.holds, **plain(asdict(self))}

    def write(self, path: str | Path) -> None:
        """Write the file that :func:`read_reliability` reads.

        Args:
            path: The file.
        """
        write_atomic(Path(path), to_json(self.record()).encode())

    def __repr__(self) -> str:
        lines = [f"{'verdict':24} {'right':>18} {'n':>6}"]
        lines += [_line(one.verdict, (one.right, one.low, one.high), one.maps) for one in self.shares]
        judged = self.reported.judgement
        if judged is not None:
            lines.append(f"{'left-out scene':24} {'right':>18} {'n':>6}  predicted")
            for name, one in judged.scenes.items():
                line = _line(name, (one.observed, one.low, one.high), one.maps)
                lines.append(f"{line}  {one.predicted:.2f}{'' if one.holds else ' (off)'}")
            ends = f"[{judged.skill_low:+.3f}…{judged.skill_high:+.3f}]"
            lines.append(f"gain in the Brier score: {judged.skill:+.3f} {ends}")
        lines.append("it holds" if self.holds else f"it does not hold: {self.reported.faults}")
        return "\n".join(lines)

    def applies_to(self, method: Mapping[str, Any], score: str) -> bool:
        """Tell whether it is about a method with these settings.

        Args:
            method: Record of the method.
            score: The explained score.
        """
        return (plain(dict(method)), score) == (self.method, self.score)

    def probability(self, attribution: Attribution, stability: Sequence[float] | None = None) -> Column:
        """Predict how probably each map is right.

        Args:
            attribution: Maps of one class of B images, by the method that this is about.
            stability: Scores (B,) of ``max_sensitivity`` with the settings of :attr:`stability`, if they are known.

        Returns:
            Probabilities (B,); NaN where a report is missing, or outside of what was measured.

        Raises:
            InputError: For another method or several classes, or if the probability does not hold.
        """
        if attribution.target.dim() != 1:
            raise InputError("the maps are of several classes", argument="attribution", hint="select one: of_class(0)")
        if plain(dict(attribution.settings)) != self.method:
            message = "the maps are of another method or of other settings than the reliability"
            raise InputError(message, argument="attribution")
        fit = self.reported if stability is None else self.stable
        if fit is None or not fit.holds:
            raise InputError(self.refusal(fit), argument="reliability")
        known = {**attribution.diagnostics, "completeness_residual": attribution.completeness_residual}
        nan = np.full(len(attribution), np.nan)
        columns = {name: known[name].double().cpu().numpy() if name in known else nan for name in DIAGNOSTICS}
        if stability is not None:
            columns[STABILITY] = np.asarray(stability, dtype=float)
        return fit.probability(reports_of(attribution.verdict, columns))

    def refusal(self, fit: ReliabilityFit | None) -> str:
        reason = "it was not measured" if fit is None else fit.faults
        of = f"{self.maps} maps of {', '.join(self.scenes) or 'no scene'}, {self.date}, fringe {self.version}"
        return f"the probability does not hold on scenes that it was not fitted on: {reason} ({of})"

    def annotate(self, attribution: Attribution) -> Attribution:
        """Say how probably each map is right, after the advice.

        Args:
            attribution: Maps by the method that this is about.

        Returns:
            The same maps with longer advice.
        """
        if attribution.target.dim() == 1:
            texts = map(self._sentence, self.probability(attribution))
            return replace(attribution, advice=tuple(a + t for a, t in zip(attribution.advice, texts, strict=True)))
        parts = [self.annotate(attribution.of_class(k)) for k in range(attribution.target.shape[1])]
        statuses = [list(zip(part.verdict, part.advice, strict=True)) for part in parts]
        return replace(attribution, class_verdicts=tuple(zip(*statuses, strict=True)))

    def _sentence(self, probability: float) -> str:
        if not np.isfinite(probability):
            return ""
        return f"; of maps like this {probability:.0%} are right, by {len(self.scenes)} scenes with a known answer"


def _line(name: str, share: tuple[float, float, float], maps: int) -> str:
    spread = f"{share[0]:.2f} [{share[1]:.2f}…{share[2]:.2f}]"
    return f"{name:24} {spread:>18} {maps:>6}"


def reports_of(verdicts: Sequence[str] | NDArray[Any], columns: Mapping[str, Column]) -> dict[str, Column]:
    """What the model reads of each map (n,), by name; NaN where it is not known."""
    words = np.asarray(verdicts)
    known = np.where(np.isin(words, ("ok", *_VERDICTS)), 0.0, np.nan)
    reports: dict[str, Column] = {f"verdict_{word}": known + (words == word) for word in _VERDICTS}
    for name, column in columns.items():
        has_logarithm = name in _LOGARITHMS
        reports[f"log10_{name}" if has_logarithm else name] = (
            np.log10(np.clip(column, _LEAST, _MOST)) if has_logarithm else column
        )
    return reports


def _check(fit: ReliabilityFit, names: Sequence[str]) -> None:
    """Raise ValueError for a fit that reads other reports, or lacks a number of one."""
    expected = set(reports_of(np.array(["ok"]), dict.fromkeys(names, np.zeros(1))))
    model = fit.model
    if model is not None:
        lengths = {len(column) for column in (model.names, model.centre, model.scale, model.weights)}
        if {*model.names} != expected or {*fit.ranges} != expected or lengths != {len(expected)}:
            raise ValueError(f"the reports are {', '.join(model.names)}, expected {', '.join(sorted(expected))}")


def read_reliability(path: str | Path) -> VerdictReliability:
    """Read the judgement of a method's verdicts that the report of a run with scenes wrote.

    >>> from fringe.experiments import read_reliability
    >>> reliability = read_reliability("out/truth/report/reliability.json")  # doctest: +SKIP
    >>> reliability.probability(fringe.attribute(model, inputs))  # doctest: +SKIP

    Args:
        path: ``reliability.json``.

    Returns:
        The judgement; its probability holds.

    Raises:
        InputError: If the file cannot be read or is something else, or if the probability does not hold on scenes that
            it was not fitted on.
    """
    document = read_json(path, "reliability")
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(f"{str(path)!r} holds no reliability of verdicts, format {FORMAT!r}", argument="reliability")
    try:
        result = TypeAdapter(VerdictReliability).validate_python(document)
        _check(result.reported, DIAGNOSTICS)
        _check(result.stable or result.reported, (*DIAGNOSTICS, *([STABILITY] if result.stable else [])))
    except ValueError as error:
        first = first_line(error)
        raise InputError(
            f"{str(path)!r} is no complete reliability of verdicts ({first})", argument="reliability"
        ) from error
    if not (result.holds and document.get("holds") is True):
        raise InputError(f"{str(path)!r}: {result.refusal(result.reported)}", argument="reliability")
    return result


def reliability_for(method: Mapping[str, Any], score: str, path: Path) -> VerdictReliability:
    """Read what the verdict of a method, given by its record, is worth. Raises InputError as :func:`read_reliability`
    does, and for a file of another method, other settings or another score."""
    reliability = read_reliability(path)
    if reliability.applies_to(method, score):
        return reliability
    known, given = {**reliability.method, "score": reliability.score}, {**plain(dict(method)), "score": score}
    differs = [name for name in {**known, **given} if known.get(name) != given.get(name)]
    apart = [f"{name} {known.get(name)}, not {given.get(name)}" for name in differs]
    raise InputError(f"{str(path)!r} is of other settings: {', '.join(apart)}", argument="reliability")
