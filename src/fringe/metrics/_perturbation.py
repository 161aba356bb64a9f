"""Perturbation curves: the target's probability while pixels are exchanged between an image and its infill."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from fringe._numbers.filters import Padding, blur, box_kernel, gaussian_kernel, round_up_to_odd
from fringe.baselines import make_baseline
from fringe.linalg import batch_view
from fringe.metrics._base import EvaluatedMaps, EvaluationContext, Metric, space_only
from fringe.paths import Problem
from fringe.settings import Doc, Positive, PositiveInt, PositiveOddInt

# Infill: what replaces a removed pixel

#: An average over a square, a Gaussian cut to its window, a Gaussian whose tails are folded back into its window
#: (RISE), zeros in the model's coordinates, or each channel's mean.
InfillKind = Literal["box", "gaussian", "folded", "zeros", "mean"]
#: Standard deviation of a Gaussian without one, as a share of the shortest side: the least of those tried that leaves
#: the predicted class about what the mean colour leaves it (docs/metrics.md, "What replaces a pixel").
BLUR = 0.2


@dataclass(frozen=True)
class Infill:
    """How the image that replaces removed pixels is made."""

    kind: InfillKind
    size: int | None  # odd width of the kernel; None: a tenth of the shortest side, or 4 sigma each way for a Gaussian
    sigma: float | None  # pixels; None: the share BLUR of the shortest side
    padding: Padding

    def resolve(self, inputs: Tensor) -> "Infill":
        """Return the equal infill of ``inputs`` (B, *S) in canonical form: fields without effect are constants."""
        if self.kind in ("zeros", "mean"):
            return Infill(self.kind, None, 1.0, "zeros")
        size = box_size(*inputs.shape[2:]) if self.size is None and self.kind != "gaussian" else self.size
        side = min((size for size in inputs.shape[2:] if size > 1), default=1)  # one row of pixels is as long as it is
        sigma = BLUR * side if self.sigma is None else self.sigma
        return replace(self, size=size, sigma=1.0 if self.kind == "box" else sigma)

    def make(self, context: EvaluationContext) -> Tensor:
        """Return the infill (B, *S) of each image, computed once for all methods."""
        problem = context.problem
        infill = self.resolve(problem.inputs)
        kind, size, sigma = infill.kind, infill.size, infill.sigma or 0.0

        def made() -> Tensor:
            if kind in ("zeros", "mean"):
                name = "zero" if kind == "zeros" else "mean"
                return make_baseline(name, problem.inputs, problem.domain, problem.rng, problem.keys)
            if kind == "gaussian" or size is None:
                kernel = gaussian_kernel(sigma, size)
            else:
                kernel = box_kernel(size) if kind == "box" else folded_gaussian_kernel(sigma, size)
            return blur(problem.inputs, kernel, infill.padding)

        return context.cached(("infill", infill), made)


def blur_refusal(reference: str, shape: Sequence[int]) -> str:
    """Why a reference cannot be made of inputs of this shape (B, *S); empty if it can."""
    reason = "" if reference in ("zeros", "mean") else space_only(shape, f"the blur {reference!r}")
    return reason and f"{reason}; use reference='zeros' or 'mean'"


def box_size(*space: int) -> int:
    """``max(3, odd(floor(min(H, W) / 10)))``, rounded up to odd: 23 at 224 pixels, 29 at 299 (the FRInGe paper)."""
    return round_up_to_odd(max(3, min(space) // 10))


def folded_gaussian_kernel(sigma: float, size: int) -> Tensor:
    """Weights (size,) of a Gaussian of ``sigma`` pixels whose tails are mirrored back at the window's edges, float64.

    The kernel of RISE's and MAS's code, made there by filtering a unit impulse inside the window: at 11 pixels it is
    within 7 % (sigma 5) or 0.01 % (sigma 11) of a box.
    """
    unfolded = gaussian_kernel(sigma)
    radius = unfolded.numel() // 2
    index = torch.arange(-radius, radius + 1).add(size // 2).remainder(2 * size)
    folded = torch.minimum(index, 2 * size - 1 - index)
    return torch.zeros(size, dtype=unfolded.dtype).index_add_(0, folded, unfolded)


# Ranking: the order of the pixels

#: From channels to pixels: max |A_c| (the FRInGe paper), |sum A_c| (RISE, MAS), sum |A_c|, or the Euclidean norm.
Reduction = Literal["max", "abs_sum", "sum_abs", "l2"]

_REDUCE: dict[Reduction, Callable[[Tensor], Tensor]] = {
    "max": lambda a: a.abs().amax(1),
    "abs_sum": lambda a: a.sum(1).abs(),
    "sum_abs": lambda a: a.abs().sum(1),
    "l2": lambda a: a.square().sum(1).sqrt(),
}


def spatial_map(values: Tensor, reduction: Reduction) -> Tensor:
    """Importance of each pixel, not negative: (B, C, *space) -> (B, *space).

    Tabular maps (B, F) have no channels: each feature is a pixel, and its importance is |A|.
    """
    a = values if reduction == "max" else values.double()  # a maximum is exact in any precision
    return (a.abs() if a.dim() == 2 else _REDUCE[reduction](a)).double()


@dataclass(frozen=True)
class Ranking:
    """The P pixels of B maps by their importance: the place, 0 ... P - 1, of each pixel as they are removed.

    Pixels of equal importance are removed in a random order of their image, in both directions the same. So the order
    of a constant map does not depend on the direction, and no part of the image comes first, as its top would by rows.
    """

    most_first: Tensor  # (B, *space), the most important pixel first
    least_first: Tensor  # (B, *space), the least important pixel first
    mass: Tensor  # (B, P), the importances in descending order

    @property
    def pixels(self) -> int:
        return self.mass.shape[1]

    def density(self, changed: Tensor) -> Tensor:
        """Share (B, N + 1) of the mass on the first ``changed`` (N + 1,) pixels; NaN for a zero map."""
        cumulative = pad(self.mass.cumsum(1), (1, 0))
        return cumulative[:, changed] / cumulative[:, -1:]

    def flags(self) -> dict[str, Tensor]:
        """``zero_map``, and ``constant_map``, whose order is only the rule for ties: (B,) each."""
        return {"zero_map": self.mass[:, 0] == 0, "constant_map": self.mass[:, 0] == self.mass[:, -1]}

    def gap(self, least_first: Tensor, most_first: Tensor) -> Tensor:
        """Difference (B, ...) of what both orders score; 0 for a constant map, of which both orders are the same: the
        model may round them in other ways."""
        difference = least_first - most_first
        constant = batch_view(self.flags()["constant_map"], difference)
        return difference.masked_fill(constant & difference.isfinite(), 0.0)

    def ties(self) -> Tensor:
        """Share (B,) of pixels that are as important as another one."""
        equal = self.mass[:, 1:] == self.mass[:, :-1]
        return (pad(equal, (1, 0)) | pad(equal, (0, 1))).to(self.mass.dtype).mean(1)


def rank_pixels(importance: Tensor, context: EvaluationContext) -> Ranking:
    """Rank the pixels of (B, *space) by stable sorts of their random orders."""
    flat, problem = importance.flatten(1), context.problem
    count = flat.shape[1]

    def drawn() -> Tensor:
        orders = [problem.rng.permutation(f"ties {key}", count) for key in problem.keys]
        return torch.tensor(orders, dtype=torch.int64, device=flat.device).view(flat.shape)

    order = context.cached(("ties", count), drawn)
    places = torch.arange(count, dtype=torch.int32, device=flat.device).expand(flat.shape)

    def sort(*, descending: bool) -> tuple[Tensor, Tensor]:
        ordered, index = flat.gather(1, order).sort(dim=1, descending=descending, stable=True)
        rank = torch.empty_like(places).scatter_(1, order.gather(1, index), places)
        return rank.view(importance.shape), ordered

    most_first, mass = sort(descending=True)
    return Ranking(most_first, sort(descending=False)[0], mass)


def ranking_of(maps: EvaluatedMaps, reduction: Reduction) -> Ranking:
    """The pixels of maps by their importance, ranked once for all metrics of these maps."""
    return maps.cached(("ranking", reduction), lambda: rank_pixels(spatial_map(maps.values, reduction), maps.context))


class RankingMetric(Metric):
    """Base class of metrics that rank pixels; ``code`` names the rule for ties in the keys of stored scores."""

    code: ClassVar[str] = "ties in random order"


# Curves

#: Pixels of the input are inserted into the infill, or pixels of the infill into the input.
Mode = Literal["insertion", "deletion"]

#: How a probability becomes a response on [0, 1]: see :func:`to_response`.
Scale = Literal["ends", "guarded", "extremes"]

#: Smallest difference of the probabilities at the input and at the infill that ``guarded`` divides by.
EPSILON = 1e-8


@dataclass(frozen=True)
class PerturbationCurve:
    """The target's probability, or its logit, along N steps from one image to another."""

    values: Tensor  # (B, N + 1)
    at_input: Tensor  # (B,), one end
    at_reference: Tensor  # (B,), at the infill: the other end
    changed: Tensor  # (N + 1,), the number of pixels exchanged after each step
    ranking: Ranking

    def flags(self) -> dict[str, Tensor]:
        """Flags (B,) of degenerate images."""
        return {"blur_more_confident": self.at_input <= self.at_reference, **self.ranking.flags()}

    def details(self) -> dict[str, Tensor]:
        """Numbers (B,) that are shown with the score."""
        return {"p_input": self.at_input, "p_reference": self.at_reference, "ties": self.ranking.ties()}


