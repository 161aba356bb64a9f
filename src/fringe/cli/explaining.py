"""From prepared images to explained ones, a chunk at a time."""

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fringe.attribution import Attributor, attribute
from fringe.classifier import Classifier
from fringe.cli.gather import Prepared, by_shape, failed
from fringe.cli.loading import check_class_names
from fringe.cli.progress import Watch
from fringe.cli.record import Cost, Explained, Failed, Run
from fringe.cli.spaces import Spaces


@dataclass(frozen=True)
class Explainer:
    """Explains chunks of one run; the ``classifier`` remembers from chunk to chunk what fits in memory."""

    run: Run
    method: Attributor
    classifier: Classifier
    target: int | Literal["predicted"]
    spaces: Spaces
    watch: Watch

    def explain(self, chunk: Sequence[Prepared | Failed]) -> list[Explained | Failed]:
        """The inputs of a chunk in their order; images of one size are computed together."""
        done = {p.ref.id: item for group in by_shape(chunk) for p, item in zip(group, self._group(group), strict=True)}
        self.watch.finished(sum(isinstance(item, Failed) for item in chunk))
        return [item if isinstance(item, Failed) else done[item.ref.id] for item in chunk]

    def _group(self, group: list[Prepared]) -> list[Explained | Failed]:
        self.watch.begin()
        start = time.perf_counter()
        x = torch.stack([prepared.x for prepared in group]).to(self.run.device)
        try:
            logits = self.classifier.logits(x).cpu()
        except RuntimeError as error:  # sizes may differ, and one that the model cannot take must not stop the others
            self.watch.finished(len(group))
            return [failed(prepared.ref, unfit(x, error)) for prepared in group]
        check_class_names(self.run.loaded, logits)
        found = attribute(
            self.classifier,
            x,
            method=self.method,
            target=self.target,
            seed=self.run.options.seed,
            telemetry=self.run.options.figures,
            bad_images="mark",
            progress=self.watch.step,
            space=self.spaces.of(x),
            ids=[prepared.ref.id for prepared in group],
        )
        found = dataclasses.replace(found, values=found.values.cpu())
        cost = Cost(len(group), time.perf_counter() - start)
        self.watch.finished(len(group))
        return [
            failed(prepared.ref, found.advice[row])
            if found.verdict[row] in ("nan_input", "nan_logits")
            else Explained(prepared.ref, prepared.x, logits[row], found, row, cost)
            for row, prepared in enumerate(group)
        ]


def unfit(x: Tensor, error: RuntimeError) -> str:
    """That the model cannot take inputs like ``x`` (B, *S), and the first line of why."""
    return f"the model cannot take an input of shape {tuple(x.shape[1:])}: {str(error).splitlines()[0]}"
