"""Who takes part in a comparison: methods under labels, and the controls."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fringe.attribution import Attribution, Attributor, get_method
from fringe.errors import InputError
from fringe.experiments.controls import CONTROLS
from fringe.paths import Problem

Named = tuple[str, str | Attributor]
Methods = Sequence[str | Attributor | Named] | Mapping[str, str | Attributor]
"""Names, configured methods, or pairs of a label and either."""


@dataclass(frozen=True)
class Candidate:
    """A method under a ``label``, or (``method`` None) the control of that name."""

    label: str
    method: Attributor | None

    @property
    def control(self) -> bool:
        return self.method is None


def enter(methods: Methods, controls: bool) -> list[Candidate]:
    """The methods in their order, then the controls. Raises InputError on unknown methods and on labels used twice."""
    if isinstance(methods, str):
        raise InputError(f"methods: got the text {methods!r}, expected a list such as [{methods!r}]")
    entries: Iterable[str | Attributor | Named] = methods.items() if isinstance(methods, Mapping) else methods
    entrants = [_entrant(entry) for entry in entries]
    if not entrants:
        raise InputError("methods: none given")
    entrants += [Candidate(name, None) for name in CONTROLS] if controls else []
    labels = [entrant.label for entrant in entrants]
    refuse_twice("methods", labels, "; tell them apart with pairs (label, method)")
    return entrants


def refuse_twice(argument: str, labels: Sequence[str], cure: str = "") -> None:
    """Raise InputError where two of ``labels`` are the same."""
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise InputError(f"{argument}: {', '.join(twice)} given twice{cure}")


def make_maps(entrant: Candidate, problem: Problem) -> tuple[Tensor, Attribution | None]:
    """The entrant's maps (B, *S) of ``problem``, with all a method says about them. Needs an open session."""
    if entrant.method is None:
        return CONTROLS[entrant.label](problem), None
    found = entrant.method.attribute(problem)
    return found.values, found


def record(entrant: Candidate) -> dict[str, Any]:
    """The entrant and its settings as plain data."""
    return {"control": entrant.label} if entrant.method is None else entrant.method.record()


def _entrant(entry: str | Attributor | Named) -> Candidate:
    if isinstance(entry, tuple):
        label, method = entry
        return Candidate(label, get_method(method))
    return Candidate(entry if isinstance(entry, str) else entry.name, get_method(entry))
