"""Do maps follow the model? They are made again for networks with random weights, or for another class."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from fringe.errors import InputError
from fringe.linalg import batch_view
from fringe.metrics._base import EvaluatedMaps, EvaluationContext, Metric, PlainMaps, Scores, is_zero
from fringe.metrics._random_networks import How, Order, RandomNetworks
from fringe.metrics._similarity import Similarity, entropy, similarity, similarity_refusal
from fringe.paths import Problem
from fringe.settings import Doc, Positive, PositiveInt

_HOW = Doc("random weights: drawn as a new network's are, the tensor's own shuffled, or normal with its mean and std")
_KIND = Doc("Spearman's rank correlation of all entries, or structural similarity of the images")
_SIGNED = Doc("compare signed maps, not magnitudes")


@dataclass(frozen=True)
class MPRT(Metric):
    """How similar maps stay while the layers of the network are made random, one after the other.

    .. math:: \\frac{1}{L} \\sum_{l=1}^{L} \\mathrm{similarity}(A(f),\\, A(f_{1 \\dots l}))

    where the weights of the first l of L parts are random; the curve ``similarity`` (B, L + 1) begins at the network
    itself. The parts have equal numbers of layers. A layer is a module with parameters, and all its tensors count.
    The running statistics of a normalisation stay, its factors and offsets do not. A tensor that several layers share
    belongs to the first of them. The target is always that of the network.

    A map of zeros says that the random network has no evidence, which is right: its similarity is 0. The detail
    ``refused_share`` counts such maps, and the flag ``refused`` says that all of them are zero. The similarity of a
    constant map to any other map is 0, too; that of equal maps is 1. A map that is zero for the network itself has no
    score, flag ``zero_map``. The detail ``random_steps`` is the number of steps on the random network as a whole, if
    the method reports it. With several ``samples`` each map is the mean over this many noisy inputs, one of them
    without noise (preset ``smooth``). Costs ``stages`` times ``samples`` maps.
    """

    name = "mprt"
    title = "MPRT"
    direction = "lower"
    space = "maps of networks with random layers"
    source = "Adebayo et al. 2018, section 3; smooth: Hedström et al. 2023, as Quantus 0.6"
    presets: ClassVar = {
        "paper": {},
        "quantus": {"stages": None},
        "ssim": {"similarity": "ssim", "signed": True},
        "smooth": {"samples": 50, "order": "bottom_up"},
    }
    requires_explainer = True
    compares_models = True
    by_default = False

    order: Annotated[Order, Doc("begin at the output or at the input")] = "top_down"
    how: Annotated[How, _HOW] = "reinit"
    similarity: Annotated[Similarity, _KIND] = "spearman"
    signed: Annotated[bool, _SIGNED] = False
    summary: Annotated[Literal["mean", "last"], Doc("score of an image: mean of the parts, or all layers random")] = (
        "mean"
    )
    stages: Annotated[PositiveInt | None, Doc("number of stages; none: one for each layer")] = 8
    samples: Annotated[PositiveInt, Doc("noisy inputs of a map; one has no noise")] = 1
    noise: Annotated[Positive, Doc("noise of these inputs, as a share of the range of the image")] = 0.1

    def refusal(self, shape: Sequence[int]) -> str:
        return similarity_refusal(self.similarity, shape)

    @property
    def planned_passes(self) -> float:
        """None of its own: the passes of the random networks are shared by all methods."""
        return 0.0

    @property
    def planned_maps(self) -> float:
        """Maps of all stages and noisy inputs; with a stage for each layer, as if there were one."""
        return self.samples * (self.stages or 1) + self.samples - 1

    def score(self, maps: EvaluatedMaps) -> Scores:
        networks = random_networks(maps.context, self.how)
        original = maps.cached((self.name, "smooth", self.samples, self.noise), lambda: self._smooth(maps, None).values)
        parts = networks.stages(self.order, self.stages)
        curve, refused = [torch.ones_like(original.flatten(1)[:, 0])], list[Tensor]()
        steps = None
        for names in parts:
            with networks.randomised(names) as model:
                made = self._smooth(maps, _on(maps.context, model, (self.how, names)))
            curve.append(similarity(original, made.values, self.similarity, signed=self.signed))
            refused.append(is_zero(made.values))
            steps = made.diagnostics.get("steps")
        line, zeros, empty = torch.stack(curve, 1), torch.stack(refused, 1), is_zero(original)
        values = line[:, 1:].mean(1) if self.summary == "mean" else line[:, -1]
        values = values.masked_fill(empty, torch.nan)
        flags = {"refused": zeros.all(1) & ~empty, "zero_map": empty, "undefined": values.isnan() & ~empty}
        details = {"last": line[:, -1], "refused_share": zeros.to(line).mean(1)}
        return Scores(values, flags, details | _steps(steps), {"similarity": line})

    def _smooth(self, maps: EvaluatedMaps, problem: Problem | None) -> PlainMaps:
        """Mean maps of ``problem``, or of the network itself (None)."""
        original = maps.context.problem
        clean = PlainMaps(maps.values.double(), {}) if problem is None else _make(maps, problem)
        if self.samples == 1:
            return clean
        base, total = problem or original, clean.values.clone()
        span = original.inputs.flatten(1).aminmax(dim=1)
        std = self.noise * (span.max - span.min)
        for sample in range(1, self.samples):
            pairs = zip(original.keys, original.inputs, strict=True)
            draws = [original.rng.normal(f"{self.name} {key} {sample}", image) for key, image in pairs]
            x = original.inputs + torch.stack(draws) * batch_view(std, original.inputs)
            noisy = replace(base, inputs=x, ids=original.keys, logits=base.forward(x, base.every_row))
            total += _make(maps, noisy).values
        return PlainMaps(total / self.samples, clean.diagnostics)


@dataclass(frozen=True)
class EfficientMPRT(Metric):
    """How much less ordered the map is when all weights of the network are random.

    .. math:: \\frac{H(A(f_{random})) - H(A(f))}{H(A(f))}

    where H is the entropy of the histogram of all signed entries of a map. It costs one map and compares no entries, so
    a noisy method has no advantage. But any map that becomes noise scores well, and a map that stays smooth does not.
    If the map of the random network is zero, which is right, there is no score: flag ``refused``. If the map of the
    network itself is constant, there is no score: flag ``undefined``. Details: both entropies in nats, and
    ``random_steps``.
    """

    name = "efficient_mprt"
    title = "Efficient MPRT"
    direction = "higher"
    space = "the histogram of the map, of a network with random weights"
    source = "Hedström et al. 2023, as Quantus 0.6: 100 bins, signed maps as they are"
    requires_explainer = True
    compares_models = True
    by_default = False

    how: Annotated[How, _HOW] = "reinit"
    bins: Annotated[PositiveInt, Doc("bins of the histogram")] = 100

    @property
    def planned_maps(self) -> float:
        """One, of the random network."""
        return 1.0

    def score(self, maps: EvaluatedMaps) -> Scores:
        networks = random_networks(maps.context, self.how)
        (names,) = networks.stages("top_down", 1)
        with networks.randomised(names) as model:
            made = _make(maps, _on(maps.context, model, (self.how, names)))
        before, after = entropy(maps.values, self.bins), entropy(made.values, self.bins)
        refused = is_zero(made.values) & ~is_zero(maps.values)
        values = ((after - before) / before.where(before > 0, torch.nan)).masked_fill(refused, torch.nan)
        flags = {"refused": refused, "undefined": values.isnan() & ~refused}
        details = {"entropy": before, "random_entropy": after}
        return Scores(values, flags, details | _steps(made.diagnostics.get("steps")))


@dataclass(frozen=True)
class RandomLogit(Metric):
    """How similar the map is to the map of another class, which is drawn at random for each image.

    Structural similarity (``ssim``) is the mean over the channels and all windows of 7 by 7 pixels, of maps that are
    divided by their largest magnitude. It has sample variances and the constants (0.01 R)^2 and (0.03 R)^2, where R is
    the range of both maps.

    A map that does not depend on the class scores 1. Two maps of zeros have no similarity, flag ``zero_map``. With
    several ``classes`` the similarities are averaged; a method with one path for all classes runs it once. Costs a map
    for each class, or one.
    """

    name = "random_logit"
    title = "Random logit"
    direction = "lower"
    space = "maps of another class"
    source = "after Sixt et al. 2020, as Quantus 0.6; structural similarity in windows of the image"
    presets: ClassVar = {"paper": {}, "spearman": {"similarity": "spearman"}}
    requires_explainer = True
    compares_models = True
    by_default = False

    similarity: Annotated[Similarity, _KIND] = "ssim"
    signed: Annotated[bool, _SIGNED] = True
    classes: Annotated[PositiveInt, Doc("other classes of an image")] = 1

    def refusal(self, shape: Sequence[int]) -> str:
        return similarity_refusal(self.similarity, shape)

    @property
    def planned_maps(self) -> float:
        """One for each class."""
        return float(self.classes)

    def score(self, maps: EvaluatedMaps) -> Scores:
        problem = maps.context.problem
        others = maps.context.cached((self.name, self.classes), lambda: self._others(problem))
        several = self.classes > 1
        contrast = problem.contrast
        if several and contrast is not None:
            contrast = contrast[:, None].expand_as(others)
        made = _make(maps, replace(problem, target=others if several else others[:, 0], contrast=contrast)).values
        columns = made.unbind(1) if several else (made,)
        scores = [similarity(maps.values, other, self.similarity, signed=self.signed) for other in columns]
        zero = is_zero(maps.values)
        values = torch.stack(scores, 1).mean(1).masked_fill(zero, torch.nan)
        return Scores(values, {"zero_map": zero, "undefined": values.isnan() & ~zero})

    def _others(self, problem: Problem) -> Tensor:
        """Classes (B, K) that are neither the target nor its contrast, without repeats."""
        count = problem.logits.shape[1]
        taken = [problem.target] if problem.contrast is None else [problem.target, problem.contrast]
        if count - len(taken) < self.classes:
            came = f"got {self.classes}, but the model has {count} classes, {count - len(taken)} of them not explained"
            raise InputError(came, argument=f"{self.name}.classes")
        rows: list[list[int]] = []
        for image, key in enumerate(problem.keys):
            explained = {int(classes[image]) for classes in taken}
            order = problem.rng.permutation(f"{self.name} {key}", count)
            rows.append([c for c in order if c not in explained][: self.classes])
        return torch.tensor(rows, device=problem.target.device)


def random_networks(context: EvaluationContext, how: How) -> RandomNetworks:
    """The networks of a context whose weights are random in this way; all methods are given the same ones."""
    problem = context.problem
    return context.cached(("random networks", how), lambda: RandomNetworks(problem.model, how, problem.rng))


def _on(context: EvaluationContext, model: Any, key: Any) -> Problem:
    """The problem of the same images and classes on a random network; its logits are computed once."""
    problem = context.problem
    other = replace(problem, model=model, ids=problem.keys)
    logits = context.cached(("random logits", key), lambda: other.forward(other.inputs, other.every_row))
    return replace(other, logits=logits)


def _make(maps: EvaluatedMaps, problem: Problem) -> PlainMaps:
    """Maps of another problem by the same method, in float64."""
    with problem.model.session(problem.inputs.device):
        made = maps.made(problem)
    return PlainMaps(made.values.double(), made.diagnostics)


def _steps(steps: Tensor | None) -> dict[str, Tensor]:
    return {} if steps is None else {"random_steps": steps.double()}
