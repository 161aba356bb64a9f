"""Score maps: the door to the metrics."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from fringe._errors import InputError
from fringe.metrics.base import Explain, Explained, Metric, Scores, Subject
from fringe.metrics.registry import resolve_metric


class Maps(Protocol):
    """What is scored: an :class:`fringe.Attribution`, or anything with its ``values`` and ``diagnostics``."""

    @property
    def values(self) -> Tensor: ...
    @property
    def diagnostics(self) -> Mapping[str, Tensor]: ...


def evaluate(
    subject: Subject, maps: Maps | Tensor, metrics: Sequence[str | Metric], explain: Explain | None = None
) -> dict[str, Scores]:
    """Scores of ``maps`` (B, *S) of the subject's images under each metric, by the metric's text or name.

    ``explain`` is for metrics that ask for maps of other inputs. Raises InputError for maps of another shape and for
    maps that hold NaN or infinity: a broken map has no score.
    """
    values = maps if isinstance(maps, Tensor) else maps.values
    chosen = [(m if isinstance(m, str) else m.name, resolve_metric(m)) for m in metrics]
    check_maps(values, subject)
    for name, metric in chosen:
        if metric.needs_explain and explain is None:
            raise InputError(f"metric {name}: it needs the method that made the maps (explain=), not maps alone")
    diagnostics = {} if isinstance(maps, Tensor) else maps.diagnostics
    explained = Explained(subject, values.detach(), diagnostics, explain)
    with subject.classifier.session(values.device):
        return {name: metric.score(explained) for name, metric in chosen}


def check_maps(values: Tensor, subject: Subject) -> None:
    """Refuse maps that cannot be scored."""
    inputs = subject.query.inputs
    if values.shape != inputs.shape:
        raise InputError(f"maps: got shape {tuple(values.shape)}, expected {tuple(inputs.shape)}, as the inputs")
    bad = (~torch.isfinite(values)).flatten(1).any(1).nonzero()[:, 0].tolist()
    if bad:
        raise InputError(
            f"maps: those of images {bad} hold NaN or infinity; leave them out (a broken map has no score)"
        )
