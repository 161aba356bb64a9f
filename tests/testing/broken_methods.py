"""A sound method, and methods with one fault each."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from fringe._tunable import tunable
from fringe.attribution import Attributor
from fringe.attribution._diagnostics import gradient_attribution, path_attribution
from fringe.attribution._integrate import integrate
from fringe.attribution._pieces import NodePieces
from fringe.attribution._quadrature import quadrature_nodes
from fringe.paths import StraightLine


@dataclass(frozen=True)
class Sound(Attributor):
    """Integrated Gradients in as few lines as it takes; ``spoil`` is where the others go wrong."""

    name: ClassVar[str] = "sound"

    steps: int = tunable(4, help="gradients along the line")
    baseline: str = tunable("zero", help="where the line begins")

    def attribute(self, problem):
        baseline = self.begin(problem)
        line = StraightLine(problem.inputs, baseline, *quadrature_nodes("midpoint", self.nodes()))
        found = integrate(NodePieces(line, problem))
        whole = path_attribution(self, found, problem, "use more steps")
        return self.spoil(whole, problem)

    def begin(self, problem):
        return problem.resolve_baseline(self.baseline)

    def nodes(self):
        return self.steps

    def spoil(self, found, problem):
        return found


@dataclass(frozen=True)
class Gradient(Attributor):
    """The gradient itself: no path, and no claim of completeness."""

    name: ClassVar[str] = "gradient"
    complete = False

    def attribute(self, problem):
        _, values = problem.logits_gradient(problem.inputs, problem.every_row)
        return gradient_attribution(self, values, problem, {}, "a gradient")


def with_values(found, values):
    """The same attribution with other maps, and a gap that is true of them."""
    gap = values.double().flatten(1).sum(1) - (found.score - found.endpoint_score).double()
    residual = gap.abs() / (found.score - found.endpoint_score).double().abs()
    return dataclasses.replace(found, values=values, completeness_gap=gap, completeness_residual=residual)


@dataclass
class Mutable(Attributor):
    name: ClassVar[str] = "mutable"
    steps: int = tunable(4, help="gradients along the line")

    def attribute(self, problem):
        return Sound(self.steps).attribute(problem)


@dataclass(frozen=True)
class Dumb(Sound):
    """One setting does not say what it is."""

    extra: float = 1.0


@dataclass(frozen=True)
class Unwritable(Sound):
    """A setting that JSON does not know."""

    extra: frozenset = tunable(frozenset({1}), help="numbers")


@dataclass(frozen=True)
class Forgetful(Sound):
    """Its record leaves a setting out."""

    def record(self):
        return {"method": self.name, "steps": self.steps, "baseline": "black"}


@dataclass(frozen=True)
class Misnamed(Sound):
    """A preset with a setting that does not exist."""

    presets: ClassVar = {"paper": {"nodes": 3}}


@dataclass(frozen=True)
class SinglePrecision(Sound):
    def spoil(self, found, problem):
        return dataclasses.replace(found, values=found.values.float())


@dataclass(frozen=True)
class Graphed(Sound):
    def spoil(self, found, problem):
        return dataclasses.replace(found, values=found.values.requires_grad_(True))


@dataclass(frozen=True)
class ShortDiagnostics(Sound):
    def spoil(self, found, problem):
        return dataclasses.replace(found, diagnostics={"mean": found.score.mean()})


@dataclass(frozen=True)
class DividesByDoubt(Gradient):
    """Divided by 1 - p, which is zero where the network is certain; for images only."""

    def attribute(self, problem):
        found = super().attribute(problem)
        doubt = 1 - problem.logits.softmax(1).gather(1, problem.target[:, None])
        return dataclasses.replace(found, values=found.values / doubt.view(-1, 1, 1, 1))


@dataclass(frozen=True)
class NeverEmpty(Sound):
    """A zero map becomes a map of ones."""

    def spoil(self, found, problem):
        empty = (found.values == 0).flatten(1).all(1).view(-1, *[1] * (found.values.dim() - 1))
        return with_values(found, torch.where(empty, 1.0, found.values))


@dataclass(frozen=True)
class SmearsChannels(Sound):
    """Shares out the sum of the channels equally: still complete."""

    def spoil(self, found, problem):
        return dataclasses.replace(found, values=found.values.mean(1, keepdim=True).expand_as(found.values).clone())


@dataclass(frozen=True)
class Shrinks(Sound):
    """Nine tenths of the map, honestly reported."""

    def spoil(self, found, problem):
        return with_values(found, 0.9 * found.values)


@dataclass(frozen=True)
class ClaimsToBeExact(Sound):
    def spoil(self, found, problem):
        zero = torch.zeros_like(found.completeness_gap)
        return dataclasses.replace(found, completeness_gap=zero, completeness_residual=zero)


@dataclass(frozen=True)
class WrongSign(Sound):
    def spoil(self, found, problem):
        return dataclasses.replace(found, completeness_gap=-found.completeness_gap)


@dataclass(frozen=True)
class OtherScore(Sound):
    """Reports a score that is not the explained one; the gap is true of it."""

    def spoil(self, found, problem):
        return dataclasses.replace(found, score=found.score + 1, endpoint_score=found.endpoint_score + 1)


@dataclass(frozen=True)
class CalledUnchecked(Sound):
    def spoil(self, found, problem):
        return dataclasses.replace(found, verdict=("unchecked",) * len(found.verdict))


@dataclass(frozen=True)
class IgnoresSteps(Sound):
    def nodes(self):
        return 2


@dataclass(frozen=True)
class OwnBaseline(Sound):
    """Begins at zero, whatever is given."""

    def begin(self, problem):
        return torch.zeros_like(problem.inputs)


@dataclass(frozen=True)
class OnlyImages(Sound):
    def begin(self, problem):
        _, _, _, _ = problem.inputs.shape
        return super().begin(problem)


@dataclass(frozen=True)
class OnlyImagesPolitely(Sound):
    def begin(self, problem):
        from fringe import InputError

        if problem.inputs.dim() != 4:
            raise InputError("inputs: only images")
        return super().begin(problem)


@dataclass(frozen=True)
class MeanOfTheBatch(Attributor):
    """The line begins at the mean of whatever images come together."""

    name: ClassVar[str] = "batch_mean"

    def attribute(self, problem):
        mean = problem.inputs.mean(0, keepdim=True).expand_as(problem.inputs)
        line = StraightLine(problem.inputs, mean, *quadrature_nodes("midpoint", 4))
        found = integrate(NodePieces(line, problem))
        return path_attribution(self, found, problem, "")


@dataclass(frozen=True)
class CountsRows(Gradient):
    """The map knows where its image stands."""

    def attribute(self, problem):
        found = super().attribute(problem)
        row = torch.arange(1.0, 1.0 + len(found.values), dtype=found.values.dtype)
        return dataclasses.replace(found, values=found.values * row.view(-1, *[1] * (found.values.dim() - 1)))


@dataclass(frozen=True)
class AllAtOnce(Gradient):
    """Every image in one pass, however many the classifier allows."""

    def attribute(self, problem):
        found = super().attribute(problem)
        point = problem.model.linearise(problem.inputs.repeat_interleave(2, 0), tangents=False)
        assert len(point.value) == 2 * len(problem.inputs)
        return found


@dataclass(frozen=True)
class GlobalNoise(Gradient):
    """Random numbers from torch's global generator, which the session puts back."""

    def attribute(self, problem):
        found = super().attribute(problem)
        return dataclasses.replace(found, values=found.values * (1 + 1e-3 * torch.randn(()).to(found.values)))


