"""Methods of other libraries as methods of this one.

An adapter gives the other library the explained score as a function or as a module, so that targets, contrasts and
further arguments of the model are applied here, and every pass is counted. The other direction, a method of this
library as a class of Captum, is :mod:`fringe.captum`.
"""

import contextlib
import dataclasses
import importlib
import inspect
import sys
import warnings
from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor, nn

from fringe._network.arguments import Part, is_joint, split
from fringe._network.isolation import leaf, restored
from fringe._network.passes import network_of
from fringe.attribution._base import Attribution, Attributor, Baseline, ProgressCounter, require_package
from fringe.attribution._diagnostics import gradient_attribution, sum_attribution
from fringe.errors import InputError, install_hint, is_installed
from fringe.linalg import batch_view, grid_cells
from fringe.paths import Occlusion, Problem, movable_words
from fringe.settings import Doc, PositiveInt, Setting

#: ``explain(part)``: maps (B, *S) of a part of the images that fits one pass.
Explain = Callable[[Problem], Tensor]


class PluginMethod(Attributor):
    """A method that another package computes.

    Attributes:
        hint: What to do about maps that do not keep the sum that the method promises.
    """

    has_path = False
    is_complete = False
    hint: ClassVar[str] = ""

    @property
    def planned_passes(self) -> float:
        return 2.0

    @classmethod
    def search_space(cls) -> dict[str, Setting]:
        """Return no setting: ``algorithm`` is the method itself, and the choices of others suit one algorithm alone."""
        return {}

    @abstractmethod
    def _explainer(self, problem: Problem) -> Explain:
        """Return what makes the maps of a part of the images; raises InputError without its package or a fit model."""

    def _endpoint_score(self, problem: Problem) -> Tensor | None:
        """The score (B,) from which the maps measure that of the input, if they promise a sum."""
        return None

    def attribute(self, problem: Problem) -> Attribution:
        explain = self._explainer(problem)
        counter = ProgressCounter(problem.progress, len(problem.inputs))

        def maps(rows: Tensor) -> Tensor:
            values = explain(dataclasses.replace(problem.select(rows), progress=None)).detach()
            counter.tick(len(rows))
            return values

        values = problem.model.batch_size.map(maps, problem.every_row)
        endpoint_score = self._endpoint_score(problem)
        if endpoint_score is not None:
            return sum_attribution(self, values, problem, endpoint_score, self.hint)
        why = f"{self.label} promises no sum that could be compared with the score"
        return gradient_attribution(self, values, problem, {}, why)


class _ScoreModule(nn.Module):
    """The explained score ``(x (L, *S), rows (L,)) -> (L,)`` as a module around the network, for hooks in its layers.

    Args:
        problem: The images and the model. Its session is open.
    """

    def __init__(self, problem: Problem):
        super().__init__()
        self.problem, self.network = problem, problem.model.module

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        model, arguments = self.problem.model, self.problem.forward_args.select(rows)
        scores = self.problem.score(model.evaluate(x, arguments), rows)
        if scores.requires_grad:
            scores.register_hook(self._count)
        return scores

    def _count(self, cotangent: Tensor) -> None:
        self.problem.model.passes.vjp += len(cotangent)


