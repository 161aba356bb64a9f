"""How an attribution is shown: in one screen of text, in a notebook, as a figure and as a table."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from fringe.attribution._context import Context
from fringe.classifier import PassCounts
from fringe.errors import InputError, require_choice

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PlotKind = Literal["overlay", "signed", "path", "profile", "classes"]

#: Inputs that a text or a picture shows one by one.
MOST_ROWS = 8


class Views:
    """The views of an attribution; the fields are those of :class:`fringe.Attribution`."""

    values: Tensor
    target: Tensor
    score: Tensor
    endpoint_score: Tensor
    completeness_gap: Tensor
    completeness_residual: Tensor
    verdict: tuple[Any, ...]
    advice: tuple[str, ...]
    diagnostics: Mapping[str, Tensor]
    passes: PassCounts
    settings: Mapping[str, Any]
    trajectory: tuple[Any, ...] | None
    context: Context | None

    def __len__(self) -> int:
        return len(self.target)

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not name.startswith("_")]

    def __repr__(self) -> str:
        lines = [f"{name:<9} {text}" for name, text in self._summary().items()]
        lines += [f"{i:>3}  {self._sentence(i)}" for i in range(min(len(self), MOST_ROWS))]
        if len(self) > MOST_ROWS:
            lines.append(f"     and {len(self) - MOST_ROWS} more")
        return "\n".join(["Attribution", *(f"  {line}" for line in lines)])

    def plot(self, kind: PlotKind = "overlay", *, target: int | None = None, ax: Any = None) -> "Figure":
        """Draw the maps, or the path of one input.

        Args:
            kind: ``overlay`` the strength of the evidence over the image, ``signed`` the map with its signs, ``path``
                the inputs along the path and the map so far, ``profile`` the lengths of its steps, ``classes`` the maps
                of all explained classes.
            target: The class to draw, one of those that are explained; the first of them by default.
            ax: Axes, or a SubFigure, to draw on; a new figure by default.

        Returns:
            The figure.

        Raises:
            InputError: If the kind is unknown, or needs what this attribution does not hold.
        """
        require_choice("kind", kind, get_args(PlotKind))
        if len(self) != 1:
            raise InputError(f"this attribution holds {len(self)} inputs", argument="kind", hint="draw one, result[0]")
        more: dict[str, Any] = {} if ax is None else {"ax": ax}
        return _DRAW[kind](self, self._column(target), more)

    def _summary(self) -> dict[str, str]:
        """What holds for all inputs, by its name."""
        shape = tuple(self.values.shape[self.target.dim() :])
        finite = self.completeness_residual[self.completeness_residual.isfinite()]
        residual = "none: the method has no completeness identity"
        if finite.numel():
            residual = f"median {float(finite.median()):.2%}, largest {float(finite.max()):.2%}"
        counts = {"forward": self.passes.forward, "jvp": self.passes.jvp, "vjp": self.passes.vjp}
        total = sum(counts.values())
        passes = f"{total} ({', '.join(f'{n} {name}' for name, n in counts.items() if n)})" if total else "0"
        return {
            "method": str(self.settings.get("method", "unknown")),
            "n": str(len(self)),
            "shape": str(shape) if self.target.dim() == 1 else f"{shape}, {self.target.shape[1]} classes each",
            "verdicts": ", ".join(f"{count} {name}" for name, count in Counter(self.verdict).items()) or "none",
            "residual": residual,
            "passes": passes,
        }

    def _sentence(self, row: int) -> str:
        """An input, the explained class and the verdict."""
        name = str(row) if self.context is None else self.context.ids[row]
        classes = self.target[row].flatten().tolist()
        label = self._label(row, classes[0]) + (f" and {len(classes) - 1} more" if len(classes) > 1 else "")
        return f"{name}: {label}, {self.verdict[row]}: {self.advice[row]}"

    def _label(self, row: int, index: int) -> str:
        if self.context is None:
            return f"class {index}"
        return f"{self.context.class_label(index)} ({float(self.context.probabilities[row, index]):.1%})"

    def _column(self, target: int | None) -> int:
        """The position of a class among the explained ones of the first input."""
        explained = self.target[0].flatten().tolist()
        if target is None:
            return 0
        if target not in explained:
            known = ", ".join(map(str, explained))
            raise InputError(f"class {target} is not explained here, but {known}", argument="target")
        return explained.index(target)

    def _map(self, column: int) -> Any:
        values = self.values[0] if self.target.dim() == 1 else self.values[0, column]
        return values.detach().cpu().numpy()

    def _class_name(self, column: int) -> str:
        index = int(self.target[0].flatten()[column])
        return f"class {index}" if self.context is None else self.context.class_label(index)

    def _require_context(self, kind: str) -> Context:
        if self.context is None:
            hint = "use fringe.explain, or result.with_context(...)"
            message = f"{kind!r} needs the inputs, which fringe.attribute does not store"
            raise InputError(message, argument="kind", hint=hint)
        return self.context

    def _require_path(self, kind: str) -> Any:
        path = None if self.trajectory is None else self.trajectory[0]
        if path is None:
            hint = "explain with telemetry=True and a method that follows a path"
            raise InputError(f"{kind!r} needs the path, which was not recorded", argument="kind", hint=hint)
        return path


def _picture(context: Context, x: Tensor) -> Any:
    """Pixels (..., H, W, 1 or 3) of inputs (..., C, H, W); other numbers of channels are averaged."""
    pixels = context.pixels(x)
    if pixels.shape[-3] not in (1, 3):
        pixels = pixels.mean(-3, keepdim=True)
    return pixels.movedim(-3, -1).numpy()


def _overlay(view: Any, column: int, more: dict[str, Any]) -> Any:
    from fringe.plots import overlay

    context = view._require_context("overlay")
    return overlay(_picture(context, context.inputs[0]), view._map(column), **more)


def _signed(view: Any, column: int, more: dict[str, Any]) -> Any:
    from fringe.plots import signed_map

    return signed_map(view._map(column), title=f"Evidence for {view._class_name(column)}", **more)


def _path(view: Any, column: int, more: dict[str, Any]) -> Any:
    from fringe.plots import trajectory

    context, path = view._require_context("path"), view._require_path("path")
    cumulative = path.cumulative if view.target.dim() == 1 else path.cumulative[:, column]
    return trajectory(
        path.points["entropy"].numpy() / math.log(context.probabilities.shape[1]),
        path.snapshot_steps.numpy(),
        _picture(context, path.snapshots),
        cumulative.numpy(),
        title=f"Path from the input: {view._class_name(column)}",
        **more,
    )


def _profile(view: Any, column: int, more: dict[str, Any]) -> Any:
    from fringe.plots import geometric_profile

    path = view._require_path("profile")
    names = ("fisher_rao_step", "euclidean_step", "active_bound")  # only a trust region has the last one
    radians, length, bound = (path.steps.get(name, torch.empty(0)).numpy() for name in names)
    title = f"Geometry of the path: {view._class_name(column)}"
    return geometric_profile(radians, length, path.points["entropy"].numpy(), bound, title=title, **more)


def _classes(view: Any, column: int, more: dict[str, Any]) -> Any:
    import fringe.plots as plots

    context = view._require_context("classes")
    if view.target.dim() == 1:
        raise InputError("one class is explained", argument="kind", hint="explain with target='top5'")
    names = [view._class_name(k) for k in range(view.target.shape[1])]
    return plots.class_maps(_picture(context, context.inputs[0]), view.values[0].cpu().numpy(), names, **more)  # pyright: ignore


_DRAW = {"overlay": _overlay, "signed": _signed, "path": _path, "profile": _profile, "classes": _classes}