def auc(curve: Tensor) -> Tensor:
    """Area under curves by the trapezoid rule over [0, 1]: (B, N + 1) -> (B,)."""
    return (0.5 * (curve[:, :-1] + curve[:, 1:])).mean(1)


def running_extremum(curve: Tensor, mode: Mode) -> Tensor:
    """Make curves (B, N + 1) monotone: the running maximum (insertion) or minimum (deletion)."""
    return (curve.cummax(1) if mode == "insertion" else curve.cummin(1)).values


def to_response(curve: Tensor, p_input: Tensor, p_reference: Tensor, scale: Scale) -> Tensor:
    """Rescale probabilities ``c`` (B, N + 1) to responses on [0, 1], by those at the input and the infill (B,).

    ``ends``: ``clip((c - p_ref) / (p_in - p_ref))``, 0 at the infill and 1 at the input, whichever is larger;
    ``guarded``: the divisor is at least ``EPSILON``, so if the infill is more confident than the input, the response
    is 1 above p_ref and 0 below; ``extremes``: :func:`min_max_normalise`. A quotient of zeros is NaN.
    """
    if scale == "extremes":
        return min_max_normalise(curve)
    gap = p_input - p_reference
    gap = gap.clamp_min(EPSILON) if scale == "guarded" else gap
    return ((curve - p_reference[:, None]) / gap[:, None]).clamp(0.0, 1.0)


