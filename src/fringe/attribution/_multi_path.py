"""Integrals along several paths per image: AGI and IG2."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch

from fringe.attribution._base import Attribution, Attributor, reference_images
from fringe.attribution._diagnostics import gradient_attribution, path_attribution, path_diagnostics
from fringe.attribution._integrate import integrate
from fringe.attribution._quadrature import Quadrature
from fringe.attribution._segments import Reduce, SegmentTerms
from fringe.classifier import Score
from fringe.errors import InputError, require
from fringe.geometry import log_probabilities
from fringe.paths import AdversarialPath, CounterfactualPath, Problem, last_linear_layer
from fringe.settings import Doc, Positive, PositiveInt, Search

AGIMode = Literal["path", "official"]
ClosingRule = Literal["right", "trapezoid", "adaptive"]


@dataclass(frozen=True)
class AGI(Attributor):
    r"""Integrate the score's gradient along adversarial paths from the input to other classes (Pan et al. 2021).

    There is one path to each class l of a fixed set without the target t. It steps by ``epsilon`` times the sign of
    :math:`\nabla p_l` until l is predicted, at most m times, and adds up :math:`-\nabla p_t \odot \Delta z`. ``reduce``
    joins the classes. There is no baseline. The classes are 0, s, 2s, ... below C with s = floor(C / k), or all C if k
    >= C (the authors never take the last class). These are more than k if k does not divide C. If only t were left, the
    class after t is taken.

    Steps are a share of the valid range of inputs, ``attribute(..., space=InputSpace(low=..., high=...))``, and are
    clipped to it. Without a range they are a share of the image's own range and not clipped. ``mode="path"`` is a path
    with completeness. ``"official"`` is the authors' code: every step restarts from the input, so the same
    change is counted up to m times, and the verdict is ``unchecked``. The setting ``score`` replaces the score of the
    classifier. ``endpoint_score`` of the result is ``score`` minus its change on all paths together (``"mean"``: on the
    average path). Each class costs at most m forward passes and 2 m VJPs per image, and a forward pass at the end.

    The preset ``paper``: m = 20 is of the authors' notes, epsilon = .05 of their code, and one class of the scripts of
    the authors of MAS; the code of the FRInGe paper takes 5 classes.
    """

    name = "agi"
    title = "Adversarial Gradient Integration"
    source = "Pan, Li and Zhu 2021"
    many_paths = True
    needs_classes = True
    presets: ClassVar = {
        "paper": {"mode": "official", "classes": 1},
        "released": {"mode": "official", "classes": 5},
        "official": {"mode": "official"},
    }

    classes: Annotated[PositiveInt, Search(1, 50, log=True), Doc("classes to step towards (k)")] = 20
    steps: Annotated[PositiveInt, Search(5, 100, log=True), Doc("most steps of a path (m)")] = 20
    epsilon: Annotated[Positive, Search(0.002, 0.1, log=True), Doc("step of an entry", unit="of the range")] = 0.05
    mode: Annotated[AGIMode, Doc("a path, or restart from the input at every step")] = "path"
    score: Annotated[Score, Doc("explained score, of the target and of the others")] = "probability"
    reduce: Annotated[Reduce, Doc("how classes are combined")] = "sum"
    rule: Annotated[ClosingRule, Doc("quadrature: the authors', or a more exact one")] = "right"

    def __post_init__(self) -> None:
        super().__post_init__()
        expected = "'right' in mode 'official', which is no path"
        require(self.rule == "right" or self.mode != "official", "rule", self.rule, expected)

    def _towards(self, target: int, count: int) -> list[int]:
        """The classes that an image of class ``target`` is moved towards, of ``count`` classes."""
        ids = range(0, count, max(count // self.classes, 1))
        return [c for c in ids if c != target] or [(target + 1) % count]

    @property
    def is_complete(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - depends on a setting
        return self.mode == "path"

    @property
    def planned_passes(self) -> float:
        return 3 * self.classes * self.steps

    def attribute(self, problem: Problem) -> Attribution:
        problem = dataclasses.replace(problem, score_kind=self.score)
        result = integrate(self._terms(problem))
        if self.mode == "path":
            return path_attribution(
                self, result, problem, "lower epsilon, or use rule='trapezoid' or 'adaptive'", _AGI_STALLED
            )
        plain = gradient_attribution(
            self, result.values, problem, path_diagnostics(result, log_probabilities(problem.logits)), _NOT_A_PATH
        )
        return dataclasses.replace(plain, trajectory=result.trajectories)

    def _terms(self, problem: Problem) -> SegmentTerms:
        count = problem.logits.shape[1]
        pairs = [(i, c) for i, t in enumerate(problem.target.tolist()) for c in self._towards(t, count)]
        official, closed = self.mode == "official", self.rule != "right"
        images, toward = zip(*pairs, strict=True)
        path = AdversarialPath(images, toward, self.steps, self.epsilon, official, closed)
        return SegmentTerms(path, Quadrature(self.rule), problem, self.reduce)


_AGI_STALLED = (
    "no path took a step: the classes that paths lead to are predicted already, though another one is the target"
)
_NOT_A_PATH = "mode='official' restarts every step from the input, so its steps do not add up to a path"


Representation = Literal["auto", "penultimate", "logits"]


@dataclass(frozen=True)
class IG2(Attributor):
    r"""Integrate the score's gradient along paths towards images of other classes (Zhuo and Ge 2024).

    From the input, S steps of length ``eta`` descend :math:`\|r(z) - r(x^r)\|^2`; :math:`(z - z^+) \odot \nabla F^t(z)`
    is added up (``"right"``, the authors' rule: the gradient at the point before the step) and averaged over R
    references. They are drawn for each image from ``attribute(..., space=InputSpace(references=...))``, without those
    that the model predicts as the target; if there are fewer than R, all are taken. The sum of the map is the mean
    change of the score on the paths, not the difference to the references.

    r is the input of the last linear layer that runs (``"penultimate"``); for a model without one, ``"auto"`` takes the
    logits. ``eta`` is in input units; ``"auto"`` is the authors' 256 grey values at 299 x 299 x 3, kept as a change in
    root mean square: 256 / 255 sqrt(n / (3 * 299^2)) times the range for n entries. All steps have the same length:
    near its reference a path oscillates. Points are clipped to the valid range if the space has one. An image costs R
    (S + 2) forward passes and 2 R S VJPs; a call costs one forward pass per reference, and one to find the layer.

    The preset ``paper``: R = 8 and S = 201 are of the authors' notebook; eta = .015 is ours, from the sparseness in the
    FRInGe paper's tables. Its code takes R = 5, S = 50 and eta = .1.
    """

    name = "ig2"
    title = "Integrated Gradient on Iterative Gradient path"
    source = "Zhuo and Ge 2024"
    uses_references = True
    many_paths = True
    needs_classes = True
    presets: ClassVar = {
        "paper": {"eta": 0.015},
        "released": {"references": 5, "steps": 50, "eta": 0.1},
        "quick": {"references": 2, "steps": 51, "eta": 0.06},
    }

    references: Annotated[PositiveInt, Search(1, 16, log=True), Doc("paths per image, one per reference (R)")] = 8
    steps: Annotated[PositiveInt, Search(20, 500, log=True), Doc("steps of a path (S)")] = 201
    eta: Annotated[
        Positive | Literal["auto"],
        Search(0.005, 5.0, log=True),
        Doc("length of a step; auto: the authors'", unit="input units"),
    ] = "auto"
    representation: Annotated[Representation, Doc("compared features: the last linear layer's input")] = "auto"
    rule: Annotated[ClosingRule, Doc("quadrature: the authors', or a more exact one")] = "right"

    @property
    def planned_passes(self) -> float:
        return 3 * self.references * self.steps

    def attribute(self, problem: Problem) -> Attribution:
        result = integrate(self._terms(problem))
        return path_attribution(self, result, problem, "lower eta, or use rule='trapezoid' or 'adaptive'", _IG2_STALLED)

    def _terms(self, problem: Problem) -> SegmentTerms:
        pairs = [(image, number) for image, references in enumerate(self._draw(problem)) for number in references]
        layer, closed = self._layer(problem), self.rule != "right"
        images, references = zip(*pairs, strict=True)
        path = CounterfactualPath(images, references, layer, self.steps, self.eta, closed)
        return SegmentTerms(path, Quadrature(self.rule), problem, "mean")

    def _draw(self, problem: Problem) -> list[list[int]]:
        """The numbers of each image's references."""
        references = reference_images(problem, "ig2 follows paths to images of other classes")
        classes: dict[int, list[int]] = {}
        for group in problem.groups(by_score=False):
            rows = torch.tensor(group[:1], device=references.device).expand(len(references))
            classes |= dict.fromkeys(group, problem.forward(references, rows).argmax(1).tolist())
        drawn: list[list[int]] = []
        for image, (key, target) in enumerate(zip(problem.keys, problem.target.tolist(), strict=True)):
            predicted = classes[image]
            order = problem.rng.permutation(f"{self.name} references {key}", len(predicted))
            others = [reference for reference in order if predicted[reference] != target]
            if not others:
                position = image if problem.rows is None else problem.rows[image]
                raise InputError(
                    f"the model predicts the target of image {position}, class {target}, for all {len(predicted)}",
                    argument="space.references",
                    hint="pass images of other classes with attribute(..., space=InputSpace(references=...))",
                )
            drawn.append(others[: self.references])
        return drawn

    def _layer(self, problem: Problem) -> str | None:
        if self.representation == "logits":
            return None
        layer = last_linear_layer(problem)
        if layer is None and self.representation == "penultimate":
            raise InputError(
                "got 'penultimate', but the model is no module with an nn.Linear that takes one row per image",
                argument="representation",
                hint="use 'logits'",
            )
        return layer


_IG2_STALLED = "no path took a step: the references have the image's own representation, or its gradient is zero"