@dataclass(frozen=True)
class MovesNumPy(Gradient):
    """Draws from NumPy's global generator, for nothing."""

    def attribute(self, problem):
        np.random.rand()  # noqa: NPY002
        return super().attribute(problem)


@dataclass(frozen=True)
class WritesIntoReferences(Gradient):
    def attribute(self, problem):
        problem.domain.references.mul_(0.5)
        return super().attribute(problem)


@dataclass(frozen=True)
class LeavesAHook(Gradient):
    def attribute(self, problem):
        problem.model.module.register_forward_hook(lambda module, given, output: None)
        return super().attribute(problem)


@dataclass(frozen=True)
class CountsInABuffer(Gradient):
    def attribute(self, problem):
        for name, buffer in problem.model.module.named_buffers():
            if name.endswith("num_batches_tracked"):
                buffer.add_(1)
        return super().attribute(problem)


@dataclass(frozen=True)
class CountsTooFew(Gradient):
    """Goes past the classifier to the model."""

    def attribute(self, problem):
        for image in problem.inputs.split(1):
            problem.model.model(image)
        return super().attribute(problem)


@dataclass(frozen=True)
class LooksAtTheWholeCall(Gradient):
    """The map knows how many images were asked for, bad ones included."""

    def attribute(self, problem):
        found = super().attribute(problem)
        return dataclasses.replace(found, values=found.values * (problem.total or 1))


@dataclass(frozen=True)
class RecordingMatters(Gradient):
    def attribute(self, problem):
        found = super().attribute(problem)
        return dataclasses.replace(found, values=found.values * (1.0 + problem.record_path))


@dataclass(frozen=True)
class OverPlan(Gradient):
    """Tells of more progress than was planned."""

    def attribute(self, problem):
        if problem.progress is not None:
            problem.progress(2, 1)
        return super().attribute(problem)


@dataclass(frozen=True)
class Boastful(Gradient):
    """Says that its maps add up, and gives no gap."""

    complete = True
