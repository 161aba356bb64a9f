"""Settings of methods and metrics, and options of runs: what a field takes, and errors that name it.

The annotation of a setting says its type, bounds, search range, unit and help. A method or metric is a frozen dataclass
whose fields are annotated like this::

    tau: Annotated[Positive, Search(3e-4, 1e-2, log=True), Doc("KL budget of a step", unit="nats")] = 3e-3

Values are checked, not converted: a setting is recorded as it was given, so that ``1`` and ``1.0`` keep their own keys.
"""

import dataclasses
import inspect
import json
import os
import re
import unicodedata
from abc import ABC
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt, Predicate
from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter, ValidationError

from fringe._strings.names import Reference
from fringe.errors import FringeError, InputError, did_you_mean, wrong_value


@dataclass(frozen=True)
class Search:
    """Where a search looks for values of a numeric setting.

    Attributes:
        low: Smallest value.
        high: Largest value.
        log: Whether the range is searched on a logarithmic scale.
    """

    low: float
    high: float
    log: bool = False


@dataclass(frozen=True)
class Doc:
    """What a setting means.

    Attributes:
        text: One line of help.
        unit: Unit of the value; empty for a pure number.
        takes: The accepted values, in words, where they are others than those of the type.
    """

    text: str
    unit: str = ""
    takes: str = ""


def odd(value: int) -> bool:
    """Whether an integer is odd."""
    return value % 2 == 1


def checked_by(function: Callable[[Any], object]) -> AfterValidator:
    """Make an annotation of a function that raises an InputError for values that the setting does not take."""

    def check(value: Any) -> Any:
        function(value)
        return value

    return AfterValidator(check)


Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
Fraction = Annotated[float, Ge(0), Le(1)]
PositiveFraction = Annotated[float, Gt(0), Le(1)]
PositiveInt = Annotated[int, Gt(0)]
NotNegativeInt = Annotated[int, Ge(0)]
#: Largest setting. A noise of a larger one leaves single precision, which ends at 3.4e38.
_MOST = 1e30
PositiveOddInt = Annotated[int, Gt(0), Predicate(odd)]


@dataclass(frozen=True)
class Setting:
    """One field of a method or metric, as its annotation, the ``hint``, describes it."""

    name: str
    default: Any
    hint: Any

    @property
    def search(self) -> Search | None:
        """The range to search, if the annotation has one."""
        return next((m for m in _metadata(self.hint) if isinstance(m, Search)), None)

    @property
    def doc(self) -> Doc:
        """Help and unit: of several, those written last."""
        return next((m for m in reversed(_metadata(self.hint)) if isinstance(m, Doc)), Doc(""))

    @property
    def types(self) -> tuple[Any, ...]:
        """The types of the values: the members of a union, without what is annotated about them."""
        return tuple(_bare(member) for member in _members(self.hint))

    @property
    def choices(self) -> tuple[Any, ...] | None:
        """The values of a setting that has no others; None if there are others."""
        literal = all(get_origin(member) is Literal for member in self.types)
        return tuple(value for member in self.types for value in get_args(member)) if literal else None

    @property
    def expected(self) -> str:
        """What the setting takes, in words."""
        words, search, unit = self.doc.takes or _words(self.hint), self.search, self.doc.unit
        return words if search is None else f"{words} (usually {search.low:g} to {search.high:g}{unit and ' '}{unit})"

    def check(self, value: Any, *, text: bool = False) -> Any:
        """Check a value.

        Args:
            value: The value, or with ``text`` a text that stands for it.
            text: Whether to read texts as numbers, true or false, none and lists.

        Returns:
            The value, as the annotated type.

        Raises:
            InputError: If the setting does not take the value.
        """
        try:
            checked = self._adapter.validate_python(self._read(value) if text else value, strict=not text)
        except (ValidationError, json.JSONDecodeError) as error:
            raise self.refusal(value, error) from error
        if _is_too_large(value) or _is_too_large(checked):
            raise InputError(f"got {value!r}, expected a number of at most {_MOST:g}", argument=self.name)
        return checked

    def refusal(self, value: Any, error: ValueError) -> FringeError:
        """Return the error of a value: that of the annotation's own check, or one that says what the setting takes."""
        cause = error.errors()[0].get("ctx", {}).get("error") if isinstance(error, ValidationError) else None
        return cause if isinstance(cause, FringeError) else wrong_value(self.name, value, self.expected)

    def _read(self, text: str) -> Any:
        if NoneType in self.types and text.lower() == "none":
            return None
        named = [value for member in self.types if get_origin(member) is Literal for value in get_args(member)]
        if text not in named and any(get_origin(member) is tuple for member in self.types):
            return json.loads(text) if text.startswith("[") else text.split(",")
        return text

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.hint, config=ConfigDict(allow_inf_nan=False, arbitrary_types_allowed=True))


