"""Metrics that fill in missing pixels from their neighbours: ROAD, and performance information curves."""

import io
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from fringe.errors import require
from fringe.linalg import batch_view, inner_product
from fringe.metrics import _perturbation as perturb
from fringe.metrics._base import EvaluatedMaps, EvaluationContext, Metric, Scores, space_only
from fringe.settings import Doc, Fraction, NotNegative, Positive, checked_by

#: Most iterations of a solve: a hole of 224 pixels takes about 250.
MOST_ITERATIONS = 1000


def _require_shares(value: Sequence[float]) -> None:
    fits = bool(value) and all(0 < share < 1 for share in value)
    require(fits, "shares", value, "numbers between 0 and 1")


@dataclass(frozen=True)
class ROAD(perturb.RankingMetric):
    """The ROAD gap: the prediction without the least important pixels, minus the prediction without the most important
    ones.

    .. math:: \\mathrm{score} = \\frac1n \\sum_p \\bigl(y(x^{LeRF}_p) - y(x^{MoRF}_p)\\bigr)

    A share p of the pixels is removed, the most relevant first (MoRF) or the least relevant first (LeRF), and imputed:
    each missing pixel is the weighted mean of its neighbours plus noise. The weights are 1 / d^2 at the distance of d
    pixels: 2 : 1 for the sides and corners of a pixel, 6 : 3 : 2 for the sides, edges and corners of a voxel, 1 : 1 for
    the two neighbours in a series. This is one linear system for each image and share. So the shape of the mask does
    not reveal the class. y is the target's probability, or whether it is predicted (preset ``accuracy``).

    Equal pixels are removed in one random order of the image, whether the most or the least relevant come first. So a
    constant map scores 0. Large smooth regions are imputed well, so smooth maps are underestimated: compare with single
    deletion. The systems are solved together on the model's device, in single precision. The noise belongs to the image
    and is the same for all methods. Costs two forward passes for each share.

    Flags: ``not_converged`` (an imputation missed its tolerance), ``zero_map``, ``constant_map``. Details: the gap of
    both measures. Curves: ``morf``, ``lerf``, of the chosen measure over the shares.
    """

    name = "road"
    title = "ROAD gap"
    direction = "higher"
    space = "the target's probability over the share of imputed pixels"
    source = "Rong, Leemann et al. 2022 (ROAD, ICML); the gap is their LeRF minus MoRF"
    by_default = False
    presets: ClassVar = {"paper": {}, "accuracy": {"measure": "accuracy"}}

    shares: Annotated[tuple[float, ...], checked_by(_require_shares), Doc("shares of removed pixels")] = (
        *(0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9),
    )
    measure: Annotated[Literal["probability", "accuracy"], Doc("quantity that is measured")] = "probability"
    noise: Annotated[NotNegative, Doc("standard deviation of the noise", unit="share of the valid range")] = 0.01
    tolerance: Annotated[Positive, Doc("relative residual of an imputation")] = 1e-3
    reduction: perturb.Importance = "max"

    @property
    def planned_passes(self) -> float:
        return 2 * len(self.shares)

    def refusal(self, shape: Sequence[int]) -> str:
        return space_only(shape, "imputation")

    def score(self, maps: EvaluatedMaps) -> Scores:
        context, problem = maps.context, maps.context.problem
        x = problem.inputs
        ranking = perturb.ranking_of(maps, self.reduction)
        noise = context.cached((self.name, self.noise), lambda: self._noise(context))
        counts = torch.tensor([round(share * ranking.pixels) for share in self.shares], device=x.device)
        most, least = (perturb.per_channel(rank, x) for rank in (ranking.most_first, ranking.least_first))
        converged = torch.ones(len(x), dtype=torch.bool, device=x.device)
        share_count = len(self.shares)

        def removed(rows: Tensor, numbers: Tensor) -> Tensor:
            count, is_most = (batch_view(one, x) for one in (counts[numbers % share_count], numbers < share_count))
            missing = torch.where(is_most, most[rows], least[rows]) < count
            imputed, solved = impute(x[rows], missing, self.tolerance)
            converged.index_put_((rows[~solved],), converged.new_zeros(()))
            return torch.where(missing, imputed + noise[rows], x[rows])

        left = perturb.respond(context, 2 * share_count, removed, perturb.prediction(problem))
        morf, lerf = left[:, :share_count], left[:, share_count:]
        gaps = ranking.gap(lerf, morf).mean(1)
        chosen = perturb.PREDICTION.index(self.measure)
        return Scores(
            gaps[:, chosen],
            flags={"not_converged": ~converged, **ranking.flags()},
            details={**dict(zip(perturb.PREDICTION, gaps.T, strict=True)), "ties": ranking.ties()},
            curves={"morf": morf[..., chosen], "lerf": lerf[..., chosen]},
        )

    def _noise(self, context: EvaluationContext) -> Tensor:
        problem = context.problem
        low, high = problem.domain.bounds(problem.inputs)
        named = zip(problem.keys, problem.inputs, strict=True)
        return self.noise * (high - low) * torch.stack([problem.rng.normal(f"{self.name} {k}", x) for k, x in named])


