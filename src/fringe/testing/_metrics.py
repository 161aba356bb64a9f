"""The contract of metrics, on images with a known answer and maps from perfect to inverted."""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar, NamedTuple, get_args

import torch
from torch import Tensor, nn

from fringe._numbers.float64 import has_float64
from fringe._numbers.rng import KeyedGenerator, content_hash
from fringe.attribution import IntegratedGradients, attribute
from fringe.classifier import Classifier
from fringe.errors import require_choice
from fringe.linalg import batch_view
from fringe.metrics import (
    Direction,
    EvaluationContext,
    Explainer,
    Metric,
    PlainMaps,
    Scores,
    evaluate,
    get_metric,
)
from fringe.paths import Problem
from fringe.testing._checks import (
    CLASSES,
    ROUNDING,
    SHAPE,
    CheckFailed,
    CheckResult,
    Output,
    ToyProblems,
    UnderTest,
    agree,
    checks_of,
    fail_if,
    run_checks,
    smooth_cnn,
    tensors_unchanged,
)

IMAGES = 6
#: Shapes of the toy inputs of each kind, and of those with a known answer.
TOYS = {"image": SHAPE, "series": (2, 24), "volume": (2, 5, 4, 6), "tabular": (12,)}
KNOWN = {"image": (1, 16, 16), "series": (1, 64), "volume": (1, 6, 7, 8), "tabular": (64,)}
#: Logit of an image's own class: its probability is then near 1, and near 1/6 for an image without evidence.
EVIDENCE = 8.0