class Settings(ABC):
    """Base class of methods and metrics: frozen dataclasses whose fields are settings.

    Attributes:
        name: Name in the registry.
        presets: Settings by name: the fields that differ from the defaults.
        record_key: Name of the entry of a record that holds ``name``.
    """

    name: ClassVar[str]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    record_key: ClassVar[str]

    def __new__(cls, *_: Any, **settings: Any) -> Self:
        """Refuse a setting that does not exist, with the name of the nearest one."""
        known = inspect.signature(cls.__init__).parameters if settings else {}
        for name in settings:
            if name not in known and all(parameter.kind is not parameter.VAR_KEYWORD for parameter in known.values()):
                known = settings_of(cls)
                counts = name[:2] == "n_" and name[2:] in known  # as Captum writes n_steps
                hint = did_you_mean(name[2:] if counts else name, known, f"its settings: {_list(known)}")
                raise TypeError(f"{cls.__name__} has no setting {name!r}; {hint}")
        return super().__new__(cls)

    def __init_subclass__(cls, **known: Any) -> None:
        super().__init_subclass__(**known)
        cls.__repr__ = Settings.__repr__  # a dataclass keeps what its class defines

    def __repr__(self) -> str:
        fields = [one for one in dataclasses.fields(cast(Any, self)) if one.repr]
        made = {one.name: one.default_factory() for one in fields if one.default_factory is not dataclasses.MISSING}
        values = ((one.name, getattr(self, one.name), made.get(one.name, one.default)) for one in fields)
        shown = (f"{name}={value!r}" for name, value, default in values if value != default)
        return f"{type(self).__name__}({', '.join(shown)})"

    def __post_init__(self) -> None:
        """Check every setting; a subclass that has further checks calls this one first."""
        for name, setting in settings_of(type(self)).items():
            setting.check(getattr(self, name))

    @classmethod
    def preset(cls, name: str, /) -> Self:
        """Return the settings that a name stands for.

        Args:
            name: A key of ``presets``.

        Returns:
            The configured method or metric.

        Raises:
            InputError: If there is no such preset.
        """
        if name not in cls.presets:
            hint = did_you_mean(name, cls.presets, f"known: {_list(cls.presets)}")
            raise InputError(f"{cls.name} has no {name!r}", argument="preset", hint=hint)
        return cls(**cls.presets[name])

    def record(self) -> dict[str, Any]:
        """Return the name and all settings as plain data."""
        names = [field.name for field in dataclasses.fields(cast(Any, self))]
        return {self.record_key: self.name, **{name: getattr(self, name) for name in names}}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Make a method or metric from its record.

        Args:
            record: What :meth:`record` returned, possibly read from JSON: lists become tuples. Settings that it does
                not name have their defaults.

        Returns:
            The configured method or metric; its record is equal to ``record``.

        Raises:
            InputError: If the record is of something else, or has an unknown setting or a value that is not taken.
        """
        if record.get(cls.record_key, cls.name) != cls.name:
            raise InputError(f"record: got that of {record[cls.record_key]!r}, expected that of {cls.name!r}")
        values = {name: tuples_of(value) for name, value in record.items() if name != cls.record_key}
        cls._check_names(values)
        return cls(**values)

    def with_text(self, texts: Mapping[str, str]) -> Self:
        """Replace settings by values that are given as texts.

        Args:
            texts: Texts by setting, as typed on a command line: ``{"steps": "20", "reference": "0.5,0.5"}``.

        Returns:
            The method or metric with these settings.

        Raises:
            InputError: If a setting is unknown, or does not take what a text stands for.
        """
        self._check_names(texts)
        known = settings_of(type(self))
        values = {name: known[name].check(text, text=True) for name, text in texts.items()}
        return dataclasses.replace(cast(Any, self), **values)

    @classmethod
    def describe(cls) -> list[dict[str, Any]]:
        """Return each setting as plain data: name, default, what it takes, search range or choices, unit and help."""
        return [
            {
                "name": name,
                "default": setting.default,
                "expected": setting.expected,
                "low": None if setting.search is None else setting.search.low,
                "high": None if setting.search is None else setting.search.high,
                "log": setting.search is not None and setting.search.log,
                "choices": setting.choices,
                "unit": setting.doc.unit,
                "help": setting.doc.text,
            }
            for name, setting in settings_of(cls).items()
        ]

    @classmethod
    def search_space(cls) -> dict[str, Setting]:
        """Return the settings that have a search range or choices, by name."""
        known = settings_of(cls).items()
        return {name: setting for name, setting in known if setting.search is not None or setting.choices is not None}

    @classmethod
    def _check_names(cls, names: Iterable[str]) -> None:
        known = settings_of(cls)
        for name in names:
            if name not in known:
                hint = did_you_mean(name, known, f"its settings: {_list(known)}")
                raise InputError(f"{cls.name} has no setting {name!r}", hint=hint)


def refuse_unknown(names: Iterable[str], known: Iterable[str], kind: str) -> None:
    """Raise InputError, with the nearest name, for one of ``names`` that is not among the ``known``."""
    known = list(known)
    for name in map(str, names):
        if name not in known:
            hint = did_you_mean(name, known, f"the {kind}s: {', '.join(known)}")
            raise InputError(f"unknown {kind} {name!r}", hint=hint)


Configured = TypeVar("Configured", bound=Settings)


def with_settings(base: Configured, texts: Mapping[str, str]) -> Configured:
    """Replace settings of a method, metric or scene by texts that a caller typed.

    Args:
        base: The method, metric or scene.
        texts: Texts by setting: ``{"steps": "20", "delta_euc": "none"}``.

    Returns:
        The same with these settings.

    Raises:
        InputError: For a setting or value that it does not take, as an error of the argument ``set``.
    """
    try:
        return base.with_text(texts)
    except InputError as error:
        raise InputError(str(error), argument="set") from error


@cache
def settings_of(kind: type) -> dict[str, Setting]:
    """Return the settings of a class of methods or metrics, or of options, by name, in the order of the fields."""
    if not issubclass(kind, BaseModel):
        hints = get_type_hints(kind, include_extras=True)
        return {field.name: Setting(field.name, field.default, hints[field.name]) for field in dataclasses.fields(kind)}
    words: Mapping[str, str] = getattr(kind, "expected", {})
    settings: dict[str, Setting] = {}
    for name, field in kind.model_fields.items():
        doc = next((m for m in field.metadata if isinstance(m, Doc)), Doc(field.description or ""))
        doc = dataclasses.replace(doc, takes=words.get(name) or doc.takes)
        hint = cast(Any, Annotated)[(field.annotation, *field.metadata, doc)]
        default = dataclasses.MISSING if field.is_required() else field.get_default()
        settings[name] = Setting(name, default, hint)
    return settings


# -- options ----------------------------------------------------------------------------------------------------------


class Options(BaseModel):
    """Base class of options, which are converted: an unknown name and a wrong value are an InputError that names the
    field.

    Attributes:
        expected: Accepted values, in words, of fields that take other ones than their type does.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, protected_namespaces=())
    expected: ClassVar[Mapping[str, str]] = {}

    def __init__(self, **values: Any):
        refuse_unknown(values, type(self).model_fields, "field")
        values = {name: os.fspath(v) if isinstance(v, os.PathLike) else v for name, v in values.items()}
        try:
            super().__init__(**values)
        except ValidationError as error:
            name = str(error.errors()[0]["loc"][0])
            raise settings_of(type(self))[name].refusal(error.errors()[0]["input"], error) from error