def score_function(problem: Problem) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the explained score ``(x (L, *S), rows (L,)) -> (L,)``, in chunks of the batch size.

    Its gradient is computed with it, so that memory does not grow with L.
    """

    def score(x: Tensor, rows: Tensor) -> Tensor:
        x = x.to(problem.inputs)  # a package may have mixed in numbers of another default dtype
        if x.requires_grad and torch.is_grad_enabled():
            return _ScoreWithGradient.apply(x, rows, problem)  # pyright: ignore[reportReturnType]
        return problem.score(problem.forward(x, rows), rows)

    return score


class _ScoreWithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor, problem: Problem) -> Tensor:
        with torch.enable_grad():
            logits, gradient = problem.logits_gradient(x.detach(), rows)
        ctx.save_for_backward(gradient)
        return problem.score(logits, rows)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return batch_view(cotangents[0], gradient) * gradient, None, None


# -- captum -----------------------------------------------------------------------------------------------------------

Algorithm = Literal["occlusion", "gradient_shap", "deep_lift", "guided_backprop", "kernel_shap", "input_x_gradient"]
Superpixels = Literal["auto", "grid", "slic"]

#: A number for all axes of space, or for each of the explained tensors one for each of its axes.
Window = PositiveInt | tuple[tuple[PositiveInt, ...], ...] | None

#: The settings that each algorithm reads.
_READS: Mapping[str, tuple[str, ...]] = {
    "occlusion": ("window", "stride", "baseline"),
    "gradient_shap": ("samples",),
    "deep_lift": ("baseline",),
    "guided_backprop": (),
    "kernel_shap": ("samples", "superpixels", "segments", "baseline"),
    "input_x_gradient": (),
}


@dataclass(frozen=True)
class CaptumMethod(PluginMethod):
    """A method of the package captum, by the name of its ``algorithm``: ``captum:occlusion``.

    ``occlusion``: a window slides over the image, or each of several tensors, and words of texts are removed in turn;
    ``window`` and ``stride`` may hold a tuple for each tensor. ``gradient_shap``: expected gradients over reference
    images. ``deep_lift``: the rescale rule. ``guided_backprop``: gradients that pass only positive parts through ReLU;
    it fails sanity checks, so it is a control. ``kernel_shap``: Shapley values of words or of superpixels, by SLIC if
    scikit-image is installed, else on a grid; the record says which. ``input_x_gradient``: gradient times input.

    DeepLift and guided backpropagation change modules only: a nonlinearity that is called as a function, such as
    ``torch.relu``, keeps its ordinary gradient. Maps of DeepLift promise the change of the score from the baseline, and
    are ``coarse`` if their sum misses it. Random numbers are keyed by the image.
    """

    name = "captum"
    form = "captum:NAME"
    title = "Captum"
    titles: ClassVar = {
        "occlusion": "Occlusion",
        "gradient_shap": "GradientSHAP",
        "deep_lift": "DeepLIFT",
        "guided_backprop": "Guided backpropagation",
        "kernel_shap": "KernelSHAP",
        "input_x_gradient": "Input × gradient",
    }
    source = "Kokhlikyan et al. 2020, and the authors of each method"
    package = "captum"
    presets: ClassVar = {name: {"algorithm": name} for name in get_args(Algorithm)}

    algorithm: Annotated[Algorithm, Doc("name of the method")] = "occlusion"
    window: Annotated[Window, Doc("occlusion: side, or all; none: a seventh of the image's", unit="pixels")] = None
    stride: Annotated[Window, Doc("occlusion: step, or all; none: half of the window", unit="pixels")] = None
    samples: Annotated[PositiveInt, Doc("gradient_shap and kernel_shap: random points")] = 200
    superpixels: Annotated[Superpixels, Doc("kernel_shap: auto is slic if scikit-image is installed")] = "auto"
    segments: Annotated[PositiveInt, Doc("kernel_shap: superpixels, to the order")] = 49
    baseline: Annotated[Baseline, Doc("what replaces removed parts: zero, black, white, mean, blur ...")] = "zero"

    def __post_init__(self) -> None:
        super().__post_init__()
        reads = _READS[self.algorithm]
        for field in fields(self):
            if field.name not in ("algorithm", *reads) and getattr(self, field.name) != field.default:
                known = f"its settings: {', '.join(reads)}" if reads else "it has no settings"
                raise InputError(f"{self.label} has no setting {field.name!r}", argument=field.name, hint=known)
        if self.algorithm == "kernel_shap" and self.superpixels == "auto":
            object.__setattr__(self, "superpixels", "slic" if is_installed("skimage") else "grid")

    @classmethod
    def preset(cls, name: str, /) -> Self:
        """Return the method of captum with this name."""
        if name == "grad_cam":
            raise InputError("Grad-CAM needs no captum: it is the method gradcam", argument="preset")
        return super().preset(name)

    def record(self) -> dict[str, Any]:
        """Return the name and the settings that the algorithm reads as plain data.

        Returns:
            A record from which :meth:`from_record` makes the method again.
        """
        read = (self.record_key, "algorithm", *_READS[self.algorithm])
        return {name: value for name, value in super().record().items() if name in read}

    hint = "it follows modules alone: make each nonlinearity a torch.nn module that runs once, or choose another method"

    @property
    def is_complete(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - depends on a setting
        """Whether the algorithm promises the sum of a map."""
        return self.algorithm == "deep_lift"

    def _endpoint_score(self, problem: Problem) -> Tensor | None:
        if not self.is_complete:
            return None
        return problem.score(problem.forward(problem.resolve_baseline(self.baseline), problem.every_row))

    @property
    def uses_gradients(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - depends on a setting
        """Whether the algorithm needs gradients, and does not only replace parts of the input."""
        return self.algorithm not in ("occlusion", "kernel_shap")

    @property
    def takes_feature_mask(self) -> bool:
        """Whether the algorithm replaces parts of the input, which the caller may choose."""
        return not self.uses_gradients

    @property
    def uses_references(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - depends on a setting
        """Whether the algorithm averages over reference images."""
        return self.algorithm == "gradient_shap"

    @property
    def planned_passes(self) -> float:
        return {"occlusion": 170.0, "gradient_shap": 2.0 * self.samples, "kernel_shap": self.samples}.get(
            self.algorithm, 4.0 if self.algorithm == "deep_lift" else 2.0
        )

    def _explainer(self, problem: Problem) -> Explain:
        if self.algorithm == "occlusion" and (problem.feature_mask is not None or problem.token_length is not None):
            return lambda part: Occlusion.alone(part, self.baseline)  # without the package
        require_package(self)
        captum: Any = importlib.import_module("captum.attr")
        if self.algorithm == "occlusion":
            return self._occlusion(captum, problem)
        if self.algorithm == "kernel_shap":
            return self._kernel_shap(captum)
        if self.algorithm == "input_x_gradient":
            return lambda part: _by_gradients(captum.InputXGradient(score_function(part)), part)
        if self.algorithm == "gradient_shap":
            references = problem.reference_images(f"{self.label} averages over images of the data")
            shap = captum.GradientShap
            return self._one_by_one(lambda one: _by_gradients(shap(score_function(one)), one, references, self.samples))
        network = network_of(problem.model, self.label)  # the others have hooks in its layers
        if self.algorithm == "guided_backprop":
            return lambda part: _by_gradients(captum.GuidedBackprop(_ScoreModule(part)), part)

        def explain(part: Problem) -> Tensor:
            with _running_once(network, self.label):
                return _by_gradients(captum.DeepLift(_ScoreModule(part)), part, part.resolve_baseline(self.baseline))

        def in_pairs(part: Problem) -> Tensor:  # an input and its baseline are in one pass
            size = max(1, part.model.batch_size.on(part.inputs.device) // 2)
            return torch.cat([explain(part.select(rows)) for rows in part.every_row.split(size)])

        return in_pairs

    # -- perturbations, an image after the other ----------------------------------------------------------------------

    def _one_by_one(self, explain: Explain) -> Explain:
        """Each image by itself, with random numbers of its own."""

        def every(part: Problem) -> Tensor:
            maps: list[Tensor] = []
            for image, key in enumerate(part.keys):
                with part.rng.seeded(f"{self.label} {key}"):
                    maps.append(explain(part.select([image])).detach())
            return torch.cat(maps)

        return every

    def _perturb(self, kind: Any, one: Problem, **settings: Any) -> Tensor:
        """The map (1, *S) by a method of captum that replaces parts of the tensors by those of the baseline."""
        score, parts = score_function(one), one.forward_args.parts
        tensors, baselines, mask = (
            None if x is None else _tensors(x, parts)
            for x in (one.inputs, one.resolve_baseline(self.baseline), settings.pop("feature_mask", None))
        )

        def joined(*given: Tensor) -> Tensor:
            *each, rows = given
            return score(torch.cat([x.flatten(1) for x in each], 1) if is_joint(parts) else each[0], rows)

        maps: tuple[Tensor, ...] = kind(joined).attribute(
            tensors,
            baselines=baselines,
            additional_forward_args=(one.every_row,),
            perturbations_per_eval=one.model.batch_size.on(one.inputs.device),
            **({} if mask is None else {"feature_mask": mask}),
            **settings,
        )
        return torch.cat([x.flatten(1) for x in maps], 1).view_as(one.inputs)

    def _occlusion(self, captum: Any, problem: Problem) -> Explain:
        shapes = [tuple(x.shape[1:]) for x in _tensors(problem.inputs, problem.forward_args.parts)]
        window, stride = self.window, self.stride
        if not isinstance(window, tuple):
            side = window
            window = tuple(
                (c, *(side or max(1, round(s / 7)) for s in sides)) if sides else (1,) for c, *sides in shapes
            )
        if not isinstance(stride, tuple):
            step = stride
            stride = tuple((w[0], *(step or max(1, s // 2) for s in w[1:])) for w in window)
        for name, value, most in (("window", window, shapes), ("stride", stride, window)):
            if [*map(len, value)] != [*map(len, shapes)]:
                raise InputError(f"got {value}, expected a number for each axis of {shapes}", argument=name)
            for side, limit in zip(chain(*value), chain(*most), strict=True):
                if side > limit:
                    raise InputError(f"got {side} for a side of {limit}", argument=name)
        return self._one_by_one(
            lambda one: self._perturb(captum.Occlusion, one, sliding_window_shapes=window, strides=stride)
        )

    def _kernel_shap(self, captum: Any) -> Explain:
        if not is_installed("sklearn"):
            message = f"{self.label} needs scikit-learn, which is not installed"
            raise InputError(message, argument="method", hint=install_hint("captum"))

        def explain(one: Problem) -> Tensor:
            parts = self._superpixels(one.inputs[0]) if one.feature_mask is None else one.feature_mask[0]
            share = torch.ones_like(one.inputs)  # of an entry in the value of its part
            if one.token_length is not None:
                one, parts, share = movable_words(one, self.baseline)
            parts = parts.unique(return_inverse=True)[1]
            if parts.any():
                return share * self._perturb(captum.KernelShap, one, feature_mask=parts[None], n_samples=self.samples)
            # a single one has the whole change: there are no others to weigh it against
            score, baseline = score_function(one), one.resolve_baseline(self.baseline)
            change = score(one.inputs, one.every_row) - score(baseline, one.every_row)
            return share * batch_view(change, one.inputs).expand_as(one.inputs).clone()

        return self._one_by_one(explain)

    def _superpixels(self, x: Tensor) -> Tensor:
        """The superpixel of each entry of an input (*S), numbered from 0 on; of a row of features, each is its own."""
        if x.dim() == 1:
            return torch.arange(len(x), device=x.device)
        if self.superpixels == "slic" and x.dim() == 3:
            low, high = x.amin(), x.amax()
            pixels = ((x - low) / (high - low).clamp_min(1e-12)).double().cpu().numpy()
            slic = importlib.import_module("skimage.segmentation").slic
            labels = slic(pixels, self.segments, compactness=0.1, start_label=0, channel_axis=0, convert2lab=False)
            _, numbers = np.unique(labels, return_inverse=True)
            return torch.from_numpy(numbers.reshape(labels.shape)).to(x.device).expand(x.shape)
        cells = max(1, round(self.segments ** (1 / (x.dim() - 1))))
        return grid_cells(x.shape[1:], cells).to(x.device).expand(x.shape)


def _tensors(x: Tensor, parts: Sequence[Part]) -> tuple[Tensor, ...]:
    """The explained tensors (L, *S), a number for each input as (L, 1)."""
    return tuple(v[:, None] if v.dim() == 1 else v for v in split(x, parts))


@contextlib.contextmanager
def _running_once(network: nn.Module, label: str) -> Generator[None]:
    """Name a module that runs twice, and take back what Captum holds in modules and leaves there after an error."""
    free = [(vars(m), name) for m in network.modules() for name in ("input", "output") if name not in vars(m)]
    try:
        yield
    except RuntimeError as error:
        if "used more than once" not in str(error):
            raise
        message = f"a nonlinearity of it runs more than once, which {label} cannot follow"
        hint = "give each call a module of its own, or choose another method"
        raise InputError(message, argument="model", hint=hint) from error
    finally:
        for attributes, name in free:
            attributes.pop(name, None)


def _by_gradients(method: Any, part: Problem, *settings: Any) -> Tensor:
    """The maps of a method of captum that differentiates the score."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*hooks")  # which it sets, and removes
        return method.attribute(leaf(part.inputs), *settings, additional_forward_args=(part.every_row,))


