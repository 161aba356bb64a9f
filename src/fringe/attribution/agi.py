"""Adversarial Gradient Integration (Pan, Li and Zhu 2021)."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from fringe.attribution.base import Attribution, Attributor
from fringe.attribution.diagnostics import gradient_attribution, path_attribution, path_diagnostics
from fringe.attribution.integral import Quadrature
from fringe.attribution.path_integral import integrate
from fringe.attribution.pieces import MultiPath, PooledPieces, Reduce
from fringe.classifier import Score
from fringe.errors import InputError
from fringe.paths import AdversarialPath, Problem
from fringe.settings import Doc, Positive, PositiveInt, Search

AGIMode = Literal["path", "official"]
AGIRule = Literal["right", "trapezoid", "adaptive"]


@dataclass(frozen=True)
class AGI(Attributor):
    r"""Integrate the score's gradient along adversarial walks from the input to other classes (Pan et al. 2021).

    Towards each class l of a fixed set, without the target t: step by ``epsilon`` times the sign of :math:`\nabla p_l`
    until l is predicted, at most m times, and gather :math:`-\nabla p_t \odot \Delta z`; then ``reduce`` over l. No
    baseline is asked for. The classes are 0, s, 2s, ... with s = floor(C / k), all C of them where k >= C (the authors
    never take the last class), and the class after t where t alone would be left.

    Steps are a share of the valid range of inputs, ``attribute(..., space=InputSpace(low=..., high=...))``, and are
    clipped to it; without one they are a share of the image's own range and not clipped. ``mode="path"`` is a path and
    complete up to quadrature. ``"official"`` is the authors' code: every step restarts from the input, so the same
    change is counted up to m times, the result has no completeness identity, and is ``unchecked``. ``score`` is what is
    explained here, whatever the classifier's own: ``score`` and ``endpoint_score`` of the result are of this kind, the
    latter being the former less what it changes by on all walks together (``"mean"``: on the average walk). At most k m
    forward passes and 2 k m VJPs an image, and k forward passes at the ends.
    """

    name: ClassVar[str] = "agi"
    title: ClassVar[str] = "Adversarial Gradient Integration"
    source: ClassVar[str] = "Pan, Li and Zhu 2021"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"mode": "official", "classes": 1},
        "official": {"mode": "official"},
    }

    classes: Annotated[PositiveInt, Search(1, 50, log=True), Doc("classes to walk towards (k)")] = 20
    steps: Annotated[PositiveInt, Search(5, 100, log=True), Doc("most steps of a walk (m)")] = 20
    epsilon: Annotated[Positive, Search(0.002, 0.1, log=True), Doc("step of an entry", unit="of the range")] = 0.05
    mode: Annotated[AGIMode, Doc("a path, or restart from the input at every step")] = "path"
    score: Annotated[Score, Doc("explained score, of the target and of the others")] = "probability"
    reduce: Annotated[Reduce, Doc("over the classes")] = "sum"
    rule: Annotated[AGIRule, Doc("quadrature: the authors', or a more exact one")] = "right"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode == "official" and self.rule != "right":
            raise InputError(
                f"got {self.rule!r}, expected 'right' in mode 'official', which is no path", argument="rule"
            )

    def towards(self, target: int, count: int) -> list[int]:
        """The classes that an image of class ``target`` walks towards, of ``count`` classes."""
        ids = range(0, count, max(count // self.classes, 1))
        return [c for c in ids if c != target] or [(target + 1) % count]

    @property
    def complete(self) -> bool:
        return self.mode == "path"

    @property
    def planned_passes(self) -> float:
        return 3 * self.classes * self.steps

    def attribute(self, problem: Problem) -> Attribution:
        problem = dataclasses.replace(problem, score_kind=self.score)
        result = integrate(PooledPieces(self._paths(problem), Quadrature(self.rule), problem))
        if self.mode == "path":
            return path_attribution(
                self, result, problem, "lower epsilon, or use rule='trapezoid' or 'adaptive'", _STALLED
            )
        plain = gradient_attribution(self, result.values, problem, path_diagnostics(result, problem), _NOT_A_PATH)
        return dataclasses.replace(plain, trajectory=result.trajectories)

    def _paths(self, problem: Problem) -> MultiPath:
        count = problem.logits.shape[1]
        pairs = [(i, c) for i, t in enumerate(problem.target.tolist()) for c in self.towards(t, count)]

        def path(batch: list[int]) -> AdversarialPath:
            toward = tuple(pairs[r][1] for r in batch)
            return AdversarialPath(toward, self.steps, self.epsilon, self.mode == "official", self.rule != "right")

        return MultiPath(path, [image for image, _ in pairs], self.steps, self.reduce)


_STALLED = "no walk took a step: the classes to walk towards are predicted already, though another one is the target"
_NOT_A_PATH = "mode='official' restarts every step from the input, so its steps do not add up to a path"
