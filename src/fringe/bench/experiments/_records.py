"""What a run stores: a row for each image under a method, maps and records; and what these must hold, as a run folder
may come from a stranger, or from a newer version."""

import hashlib
import json
import math
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,  # pydantic reads those of Python from 3.12 on
    get_args,
)

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    with_config,
)
from torch import Tensor
from typing_extensions import TypedDict

from fringe._files.disk import RECORD_BYTES
from fringe._strings.formats import escape_surrogates
from fringe.bench.experiments._spec import PLAN_NAME, options_of
from fringe.metrics import Scores

#: JSON with less than so many bytes for each of its values, and more values than ``_FEW``, would fill the memory.
_BYTES_OF_A_VALUE, _FEW = 12, 2**20

#: Kinds of records: what was asked for, and the first logits of a model.
PLAN, LOGITS = "plan", "logits"

#: What became of an image under a method: a score, or why there is none.
Status = Literal["ok", "diverged", "not_finite", "failed", "unreadable"]
#: A status is stored as its place in this list, to which a new one is appended.
STATUSES: tuple[str, ...] = ("missing", *get_args(Status))
MISSING, OK, FAILED = 0, 1, 4
NO_TARGET = np.iinfo(np.int32).min

#: What holds for a map whatever the metric.
_NUMBERS = ("confidence", "forward", "jvp", "vjp", "seconds")
_MAP = [("target", "<i4"), ("batch", "<i4"), *((name, "<f8") for name in _NUMBERS)]
#: Numbers of details by their kind.
_TYPES = {"curve": "<f4", "extra": "<f8", "diagnostic": "<f8"}

#: Arrays of an image by name: ``curve/KEY/NAME`` and ``extra/KEY/NAME`` of a metric, and ``diagnostic//NAME``.
Details = Mapping[str, NDArray[Any]]


class Damaged(ValueError):
    """A row or a record is not what was written."""


_FIRST = struct.Struct("<q24x").unpack


@cache
def row_type(metrics: int) -> np.dtype[Any]:
    """The numbers of a row with the scores of some metrics. ``shape``, ``image``, ``notes``, ``map`` and ``details``
    are fingerprints; ``map`` is 0 where none is stored."""
    names = [(name, "<i8") for name in ("id", "shape", "image", "notes", "map", "details")]
    return np.dtype([*names, *_MAP, ("score", "<f8", (metrics,)), ("status", "u1", (metrics,))])


def fingerprint(content: str | bytes) -> int:
    """The first 8 bytes of the SHA-256 of a text or of bytes, as a number that is not 0."""
    known = content if isinstance(content, bytes) else content.encode()
    return _FIRST(hashlib.sha256(known).digest())[0] or 1


def seal(*parts: str) -> bytes:
    """16 bytes of the SHA-256 of texts, each behind its length."""
    contents = [part.encode(errors="surrogatepass") for part in parts]
    return hashlib.sha256(b"".join(len(one).to_bytes(8, "little") + one for one in contents)).digest()[:16]


def to_json(data: Any) -> str:
    """Write plain data as JSON."""
    return json.dumps(data, separators=(",", ":"))


def from_json(content: str) -> Any:
    """Read JSON that does not fill the memory. Raises ValueError or RecursionError for another text."""
    values = sum(map(content.count, ",[{"))
    if len(content) > RECORD_BYTES or (values > _FEW and values * _BYTES_OF_A_VALUE > len(content)):
        raise Damaged("it would fill the memory")
    return json.loads(content)


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
class Result:
    """What was computed of one image by one method.

    Attributes:
        image: Digest.
        scores: Scores (metrics,), NaN where there is none.
        status: Places in ``STATUSES`` (metrics,).
        words: The flags of each score, and why it has none.
        made: What holds whatever the metric, as in :attr:`StoredMap.metadata`.
        details: Curves, further numbers and diagnostics.
        map: The map, if it was made now and is to be stored.
    """

    image: str
    scores: NDArray[np.float64]
    status: NDArray[np.uint8]
    words: Sequence[tuple[tuple[str, ...], str | None]]
    made: Mapping[str, Any]
    details: Details = field(default_factory=dict[str, Any])
    map: StoredMap | None = None

    @property
    def failed(self) -> bool:
        """Whether a score was computed and is not valid."""
        return bool((self.status > OK).any())

    @property
    def noted(self) -> tuple[Any, ...]:
        """What :meth:`notes` are made of."""
        return self.made.get("verdict"), *self.words

    def notes(self) -> list[Any]:
        """The verdict on the map, and the flags and reasons of scores with the places of their metrics, as JSON data:
        of most images the same."""
        places = dict[tuple[tuple[str, ...], str | None], list[int]]()
        for at, (flags, why) in enumerate(self.words):
            if flags or why is not None:  # an error may name a file
                known = tuple(map(escape_surrogates, flags)), None if why is None else escape_surrogates(why)
                places.setdefault(known, []).append(at)
        return [self.made.get("verdict"), [[list(flags), why, at] for (flags, why), at in places.items()]]


