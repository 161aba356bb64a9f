"""The document of an explanation: its schema, how maps and images are stored in it, and how it is made of tensors."""

import base64
import binascii
import dataclasses
import io
import math
import platform
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator
from torch import Tensor

import fringe
from fringe._strings.formats import number, percent, plain, printable
from fringe.attribution import SENTENCES, Attribution, Context, Tone, Trajectory, method_label, setting_title
from fringe.errors import InputError
from fringe.plots import class_title, region_outline

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


#: Left, top, right and bottom in pixels of the input.
Sides = tuple[float, float, float, float]


class Box(Label):
    """A box of a detector, in pixels of the input; ``link`` is its page, and ``here`` whether this page is of it."""

    probability: Number
    sides: Sides
    link: Annotated[str, StringConstraints(pattern=r"^(#box-[0-9]+|\.\./[^/:]+/explanation\.html)?$")] = ""
    here: bool = False


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
    box: Sides | None = None


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
        boxes: The explained boxes of a detector on this photograph.
        box_words: What becomes of the explained box on the path, in words.
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
    boxes: list[Box] = []
    box_words: str = ""
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
        for m, snapshot in enumerate(self.snapshots):
            sizes[f"snapshots[{m}].probabilities"] = len(snapshot.probabilities), len(self.predictions)
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


#: The probability at which a detector still finds an object.
SEEN = 0.5
#: Squares of a stored map along its longer side.
MAP_SIDE = 112
#: Images up to this side are stored without loss, and drawn pixel by pixel.
SMALL = 64
#: Characters of all images of a page together; the maps of five classes take another 0.95 million.
IMAGE_BUDGET = 800_000
#: Classes whose probabilities are shown beside the explained ones.
PREDICTIONS = 5


def page_document(
    result: Attribution,
    row: int = 0,
    *,
    details: Mapping[str, Any] | None = None,
    boxes: Sequence[Box] = (),
) -> dict[str, Any]:
    """Collect what the page of an input shows.

    The first explained class is the one that the page is of; the others can be chosen in it.

    Args:
        result: An attribution of images with context, as :func:`fringe.explain` returns it. Its path is shown if it was
            recorded and leads to the maps of all classes.
        row: Number of the input.
        details: Further facts, which the page lists.
        boxes: The explained boxes of a detector on this photograph; (): that of the row alone, if it has one.

    Returns:
        JSON data of the schema ``fringe/explanation/1``: see :class:`Document`.

    Raises:
        InputError: If there is no such input, its context is not known, or it is no image.
    """
    context = result.context
    if context is None:
        hint = "use fringe.explain, or result.with_context(...)"
        raise InputError("the attribution holds no inputs", argument="result", hint=hint)
    if context.kind != "image" or context.inputs.dim() != 4 or context.inputs.shape[1] not in (1, 3):
        message = f"got inputs {tuple(context.inputs.shape)} of kind {context.kind!r}"
        raise InputError(f"{message}, expected images (B, 1 or 3, H, W)", argument="result")
    if not 0 <= row < len(result.target):
        raise InputError(f"got {row} for {len(result.target)} inputs", argument="row")
    single = result.select([row])
    classes = 1 if single.target.dim() == 1 else single.target.shape[1]
    each = [single] if single.target.dim() == 1 else [single.of_class(k) for k in range(classes)]
    path = None if single.trajectory is None else single.trajectory[0]
    if path is not None:  # its evidence must be the map, of all classes: not so for the mean of several paths
        end, map_ = path.cumulative[-1].double(), single.values[0].detach().cpu().double()
        is_map = end.shape == map_.shape and bool((end - map_).abs().max() <= 1e-3 * end.abs().max())
        path = path if len(path.snapshots) > 1 and is_map else None
    inputs = context.inputs[row][None] if path is None else path.snapshots
    values = single.values if path is None else path.cumulative
    maps = values.detach().double().cpu().view(len(inputs), classes, *inputs.shape[1:]).sum(2).numpy()
    maps, pool = pooled(maps, MAP_SIDE)
    start = context.probabilities[row]
    against = [] if single.contrast is None else single.contrast.flatten().tolist()
    best = torch.nan_to_num(start).topk(min(PREDICTIONS, len(start))).indices.tolist()
    shown = dict.fromkeys([*best, *(int(one.target[0]) for one in each), *against])
    labels = [Label(index=index, label=class_title(printable(context.class_label(index)))) for index in shown]
    snapshots, gain = _snapshots(context, inputs, path, start, [label.index for label in labels])
    numbers = None
    if path is not None:
        entropy = [_number(value) for value in path.points["entropy"]]
        rows = path.points["score"].view(len(entropy), classes).T
        scores = [[_number(value) for value in row] for row in rows]
        numbers = Path(steps=len(entropy) - 1, entropy=entropy, largest_entropy=math.log(len(start)), scores=scores)
    document = Document(
        id=printable(context.ids[row]),
        model=printable(context.model),
        method=method_label(result.settings),
        title=setting_title(result.settings),
        region=_outline(single.focus_weights(0)),
        boxes=list(boxes) or [box for box in (box_of(result, row),) if box is not None],
        box_words=_box_words(result, row),
        width=inputs.shape[-1],
        height=inputs.shape[-2],
        gain=gain,
        classes=[_explained(one, start) for one in each],
        predictions=labels,
        path=numbers,
        snapshots=snapshots,
        maps=encode_maps(maps, pool),
        settings=plain(result.settings),
        passes=dataclasses.asdict(result.passes),
        versions={"fringe": fringe.__version__, "torch": str(torch.__version__), "python": platform.python_version()},
        details=plain(details or {}),
    )  # pyright: ignore[reportCallIssue] - the schema has a default
    return document.json_data()


