"""A correct method, and methods with one fault each."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch

from fringe.attribution import Attributor
from fringe.attribution._diagnostics import gradient_attribution, path_attribution
from fringe.attribution._integrate import integrate
from fringe.attribution._quadrature import quadrature_nodes
from fringe.attribution._terms import NodeTerms
from fringe.paths import StraightLine
from fringe.settings import Doc


@dataclass(frozen=True)
class Correct(Attributor):
    """Integrated Gradients in as few lines as it takes; ``spoil`` is where the others go wrong."""

    name: ClassVar[str] = "correct"

    steps: Annotated[int, Doc("gradients along the line")] = 4
    baseline: Annotated[str, Doc("where the line begins")] = "zero"

    def attribute(self, problem):
        baseline = self.begin(problem)
        line = StraightLine(problem.inputs, baseline, *quadrature_nodes("midpoint", self.nodes()))
        result = integrate(NodeTerms(line, problem))
        result = path_attribution(self, result, problem, "use more steps")
        return self.spoil(result, problem)

    def begin(self, problem):
        return problem.resolve_baseline(self.baseline)

    def nodes(self):
        return self.steps

    def spoil(self, result, problem):
        return result


@dataclass(frozen=True)
class Gradient(Attributor):
    """The gradient itself: no path, and no claim of completeness."""

    name: ClassVar[str] = "gradient"
    is_complete = False

    def attribute(self, problem):
        _, values = problem.logits_gradient(problem.inputs, problem.every_row)
        return gradient_attribution(self, values, problem, {}, "a gradient")


def with_values(result, values):
    """The same attribution with other maps, and a gap that is true of them."""
    gap = values.double().flatten(1).sum(1) - (result.score - result.endpoint_score).double()
    residual = gap.abs() / (result.score - result.endpoint_score).double().abs()
    return dataclasses.replace(result, values=values, completeness_gap=gap, completeness_residual=residual)


@dataclass
class Mutable(Attributor):
    name: ClassVar[str] = "mutable"
    steps: Annotated[int, Doc("gradients along the line")] = 4

    def attribute(self, problem):
        return Correct(self.steps).attribute(problem)


@dataclass(frozen=True)
class Undocumented(Correct):
    """One setting does not say what it is."""

    extra: float = 1.0


@dataclass(frozen=True)
class Unwritable(Correct):
    """A setting that JSON does not know."""

    extra: Annotated[frozenset, Doc("numbers")] = frozenset({1})


@dataclass(frozen=True)
class Forgetful(Correct):
    """Its record leaves a setting out."""

    def record(self):
        return {"method": self.name, "steps": self.steps, "baseline": "black"}


@dataclass(frozen=True)
class Misnamed(Correct):
    """A preset with a setting that does not exist."""

    presets: ClassVar = {"paper": {"nodes": 3}}


@dataclass(frozen=True)
class SinglePrecision(Correct):
    def spoil(self, result, problem):
        return dataclasses.replace(result, values=result.values.float())


@dataclass(frozen=True)
class Graphed(Correct):
    def spoil(self, result, problem):
        return dataclasses.replace(result, values=result.values.requires_grad_(True))


@dataclass(frozen=True)
class ShortDiagnostics(Correct):
    def spoil(self, result, problem):
        return dataclasses.replace(result, diagnostics={"mean": result.score.mean()})


@dataclass(frozen=True)
class DividesByDoubt(Gradient):
    """Divided by 1 - p, which is zero where the network is certain; for images only."""

    def attribute(self, problem):
        result = super().attribute(problem)
        doubt = 1 - problem.logits.softmax(1).gather(1, problem.target[:, None])
        return dataclasses.replace(result, values=result.values / doubt.view(-1, 1, 1, 1))


@dataclass(frozen=True)
class NeverEmpty(Correct):
    """A zero map becomes a map of ones."""

    def spoil(self, result, problem):
        empty = (result.values == 0).flatten(1).all(1).view(-1, *[1] * (result.values.dim() - 1))
        return with_values(result, torch.where(empty, 1.0, result.values))


@dataclass(frozen=True)
class SmearsChannels(Correct):
    """Shares out the sum of the channels equally: still complete."""

    def spoil(self, result, problem):
        return dataclasses.replace(result, values=result.values.mean(1, keepdim=True).expand_as(result.values).clone())


@dataclass(frozen=True)
class Transposed(Correct):
    """Rows and columns exchanged, without a claim to be complete."""

    @property
    def is_complete(self):
        return False

    def spoil(self, result, problem):
        values = result.values.mT.clone() if result.values.dim() == 4 else result.values
        gap = torch.full_like(result.completeness_gap, torch.nan)
        return dataclasses.replace(
            result,
            values=values,
            completeness_gap=gap,
            completeness_residual=gap,
            verdict=("unchecked",) * len(result.verdict),
        )


@dataclass(frozen=True)
class Shrinks(Correct):
    """Nine tenths of the map, honestly reported."""

    def spoil(self, result, problem):
        return with_values(result, 0.9 * result.values)


@dataclass(frozen=True)
class ClaimsToBeExact(Correct):
    def spoil(self, result, problem):
        zero = torch.zeros_like(result.completeness_gap)
        return dataclasses.replace(result, completeness_gap=zero, completeness_residual=zero)


@dataclass(frozen=True)
class WrongSign(Correct):
    def spoil(self, result, problem):
        return dataclasses.replace(result, completeness_gap=-result.completeness_gap)


@dataclass(frozen=True)
class OtherScore(Correct):
    """Reports a score that is not the explained one; the gap is true of it."""

    def spoil(self, result, problem):
        return dataclasses.replace(result, score=result.score + 1, endpoint_score=result.endpoint_score + 1)


@dataclass(frozen=True)
class CalledUnchecked(Correct):
    def spoil(self, result, problem):
        return dataclasses.replace(result, verdict=("unchecked",) * len(result.verdict))


@dataclass(frozen=True)
class IgnoresSteps(Correct):
    def nodes(self):
        return 2


@dataclass(frozen=True)
class IgnoresBaseline(Correct):
    """Begins at zero, whatever is given."""

    def begin(self, problem):
        return torch.zeros_like(problem.inputs)


@dataclass(frozen=True)
class OnlyImages(Correct):
    def begin(self, problem):
        _, _, _, _ = problem.inputs.shape
        return super().begin(problem)


@dataclass(frozen=True)
class OnlyImagesPolitely(Correct):
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
        result = integrate(NodeTerms(line, problem))
        return path_attribution(self, result, problem, "")


@dataclass(frozen=True)
class CountsRows(Gradient):
    """The map knows where its image stands."""

    def attribute(self, problem):
        result = super().attribute(problem)
        row = torch.arange(1.0, 1.0 + len(result.values), dtype=result.values.dtype)
        return dataclasses.replace(result, values=result.values * row.view(-1, *[1] * (result.values.dim() - 1)))


@dataclass(frozen=True)
class AllAtOnce(Gradient):
    """Every image in one pass, however many the classifier allows."""

    def attribute(self, problem):
        result = super().attribute(problem)
        point = problem.model.linearise(problem.inputs.repeat_interleave(2, 0), tangents=False)
        assert len(point.value) == 2 * len(problem.inputs)
        return result


@dataclass(frozen=True)
class GlobalNoise(Gradient):
    """Random numbers from torch's global generator, which the session puts back."""

    def attribute(self, problem):
        result = super().attribute(problem)
        return dataclasses.replace(result, values=result.values * (1 + 1e-3 * torch.randn(()).to(result.values)))


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
class ClearsGradients(Gradient):
    def attribute(self, problem):
        problem.model.module.zero_grad()
        return super().attribute(problem)


