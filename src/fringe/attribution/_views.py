"""The verdicts and what they say, and how an attribution is shown: as text, in a notebook, as a figure, as a table."""

import importlib
import itertools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor

import fringe
from fringe._network.arguments import Part, is_joint, split
from fringe._strings.formats import percent, plain
from fringe._strings.names import KINDS, Reference, method_title
from fringe._strings.tables import FrameLibrary, make_frame
from fringe.attribution._drawing import (
    AXES,
    DRAWINGS,
    WITHOUT_CONTEXT,
    Context,
    Subject,
    Trajectory,
    beeswarm,
    sheet,
    words_of,
)
from fringe.attribution._drawing import InputKind as InputKind
from fringe.classifier import PassCounts
from fringe.errors import InputError, install_hint, require_choice

if TYPE_CHECKING:
    from matplotlib.figure import Figure


PlotKind = Literal[
    "overlay",
    "signed",
    "path",
    "profile",
    "classes",
    "words",
    "bars",
    "waterfall",
    "beeswarm",
    "line",
    "slice",
    "parts",
]

Verdict = Literal[
    "ok", "short", "coarse", "stalled", "diverged", "at_reference", "unchecked", "nan_input", "nan_logits"
]

#: From the best to the worst: of the maps of several classes, the worst verdict is the image's.
SEVERITY: tuple[Verdict, ...] = (
    *("ok", "unchecked", "short", "coarse", "stalled", "at_reference", "diverged", "nan_logits", "nan_input"),
)

#: Inputs that a text or a picture shows one by one.
MOST_ROWS, MOST_PICTURES = 8, 24

#: What a verdict proves: the sum of the map, with care, nothing of the map, or that nothing is tested.
Tone = Literal["checked", "fair", "bad", "plain"]
_PARTS = "whether the map marks the right parts of the input"

#: The tone of a verdict, and what it says of a map in a sentence or two.
SENTENCES: Mapping[str, tuple[Tone, str]] = {
    "ok": ("checked", f"Checked: the values of this map add up to the change of the score. Not checked: {_PARTS}."),
    "short": (
        "fair",
        "Read with care: the sum of the map is right, but the path ended before the prediction had faded.",
    ),
    "coarse": ("fair", "Read with care: the values of this map do not add up to the change of the score."),
    "unchecked": ("plain", f"Not checked: the sum, because this method promises none, and {_PARTS}."),
    "stalled": ("bad", "Do not rely on this map: the path hardly moved, or the map is zero."),
    "diverged": ("bad", "Do not rely on this map: the model's output was not finite along the path."),
    "at_reference": ("bad", "There is nothing to explain: the path ends where it begins."),
    "nan_input": ("bad", "There is no map: the input holds numbers that are not finite."),
    "nan_logits": ("bad", "There is no map: the model's output for this input is not finite."),
}
_MARKS: Mapping[Tone, str] = {"checked": "Σ", "fair": "!", "bad": "✗", "plain": "–"}


def tone_of(verdict: str) -> Tone:
    """What a verdict proves; one that is not known, of a stored result, is bad."""
    return SENTENCES[verdict][0] if verdict in SENTENCES else "bad"


def method_label(record: Mapping[str, Any]) -> str:
    """Return the name of a method from its record; that of a modifier holds the record of the method in it.

    Names are ``"ig"``, ``"captum:occlusion"``, ``"straight:fringe"`` or ``"smooth(3):ig"``.
    """
    rest, inner = record.get("algorithm"), record.get("of")
    if isinstance(inner, Mapping):
        rest = method_label(cast("Mapping[str, Any]", inner))
    name = str(record.get("method", "unknown"))
    key = getattr(KINDS.get(name), "number", None) if isinstance(inner, Mapping) else None
    return str(Reference(name, f"{record[key]:g}" if key is not None and key in record else None, rest))


def preset_label(record: Mapping[str, Any]) -> str:
    """Return the name of a method from its record, with the preset that its settings are: ``"fringe:fast"``.

    The defaults, and settings that no preset has, are named without one.
    """
    label, inner = method_label(record), record.get("of")
    if isinstance(inner, Mapping):
        settings = cast("Mapping[str, Any]", inner)
        return label.removesuffix(method_label(settings)) + preset_label(settings)
    name = None if ":" in label else _preset_of(record)
    return f"{label}:{name}" if name else label


