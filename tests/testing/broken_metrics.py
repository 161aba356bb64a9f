"""A sound metric, and metrics with one fault each."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from fringe._tunable import tunable
from fringe.metrics import Metric, Scores


@dataclass(frozen=True)
class SoundMetric(Metric):
    """The share of a map's mass in its strongest entries, times the model's own probability of the target."""

    name: ClassVar[str] = "sound"
    title: ClassVar[str] = "Sound"
    direction: ClassVar[str] = "higher"
    space: ClassVar[str] = "the map, all entries"
    source: ClassVar[str] = "nowhere"

    share: float = tunable(0.1, help="of the entries")

    def score(self, maps):
        problem = maps.context.problem
        a = maps.values.abs().flatten(1).double().sort(1, descending=True).values
        top = a[:, : max(1, int(self.share * a.shape[1]))].sum(1) / a.sum(1)
        p = problem.model.logits(problem.inputs).double().softmax(1).gather(1, problem.target[:, None])[:, 0]
        return self.spoil(Scores(p * top, details={"top": top}), maps)

    def spoil(self, scores, maps):
        return scores


@dataclass(frozen=True)
class Undirected(SoundMetric):
    direction: ClassVar[str] = "up"


@dataclass(frozen=True)
class Sourceless(SoundMetric):
    source: ClassVar[str] = ""


@dataclass(frozen=True)
class NoPaperSetting(SoundMetric):
    presets: ClassVar = {"mine": {}}


@dataclass(frozen=True)
class MisnamedPreset(SoundMetric):
    presets: ClassVar = {"paper": {"portion": 0.2}}


@dataclass
class MutableMetric(Metric):
    name: ClassVar[str] = "mutable"
    title: ClassVar[str] = "Mutable"
    direction: ClassVar[str] = "higher"
    space: ClassVar[str] = "the map"
    source: ClassVar[str] = "nowhere"
    share: float = tunable(0.1, help="of the entries")

    def score(self, maps):
        return SoundMetric(self.share).score(maps)


@dataclass(frozen=True)
class DumbMetric(SoundMetric):
    extra: float = 1.0


@dataclass(frozen=True)
class ForgetfulMetric(SoundMetric):
    def record(self):
        return {"metric": self.name, "share": 0.2}


@dataclass(frozen=True)
class SinglePrecisionMetric(SoundMetric):
    def spoil(self, scores, maps):
        return dataclasses.replace(scores, values=scores.values.float())


@dataclass(frozen=True)
class OneForAll(SoundMetric):
    def spoil(self, scores, maps):
        return dataclasses.replace(scores, details={"mean": scores.values.mean()})


@dataclass(frozen=True)
class NumbersForFlags(SoundMetric):
    def spoil(self, scores, maps):
        return dataclasses.replace(scores, flags={"strange": torch.zeros(len(scores.values))})


@dataclass(frozen=True)
class WrongWay(SoundMetric):
    direction: ClassVar[str] = "lower"


@dataclass(frozen=True)
class Blind(SoundMetric):
    """Does not look at the map."""

    def spoil(self, scores, maps):
        return Scores(torch.ones_like(scores.values))


@dataclass(frozen=True)
class PerMass(SoundMetric):
    """Infinite for the zero map."""

    def spoil(self, scores, maps):
        top = scores.details["top"].nan_to_num(1.0)
        return Scores(top / maps.values.abs().flatten(1).double().amax(1))


@dataclass(frozen=True)
class AgainstTheMean(SoundMetric):
    """Compared with whatever maps come together."""

    def spoil(self, scores, maps):
        return dataclasses.replace(scores, values=scores.values / (1 + scores.values.sum()))


@dataclass(frozen=True)
class CountsMaps(SoundMetric):
    def spoil(self, scores, maps):
        row = torch.arange(len(scores.values), dtype=torch.float64)
        return dataclasses.replace(scores, values=scores.values * (1 + 1e-3 * row))


@dataclass(frozen=True)
class AllMapsAtOnce(SoundMetric):
    def spoil(self, scores, maps):
        inputs = maps.context.problem.inputs
        maps.context.problem.model.linearise(inputs.repeat_interleave(2, 0), tangents=False)
        return scores


@dataclass(frozen=True)
class GlobalDraw(SoundMetric):
    def spoil(self, scores, maps):
        return dataclasses.replace(scores, values=scores.values * (1 + 1e-3 * torch.rand((), dtype=torch.float64)))


@dataclass(frozen=True)
class DrawsFromNumPy(SoundMetric):
    def spoil(self, scores, maps):
        np.random.rand()  # noqa: NPY002
        return scores


@dataclass(frozen=True)
class KeepsTheFirstMap(SoundMetric):
    """Shares between methods what belongs to a map."""

    def spoil(self, scores, maps):
        return Scores(maps.context.cached(self.name, lambda: scores.values))


@dataclass(frozen=True)
class WritesIntoMaps(SoundMetric):
    def spoil(self, scores, maps):
        maps.values.abs_()
        return scores


@dataclass(frozen=True)
class LeavesAHookBehind(SoundMetric):
    def spoil(self, scores, maps):
        maps.context.problem.model.module.register_forward_hook(lambda module, given, output: None)
        return scores


@dataclass(frozen=True)
class PaysLess(SoundMetric):
    def spoil(self, scores, maps):
        for image in maps.context.problem.inputs.split(1):
            maps.context.problem.model.model(image)
        return scores
