"""What the maps of an attribution belong to: the inputs as a person reads them; and the pictures of one of them."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fringe._network.arguments import Part, split
from fringe._strings.formats import number
from fringe.errors import InputError, require_integer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

InputKind = Literal["image", "text", "tabular", "series", "volume"]
#: The axes of a map by the kind of its input, or their number where that is not known.
_NAMES = (("feature",), ("channel", "sample"), ("channel", "y", "x"), ("channel", "z", "y", "x"))
AXES: Mapping[InputKind | int, tuple[str, ...]] = {
    **dict(zip(("tabular", "series", "image", "volume"), _NAMES, strict=True)),
    **{len(names): names for names in _NAMES},
    "text": ("token", "embedding"),
}

#: Fields of a context for detectors.
_BOXES = ("boxes", "parts")
#: Those with a tuple for each input, or ().
_OF_ROWS = ("features", "classes", "prompts")


@dataclass(frozen=True)
class Context:
    """The explained inputs and the model's predictions: pictures and pages need them in addition to the maps.

    Attributes:
        kind: What an input is: ``image``, ``text``, ``tabular``, ``series`` or ``volume``.
        inputs: Model inputs (B, *S), on the CPU.
        probabilities: Probabilities (B, C) of the inputs, on the CPU.
        ids: Names (B) of the inputs.
        model: Name of the model.
        mean: Mean of each channel; () if the inputs are no images.
        std: Standard deviation of each channel: ``inputs * std + mean`` are pixels in [0, 1].
        class_names: Names (C) of the classes, if they are known.
        features: Names of the features of each input: columns of a table, or words; () if there are none.
        boxes: The explained boxes (B, 4) of a detector: left, top, right and bottom in pixels of the photographs.
        parts: Which part (B, 4) of its photograph an input shows, likewise; None: the inputs are the photographs.
        classes: Names (B, C) of the classes of each input, where they differ: candidates for the next token.
        prompts: Names (B) of the prompts of a language model, one of whose next tokens is explained.
        unit: What the explained score is measured in, if it is known.

    Raises:
        InputError: If the numbers of inputs, names and probabilities differ.
    """

    kind: InputKind
    inputs: Tensor
    probabilities: Tensor
    ids: tuple[str, ...]
    model: str = "model"
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    class_names: tuple[str, ...] | None = None
    features: tuple[tuple[str, ...], ...] = ()
    boxes: Tensor | None = None
    parts: Tensor | None = None
    classes: tuple[tuple[str, ...], ...] = ()
    prompts: tuple[str, ...] = ()
    unit: str = ""

    def __post_init__(self) -> None:
        sizes = {"probabilities": len(self.probabilities), "ids": len(self.ids)}
        sizes |= {name: len(given) for name in _OF_ROWS if (given := getattr(self, name))}
        for name, size in sizes.items():
            if size != len(self.inputs):
                raise InputError(f"got {size} for {len(self.inputs)} inputs", argument=name)
        classes = self.probabilities.shape[1]
        if self.class_names is not None and len(self.class_names) != classes:
            raise InputError(f"got {len(self.class_names)} for a model of {classes} classes", argument="class_names")

    def __repr__(self) -> str:
        classes = self.probabilities.shape[1]
        return f"Context({self.kind}, {self.model}, inputs {tuple(self.inputs.shape)}, {classes} classes)"

    def pixels(self, x: Tensor) -> Tensor:
        """Turn model inputs into pixels.

        Args:
            x: Model inputs (..., C, H, W).

        Returns:
            Pixels (..., C, H, W) in [0, 1], float32, on the CPU.

        Raises:
            InputError: If the inputs are no images.
        """
        if self.kind != "image":
            raise InputError(f"the inputs are of the kind {self.kind!r} and have no pixels", argument="x")
        mean, std = (torch.tensor(v)[:, None, None] for v in (self.mean or (0.0,), self.std or (1.0,)))
        return (x.detach().cpu().float() * std + mean).clamp(0, 1)

    def picture(self, x: Tensor) -> NDArray[np.float32]:
        """Turn model inputs into images for pictures.

        Args:
            x: Model inputs (..., C, H, W).

        Returns:
            Pixels (..., H, W, 1 or 3) in [0, 1]; other numbers of channels are averaged.
        """
        pixels = self.pixels(x)
        if pixels.shape[-3] not in (1, 3):
            pixels = pixels.mean(-3, keepdim=True)
        return pixels.movedim(-3, -1).numpy()

    def box_on_input(self, row: int) -> list[float] | None:
        """Return the explained box of an input in its pixels.

        Args:
            row: Number of the input.

        Returns:
            Left, top, right and bottom; None where no box is explained.
        """
        if self.boxes is None:
            return None
        part = None if self.parts is None else self.parts[row]
        return to_input(self.boxes[row], part, self.inputs.shape[-2:]).tolist()

    def class_label(self, index: int, row: int = 0) -> str:
        """Name a class.

        Args:
            index: Its number.
            row: The input, where each has classes of its own.

        Returns:
            Its name, or ``"class 7"`` if it has none.
        """
        names = self.classes[row] if self.classes else self.class_names or ()
        return (names[index] if 0 <= index < len(names) else "") or f"class {index}"

    def top(self, row: int, count: int = 5) -> list[tuple[int, str, float]]:
        """List the most probable classes of an input.

        Args:
            row: Number of the input.
            count: Number of classes.

        Returns:
            Number, name and probability of each class, the most probable first.
        """
        best = self.probabilities[row].topk(min(count, self.probabilities.shape[1]))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [(k, self.class_label(k, row), p) for k, p in pairs]

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> "Context":
        """Apply a function to every tensor.

        Args:
            function: Maps a tensor with a leading B.

        Returns:
            The context of what it returned.
        """
        return dataclasses.replace(self, inputs=function(self.inputs), probabilities=function(self.probabilities))

    def select(self, rows: Sequence[int]) -> "Context":
        """Select inputs.

        Args:
            rows: Their numbers.

        Returns:
            The context of these inputs, in this order.
        """
        index = torch.tensor(list(rows), dtype=torch.long)
        return dataclasses.replace(
            self,
            inputs=self.inputs[index],
            probabilities=self.probabilities[index],
            ids=tuple(self.ids[i] for i in rows),
            **{name: tuple(given[i] for i in rows) for name in _OF_ROWS if (given := getattr(self, name))},
            **{name: values[index] for name in _BOXES if (values := getattr(self, name)) is not None},
        )

    @staticmethod
    def concat(parts: "Sequence[Context]") -> "Context":
        """Join contexts of different inputs of one model.

        Args:
            parts: The contexts.

        Returns:
            Their inputs, one part after the other; the other fields are those of the first part.
        """
        joined: dict[str, Any] = {
            name: torch.cat([getattr(part, name) for part in parts]) for name in ("inputs", "probabilities")
        }
        joined |= {name: tuple(v for part in parts for v in getattr(part, name)) for name in ("ids", *_OF_ROWS)}
        boxes = {name: [getattr(part, name) for part in parts] for name in _BOXES}
        joined |= {name: torch.cat(each) for name, each in boxes.items() if each[0] is not None}
        return dataclasses.replace(parts[0], **joined)


def to_input(boxes: Tensor, part: Tensor | None, size: Sequence[int]) -> Tensor:
    """Turn boxes (..., 4) in pixels of a photograph into boxes in pixels of an input of this size (H, W), which shows
    the given part of the photograph; None: all of it, in its own pixels."""
    return boxes if part is None else (boxes - part[:2].repeat(2)) * _scale(part, size)


def to_photograph(boxes: Tensor, part: Tensor, size: Sequence[int]) -> Tensor:
    """Turn boxes (..., 4) in pixels of an input into boxes in pixels of its photograph, see :func:`to_input`."""
    return boxes / _scale(part, size) + part[:2].repeat(2)


def _scale(part: Tensor, size: Sequence[int]) -> Tensor:
    return (part.new_tensor([size[1], size[0]]) / (part[2:] - part[:2])).repeat(2)


@dataclass(frozen=True)
class Trajectory:
    """The path of one image, on the CPU: T steps, T + 1 points from the input on.

    Attributes:
        points: Values (T + 1,) at the points: ``entropy``, ``reference_kl``, ``waypoint_kl`` (nats),
            ``reference_distance``, ``tracking_error`` (radians), and ``score``, of K classes (T + 1, K). Of a path
            at a temperature, distances to the waypoints are those of softened predictions.
        steps: Values (T,) along the steps: ``fisher_rao_step`` (radians), ``euclidean_step``, ``step_size``,
            ``active_bound`` (0: eta_max, 1: tau, 2: delta_euc, 3: the logits).
        snapshot_steps: Numbers (M,) of steps after which a point is stored.
        snapshots: These points (M, *S).
        cumulative: The attribution between the input and these points: (M, *S), of K classes (M, K, *S).
        probabilities: What the model predicts at these points (M, C).
        boxes: The box (M, 4) of the same place of a detector at these points, in pixels of the input.
    """

    points: Mapping[str, Tensor]
    steps: Mapping[str, Tensor]
    snapshot_steps: Tensor
    snapshots: Tensor
    cumulative: Tensor
    probabilities: Tensor | None = None
    boxes: Tensor | None = None

    def of_class(self, k: int) -> "Trajectory | None":
        """Select one of K classes.

        Args:
            k: Its number among the K.

        Returns:
            The path with the values of this class. For methods with a path for each class, only the first is recorded.
        """
        if self.cumulative.dim() == self.snapshots.dim():
            return self if k == 0 else None
        points = {**self.points, "score": self.points["score"][:, k]}
        return dataclasses.replace(self, points=points, cumulative=self.cumulative[:, k])

    def thinned(self, count: int) -> "Trajectory":
        """Select stored points, evenly and with both ends.

        Args:
            count: Largest number of points, at least 2.

        Returns:
            The path with these points.

        Raises:
            InputError: If ``count`` is less than 2.
        """
        require_integer("count", count, 2)
        last = len(self.snapshot_steps) - 1
        rows = sorted({round(last * m / (count - 1)) for m in range(count)}) if last >= count else range(last + 1)
        names = ("snapshot_steps", "snapshots", "cumulative", "probabilities", "boxes")
        columns = {name: getattr(self, name) for name in names}
        some = {name: None if column is None else column[list(rows)] for name, column in columns.items()}
        return dataclasses.replace(self, **some)


#: Kinds of pictures that need no context.
WITHOUT_CONTEXT = ("signed", "profile", "parts")


@dataclass(frozen=True)
class Subject:
    """What the pictures of an input show.

    Attributes:
        values: Its maps (K, *S), one per explained class.
        classes: The explained classes (K).
        labels: Their names, each with that of the class that it is compared with.
        column: Which of them the picture is of.
        method: Name of the method.
        path: Its :class:`fringe.Trajectory`, if it was recorded.
        context: The input, a batch of one; None without a context.
        region: Weights (H, W) of the focus of that class, if its path has one.
        note: Verdict and advice on the map.
        score: The explained score at the input.
        endpoint_score: The score at the end of the path; NaN if the map is of no change of the score.
        parts: Names and shapes of the tensors whose numbers the maps (K, N) hold, if they are several.
    """

    values: Tensor
    classes: tuple[int, ...]
    labels: tuple[str, ...]
    column: int
    method: str
    path: Any
    context: Context | None
    region: Any = None
    note: str = ""
    score: float = math.nan
    endpoint_score: float = math.nan
    parts: tuple[Part, ...] = ()

    @property
    def map(self) -> Any:
        """The map (*S) of the class."""
        return self.values[self.column].numpy()

    @property
    def label(self) -> str:
        """Name of the class."""
        return self.label_of(self.column)

    def label_of(self, column: int) -> str:
        """Name of an explained class."""
        from fringe.plots import class_title

        return class_title(self.labels[column])

    def heading(self, text: str) -> str:
        """A title: class, what is shown, and the method."""
        from fringe.plots import heading

        return heading(self.label, text, self.method)

    def words(self, text: str) -> dict[str, str]:
        """The title, the name of the class and the verdict of a picture."""
        return {"title": self.heading(text), "label": self.label, "note": self.note}

    def known(self) -> Context:
        """The context; every picture that calls this is refused without one."""
        assert self.context is not None
        return self.context

    def require_path(self) -> Any:
        """The path, or an InputError that says how to record it."""
        if self.path is None:
            hint = "explain with telemetry=True and a method that follows a path"
            raise InputError("this picture needs the path, which was not recorded", argument="kind", hint=hint)
        return self.path


def _overlay(subject: Subject, ax: Any) -> "Figure":
    from fringe.plots import overlay

    image, title = subject.known().picture(subject.known().inputs[0]), subject.heading("where the evidence lies")
    box = subject.known().box_on_input(0)
    return overlay(image, subject.map, title=title, label=subject.label, region=subject.region, box=box, ax=ax)


def _signed(subject: Subject, ax: Any) -> "Figure":
    from fringe.plots import signed_map

    if subject.values.dim() not in (3, 4):
        shape = tuple(subject.values.shape[1:])
        hint = "use fringe.explain with the kind of these inputs"
        raise InputError(f"maps of shape {shape} are no images", argument="kind", hint=hint)
    image = None if subject.context is None else subject.context.picture(subject.context.inputs[0])
    title = subject.heading("evidence for and against")
    box = None if subject.context is None else subject.context.box_on_input(0)
    return signed_map(subject.map, title=title, image=image, label=subject.label, region=subject.region, box=box, ax=ax)


def _path(subject: Subject, ax: Any) -> "Figure":
    from fringe.plots import trajectory

    context, path = subject.known(), subject.require_path().thinned(6)
    cumulative = path.cumulative
    if cumulative.dim() > path.snapshots.dim():
        cumulative = cumulative[:, subject.column]
    return trajectory(
        path.points["entropy"].numpy() / math.log(context.probabilities.shape[1]),
        path.snapshot_steps.numpy(),
        context.picture(path.snapshots),
        cumulative.numpy(),
        title=subject.heading("how the evidence builds up along the path"),
        label=subject.label,
        ax=ax,
    )


def _profile(subject: Subject, ax: Any) -> "Figure":
    from fringe.plots import geometric_profile

    path = subject.require_path()
    names = ("fisher_rao_step", "euclidean_step", "active_bound")  # only a trust region has the last one
    radians, length, bound = (path.steps.get(name, torch.empty(0)).numpy() for name in names)
    entropy, title = path.points["entropy"].numpy(), f"{subject.label}: the steps of the path"
    classes = None if subject.context is None else subject.context.probabilities.shape[1]
    return geometric_profile(radians, length, entropy, bound, title=title, classes=classes, ax=ax)


def _classes(subject: Subject, ax: Any) -> "Figure":
    from fringe.plots import class_maps

    context, columns = subject.known(), range(len(subject.classes))
    return class_maps(
        context.picture(context.inputs[0]),
        subject.values.numpy(),
        [subject.label_of(k) for k in columns],
        probabilities=context.probabilities[0, list(subject.classes)].numpy(),
        title="What speaks for each class",
        ax=ax,
    )


def words_of(context: Context, values: Tensor) -> tuple[tuple[str, ...], Any]:
    """The words of a text (a context of one) and what each has of the map (L, D) or (L)."""
    from fringe.text import merge_words

    names, merged = merge_words(context.features[0], values)
    return names, merged.numpy()


def _words(subject: Subject, ax: Any) -> "Figure":
    from fringe.plots import token_map

    words, values = words_of(subject.known(), subject.values[subject.column])
    return token_map(words, values, ax=ax, **subject.words("evidence of each word"))


def _table(context: Context) -> tuple[Sequence[str], NDArray[np.float64]]:
    """The names of the columns and the rows (B, F) of a table, as they were before they were standardised."""
    rows = context.inputs.double()
    if context.mean:
        rows = rows * torch.tensor(context.std).to(rows) + torch.tensor(context.mean).to(rows)
    names = context.features[0] if context.features else [f"feature {k}" for k in range(rows.shape[1])]
    return names, rows.numpy()


def _bars(subject: Subject, ax: Any) -> "Figure":
    from fringe.plots import feature_bars

    names, rows = _table(subject.known())
    return feature_bars(names, subject.map, inputs=rows[0], ax=ax, **subject.words("evidence of each feature"))


def _waterfall(subject: Subject, ax: Any) -> "Figure":
    from fringe.plots import feature_waterfall

    if not math.isfinite(subject.endpoint_score):
        message = f"the bars of {subject.method} add up to no change of the score"
        raise InputError(message, argument="kind", hint="draw 'bars', or choose a method with a path")
    names, rows = _table(subject.known())
    words, ends = subject.words("how the features change the score"), (subject.endpoint_score, subject.score)
    return feature_waterfall(names, subject.map, ends, inputs=rows[0], ax=ax, **words)


def _beeswarm(subject: Subject, ax: Any) -> "Figure":
    return beeswarm(subject.known(), subject.values[subject.column][None], [subject.label], subject.method, ax)


def beeswarm(context: Context, maps: Tensor, explained: Sequence[str], method: str, ax: Any) -> "Figure":
    """One figure of the maps (B, F) of all rows of a table, and of the ``explained`` classes."""
    from fringe.plots import class_title, feature_swarm, heading

    names, rows = _table(context)
    label = class_title(explained[0]) if len(explained) == 1 else ""
    title = heading(label or f"{len(explained)} classes", f"evidence in {len(maps)} rows", method)
    return feature_swarm(names, maps.numpy(), rows, title=title, label=label, ax=ax)


def _line(subject: Subject, ax: Any) -> "Figure":
    from fringe.plots import series_line

    context = subject.known()
    names, words = context.features[0] if context.features else (), subject.words("evidence of each sample")
    return series_line(context.inputs[0].numpy(), subject.map, names=names, ax=ax, **words)


def _slice(subject: Subject, ax: Any) -> "Figure":
    from fringe.plots import signed_map

    values = subject.values[subject.column]
    best = int(values.abs().sum((0, 2, 3)).argmax())
    title = subject.heading(f"evidence in slice {best} of {values.shape[1]}, the one with the most")
    return signed_map(values[:, best].numpy(), title=title, label=subject.label, note=subject.note, ax=ax)


def _parts(subject: Subject, ax: Any) -> "Figure":
    from fringe.plots import feature_bars, open_panel, root, signed_map

    pieces = list(zip(subject.parts, split(subject.values[subject.column], subject.parts), strict=True))
    heights = [4.6 if values.dim() in (2, 3) else 1.2 + 0.27 * min(values.numel(), 13) for _, values in pieces]
    panel = open_panel(5.6, sum(heights), title=subject.heading("what each tensor adds to the score"), ax=ax)
    for i, canvas in enumerate(np.atleast_1d(np.array(panel.subfigures(len(pieces), 1, height_ratios=heights)))):
        part, values = pieces[i]
        name = f"tensor {i}" if part.name is None else part.name
        words: dict[str, Any] = {
            "title": f"{name}: {number(float(values.sum()), signed=True)}",
            "label": subject.label,
            "ax": canvas,
        }
        if values.dim() in (2, 3):
            signed_map(values.numpy(), **words)
        else:
            flat = values.flatten().tolist()
            feature_bars([f"{name} {k}" if len(flat) > 1 else name for k in range(len(flat))], flat, **words)
    return root(panel)


#: What draws a picture, on given axes or a new figure.
Drawing = Callable[[Subject, Any], "Figure"]

#: The pictures of each kind of input, by name; the first is the default.
DRAWINGS: Mapping[InputKind | Literal["parts"], Mapping[str, Drawing]] = {
    "image": {"overlay": _overlay, "signed": _signed, "path": _path, "profile": _profile, "classes": _classes},
    "text": {"words": _words, "profile": _profile},
    "tabular": {"bars": _bars, "waterfall": _waterfall, "beeswarm": _beeswarm, "profile": _profile},
    "series": {"line": _line, "profile": _profile},
    "volume": {"slice": _slice, "profile": _profile},
    "parts": {"parts": _parts, "profile": _profile},
}


def sheet(
    context: Context,
    maps: Tensor,
    verdicts: Sequence[str],
    tones: Sequence[str],
    explained: Sequence[tuple[str, str]],
    title: str,
    ax: Any,
) -> "Figure":
    """One figure of several images: each with the strength and the signs of its map (B, *S). ``explained`` names the
    class where it is not the predicted one, and the class that it is compared with."""
    from fringe.plots import Prediction, SheetItem, class_title, contact_sheet

    items: list[SheetItem] = []
    for i, (values, classes) in enumerate(zip(maps, explained, strict=True)):
        _, name, probability = context.top(i, 1)[0]
        items.append(
            SheetItem(
                image=context.picture(context.inputs[i]),
                values=values.numpy(),
                name=context.ids[i],
                prediction=Prediction(class_title(name), probability, *map(class_title, classes)),
                verdict=verdicts[i],
                tone=tones[i],
                box=context.box_on_input(i),
            )
        )
    return contact_sheet(items, title=title, ax=ax)
