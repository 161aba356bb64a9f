"""A method on trial: how the checks ask it for maps."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fringe.attribution import Attribution, Attributor, Progress, attribute
from fringe.baselines import InputSpace
from fringe.classifier import Classifier, Target
from fringe.testing.networks import CPU, Laboratory


@dataclass(frozen=True)
class Asked:
    """How a map is asked for, where it is not the usual way."""

    batch_size: int = 16
    seed: int = 0
    target: Target = "predicted"
    baseline: float | Tensor | None = None
    telemetry: bool = False
    mark_bad_images: bool = False
    progress: Progress | None = None
    space: InputSpace | None = None


USUAL = Asked()


@dataclass(frozen=True)
class Trial:
    """A configured method and the device it is tried on."""

    method: Attributor
    device: torch.device = CPU

    def laboratory(self, dtype: torch.dtype = torch.float64) -> Laboratory:
        return Laboratory(dtype, self.device)

    def explain(self, model: nn.Module, x: Tensor, asked: Asked = USUAL) -> Attribution:
        """Explain ``x`` with a valid range and references at hand."""
        return attribute(
            Classifier(model, batch_size=asked.batch_size),
            x,
            method=self.method,
            target=asked.target,
            seed=asked.seed,
            telemetry=asked.telemetry,
            bad_images="mark" if asked.mark_bad_images else "raise",
            progress=asked.progress,
            baseline=asked.baseline,
            space=asked.space or Laboratory(x.dtype, x.device).space(tuple(x.shape[1:])),
        )
