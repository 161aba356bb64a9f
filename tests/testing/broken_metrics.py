"""A correct metric, and metrics with one fault each."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch

from fringe.metrics import Metric, Scores
from fringe.settings import Doc


@dataclass(frozen=True)
class CorrectMetric(Metric):
    """The share of a map's mass in its strongest entries, times the model's own probability of the target."""

    name: ClassVar[str] = "correct"
    title: ClassVar[str] = "Correct"
    direction: ClassVar[str] = "higher"
    space: ClassVar[str] = "the map, all entries"
    source: ClassVar[str] = "nowhere"

    share: Annotated[float, Doc("of the entries")] = 0.1

    def score(self, maps):
        problem = maps.context.problem
        a = maps.values.abs().flatten(1).double().sort(1, descending=True).values
        top = a[:, : max(1, int(self.share * a.shape[1]))].sum(1) / a.sum(1)
        p = problem.model.logits(problem.inputs).double().softmax(1).gather(1, problem.target[:, None])[:, 0]
        return self.spoil(Scores(p * top, details={"top": top}), maps)

    def spoil(self, scores, maps):
        return scores


@dataclass(frozen=True)
class Undirected(CorrectMetric):
    direction: ClassVar[str] = "up"


@dataclass(frozen=True)
class Sourceless(CorrectMetric):
    source: ClassVar[str] = ""


@dataclass(frozen=True)
class NoPaperSetting(CorrectMetric):
    presets: ClassVar = {"default": {}}


@dataclass(frozen=True)
class MisnamedPreset(CorrectMetric):
    presets: ClassVar = {"paper": {"portion": 0.2}}


@dataclass
class MutableMetric(Metric):
    name: ClassVar[str] = "mutable"
    title: ClassVar[str] = "Mutable"
    direction: ClassVar[str] = "higher"
    space: ClassVar[str] = "the map"
    source: ClassVar[str] = "nowhere"
    share: Annotated[float, Doc("of the entries")] = 0.1

    def score(self, maps):
        return CorrectMetric(self.share).score(maps)


@dataclass(frozen=True)
class UndocumentedMetric(CorrectMetric):
    extra: float = 1.0


@dataclass(frozen=True)
class ForgetfulMetric(CorrectMetric):
    def record(self):
        return {"metric": self.name, "share": 0.2}


@dataclass(frozen=True)
class SinglePrecisionMetric(CorrectMetric):
    def spoil(self, scores, maps):
        return dataclasses.replace(scores, values=scores.values.float())


@dataclass(frozen=True)
class OneForAll(CorrectMetric):
    def spoil(self, scores, maps):
        return dataclasses.replace(scores, details={"mean": scores.values.mean()})


@dataclass(frozen=True)
class NumbersForFlags(CorrectMetric):
    def spoil(self, scores, maps):
        return dataclasses.replace(scores, flags={"strange": torch.zeros(len(scores.values))})


@dataclass(frozen=True)
class WrongWay(CorrectMetric):
    direction: ClassVar[str] = "lower"


@dataclass(frozen=True)
class Blind(CorrectMetric):
    """Does not look at the map."""

    def spoil(self, scores, maps):
        return Scores(torch.ones_like(scores.values))


@dataclass(frozen=True)
class PerMass(CorrectMetric):
    """Infinite for the zero map."""

    def spoil(self, scores, maps):
        top = scores.details["top"].nan_to_num(1.0)
        return Scores(top / maps.values.abs().flatten(1).double().amax(1))


@dataclass(frozen=True)
class AgainstTheMean(CorrectMetric):
    """Compared with whatever maps come together."""

    def spoil(self, scores, maps):
        return dataclasses.replace(scores, values=scores.values / (1 + scores.values.sum()))


@dataclass(frozen=True)
class CountsMaps(CorrectMetric):
    def spoil(self, scores, maps):
        row = torch.arange(len(scores.values), dtype=torch.float64)
        return dataclasses.replace(scores, values=scores.values * (1 + 1e-3 * row))


@dataclass(frozen=True)
class AllMapsAtOnce(CorrectMetric):
    def spoil(self, scores, maps):
        inputs = maps.context.problem.inputs
        maps.context.problem.model.linearise(inputs.repeat_interleave(2, 0), tangents=False)
        return scores


@dataclass(frozen=True)
class GlobalDraw(CorrectMetric):
    def spoil(self, scores, maps):
        return dataclasses.replace(scores, values=scores.values * (1 + 1e-3 * torch.rand((), dtype=torch.float64)))


@dataclass(frozen=True)
class DrawsFromNumPy(CorrectMetric):
    def spoil(self, scores, maps):
        np.random.rand()  # noqa: NPY002
        return scores


@dataclass(frozen=True)
class KeepsTheFirstMap(CorrectMetric):
    """Shares between methods what belongs to a map."""

    def spoil(self, scores, maps):
        return Scores(maps.context.cached(self.name, lambda: scores.values))


@dataclass(frozen=True)
class WritesIntoMaps(CorrectMetric):
    def spoil(self, scores, maps):
        maps.values.abs_()
        return scores


@dataclass(frozen=True)
class LeavesAHookBehind(CorrectMetric):
    def spoil(self, scores, maps):
        maps.context.problem.model.module.register_forward_hook(lambda module, given, output: None)
        return scores


@dataclass(frozen=True)
class PaysLess(CorrectMetric):
    def spoil(self, scores, maps):
        for image in maps.context.problem.inputs.split(1):
            maps.context.problem.model.model(image)
        return scores


@dataclass(frozen=True)
class BlindToTheModel(CorrectMetric):
    """Says that it compares models, and scores the map alone."""

    requires_explainer: ClassVar[bool] = True
    compares_models: ClassVar[bool] = True


@dataclass(frozen=True)
class Mirrored(CorrectMetric):
    """The share of the map's mass that is on the truth, seen in a mirror."""

    def score(self, maps):
        a = self.seen(maps.values.double().clamp_min(0).sum(1))
        return Scores((a * maps.context.truth).flatten(1).sum(1) / a.flatten(1).sum(1))

    def seen(self, pixels):
        return pixels.flip(-1)


@dataclass(frozen=True)
class Transposed(Mirrored):
    """The same with rows and columns exchanged."""

    def seen(self, pixels):
        return pixels.mT
