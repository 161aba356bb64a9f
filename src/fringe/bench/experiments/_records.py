"""What a run stores: a map, the scores of a task as arrays, and records; and what these must hold, as a run folder may
come from a stranger, or from a newer version."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,  # that of typing does not serve pydantic before Python 3.12
    cast,
    get_args,
)

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from torch import Tensor
from typing_extensions import TypedDict

from fringe._files.disk import RECORD_BYTES
from fringe._files.records import digest
from fringe._strings.formats import escape_surrogates
from fringe.bench.experiments._spec import PLAN_NAME
from fringe.metrics import Scores

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


#: What became of an image under a method: a score, or why there is none.
Status = Literal["ok", "diverged", "not_finite", "failed", "unreadable"]
#: A status is stored as its place in this list, to which a new one is appended.
STATUSES: tuple[str, ...] = ("missing", *get_args(Status))
MISSING, OK = 0, 1

#: What holds for a map whatever the metric; ``verdict`` is a place in the task's list of verdicts, 0 for none.
MAP = np.dtype(
    [("target", "<i4"), ("batch", "<i4"), ("verdict", "u1")]
    + [(name, "<f8") for name in ("confidence", "forward", "jvp", "vjp", "seconds")]
)
NO_TARGET = np.iinfo(np.int32).min
_TYPES = {"curve": np.float32, "extra": np.float64, "diagnostic": np.float64}

#: Arrays of a task by name.
Details = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class StoredMap:
    """An image's map ``values`` (C, H, W), and by name what holds whatever the metric: target, confidence, status,
    error, verdict, diagnostics, and the image's share of the passes and seconds that the maps of its batch took;
    ``versions`` are those of the libraries that made it."""

    values: Tensor
    metadata: Mapping[str, Any]
    versions: Mapping[str, str] = field(default_factory=dict[str, str])

    def to_bytes(self) -> bytes:
        """Write the map as a safetensors file, the facts in its header."""
        from safetensors.torch import save

        header = {"facts": json.dumps(self.metadata), "versions": json.dumps(self.versions)}
        return save({"map": self.values.detach().cpu().contiguous()}, header)

    @classmethod
    def from_bytes(cls, content: bytes) -> "StoredMap":
        """Read what :meth:`to_bytes` wrote. Raises ValueError or KeyError for other bytes."""
        from safetensors.torch import load

        length = int.from_bytes(content[:8], "little")  # the format: length of a JSON header, header, numbers
        header = json.loads(content[8 : 8 + length])["__metadata__"]
        facts = dict[str, Any](json.loads(header["facts"]))
        if "diagnostics" in facts:  # JSON knows no pairs
            facts["diagnostics"] = list(map(tuple, facts["diagnostics"]))
        return cls(load(content)["map"], facts, json.loads(header["versions"]))


@dataclass(frozen=True)
class StoredTask:
    """What one task computed: metrics for images under one setting, all named by their digests.

    Attributes:
        setting, metrics, images: Digests.
        scores: Scores (metrics, images), NaN where there is none.
        status: Places in ``STATUSES`` (metrics, images).
        maps: Records of ``MAP`` (images).
        notes: ``verdicts`` of the maps, and under ``scores`` triples of flags, error and the positions (in the
            flattened scores) that they belong to.
        shared: What many tasks share: labels, the setting in full, versions, and the names of the details.
        details: Curves, extras and diagnostics; None where they are in the store.
        row: File and number of the task in the store, and its seal.
    """

    setting: str
    metrics: tuple[str, ...]
    images: tuple[str, ...]
    scores: NDArray[np.float64]
    status: NDArray[np.uint8]
    maps: NDArray[Any]
    notes: Mapping[str, Any]
    shared: Mapping[str, Any]
    details: Details | None = None
    row: tuple[str, int, bytes] = ("", 0, b"")

    @property
    def failed_images(self) -> int:
        """Number of images of which a score was computed and is not valid."""
        return int((self.status > OK).any(0).sum())

    @property
    def key(self) -> str:
        """Name of the task, that of :class:`fringe.bench.experiments.Task`."""
        return digest([self.setting, sorted(self.metrics), self.images])

    def numbers(self) -> bytes:
        """The arrays as bytes, which :meth:`read_numbers` reads."""
        return self.scores.astype("<f8").tobytes() + self.status.tobytes() + self.maps.astype(MAP).tobytes()

    @staticmethod
    def read_numbers(content: bytes, metrics: int, images: int) -> dict[str, NDArray[Any]]:
        """Read scores, status and maps. Raises ValueError for bytes of another length."""
        size = metrics * images
        if len(content) != size * 9 + images * MAP.itemsize:
            raise ValueError("numbers of another length")
        return {
            "scores": np.frombuffer(content, "<f8", size).reshape(metrics, images),
            "status": np.frombuffer(content, np.uint8, size, size * 8).reshape(metrics, images),
            "maps": np.frombuffer(content, MAP, images, size * 9),
        }

    @classmethod
    def of(
        cls,
        setting: str,
        metrics: Sequence[str],
        made: Mapping[str, Mapping[str, Any]],
        scored: Iterable[tuple[Sequence[str], Sequence[Scores]]],
        shared: Mapping[str, Any],
    ) -> "StoredTask":
        """Make a task of the scores of images.

        Args:
            setting, metrics: Digests.
            made: What holds for each image whatever the metric, as in :attr:`StoredMap.metadata`; an image without a
                valid map has at least a status and an error.
            scored: Some images (B), and their scores by each of the metrics; those of valid maps alone count.
            shared: ``shared`` of the task, without the names of the details.
        """
        places, shape = {image: i for i, image in enumerate(made)}, (len(metrics), len(made))
        scores, columns = np.full(shape, np.nan), dict[str, list[Any]]()
        status = np.tile(np.array([STATUSES.index(one["status"]) for one in made.values()], np.uint8), (shape[0], 1))
        errors: list[tuple[tuple[str, ...], str | None]] = [((), one.get("error")) for one in made.values()]
        words = [list(errors) for _ in metrics]
        for images, by_metric in scored:
            for m, (key, one) in enumerate(zip(metrics, by_metric, strict=True)):
                named = {f"curve/{key}/{name}": curves.float().tolist() for name, curves in one.curves.items()}
                named |= {f"extra/{key}/{name}": column[:, None].tolist() for name, column in one.details.items()}
                flags, values = {name: flag.tolist() for name, flag in one.flags.items()}, one.values.tolist()
                for k, i in enumerate(places[image] for image in images):
                    if status[m, i] != OK:
                        continue
                    if one.refusals and one.refusals[k]:
                        status[m, i], words[m][i] = STATUSES.index("failed"), ((), one.refusals[k])
                        continue
                    scores[m, i] = values[k] if math.isfinite(values[k]) else np.nan
                    words[m][i] = tuple(name for name, flag in flags.items() if flag[k]), None
                    for name, column in named.items():
                        columns.setdefault(name, [None] * shape[1])[i] = column[k]
        for i, one in enumerate(made.values()):
            for name, value in one.get("diagnostics", ()):
                columns.setdefault(f"diagnostic//{name}", [None] * shape[1])[i] = (value,)
        notes = dict[tuple[Any, ...], list[int]]()
        for at, (flags, error) in enumerate(word for row in words for word in row):
            if flags or error is not None:  # an error may name a file
                notes.setdefault((flags, None if error is None else escape_surrogates(error)), []).append(at)
        verdicts = list(dict.fromkeys(one["verdict"] for one in made.values() if one.get("verdict") is not None))
        numbers = {None: 0, **{name: i + 1 for i, name in enumerate(verdicts)}}
        empty = {"target": NO_TARGET, "batch": 1, "confidence": np.nan}
        maps = np.zeros(shape[1], MAP)
        for i, one in enumerate(made.values()):
            known = {**empty, **{name: value for name, value in one.items() if value is not None}}
            known["verdict"] = numbers[one.get("verdict")]
            maps[i] = tuple(known.get(name, 0) for name in MAP.names or ())
        return cls(
            setting,
            tuple(metrics),
            tuple(made),
            scores,
            status,
            maps,
            {"verdicts": verdicts, "scores": [[list(flags), why, at] for (flags, why), at in notes.items()]},
            {**shared, "details": list(columns)},
            {key: one for name, column in columns.items() for key, one in _ragged(name, column).items()},
        )


def read_ragged(details: Details, name: str, images: int) -> Iterator[NDArray[Any] | None]:
    """The values of each image under a name, None where it has none."""
    values, lengths = details[name], details.get(f"{name}/lengths")
    if lengths is None:
        yield from values
        return
    ends = np.cumsum(np.maximum(lengths, 0))
    for i in range(images):
        yield None if lengths[i] < 0 else values[ends[i] - lengths[i] : ends[i]]


def _ragged(name: str, column: Sequence[Sequence[float] | None]) -> dict[str, NDArray[Any]]:
    """The values of images as one array (images, N), or of different lengths one after the other."""
    lengths = np.array([-1 if values is None else len(values) for values in column], np.int32)
    kind = _TYPES[name.partition("/")[0]]
    if (lengths == lengths[0]).all():
        return {name: np.array(column, kind)}
    flat = [value for values in column if values is not None for value in values]
    return {name: np.array(flat, kind), f"{name}/lengths": lengths}