# -- layer-wise relevance propagation: zennit for convolutional networks, lxt for transformers ------------------------

Rules = Literal[
    "epsilon_plus_flat",
    "epsilon_plus",
    "epsilon_gamma_box",
    "epsilon_alpha2_beta1",
    "epsilon_alpha2_beta1_flat",
    "excitation_backprop",
]


def _propagated(part: Problem, start: Callable[[Tensor, Tensor], Tensor], tolerance: float = 0.01) -> Tensor:
    """What reaches the input (B, *S) of ``start(logits, cotangent)`` (B, C) at the output: one VJP per image.

    The logits are those of the network as it is; rules may change them a little, by this share.
    """
    x, network = leaf(part.inputs), part.model.module
    logits = part.model.evaluate(x, part.forward_args.select(part.every_row))
    change = (logits.detach() - part.logits).norm() / part.logits.norm()
    if change > tolerance and network is not None and not network.training:  # in training mode they are random
        message = f"with the rules its logits change by {float(change):.1%}, so the map would be of another network"
        raise InputError(message, argument="model", hint="choose another method")
    begin = start(part.logits, part.score_cotangent(part.logits))
    with part.model.backward(x.device):
        (result,) = torch.autograd.grad(logits, x, begin, materialize_grads=True)
    part.model.passes.vjp += len(x)
    return result


