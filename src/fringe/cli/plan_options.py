"""What plans of a benchmark are made of, as it was typed."""

from collections.abc import Collection
from dataclasses import dataclass, fields, replace

LABEL = r"[\w.-]+"
"""What a model may be called. A spec that holds an equals sign of its own has a colon or a slash before it."""


@dataclass(frozen=True)
class PlanOptions:
    """Texts as they were typed; None where nothing was, so that a file, and then a command's own default, decides.

    ``models`` are ``SPEC`` or ``LABEL=SPEC``; ``settings`` are ``LABEL.KEY=VALUE``, ``limits`` ``METRIC=N``.
    ``trust_code`` is never taken from a file: it is for a person to say.
    """

    models: tuple[str, ...] | None = None
    data: tuple[str, ...] | None = None
    methods: tuple[str, ...] | None = None
    metrics: tuple[str, ...] | None = None
    settings: tuple[str, ...] | None = None
    limits: tuple[str, ...] | None = None
    n: int | None = None
    seed: int | None = None
    target: str | None = None
    score: str | None = None
    exif: str | None = None
    references: str | None = None
    controls: bool | None = None
    preprocessing: str | None = None
    preset: str | None = None
    trust_code: bool = False

    def over(self, other: "PlanOptions") -> "PlanOptions":
        """These options, and those of ``other`` where there is none here; settings of both, these last, without those
        of methods and metrics of ``other`` that are replaced."""
        mine = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}
        merged = replace(other, **mine)
        theirs = other.without(owners(other) - owners(merged)).settings or ()
        return replace(merged, settings=(*theirs, *(self.settings or ())))

    def without(self, gone: Collection[str]) -> "PlanOptions":
        """These options without the settings of the methods and metrics called ``gone``."""
        return replace(self, settings=tuple(text for text in self.settings or () if _owner(text) not in gone))


def owners(options: PlanOptions) -> set[str]:
    """What the named methods and metrics are called in settings."""
    return {name.partition("=")[0].strip() for name in (*(options.methods or ()), *(options.metrics or ()))}


def _owner(setting: str) -> str:
    return setting.partition("=")[0].rpartition(".")[0].strip()


def split_names(text: str | None) -> tuple[str, ...] | None:
    """``a,b`` as two names; None stays."""
    return None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())
