"""Correct methods, and methods with one fault each, with the checks that find it."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
import torch

from fringe import InputError
from fringe.attribution import Attributor
from fringe.attribution._diagnostics import gradient_attribution, path_attribution
from fringe.attribution._integrate import integrate, quadrature_nodes
from fringe.paths import StraightLine
from fringe.settings import Doc
from fringe.testing import ATTRIBUTOR_CHECKS


@dataclass(frozen=True)
class Correct(Attributor):
    """Integrated Gradients in as few lines as it takes; ``spoil`` is where the others go wrong."""

    name: ClassVar[str] = "correct"

    steps: Annotated[int, Doc("gradients along the line")] = 4
    baseline: Annotated[str, Doc("where the line begins")] = "zero"

    def attribute(self, problem):
        baseline = self.begin(problem)
        line = StraightLine(problem.inputs, baseline, *quadrature_nodes("midpoint", self.nodes()))
        result = integrate(line, problem)
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
        return self.spoil(gradient_attribution(self, values, problem, {}, "a gradient"), problem)

    def spoil(self, result, problem):
        return result


def with_values(result, values):
    """The same attribution with other maps, and a gap that is true of them."""
    gap = values.double().flatten(1).sum(1) - (result.score - result.endpoint_score).double()
    residual = gap.abs() / (result.score - result.endpoint_score).double().abs()
    return replace(result, values=values, completeness_gap=gap, completeness_residual=residual)


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
class MeanOfTheBatch(Attributor):
    """The line begins at the mean of whatever images come together."""

    name: ClassVar[str] = "batch_mean"

    def attribute(self, problem):
        mean = problem.inputs.mean(0, keepdim=True).expand_as(problem.inputs)
        line = StraightLine(problem.inputs, mean, *quadrature_nodes("midpoint", 4))
        result = integrate(line, problem)
        return path_attribution(self, result, problem, "")


@dataclass(frozen=True)
class WithoutContrast(Correct):
    """Explains the class alone, and not its difference from another one."""

    def attribute(self, problem):
        return super().attribute(replace(problem, contrast=None))


@dataclass(frozen=True)
class FirstClassOnly(Gradient):
    """Of several classes, all have the map of the first."""

    many_targets = True

    def attribute(self, problem):
        result = super().attribute(problem)
        values = result.values if problem.target.dim() == 1 else result.values[:, :1].expand_as(result.values)
        return replace(result, values=values)


def fault(base, **members):
    """``base`` with other members."""
    return dataclass(frozen=True)(type("Fault", (base,), members))


def spoilt(spoil):
    """Integrated Gradients whose result ``spoil(self, result, problem)`` changes."""
    return fault(Correct, spoil=spoil)


def mapped(values):
    """The gradient, with the maps ``values(result, problem)``."""
    return fault(Gradient, spoil=lambda self, result, problem: replace(result, values=values(result, problem)))


def of_another(problem_of):
    """The gradient of the problem that ``problem_of(problem)`` makes, reported as that of its own."""
    return mapped(lambda result, problem: Gradient().attribute(problem_of(problem)).values)


def beside(action):
    """The gradient, and ``action(problem)``."""

    def spoil(self, result, problem):
        action(problem)
        return result

    return fault(Gradient, spoil=spoil)


def never_empty(self, result, problem):
    """A zero map becomes a map of ones."""
    empty = (result.values == 0).flatten(1).all(1).view(-1, *[1] * (result.values.dim() - 1))
    return with_values(result, torch.where(empty, 1.0, result.values))


def only_images(self, problem):
    _, _, _, _ = problem.inputs.shape
    return Correct.begin(self, problem)


def only_images_politely(self, problem):
    if problem.inputs.dim() != 4:
        raise InputError("inputs: only images")
    return Correct.begin(self, problem)


def divided_by_doubt(result, problem):
    """Divided by 1 - p, which is zero where the network is certain; for images only."""
    doubt = 1 - problem.logits.softmax(1).gather(1, problem.target[:, None])
    return result.values / doubt.view(-1, 1, 1, 1)


def times_its_row(result, problem):
    """The map knows where its image stands."""
    row = torch.arange(1.0, 1.0 + len(result.values), dtype=result.values.dtype)
    return result.values * row.view(-1, *[1] * (result.values.dim() - 1))


#: The checks that explain something: all of them fail for a result that attribute() refuses.
EXPLAINING = {name for name in ATTRIBUTOR_CHECKS if not name.startswith("settings") and name != "presets"}

Polite = fault(Correct, begin=only_images_politely)

#: A method with one fault, and the checks that find it.
FAULTS = {
    # settings
    "mutable": (Mutable, {"settings_frozen"}),
    "undocumented": (Undocumented, {"settings_documented"}),
    "unwritable": (Unwritable, {"settings_recorded"}),
    "its record leaves a setting out": (
        fault(Correct, record=lambda self: {"method": self.name, "steps": self.steps, "baseline": "black"}),
        {"settings_recorded"},
    ),
    "a preset with a setting that does not exist": (
        fault(Correct, presets={"paper": {"nodes": 3}}),
        {"presets"},
    ),
    # what is returned
    "single precision": (
        spoilt(lambda self, result, problem: replace(result, values=result.values.float())),
        {"shape_and_dtype", "completeness", "affine_score"},
    ),
    "graphed": (
        spoilt(lambda self, result, problem: replace(result, values=result.values.requires_grad_(True))),
        {"shape_and_dtype"},
    ),
    "short diagnostics": (
        spoilt(lambda self, result, problem: replace(result, diagnostics={"mean": result.score.mean()})),
        EXPLAINING,
    ),
    # maps
    "divided by doubt": (mapped(divided_by_doubt), {"finite", "tabular_inputs"}),
    "never empty": (spoilt(never_empty), {"constant_model", "zero_displacement"}),
    "shares the sum out among the channels": (  # still complete
        spoilt(
            lambda self, result, problem: replace(
                result, values=result.values.mean(1, keepdim=True).expand_as(result.values).clone()
            )
        ),
        {"unread_inputs", "affine_score"},
    ),
    "mirrored": (mapped(lambda result, problem: result.values.flip(-1)), {"unread_inputs"}),
    "negated": (mapped(lambda result, problem: -result.values), {"affine_score"}),
    "nine tenths, honestly reported": (
        spoilt(lambda self, result, problem: with_values(result, 0.9 * result.values)),
        {"affine_score", "refinement"},
    ),
    # what is claimed
    "says that its maps add up, and gives no gap": (fault(Gradient, is_complete=True), {"completeness"}),
    "claims to be exact": (
        spoilt(
            lambda self, result, problem: replace(
                result, completeness_gap=0 * result.score, completeness_residual=0 * result.score
            )
        ),
        {"completeness"},
    ),
    "a score that is not the explained one": (  # the gap is true of it
        spoilt(
            lambda self, result, problem: replace(
                result, score=result.score + 1, endpoint_score=result.endpoint_score + 1
            )
        ),
        {"completeness", "affine_score", "explained_class", "unread_inputs"},
    ),
    "called unchecked": (
        spoilt(lambda self, result, problem: replace(result, verdict=("unchecked",) * len(result.verdict))),
        {"completeness"},
    ),
    # what it is given
    "ignores its steps": (fault(Correct, nodes=lambda self: 2), {"refinement"}),
    "ignores its baseline": (
        fault(Correct, begin=lambda self, problem: torch.zeros_like(problem.inputs)),
        {"zero_displacement"},
    ),
    "only images": (fault(Correct, begin=only_images), {"tabular_inputs"}),
    "the prediction, whatever is asked for": (
        of_another(lambda problem: replace(problem, target=problem.logits.argmax(1), contrast=None)),
        {"explained_class", "unread_inputs"},
    ),
    "without the contrast": (WithoutContrast, {"explained_class"}),
    "of several classes, the first alone": (FirstClassOnly, {"explained_class"}),
    # other images, and the call
    "from the mean of the batch": (MeanOfTheBatch, {"batch_of_one"}),
    "times its row": (mapped(times_its_row), {"batch_of_one", "order", "explained_class"}),
    "all at once": (
        beside(lambda problem: problem.model.linearise(problem.inputs.repeat_interleave(2, 0), tangents=False)),
        {"batch_size"},
    ),
    "global noise": (  # from a generator that the session puts back
        mapped(lambda result, problem: result.values * (1 + 1e-3 * torch.randn(()).to(result.values))),
        {"repeatable"},
    ),
    "knows how many images were given": (  # bad ones included
        mapped(lambda result, problem: result.values * (problem.total or 1)),
        {"bad_images", "batch_of_one"},
    ),
    "recording matters": (mapped(lambda result, problem: result.values * (1.0 + problem.record_path)), {"telemetry"}),
    "tells of more progress than was planned": (
        beside(lambda problem: problem.progress is None or problem.progress(2, 1)),
        {"telemetry"},
    ),
    # what it leaves behind
    "moves NumPy's generator": (beside(lambda problem: np.random.rand()), {"random_generators"}),  # noqa: NPY002
    "writes into references": (beside(lambda problem: problem.domain.references.mul_(0.5)), {"caller_tensors"}),
    "leaves a hook": (
        beside(lambda problem: problem.model.module.register_forward_hook(lambda module, given, output: None)),
        {"caller_model"},
    ),
    "clears gradients": (beside(lambda problem: problem.model.module.zero_grad()), {"caller_model"}),
    "goes past the classifier to the model": (
        beside(lambda problem: [problem.model.model(image) for image in problem.inputs.split(1)]),
        {"passes"},
    ),
}