def min_max_normalise(curve: Tensor) -> Tensor:
    """``(c - min c) / (max c - min c)`` for each curve; NaN if it is flat."""
    low, high = curve.amin(1, keepdim=True), curve.amax(1, keepdim=True)
    return (curve - low) / (high - low)


# Settings of the metrics that exchange pixels
Reference = Annotated[InfillKind, Doc("what replaces a removed pixel")]
BoxSize = Annotated[
    PositiveOddInt | None,
    Doc("width of the blur (odd); none: to 4 sigma each way, for others a tenth of the shortest side", unit="pixels"),
]
Sigma = Annotated[
    Positive | None, Doc("standard deviation of a Gaussian; none: a fifth of the shortest side", unit="pixels")
]
Edge = Annotated[Padding, Doc("what the blur reads beyond the edge")]
Steps = Annotated[
    PositiveInt | None, Doc("number of steps N; none: the height of the image, one row of pixels per step")
]
Importance = Annotated[Reduction, Doc("importance of a pixel from its channels")]


#: Presets that all of them have.
SHARED_PRESETS: Mapping[str, Mapping[str, Any]] = {"fast": {"steps": 64}, "zero": {"reference": "zeros"}}


@dataclass(frozen=True)
class ExchangeMetric(RankingMetric):
    """Base class of metrics that exchange the pixels of an image with its infill, step by step. Which map is better may
    depend on the infill, so that the usual scores have two of them.

    After step s of N, ``round(s P / N)`` of P pixels are exchanged, each with all its channels. Without ``steps``, N is
    the length of the first axis of space: a row's width of pixels per step in an image. N is at most P.
    """

    reference: Reference = "gaussian"
    size: BoxSize = None
    sigma: Sigma = None
    padding: Edge = "reflect"
    steps: Steps = None

    @property
    def planned_passes(self) -> float:
        """Forward passes of one curve; without ``steps`` those of an image of 100 rows."""
        return self.steps or 100

    def refusal(self, shape: Sequence[int]) -> str:
        return blur_refusal(self.reference, shape)

    def infill(self, inputs: Tensor) -> Infill:
        """What replaces the pixels of ``inputs`` (B, *S)."""
        return Infill(self.reference, self.size, self.sigma, self.padding).resolve(inputs)

    def count(self, ranking: Ranking) -> int:
        """The number of steps N."""
        return min(self.steps or ranking.most_first.shape[1], ranking.pixels)

    def exchanged(
        self, context: EvaluationContext, ranking: Ranking, mode: Mode, kind: Literal["probability", "logit"]
    ) -> PerturbationCurve:
        """The target's probability or logit after each step, in the order of a ranking.

        Costs N - 1 forward passes per image, and one for the infill of the context's images.
        """
        problem, infill, count = context.problem, self.infill(context.problem.inputs), self.count(ranking)
        replaced, every = infill.make(context), problem.every_row
        measure = problem.probability if kind == "probability" else logits_score(problem)
        at_input = measure(problem.logits, every)
        at_reference = context.cached((kind, infill), lambda: measure(problem.forward(replaced, every), every))
        first, last = (replaced, at_reference), (problem.inputs, at_input)
        (before, start), (after, stop) = (first, last) if mode == "insertion" else (last, first)
        changed = torch.tensor([round(s * ranking.pixels / count) for s in range(count + 1)])
        changed = changed.to(ranking.mass.device)
        # An insertion is the removal of the least important pixels first, read backwards.
        rank = ranking.most_first if mode == "deletion" else ranking.pixels - 1 - ranking.least_first
        mix = exchange(rank, before, after, changed[1:-1])
        values = torch.cat([start[:, None], respond(context, count - 1, mix, measure), stop[:, None]], 1)
        return PerturbationCurve(values, at_input, at_reference, changed, ranking)


