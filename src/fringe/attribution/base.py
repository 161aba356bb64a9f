"""What every attribution method takes and gives."""

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from fringe.baselines import parse_baseline
from fringe.classifier import PassCounts
from fringe.paths import Problem
from fringe.paths import Progress as Progress
from fringe.settings import Settings, checked_by

Baseline = Annotated[str, checked_by(parse_baseline)]
"""A baseline by name, with its number if it has one: ``zero``, ``blur:0.1``."""

Verdict = Literal[
    "ok", "short", "coarse", "stalled", "diverged", "at_reference", "unchecked", "nan_input", "nan_logits"
]

SEVERITY: tuple[Verdict, ...] = (
    "ok",
    "unchecked",
    "short",
    "coarse",
    "stalled",
    "at_reference",
    "diverged",
    "nan_logits",
    "nan_input",
)
"""From the best to the worst: of the maps of several classes, the worst speaks for the image."""


@dataclass(frozen=True)
class Trajectory:
    """What one image went through, on the CPU: T steps, T + 1 points from the input on.

    ``points`` maps a name to (T + 1,) values at the points: ``entropy``, ``reference_kl``, ``waypoint_kl`` (nats),
    ``tracking_error`` (radians), ``score``. ``steps`` maps a name to (T,) values along the steps: ``fisher_rao_step``
    (radians), ``euclidean_step``, ``step_size``, ``active_bound`` (a :class:`fringe.paths.Bound`), ``cg_iterations``,
    ``cg_residual``, ``cg_status``. ``snapshots`` (M, *S) are the points after ``snapshot_steps`` (M,) steps, and
    ``cumulative`` (M, *S) the attribution gathered until there; of K classes, ``cumulative`` is (M, K, *S) and the
    score (T + 1, K).
    """

    points: Mapping[str, Tensor]
    steps: Mapping[str, Tensor]
    snapshot_steps: Tensor
    snapshots: Tensor
    cumulative: Tensor


@dataclass(frozen=True)
class Attribution:
    """The result for B images. Every field with a leading B belongs to the image of that row.

    ``values`` (B, *S), with the dtype and device of the inputs (float32 for half precision);
    a positive value speaks for the target.
    ``target`` (B,) classes; ``score`` and ``endpoint_score`` (B,) the explained score at the input and where the path
    ended; ``completeness_gap`` (B,) = sum of values - (score - endpoint_score), in units of the score, and
    ``completeness_residual`` (B,) = |gap| / |score - endpoint_score| (the paper's epsilon_comp).
    A method without a completeness identity has NaN there, and the verdict ``unchecked``.
    ``verdict`` (B) says what to think of the map, ``advice`` why and what to do. ``diagnostics`` maps a name to (B,).
    Of K classes per image, ``target``, scores and completeness are (B, K), ``values`` (B, K, *S), the verdict is the
    worst of them, and diagnostics of methods with a path for each class are (B, K), too.
    ``passes`` counts what the call spent. ``trajectory`` is kept on request.
    """

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

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> "Attribution":
        """The same with ``function`` applied to every tensor with a leading B."""
        tensors = {name: function(getattr(self, name)) for name in _TENSORS}
        diagnostics = {name: function(column) for name, column in self.diagnostics.items()}
        return dataclasses.replace(self, **tensors, diagnostics=diagnostics)

    def select(self, images: Sequence[int]) -> "Attribution":
        """The attribution of these images, in this order."""
        index = torch.tensor(list(images))
        return dataclasses.replace(
            self.map_tensors(lambda column: column[index.to(column.device)]),
            verdict=tuple(self.verdict[i] for i in images),
            advice=tuple(self.advice[i] for i in images),
            trajectory=None if self.trajectory is None else tuple(self.trajectory[i] for i in images),
        )

    @staticmethod
    def concat(parts: "Sequence[Attribution]") -> "Attribution":
        """The images of all ``parts``, one after the other; what is said of a whole call is the first part's."""
        first, trajectory = parts[0], None
        if first.trajectory is not None:
            trajectory = tuple(t for part in parts for t in part.trajectory or ())
        tensors = {name: torch.cat([getattr(part, name) for part in parts]) for name in _TENSORS}
        return dataclasses.replace(
            first,
            **tensors,
            verdict=tuple(verdict for part in parts for verdict in part.verdict),
            advice=tuple(advice for part in parts for advice in part.advice),
            diagnostics={name: torch.cat([part.diagnostics[name] for part in parts]) for name in first.diagnostics},
            trajectory=trajectory,
        )


_TENSORS = ("values", "target", "score", "endpoint_score", "completeness_gap", "completeness_residual")


class ProgressCounter:
    """Counts what is done of ``total`` and reports it."""

    def __init__(self, progress: Progress | None, total: int):
        self.progress, self.done, self.total = progress, 0, total

    def tick(self, count: int) -> None:
        self.reach(self.done + count)

    def reach(self, done: int) -> None:
        """``done`` in all; never fewer than before, nor more than the total."""
        before, self.done = self.done, max(self.done, min(done, self.total))
        if self.progress is not None and self.done > before:
            self.progress(self.done, self.total)


class Attributor(Settings):
    """An attribution method: a frozen dataclass of hyper-parameters. Final classes set ``name``.

    ``presets`` are settings by name, the fields that differ from the defaults: ``paper`` for what the FRInGe paper
    compared with, as far as its tables show, ``official`` for what the authors' code computes, ``quick`` for
    ours at some hundreds of gradients an image. ``uses_references`` tells that maps depend on the reference images of
    the input space, ``many_targets`` that one path serves K classes of an image: ``problem.target`` is then (B, K).
    """

    record_key: ClassVar[str] = "method"
    title: ClassVar[str] = ""
    source: ClassVar[str] = ""
    uses_references: ClassVar[bool] = False
    many_targets: ClassVar[bool] = False

    @abstractmethod
    def attribute(self, problem: Problem) -> Attribution:
        """Explain every image of ``problem``. The caller holds ``problem.model.session`` open and counts the passes."""

    def needs_jvp(self, classes: int) -> bool:
        """Whether the method asks for Jacobian-vector products of a model with so many ``classes``, not only for
        gradients: a model must then have second derivatives, or forward-mode ones."""
        return False

    @property
    def complete(self) -> bool:
        """Whether a map of these settings claims to add up to a change of the score: its gap is then a number."""
        return True

    @property
    def begins_at_baseline(self) -> bool:
        """Whether the method takes a caller's baseline: it has a setting of that name, which the caller's replaces."""
        return "baseline" in self.record()

    @property
    def planned_passes(self) -> float | None:
        """Forward and backward passes together that a map of one image takes by these settings alone, to the order of
        magnitude; None where they do not tell."""
        return None
