"""What the records of a run must hold: a run folder may come from a stranger, or from a newer version."""

import json
import re
from functools import cache
from typing import Annotated, Any, cast

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import NotRequired, TypedDict  # that of typing does not serve pydantic before Python 3.12

from fringe.errors import first_line
from fringe.experiments._spec import PLAN_NAME

_STRICT = ConfigDict(strict=True, extra="forbid")
_Label = Annotated[int, Field(ge=-(2**31), lt=2**31)]
_Count = Annotated[int, Field(ge=0, lt=2**53)]
_Names = dict[str, Any]


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


def plan_problem(name: str, record: Any) -> str:
    """What is wrong with the record of a plan; empty if it is one of this version."""
    if not re.fullmatch(PLAN_NAME, name) or len(name) > 200:
        return "its name is none of a plan"  # reports are written to folders of these names
    if problem := _problem(_Manifest, record):
        return problem
    known = cast(dict[str, Any], record)
    try:  # names are printed; those of images may be any of a file
        json.dumps({part: value for part, value in known.items() if part != "images"}, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "a name holds half of a character"
    parts = known["settings"].keys(), known["models"].keys(), known["plan"]["methods"].keys()
    if known["plan"]["name"] != name or not parts[0] <= parts[1] or not parts[0] <= parts[2]:
        return "its parts do not belong together"
    labels = {image.get("scene") for image in known["images"]}
    is_scenic = labels <= known["scenes"].keys() if known.get("scenes") else labels <= {None}
    return "" if is_scenic else "its images are of no scene"


def crash_problem(record: Any) -> str:
    """What is wrong with the record of a task that ended its process; empty if it is one."""
    return _problem(_Crash, record)


@cache
def _reader(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _problem(kind: Any, record: Any) -> str:
    try:
        _reader(kind).validate_python(record)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))[:80]}: {first_line(first['msg'])}"
    return ""
