"""What an experiment computes: one model for Python, for a configuration file and for the options of a command."""

import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import Field, PlainValidator, StrictBool, StrictInt, ValidationInfo

from fringe._files.disk import SETTINGS_BYTES, read_regular
from fringe._network.outputs import OutputKind
from fringe._strings.names import LABEL, read_list, read_pair, split_label, split_path, unique
from fringe.attribution import METHODS
from fringe.bench.scenes import SCENES
from fringe.errors import InputError, wrong_value
from fringe.metrics import METRICS
from fringe.models import LoadedModel, beside
from fringe.settings import Options, canonical_name, refuse_unknown

_REGISTRIES: Mapping[str, Mapping[str, Any]] = {"methods": METHODS, "metrics": METRICS, "scene": SCENES}
#: What to do about a label that is given twice.
_HINTS = {
    "methods": "give each its own label, as in short=ig,long=ig",
    "metrics": "name each once",
    "scene": "give each its own label, as in four=gridpg,nine=gridpg:nine",
}
#: What a plan may be called: it names a file and a folder.
PLAN_NAME = r"[\w-]+"
#: The time to parse a TOML key grows with the square of its parts.
_LONG_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){16}""")
_TYPED_ONLY = "trust_code"
_TYPED_HINT = "workers, save_maps and other options that change no number are not read from a file"

#: The methods that the paper compares, with presets that explain an image with some hundreds of gradients.
QUICK_METHODS: Mapping[str, str] = {
    **{name: name for name in ("fringe", "ig", "smoothgrad")},
    "guided_ig": "guided_ig:quick",
    "agi": "agi:paper",
    **{name: f"{name}:quick" for name in ("ig2", "ggig", "geoig_svi")},
}


def _beside(specs: Mapping[str, Any], config: Path) -> dict[str, Any]:
    """Models or methods by label, with the path to Python files that lie beside the configuration file."""
    paths = [(name, text, beside(text, config) if isinstance(text, str) else text) for name, text in specs.items()]
    return {path if name == text else name: path for name, text, path in paths}


def _texts(value: Any, argument: str, expected: str = "text or a list of texts") -> tuple[str, ...]:
    """A text or a list of texts as a tuple."""
    values: Sequence[Any] = (value,) if isinstance(value, (str, os.PathLike)) else value
    if not isinstance(values, (list, tuple)) or not all(isinstance(v, (str, os.PathLike)) for v in values):
        raise wrong_value(argument, value, expected)
    return tuple(map(os.fspath, values))


def _required(values: Any, argument: str) -> Any:
    if not values:
        raise InputError("none given", argument=argument, hint="name at least one, or leave it out")
    return values


def _models(value: Any) -> dict[str, Any]:
    """Models by label; a spec without a label stands under itself."""
    if isinstance(value, Mapping):
        table = cast(Mapping[str, Any], value)
        wrong = next((label for label in table if not re.fullmatch(LABEL, label) and table[label] != label), None)
        if wrong is not None:
            message = f"the label {wrong!r} holds more than letters, digits, '_', '-' and '.'"
            raise InputError(message, argument="model")
        if any(isinstance(spec, (int, float, list, dict, type(None))) for spec in table.values()):
            raise wrong_value("model", value, _EXPECTED["model"])
        return _required(dict(table), "model")
    if isinstance(value, LoadedModel):
        return {value.label: value}
    if callable(value):
        return {"model": value}
    texts = _required(_texts(value, "model", _EXPECTED["model"]), "model")
    pairs = [(label or spec, spec) for label, spec in map(split_label, texts)]
    return unique(pairs, "model", "tell them apart with LABEL=SPEC")


def _configurable(value: Any, info: ValidationInfo) -> dict[str, Any]:
    """Methods, metrics or scenes by label: texts, configured objects, or pairs of a label and either."""
    argument = str(info.field_name)
    if isinstance(value, Mapping):
        return _required(dict(cast(Mapping[str, Any], value)), argument)
    entries: Any = read_list(value) if isinstance(value, str) else value
    if not isinstance(entries, (list, tuple)):
        entries = [entries]
    pairs = [_entry(entry, argument) for entry in cast(Sequence[Any], entries)]
    return _required(unique(pairs, argument, _HINTS[argument]), argument)


def _entry(entry: Any, argument: str) -> tuple[str, Any]:
    if isinstance(entry, str):
        label, name = split_label(entry, "[^=]+") if argument in ("methods", "scene") else ("", entry.strip())
        name = canonical_name(name, _REGISTRIES[argument])
        return label or name, name
    if isinstance(entry, (list, tuple)) and len(cast(Sequence[Any], entry)) == 2:
        return cast(tuple[str, Any], tuple(cast(Sequence[Any], entry)))
    name = getattr(entry, "label", getattr(entry, "name", None))
    if isinstance(name, str) and hasattr(entry, "record"):
        return name, entry
    raise wrong_value(argument, entry, "a name, a configured object, or a pair of a label and either")


def _settings(value: Any) -> dict[str, dict[str, str]]:
    """Settings by label and key, each as it would be typed: from a nested or dotted table, or from texts."""
    if not isinstance(value, Mapping):
        form = "LABEL.KEY=VALUE, such as ig.steps=20"
        leaves = [(text, *read_pair(text, "set", form)) for text in _texts(value, "set")]
    else:
        form = "a table of settings by method or metric, such as 'ig.steps' = 20"
        leaves = [(path, path, text) for path, text in _leaves(cast(Mapping[str, Any], value))]
    result: dict[str, dict[str, str]] = {}
    for typed, path, text in leaves:
        label, key = split_path(path)
        if not label:
            raise wrong_value("set", typed, form)
        result.setdefault(label, {})[key] = text
    return result


def _leaves(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    leaves: list[tuple[str, str]] = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            leaves += _leaves(cast(Mapping[str, Any], value), f"{prefix}{key}.")
        else:
            typed = "none" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)
            leaves.append((f"{prefix}{key}", typed))
    return leaves


def _limits(value: Any) -> dict[str, int]:
    form = "METRIC=N with N of at least 1, such as max_sensitivity=64"
    pairs: list[tuple[str, Any]]
    if isinstance(value, Mapping):
        pairs = list(cast(Mapping[str, Any], value).items())
    else:
        texts = (read_pair(text, "limits", form) for text in _texts(value, "limits"))
        pairs = [(name, int(n) if n.isascii() and n.isdigit() else n) for name, n in texts]
    wrong = next((f"{name}={n}" for name, n in pairs if type(n) is not int or n < 1), None)
    if wrong is not None:
        raise wrong_value("limits", wrong, form)
    return dict(pairs)


def _target(value: Any) -> str | int:
    text = str(value)
    if isinstance(value, bool) or not (text in ("predicted", "label") or (text.isascii() and text.isdigit())):
        raise wrong_value("target", value, _EXPECTED["target"])
    return text if text in ("predicted", "label") else int(text)


_EXPECTED = {
    "name": "letters, digits, _ and -: it names a file",
    "model": "a spec, a list of specs, or a table of specs by label",
    "target": "'predicted', 'label' or the number of a class",
}


@dataclass(frozen=True)
class Changes:
    """What the value of an option changes: the maps, so that they have other keys; scores alone, so that a run with
    another value is refused in the same folder; or no number."""

    what: Literal["maps", "scores", "nothing"]


class ExperimentSpec(Options):
    """What an experiment computes: models, methods and metrics, and the images that they are compared on.

    The fields are the keys of a TOML file (:meth:`from_file`), the options of the commands and arguments in
    Python, where ``model`` also takes specs or modules by label, and ``methods``, ``metrics`` and ``scene`` take
    configured objects: by label, in pairs of a label and one, or alone. ``set`` takes a table, too, as in
    ``{"ig.steps": 20}``. A scene makes the networks and the images; ``n`` is then the number of examples of each scene,
    and ``limits`` may name scenes. Metrics that are not named are those with ``by_default``, or with a scene those of
    localisation. :func:`fringe.bench.experiments.build_plan` looks names up and loads models.

    A field with the mark :class:`Changes` is an option that a plan takes as it is: the flag, the key of files, what a
    run records and refuses, and the keys of maps follow from the field.

    Raises:
        InputError: For an unknown field, or a value that a field does not take.
    """

    expected: ClassVar[Mapping[str, str]] = _EXPECTED

    if TYPE_CHECKING:  # the fields are converted from more than their types

        def __init__(self, **values: Any): ...

    name: Annotated[str, Changes("nothing")] = Field(
        "benchmark", pattern=rf"^{PLAN_NAME}$", description="Name of the plan; a run folder may hold several."
    )
    model: Annotated[Mapping[str, Any], PlainValidator(_models)] = Field(
        {}, description="SPEC or LABEL=SPEC; may be repeated. embedded:digits needs none."
    )
    data: Annotated[tuple[str, ...], PlainValidator(lambda value: _required(_texts(value, "data"), "data"))] = Field(
        (), description="Images, folders or embedded:digits; may be repeated."
    )
    methods: Annotated[Mapping[str, Any], PlainValidator(_configurable)] = Field(
        QUICK_METHODS,
        description="NAME, NAME:PRESET, LABEL=NAME or file.py:NAME, with commas; paper:auto is the paper's setting.",
    )
    metrics: Annotated[Mapping[str, Any] | None, PlainValidator(_configurable)] = Field(
        None, description="NAME or NAME:PRESET, with commas. Default: the first 11 of 'fringe metrics', curves twice."
    )
    scene: Annotated[Mapping[str, Any], PlainValidator(_configurable)] = Field(
        {}, description="NAME, NAME:PRESET or LABEL=NAME, with commas: tests with a known answer."
    )
    set: Annotated[Mapping[str, Mapping[str, str]], PlainValidator(_settings)] = Field(
        {}, description="LABEL.KEY=VALUE: a setting of a method or metric; may be repeated."
    )
    preset: str | None = Field(None, description="Tuned preset file; the images it was tuned on are left out.")
    limits: Annotated[Mapping[str, int], PlainValidator(_limits)] = Field(
        {"max_sensitivity": 8}, description="METRIC=N: compute a metric on the first N images only; may be repeated."
    )
    n: Annotated[StrictInt, Changes("scores")] = Field(100, ge=1, description="Number of images, sampled by the seed.")
    sample: Annotated[StrictBool, Changes("scores")] = Field(
        True, description="Draw the images; if not, take the first ones in their order."
    )
    seed: Annotated[StrictInt, Changes("maps")] = Field(
        0, ge=0, lt=2**53, description="Samples the images and keys all randomness."
    )
    target: Annotated[str | int, PlainValidator(_target), Changes("maps")] = Field(
        "predicted", description="Class to explain: 'predicted' (top-1), 'label', or a class number."
    )
    boxes: Annotated[str | None, Changes("scores")] = Field(
        None,
        description="Boxes of a detector, each by itself: 'predicted', how many of an image, or X0,Y0,X1,Y1[;X0,...].",
    )
    score: Annotated[Literal["logit", "log_probability", "probability"], Changes("maps")] = Field(
        "logit", description="Explained score."
    )
    exif: Annotated[Literal["transpose", "ignore"], Changes("maps")] = Field(
        "ignore", description="Apply or ignore the EXIF orientation."
    )
    references: Annotated[str | None, Changes("maps")] = Field(
        None, description="Images for methods that average over data (at most 64 are taken). Default: the data itself."
    )
    controls: Annotated[StrictBool, Changes("nothing")] = Field(
        True, description="Also score maps that do not depend on the model."
    )
    preprocessing: str | None = Field(
        None, description="'imagenet', 'unit', or resize=256,crop=224,mean=0.5,std=0.5. Default: the model's own."
    )
    trust_code: StrictBool = Field(
        False, description="Allow the model's author to run code; a configuration file cannot."
    )
    model_output: OutputKind = Field("auto", description="What the model returns.")
    shard: Annotated[StrictInt, Changes("nothing")] = Field(16, ge=1, description="Images of one task.")

    @classmethod
    def from_file(cls, config: str | Path) -> Self:
        """Read the fields that a TOML file names.

        Args:
            config: A file of at most 1 MiB.

        Returns:
            The specification; fields that the file does not name are unset. A Python file of a model or a method that
            is not found otherwise may lie beside this file.

        Raises:
            InputError: If the file cannot be read, or a key or value is wrong. A file cannot set ``trust_code``.
        """
        content = _read(Path(config))
        if _TYPED_ONLY in content:
            raise InputError(
                f"a file cannot trust code ({str(config)!r})",
                argument=_TYPED_ONLY,
                hint="set it yourself, outside files",
            )
        try:
            refuse_unknown(content, [key for key in cls.model_fields if key != _TYPED_ONLY], "key")
            spec = cls(**content)
            beside_config = {name: _beside(getattr(spec, name), Path(config)) for name in ("model", "methods")}
            return spec.model_copy(update={name: v for name, v in beside_config.items() if name in content})
        except InputError as error:
            text, argument = f"{error.message} (in {str(config)!r})", error.argument or "config"
            unknown = not content.keys() <= cls.model_fields.keys()
            hint = f"{error.hint}; {_TYPED_HINT}" if unknown else error.hint
            raise InputError(text, argument=argument, hint=hint) from error

    def over(self, other: "ExperimentSpec") -> Self:
        """Combine two specifications.

        Args:
            other: Fills the fields that were not set here. ``set`` is merged: the settings of ``other`` apply unless
                they are set here, or belong to a method or metric of ``other`` that this specification replaces.

        Returns:
            The combined specification.
        """
        merged = {**_given(other), **_given(self)}
        replaced = _labels(_given(other)) - _labels(merged)
        result: dict[str, dict[str, str]] = {
            label: dict(one) for label, one in other.set.items() if label not in replaced
        }
        for label, settings in self.set.items():
            result[label] = {**result.get(label, {}), **settings}
        return type(self)(**{**merged, **({"set": result} if "set" in merged else {})})


def options_of(*what: str) -> dict[str, Any]:
    """The options of experiments that change what these words say, with their defaults; all of them without a word."""
    marks = {
        name: (field.default, one.what)
        for name, field in ExperimentSpec.model_fields.items()
        for one in field.metadata
        if isinstance(one, Changes)
    }
    return {name: default for name, (default, word) in marks.items() if not what or word in what}


def _given(spec: ExperimentSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in spec.model_fields_set}


def _labels(given: Mapping[str, Any]) -> frozenset[str]:
    """What the methods and metrics that were chosen are called."""
    return frozenset((*given.get("methods", ()), *(given.get("metrics") or ()), *given.get("scene", ())))


def _read(path: Path) -> dict[str, Any]:
    name = str(path)
    try:
        text = read_regular(path, SETTINGS_BYTES).decode()
        if _LONG_KEY.search(text):
            raise ValueError("a key has more than 16 parts with dots between them")
        return tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {name!r} ({error})", argument="config") from error
    except RecursionError:
        raise InputError(f"{name!r} nests its values too deeply to be read", argument="config") from None
    except ValueError as error:
        raise InputError(f"{name!r} is no valid TOML ({error})", argument="config") from error
