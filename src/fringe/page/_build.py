"""The document of an attribution: what the page shows, from tensors."""

import dataclasses
import math
import platform
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

import fringe
from fringe._text import plain, printable
from fringe.attribution import SENTENCES, Attribution, Context, Trajectory, method_label, setting_title
from fringe.errors import InputError
from fringe.page._document import (
    Array,
    Document,
    ExplainedClass,
    Label,
    Path,
    Snapshot,
    encode_images,
    encode_maps,
    pooled,
)
from fringe.plots import class_title, region_outline

#: Squares of a stored map along its longer side.
MAP_SIDE = 112
#: Images up to this side are stored without loss, and drawn pixel by pixel.
SMALL = 64
#: Characters of all images of a page together; the maps of five classes take another 0.95 million.
IMAGE_BUDGET = 800_000
#: Classes whose probabilities are shown beside the explained ones.
PREDICTIONS = 5


def page_document(result: Attribution, row: int = 0, *, details: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Collect what the page of an input shows.

    The first explained class is the one that the page is of; the others can be chosen in it.

    Args:
        result: An attribution of images with context, as :func:`fringe.explain` returns it. Its path is shown if it was
            recorded and leads to the maps of all classes.
        row: Number of the input.
        details: Further facts, which the page lists.

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
    if path is not None and not (len(path.snapshots) > 1 and _leads_to(path, single.values[0])):
        path = None
    inputs = context.inputs[row][None] if path is None else path.snapshots
    values = single.values if path is None else path.cumulative
    maps = values.detach().double().cpu().view(len(inputs), classes, *inputs.shape[1:]).sum(2).numpy()
    maps, pool = pooled(maps, MAP_SIDE)
    start = context.probabilities[row]
    against = [] if single.contrast is None else single.contrast.flatten().tolist()
    labels = _labels(context, start, [*(int(one.target[0]) for one in each), *against])
    snapshots, gain = _snapshots(context, inputs, path, start, [label.index for label in labels])
    document = Document(
        id=printable(context.ids[row]),
        model=printable(context.model),
        method=method_label(result.settings),
        title=setting_title(result.settings),
        width=inputs.shape[-1],
        height=inputs.shape[-2],
        region=_outline(single.focus_weights(0)),
        gain=gain,
        classes=[_explained(one, start) for one in each],
        predictions=labels,
        path=None if path is None else _path(path, len(start), classes),
        snapshots=snapshots,
        maps=encode_maps(maps, pool),
        settings=plain(result.settings),
        passes=dataclasses.asdict(result.passes),
        versions={"fringe": fringe.__version__, "torch": str(torch.__version__), "python": platform.python_version()},
        details=plain(details or {}),
    )  # pyright: ignore[reportCallIssue] - the schema has a default
    return document.json_data()


def _leads_to(path: Trajectory, values: Tensor) -> bool:
    """Whether the evidence at the end of the path is the map, of all classes: not so for the mean of several paths."""
    end = path.cumulative[-1].double()
    if end.shape != values.shape:
        return False
    return bool(((end - values.detach().cpu().double()).abs().max() <= 1e-3 * end.abs().max()).item())


def _labels(context: Context, start: Tensor, explained: list[int]) -> list[Label]:
    """The most probable classes of the input, and the explained ones."""
    best = torch.nan_to_num(start).topk(min(PREDICTIONS, len(start))).indices.tolist()
    indices = dict.fromkeys([*best, *explained])
    return [Label(index=index, label=class_title(printable(context.class_label(index)))) for index in indices]


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


def _path(path: Trajectory, classes: int, explained: int) -> Path:
    entropy = path.points["entropy"]
    scores = path.points["score"].view(len(entropy), explained).T
    return Path(
        steps=len(entropy) - 1,
        entropy=[_number(value) for value in entropy],
        largest_entropy=math.log(classes),
        scores=[[_number(value) for value in of_class] for of_class in scores],
    )


def _snapshots(
    context: Context, inputs: Tensor, path: Trajectory | None, start: Tensor, shown: list[int]
) -> tuple[list[Snapshot], float]:
    """The points of the path, and what their change since the input is multiplied by where it is drawn."""
    pixels = _rgb(context.pixels(inputs))
    small = max(pixels.shape[1:3]) <= SMALL
    images = encode_images(pixels, IMAGE_BUDGET * 4 // 5, lossless=small)
    steps: list[int] = [0] if path is None else path.snapshot_steps.tolist()
    entropy = torch.special.entr(start.double()).sum()[None] if path is None else path.points["entropy"]
    probabilities = start[None] if path is None else path.probabilities
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
        )
        for m, step in enumerate(steps)
    ]
    return snapshots, gain


def _outline(weights: Any) -> str:
    """The outline of a focus with these weights (H, W), if there is one, as the data of an SVG path."""
    lines = [] if weights is None else region_outline(weights)
    return "".join("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in line) + "Z" for line in lines)


def _rgb(pixels: Tensor) -> Array:
    """Pixels (M, 1 or 3, H, W) as images (M, H, W, 3)."""
    images = pixels.double().permute(0, 2, 3, 1).numpy()
    return np.broadcast_to(images, (*images.shape[:3], 3))


def _number(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
