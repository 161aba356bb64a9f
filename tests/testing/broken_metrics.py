"""A correct metric, and metrics with one fault each, with the checks that find it."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
import torch

from fringe.metrics import Metric, Scores
from fringe.settings import Doc
from fringe.testing import METRIC_CHECKS


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


def fault(**members):
    """The correct metric with other members."""
    return dataclass(frozen=True)(type("Fault", (CorrectMetric,), members))


def spoilt(values):
    """The correct metric whose values are those of ``values(scores, maps)``."""
    return fault(spoil=lambda self, scores, maps: replace(scores, values=values(scores, maps)))


def beside(action):
    """The correct metric, and ``action(maps)``."""

    def spoil(self, scores, maps):
        action(maps)
        return scores

    return fault(spoil=spoil)


def seen_by(look):
    """The share of the mass of a map on the truth, the map seen by ``look(pixels)``."""

    def score(self, maps):
        a = look(maps.values.double().clamp_min(0).sum(1))
        return Scores((a * maps.context.truth).flatten(1).sum(1) / a.flatten(1).sum(1))

    return fault(score=score)


def per_mass(self, scores, maps):
    """Infinite for the zero map."""
    top = scores.details["top"].nan_to_num(1.0)
    return Scores(top / maps.values.abs().flatten(1).double().amax(1))


def all_at_once(maps):
    problem = maps.context.problem
    problem.model.linearise(problem.inputs.repeat_interleave(2, 0), tangents=False)


def past_the_classifier(maps):
    problem = maps.context.problem
    for image in problem.inputs.split(1):
        problem.model.model(image)


def leaves_a_hook(maps):
    maps.context.problem.model.module.register_forward_hook(lambda module, given, output: None)


#: The checks that score something: all of them fail for scores that evaluate() refuses.
SCORING = {name for name in METRIC_CHECKS if not name.startswith("settings") and name not in ("presets", "declared")}

WrongWay = fault(direction="lower")

#: A metric with one fault, and the checks that find it.
FAULTS = {
    # what it says of itself
    "undirected": (fault(direction="up"), {"declared", "ranking"}),
    "sourceless": (fault(source=""), {"declared"}),
    "no paper setting": (fault(presets={"default": {}}), {"declared"}),
    "misnamed preset": (fault(presets={"paper": {"portion": 0.2}}), {"presets"}),
    "mutable": (MutableMetric, {"settings_frozen"}),
    "undocumented": (UndocumentedMetric, {"settings_documented"}),
    "forgetful": (fault(record=lambda self: {"metric": self.name, "share": 0.2}), {"settings_recorded"}),
    # what it returns
    "single precision": (spoilt(lambda scores, maps: scores.values.float()), {"shape_and_dtype"}),
    "one for all": (
        fault(spoil=lambda self, scores, maps: replace(scores, details={"mean": scores.values.mean()})),
        SCORING,
    ),
    "numbers for flags": (
        fault(spoil=lambda self, scores, maps: replace(scores, flags={"strange": torch.zeros(len(scores.values))})),
        {"shape_and_dtype"},
    ),
    # what it prefers
    "wrong way": (WrongWay, {"ranking"}),
    "does not look at the map": (
        fault(spoil=lambda self, scores, maps: Scores(torch.ones_like(scores.values))),
        {"ranking"},
    ),
    "says that it compares models, and scores the map alone": (
        fault(requires_explainer=True, compares_models=True),
        {"ranking"},
    ),
    "mirrored": (seen_by(lambda pixels: pixels.flip(-1)), {"ranking"}),
    "per mass": (fault(spoil=per_mass), {"degenerate_maps"}),
    # other maps
    "against the mean": (spoilt(lambda scores, maps: scores.values / (1 + scores.values.sum())), {"batch_of_one"}),
    "counts maps": (
        spoilt(lambda scores, maps: scores.values * (1 + 1e-3 * torch.arange(len(scores.values)).double())),
        {"batch_of_one", "order"},
    ),
    "all maps at once": (beside(all_at_once), {"batch_size"}),
    "global draw": (
        spoilt(lambda scores, maps: scores.values * (1 + 1e-3 * torch.rand((), dtype=torch.float64))),
        {"repeatable"},
    ),
    "shares between methods what belongs to a map": (
        fault(spoil=lambda self, scores, maps: Scores(maps.context.cached(self.name, lambda: scores.values))),
        {"shared_context"},
    ),
    # what it leaves behind
    "draws from NumPy": (beside(lambda maps: np.random.rand()), {"random_generators"}),  # noqa: NPY002
    "writes into maps": (beside(lambda maps: maps.values.abs_()), {"caller_tensors"}),
    "leaves a hook": (beside(leaves_a_hook), {"caller_model"}),
    "goes past the classifier to the model": (beside(past_the_classifier), {"passes"}),
}
