"""Paths whose direction is that of a gradient at the point before: guided, or towards another class or image.

Sources: Pan, Li and Zhu, "Explaining Deep Neural Network Models with Adversarial Gradient Integration" (2021); Zhuo and
Ge, "IG^2: Integrated Gradient on Iterative Gradient Path for Feature Attribution" (2024).
"""

import contextlib
import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from fringe.linalg import batch_view
from fringe.paths._base import Orientation, Point, Rows
from fringe.paths._problem import Problem


@dataclass(frozen=True)
class Steps(Rows):
    """Where L paths are.

    Attributes:
        path: Numbers (L,) of the paths.
        image: Images (L,) of the problem that they belong to.
        step: Steps (L,) taken.
        total: Steps (L,) planned; 0 for a path without any.
        goal: What the path leads to (L, ...), if its direction depends on that.
        x: The current points (L, *S); None before the first step.
        point: The points that the last step departed from; None before the first one.
        log_p: Predictions (L, C) there, as log-probabilities.
    """

    path: Tensor
    image: Tensor
    step: Tensor
    total: Tensor
    goal: Tensor | None = None
    x: Tensor | None = None
    point: Point | None = None
    log_p: Tensor | None = None


class Evaluation(NamedTuple):
    """The network at the current points of L paths.

    Attributes:
        logits: Logits (L, C).
        gradient: Gradient of the score (L, *S).
        direction: What the next step follows (L, *S).
        done: Which paths end here (L,); None: none before its last step.
    """

    logits: Tensor
    gradient: Tensor
    direction: Tensor
    done: Tensor | None = None


class SequentialPath(ABC):
    """A way between a baseline and an input whose next point depends on the network at the last one: pure functions, so
    that a step that ran out of memory can be repeated.

    Attributes:
        begins: The end at which the path begins. One that begins at the baseline arrives at the input with its last
            step.
        steps: Steps of a path, unless it ends before.
    """

    begins: ClassVar[Orientation] = "input"
    steps: int

    def start(self, problem: Problem) -> Steps:
        """Return all paths before their first step; those of one image are next to each other.

        Args:
            problem: The images and the model. The caller holds ``problem.model.session`` open until the last step.

        Returns:
            The paths: one for each image, unless overridden.
        """
        return self.paths(problem.every_row)

    def paths(self, images: Tensor, goal: Tensor | None = None) -> Steps:
        """Return paths of ``images`` (R,) before their first step, towards goals (R, ...).

        Args:
            images: The images.
            goal: The goals, if there are any.

        Returns:
            The paths.
        """
        rows = torch.arange(len(images), device=images.device)
        return Steps(rows, images, torch.zeros_like(rows), torch.full_like(images, self.steps), goal)

    def begin(self, problem: Problem, images: Tensor) -> Tensor:
        """Return the first points.

        Args:
            problem: The images and the model.
            images: Images (L,).

        Returns:
            The points (L, *S): the inputs, unless overridden.
        """
        return problem.inputs[images]

    def evaluate(self, problem: Problem, at: Steps) -> Evaluation:
        """Evaluate the network at the current points.

        Args:
            problem: The images and the model.
            at: Where L paths are.

        Returns:
            What was found; the next step follows the gradient of the score, unless overridden.
        """
        assert at.x is not None
        logits, gradient = problem.logits_gradient(at.x.to(problem.inputs.dtype), at.image)
        return Evaluation(logits, gradient, gradient)

    def close(self, problem: Problem, at: Steps) -> Evaluation:
        """Evaluate the scores at the last points, from where no step departs; that at an input is known.

        Args:
            problem: The images and the model.
            at: Where L paths are.

        Returns:
            What was found, with the gradients of the points before.
        """
        assert at.x is not None
        assert at.point is not None
        at_input = self.begins == "baseline"
        logits = problem.logits[at.image] if at_input else problem.forward(at.x.to(problem.inputs.dtype), at.image)
        return Evaluation(logits, at.point.gradient, at.point.gradient)

    def origin(self, problem: Problem, at: Steps, x: Tensor) -> Tensor:
        """Return where the next step departs from.

        Args:
            problem: The images and the model.
            at: Where L paths are.
            x: The current points (L, *S).

        Returns:
            The points (L, *S): the current ones, unless overridden.
        """
        return x

    @abstractmethod
    def advance(self, problem: Problem, at: Steps, origin: Tensor, direction: Tensor) -> Tensor:
        """Take the next step.

        Args:
            problem: The images and the model.
            at: Where L paths are.
            origin: Where the step departs from (L, *S).
            direction: The direction (L, *S).

        Returns:
            The points (L, *S) after it.
        """