S = TypeVar("S", bound=Settings)


def _by_spelling(name: str, registry: Mapping[str, type[S]]) -> type[S]:
    """Find a class of the ``registry`` by its name in Python, or by its title in words.

    Only letters and digits are compared, without case. Raises InputError if no class has this name; the message
    suggests the class with the most similar one, or the method of another library: ``captum:occlusion``.
    """
    spellings = _spellings(registry)
    if _letters(name) in spellings:
        return registry[spellings[_letters(name)]]
    key = next(iter(registry.values())).record_key
    others = [(known, kind) for known, kind in registry.items() if getattr(kind, "form", "").endswith(":NAME")]
    spellings = {_letters(name): f"{known}:{name}" for known, kind in others for name in kind.presets} | spellings
    known = _list(getattr(kind, "form", "") or known for known, kind in registry.items())
    hint = did_you_mean(
        _letters(name), spellings, f"known {key}s: {known}", shown=spellings, cutoff=0.55
    )  # lime is no rise
    raise InputError(f"got {name!r}", argument=key, hint=hint)


def configured(given: S | str, base: type[S], registry: Mapping[str, type[S]], example: str, hint: str = "") -> S:
    """Make what a reference names in the ``registry``; what is of the ``base`` class already is returned as it is.

    Raises InputError for anything else, with an ``example`` of it and this ``hint``, and for an unknown name or preset.
    """
    if isinstance(given, base):
        return given
    if not isinstance(given, str):
        message = f"got {given!r}, expected a name or a configured {base.record_key} such as {example}"
        raise InputError(message, argument=base.record_key, hint=hint or None)
    reference = Reference.parse(given)
    name = reference.name
    kind = registry[name] if name in registry else _by_spelling(name, registry)
    number = getattr(kind, "number", None)
    if reference.number is not None and number is None:
        raise InputError(f"got {given!r}, but {kind.name} takes no number in brackets", argument=kind.record_key)
    try:
        made = kind() if reference.rest is None else kind.preset(reference.rest)
        return made if reference.number is None else made.with_text({str(number): reference.number})
    except InputError as error:  # the preset and the number are parts of this name
        text = error.message if error.argument in (kind.record_key, "preset") else f"{error.argument}: {error.message}"
        raise InputError(text, argument=kind.record_key, hint=error.hint) from error