def numbers_of(results: Sequence[Result]) -> dict[str, list[float]]:
    """The numbers of maps by name, as rows have them."""
    nothing: dict[str, float] = {**dict.fromkeys((name for name, _ in _MAP), 0.0), "confidence": math.nan}
    nothing |= {"target": NO_TARGET, "batch": 1}
    known = [one.made for one in results]
    return {
        name: [empty if (value := made.get(name)) is None else value for made in known]
        for name, empty in nothing.items()
    }


def results_of(
    keys: Sequence[str],
    made: Mapping[str, Mapping[str, Any]],
    scored: Iterable[tuple[Sequence[str], Sequence[Scores]]],
    maps: Mapping[str, StoredMap] | None = None,
) -> list[Result]:
    """The results of images.

    Args:
        keys: Digests of the metrics.
        made: What holds for each image whatever the metric; an image without a valid map has at least a status and an
            error.
        scored: Some images (B), and their scores by each of the metrics; those of valid maps alone count.
        maps: The maps that were made now.
    """
    number = {image: STATUSES.index(one["status"]) for image, one in made.items()}
    scores = {image: np.full(len(keys), np.nan) for image in made}
    status = {image: np.full(len(keys), number[image], np.uint8) for image in made}
    words: dict[str, list[tuple[tuple[str, ...], Any]]] = {
        image: [((), one.get("error"))] * len(keys) for image, one in made.items()
    }
    details = {
        image: {f"diagnostic//{name}": np.array([value]) for name, value in one.get("diagnostics", ())}
        for image, one in made.items()
    }
    for images, by_metric in scored:
        for m, (key, one) in enumerate(zip(keys, by_metric, strict=True)):
            first = islice(one.curves.items(), 1)
            named = {f"curve/{key}/{name}": curves.float().cpu().numpy() for name, curves in first}
            named |= {f"extra/{key}/{name}": column[:, None].cpu().numpy() for name, column in one.details.items()}
            flags, values = {name: flag.tolist() for name, flag in one.flags.items()}, one.values.tolist()
            for k, image in enumerate(images):
                if number[image] != OK:
                    continue
                if one.refusals and one.refusals[k]:
                    status[image][m], words[image][m] = FAILED, ((), one.refusals[k])
                    continue
                scores[image][m] = values[k] if math.isfinite(values[k]) else np.nan
                words[image][m] = tuple(name for name, flag in flags.items() if flag[k]), None
                details[image] |= {name: column[k] for name, column in named.items()}
    known = maps or {}
    return [
        Result(image, scores[image], status[image], words[image], one, details[image], known.get(image))
        for image, one in made.items()
    ]


@cache
def _type(name: str) -> np.dtype[Any]:
    """The type of the numbers of a detail."""
    return np.dtype(_TYPES[name.partition("/")[0]])


def joined(details: Details) -> tuple[tuple[tuple[str, int], ...], bytes]:
    """The names and lengths of details, and their numbers one after the other."""
    layout = tuple((name, len(values)) for name, values in details.items())
    return layout, b"".join([np.asarray(values, _type(name)).tobytes() for name, values in details.items()])


def details_type(layout: Sequence[Sequence[Any]]) -> np.dtype[Any]:
    """The numbers that :func:`joined` writes of a row."""
    return np.dtype([(name, _type(name), (length,)) for name, length in layout])


# What a folder must hold, as types of pydantic.

_STRICT = ConfigDict(strict=True, extra="forbid")


def _table(fields: Mapping[str, Any]) -> Any:
    """A table of these fields and no others."""
    kind: Any = TypedDict("Table", dict(fields))  # pyright: ignore
    return with_config(_STRICT)(kind)


def _list(*parts: Any) -> Any:
    """A list of these parts."""
    return Annotated[tuple[parts], Field(strict=False)]  # pyright: ignore


