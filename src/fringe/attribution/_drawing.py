"""The pictures of one attributed input, by the kind of input and of picture."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fringe.attribution._context import Context, InputKind
from fringe.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Kinds of pictures that need no context.
WITHOUT_CONTEXT = ("signed", "profile")


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

    @property
    def map(self) -> Any:
        """The map (*S) of the class."""
        return self.values[self.column].numpy()

    @property
    def label(self) -> str:
        """Name of the class."""
        return self.label_of(self.column)

    @property
    def size(self) -> int | None:
        """Number of classes of the model, if it is known."""
        return None if self.context is None else self.context.probabilities.shape[1]

    def label_of(self, column: int) -> str:
        """Name of an explained class."""
        from fringe.plots import class_title

        return class_title(self.labels[column])

    def heading(self, text: str) -> str:
        """A title: class, what is shown, and the method."""
        from fringe.plots import heading

        return heading(self.label, text, self.method)

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
    return overlay(image, subject.map, title=title, label=subject.label, region=subject.region, ax=ax)


def _signed(subject: Subject, ax: Any) -> "Figure":
    from fringe.plots import signed_map

    if subject.values.dim() not in (3, 4):
        shape = tuple(subject.values.shape[1:])
        hint = "use fringe.explain with the kind of these inputs"
        raise InputError(f"maps of shape {shape} are no images", argument="kind", hint=hint)
    image = None if subject.context is None else subject.context.picture(subject.context.inputs[0])
    title = subject.heading("evidence for and against")
    return signed_map(subject.map, title=title, image=image, label=subject.label, region=subject.region, ax=ax)


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
    return geometric_profile(radians, length, entropy, bound, title=title, classes=subject.size, ax=ax)


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
    title = subject.heading("evidence of each word")
    return token_map(words, values, title=title, label=subject.label, note=subject.note, ax=ax)


def _bars(subject: Subject, ax: Any) -> "Figure":
    from fringe.plots import feature_bars

    context = subject.known()
    row = context.inputs[0].double()
    if context.mean:  # as they were before they were standardised
        row = row * torch.tensor(context.std).to(row) + torch.tensor(context.mean).to(row)
    names = context.features[0] if context.features else [f"feature {k}" for k in range(len(row))]
    title = subject.heading("evidence of each feature")
    more: dict[str, Any] = {"title": title, "label": subject.label, "note": subject.note, "ax": ax}
    return feature_bars(names, subject.map, inputs=row.numpy(), **more)


def _line(subject: Subject, ax: Any) -> "Figure":
    from fringe.plots import series_line

    context = subject.known()
    names = context.features[0] if context.features else ()
    title = subject.heading("evidence of each sample")
    more: dict[str, Any] = {"title": title, "label": subject.label, "note": subject.note, "ax": ax}
    return series_line(context.inputs[0].numpy(), subject.map, names=names, **more)


def _slice(subject: Subject, ax: Any) -> "Figure":
    from fringe.plots import signed_map

    values = subject.values[subject.column]
    best = int(values.abs().sum((0, 2, 3)).argmax())
    title = subject.heading(f"evidence in slice {best} of {values.shape[1]}, the one with the most")
    return signed_map(values[:, best].numpy(), title=title, label=subject.label, ax=ax)


#: What draws a picture, on given axes or a new figure.
Drawing = Callable[[Subject, Any], "Figure"]

#: The pictures of each kind of input, by name; the first is the default.
DRAWINGS: Mapping[InputKind, Mapping[str, Drawing]] = {
    "image": {"overlay": _overlay, "signed": _signed, "path": _path, "profile": _profile, "classes": _classes},
    "text": {"words": _words, "profile": _profile},
    "tabular": {"bars": _bars, "profile": _profile},
    "series": {"line": _line, "profile": _profile},
    "volume": {"slice": _slice, "profile": _profile},
}


def sheet(
    context: Context,
    maps: Tensor,
    verdicts: Sequence[str],
    tones: Sequence[str],
    explained: Sequence[str],
    title: str,
    ax: Any,
) -> "Figure":
    """One figure of several images: each with the strength and the signs of its map (B, *S). ``explained`` names the
    class where it is not the predicted one."""
    from fringe.plots import Prediction, SheetItem, class_title, contact_sheet

    items: list[SheetItem] = []
    for i, (values, label) in enumerate(zip(maps, explained, strict=True)):
        _, name, probability = context.top(i, 1)[0]
        items.append(
            SheetItem(
                image=context.picture(context.inputs[i]),
                values=values.numpy(),
                name=context.ids[i],
                prediction=Prediction(class_title(name), probability, class_title(label)),
                verdict=verdicts[i],
                tone=tones[i],
            )
        )
    return contact_sheet(items, title=title, ax=ax)