@dataclass(frozen=True, kw_only=True)
class _MetricUnderTest(UnderTest):
    """A configured metric on three toy inputs of a ``kind``, explained by Integrated Gradients."""

    noun: ClassVar[str] = "scores"
    tested: Metric
    kind: str = "image"

    @cached_property
    def model(self) -> nn.Module:
        shape = TOYS[self.kind]

        def perceptron() -> nn.Module:
            return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 8), nn.Softplus(), nn.Linear(8, CLASSES))

        return self.toys.build(smooth_cnn if self.kind == "image" else perceptron, shape)

    @cached_property
    def x(self) -> Tensor:
        return self.toys.images(3, TOYS[self.kind])

    @cached_property
    def maps(self) -> PlainMaps:
        space = self.toys.space(TOYS[self.kind])
        result = attribute(self.model, self.x, method=IntegratedGradients(steps=4), space=space)
        residual = {"completeness_residual": result.completeness_residual}
        return PlainMaps(result.values, {**result.diagnostics, **residual})

    def context(
        self, rows: list[int] | None = None, model: nn.Module | None = None, *, batch_size: int = 16, seed: int = 0
    ) -> EvaluationContext:
        """A new context of the images at ``rows``, by default of all."""
        x = self.x if rows is None else self.x[rows]
        return _context(model or self.model, x, (x if x.dim() == 2 else x.sum(1)) > 0, batch_size=batch_size, seed=seed)

    def score(self, context: EvaluationContext, maps: PlainMaps | None = None, values: Tensor | None = None) -> Scores:
        """Score ``maps`` of the context's images; ``values``, if given, replace their values."""
        maps = maps or self.maps
        maps = maps if values is None else dataclasses.replace(maps, values=values)
        return evaluate(context, maps, [self.tested], _gradient)[self.tested.name]

    def run(self, rows: list[int], model: nn.Module | None = None, *, batch_size: int = 16, seed: int = 0) -> Output:
        diagnostics = {name: value[rows] for name, value in self.maps.diagnostics.items()}
        context = self.context(rows, model, batch_size=batch_size, seed=seed)
        values = self.score(context, PlainMaps(self.maps.values[rows], diagnostics)).values
        return Output(values, context.problem.model.passes.forward)

    def declared(self) -> str:
        """The class declares name, title, direction, space, and the source of its formula."""
        metric = self.tested
        for name in ("name", "title", "space", "source"):
            fail_if(not getattr(metric, name), f"{name} is empty")
        expected = get_args(Direction)
        fail_if(metric.direction not in expected, f"direction: got {metric.direction!r}, expected one of {expected}")
        fail_if("paper" not in metric.presets, f"presets: no 'paper' among {', '.join(metric.presets)}")
        return f"{metric.title}: {metric.direction} is better; {metric.space}; {metric.source}"

    def shape_and_dtype(self) -> str:
        """One float64 number per image, where the device has these; all details have a row per image."""
        for dtype in (torch.float32, torch.float64):
            case = dataclasses.replace(self, dtype=dtype)
            scores, images = case.score(case.context()), len(case.x)
            shape = tuple(scores.values.shape)
            fail_if(scores.values.dtype != torch.float64, f"values are {scores.values.dtype}, expected torch.float64")
            fail_if(shape != (images,), f"values: shape {shape} for {images} images")
            device = case.x.device if has_float64(case.x.device) else torch.device("cpu")
            fail_if(scores.values.device != device, f"values are on {scores.values.device}, expected {device}")
            fail_if(bool(scores.values.isinf().any()), f"values hold infinity: {scores.values.tolist()}")
            companions = {**scores.flags, **scores.details, **scores.curves}
            wrong = {name: tuple(v.shape) for name, v in companions.items() if v.shape[:1] != (images,)}
            fail_if(bool(wrong), f"for {images} images, got rows {wrong}")
            fail_if(any(flag.dtype != torch.bool for flag in scores.flags.values()), "flags must be booleans")
        return f"one number per image, with {', '.join(companions) or 'nothing'} beside it"

    def ranking(self) -> str:
        """Perfect maps score better than random ones, and these better than inverted ones, in the declared direction.

        Scores are means over six images. A metric passes if the order holds for one meaning of maps. If no image of two
        values has a score, or of other kinds of input also if the order does not hold, six of many values are tried. A
        metric that compares models gets the same maps from three methods: one that computes new maps from the model,
        one that does so for half of the pixels, and one that never changes its map.
        """
        direction, details = self.tested.direction, list[str]()
        if direction == "none":
            return "does not apply: the metric has no better or worse"
        sign, is_of_models = 1.0 if direction == "higher" else -1.0, self.tested.compares_models
        words = "from the model, by half, never" if is_of_models else "perfect, random, inverted"
        for graded in (False, True):
            model, x, contribution = _known_contributions(self.toys, self.kind, graded=graded)
            levels_of = dependence_levels if is_of_models else quality_levels
            for meaning, levels in levels_of(x, contribution, self.maps.diagnostics).items():
                means = self._means(model, x, levels)
                text = f"{meaning} {', '.join(f'{mean:.4g}' for mean in means)}"
                if means and sign * means[0] > sign * means[1] > sign * means[2]:
                    return f"{words} {text} ({direction} is better)"
                details += [text] if means else []
            if details and self.kind == "image":
                break
        fail_if(not details, "no image has a score")
        raise CheckFailed(f"{words}: {'; '.join(details)}, though {direction} is better")

    def _means(self, model: "_LinearNetwork", x: Tensor, levels: "tuple[_Level, ...]") -> list[float]:
        """Mean score of each level over the images with a score at all levels; empty if there are none."""
        contexts = [_context(model, x, model.truth) for _ in levels]
        metric = {"": self.tested}
        every = [evaluate(c, level.maps, metric, level.explain)[""] for c, level in zip(contexts, levels, strict=True)]
        scores = torch.stack([one.values for one in every])
        known = torch.isfinite(scores).all(0)
        return scores[:, known].mean(1).tolist() if bool(known.any()) else []

    def degenerate_maps(self) -> str:
        """The zero map and the constant map have a finite score, or NaN if the metric is not defined for them."""
        details: list[str] = []
        for name, value in (("zero", 0.0), ("constant", 1.0)):
            scores = self.score(self.context(), values=torch.full_like(self.x, value)).values
            fail_if(bool(scores.isinf().any()), f"the {name} map scores {scores.tolist()}")
            details.append(f"{name} {scores.mean():.4g}")
        return ", ".join(details)

    def shared_context(self) -> str:
        """A map's score does not depend on other scores of these images, or on their order."""
        other = self.maps.values.flip(-1) + 0.1
        fresh = self.score(self.context()).values, self.score(self.context(), values=other).values
        context = self.context()
        shared = self.score(context).values, self.score(context, values=other).values
        agree("scores, the first in a shared context and alone", shared[0], fresh[0], ROUNDING)
        return agree("scores, the second in a shared context and alone", shared[1], fresh[1], ROUNDING)

    def caller_tensors(self) -> str:
        """Maps, inputs, logits and diagnostics keep their values and flags."""
        context = self.context()
        tensors = {"maps": self.maps.values, "inputs": context.problem.inputs, "logits": context.problem.logits}
        return tensors_unchanged({**tensors, **self.maps.diagnostics}, lambda: self.score(context))