class PerturbationMetric(ExchangeMetric):
    """Base class of metrics of the target's probability while the important pixels are exchanged."""

    mode: ClassVar[Mode]
    reduction: Importance

    def curve(self, maps: EvaluatedMaps) -> PerturbationCurve:
        """Compute the curve once for all metrics of these maps that need the same one."""
        context, ranking = maps.context, ranking_of(maps, self.reduction)
        infill = self.infill(context.problem.inputs)
        key = ("perturbation curve", self.mode, infill, self.reduction, self.count(ranking))
        return maps.cached(key, lambda: self.exchanged(context, ranking, self.mode, "probability"))


# Responses of the model to changed images

#: ``mix(rows, numbers)``: changed images (L, *S), those of ``numbers`` (L,) of the images ``rows`` (L,).
Mix = Callable[[Tensor, Tensor], Tensor]

#: ``measure(logits, rows)``: numbers (L, ...) from the logits (L, C) of the images ``rows`` (L,).
Measure = Callable[[Tensor, Tensor], Tensor]


def respond(context: EvaluationContext, count: int, mix: Mix, measure: Measure) -> Tensor:
    """Measure the model on ``count`` changes of each image, (B, count, ...): as many forward passes for each image.

    ``mix`` is given at most the classifier's batch size of them at once, so memory does not grow with their number.
    """
    problem = context.problem
    if not count or not len(problem.inputs):  # no changes, no passes
        return measure(problem.logits, problem.every_row)[:, None][:, :0]

    def probe(rows: Tensor, numbers: Tensor) -> Tensor:
        return measure(problem.forward(mix(rows, numbers), rows), rows)

    return for_each(problem, count, probe)


def for_each(problem: Problem, count: int, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Results (B, count, ...) of ``function(rows, numbers)`` for ``count`` variants of each image, a batch at a time:
    it is given the images (L,) and the numbers (L,) of the variants, and returns (L, ...)."""
    rows = problem.every_row.repeat_interleave(count)
    numbers = torch.arange(count, device=rows.device).repeat(len(problem.inputs))
    result = problem.model.batch_size.map(function, rows, numbers)
    return result.view(len(problem.inputs), count, *result.shape[1:])


def exchange(rank: Tensor, before: Tensor, after: Tensor, counts: Tensor) -> Mix:
    """Change ``before`` into ``after`` (B, *S) at the ``counts[n]`` pixels of the first ranks (B, *space)."""
    rank = per_channel(rank, before)
    return lambda rows, numbers: torch.where(
        rank[rows] < batch_view(counts[numbers], before), after[rows], before[rows]
    )


def per_channel(of_pixels: Tensor, inputs: Tensor) -> Tensor:
    """Give numbers of pixels (B, *space) the axis of the channels that ``inputs`` (B, *S) have."""
    return of_pixels.unsqueeze(1) if of_pixels.dim() < inputs.dim() else of_pixels


def logits_score(problem: Problem) -> Measure:
    """The target's logit, minus that of the contrast if there is one, in float64."""
    return lambda logits, rows: problem.score(logits.double(), rows, "logit")


#: What :func:`prediction` measures, in its order.
PREDICTION = ("probability", "accuracy")


def prediction(problem: Problem) -> Measure:
    """The target's probability, and 1 where it is the predicted class, else 0: (L, 2)."""

    def measure(logits: Tensor, rows: Tensor) -> Tensor:
        predicted = logits.argmax(1) == problem.target[rows]
        return torch.stack([problem.probability(logits, rows), predicted.double()], 1)

    return measure


def signed_map(values: Tensor) -> Tensor:
    """Signed evidence of each pixel, the sum over its channels: (B, C, H, W) -> (B, H, W)."""
    a = values.double()
    return a if a.dim() == 2 else a.sum(1)
