r"""Paths from an input towards another class, or towards where the network maps another image.

Sources: Pan, Li and Zhu, "Explaining Deep Neural Network Models with Adversarial Gradient Integration" (2021); Zhuo and
Ge, "IG^2: Integrated Gradient on Iterative Gradient Path for Feature Attribution" (2024).
"""

import contextlib
import copy
import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fringe._outputs import as_logits
from fringe.linalg import batch_view
from fringe.paths._base import State
from fringe.paths._problem import Problem
from fringe.paths._sequential import Evaluation, SequentialPath, clip

#: ``eta="auto"`` is this times sqrt(n) times the range of inputs: the authors' step, 256 of 255 grey values in all at
#: 299 x 299 x 3, as the same root mean square change of an entry. At 224 x 224 x 3 it is 0.75 of the range of [0, 1].
AUTO_STEP = 256.0 / 255.0 / math.sqrt(299 * 299 * 3)


@dataclass(frozen=True)
class AdversarialPath(SequentialPath):
    r"""Steps of sign gradients of another class, until the model predicts it.

    Path r is that of image ``images[r]`` and follows :math:`z \leftarrow z + \epsilon\, \mathrm{sign} \nabla p_l(z)`
    with l = ``target_classes[r]``, until l is predicted or ``steps`` steps are taken. A step is one forward pass and
    two VJPs, of the two classes.

    ``epsilon`` is a share of the valid range of inputs, and steps are clipped to it; where the problem's domain knows
    no bounds, it is a share of the image's own range, and nothing is clipped. With ``restart_from_input`` every step
    departs from the input itself, though it follows the gradient at the point that the step before led to: the authors'
    code. Its segments all touch the input and carry that gradient at that end, so they are not a path, and do not sum
    to a change of the score beyond one step. ``closed`` requests the gradient of the explained score at the last point.
    """

    images: tuple[int, ...]
    target_classes: tuple[int, ...]
    steps: int
    epsilon: float
    restart_from_input: bool = False
    closed: bool = False

    def init(self, problem: Problem) -> State:
        goals = torch.tensor([self.images, self.target_classes], device=problem.inputs.device)
        return self.paths(problem, *goals)

    def origin(self, problem: Problem, state: State, x: Tensor) -> Tensor:
        return problem.inputs[state.image] if self.restart_from_input else x

    def evaluate(self, problem: Problem, state: State, x: Tensor) -> Evaluation:
        """The gradients of the score and of the target class.

        A probability is replaced by its logarithm: its gradient has the same sign, and is not zero where p underflows.
        """
        assert state.goal is not None
        point = problem.linearise(x, state.image, tangents=False)
        logits = point.value
        ascent = torch.nn.functional.one_hot(state.goal, logits.shape[1]).to(logits)
        if (problem.score_kind or problem.model.score_kind) != "logit":
            ascent = ascent - logits.softmax(-1)
        gradient = problem.score_gradient(point, logits, state.image)
        return Evaluation(logits, gradient, point.vjp(ascent), logits.argmax(1) == state.goal)

    def advance(self, problem: Problem, state: State, origin: Tensor, direction: Tensor) -> Tensor:
        low, high = problem.domain.bounds(problem.inputs[state.image])
        return clip(problem, origin + self.epsilon * (high - low) * direction.sign())


@dataclass(frozen=True)
class CounterfactualPath(SequentialPath):
    r"""Steps of equal length towards the features of reference images: ``references[r]`` of the domain for path r, that
    of image ``images[r]``.

    .. math:: z \leftarrow z - \eta\, u / \|u\|_2, \qquad u = \nabla_z \|r(z) - r(x^r)\|^2

    with r the input of ``layer`` (None: the logits). ``eta`` is in input units; ``"auto"`` is ``AUTO_STEP`` sqrt(n)
    times the mean valid range of the entries. Steps are clipped to the valid range where the domain has one. A path
    whose u is zero, as at the reference itself, has arrived. ``closed`` requests the score's gradient at the end. A
    path costs a forward pass for its reference, then one and two VJPs per step.
    """

    images: tuple[int, ...]
    references: tuple[int, ...]
    layer: str | None
    steps: int
    eta: float | Literal["auto"]
    closed: bool = False

    def init(self, problem: Problem) -> State:
        images, numbers = torch.tensor([self.images, self.references], device=problem.inputs.device)
        extractor, given = FeatureExtractor(problem, self.layer), problem.domain.references
        assert given is not None

        def features(numbers: Tensor, images: Tensor) -> Tensor:
            return extractor.of(given[numbers.to(given.device)].to(problem.inputs), images)

        return self.paths(problem, images, problem.model.batch_size.map(features, numbers, images))

    def evaluate(self, problem: Problem, state: State, x: Tensor) -> Evaluation:
        assert state.goal is not None
        logits, gradient, direction = FeatureExtractor(problem, self.layer).gradients(x, state.image, state.goal)
        return Evaluation(logits, gradient, direction, (direction == 0).flatten(1).all(1))

    def advance(self, problem: Problem, state: State, origin: Tensor, direction: Tensor) -> Tensor:
        direction = direction / batch_view(direction.abs().flatten(1).amax(1), origin)  # or the squares below underflow
        norm = direction.flatten(1).double().norm(dim=1)
        length = self._step_length(problem, problem.inputs[state.image])
        return clip(problem, origin - batch_view(length / norm, origin).to(origin.dtype) * direction)

    def _step_length(self, problem: Problem, x: Tensor) -> Tensor:
        """The length (L,) of the steps of images ``x`` (L, *S), in input units."""
        if self.eta != "auto":
            return torch.full((len(x),), self.eta, dtype=torch.float64, device=x.device)
        low, high = problem.domain.bounds(x)
        spread = (high - low).expand_as(x).flatten(1).double().mean(1)
        return AUTO_STEP * math.sqrt(x[0].numel()) * spread