class _RelevancePropagation(PluginMethod):
    """A method whose maps promise the relevance of the output: the logits times the derivative of the score."""

    is_complete = True
    hint = "biases take up relevance, and in a residual sum without a rule of its own each summand gets all of it"

    def _endpoint_score(self, problem: Problem) -> Tensor:
        relevance = (problem.logits * problem.score_cotangent(problem.logits)).sum(-1)
        return problem.score(problem.logits) - relevance


@dataclass(frozen=True)
class ZennitMethod(_RelevancePropagation):
    """Layer-wise relevance propagation by the package zennit (Bach et al. 2015; Anders et al. 2021).

    ``zennit:epsilon_plus_flat`` and the others are the composites of zennit: they choose a rule for each layer. The
    relevance of the output is the explained logit (for another score: each logit times the derivative of the score).
    Rules apply to modules; functions and other modules keep their ordinary gradient. During the call, batch
    normalisation is merged into the layer that is defined before it; a network that this changes is refused. The blocks
    of torchvision's ResNet get their own rule for the sum; elsewhere each summand gets all of the relevance, so that
    a map of a residual network may sum to many times the score: such a map is ``coarse``.
    """

    name = "zennit"
    form = "zennit:NAME"
    title = "LRP"
    titles: ClassVar = {
        "epsilon_plus_flat": "LRP (ε, +, flat)",
        "epsilon_plus": "LRP (ε, +)",
        "epsilon_gamma_box": "LRP (ε, γ, box)",
        "epsilon_alpha2_beta1": "LRP (ε, α2β1)",
        "epsilon_alpha2_beta1_flat": "LRP (ε, α2β1, flat)",
        "excitation_backprop": "Excitation backpropagation",
    }
    source = "Bach et al. 2015; Anders et al. 2021"
    package = "zennit"
    needs_classes = True
    presets: ClassVar = {name: {"algorithm": name} for name in get_args(Rules)}

    algorithm: Annotated[Rules, Doc("the composite of rules")] = "epsilon_plus_flat"

    def _explainer(self, problem: Problem) -> Explain:
        require_package(self)
        from fringe.models import import_torchvision

        network = network_of(problem.model, self.label)
        import_torchvision("zennit")  # zennit imports it
        composites, canonizers, types = (
            importlib.import_module(f"zennit.{name}") for name in ("composites", "torchvision", "types")
        )
        modules: list[Any] = list(network.modules())
        if any(isinstance(module, nn.MultiheadAttention) for module in modules):
            message = "zennit has no rule for torch.nn.MultiheadAttention"
            raise InputError(message, argument="model", hint="choose another method, such as lxt:attnlrp")
        if not any(isinstance(module, types.Linear) for module in modules):
            message = "zennit has no rules for its layers; it knows torch.nn.Linear and the convolutions of torch.nn"
            raise InputError(message, argument="model", hint="choose another method")
        # zennit leaves eps in a normalisation that it merges: the output shrinks by sqrt(1 + eps)
        tolerance = 0.01 + sum(module.eps for module in modules if isinstance(module, types.BatchNorm)) / 2

        def explain(part: Problem) -> Tensor:
            more: dict[str, Any] = {"canonizers": [canonizers.ResNetCanonizer()]}
            if self.algorithm == "epsilon_gamma_box":
                low, high = part.domain.bounds(part.inputs)
                more |= {"low": low.expand_as(part.inputs), "high": high.expand_as(part.inputs)}
            with _registered(composites.COMPOSITES[self.algorithm](**more), network):
                return _propagated(part, lambda logits, cotangent: logits * cotangent, tolerance)

        return explain