def clip(problem: Problem, x: Tensor) -> Tensor:
    """Clip ``x`` (L, *S) to the valid range, if one was given."""
    if problem.domain.low is None:
        return x
    low, high = problem.domain.bounds(x)
    return torch.minimum(torch.maximum(x, low), high)


# -- the guided path --------------------------------------------------------------------------------------------------


#: Distance from the goal of a step that counts as none, absolute or relative to the distance still to go; the published
#: code's. Points are stored in float64 for its sake.
CLOSE = 1e-9


@dataclass(frozen=True)
class GuidedPath(SequentialPath):
    r"""``steps`` steps from the problem's baseline x' to the input x, each of 1/N of their L1 distance.

    Step k moves the entries with the smallest ``|g_i|`` towards x, the lowest ``fraction`` of all entries at a time,
    until :math:`\|z - x\|_1 = (1 - k/N) \|x - x'\|_1`. The progress of an entry from x' to x never leaves
    ``k/N +- max_dist``: 0 is the straight line, 1 the full box between x' and x. An image that is its own baseline has
    no steps.
    """

    begins = "baseline"

    steps: int
    fraction: float
    max_dist: float

    def start(self, problem: Problem) -> Steps:
        state = super().start(problem)
        moves = (problem.inputs != problem.baseline).flatten(1).any(1)
        return replace(state, total=torch.where(moves, state.total, 0))

    def begin(self, problem: Problem, images: Tensor) -> Tensor:
        assert problem.baseline is not None
        return problem.baseline[images].double()

    def advance(self, problem: Problem, at: Steps, origin: Tensor, direction: Tensor) -> Tensor:
        start, stop = self.begin(problem, at.image).flatten(1), problem.inputs[at.image].double().flatten(1)
        alpha = ((at.step + 1).double() / self.steps)[:, None]
        low, high = (alpha - self.max_dist).clamp_min(0.0), (alpha + self.max_dist).clamp_max(1.0)
        displacement, z = stop - start, origin.flatten(1)
        behind = (z - start) / displacement < low  # false for an entry with nothing to move: 0 / 0
        z = torch.where(behind, start + low * displacement, z)
        goal = displacement.abs().sum(1) * (1.0 - alpha[:, 0])
        size, distance = direction.flatten(1).abs(), (z - stop).abs().sum(1)
        bound = start + high * displacement
        return advance_to_goal(z, bound, size, distance, goal, self.fraction).view_as(origin)