def box_of(result: Attribution, row: int, link: str = "", *, here: bool = True) -> Box | None:
    """The explained box of a row; None where no box is explained."""
    context, index = result.context, int(result.target[row].flatten()[0])
    sides = None if context is None else context.box_on_input(row)
    if context is None or sides is None:
        return None
    label, chance = class_title(printable(context.class_label(index))), _number(context.probabilities[row, index])
    return Box(index=index, label=label, probability=chance, sides=cast(Sides, tuple(sides)), link=link, here=here)


def _box_words(result: Attribution, row: int) -> str:
    """What the detector makes of the box at the end of the path."""
    kept, seen = (result.diagnostics.get(name) for name in ("box_overlap", "box_seen"))
    if kept is None or seen is None:
        return ""
    words = f"At the end of the path, the box of this place overlaps by {percent(float(kept[row]), 0)} with this one"
    chance = _number(seen[row])
    if chance is None:
        return f"{words}."
    place = "a place" if chance >= SEEN else "no place"
    return (
        f"{words}, and {place} of the network still finds the object there (largest probability {number(chance, 2)})."
    )


def _explained(one: Attribution, start: Tensor) -> ExplainedClass:
    index, verdict = int(one.target[0]), one.verdict[0]
    tone, sentence = SENTENCES.get(verdict, ("bad", "This verdict is not known."))
    return ExplainedClass(
        index=index,
        label=class_title(printable(one.labels(0)[0])),
        probability=_number(start[index]),
        score=_number(one.score[0]),
        endpoint_score=_number(one.endpoint_score[0]),
        residual=_number(one.completeness_residual[0]),
        verdict=verdict,
        tone=tone,
        sentence=sentence,
        advice=one.advice[0],
    )


def _snapshots(
    context: Context, inputs: Tensor, path: Trajectory | None, start: Tensor, shown: list[int]
) -> tuple[list[Snapshot], float]:
    """The points of the path, and what their change since the input is multiplied by where it is drawn."""
    stored = context.pixels(inputs).double().permute(0, 2, 3, 1).numpy()
    pixels = np.broadcast_to(stored, (*stored.shape[:3], 3))
    small = max(pixels.shape[1:3]) <= SMALL
    images = encode_images(pixels, IMAGE_BUDGET * 4 // 5, lossless=small)
    steps: list[int] = [0] if path is None else path.snapshot_steps.tolist()
    entropy = torch.special.entr(start.double()).sum()[None] if path is None else path.points["entropy"]
    has_classes = bool(start.isfinite().any())
    probabilities = path.probabilities if path is not None and has_classes else start[None].expand(len(steps), -1)
    changes, gain = [None] * len(images), 1.0
    if path is not None:
        change = pixels - pixels[:1]
        gain = 0.5 / max(float(np.quantile(np.abs(change[-1]), 0.995)), 1 / 510)
        thinned = 1 if small else math.ceil(max(pixels.shape[1:3]) / (2 * MAP_SIDE))
        drawn = np.clip(0.5 + gain * change[:, ::thinned, ::thinned], 0, 1)
        changes = encode_images(drawn, IMAGE_BUDGET // 5, lossless=small)
    snapshots = [
        Snapshot(
            step=step,
            image=images[m],
            change=changes[m],
            entropy=_number(entropy[step]),
            probabilities=[None if probabilities is None else _number(probabilities[m, k]) for k in shown],
            box=None if path is None or path.boxes is None else cast(Sides, tuple(path.boxes[m].tolist())),
        )
        for m, step in enumerate(steps)
    ]
    return snapshots, gain


def _outline(weights: Any) -> str:
    """The outline of a focus with these weights (H, W), if there is one, as the data of an SVG path."""
    lines = [] if weights is None else region_outline(weights)
    return "".join("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in line) + "Z" for line in lines)


def _number(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