_Facts = dict[str, Any]
_Count = Annotated[int, Field(ge=0, lt=2**53)]
_INT32 = Field(ge=-(2**31), lt=2**31)
_Label = Annotated[int, _INT32]
_IMAGE = {
    **{"digest": str, "id": str, "source": str, "label": Annotated[int | None, _INT32]},
    **{"scene": NotRequired[str], "cluster": NotRequired[str], "target": NotRequired[_Label]},
}
_GATE = {"name": str, "value": float, "least": float | None, "most": float | None, "holds": bool, "text": str}
_SCENE = {
    **dict.fromkeys(("title", "source", "answer"), str),
    "settings": _Facts,
    "networks": dict[str, _table({"given": str | None, "number": _Count, "gates": list[_table(_GATE)]})],
}
_METRIC = {
    **dict.fromkeys(("title", "unit", "space", "source", "summary", "key"), str),
    **{"direction": str | None, "settings": _Facts, "limit": _Count},
}
_ASKED = {
    **{"name": str, "data": list[str], "models": dict[str, str], "preprocessing": dict[str, Any]},
    **{"methods": dict[str, dict[str, _Facts]], "metrics": dict[str, _Facts], "limits": dict[str, _Count]},
    **{"n": _Count, "seed": _Count, "target": str | _Label, "score": str, "exif": str, "references": str | None},
    **{"model_output": NotRequired[dict[str, str]], "last": NotRequired[bool]},
    **{"scenes": NotRequired[dict[str, _Facts]], "examples": NotRequired[dict[str, _Count]]},
}
_PLAN = {
    **{"images": list[_table(_IMAGE)], "missing": list[str], "versions": dict[str, str]},
    **{"settings": dict[str, dict[str, _Facts]], "metrics": dict[str, _table(_METRIC)]},
    **{"models": dict[str, _Facts]},
    **{"scenes": NotRequired[dict[str, _table(_SCENE)]]},
}
_Detail = _list(Annotated[str, Field(pattern=f"^({'|'.join(_TYPES)})/")], Annotated[int, Field(ge=0, lt=2**28)])
_NAMES = {
    **{"model": str, "method": str, "setting_key": str, "setting": _Facts, "labels": list[str], "metrics": list[str]},
    **{"metric_settings": dict[str, _Facts], "versions": dict[str, str], "map_versions": list[dict[str, str]]},
    **{"details": list[_Detail]},
}
_LISTS: Mapping[str, Any] = {
    LOGITS: dict[str, list[float]],
    "notes": _list(str | None, list[_list(list[str], str | None, list[_Count])]),
}


@cache
def _form(kind: str, options: tuple[str, ...]) -> TypeAdapter[Any]:
    """The form of a kind of record, or of what rows share: ``names`` and ``notes``; a plan has ``options``."""
    if kind in _LISTS:
        return TypeAdapter(_LISTS[kind], config=_STRICT)
    asked = {**dict.fromkeys(options, NotRequired[str | bool | float | None]), **_ASKED}
    return TypeAdapter(_table(_NAMES if kind == "names" else {**_PLAN, "plan": _table(asked)}))


def _problem(kind: str, data: Any) -> str:
    """What is wrong with data of a kind; empty if nothing is."""
    try:
        _form(kind, tuple(options_of("maps", "scores"))).validate_python(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))[:80]}: {first['msg'][:80]}"
    return ""


def record_problem(kind: str, name: str, record: Any) -> str:
    """What is wrong with a record; empty if nothing is."""
    if kind != PLAN:
        return _problem(kind, record) if kind == LOGITS else ""
    if not re.fullmatch(PLAN_NAME, name) or len(name) > 200:
        return "its name is none of a plan"  # reports are written to folders of these names
    if problem := _problem(kind, record):
        return problem
    parts = record["settings"].keys(), record["models"].keys(), record["plan"]["methods"].keys()
    if record["plan"]["name"] != name or not parts[0] <= parts[1] or not parts[0] <= parts[2]:
        return "its parts do not belong together"
    settings = [one for named in record["settings"].values() for one in named.values()]
    if not all(isinstance(one.get(part), dict) for one in settings for part in ("model", "method")):
        return "its settings have no model, or no method"
    # names are printed; those of files may be any, whose bytes need not be UTF-8
    labels = {part: list(record["plan"][part]) for part in ("models", "preprocessing")}
    plan = {**record["plan"], **labels, "data": [], "references": None}
    models = {label: {**model, "spec": None} for label, model in record["models"].items()}
    images = [{**image, "source": None} for image in record["images"]]
    if not _is_text({**record, "plan": plan, "models": models, "images": images, "missing": []}):
        return "a name holds half of a character"
    labels = {image.get("scene") for image in record["images"]}
    is_scenic = labels <= record["scenes"].keys() if record.get("scenes") else labels <= {None}
    return "" if is_scenic else "its images are of no scene"


def _is_text(data: Any) -> bool:
    """Whether plain data can be printed: it holds no half of a character."""
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def fact_problem(fact: Any) -> str:
    """What is wrong with what rows share: their names, or the notes of an image; empty if nothing is."""
    if problem := _problem("names" if isinstance(fact, dict) else "notes", fact):
        return problem
    if not _is_text(fact):
        return "half of a character"
    return "its names" if isinstance(fact, dict) and len(fact["labels"]) != len(fact["metrics"]) else ""