def _preset_of(record: Mapping[str, Any]) -> str | None:
    """The preset that the settings of a record are, empty for the defaults; None for any other settings."""
    kind = KINDS.get(str(record.get("method")))
    if kind is None:
        return None
    given, default = plain(dict(record)), plain(kind().record())
    for key in ("structure", "layer"):  # the record of a result has what was used
        if default.get(key) == "auto":
            default[key] = given.get(key)
    fits = (name for name in kind.presets if given == {**default, **plain(dict(kind.presets[name]))})
    return "" if given == default else next(fits, None)


#: The paper's networks in words.
_NETWORKS = {
    **{f"resnet{depth}": f"ResNet-{depth}" for depth in (18, 50, 101, 152)},
    **{"inception_v3": "Inception-v3", "vgg19": "VGG-19"},
}


def setting_title(record: Mapping[str, Any]) -> str:
    """Return the title of a method with the setting that its record is, however that was given.

    Args:
        record: The record of the method.

    Returns:
        For FRInGe ``"FRInGe, default of 0.2"``, ``"FRInGe, paper's text, ResNet-50"``, ``"FRInGe, released code,
        ResNet-50"`` or ``"FRInGe, own settings"``; for other methods their title, with the preset.
    """
    label, inner = method_label(record), record.get("of")
    if isinstance(inner, Mapping):
        settings = cast("Mapping[str, Any]", inner)
        return method_title(label).removesuffix(method_title(method_label(settings))) + setting_title(settings)
    kind, preset = KINDS.get(label), _preset_of(record)
    if kind is None:
        return method_title(label)
    if label not in ("fringe", "fringe_b", "paper", "released"):
        return f"{kind.title} ({preset})" if preset else str(kind.title)
    setting = "own settings"
    if label in ("paper", "released"):
        setting = setting if preset is None else _NETWORKS.get(preset, "any network")
    elif preset in _NETWORKS:
        setting = f"released code, {_NETWORKS[preset]}"
    elif preset is not None:
        version = ".".join(fringe.__version__.split(".")[:2])
        setting = f"{f'preset {preset}' if preset else 'default'} of {version}".replace("_", " ")
    return f"{method_title(label)}, {setting}"