@dataclass(frozen=True)
class _Neighbourhood:
    """The symmetric system of the missing pixels: each one's weight minus that of its missing neighbours."""

    missing: Tensor  # (L, 1, *space), of zeros and ones
    weight: Tensor  # (1, 1, *space), the weights of the neighbours inside the image

    def matvec(self, v: Tensor) -> Tensor:
        return self.missing * (self.weight * v - _neighbour_sum(self.missing * v))


def impute(x: Tensor, missing: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """Replace the ``missing`` pixels (L, 1, *space) of images (L, C, *space) by the weighted mean of their neighbours,
    all at once; and return whether each system (L,) was solved. The ``tolerance`` is the relative residual of each, of
    which the right-hand side is centred on the image's known mean."""
    wide, m, space = x.to(torch.float32), missing.to(torch.float32), tuple(range(2, x.dim()))
    weight = _neighbour_sum(torch.ones_like(wide[:1, :1]))
    count = (1.0 - m).sum(space, keepdim=True).clamp_min(1.0)
    mean = ((1.0 - m) * wide).sum(space, keepdim=True, dtype=torch.float64).to(wide) / count
    known = (1.0 - m) * (wide - mean)
    right = m * _neighbour_sum(known)
    system = _Neighbourhood(m, weight)
    # A residual bounds the error only up to the conditioning of the system, which grows with the area of a hole.
    centred, solved = _conjugate_gradients(system.matvec, right, 0.1 * tolerance)
    return torch.where(missing, centred + mean, wide).to(x), solved


def _conjugate_gradients(product: Callable[[Tensor], Tensor], b: Tensor, rtol: float) -> tuple[Tensor, Tensor]:
    """Solve a positive definite system of each image, and return whether its residual is below ``rtol`` (L,)."""
    x, r, d, rr = torch.zeros_like(b), b, b, inner_product(b, b)
    goal = rtol**2 * rr
    for _ in range(MOST_ITERATIONS):
        active = rr > goal
        if not bool(active.any()):
            break
        ad = product(d)
        curvature = inner_product(d, ad)
        alpha = batch_view(torch.where(active & (curvature > 0), rr / curvature, 0.0).to(b.dtype), b)
        x, r, before = x + alpha * d, r - alpha * ad, rr
        rr = torch.where(active, inner_product(r, r), rr)
        d = r + batch_view(torch.where(active, rr / before, 0.0).to(b.dtype), b) * d
    return x, rr <= goal


def _neighbour_sum(values: Tensor) -> Tensor:
    """Weighted sum over the neighbours inside the image, (L, C, *space): 1 / (6 d^2) at the distance of d pixels.

    Sums of shifted images, which are equal in every batch: convolutions round by the size of theirs.
    """
    sizes = values.shape[2:]
    padded = pad(values, (1, 1) * len(sizes))
    total = torch.zeros_like(values)
    for offset in itertools.product((-1, 0, 1), repeat=len(sizes)):
        if any(offset):
            at = [slice(1 + step, 1 + step + size) for step, size in zip(offset, sizes, strict=True)]
            total = total + 1 / (6 * sum(map(abs, offset))) * padded[(..., *at)]
    return total


Array = NDArray[Any]
#: Points of a curve between which its area is taken, as in the authors' code; each tenth of them is stored.
POINTS, STORED = 1000, 10
#: Pixels of the longest side of a WebP file.
WEBP_SIDE = 16_383


def _require_thresholds(value: Sequence[float]) -> None:
    fits = value and all(0 < share < 1 for share in value) and list(value) == sorted(value)
    require(bool(fits), "thresholds", value, "ascending numbers between 0 and 1")


@dataclass(frozen=True)
class PerformanceInformationCurve(Metric):
    """Area under the prediction over the information shown, while the important pixels of an image appear.

    The first image has its corners and 1 % random pixels, the same for all methods. For each threshold the pixels above
    that quantile of the map are added. All other pixels are interpolated linearly on the Delaunay triangles of the
    shown ones (in a volume on tetrahedra, in a series between neighbours), and rounded in single precision to one of
    256 values of the valid range. The horizontal axis is the size of the image as lossless WebP, from the first image
    (0) to the input (1). The vertical axis is the target's probability (softmax information curve, SIC), or whether it
    is predicted (preset ``aic``), scaled from the first image to the input, clipped, and made monotone by its running
    maximum over the thresholds. The curve is linear between its points.

    An image is skipped, NaN with the flag ``skipped``, if its probability is below ``least`` or the first image has as
    much probability or information as the input. The score is the area of each image, so that methods can be paired,
    and tables show its median; the published number is the area under the median of the curves ``pic``. Pixels that are
    as important as the quantile are shown, too: a constant map shows the whole input at once, which scores 1/2. Such
    maps are flagged ``constant_map`` or ``zero_map``.

    Costs a forward pass per threshold (13), one for the first images, and about a second of compression and
    interpolation on the CPU for 224 pixels. Other numbers of channels than 1 and 3 are compressed side by side.
    """

    name = "pic"
    title = "Information curve"
    direction = "higher"
    space = "the target's probability over the compressed size of the image"
    source = "Kapishnikov et al. 2019 (XRAI); PAIR saliency, metrics.pic"
    aggregate = "median"
    by_default = False
    presets: ClassVar = {"paper": {}, "sic": {}, "aic": {"measure": "accuracy"}}

    measure: Annotated[Literal["probability", "accuracy"], Doc("quantity that is drawn")] = "probability"
    thresholds: Annotated[
        tuple[float, ...], checked_by(_require_thresholds), Doc("shares of the most important pixels")
    ] = (*(0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.07, 0.10, 0.13, 0.21, 0.34, 0.5, 0.75),)
    initial: Annotated[Fraction, Doc("share of random pixels of the first image")] = 0.01
    least: Annotated[Fraction, Doc("smallest probability of an image that is not skipped")] = 0.8
    monotone: Annotated[bool, Doc("replace the curve by its running maximum")] = True
    reduction: perturb.Importance = "sum_abs"

    @property
    def planned_passes(self) -> float:
        return len(self.thresholds)

    def refusal(self, shape: Sequence[int]) -> str:
        return space_only(shape, "interpolation")

    def score(self, maps: EvaluatedMaps) -> Scores:
        context, problem = maps.context, maps.context.problem
        x = problem.inputs
        first = context.cached((self.name, self.initial), lambda: self._respond(context, self._first_masks(context)))
        importance = perturb.spatial_map(maps.values, self.reduction).cpu().numpy()
        quantiles = np.quantile(importance.reshape(len(x), -1), 1.0 - np.array(self.thresholds), axis=1).T
        shown = importance[:, None] >= quantiles.reshape(*quantiles.shape, *[1] * (x.dim() - 2))
        partial = self._respond(context, shown | self._first_masks(context))
        ends = perturb.prediction(problem)(problem.logits, problem.every_row)
        information = np.array([_image_information(image) for image in _Pixels.of(context).quantised])
        column = perturb.PREDICTION.index(self.measure)
        inputs = np.concatenate([ends.cpu().numpy(), information[:, None]], 1)[:, (column, 2)]
        start, between = (part[..., (column, 2)] for part in (first[:, 0], partial))
        skipped = (inputs[:, 0] < self.least) | (start >= inputs).any(1)
        curves = np.full((len(x), POINTS + 1), np.nan)
        for i in np.flatnonzero(~skipped):
            share = ((between[i] - start[i]) / (inputs[i] - start[i])).clip(0.0, 1.0)
            curves[i] = information_curve(share[:, 1], share[:, 0], monotone=self.monotone)
        dtype, device = torch.float64, x.device
        area = np.trapezoid(curves, dx=1.0 / POINTS, axis=1)
        return Scores(
            torch.as_tensor(area, dtype=dtype, device=device),
            flags={
                "skipped": torch.as_tensor(skipped, device=device),
                **perturb.ranking_of(maps, self.reduction).flags(),
            },
            details={"p_input": ends[:, 0], "initial": torch.as_tensor(start[:, 0], dtype=dtype, device=device)},
            curves={"pic": torch.as_tensor(curves[:, ::STORED], dtype=dtype, device=device)},
        )

    def _first_masks(self, context: EvaluationContext) -> Array:
        """Random pixels, keyed by image: (B, 1, *space)."""
        problem = context.problem
        shape = problem.inputs.shape[2:]
        masks = np.zeros((len(problem.inputs), 1, shape.numel()), dtype=bool)
        for mask, key in zip(masks, problem.keys, strict=True):
            pixels = problem.rng.permutation(f"{self.name} {key}", mask.size)
            mask[0, pixels[: int(mask.size * self.initial)]] = True
        return masks.reshape(-1, 1, *shape)

    def _respond(self, context: EvaluationContext, masks: Array) -> Array:
        """Probability, accuracy and information (B, N, 3) of the images that show the pixels of ``masks``."""
        problem, pixels = context.problem, _Pixels.of(context)
        information = np.zeros(masks.shape[:2])

        def show(rows: Tensor, numbers: Tensor) -> Tensor:
            images: list[Array] = []
            for i, n in zip(rows.tolist(), numbers.tolist(), strict=True):
                image, quantised = pixels.show(i, masks[i, n])
                information[i, n] = _image_information(quantised)
                images.append(image)
            return torch.as_tensor(np.stack(images), dtype=problem.inputs.dtype, device=problem.inputs.device)

        responses = perturb.respond(context, masks.shape[1], show, perturb.prediction(problem)).cpu().numpy()
        return np.concatenate([responses, information[..., None]], 2)


@dataclass(frozen=True)
class _Pixels:
    """The images (B, C, *space) of a context in their own coordinates, and as bytes."""

    inputs: Array
    quantised: NDArray[np.uint8]
    low: Array
    high: Array

    @classmethod
    def of(cls, context: EvaluationContext) -> "_Pixels":
        def make() -> "_Pixels":
            x = context.problem.inputs
            low, high = (bound.expand_as(x).double().cpu().numpy() for bound in context.problem.domain.bounds(x))
            inputs = x.double().cpu().numpy()
            return cls(inputs, _as_bytes(inputs, low, high), low, high)

        return context.cached("pixels", make)

    def show(self, i: int, mask: Array) -> tuple[Array, NDArray[np.uint8]]:
        """Image ``i`` with the pixels of ``mask`` (*space) and its corners, all else between them; and its bytes.

        Interpolated pixels are rounded to bytes, as those of a picture are.
        """
        bytes_of = self.quantised[i]
        filled = interpolate(bytes_of.astype(np.float64), mask)
        rounded = np.round(filled.astype(np.float32)).astype(np.uint8)  # halves, of whole numbers, stay halves
        value = self.low[i] + (self.high[i] - self.low[i]) * (rounded / 255.0)
        return np.where(rounded == bytes_of, self.inputs[i], value), rounded


def _as_bytes(x: Array, low: Array, high: Array) -> NDArray[np.uint8]:
    extent = np.where(high > low, high - low, 1.0)
    return np.round(255.0 * ((x - low) / extent).clip(0.0, 1.0)).astype(np.uint8)


def interpolate(image: Array, mask: Array) -> Array:
    """Fill the pixels outside ``mask`` (*space) of an image (C, *space), linearly on the Delaunay simplices of the
    others: between neighbours in a series, on triangles in an image, on tetrahedra in a volume.

    The corners stay as they are, too.
    """
    from scipy.interpolate import LinearNDInterpolator

    known = mask.copy()
    known[np.ix_(*[(0, -1)] * mask.ndim)] = True
    if known.all():
        return image
    extended = [axis for axis, size in enumerate(mask.shape) if size > 1]
    points, missing = np.argwhere(known)[:, extended], np.argwhere(~known)[:, extended]
    if len(extended) == 1:
        values = np.stack([np.interp(missing[:, 0], points[:, 0], channel[known]) for channel in image], 1)
    else:
        values = LinearNDInterpolator(points, image[:, known].T)(missing)
    result = image.copy()
    result[:, ~known] = np.where(np.isnan(values), image.reshape(len(image), -1).mean(1), values).T
    return result


def _image_information(image: NDArray[np.uint8]) -> int:
    """Size in bytes of an image (C, *space) as lossless WebP: a series is one row, the slices of a volume are stacked,
    and what is longer than a file may be is stored in several."""
    from PIL import Image

    channels, width = image.shape[0], image.shape[-1]
    planes = image.reshape(channels, -1, width)
    picture = planes.transpose(1, 2, 0) if channels == 3 else np.concatenate(list(planes), axis=1)
    size = 0
    for row, column in itertools.product(*(range(0, side, WEBP_SIDE) for side in picture.shape[:2])):
        buffer = io.BytesIO()
        part = np.ascontiguousarray(picture[row : row + WEBP_SIDE, column : column + WEBP_SIDE])
        Image.fromarray(part).save(buffer, format="webp", lossless=True, quality=100)
        size += buffer.tell()
    return size


def information_curve(information: Array, prediction: Array, *, monotone: bool) -> Array:
    """Interpolate predictions over information to a grid of ``POINTS`` + 1 points from (0, 0) to (1, 1)."""
    heights = np.maximum.accumulate(prediction) if monotone else prediction
    x, y = np.append(information, (0.0, 1.0)), np.append(heights, (0.0, 1.0))
    order = np.argsort(x, kind="stable")
    return np.interp(np.linspace(0.0, 1.0, POINTS + 1), x[order], y[order])
