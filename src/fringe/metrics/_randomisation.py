"""Do maps follow the model? They are made again for networks with random weights or another class, and compared."""

import contextlib
import copy
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from fringe._numbers.rng import KeyedGenerator
from fringe.classifier import Classifier
from fringe.errors import InputError
from fringe.linalg import batch_view
from fringe.metrics._base import EvaluatedMaps, EvaluationContext, Metric, PlainMaps, Scores, images_only, is_zero
from fringe.paths import Problem
from fringe.settings import Doc, Positive, PositiveInt

#: How maps are compared: by the ranks of their entries, or by local structure.
Similarity = Literal["spearman", "ssim"]
#: Side of the windows of structural similarity, as in scikit-image.
WINDOW = 7


def _similarity_refusal(kind: Similarity, shape: Sequence[int]) -> str:
    """Why maps of this shape (B, *S) cannot be compared in this way; empty if they can."""
    reason = images_only(shape, "structural similarity is defined") if kind == "ssim" else ""
    return reason and f"{reason}; use similarity='spearman'"


def similarity(a: Tensor, b: Tensor, kind: Similarity, *, signed: bool) -> Tensor:
    """Compare maps one by one.

    Equal maps have similarity 1; a constant map has no order and no structure, and has similarity 0 to any other. NaN
    where a map is not finite.

    Args:
        a: Maps (B, *S).
        b: Maps (B, *S).
        kind: ``"spearman"``: the rank correlation of all entries; ``"ssim"``: the mean structural similarity over
            windows of 7 by 7 pixels and channels, of maps divided by their largest magnitude (Wang et al. 2004).
        signed: Whether to compare signed maps, and not their magnitudes.

    Returns:
        Similarities (B,) from -1 to 1, in float64.
    """
    a, b = (x.double() for x in (a, b))
    a, b = (a, b) if signed else (a.abs(), b.abs())
    flat, other = a.flatten(1), b.flatten(1)
    if kind == "spearman":
        values = correlation(average_ranks(flat), average_ranks(other))
    else:
        values = _structural(_unit(a), _unit(b))
    constant = (flat == flat[:, :1]).all(1) | (other == other[:, :1]).all(1)
    values = values.masked_fill(constant, 0.0).masked_fill((flat == other).all(1), 1.0)
    return values.masked_fill(~(flat.isfinite().all(1) & other.isfinite().all(1)), torch.nan)


def correlation(a: Tensor, b: Tensor) -> Tensor:
    """Pearson's correlation (B,) of the rows of ``a`` and ``b`` (B, n); NaN where one of them is constant."""
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    return ((a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))).clamp(-1.0, 1.0)


def average_ranks(values: Tensor) -> Tensor:
    """Ranks (B, n) from 1 on of the entries of each row of ``values`` (B, n); equal ones share the mean of theirs."""
    ordered, values = values.sort(dim=1).values.contiguous(), values.contiguous()
    below = torch.searchsorted(ordered, values)
    up_to = torch.searchsorted(ordered, values, right=True)
    return (below + up_to + 1).to(values.dtype) / 2.0


def entropy(values: Tensor, bins: int) -> Tensor:
    """Entropy (B,) in nats of the histogram of all entries of each map of ``values`` (B, *S), with equal bins from the
    smallest entry to the largest one, as NumPy counts them; 0 for a constant map, NaN for one that is not finite."""
    flat = values.double().flatten(1)
    finite = flat.isfinite().all(1)
    flat = flat.nan_to_num()
    low, high = flat.amin(1, keepdim=True), flat.amax(1, keepdim=True)
    edges = low + torch.arange(bins + 1, dtype=flat.dtype, device=flat.device) * ((high - low) / bins)
    edges[:, -1:] = high
    position = torch.searchsorted(edges, flat.contiguous(), right=True) - 1
    counts = torch.zeros(len(flat), bins, dtype=flat.dtype, device=flat.device)
    counts.scatter_add_(1, position.clamp(0, bins - 1), torch.ones_like(flat))
    share = counts / flat.shape[1]
    nats = -torch.special.xlogy(share, share).sum(1)
    return nats.masked_fill((low == high)[:, 0], 0.0).masked_fill(~finite, torch.nan)