def canonical_name(text: str, registry: Mapping[str, type[Settings]]) -> str:
    """Spell the names in ``NAME``, ``NAME:PRESET`` and ``MODIFIER(NUMBER):NAME`` as the registry does.

    A name that is not known stays as it is.
    """
    reference = Reference.parse(text)
    name, rest = reference.name, reference.rest
    known = name if name in registry else _spellings(registry).get(_letters(name), name)
    if rest is not None and known in registry and "of" in settings_of(registry[known]):  # what it modifies has a name
        rest = canonical_name(rest, registry)
    return str(dataclasses.replace(reference, name=known, rest=rest))


def _spellings(registry: Mapping[str, type[Settings]]) -> dict[str, str]:
    """Names of the registry by the letters of whatever their classes are called; a title never hides a name."""
    titles = {name: getattr(kind, "title", "").split(":") for name, kind in registry.items()}
    spellings = {_letters(part): name for name, parts in titles.items() for part in parts}
    spellings |= {_letters(kind.__name__): name for name, kind in registry.items()}
    spellings |= {_letters(name): name for name in registry}
    spellings.pop("", None)
    return spellings


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9+]", "", unicodedata.normalize("NFKC", text).lower())


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _is_too_large(value: Any) -> bool:
    """Whether computations would leave the range of a tensor: of 64-bit integers, or of single precision."""
    if isinstance(value, tuple):
        return any(map(_is_too_large, cast("tuple[Any, ...]", value)))
    return (isinstance(value, int) and abs(value) >= 2**63) or (isinstance(value, float) and abs(value) > _MOST)


def tuples_of(value: Any) -> Any:
    """Return nested lists as tuples."""
    return tuple(map(tuples_of, cast(list[Any], value))) if isinstance(value, (list, tuple)) else value


def _bare(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _metadata(hint: Any) -> tuple[Any, ...]:
    return hint.__metadata__ if get_origin(hint) is Annotated else ()


def _members(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the hint itself."""
    bare = _bare(hint)
    return get_args(bare) if get_origin(bare) in (Union, UnionType) else (hint,)


_NOUNS = {float: "number", int: "whole number"}
_TYPES = {bool: "true or false", NoneType: "none", str: "text", Path: "text"}
_LIMITS = {Gt: ("above", "gt"), Ge: ("of at least", "ge"), Lt: ("below", "lt"), Le: ("of at most", "le")}


def _words(hint: Any) -> str:
    """What an annotation allows, in words."""
    members = _members(hint)
    if len(members) > 1:
        *first, last = dict.fromkeys(map(_words, members))
        return f"{', '.join(first)} or {last}" if first else last
    bare = _bare(hint)
    if get_origin(bare) is Literal:
        choices = ", ".join(map(str, get_args(bare)))
        return choices if len(get_args(bare)) == 1 else f"one of {choices}"
    if get_origin(bare) in (tuple, list) and get_args(bare)[0] is str:
        return "a list of texts"
    if get_origin(bare) is tuple:
        return "lists of numbers" if get_origin(get_args(bare)[0]) is tuple else "numbers with commas between them"
    if bare not in _NOUNS:
        bare = get_origin(bare) or bare
        return _TYPES.get(bare) or getattr(bare, "__name__", str(bare))
    metadata = _metadata(hint)
    adjectives = ["positive" for m in metadata if m == Gt(0)]
    adjectives += [m.func.__name__ for m in metadata if isinstance(m, Predicate)]
    limits = [f"{_LIMITS[type(m)][0]} {getattr(m, _LIMITS[type(m)][1])}" for m in metadata if type(m) in _LIMITS]
    limits = [text for text in limits if text != "above 0"]
    phrase = " ".join([*adjectives, _NOUNS[bare]])
    return " ".join([f"a{'n' if phrase[0] in 'aeiou' else ''} {phrase}", " and ".join(limits)]).strip()