# -- features of images: the input of a layer -------------------------------------------------------------------------


def last_linear_layer(problem: Problem) -> str | None:
    """Find the name of the last ``nn.Linear`` that runs on the first image, by one forward pass; None if none does.

    Layers that see the image as more than one row (of tokens, of patches) do not count.
    """
    module, first = problem.model.module, problem.every_row[:1]
    named = module.named_modules() if module is not None else ()
    with _capture_inputs({name: layer for name, layer in named if isinstance(layer, nn.Linear)}) as captured:
        problem.forward(problem.inputs[first], first)
    names = [name for name, value in captured if len(value) == 1]
    return names[-1] if names else None


class FeatureExtractor:
    """The model of a problem together with the input of one of its layers, from the same forward pass.

    ``layer`` names the layer; None stands for the logits (L, C) themselves. The hook exists only during a pass.
    """

    def __init__(self, problem: Problem, layer: str | None):
        self._problem, self._classes, classifier = problem, problem.logits.shape[1], problem.model
        self._layers: dict[str, nn.Module] = {}
        if layer is not None:
            assert classifier.module is not None
            self._layers[layer] = classifier.module.get_submodule(layer)
        both = copy.copy(classifier)  # shares its session, batch size and counts of passes
        both.model, both.output = self._run, "logits"
        self._both = replace(problem, model=both)

    def of(self, x: Tensor, rows: Tensor) -> Tensor:
        """Features (L, D) of ``x`` (L, *S) for images ``rows`` (L,), in chunks: one forward pass per point."""
        return self._split(self._both.forward(x, rows))[1]

    def gradients(self, x: Tensor, rows: Tensor, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r"""Logits (L, C) at ``x`` (L, *S) of images ``rows`` (L,), and the gradients (L, *S) of their score and of
        :math:`\frac12 \|r(x) - \rho\|^2`, with :math:`\rho` = ``features`` (L, D): one forward pass and two VJPs per
        row."""
        point = self._both.linearise(x, rows, tangents=False)
        logits, reached = self._split(point.value)
        cotangent = self._problem.score_cotangent(logits, rows)
        score = point.vjp(torch.cat([cotangent, torch.zeros_like(reached)], 1))
        return logits, score, point.vjp(torch.cat([torch.zeros_like(logits), reached - features], 1))

    def _run(self, *args: Any, **kwargs: Any) -> Tensor:
        """Logits and features side by side: (L, C + D)."""
        model, name = self._problem.model, self._problem.forward_args.name
        with _capture_inputs(self._layers) as captured:
            output = model.model(*args, **kwargs)
        x = args[0] if name is None else kwargs[name]
        logits = as_logits(output, len(x), model.output)
        return torch.cat([logits, captured[-1][1].flatten(1) if self._layers else logits], 1)

    def _split(self, both: Tensor) -> tuple[Tensor, Tensor]:
        return both[:, : self._classes], both[:, self._classes :]


@contextlib.contextmanager
def _capture_inputs(layers: Mapping[str, nn.Module]) -> Generator[list[tuple[str, Tensor]]]:
    """Name and input of each run of these layers, in order, for as long as the context lasts."""
    captured: list[tuple[str, Tensor]] = []

    def note(name: str, _layer: nn.Module, args: tuple[Any, ...]) -> None:
        if args:
            captured.append((name, args[0]))

    with contextlib.ExitStack() as stack:
        for name, layer in layers.items():
            stack.callback(layer.register_forward_pre_hook(partial(note, name)).remove)
        yield captured
