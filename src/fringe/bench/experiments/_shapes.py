"""What the records of a run must hold: a run folder may come from a stranger, or from a newer version."""

import json
import re
from functools import cache
from typing import (
    Annotated,
    Any,
    NotRequired,  # that of typing does not serve pydantic before Python 3.12
    cast,
)

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from fringe._files import RECORD_BYTES
from fringe._text import escape_surrogates
from fringe.bench.experiments._spec import PLAN_NAME

#: JSON with less than so many bytes for each of its values, and more values than ``_FEW``, would fill the memory.
_BYTES_OF_A_VALUE, _FEW = 12, 2**20

#: Kinds of records: what was asked for, tasks that end their process, the first logits of a model, recalled results.
PLAN, CRASH, LOGITS, VOID = "plan", "crash", "logits", "void"

_STRICT = ConfigDict(strict=True, extra="forbid")
_Label = Annotated[int, Field(ge=-(2**31), lt=2**31)]
_Count = Annotated[int, Field(ge=0, lt=2**53)]
_Names = dict[str, Any]


class Damaged(ValueError):
    """A file, or a row of it, is not what was written."""


def to_json(data: Any) -> bytes:
    """Write plain data as JSON."""
    return json.dumps(data, separators=(",", ":")).encode()


def from_json(content: bytes) -> Any:
    """Read JSON that does not fill the memory. Raises ValueError or RecursionError for other bytes."""
    values = sum(map(content.count, (b",", b"[", b"{")))
    if len(content) > RECORD_BYTES or (values > _FEW and values * _BYTES_OF_A_VALUE > len(content)):
        raise Damaged("it would fill the memory")
    return json.loads(content)


class _Image(TypedDict):
    __pydantic_config__ = _STRICT  # pyright: ignore[reportGeneralTypeIssues]
    digest: str
    id: str
    source: str
    label: _Label | None
    scene: NotRequired[str]
    cluster: NotRequired[str]
    target: NotRequired[_Label]


class _Plan(TypedDict):
    __pydantic_config__ = _STRICT  # pyright: ignore[reportGeneralTypeIssues]
    name: str
    data: list[str]
    models: dict[str, str]
    preprocessing: _Names
    methods: dict[str, dict[str, _Names]]
    metrics: dict[str, _Names]
    limits: dict[str, _Count]
    n: _Count
    seed: _Count
    target: str | int
    score: str
    exif: str
    references: str | None
    model_output: NotRequired[dict[str, str]]
    last: NotRequired[bool]
    sample: NotRequired[bool]
    scenes: NotRequired[dict[str, _Names]]
    examples: NotRequired[dict[str, _Count]]


class _Metric(TypedDict):
    __pydantic_config__ = _STRICT  # pyright: ignore[reportGeneralTypeIssues]
    title: str
    direction: str | None
    unit: str
    space: str
    source: str
    summary: str
    settings: _Names
    key: str
    limit: _Count


class _Gate(TypedDict):
    __pydantic_config__ = _STRICT  # pyright: ignore[reportGeneralTypeIssues]
    name: str
    value: float
    least: float | None
    most: float | None
    holds: bool
    text: str


class _Network(TypedDict):
    __pydantic_config__ = _STRICT  # pyright: ignore[reportGeneralTypeIssues]
    given: str | None
    number: int
    gates: list[_Gate]


class _Scene(TypedDict):
    __pydantic_config__ = _STRICT  # pyright: ignore[reportGeneralTypeIssues]
    title: str
    source: str
    answer: str
    settings: _Names
    networks: dict[str, _Network]


class _Setting(TypedDict):
    __pydantic_config__ = ConfigDict(extra="allow")  # pyright: ignore[reportGeneralTypeIssues]
    model: _Names
    method: _Names


class _Manifest(TypedDict):
    __pydantic_config__ = _STRICT  # pyright: ignore[reportGeneralTypeIssues]
    plan: _Plan
    images: list[_Image]
    missing: list[str]
    settings: dict[str, dict[str, _Setting]]
    metrics: dict[str, _Metric]
    models: dict[str, _Names]
    versions: dict[str, str]
    scenes: NotRequired[dict[str, _Scene]]


class _Crash(TypedDict):
    model: str
    method: str
    reason: str
    setting: dict[str, Any]
    setting_key: str
    metric_keys: list[str]
    images: list[str]


def record_problem(kind: str, name: str, record: Any) -> str:
    """What is wrong with a record; empty if nothing is."""
    if record is None:  # it was removed
        return ""
    if kind == VOID:
        return _problem(dict[str, int], record)
    return _plan_problem(name, record) if kind == PLAN else _problem(_Crash, record) if kind == CRASH else ""


def _plan_problem(name: str, record: Any) -> str:
    """What is wrong with the record of a plan; empty if it is one of this version."""
    if not re.fullmatch(PLAN_NAME, name) or len(name) > 200:
        return "its name is none of a plan"  # reports are written to folders of these names
    if problem := _problem(_Manifest, record):
        return problem
    known = cast(dict[str, Any], record)
    # names are printed; those of files may be any, whose bytes need not be UTF-8
    labels = {part: list(known["plan"][part]) for part in ("models", "preprocessing")}
    plan = {**known["plan"], **labels, "data": [], "references": None}
    models = {label: {**model, "spec": None} for label, model in known["models"].items()}
    images = [{**image, "source": None} for image in known["images"]]
    try:
        printed = {**known, "plan": plan, "models": models, "images": images, "missing": []}
        json.dumps(printed, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "a name holds half of a character"
    parts = known["settings"].keys(), known["models"].keys(), known["plan"]["methods"].keys()
    if known["plan"]["name"] != name or not parts[0] <= parts[1] or not parts[0] <= parts[2]:
        return "its parts do not belong together"
    labels = {image.get("scene") for image in known["images"]}
    is_scenic = labels <= known["scenes"].keys() if known.get("scenes") else labels <= {None}
    return "" if is_scenic else "its images are of no scene"


@cache
def _reader(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _problem(kind: Any, record: Any) -> str:
    try:
        _reader(kind).validate_python(record)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))[:80]}: {first['msg']}"
    return ""


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and escape_surrogates(value) == value


def is_shared(shared: Any, metrics: int) -> bool:
    """Whether what tasks share names a model, a method, the metrics and versions, as this program writes it."""
    lists = [shared[name] for name in ("labels", "details", "map_versions")]
    tables = [shared[name] for name in ("setting", "metrics", "versions")]
    if not all(isinstance(one, list) for one in lists) or len(shared["labels"]) != metrics:
        return False
    texts = [shared["model"], shared["method"], *shared["labels"], *shared["details"]]
    texts += [
        version for one in (shared["versions"], *shared["map_versions"]) for pair in one.items() for version in pair
    ]
    return all(map(_is_text, texts)) and all(isinstance(one, dict) for one in tables)


def are_notes(notes: Any, size: int) -> bool:
    """Whether the notes of a task are flags and errors of its scores."""
    texts = [*notes["verdicts"], *(flag for flags, _, _ in notes["scores"] for flag in flags)]
    texts += [error for _, error, _ in notes["scores"] if error is not None]
    positions = [at for _, _, positions in notes["scores"] for at in positions]
    return all(map(_is_text, texts)) and all(type(at) is int and 0 <= at < size for at in positions)