#: The checks by name; the docstring of each says what it requires.
METRIC_CHECKS: Mapping[str, Callable[[_MetricUnderTest], str]] = checks_of(_MetricUnderTest)


def check_metric(
    metric: str | Metric,
    *,
    kind: str = "image",
    skip: Collection[str] = (),
    expected_failures: Mapping[str, str] = {},
    device: str | torch.device = "cpu",
) -> list[CheckResult]:
    """Run every check of the contract on a metric.

    The metric scores maps of three images (2, 8, 8) and of six images (1, 16, 16) with small built-in networks, or of
    inputs of another kind. If it requires further maps, it gets gradients.

    Args:
        metric: A configured metric, or the name of a registered one, such as ``"insertion:raw"``.
        kind: What the inputs are, of the metric's :attr:`~fringe.metrics.Metric.kinds`.
        skip: Names of checks to leave out, of ``METRIC_CHECKS``.
        expected_failures: The reason, by check name, of each check that is known to fail.
        device: Device of the networks and images.

    Returns:
        The result of each check, in the order of ``METRIC_CHECKS``.

    Raises:
        CheckError: If a check fails unexpectedly, or if a check in ``expected_failures`` passes.
        InputError: If the name of a metric or check is unknown.
    """
    chosen = get_metric(metric)
    require_choice("kind", kind, chosen.kinds)
    make = partial(_MetricUnderTest, tested=chosen, device=torch.device(device), kind=kind)
    what = f"metric {chosen.name!r}" if kind == "image" else f"metric {chosen.name!r} of kind {kind!r}"
    return run_checks(what, make, METRIC_CHECKS, skip, expected_failures)


def _context(model: nn.Module, x: Tensor, truth: Tensor, *, batch_size: int = 16, seed: int = 0) -> EvaluationContext:
    """Evaluation of the inputs ``x`` for their predicted classes, with a ``truth`` (B, *space)."""
    space = ToyProblems(x.dtype, x.device).space(tuple(x.shape[1:]))
    classifier = Classifier(model, batch_size=batch_size)
    return EvaluationContext(Problem.of(classifier, x.detach(), rng=KeyedGenerator(seed), domain=space), truth)


