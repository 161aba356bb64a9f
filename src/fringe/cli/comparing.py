"""From prepared images to compared ones, a chunk at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fringe.classifier import Classifier
from fringe.cli.contest import Contest
from fringe.cli.gather import Prepared, by_shape, failed
from fringe.cli.loading import check_class_names, unfit
from fringe.cli.progress import Watch
from fringe.cli.record import Failed, Run
from fringe.cli.spaces import Spaces
from fringe.experiments import Comparison, compare


@dataclass(frozen=True)
class Compared:
    """Images of one size that were compared together, with the model's ``logits`` (B, C) on the CPU."""

    group: list[Prepared]
    logits: Tensor
    found: Comparison


@dataclass(frozen=True)
class Comparer:
    """Compares chunks of one run; the ``classifier`` remembers from chunk to chunk what fits in memory."""

    run: Run
    contest: Contest
    classifier: Classifier
    target: int | Literal["predicted"]
    spaces: Spaces
    controls: bool
    watch: Watch

    def compare(self, chunk: Sequence[Prepared | Failed], *, keep_maps: bool) -> tuple[list[Compared], list[Failed]]:
        """What became of a chunk: images of one size are compared together."""
        failures = [item for item in chunk if isinstance(item, Failed)]
        found: list[Compared] = []
        for group in by_shape(chunk):
            result = self._group(group, failures, keep_maps)
            found += [] if result is None else [result]
        self.watch.finished(len(chunk))
        return found, failures

    def _group(self, group: list[Prepared], failures: list[Failed], keep_maps: bool) -> Compared | None:
        self.watch.begin()
        x = torch.stack([prepared.x for prepared in group]).to(self.run.device)
        try:
            logits = self.classifier.logits(x).cpu()
        except RuntimeError as error:  # sizes may differ, and one that the model cannot take must not stop the others
            failures += [failed(prepared.ref, unfit(x, error)) for prepared in group]
            return None
        check_class_names(self.run.loaded, logits)
        sound = logits.isfinite().all(1).tolist()
        reason = "the model's logits for this image are NaN or infinite"
        failures += [failed(p.ref, reason) for p, whole in zip(group, sound, strict=True) if not whole]
        rows = [i for i, whole in enumerate(sound) if whole]
        if not rows:
            return None
        kept = [group[i] for i in rows]
        comparison = compare(
            self.classifier,
            x[rows],
            self.contest.methods,
            self.contest.asked,
            target=self.target,
            controls=self.controls,
            seed=self.run.options.seed,
            space=self.spaces.of(x),
            ids=[prepared.ref.id for prepared in kept],
            progress=lambda what, done, total: self.watch.step(done, total, what),
            keep_maps=keep_maps,
        )
        return Compared(kept, logits[rows], comparison)
