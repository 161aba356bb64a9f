"""The document of an explanation: its schema, and how maps and images are stored in it.

A map is stored as signed bytes ``q``: its values are ``sign(q) (q / 127)^2`` times the scale of its class. The root
gives weak values more levels than strong ones; the error of any value is at most 1/127 of the scale.
"""

import base64
import binascii
import io
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from fringe.attribution import Tone
from fringe.errors import InputError

SCHEMA = "fringe/explanation/1"
#: Signed levels of a byte.
LEVELS = 127

Array = NDArray[np.float64]
Base64 = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9+/]+={0,2}$")]
#: A number that JSON can hold; None where it is not finite.
Number = Annotated[float, Field(allow_inf_nan=False)] | None


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, protected_namespaces=())


class Label(_Part):
    """A class: its number among the model's, and its name."""

    index: int = Field(ge=0)
    label: str


class ExplainedClass(Label):
    """An explained class: its score at both ends of the path, and the verdict on its map."""

    probability: Number
    score: Number
    endpoint_score: Number
    residual: Number
    verdict: str
    tone: Tone
    sentence: str
    advice: str


class Snapshot(_Part):
    """A point of the path: the picture of the input there, and the probability of each listed prediction."""

    step: int = Field(ge=0)
    image: Base64
    change: Base64 | None
    entropy: Number
    probabilities: list[Number]


class Path(_Part):
    """The numbers along the path: entropy of the prediction in nats, and the score of each explained class."""

    steps: int = Field(ge=0)
    entropy: list[Number]
    largest_entropy: float
    scores: list[list[Number]]


class Maps(_Part):
    """The evidence between the input and each snapshot for each class, summed over ``pool`` x ``pool`` pixels."""

    encoding: Literal["signed-root-int8"] = "signed-root-int8"
    shape: tuple[int, int, int, int]
    pool: int = Field(ge=1)
    scales: list[float]
    data: Base64


class Document(_Part):
    """An explanation of one image; images are WebP files in base64.

    Attributes:
        schema_version: Name and version of this schema, ``schema`` in JSON.
        id: Name of the image.
        model: Name of the model.
        method: Name of the method.
        title: Title of the method with its setting.
        width: Width of the model's input in pixels.
        height: Its height.
        region: Outline of the focus as the data of an SVG path, in pixels; empty for an unfocused path.
        gain: What the change since the input is multiplied by in the pictures of the change.
        classes: The explained classes; the first is the one that the explanation is of.
        predictions: Classes whose probability each snapshot has.
        path: Numbers along the path; None if no path was recorded.
        snapshots: Points of the path, from the input on.
        maps: Maps (M, K, h, w) of the K classes at the M snapshots.
        settings: Record of the method.
        passes: Passes through the network.
        versions: Versions of the software.
        details: Further facts of the run.
    """

    schema_version: Literal["fringe/explanation/1"] = Field(SCHEMA, alias="schema")
    id: str
    model: str
    method: str
    title: str
    width: int = Field(ge=1)
    height: int = Field(ge=1)
    region: Annotated[str, StringConstraints(pattern=r"^[MLZ0-9. ]*$")] = ""
    gain: float = 1.0
    classes: list[ExplainedClass] = Field(min_length=1)
    predictions: list[Label]
    path: Path | None
    snapshots: list[Snapshot] = Field(min_length=1)
    maps: Maps
    settings: dict[str, Any]
    passes: dict[str, int]
    versions: dict[str, str]
    details: dict[str, Any]

    @model_validator(mode="after")
    def _sizes_agree(self) -> "Document":
        points, classes, height, width = self.maps.shape
        sizes = {
            "maps.shape[0]": (points, len(self.snapshots)),
            "maps.shape[1]": (classes, len(self.classes)),
            "maps.scales": (len(self.maps.scales), classes),
            "maps.data": (len(base64.b64decode(self.maps.data)), points * classes * height * width),
        }
        for number, snapshot in enumerate(self.snapshots):
            sizes[f"snapshots[{number}].probabilities"] = len(snapshot.probabilities), len(self.predictions)
        if self.path is not None:
            sizes["path.entropy"] = len(self.path.entropy), self.path.steps + 1
            sizes["path.scores"] = len(self.path.scores), classes
        for name, (size, expected) in sizes.items():
            if size != expected:
                raise ValueError(f"{name} is {size}, expected {expected}")
        return self

    @classmethod
    def of(cls, data: "Mapping[str, Any] | Document") -> "Document":
        """Check a document.

        Args:
            data: JSON data.

        Returns:
            The document.

        Raises:
            InputError: If the data do not follow the schema.
        """
        if isinstance(data, Document):
            return data
        try:
            return cls.model_validate(dict(data))
        except (ValidationError, binascii.Error) as error:
            first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": ("maps",), "msg": str(error)}
            where = ".".join(map(str, first["loc"])) or "sizes"
            hint = f"make it with page_document; the schema is {SCHEMA}"
            raise InputError(f"{where}: {first['msg']}", argument="document", hint=hint) from error

    def json_data(self) -> dict[str, Any]:
        """Return the document as JSON data."""
        return self.model_dump(mode="json", by_alias=True)


