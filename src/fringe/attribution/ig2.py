"""Integrated Gradient on Iterative Gradient path (Zhuo and Ge 2024)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch

from fringe.attribution.base import Attribution, Attributor
from fringe.attribution.diagnostics import path_attribution
from fringe.attribution.integral import Quadrature
from fringe.attribution.path_integral import integrate
from fringe.attribution.pieces import MultiPath, PooledPieces
from fringe.attribution.reference_images import reference_images
from fringe.errors import InputError
from fringe.paths import CounterfactualPath, Problem, last_linear_layer
from fringe.settings import Doc, Positive, PositiveInt, Search

Representation = Literal["auto", "penultimate", "logits"]
IG2Rule = Literal["right", "trapezoid", "adaptive"]


@dataclass(frozen=True)
class IG2(Attributor):
    r"""Integrate the score's gradient along walks towards images of other classes (Zhuo and Ge 2024).

    From the input, S steps of length ``eta`` descend :math:`\|r(z) - r(x^r)\|^2`; :math:`(z - z^+) \odot \nabla F^t(z)`
    is gathered on the way (``"right"``, the authors' rule: the gradient at the point before the step) and averaged over
    R references. They are drawn for each image from ``attribute(..., space=InputSpace(references=...))``, without those
    that the model predicts as the target; fewer than R are all taken. The sum of the map is the mean change of the
    score on the walks, not the difference to the references.

    r is the input of the last linear layer that runs (``"penultimate"``); ``"auto"`` takes the logits for a model that
    has none. ``eta`` is in input units; ``"auto"`` is the authors' 256 grey values at 299 x 299 x 3, kept as a change
    in root mean square, 0.75 times the range at 224 x 224 x 3. Steps are of equal length: a walk that comes near its
    reference swings about it. Points are clipped to the valid range where the space knows it. An image costs R (S + 2)
    forward passes and 2 R S VJPs; the call one forward pass a reference, and one to find the layer.
    """

    name: ClassVar[str] = "ig2"
    title: ClassVar[str] = "Integrated Gradient on Iterative Gradient path"
    source: ClassVar[str] = "Zhuo and Ge 2024"
    uses_references: ClassVar[bool] = True
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"eta": 0.015},
        "quick": {"references": 2, "steps": 51, "eta": 0.06},
    }

    references: Annotated[
        PositiveInt, Search(1, 16, log=True), Doc("walks an image, each towards one reference (R)")
    ] = 8
    steps: Annotated[PositiveInt, Search(20, 500, log=True), Doc("steps of a walk (S)")] = 201
    eta: Annotated[
        Positive | Literal["auto"],
        Search(0.005, 5.0, log=True),
        Doc("length of a step; auto: the authors'", unit="input units"),
    ] = "auto"
    representation: Annotated[Representation, Doc("what images are compared by: the last linear layer's input")] = (
        "auto"
    )
    rule: Annotated[IG2Rule, Doc("quadrature: the authors', or a more exact one")] = "right"

    @property
    def planned_passes(self) -> float:
        return 3 * self.references * self.steps

    def attribute(self, problem: Problem) -> Attribution:
        result = integrate(PooledPieces(self._paths(problem), Quadrature(self.rule), problem))
        return path_attribution(self, result, problem, "lower eta, or use rule='trapezoid' or 'adaptive'", _STALLED)

    def _paths(self, problem: Problem) -> MultiPath:
        drawn = self._draw(problem)
        pairs = [(image, reference) for image, references in enumerate(drawn) for reference in references]
        layer = self._layer(problem)

        def path(batch: list[int]) -> CounterfactualPath:
            references = tuple(pairs[r][1] for r in batch)
            return CounterfactualPath(references, layer, self.steps, self.eta, closed=self.rule != "right")

        return MultiPath(path, [image for image, _ in pairs], self.steps, "mean")

    def _draw(self, problem: Problem) -> list[list[int]]:
        """The numbers of each image's references."""
        references = reference_images(problem, "ig2 walks towards images of other classes")
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
                place = image if problem.rows is None else problem.rows[image]
                raise InputError(
                    f"space.references: the model predicts the target of image {place}, class {target}, for all "
                    f"{len(predicted)} of them; pass images of other classes with "
                    "attribute(..., space=InputSpace(references=...))"
                )
            drawn.append(others[: self.references])
        return drawn

    def _layer(self, problem: Problem) -> str | None:
        if self.representation == "logits":
            return None
        layer = last_linear_layer(problem)
        if layer is None and self.representation == "penultimate":
            raise InputError(
                "representation: got 'penultimate', but the model is no module with an nn.Linear that takes one row an "
                "image; use 'logits'"
            )
        return layer


_STALLED = "no walk took a step: the references have the image's own representation, or its gradient is zero"