def advance_to_goal(z: Tensor, bound: Tensor, size: Tensor, distance: Tensor, goal: Tensor, fraction: float) -> Tensor:
    """Move ``z`` (L, n) towards ``bound`` (L, n), entries of small gradients ``size`` (L, n) first, until the L1
    ``distance`` (L,) from the input has become ``goal`` (L,).

    Entries move in blocks. A block is the entries not at their bound whose size is at most the lower
    ``fraction``-quantile of all n sizes, those at their bound counted as infinite. It moves to its bound, and the next
    block follows, while the goal is farther; the last block moves by the share that is left. Blocks come in the order
    of the sizes, so one sort serves them all: the quantile of what remains lies ``rank`` entries further.
    """
    size = size.masked_fill(z == bound, torch.inf)
    ordered, order = size.sort(1)
    room = torch.nn.functional.pad((bound - z).abs().gather(1, order).cumsum(1), (1, 0))
    rank, free = int(fraction * (z.shape[1] - 1)), (ordered < torch.inf).sum(1, keepdim=True)
    left = (distance - goal)[:, None]
    near = CLOSE * torch.maximum(goal, torch.ones_like(goal))[:, None]
    begin = torch.zeros_like(free)
    while True:
        highest = ordered.gather(1, (begin + rank).clamp_max(z.shape[1] - 1))
        end = torch.minimum(torch.searchsorted(ordered, highest, right=True), free)
        rest = left - room.gather(1, begin)
        beyond = (left > room.gather(1, end)) & (end < free)
        if not bool(beyond.any()):
            break
        begin = torch.where(beyond, end, begin)
    gain = room.gather(1, end) - room.gather(1, begin)
    share = torch.where(rest > near, (rest / gain).clamp(max=1.0), 0.0)
    passed = torch.where(begin > 0, ordered.gather(1, (begin - 1).clamp_min(0)), -1.0)
    moved = torch.where(share < 1.0, z + share * (bound - z), bound)
    return torch.where(size <= passed, bound, torch.where(size <= highest, moved, z))


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
    to a change of the score beyond one step.
    """

    images: tuple[int, ...]
    target_classes: tuple[int, ...]
    steps: int
    epsilon: float
    restart_from_input: bool = False

    def start(self, problem: Problem) -> Steps:
        goals = torch.tensor([self.images, self.target_classes], device=problem.inputs.device)
        return self.paths(*goals)

    def origin(self, problem: Problem, at: Steps, x: Tensor) -> Tensor:
        return problem.inputs[at.image] if self.restart_from_input else x

    def evaluate(self, problem: Problem, at: Steps) -> Evaluation:
        """The gradients of the score and of the target class.

        A probability is replaced by its logarithm: its gradient has the same sign, and is not zero where p underflows.
        """
        assert at.goal is not None
        assert at.x is not None
        point = problem.linearise(at.x, at.image, tangents=False)
        logits = point.value
        ascent = torch.nn.functional.one_hot(at.goal, logits.shape[1]).to(logits)
        if (problem.score_kind or problem.model.score_kind) != "logit":
            ascent = ascent - logits.softmax(-1)
        gradient = problem.score_gradient(point, logits, at.image)
        return Evaluation(logits, gradient, point.vjp(ascent), logits.argmax(1) == at.goal)

    def advance(self, problem: Problem, at: Steps, origin: Tensor, direction: Tensor) -> Tensor:
        low, high = problem.domain.bounds(problem.inputs[at.image])
        return clip(problem, origin + self.epsilon * (high - low) * direction.sign())


@dataclass(frozen=True)
class CounterfactualPath(SequentialPath):
    r"""Steps of equal length towards the features of reference images: ``references[r]`` of the domain for path r, that
    of image ``images[r]``.

    .. math:: z \leftarrow z - \eta\, u / \|u\|_2, \qquad u = \nabla_z \|r(z) - r(x^r)\|^2

    with r the input of ``layer`` (None: the logits). ``eta`` is in input units; ``"auto"`` is ``AUTO_STEP`` sqrt(n)
    times the mean valid range of the entries. Steps are clipped to the valid range where the domain has one. A path
    whose u is zero, as at the reference itself, has arrived. A path costs a forward pass for its reference, then one
    and two VJPs per step.
    """

    images: tuple[int, ...]
    references: tuple[int, ...]
    layer: str | None
    steps: int
    eta: float | Literal["auto"]

    def start(self, problem: Problem) -> Steps:
        images, numbers = torch.tensor([self.images, self.references], device=problem.inputs.device)
        extractor, given = _FeatureExtractor(problem, self.layer), problem.domain.references
        assert given is not None

        def features(numbers: Tensor, images: Tensor) -> Tensor:
            return extractor.of(given[numbers.to(given.device)].to(problem.inputs), images)

        return self.paths(images, problem.model.batch_size.map(features, numbers, images))

    def evaluate(self, problem: Problem, at: Steps) -> Evaluation:
        assert at.goal is not None
        assert at.x is not None
        logits, gradient, direction = _FeatureExtractor(problem, self.layer).gradients(at.x, at.image, at.goal)
        return Evaluation(logits, gradient, direction, (direction == 0).flatten(1).all(1))

    def advance(self, problem: Problem, at: Steps, origin: Tensor, direction: Tensor) -> Tensor:
        direction = direction / batch_view(direction.abs().flatten(1).amax(1), origin)  # or the squares below underflow
        norm = direction.flatten(1).double().norm(dim=1)
        length: float | Tensor = 0.0 if self.eta == "auto" else self.eta
        if self.eta == "auto":
            x = problem.inputs[at.image]
            low, high = problem.domain.bounds(x)
            spread = (high - low).expand_as(x).flatten(1).double().mean(1)
            length = AUTO_STEP * math.sqrt(x[0].numel()) * spread
        return clip(problem, origin - batch_view(length / norm, origin).to(origin.dtype) * direction)


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


class _FeatureExtractor:
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
        both.model, both.output, both.choose_output = self._run, "logits", None
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
        model, parts = self._problem.model, self._problem.forward_args.parts
        with _capture_inputs(self._layers) as captured:
            output = model.model(*args, **kwargs)
        x = kwargs[parts[0].name] if parts and parts[0].name is not None else args[0]
        logits = model.logits_of(output, len(x), check=False)
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