def decode_maps(document: Mapping[str, Any] | Document) -> Array:
    """Return the maps of a document.

    Args:
        document: The document.

    Returns:
        Evidence (M, K, h, w) between the input and each of M snapshots for each of K classes, in units of the score:
        exact to 1/127 of the largest of its class.

    Raises:
        InputError: If the document does not follow the schema.
    """
    maps = Document.of(document).maps
    levels = np.frombuffer(base64.b64decode(maps.data), np.int8).reshape(maps.shape).astype(np.float64) / LEVELS
    return np.sign(levels) * levels**2 * np.array(maps.scales)[:, None, None]


def encode_maps(maps: Array, pool: int) -> Maps:
    """Quantise maps (M, K, h, w), each class on one scale; entries that are not finite become zero."""
    finite = np.nan_to_num(maps, nan=0.0, posinf=0.0, neginf=0.0)
    scales = np.abs(finite).max(axis=(0, 2, 3))
    share = finite / np.where(scales > 0, scales, 1.0)[:, None, None]
    levels = np.rint(np.sign(share) * np.sqrt(np.abs(share)) * LEVELS).astype(np.int8)
    data = base64.b64encode(levels.tobytes()).decode("ascii")
    return Maps(shape=maps.shape, pool=pool, scales=scales.tolist(), data=data)  # pyright: ignore[reportArgumentType]


def pooled(maps: Array, largest: int) -> tuple[Array, int]:
    """Sum maps (..., H, W) over squares of as many pixels as leave ``largest`` squares a side; and their side."""
    height, width = maps.shape[-2:]
    pool = max(1, math.ceil(max(height, width) / largest))
    margin = [(0, 0)] * (maps.ndim - 2) + [(0, -height % pool), (0, -width % pool)]
    padded = np.pad(maps, margin)
    squares = padded.reshape(*maps.shape[:-2], padded.shape[-2] // pool, pool, padded.shape[-1] // pool, pool)
    return squares.sum(axis=(-3, -1)), pool


def encode_images(images: Array, budget: int, *, lossless: bool) -> list[str]:
    """Images (M, H, W, 3) in [0, 1] as WebP in base64, smaller or coarser until they take ``budget`` characters."""
    encoded: list[str] = []
    for side, quality in ((448, 90), (448, 80), (336, 80), (224, 75), (160, 70), (96, 60)):
        encoded = [base64.b64encode(_webp(image, side, quality, lossless)).decode("ascii") for image in images]
        if sum(map(len, encoded)) <= budget:
            break
    return encoded


def _webp(pixels: Array, side: int, quality: int, lossless: bool) -> bytes:
    image = Image.fromarray(np.rint(np.clip(np.nan_to_num(pixels), 0, 1) * 255).astype(np.uint8))
    if max(image.size) > side:
        image.thumbnail((side, side), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    image.save(out, "WEBP", quality=quality, lossless=lossless, method=4)
    return out.getvalue()