def _unit(maps: Tensor) -> Tensor:
    """Maps divided by their largest magnitude; maps of zeros as they are."""
    largest = batch_view(maps.flatten(1).abs().amax(1), maps)
    return maps / largest.where(largest > 0, 1.0)


def _structural(a: Tensor, b: Tensor) -> Tensor:
    """Structural similarity (B,) of images (B, C, H, W): windows of equal weight inside the image, sample variances,
    and as dynamic range that of both maps."""
    window = min(WINDOW, *a.shape[2:])
    window -= 1 - window % 2
    count = window * window

    def mean(x: Tensor) -> Tensor:
        return avg_pool2d(x, window, stride=1)

    mean_a, mean_b, norm = mean(a), mean(b), count / max(count - 1, 1)
    variance_a, variance_b = norm * (mean(a * a) - mean_a**2), norm * (mean(b * b) - mean_b**2)
    covariance = norm * (mean(a * b) - mean_a * mean_b)
    both = torch.cat([a.flatten(1), b.flatten(1)], 1)
    span = (both.amax(1) - both.amin(1)).view(-1, 1, 1, 1)
    c1, c2 = (0.01 * span) ** 2, (0.03 * span) ** 2
    top = (2 * mean_a * mean_b + c1) * (2 * covariance + c2)
    return (top / ((mean_a**2 + mean_b**2 + c1) * (variance_a + variance_b + c2))).flatten(1).mean(1)


#: How weights become random.
How = Literal["reinit", "shuffle", "gaussian"]
#: Where randomisation begins: at the output or at the input.
Order = Literal["top_down", "bottom_up"]


