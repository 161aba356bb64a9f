"""Who is compared, and by what: the texts of ``--methods``, ``--metrics`` and ``--set`` read as configured records."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from fringe.attribution import Attributor
from fringe.cli.options import CompareOptions
from fringe.cli.settings import assign, named_method
from fringe.errors import InputError
from fringe.metrics import Metric, get_metric


@dataclass(frozen=True)
class Contest:
    """The methods by label, and the metrics as ``fringe.compare`` takes them: by name where nothing was set."""

    methods: dict[str, Attributor]
    asked: list[str | Metric]

    @property
    def metrics(self) -> dict[str, Metric]:
        """The configured metrics by the names that their scores go by."""
        return {m if isinstance(m, str) else m.name: get_metric(m) for m in self.asked}


def read_contest(options: CompareOptions) -> Contest:
    """Raises InputError on a name, label, key or value that cannot be meant."""
    methods = {label: named_method(text) for label, text in labelled(_names("--methods", options.methods))}
    metrics = {name: get_metric(name) for name in _names("--metrics", options.metrics)}
    settings = by_owner(options.settings, [*methods, *metrics])
    return Contest(
        {label: assign(method, settings.get(label, ())) for label, method in methods.items()},
        [assign(metric, settings[name]) if name in settings else name for name, metric in metrics.items()],
    )


def labelled(names: Sequence[str]) -> list[tuple[str, str]]:
    """``ig`` and ``black=ig:paper`` as pairs of a label and a method's text."""
    pairs: list[tuple[str, str]] = []
    for name in names:
        label, equals, method = (part.strip() for part in name.partition("="))
        pairs.append((label, method if equals else label))
    _refuse_twice("--methods", [label for label, _ in pairs])
    return pairs


def _names(option: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError(f"{option}: got {text!r}, expected names with commas between them")
    _refuse_twice(option, names)
    return names


def _refuse_twice(option: str, names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        how = "; give each its own label, as in short=ig,long=ig" if option == "--methods" else ""
        raise InputError(f"{option}: {', '.join(twice)} given twice{how}")


def by_owner(settings: Sequence[str], owners: Sequence[str]) -> dict[str, list[str]]:
    """``LABEL.KEY=VALUE`` texts as lists of ``KEY=VALUE`` by label."""
    found: dict[str, list[str]] = {}
    for text in settings:
        path, equals, value = text.partition("=")
        owner, dot, key = (part.strip() for part in path.rpartition("."))
        if not dot or not equals:
            raise InputError(f"--set: got {text!r}, expected METHOD.KEY=VALUE, such as --set {owners[0]}.steps=20")
        if owner not in owners:
            near = difflib.get_close_matches(owner, owners, n=1, cutoff=0.4)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise InputError(f"--set: {owner!r} is not compared here{hint} Compared: {', '.join(owners)}")
        found.setdefault(owner, []).append(f"{key}={value}")
    return found