@dataclass(frozen=True)
class CountsTooFew(Gradient):
    """Goes past the classifier to the model."""

    def attribute(self, problem):
        for image in problem.inputs.split(1):
            problem.model.model(image)
        return super().attribute(problem)


@dataclass(frozen=True)
class DependsOnTheCall(Gradient):
    """The map knows how many images were given, bad ones included."""

    def attribute(self, problem):
        result = super().attribute(problem)
        return dataclasses.replace(result, values=result.values * (problem.total or 1))


@dataclass(frozen=True)
class RecordingMatters(Gradient):
    def attribute(self, problem):
        result = super().attribute(problem)
        return dataclasses.replace(result, values=result.values * (1.0 + problem.record_path))


@dataclass(frozen=True)
class OverPlan(Gradient):
    """Tells of more progress than was planned."""

    def attribute(self, problem):
        if problem.progress is not None:
            problem.progress(2, 1)
        return super().attribute(problem)


@dataclass(frozen=True)
class AlwaysThePrediction(Gradient):
    """The map of the predicted class, whichever is asked for."""

    def attribute(self, problem):
        predicted = dataclasses.replace(problem, target=problem.logits.argmax(1), contrast=None)
        values = super().attribute(predicted).values
        return dataclasses.replace(super().attribute(problem), values=values)


@dataclass(frozen=True)
class WithoutContrast(Correct):
    """Explains the class alone, and not its difference from another one."""

    def attribute(self, problem):
        return super().attribute(dataclasses.replace(problem, contrast=None))


@dataclass(frozen=True)
class Boastful(Gradient):
    """Says that its maps add up, and gives no gap."""

    is_complete = True


@dataclass(frozen=True)
class Negated(Gradient):
    """Evidence for the target is negative."""

    def attribute(self, problem):
        result = super().attribute(problem)
        return dataclasses.replace(result, values=-result.values)


@dataclass(frozen=True)
class Mirrored(Gradient):
    def attribute(self, problem):
        result = super().attribute(problem)
        return dataclasses.replace(result, values=result.values.flip(-1))


@dataclass(frozen=True)
class Shifted(Gradient):
    def attribute(self, problem):
        result = super().attribute(problem)
        return dataclasses.replace(result, values=result.values.roll(1, -1))


@dataclass(frozen=True)
class NextClass(Gradient):
    """Off by one class, of targets and of contrasts."""

    def attribute(self, problem):
        classes = problem.logits.shape[1]
        contrast = None if problem.contrast is None else (problem.contrast + 1) % classes
        values = (
            super()
            .attribute(dataclasses.replace(problem, target=(problem.target + 1) % classes, contrast=contrast))
            .values
        )
        return dataclasses.replace(super().attribute(problem), values=values)


@dataclass(frozen=True)
class OfTheProbability(Gradient):
    """The gradient after softmax, with the logit as its score."""

    def attribute(self, problem):
        values = super().attribute(dataclasses.replace(problem, score_kind="probability")).values
        return dataclasses.replace(super().attribute(problem), values=values)


@dataclass(frozen=True)
class FirstClassOnly(Gradient):
    """Of several classes, all have the map of the first."""

    many_targets = True

    def attribute(self, problem):
        result = super().attribute(problem)
        values = result.values if problem.target.dim() == 1 else result.values[:, :1].expand_as(result.values)
        return dataclasses.replace(result, values=values)