class _RandomNetworks:
    """A copy of a network whose weights can be made random, layer by layer; the network itself is not touched.

    The copy shares the tensors of the network, so that it needs memory for one further set of weights, however many
    layers there are. Random weights are keyed by the names of their tensors: the same for every method, image and
    process.

    Args:
        model: The classifier.
        how: ``"reinit"`` draws a tensor of two or more axes as PyTorch's linear and convolutional layers do, uniformly
            within ``1 / sqrt(inputs of one output)``, an offset beside one alike; a factor of a normalisation becomes
            1 and its offset 0. ``"shuffle"`` permutes the entries of each tensor. ``"gaussian"`` draws normal numbers
            with its mean and standard deviation.
        rng: Source of random numbers.

    Raises:
        InputError: If the model is no module, has no parameters, or cannot be copied.
    """

    def __init__(self, model: Classifier, how: How, rng: KeyedGenerator):
        if model.module is None:
            came = f"got a {type(model.model).__name__}, whose weights are not known"
            raise InputError(came, argument="model", hint="pass the torch.nn.Module itself")
        self._model, self._how, self._rng = model, how, rng
        self._original = {n: p.detach() for n, p in model.module.named_parameters() if p.is_floating_point()}
        if not self._original:
            raise InputError("it has no parameters that could be made random", argument="model")
        shared = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in model.module.parameters()}
        try:
            self._copy = copy.deepcopy(model.module, shared)
        except (RuntimeError, TypeError) as error:
            message = f"its weights cannot be made random, as it cannot be copied ({error})"
            raise InputError(message, argument="model") from error
        self._random: dict[str, Tensor] = {}

    def layers(self, order: Order) -> list[tuple[str, ...]]:
        """Names of the parameters of each layer, in the order of the modules; each is in the first that has it."""
        assert self._model.module is not None
        known = {id(p): n for n, p in self._model.module.named_parameters() if p.is_floating_point()}
        modules = list(self._model.module.modules())
        layers: list[tuple[str, ...]] = []
        for module in modules if order == "bottom_up" else reversed(modules):
            names = [known.pop(id(p), "") for p in module.parameters(recurse=False)]
            layers += [known_names] if (known_names := tuple(filter(None, names))) else []
        return layers

    def stages(self, order: Order, count: int | None) -> list[tuple[str, ...]]:
        """Names of the parameters that are random at each stage of a cumulative randomisation, at the last one all.

        There are ``count`` stages with equal numbers of layers; None: one a layer.
        """
        layers = self.layers(order)
        total = min(count or len(layers), len(layers))
        ends = [len(layers) * (stage + 1) // total for stage in range(total)]
        return [tuple(name for layer in layers[:end] for name in layer) for end in ends]

    @contextlib.contextmanager
    def randomised(self, names: Sequence[str]) -> Generator[Classifier]:
        """Give a classifier in which these parameters are random, until the end of the block."""
        parameters = dict(self._copy.named_parameters())
        try:
            for name in names:
                if name not in self._random:
                    self._random[name] = self._draw(name)
                parameters[name].data = self._random[name]
            # what it computed from other weights is forgotten: modules of timm that keep such clear it for training
            flags = {part: part.training for part in self._copy.modules()}
            with contextlib.suppress(NotImplementedError):  # an exported program has one mode, and stores nothing
                self._copy.train()
            for part, flag in flags.items():
                part.training = flag
            yield self._model.with_model(self._copy)
        finally:
            for name in names:
                parameters[name].data = self._original[name]

    def _draw(self, name: str) -> Tensor:
        """Random weights in place of a tensor."""
        value, key = self._original[name], f"random network {self._how} {name}"
        if self._how == "shuffle":
            draws = torch.empty(value.numel(), dtype=torch.float64)  # argsort: a list of millions takes seconds
            return value.flatten()[self._rng.uniform(key, draws).argsort().to(value.device)].view_as(value)
        if self._how == "gaussian":
            return value.mean() + value.std(correction=0) * self._rng.normal(key, value)
        inputs = self._inputs(name)
        if inputs is None:
            return torch.zeros_like(value) if "bias" in name.rpartition(".")[2] else torch.ones_like(value)
        return (2.0 * self._rng.uniform(key, value) - 1.0) / inputs**0.5

    def _inputs(self, name: str) -> int | None:
        """How many inputs an output has of the tensor, or of the largest one beside it; None for a normalisation."""
        value, prefix = self._original[name], name.rpartition(".")[0]
        if value.dim() < 2:
            beside = [v for n, v in self._original.items() if n.rpartition(".")[0] == prefix and v.dim() > 1]
            if not beside:
                return None
            value = max(beside, key=Tensor.numel)
        return value[0].numel()


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
        return _similarity_refusal(self.similarity, shape)

    @property
    def planned_passes(self) -> float:
        """None of its own: the passes of the random networks are shared by all methods."""
        return 0.0

    @property
    def planned_maps(self) -> float:
        """Maps of all stages and noisy inputs; with a stage for each layer, as if there were one."""
        return self.samples * (self.stages or 1) + self.samples - 1

    def score(self, maps: EvaluatedMaps) -> Scores:
        networks = _random_networks(maps.context, self.how)
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
        networks = _random_networks(maps.context, self.how)
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

    A map that does not depend on the class scores 1. The map of the other one of two classes is about the opposite
    map. As opposite maps are alike in structure and in brightness, with both signs turned, their structural similarity
    is near 1. So it gives no score there, flag ``two_classes``: take the preset ``spearman``. Two maps of zeros have no
    similarity, flag ``zero_map``. With several ``classes`` the similarities are averaged; a method with one path for
    all classes runs it once. Costs a map for each class, or one.
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
        return _similarity_refusal(self.similarity, shape)

    @property
    def planned_maps(self) -> float:
        """One for each class."""
        return float(self.classes)

    def score(self, maps: EvaluatedMaps) -> Scores:
        problem = maps.context.problem
        if self.similarity == "ssim" and problem.logits.shape[1] == 2:
            nothing = torch.full_like(maps.values.flatten(1)[:, 0], torch.nan, dtype=torch.float64)
            return Scores(nothing, {"two_classes": nothing.isnan()})
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


def _random_networks(context: EvaluationContext, how: How) -> _RandomNetworks:
    """The networks of a context whose weights are random in this way; all methods are given the same ones."""
    problem = context.problem
    return context.cached(("random networks", how), lambda: _RandomNetworks(problem.model, how, problem.rng))


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