class _LinearNetwork(nn.Module):
    """One linear layer, as the sum of its contributions from the left and the right half of an image. ``truth`` (B, H,
    W) are the pixels of image i whose weight for class i exceeds a tenth of the largest."""

    def __init__(self, weight: Tensor, truth: Tensor):
        super().__init__()
        self.weight, self.truth = nn.Parameter(weight.flatten(1), requires_grad=False), truth
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight.T

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return masks (2, H, W) of the halves, and their contributions (2, B, classes)."""
        width = x.shape[-1]
        left = torch.arange(width, device=x.device).expand(x.shape[2:]) < width // 2
        return torch.stack([left, ~left]), torch.stack([self(x * half) for half in (left, ~left)])


class _Level(NamedTuple):
    """Maps of one quality, and an explainer with the stability of that quality."""

    maps: PlainMaps
    explain: Explainer


def _known_contributions(
    toys: ToyProblems, kind: str, *, graded: bool = False
) -> tuple[_LinearNetwork, Tensor, Tensor]:
    """Make a linear network, inputs (B, *S) of a kind, and the exact contributions (B, *S) of their entries.

    Input i has random entries -1 and 1, or between them if ``graded``. Class i reads a round patch of input i with the
    weights m / x, so each entry of the patch contributes m to the class, and other entries nothing. A blurred input
    contains little evidence.
    """
    x = toys.images(IMAGES, KNOWN[kind], "signs")
    x = x.sign() * (0.25 + 0.375 * x.abs()) if graded else x.sign()
    space = x.shape[2:] or x.shape[1:]
    # Away from the middle, and not on a diagonal: a map that is mirrored or transposed misses the patch.
    places = torch.tensor([(0.25, 0.6875)[axis % 2] * size for axis, size in enumerate(space)]).to(x)
    centres = toys.images(IMAGES, (len(space),), "centres") + places
    grid = torch.stack(torch.meshgrid(*(torch.arange(size).to(x) for size in space), indexing="ij"), -1)
    squares = (grid - centres.view(len(x), *[1] * len(space), -1)).square().sum(-1)
    patch = torch.exp(-squares / 12.5).view_as(x)
    contribution = EVIDENCE * patch / batch_view(patch.flatten(1).sum(1), patch)
    entries = contribution if contribution.dim() == 2 else contribution[:, 0]  # a row has no channels
    truth = entries > 0.1 * batch_view(contribution.flatten(1).amax(1), entries)
    return _LinearNetwork(contribution / x, truth), x, contribution


def quality_levels(x: Tensor, contribution: Tensor, diagnostics: Collection[str]) -> dict[str, tuple[_Level, ...]]:
    """Make perfect, random and inverted maps, for each meaning that a map can have.

    ``contributions`` sum to the score, and their inverse ranks the strongest entries last; ``signed contributions``
    are the same with an inverse of the wrong sign; ``gradients`` predict a change of the input, and their inverse has
    the wrong sign, too. Random maps are Gaussian, with the norm of the
    perfect maps. The ``diagnostics`` of the three levels are 0.1, 0.5 and 1.
    """
    gradient = contribution / x
    largest = batch_view(contribution.flatten(1).amax(1), contribution)
    noise = torch.stack([KeyedGenerator(0).normal(f"level {i}", image) for i, image in enumerate(x)])
    noise = _with_norm_of(gradient, noise)

    def level(values: Tensor, error: float, stability: int) -> _Level:
        rows = torch.full((len(values),), error, dtype=torch.float64, device=values.device)
        return _Level(PlainMaps(values, dict.fromkeys(diagnostics, rows)), _explainer(values, stability))

    return {
        meaning: (level(perfect, 0.1, 1), level(noise, 0.5, 0), level(inverted, 1.0, -1))
        for meaning, perfect, inverted in (
            ("contributions", contribution, largest - contribution),
            ("signed contributions", contribution, -contribution),
            ("gradients", gradient, -gradient),
        )
    }


def dependence_levels(x: Tensor, contribution: Tensor, diagnostics: Collection[str]) -> dict[str, tuple[_Level, ...]]:
    """Make the ``gradients`` of the linear network by three methods: one returns that of the given model and class, one
    does so only in the left half and elsewhere repeats the first map, and one always repeats the first map."""
    first, rows = contribution * x, torch.zeros(len(x), dtype=torch.float64, device=x.device)
    maps = PlainMaps(first, dict.fromkeys(diagnostics, rows))

    def level(columns: int) -> _Level:
        def explain(problem: Problem) -> Tensor:
            made = first[list(range(len(first)) if problem.rows is None else problem.rows)].clone()
            made[..., :columns] = _gradient(problem)[..., :columns]
            return made

        return _Level(maps, explain)

    return {"gradients": (level(x.shape[-1]), level(x.shape[-1] // 2), level(0))}


def _explainer(values: Tensor, stability: int) -> Explainer:
    """Maps of other inputs: the same as at the input (1), its negative (-1), or independent noise (0)."""

    def explain(problem: Problem) -> Tensor:
        x, rows = problem.inputs, list(range(len(values)) if problem.rows is None else problem.rows)
        noise = [KeyedGenerator(0).normal(content_hash(image), image) for image in x]
        return stability * values[rows] if stability else _with_norm_of(values[rows], torch.stack(noise))

    return explain


def _gradient(problem: Problem) -> Tensor:
    return problem.logits_gradient(problem.inputs, problem.every_row)[1]


def _with_norm_of(like: Tensor, maps: Tensor) -> Tensor:
    """``maps`` (L, *S) scaled to the Euclidean norms of ``like``."""
    scale = like.flatten(1).norm(dim=1) / maps.flatten(1).norm(dim=1)
    return maps * batch_view(scale, maps)