@dataclass(frozen=True, repr=False)
class Views:
    """The fields of an attribution, which :class:`fringe.Attribution` describes, and their views."""

    values: Tensor
    target: Tensor
    score: Tensor
    endpoint_score: Tensor
    completeness_gap: Tensor
    completeness_residual: Tensor
    verdict: tuple[Verdict, ...]
    advice: tuple[str, ...]
    diagnostics: Mapping[str, Tensor]
    passes: PassCounts = field(default_factory=PassCounts)
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    trajectory: tuple[Trajectory | None, ...] | None = None
    context: Context | None = None
    class_verdicts: tuple[tuple[tuple[Verdict, str], ...], ...] = ()
    contrast: Tensor | None = None
    agreement: Tensor | None = None
    region: Tensor | None = None
    parts: tuple[Part, ...] = ()

    @property
    def maps(self) -> Tensor | tuple[Tensor, ...] | dict[str, Tensor]:
        """The maps in the form of the explained inputs: a tensor (B, *S), or a tuple or dictionary of such tensors."""
        if not self.parts:
            return self.values
        pieces = split(self.values, self.parts)
        named = {part.name: piece for part, piece in zip(self.parts, pieces, strict=True) if part.name is not None}
        return named or pieces

    def __len__(self) -> int:
        return len(self.target)

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not name.startswith("_")]

    def __repr__(self) -> str:
        lines = [f"{name:<9} {text}" for name, text in self._summary().items()]
        shown = range(min(len(self), MOST_ROWS))
        lines += [f"{i:>3}  {self._name(i)}: {self._classes_text(i)}, {': '.join(self._status(i))}" for i in shown]
        if len(self) > MOST_ROWS:
            lines.append(f"     and {len(self) - MOST_ROWS} more")
        return "\n".join(["Attribution", *(f"  {line}" for line in lines)])

    def _repr_html_(self) -> str:
        from fringe._strings.html import render

        rows = [self._row(i) for i in range(min(len(self), MOST_ROWS))]
        is_chart = is_joint(self.parts) or (self.context is not None and self.context.kind in ("tabular", "series"))
        more, width = len(self) - len(rows), 480 if is_chart else 300 if len(self) == 1 else 200  # charts have words
        return render("attribution", facts=self._summary(), rows=rows, more=more, width=width)

    def plot(self, kind: PlotKind | None = None, *, target: int | None = None, ax: Any = None) -> "Figure":
        """Draw the maps, or the path of one input.

        Args:
            kind: ``overlay`` (the default for images) the strength of the evidence over the image, ``signed`` the map
                with its signs (the default of :func:`fringe.attribute`), ``path`` the inputs along the path and the map
                so far, ``profile`` the lengths of its steps, ``classes`` the maps of all classes. Of several images,
                ``overlay`` and ``signed`` draw one sheet with both, and the others need one:
                ``result[0].plot("path")``. The default for texts is ``words``, for series ``line``, and for volumes
                ``slice``, the one with the most evidence. For a row of a table it is ``bars``; ``waterfall`` adds them
                up from the score at the end of the path to that of the row. For many rows it is ``beeswarm``: a point
                for each row and feature. Of several tensors it is ``parts``, the map of each.
            target: The class to draw, one of those that are explained; the first of them by default.
            ax: Axes, or a Figure or SubFigure, to draw on; a new figure by default.

        Returns:
            The figure.

        Raises:
            InputError: If the kind is unknown, or needs what this attribution does not hold.
        """

        joint = is_joint(self.parts) and self.context is None
        drawings = DRAWINGS["parts" if joint else "image" if self.context is None else self.context.kind]
        is_table = self.context is not None and self.context.kind == "tabular"
        default = "signed" if self.context is None and not joint else next(iter(drawings))
        name = kind or ("beeswarm" if is_table and len(self) != 1 else default)
        require_choice("kind", name, tuple(drawings))
        if self.context is None and name not in WITHOUT_CONTEXT:
            message = f"{name!r} needs the inputs, which fringe.attribute does not store"
            raise InputError(message, argument="kind", hint="use fringe.explain, or result.with_context(...)")
        if name == "classes" and self.target.dim() == 1:
            raise InputError("one class is explained", argument="kind", hint="explain with target='top5'")
        values = self.values.detach().cpu()
        many = self.target.dim() == 2
        if self.context is not None and name == "beeswarm" and len(self) != 1:
            shown = range(len(self))
            columns = [self._column(target, i) for i in shown]
            explained = {self.labels(i)[columns[i]] for i in shown}
            maps = torch.stack([values[i, columns[i]] for i in shown]) if many else values
            return beeswarm(self.context, maps, sorted(explained), preset_label(self.settings), ax)
        if len(self) != 1:
            if self.context is None or self.context.kind != "image" or name not in ("overlay", "signed"):
                hint = f"draw one, as in result[0].plot({name!r})"
                raise InputError(f"this attribution holds {len(self)} inputs", argument="kind", hint=hint)
            if target is not None and many:
                hint = "draw one image, as in result[0].plot(target=3)"
                raise InputError("several images may explain several classes", argument="target", hint=hint)
            count = min(len(self), MOST_PICTURES)
            verdicts = tuple(self._status(i)[0] for i in range(count))
            more = f", first {count} of {len(self)}" if count < len(self) else ""
            title = f"{self.context.model} · {method_title(preset_label(self.settings))}{more}"
            maps, explained = values[:count, 0] if many else values[:count], list[tuple[str, str]]()
            for i in range(count):
                label, target = self.context.class_label, int(self.target[i].flatten()[0])
                other = "" if self.contrast is None else label(int(self.contrast[i].flatten()[0]))
                explained.append(("" if target == self.context.top(i, 1)[0][0] else label(target), other))
            tones = tuple(map(tone_of, verdicts))
            return sheet(self.context.select(range(count)), maps, verdicts, tones, explained, title, ax)
        subject = Subject(
            values=values[0] if many else values,
            classes=tuple(self.target[0].flatten().tolist()),
            labels=self.labels(0),
            column=self._column(target),
            method=preset_label(self.settings),
            path=None if self.trajectory is None else self.trajectory[0],
            context=self.context,
            region=self.focus_weights(0, self._column(target)),
            note=": ".join(self._status(0, self._column(target))),
            score=self.score[0].flatten()[self._column(target)].item(),
            endpoint_score=self.endpoint_score[0].flatten()[self._column(target)].item(),
            parts=self.parts,
        )
        return drawings[name](subject, ax)

    def focus_weights(self, row: int, column: int = 0) -> Any:
        """Return the focus of an image: where its path moves freely, or what its map was multiplied by.

        Args:
            row: Number of the image.
            column: Number of the class among those that are explained.

        Returns:
            An array (H, W) of weights from 0 to 1; None if there is no focus.
        """
        if self.region is None:
            return None
        weights = self.region[row].flatten(0, -3)
        weights = weights[column if len(weights) > 1 else 0].nan_to_num().cpu()
        return weights.numpy() if weights.any() else None

    def to_dataframe(self, library: FrameLibrary = "pandas") -> Any:
        """Make a table with one row for each input and explained class.

        Args:
            library: ``pandas`` or ``polars``.

        Returns:
            A DataFrame of that library: the input, the class with its name and probability, score, endpoint score,
            completeness gap and residual, agreement with occlusion, verdict, advice, and every diagnostic.

        Raises:
            InputError: If the library is not installed.
        """
        return make_frame(self.to_records(), library)

    def to_records(self) -> list[dict[str, Any]]:
        """Return the rows of :meth:`to_dataframe`, which needs a library of tables, as dictionaries.

        Returns:
            One dictionary for each input and explained class.
        """
        context, names = self.context, ("score", "endpoint_score", "completeness_gap", "completeness_residual")
        rows: list[dict[str, Any]] = []
        for i, k in itertools.product(range(len(self)), range(self.target[:1].numel())):

            def number(tensor: Tensor, row: int = i, column: int = k) -> Any:
                return tensor[row].flatten()[column if tensor.dim() == 2 else 0].item()

            index = number(self.target)
            row: dict[str, Any] = {"id": self._name(i), "class": index}
            row |= {} if self.contrast is None else {"contrast": number(self.contrast)}
            is_named = context is not None and bool(context.class_names or context.classes)
            row["name"] = context.class_label(index, i) if context is not None and is_named else None
            row["probability"] = None if context is None else float(context.probabilities[i, index])
            row |= {name: number(getattr(self, name)) for name in names}
            row |= {} if self.agreement is None else {"agreement": number(self.agreement)}
            row |= zip(("verdict", "advice"), self._status(i, k), strict=True)
            rows.append(row | {name: number(column) for name, column in self.diagnostics.items()})
        return rows

    def to_xarray(self) -> Any:
        """Make a labelled array of the maps, for the library xarray (extra ``xarray``).

        Returns:
            A DataArray (image, class, channel, y, x) of images, (input, class, ...) of others: feature of tables, token
            and embedding of texts, channel and sample of series, channel, z, y and x of volumes. Its coordinates are
            the names of the inputs and, of each input and class, ``target``, ``score`` and ``verdict``; also the
            features, where all inputs have the same.

        Raises:
            InputError: If xarray is not installed, or several tensors are explained.
        """
        if is_joint(self.parts):
            hint = "make an array of each of its maps"
            raise InputError("it holds maps of several tensors, see result.maps", argument="result", hint=hint)
        try:
            xarray = importlib.import_module("xarray")
        except ModuleNotFoundError as error:
            raise InputError("xarray is not installed", hint=install_hint("xarray")) from error
        context, count = self.context, self.target[:1].numel()
        axes = AXES[self.values.dim() - self.target.dim() if context is None else context.kind]
        first = "image" if axes == AXES["image"] else "input"
        pair, table = (first, "class"), (len(self), count)
        status = [[self._status(i, k)[0] for k in range(count)] for i in range(len(self))]
        coordinates: dict[str, Any] = {first: [self._name(i) for i in range(len(self))], "verdict": (pair, status)}
        coordinates |= {name: (pair, getattr(self, name).cpu().view(table).numpy()) for name in ("target", "score")}
        if context is not None and (context.class_names or context.classes):
            names = [[context.class_label(k, i) for k in row] for i, row in enumerate(self.target.view(table).tolist())]
            coordinates["target_name"] = (pair, names)
        named = set(context.features) if context is not None and context.kind in ("tabular", "series", "volume") else ()
        if len(named) == 1:
            coordinates[axes[0]] = list(next(iter(named)))
        values = self.values.detach().cpu().reshape(*table, *self.values.shape[self.target.dim() :]).numpy()
        attributes = {"method": preset_label(self.settings), "model": "" if context is None else context.model}
        return xarray.DataArray(values, coordinates, (*pair, *axes), "attribution", attributes)

    def _name(self, row: int) -> str:
        """The name of an input, or its number."""
        return str(row) if self.context is None else self.context.ids[row]

    def _status(self, row: int, column: int = 0) -> tuple[str, str]:
        """Verdict and advice on the map of an explained class."""
        return self.class_verdicts[row][column] if self.class_verdicts else (self.verdict[row], self.advice[row])

    def _summary(self) -> dict[str, str]:
        """What holds for all inputs, by its name."""
        shape = str(tuple(self.values.shape[self.target.dim() :]))
        if self.parts:
            shape = ", ".join(
                f"{i if part.name is None else part.name} {part.shape}" for i, part in enumerate(self.parts)
            )
        finite = self.completeness_residual[self.completeness_residual.isfinite()]
        residual = "none (the method has no completeness identity)"
        if finite.numel():
            residual = f"median {percent(float(finite.median()), 2)}, largest {percent(float(finite.max()), 2)}"
        counts = vars(self.passes)
        total = sum(counts.values())
        passes = f"{total} ({', '.join(f'{n} {name}' for name, n in counts.items() if n)})" if total else "0"
        return {
            "method": preset_label(self.settings),
            "n": str(len(self)),
            "shape": shape if self.target.dim() == 1 else f"{shape}, {self.target.shape[1]} classes each",
            "verdicts": ", ".join(f"{count} {name}" for name, count in Counter(self.verdict).items()) or "none",
            "residual": residual,
            "passes": passes,
        }

    def _classes_text(self, row: int) -> str:
        classes, label = self.target[row].flatten().tolist(), self.labels(row)[0]
        chance = math.nan if self.context is None else float(self.context.probabilities[row, classes[0]])
        label = f"{label} ({percent(chance)})" if math.isfinite(chance) else label
        return label + (f", first of {len(classes)} classes" if len(classes) > 1 else "")

    def labels(self, row: int) -> tuple[str, ...]:
        """Name the explained classes of an input.

        Args:
            row: Number of the input.

        Returns:
            The name of each class, and of the class that it is compared with: ``"cat"`` or ``"cat, not dog"``.
        """

        def name(index: int) -> str:
            return f"class {index}" if self.context is None else self.context.class_label(index, row)

        labels = [name(index) for index in self.target[row].flatten().tolist()]
        if self.contrast is None:
            return tuple(labels)
        others: list[int] = self.contrast[row].flatten().tolist()
        return tuple(f"{label}, not {name(other)}" for label, other in zip(labels, others, strict=True))

    def _row(self, row: int) -> dict[str, Any]:
        """What a notebook shows of an input: a picture, if there is one, and words on its verdict."""
        from fringe.plots import png_of, token_html

        verdict, advice = self._status(row)
        tone, sentence = SENTENCES.get(verdict, ("fair", ""))
        shown: dict[str, Any] = {"name": self._name(row), "classes": self._classes_text(row), "verdict": verdict}
        shown |= {"advice": advice, "sign": _MARKS[tone], "sentence": sentence, "words": "", "picture": b""}
        if self.context is not None and self.context.kind == "text":
            shown["words"] = token_html(*self._words_of(row))
        elif self.context is not None or is_joint(self.parts) or self.values.dim() - self.target.dim() in (2, 3):
            one: Any = self.select([row])  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType] - of the attribution
            shown["picture"] = png_of(one.plot(), dpi=80)
        return shown

    def __rich__(self) -> Any:
        """The text of this attribution for rich; below it, texts with each word on the colour of its evidence."""
        from rich.console import Group
        from rich.text import Text

        parts = [Text(repr(self))]
        if self.context is not None and self.context.kind == "text":
            from fringe.plots import token_text

            parts += [token_text(*self._words_of(i)) for i in range(min(len(self), MOST_ROWS))]
        return Group(*parts)

    def _words_of(self, row: int) -> tuple[tuple[str, ...], Any]:
        """The words of a text, and what each has of the map of the first class."""
        assert self.context is not None
        values = self.values[row].detach().cpu()
        return words_of(self.context.select([row]), values if self.target.dim() == 1 else values[0])

    def _column(self, target: int | None, row: int = 0) -> int:
        """The position of a class among the explained ones of an input."""
        explained = self.target[row].flatten().tolist()
        if target is None:
            return 0
        if target not in explained:
            known = ", ".join(map(str, explained))
            raise InputError(f"class {target} is not explained here, but {known}", argument="target")
        return explained.index(target)