@contextlib.contextmanager
def _registered(composite: Any, network: nn.Module) -> Generator[None]:
    """Apply a composite of zennit; the weights are given back where it fails half way, too."""
    tables = [(module, dict(module.named_parameters(recurse=False))) for module in network.modules()]
    weights = [(weight, weight.data) for weight in network.parameters()]
    try:
        composite.register(network)
    except RuntimeError as error:
        for weight, data in weights:
            weight.data = data
        for module, table in tables:
            for name, _ in list(module.named_parameters(recurse=False)):
                setattr(module, name, table.get(name))
        message = f"zennit cannot merge a batch normalisation into the layer that is defined before it ({error})"
        raise InputError(message, argument="model", hint="choose another method") from error
    try:
        yield
    finally:
        composite.remove()


@dataclass(frozen=True)
class AttnLRP(_RelevancePropagation):
    """Relevance propagation through attention by the package lxt (Achtibat et al. 2024): ``lxt:attnlrp``.

    The map is the input times a gradient with special rules for products, softmax, normalisation and activations. lxt
    supports networks of transformers of the kinds llama, qwen2, qwen3, gemma3 and gpt2, and networks with
    ``torch.nn.MultiheadAttention``, such as torchvision's vision transformers (without relevance through queries
    and keys). During the call its rules replace functions of these classes, for all models of the process.
    lxt 2.1 needs transformers before version 5.
    """

    name = "lxt"
    form = "lxt:NAME"
    title = "AttnLRP (lxt)"
    titles: ClassVar = {"attnlrp": "AttnLRP"}
    source = "Achtibat et al. 2024"
    package = "lxt"
    needs_classes = True
    presets: ClassVar = {"attnlrp": {}}

    algorithm: Annotated[Literal["attnlrp"], Doc("name of the rules")] = "attnlrp"

    def _explainer(self, problem: Problem) -> Explain:
        require_package(self)
        from fringe.models import import_transformers

        network = network_of(problem.model, self.label)
        import_transformers()  # which lxt imports, and which may find a torchvision of another build than torch
        try:
            known: Mapping[Any, Mapping[Any, Any]] = importlib.import_module("lxt.efficient.models").DEFAULT_MAP
        except ImportError as error:
            message = f"lxt cannot be imported ({error}); lxt 2.1 needs transformers before version 5"
            raise InputError(message, argument="method", hint=install_hint("lxt")) from error
        names = {module.__name__: module for module in known if not module.__name__.endswith("modeling_bert")}
        used = {kind.__module__ for module in network.modules() for kind in inspect.getmro(type(module))}
        rules = [known[names[name]] for name in sorted(used & set(names))]
        if not rules and any(isinstance(module, nn.MultiheadAttention) for module in network.modules()):
            rules = [known[sys.modules["torchvision.models.vision_transformer"]]]
        if not rules:
            message = f"lxt has no rules for its layers; it knows {', '.join(sorted(names))} and torch.nn attention"
            raise InputError(message, argument="model", hint="choose another method")

        def explain(part: Problem) -> Tensor:
            with contextlib.ExitStack() as stack:
                for patches in rules:
                    for target, patch in patches.items():
                        stack.enter_context(restored(target))
                        patch(target)
                return part.inputs * _propagated(part, lambda logits, cotangent: cotangent)

        return explain
